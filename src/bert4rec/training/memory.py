"""What fits into the memory of a GPU, once something did not."""

from dataclasses import replace

import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import Placement
from bert4rec.training.loop import STEPS_BEFORE_CAPTURE, Loop
from bert4rec.training.plan import Plan
from bert4rec.training.specs import MODELS


def what_fits(dataset: Dataset, plan: Plan, placement: Placement, reason: str, *, processes: int = 1) -> str:
    """What to tell about a training that did not fit, for the reason that torch gave.

    What fits one of several processes cannot be tried without the others, so they are told what to try.
    """
    training = plan.config.training
    assert training
    told = f"{placement.name} has not enough memory for training.batch_size={training.batch_size} ({reason})"
    if processes > 1:
        return f"{told} with {processes} processes. Lower training.batch_size, or start more processes."
    size = _largest_batch(dataset, plan, training, placement)
    if size is None:
        return f"{told}, nor for a batch of one. Lower model.max_length or model.dim."
    return f"{told}. A batch of {size} fits: set training.batch_size={size}, and validate how that does."


def _largest_batch(
    dataset: Dataset, plan: Plan, training: TrainingConfig, placement: Placement
) -> int | None:
    """The largest that can be trained on, by halves; None if there is none.

    Tried with real steps, because nothing else knows what a step needs.
    """
    end, size = make_split(dataset, plan.split).training_end("valid"), training.batch_size // 2
    while size:
        torch.cuda.empty_cache()
        smaller = replace(training, batch_size=size)
        config = replace(plan.config, training=smaller)
        inputs = TaskInputs(dataset, end, config, plan.seed, placement.device, placement.dtype)
        try:
            task = MODELS[plan.model].make_task(inputs)
            Loop(task, smaller, device=placement.device, seed=plan.seed).run_steps(STEPS_BEFORE_CAPTURE + 2)
        except torch.OutOfMemoryError:
            size //= 2
        else:
            return size
    return None
