"""What a training costs on this machine, found by training a little with the very settings."""

import time
from dataclasses import dataclass

import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Split
from bert4rec.models.model import make_scorer
from bert4rec.settings.objectives import RunConfig
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import Placement
from bert4rec.training.loop import Loop
from bert4rec.training.plan import Plan
from bert4rec.training.reporting.forecast import LARGEST_SHARE, Costs, measure_rankings
from bert4rec.training.specs import MODELS


@dataclass(frozen=True)
class Pace:
    """Seconds of the parts of a run."""

    setup: float
    """Of each stage, until steps take as long as they will: the batches, compilation, the first step."""
    costs: Costs


def measure_pace(
    config: RunConfig,
    plan: Plan,
    dataset: Dataset,
    split: Split,
    placement: Placement,
    *,
    compile_step: bool,
    seconds: float,
) -> Pace:
    """Make the model and its batches as a run does, take steps for so many seconds at most, and rank some users.

    Nothing is left of it, and torch's random numbers go on as if nothing had happened.
    """
    device = placement.device
    inputs = TaskInputs(
        dataset, split.training_end("valid"), config, seed=plan.seed, device=device, dtype=placement.dtype
    )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        began = time.perf_counter()
        loop = _begin(plan.model, inputs, compile_step=compile_step)
        if loop.is_compiled:  # The run itself will find most of it in a cache on disk, in both stages.
            torch.compiler.reset()
            began = time.perf_counter()
            loop = _begin(plan.model, inputs, compile_step=True)
        setup = time.perf_counter() - began
        step = _seconds_of_a_step(loop, seconds)
        model = loop.task.model.eval()
        scorer = make_scorer(model, placement.dtype)
        measure_rankings(scorer, dataset, split.valid)  # Once before it counts: libraries set themselves up.
        rankings = measure_rankings(scorer, dataset, split.valid)
    if loop.is_compiled:
        torch.compiler.reset()
    return Pace(setup, Costs(step, *rankings))


def _begin(model: str, inputs: TaskInputs, *, compile_step: bool) -> Loop:
    """A training that has come so far that steps take as long as they will."""
    assert inputs.config.training
    task = MODELS[model].make_task(inputs)
    loop = Loop(
        task, inputs.config.training, device=inputs.device, seed=inputs.seed, compile_step=compile_step
    )
    loop.run_steps(1)
    while not loop.is_warm:
        loop.run_steps(loop.progress.step + 1)
    _wait(inputs.device)
    return loop


def _seconds_of_a_step(loop: Loop, seconds: float) -> float:
    began, steps = time.perf_counter(), 0
    while not steps or (steps < LARGEST_SHARE * loop.config.steps and time.perf_counter() - began < seconds):
        loop.run_steps(loop.progress.step + 1)
        steps += 1
    _wait(loop.device)
    return (time.perf_counter() - began) / steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
