"""The one table of models: what each is called, how it is built, and how it learns."""

import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import TypeVar

import torch

from bert4rec.errors import UsageError
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.models.bert4rec_plus import BERT4RecPlus
from bert4rec.models.bpr_mf import BPRMF
from bert4rec.models.caser import Caser
from bert4rec.models.fpmc import FPMC
from bert4rec.models.gru4rec import GRU4Rec, GRU4RecPlus
from bert4rec.models.model import SequentialModel
from bert4rec.models.ncf import NCF
from bert4rec.models.pop import Pop
from bert4rec.models.sasrec import SASRec
from bert4rec.settings.networks import ModelSettings
from bert4rec.settings.objectives import ObjectiveSettings
from bert4rec.settings.sections import SECTIONS, Sections
from bert4rec.tasks.cloze import ClozeTask
from bert4rec.tasks.joint import JointTask
from bert4rec.tasks.next_item import NextItemTask
from bert4rec.tasks.pairs import PairTask
from bert4rec.tasks.task import CountingTask, Task, TaskInputs, TaskKind

Settings = TypeVar("Settings", bound=ModelSettings)
MakeModel = Callable[[int, Settings, torch.Generator | None], SequentialModel]
"""A class of models, made with the number of items, its settings, and a generator for the first weights."""
MakeUserModel = Callable[[int, int, Settings, torch.Generator | None], SequentialModel]
"""A class of models that know users, made with the number of users before the rest."""


@dataclass(frozen=True)
class ModelSpec:
    """What is behind a model's name."""

    title: str
    """As the paper writes it."""
    network: type[SequentialModel]
    task: type[TaskKind]
    """How it learns; what it can be told is in `settings.sections.SECTIONS`."""

    @property
    def is_trained(self) -> bool:
        """Whether there is anything to train."""
        return self.task.objective_kind is not None

    @property
    def knows_users(self) -> bool:
        """Whether it learns something about each user, and so can answer only for those it was trained with."""
        return self.network.knows_users

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
    "bert4rec+": ModelSpec("BERT4Rec+", BERT4RecPlus, JointTask),
}
"""In the order of the paper's Table 2, then our own; models that are registered come behind."""
BUILT_IN = frozenset(MODELS)


def register(
    name: str,
    model: MakeModel[Settings] | MakeUserModel[Settings],
    settings: type[Settings],
    *,
    task: type[TaskKind] = NextItemTask,
    objective: type[ObjectiveSettings] | None = None,
    title: str | None = None,
) -> None:
    """Make a model of your own known, so that it can be trained, judged, saved, opened and recommended from.

    Registering a name again replaces the model, as when a cell of a notebook is run twice.

    Parameters
    ----------
    name
        What `train(..., model=name)` takes: lower-case letters, digits, `+`, `-`, `.` and `_`. The names of the
        built-in models are taken.
    model
        A class that extends `SequenceEncoder` (or, with another task, `SequentialModel`), made by
        `model(num_items, settings, generator)`.
    settings
        A dataclass that extends `ModelSettings`, in which every field has a default. The fields are the settings
        `model.*`; limits such as `Annotated[int, annotated_types.Ge(1)]` are checked.
    task
        How it learns: a class of `bert4rec.tasks`. By default it predicts the next item.
    objective
        The class of the task's settings, `objective.*`. By default that of the task: with `NextItemTask`, the exact
        softmax over all items.
    title
        What tables call it; by default the name.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.+-]*", name):
        raise UsageError(f"`name` must be lower-case letters, digits, +, -, . and _, not {name!r}.")
    if name in BUILT_IN:
        raise UsageError(f"A model {name!r} already exists. Choose another `name`.")
    if not (isinstance(model, type) and issubclass(model, SequentialModel)):
        raise UsageError(
            f"`model` must be a class that extends SequenceEncoder or SequentialModel; {model!r} does not."
        )
    if missing := ", ".join(sorted(model.__abstractmethods__)):
        raise UsageError(f"{model.__name__} lacks what every model must have: {missing}.")
    if not (isinstance(settings, type) and issubclass(settings, ModelSettings) and is_dataclass(settings)):
        raise UsageError(f"`settings` must be a dataclass that extends ModelSettings; {settings!r} is not.")
    try:
        usual = settings()
    except TypeError as error:
        raise UsageError(f"Every field of {settings.__name__} must have a default ({error}).") from error
    if not isinstance(task, type):
        raise UsageError(f"`task` must be a class, such as those of bert4rec.tasks; found {task!r}.")
    objective, kind = objective or task.default_objective, task.objective_kind
    if objective is not None and not (kind and issubclass(objective, kind)):
        expected = f"a class that extends {kind.__name__}" if kind else "None: there is nothing to train"
        raise UsageError(f"`objective` of {task.__name__} must be {expected}; found {objective.__name__}.")
    spec = ModelSpec(title or name, model, task)
    _try_out(spec, usual)
    MODELS[name], SECTIONS[name] = spec, Sections(settings, objective)


def _try_out(spec: ModelSpec, settings: ModelSettings) -> None:
    """Refuse a model that cannot be made, or cannot learn by its task, before anybody waits for a training."""
    try:
        with torch.random.fork_rng(devices=[]):  # The first weights of the trial are no draw of the caller's.
            model = spec.build(2, 2, settings)
        int(model.max_history)
    except (TypeError, AttributeError) as error:
        sizes = "num_users, num_items" if spec.knows_users else "num_items"
        raise UsageError(
            f"`model` must be made by {spec.network.__name__}({sizes}, settings, generator) and then have "
            f"`max_history`, or `max_length` if it extends SequenceEncoder; trying it failed: {error}."
        ) from error
    spec.task.check(model)
