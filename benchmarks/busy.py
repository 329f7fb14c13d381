"""Training beside busy neighbours, with the threads as the command sets them and as they are by default.

`python -m benchmarks.busy` prints speeds in multiples of one thread alone. All ways of waiting are measured in turn, a
second each, again and again, so that whatever else the machine does falls on all of them; the middle is taken.
"""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bert4rec.cli.process import SPINS
from bert4rec.machine import usable_cores

TURNS, SECONDS = 7, 1.0
NEIGHBOURS = (0, 1, usable_cores())
WAYS: dict[str, dict[str, str]] = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "as torch does it": {},
    "as bert4rec does it": {
        "OMP_NUM_THREADS": str(max(1, usable_cores() - 1)),
        "GOMP_SPINCOUNT": SPINS,
    },
    "all cores, sleeping soon": {"GOMP_SPINCOUNT": SPINS},
    "a core less, spinning": {"OMP_NUM_THREADS": str(max(1, usable_cores() - 1))},
}
"""Name → environment."""


def main() -> None:
    speeds: dict[tuple[str, int], float] = {}
    with ExitStack() as stack:
        trainers = {name: stack.enter_context(Trainer(settings)) for name, settings in WAYS.items()}
        for number in NEIGHBOURS:
            with ExitStack() as neighbours:
                for _ in range(number):
                    neighbours.enter_context(neighbour())
                turns = [{name: trainer.speed() for name, trainer in trainers.items()} for _ in range(TURNS)]
            for name in WAYS:
                speeds[name, number] = median(turn[name] for turn in turns)
    base = speeds["one thread", 0]
    table = Table(f"{os.cpu_count()} processors", *(f"{n} busy neighbours" for n in NEIGHBOURS), box=None)
    for name in WAYS:
        table.add_row(name, *(f"{speeds[name, number] / base:.2f}" for number in NEIGHBOURS))
    Console().print(table, f"\n1 is {base:,.0f} samples/s.")


class Trainer:
    """A process that trains for a moment whenever it is asked to, and tells how fast."""

    def __init__(self, settings: dict[str, str]) -> None:
        free = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.busy", "train"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**free, **settings},
        )

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def speed(self) -> float:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


class neighbour:  # noqa: N801
    """A process that keeps a core busy."""

    def __enter__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def train() -> None:
    """BERT4Rec, d=64, on the built-in world."""
    import numpy as np
    import torch

    from bert4rec.api.bench import bench_config
    from bert4rec.data.dataset import Dataset
    from bert4rec.tasks.task import TaskInputs
    from bert4rec.training.loop import Loop
    from bert4rec.training.specs import MODELS
    from bert4rec.world.world import World, WorldConfig

    world, device = World.generate(WorldConfig()), torch.device("cpu")
    counts = {"counts": {"items": world.config.shape.num_items}}
    dataset = Dataset(Path(), counts, world.sequences() + np.int32(1), world.offsets, None)
    config = bench_config("beauty", dim=64, batch_size=256)
    assert config.training
    task = MODELS["bert4rec"].make_task(
        TaskInputs(dataset, dataset.offsets[1:], config, seed=1, device=device, dtype=None)
    )
    loop = Loop(task, config.training, device=device, seed=1)
    loop.run_steps(2)
    for _ in sys.stdin:
        began, first = time.perf_counter(), loop.progress.step
        while (seconds := time.perf_counter() - began) < SECONDS:
            loop.run_steps(loop.progress.step + 1)
        print((loop.progress.step - first) * config.training.batch_size / seconds, flush=True)  # noqa: T201


if __name__ == "__main__":
    train() if "train" in sys.argv else main()
