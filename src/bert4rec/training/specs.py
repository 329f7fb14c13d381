"""The one table of models: what each is called, how it is built, and how it learns."""

import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass

import torch

from bert4rec.errors import UsageError
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.models.bpr_mf import BPRMF
from bert4rec.models.caser import Caser
from bert4rec.models.fpmc import FPMC
from bert4rec.models.gru4rec import GRU4Rec, GRU4RecPlus
from bert4rec.models.model import SequenceEncoder, SequentialModel
from bert4rec.models.ncf import NCF
from bert4rec.models.pop import Pop
from bert4rec.models.sasrec import SASRec
from bert4rec.settings.config import SECTIONS, Sections
from bert4rec.settings.networks import ModelSettings
from bert4rec.settings.objectives import NextItem, ObjectiveSettings
from bert4rec.settings.presets import add_model
from bert4rec.tasks.cloze import ClozeTask
from bert4rec.tasks.next_item import NextItemTask
from bert4rec.tasks.pairs import PairTask
from bert4rec.tasks.task import CountingTask, Task, TaskInputs

MakeTask = Callable[[SequentialModel, TaskInputs], Task]


@dataclass(frozen=True)
class ModelSpec:
    """What is behind a model's name."""

    title: str
    """As the paper writes it."""
    network: type[SequentialModel]
    task: MakeTask
    """How it learns; what it can be told is in `config.SECTIONS`."""

    @property
    def is_trained(self) -> bool:
        """Whether there is anything to train."""
        return self.task is not CountingTask

    @property
    def knows_users(self) -> bool:
        """Whether it learns something about each user, and so can answer only for those it was trained with."""
        return self.network.knows_users

    @property
    def needs_users(self) -> bool:
        """Whether it answers only for users it was trained with, not for any history."""
        return self.task in (PairTask, CountingTask)

    def build(
        self,
        num_users: int,
        num_items: int,
        settings: ModelSettings,
        generator: torch.Generator | None = None,
    ) -> SequentialModel:
        """A fresh model."""
        sizes = (num_users, num_items) if self.knows_users else (num_items,)
        return self.network(*sizes, settings, generator)

    def make_task(self, inputs: TaskInputs) -> Task:
        """A fresh model on the device, and what it is to learn."""
        generator = torch.Generator().manual_seed(inputs.seed)
        sizes = inputs.dataset.num_users, inputs.dataset.num_items
        return self.task(self.build(*sizes, inputs.config.model, generator).to(inputs.device), inputs)


MODELS = {
    "pop": ModelSpec("POP", Pop, CountingTask),
    "bpr-mf": ModelSpec("BPR-MF", BPRMF, PairTask),
    "ncf": ModelSpec("NCF", NCF, PairTask),
    "fpmc": ModelSpec("FPMC", FPMC, PairTask),
    "gru4rec": ModelSpec("GRU4Rec", GRU4Rec, NextItemTask),
    "gru4rec+": ModelSpec("GRU4Rec+", GRU4RecPlus, NextItemTask),
    "caser": ModelSpec("Caser", Caser, PairTask),
    "sasrec": ModelSpec("SASRec", SASRec, NextItemTask),
    "bert4rec": ModelSpec("BERT4Rec", BERT4Rec, ClozeTask),
}
"""In the order of the paper's Table 2; models that are registered come behind."""


def register(
    name: str,
    model: type[SequentialModel],
    settings: type[ModelSettings],
    *,
    task: MakeTask = NextItemTask,
    objective: type[ObjectiveSettings] | None = NextItem,
    title: str | None = None,
) -> None:
    """Make a model of your own known, so that it can be trained, judged, saved, opened and recommended from.

    Parameters
    ----------
    name
        What `train(..., model=name)` takes: lower-case letters, digits, `+`, `-`, `.` and `_`.
    model
        A class that extends `SequenceEncoder` (or, with another task, `SequentialModel`), made by
        `model(num_items, settings, generator)`.
    settings
        A dataclass that extends `ModelSettings`, in which every field has a default. The fields are the settings
        `model.*`; limits such as `Annotated[int, annotated_types.Ge(1)]` are checked.
    task
        How it learns. By default it predicts the next item, with the exact softmax over all items.
    objective
        The settings of the task, `objective.*`; None with `task=CountingTask`, where there is nothing to train.
    title
        What tables call it; by default the name.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.+-]*", name):
        raise UsageError(f"`name` must be lower-case letters, digits, +, -, . and _, not {name!r}.")
    if name in MODELS:
        raise UsageError(f"A model {name!r} already exists. Choose another `name`.")
    needed = SequenceEncoder if task in (NextItemTask, ClozeTask) else SequentialModel
    if not (isinstance(model, type) and issubclass(model, needed)):
        raise UsageError(f"`model` must be a class that extends {needed.__name__}; {model!r} does not.")
    if missing := ", ".join(sorted(model.__abstractmethods__)):
        raise UsageError(f"{model.__name__} lacks what every model must have: {missing}.")
    if not (isinstance(settings, type) and issubclass(settings, ModelSettings) and is_dataclass(settings)):
        raise UsageError(f"`settings` must be a dataclass that extends ModelSettings; {settings!r} is not.")
    try:
        settings()
    except TypeError as error:
        raise UsageError(f"Every field of {settings.__name__} must have a default ({error}).") from error
    MODELS[name] = ModelSpec(title or name, model, task)
    SECTIONS[name] = Sections(settings, objective)
    add_model(name)
