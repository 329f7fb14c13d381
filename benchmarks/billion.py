"""A log of any size on this machine: `python -m benchmarks.billion --folder SCRATCH [--actions 1000000000]`.

The log is written (`benchmarks.make_stream`), unless it is there; prepared by a process of its own; opened; and trained
on, until a few steps are taken. The usual speed is that of the same settings and the same catalogue with the histories
of the first users alone, which fit into any memory. Prints one JSON object a line, for results/speed-scale.jsonl. What
was written stays in the folder: for a billion actions 7 GB of log, a dataset of 16 GB, and 32 GB while it is prepared.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.make_stream import write_log
from bert4rec import __version__
from bert4rec.data.dataset import Dataset
from bert4rec.machine import usable_cores

SMALL = 2_000_000
"""Actions of the small dataset."""
STEPS, SECONDS = 40, 20
"""As many steps are timed, and for as long, at least."""
SETTINGS = {
    "model.dim": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.max_length": 50,
    "training.batch_size": 32,
    "training.steps": 100_000,
    "training.validate_every": 100_000,
}
"""Small, for a CPU: a step is a softmax over all items, and little else."""
BATCHES = 2_000
"""Taken from the stream of batches alone, as many as several blocks have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--actions", type=int, default=1_000_000_000)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    log, dataset = given.folder / "log", given.folder / "dataset"
    if not log.exists():
        began, unfinished = time.perf_counter(), given.folder / "unfinished-log"
        write_log(unfinished, given.actions)
        unfinished.rename(log)
        size = sum(path.stat().st_size for path in log.iterdir())
        tell("generate", actions=given.actions, seconds=since(began), bytes=size)
    command = [sys.executable, "-m", "bert4rec", "prepare", str(log), "-o", str(dataset), "--overwrite"]
    seconds, peak, disk = measure(command, given.folder)
    opened = Dataset.open(dataset)
    tell(
        "prepare",
        actions=given.actions,
        engine="embedded",
        seconds=seconds,
        peak_gib=peak,
        peak_disk_gib=disk,
        counts=opened.manifest["counts"],
        checksum=opened.checksum,
    )
    began = time.perf_counter()
    opened = Dataset.open(dataset)
    tell(
        "open",
        seconds=round(time.perf_counter() - began, 4),
        last=opened.history(opened.num_users - 1).tolist()[-3:],
    )
    small = make_small(opened, given.folder / "small")
    found = {name: train(path, given.device) for name, path in (("large", dataset), ("usual", small))}
    ratios = {
        name: round(found["large"][name] / found["usual"][name], 3)
        for name in ("steps_per_second", "batches_per_second")
    }
    tell("train", actions=given.actions, **found, ratios=ratios)


def make_small(dataset: Dataset, folder: Path) -> Path:
    """The first users of a dataset, with the whole catalogue."""
    users = int(np.searchsorted(dataset.offsets, min(SMALL, dataset.num_actions // 2)))
    end = int(dataset.offsets[users])
    small = Dataset.from_sequences(
        np.array(dataset.sequences[:end]),
        np.array(dataset.offsets[: users + 1]),
        num_items=dataset.num_items,
        repeats=dataset.repeats,
        candidates={"popularity": np.array(dataset.negatives()[:users])},
    )
    small.save(folder, overwrite=True)
    return folder


def train(dataset: Path, device: str) -> dict[str, float]:
    """What the worker below found, and its peak memory."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.billion_training",
        str(dataset),
        device,
        str(time.monotonic()),
    ]
    read, write = os.pipe()
    with os.fdopen(read) as found:
        _, peak, _ = measure(command, dataset, stdout=write)
        os.close(write)
        return {**json.load(found), "peak_gib": peak}


def measure(command: list[str], folder: Path, stdout: int = subprocess.DEVNULL) -> tuple[float, float, float]:
    """Seconds of a process, the most memory it had, and the most that its folder took, in GiB."""
    began, most = time.perf_counter(), 0
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE)
    assert process.stderr
    os.set_blocking(process.stderr.fileno(), False)
    told = b""
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        told = (told + (process.stderr.read() or b""))[-2000:]
        most = max(most, size_of(folder))
        if done:
            break
        time.sleep(0.5)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{told.decode(errors='replace')}")
    return since(began), round(usage.ru_maxrss / 2**20, 2), round(most / 2**30, 2)


def size_of(folder: Path) -> int:
    """Bytes of all files, also of those that come and go."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def since(began: float) -> float:
    return round(time.perf_counter() - began, 1)


def tell(part: str, **facts: Any) -> None:
    line = {"scale": part, "cores": usable_cores(), "version": __version__, **facts}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
