"""What is compared: one step of a tiny model, and what a few of them lead to."""

import numpy as np
import torch
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import leave_one_out
from bert4rec.kernels.support import find_gradients, training_step
from bert4rec.kernels.used_rows import lent_rows
from bert4rec.settings.config import RunConfig
from bert4rec.tasks.task import Task, TaskInputs
from bert4rec.training.specs import MODELS
from tests.training.tiny import random_histories, tiny_config

TRANSFORMERS = "bert4rec", "sasrec", "bert4rec+"
STILL = tuple(f"model.{kind}_dropout=0" for kind in ("hidden", "embedding", "attention"))
"""Without dropout, which no two devices draw alike."""


def tiny_dataset() -> Dataset:
    histories = random_histories(users=60)
    items = np.array([item + 1 for history in histories for item in history], np.int32)
    return Dataset.from_sequences(items, np.cumsum([0, *map(len, histories)]))


def config_of(model: str, *settings: str) -> RunConfig:
    loss = ("objective.loss=cross-entropy",) if model == "sasrec" else ()
    return tiny_config(*loss, *settings, model=model)


def make_task(
    dataset: Dataset, config: RunConfig, model: str, device: torch.device, dtype: torch.dtype | None = None
) -> Task:
    end = leave_one_out(dataset).training_end("valid")
    return MODELS[model].make_task(TaskInputs(dataset, end, config, seed=1, device=device, dtype=dtype))


def learned(task: Task, row: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
    """The loss of one batch, and the gradient of every parameter, as in a step of a training.

    Of a loss that is scaled up, float16 holds the gradients, which are small.
    """
    with training_step():
        loss = task.loss(row.to(next(task.model.parameters()).device))
        find_gradients(loss if scale == 1 else loss * scale)
    for parameter in task.model.parameters():
        if parameter.grad is not None:
            parameter.grad /= scale
    found = {name: each.grad for name, each in task.model.named_parameters() if each.grad is not None}
    for name, table in task.model.named_parameters():
        if lent := lent_rows(table):
            assert lent.rows.grad is not None
            numbers = lent.distinct.numbers
            found[name] = torch.zeros_like(table).index_add_(0, numbers, lent.rows.grad / scale)
    return {name: each.detach().float().cpu() for name, each in {"loss": loss, **found}.items()}


def assert_near(ours: dict[str, Tensor], others: dict[str, Tensor], share: float) -> None:
    assert ours.keys() == others.keys()
    for name, right in others.items():
        apart = float(
            torch.linalg.vector_norm(ours[name] - right) / torch.linalg.vector_norm(right).clamp(min=1e-6)
        )
        assert apart <= share, f"{name} is {apart:.2%} off"
