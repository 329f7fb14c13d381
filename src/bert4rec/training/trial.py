"""A few steps of training on next to nothing, to see whether a device can do it at all."""

import numpy as np
import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.splits import leave_one_out
from bert4rec.models.model import make_scorer
from bert4rec.settings.config import make_config
from bert4rec.settings.sections import DEFAULT_MODEL
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import Placement
from bert4rec.training.loop import STEPS_BEFORE_CAPTURE, Loop
from bert4rec.training.specs import MODELS

NETWORK = {"dim": 16, "layers": 1, "heads": 2, "max_length": 8}


def try_to_train(placement: Placement) -> None:
    """Raise whatever training or scoring raises there, or an ArithmeticError if nothing but nonsense comes out."""
    lengths = np.arange(4, 12)
    items = np.arange(lengths.sum()) % 20 + 1
    dataset = Dataset.from_sequences(items.astype(np.int32), np.cumsum([0, *lengths]))
    config = make_config(DEFAULT_MODEL, {"model": NETWORK, "training": {"batch_size": 4, "steps": 10}})
    assert config.training
    end = leave_one_out(dataset).training_end("valid")
    with torch.random.fork_rng(devices=[placement.device] if placement.device.type == "cuda" else []):
        task = MODELS[DEFAULT_MODEL].make_task(
            TaskInputs(dataset, end, config, seed=1, device=placement.device, dtype=placement.dtype)
        )
        Loop(task, config.training, device=placement.device, seed=1).run_steps(STEPS_BEFORE_CAPTURE + 2)
        scorer = make_scorer(task.model.eval(), placement.dtype)
        scores = scorer(np.arange(1), Histories.from_lists([[3, 7]]))
    if not torch.isfinite(scores.cpu()[:, 1:-1]).all():
        raise ArithmeticError("its numbers are not finite")
