"""Data, settings and surroundings small enough to train in a blink."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Part, SplitSpec, leave_one_out
from bert4rec.settings.config import RunConfig, make_config
from bert4rec.settings.sections import DEFAULT_MODEL
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import Placement
from bert4rec.training.loop import TrainingProgress
from bert4rec.training.plan import Refit
from bert4rec.training.reporting.watch import Throughput
from bert4rec.training.run import Plan, Run, Stage
from bert4rec.training.specs import MODELS
from bert4rec.training.train import RunContext, train

CPU = torch.device("cpu")
TRAINING = {
    "batch_size": 8,
    "steps": 12,
    "learning_rate": 1e-2,
    "warmup_steps": 3,
    "validate_every": 3,
    "patience": 10,
}
RECURRENT = {"dim": 16, "layers": 2, "max_length": 8}
TRANSFORMER = {"dim": 16, "layers": 2, "heads": 2, "max_length": 8}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "pop": {},
    "bpr-mf": {"model": {"dim": 16}, "objective": {"negatives": 2}, "training": TRAINING},
    "ncf": {
        "model": {"dim": 16, "layers": 2, "hidden_dropout": 0.1},
        "objective": {"negatives": 2},
        "training": TRAINING,
    },
    "fpmc": {"model": {"dim": 16}, "objective": {"negatives": 2}, "training": TRAINING},
    "gru4rec": {"model": RECURRENT, "training": TRAINING},
    "gru4rec+": {
        "model": RECURRENT,
        "objective": {"negatives": 6},
        "training": TRAINING,
    },
    "caser": {
        "model": {"dim": 16, "horizontal": 4, "max_length": 4},
        "objective": {"negatives": 2},
        "training": TRAINING,
    },
    "sasrec": {"model": TRANSFORMER, "training": TRAINING},
    "bert4rec": {
        "model": TRANSFORMER,
        "objective": {"mask_probability": 0.4, "last_item_share": 0.1, "prefix_share": 0.1},
        "training": TRAINING,
    },
    "bert4rec+": {"model": TRANSFORMER, "training": TRAINING},
}


def tiny_config(*settings: str, model: str = "bert4rec") -> RunConfig:
    return make_config(model, SETTINGS[model], settings)


def tiny_options(model: str = DEFAULT_MODEL) -> list[str]:
    """The same settings as options of the command."""
    return [
        f"--set={section}.{key}={value}"
        for section, keys in SETTINGS[model].items()
        for key, value in keys.items()
    ]


def make_task(
    dataset: Dataset,
    config: RunConfig,
    model: str = "bert4rec",
    *,
    end: NDArray[np.int64] | None = None,
    part: Part = "valid",
    seed: int = 1,
) -> Any:
    """A fresh model and what it learns before `end`, or before the targets of `part`."""
    if end is None:
        end = leave_one_out(dataset).training_end(part)
    return MODELS[model].make_task(TaskInputs(dataset, end, config, seed=seed, device=CPU, dtype=None))


def random_histories(users: int = 30, items: int = 20, seed: int = 0) -> list[list[int]]:
    """Steps of one or two around a ring, from a random place: something to learn, and long enough to be cut."""
    rng = np.random.default_rng(seed)
    return [
        ((rng.integers(items) + rng.integers(1, 3, size=length).cumsum()) % items).tolist()
        for length in rng.integers(5, 15, size=users)
    ]


@dataclass
class Witness:
    """A listener that remembers what it heard."""

    stages: list[tuple[Stage, int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def stage(self, stage: Stage, steps: int) -> None:
        self.stages.append((stage, steps))

    def progress(self, stage: Stage, progress: TrainingProgress, pace: Throughput) -> None: ...

    def busy(self, what: str, seconds_left: float) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)


def train_tiny(
    dataset: Dataset,
    folder: Path,
    *settings: str,
    model: str = "bert4rec",
    seed: int = 1,
    split: SplitSpec | None = None,
    refit: Refit = True,
    test: bool = True,
    witness: Witness | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Run:
    config = tiny_config(*settings, model=model)
    plan = Plan.for_dataset(
        dataset, model, config, preset=None, seed=seed, split=split, refit=refit, test=test
    )
    placement = Placement(CPU, None)
    return train(dataset, folder, plan, RunContext(placement, witness or Witness(), should_stop=should_stop))


def after(calls: int) -> Callable[[], bool]:
    """Says no so many times, then yes: a `should_stop` for an interruption at that step."""
    count = iter(range(calls))
    return lambda: next(count, None) is None
