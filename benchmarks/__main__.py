"""`make bench`: every stage in a process of its own, with its seconds and its peak memory.

Files go to bench/ and stay there, so that a second call starts at once. Timings are of this machine and this
moment; the ratios of `bert4rec bench train` are what can be compared between machines.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

FOLDER = Path("bench")
BERT4REC = str(Path(sys.executable).parent / "bert4rec")
MILLION = 1_000_000


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    csv, parquet = FOLDER / "ml-20m-shape.csv", FOLDER / "hundred-million.parquet"
    run = [sys.executable, "-m", "benchmarks.make_logs"]
    measures = [
        ("generate 20 million actions of ML-20m's shape, write CSV", [*run, "csv", str(csv)], csv),
        ("prepare that CSV", [BERT4REC, "prepare", str(csv), "-o", str(FOLDER / "csv"), "--overwrite"], None),
        ("write 100 million actions as Parquet", [*run, "parquet", str(parquet)], parquet),
        (
            "prepare that Parquet",
            [BERT4REC, "prepare", str(parquet), "-o", str(FOLDER / "parquet"), "--overwrite"],
            None,
        ),
    ]
    table = Table("what", "seconds", "peak GiB", box=None, header_style="bold")
    for what, command, made in measures:
        if made and made.exists():
            continue
        seconds, peak = measure(command)
        table.add_row(what, f"{seconds:.1f}", f"{peak:.2f}")
    table.add_row("open the prepared 100 million", f"{open_seconds(FOLDER / 'parquet'):.4f}", "")
    console = Console()
    console.print(table)
    for shape, batch_size in (("ml-1m", 64), ("beauty", 64)):
        found = json.loads(
            output([BERT4REC, "bench", "train", "--like", shape, "--batch-size", str(batch_size), "--json"])
        )
        console.print(
            f"training, {shape}'s shape, d=64, {found['device']}: {found['samples_per_second']:,.0f} samples/s, "
            f"{found['ratio']:.1f} times a plain loop"
        )
    # Of the service, what takes a minute; `python -m benchmarks.serving` alone measures everything.
    serving = ["benchmarks.serving", "start", "throughput", "overload", "--seconds", "4", "--rounds", "1"]
    for part in (["benchmarks.recommend"], serving):
        console.print(output([sys.executable, "-m", *part]))


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds and peak memory of a process of its own."""
    program = f"import subprocess, resource; subprocess.run({command!r}, check=True, capture_output=True); "
    program += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    began = time.perf_counter()
    kibibytes = int(output([sys.executable, "-c", program]))
    return time.perf_counter() - began, kibibytes / 2**20


def open_seconds(folder: Path) -> float:
    from bert4rec.data.dataset import Dataset

    began = time.perf_counter()
    dataset = Dataset.open(folder)
    assert np.all(dataset.history(dataset.num_users - 1) > 0)
    return time.perf_counter() - began


def output(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
