"""Training by one process and by two, of one thread each, on a log of ML-1m's shape.

`python -m benchmarks.distributed` prints one JSON line: samples a second of both, the middle of many steps, and how
many times as fast two are. They take turns, so that whatever else the machine does falls on both. Results go to
`results/speed-scale.jsonl`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import bert4rec
from bert4rec.machine import usable_cores
from bert4rec.training.device import place

TURNS, MARKS, STEPS_A_MARK = 3, 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--like", default="ml-1m", help="the data set whose shape the log has")
    parser.add_argument("--model", default="bert4rec+")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="a setting, such as model.dim=64")
    given = parser.parse_args()
    speeds: dict[int, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as work:
        dataset = Path(work) / "dataset"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "bert4rec",
                "prepare",
                "synthetic",
                "--like",
                given.like,
                "-o",
                str(dataset),
            ],
            check=True,
            capture_output=True,
        )
        for turn in range(TURNS):
            for processes in (1, given.processes):
                folder = Path(work) / f"run-{processes}-{turn}"
                speeds[processes] += speeds_of(given, processes, dataset, folder)
    alone, together = (median(speeds[processes]) for processes in (1, given.processes))
    line: dict[str, Any] = {
        "scale": "processes",
        "like": given.like,
        "model": given.model,
        "settings": given.set,
        "device": place("cpu").name.partition(",")[0],
        "cores": usable_cores(),
        "processes": given.processes,
        "samples_per_second": {"1": round(alone, 1), str(given.processes): round(together, 1)},
        "ratio": round(together / alone, 2),
        "version": bert4rec.__version__,
    }
    print(json.dumps(line))  # noqa: T201


def speeds_of(given: argparse.Namespace, processes: int, dataset: Path, folder: Path) -> list[float]:
    """Samples a second between each two marks of a short training; what comes before the first one is not counted."""
    settings = {"steps": MARKS * STEPS_A_MARK, "validate_every": STEPS_A_MARK, "patience": MARKS}
    command = [
        *("-m", "bert4rec", "train", str(dataset), "-o", str(folder), "--model", given.model),
        *("--device", "cpu", "--no-test", "--select-by", "ndcg@10"),
        *(f"--set=training.{name}={value}" for name, value in settings.items()),
        *(f"--set={setting}" for setting in given.set),
    ]
    if processes > 1:
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
        command = [*launch, *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    marks = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    batch = json.loads((folder / "config.json").read_text())["config"]["training"]["batch_size"]
    times = [(mark["seconds"], mark["validation_seconds"]) for mark in marks]
    return [
        STEPS_A_MARK * batch / (now - before - validation)
        for (before, _), (now, validation) in pairwise(times)
    ]


if __name__ == "__main__":
    main()
