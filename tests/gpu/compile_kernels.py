"""Compiles the kernels of a training step for a GPU that is not there; `python -m tests.gpu.compile_kernels sm_75`.

Prints a JSON object: the shared memory that each kernel needs, by its name and the model that it was compiled for.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from bert4rec.data.dataset import Dataset
from bert4rec.kernels.gpu import feed_forward_triton, linear_triton
from bert4rec.kernels.gpu.launch_triton import Kernel
from bert4rec.kernels.support import Played
from bert4rec.training.loop import Loop
from tests.gpu.steps import config_of, make_task

KIB = 1 << 10
SHARED_MEMORY = {
    "sm_75": 64 * KIB,
    "sm_89": 99 * KIB,
    "gfx942": 64 * KIB,
}
"""What a program can have of it on a T4, an RTX 4090, and AMD's MI300."""
SHAPES = ("bert4rec+", 64, 2), ("sasrec", 256, 1)
"""Model, width, heads: what most people train, and the widest head of the presets."""


class Absent:
    """What the compiler asks a driver for, of a GPU that is not there."""

    def __init__(self, name: str) -> None:
        is_nvidia = name.startswith("sm_")
        self._target = (
            GPUTarget("cuda", int(name.removeprefix("sm_")), 32) if is_nvidia else GPUTarget("hip", name, 64)
        )

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int = 0) -> int:
        return 0


def needed(name: str) -> dict[str, int]:
    """Of what a step of each model launches, nothing is executed: numbers are whatever lies in memory."""
    driver.set_active(Absent(name))
    Played.shared_memory = SHARED_MEMORY[name]
    dtype = None if name == "sm_75" else torch.bfloat16
    found: dict[str, int] = {}
    cpu, users, length = torch.device("cpu"), 10, 200  # Long sequences are read in the largest tiles.
    linear_triton.MANY_ROWS = feed_forward_triton.MANY_ROWS = 1  # As in the batches of a real training.
    items = np.arange(users * length, dtype=np.int32) % 100 + 1
    dataset = Dataset.from_sequences(items, np.arange(users + 1) * length)
    for model, dim, heads in SHAPES:
        Kernel.__getitem__ = noting(found, f"{model}, d={dim}, heads={heads}")  # type: ignore[method-assign]
        config = config_of(model, f"model.dim={dim}", f"model.heads={heads}", f"model.max_length={length}")
        assert config.training
        task = make_task(dataset, config, model, cpu, dtype)
        with torch.autograd.set_multithreading_enabled(False):
            Loop(task, config.training, device=cpu, seed=1).run_steps(1)
    return found


def noting(found: dict[str, int], model: str) -> Callable[[Kernel, tuple[int, ...]], Callable[..., None]]:
    def launch(kernel: Kernel, grid: tuple[int, ...]) -> Callable[..., None]:
        def compiled(*arguments: Any, **options: Any) -> None:
            made = kernel._compiled.warmup(*arguments, grid=grid, enable_fp_fusion=True, **options)
            name = f"{made.metadata.name} ({model})"
            found[name] = max(found.get(name, 0), made.metadata.shared)

        return compiled

    return launch


if __name__ == "__main__":
    sys.stdout.write(json.dumps(needed(sys.argv[1])) + "\n")
