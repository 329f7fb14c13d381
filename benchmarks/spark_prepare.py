"""What `prepare` on Spark costs beside polars, on one log and on the same cores; `python -m benchmarks.spark_prepare`.

Each engine works in a process of its own, which tells how long it took and how much memory it had at most: Python, and
apart from it Java, which is driver and executors in one where Spark works on a single machine. Prints one JSON object.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bert4rec
from bert4rec.machine import usable_cores

SHAPE = "ml-20m"
MIB = 1024
"""In the units of /proc."""


def measure_prepare(folder: Path, cores: int, shape: str = SHAPE) -> dict[str, Any]:
    """A log of a real data set's shape as Parquet, by the order of time, prepared by both engines."""
    log = folder / "log.parquet"
    world = bert4rec.prepare("synthetic", like=shape)
    world.to_polars().sort("time", maintain_order=True).write_parquet(log)
    found = {engine: _in_a_process(log, folder / engine, engine, cores) for engine in ("polars", "spark")}
    names = sorted(path.name for path in (folder / "polars").iterdir() if path.name != "dataset.json")
    return {
        "like": shape,
        "actions": world.num_actions,
        **found,
        "ratio": round(found["spark"]["seconds"] / found["polars"]["seconds"], 2),
        "equal": all(
            (folder / "polars" / name).read_bytes() == (folder / "spark" / name).read_bytes()
            for name in names
        ),
    }


def _in_a_process(log: Path, target: Path, engine: str, cores: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.spark_prepare", "--cores", str(cores)]
    command += ["--only", engine, str(log), str(target)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(told))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--shape", default=SHAPE, help="ml-1m, beauty, steam or ml-20m")
    arguments.add_argument("--cores", type=int, default=min(2, usable_cores()))
    arguments.add_argument("--only", nargs=3, metavar=("ENGINE", "LOG", "FOLDER"), help="of one engine alone")
    asked = arguments.parse_args()
    if asked.only:
        told = _prepare(*asked.only, cores=asked.cores)
    else:
        with TemporaryDirectory(prefix="bert4rec-") as scratch:
            facts = {"scale": "spark prepare", "cores": asked.cores, "version": bert4rec.__version__}
            told = facts | measure_prepare(Path(scratch), asked.cores, asked.shape)
    sys.stdout.write(json.dumps(told) + "\n")


def _prepare(engine: str, log: str, folder: str, *, cores: int) -> dict[str, Any]:
    """Time and memory of this very process."""
    began = time.perf_counter()
    if engine == "spark":
        bert4rec.prepare(log, folder, engine="spark", master=f"local[{cores}]")
    else:
        bert4rec.prepare(log, folder)
    told = {"seconds": round(time.perf_counter() - began, 1), "python MiB": _most_memory(Path("/proc/self"))}
    java = _java()
    return told if java is None else told | {"java MiB": _most_memory(java)}


def _most_memory(process: Path) -> int:
    """The most that a process had in memory so far."""
    line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // MIB


def _java() -> Path | None:
    """Spark's Java, which this process has started; it is still there."""
    own = str(Path("/proc/self").resolve().name)
    for process in Path("/proc").glob("[0-9]*"):
        facts = dict(
            line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
        )
        if facts["Name"].strip() == "java" and facts["PPid"].strip() == own:
            return process
    return None


if __name__ == "__main__":
    main()
