"""What it costs that data stays in a mapped file: `python -m benchmarks.streamed`.

The same training takes steps with all histories on the device, and with what the next batches need read from a map of a
file meanwhile; both take turns. Histories are synthetic, in the shape of a data set, and repeated until they fill a
large file. Prints one line for results/speed-scale.jsonl.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from bert4rec.api import bench
from bert4rec.api.timing import wait
from bert4rec.data.dataset import Dataset
from bert4rec.tasks import task as tasks
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import Placement, place
from bert4rec.training.loop import Loop
from bert4rec.training.specs import MODELS

TURNS, WARM, SECONDS = 3, 20, 4
ROOM: dict[str, dict[str, Any]] = {
    "at hand": {"SHARE_OF_CARD": 1.0, "BYTES_AT_HAND": 1 << 50},
    "streamed": {"SHARE_OF_CARD": 0.0, "BYTES_AT_HAND": 0},
}
"""What all actions may take of the memory of a card, and of a CPU's."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="ml-1m", choices=sorted(bench.MAX_LENGTH))
    parser.add_argument("--actions", type=int, default=200_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    placement = place(given.device)
    with tempfile.TemporaryDirectory() as scratch:
        dataset = repeated(bench.synthetic_dataset(given.shape), given.actions, Path(scratch))
        loops = {kind: make_loop(dataset, given, placement, kind) for kind in ROOM}
        speeds: dict[str, list[float]] = {kind: [] for kind in ROOM}
        for loop in loops.values():
            loop.run_steps(WARM)
        for _ in range(TURNS):
            for kind, loop in loops.items():
                speeds[kind].append(steps_per_second(loop, placement))
    found = {kind: round(median(each), 2) for kind, each in speeds.items()}
    line = {
        "scale": "streamed",
        "like": given.shape,
        "device": placement.name,
        "actions": dataset.num_actions,
        "dim": given.dim,
        "batch_size": given.batch_size,
        "steps_per_second": found,
        "ratio": round(found["streamed"] / found["at hand"], 3),
    }
    print(json.dumps(line))  # noqa: T201


def repeated(dataset: Dataset, actions: int, folder: Path) -> Dataset:
    """So often that there are as many actions, in a file that is mapped."""
    path, size = folder / "sequences.npy", dataset.num_actions
    times = max(1, actions // size)
    mapped = np.lib.format.open_memmap(path, "w+", np.int32, (times, size))
    mapped[:] = dataset.sequences
    mapped.flush()
    ends = dataset.offsets[1:] + np.arange(times)[:, None] * size
    offsets = np.concatenate([[0], ends.ravel()]).astype(np.int64)
    counts = {"items": dataset.num_items}
    sequences = np.load(path, mmap_mode="r").reshape(-1)
    return Dataset(folder, {"name": "repeated", "counts": counts}, sequences, offsets, None)


def make_loop(dataset: Dataset, given: argparse.Namespace, placement: Placement, kind: str) -> Loop:
    config = bench.bench_config(given.shape, given.dim, given.batch_size)
    inputs = TaskInputs(
        dataset, dataset.offsets[1:], config, seed=1, device=placement.device, dtype=placement.dtype
    )
    with patch.multiple(tasks, **ROOM[kind]):
        task = MODELS["bert4rec"].make_task(inputs)
    assert config.training
    return Loop(task, config.training, device=placement.device, seed=1)


def steps_per_second(loop: Loop, placement: Placement) -> float:
    """The device is waited for once a second, as a training does that reports."""
    began, first = time.perf_counter(), loop.progress.step
    for second in range(1, SECONDS + 1):
        while time.perf_counter() - began < second:
            loop.run_steps(loop.progress.step + WARM)
        wait(placement)
    return (loop.progress.step - first) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
