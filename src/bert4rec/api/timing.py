"""How long work takes on a device, and what the device cannot be faster than."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bert4rec.training.device import Placement
from bert4rec.training.loop import STEPS_BEFORE_CAPTURE

MIN_STEPS, MIN_SECONDS = 5, 3.0
"""What is timed, after a warm-up."""


@dataclass(frozen=True)
class Speed:
    """What a timed stretch of training showed."""

    samples_per_second: float
    tokens_per_second: float
    step_milliseconds: float
    peak_memory_gib: float
    """On a GPU, the most that was allocated since this stretch began; on a CPU, the most the process ever had."""
    warmup_seconds: float
    """Compilation and the first steps."""


def time_steps(step: Callable[[], None], placement: Placement, batch_size: int, tokens: float) -> Speed:
    """Warm up, then repeat a step until enough time has passed; the device is waited for before each reading."""
    began = time.perf_counter()
    for _ in range(STEPS_BEFORE_CAPTURE + 2):
        step()
    wait(placement)
    warm = time.perf_counter()
    steps = 0
    while steps < MIN_STEPS or time.perf_counter() - warm < MIN_SECONDS:
        step()
        steps += 1
    wait(placement)
    seconds = (time.perf_counter() - warm) / steps
    return Speed(
        batch_size / seconds, batch_size * tokens / seconds, seconds * 1000, _peak(placement), warm - began
    )


def _peak(placement: Placement) -> float:
    if placement.device.type == "cuda":
        return torch.cuda.max_memory_allocated(placement.device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def wait(placement: Placement) -> None:
    if placement.device.type == "cuda":
        torch.cuda.synchronize(placement.device)


def forget_peak(placement: Placement) -> None:
    if placement.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(placement.device)


def arithmetic_limit(placement: Placement) -> float:
    """Operations a second that this device reaches in one large matrix product."""
    size = 8192 if placement.device.type == "cuda" else 2048
    matrix = torch.randn(size, size, device=placement.device, dtype=placement.dtype or torch.float32)
    return 2 * size**3 / best_seconds(lambda: matrix @ matrix, placement)


def best_seconds(work: Callable[[], object], placement: Placement) -> float:
    """The shortest of ten times."""
    best = float("inf")
    for _ in range(10):
        wait(placement)
        began = time.perf_counter()
        work()
        wait(placement)
        best = min(best, time.perf_counter() - began)
    return best
