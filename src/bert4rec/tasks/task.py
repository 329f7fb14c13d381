"""A model as the training loop wants it: batches in, a loss out.

There are four ways to learn, and each model uses one: masked items (`cloze`), the next item (`next_item`), pairs of
users and items (`pairs`), and plain counting, which is here.
"""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.errors import UsageError
from bert4rec.models.model import SequenceEncoder, SequentialModel
from bert4rec.settings.objectives import ObjectiveSettings, RunConfig
from bert4rec.tasks.batches import PackedBatch
from bert4rec.tasks.excerpts import MappedSequences, Sequences

if TYPE_CHECKING:
    from bert4rec.tasks.sampled_softmax import SampledSoftmax

Settings = TypeVar("Settings", bound=ObjectiveSettings)
SHARE_OF_CARD = 1 / 8
"""Of a GPU's memory: what all actions may take. The rest is for weights, activations and batches."""
BYTES_AT_HAND = 2**30
"""Of all actions on a CPU: more may have to be read from the disk again and again, which no step should wait for."""


@dataclass(frozen=True)
class TaskInputs:
    """What a task is built on."""

    dataset: Dataset
    training_end: NDArray[np.int64]
    """For each user, the index in the flat sequences at which the training part ends."""
    config: RunConfig
    seed: int
    device: torch.device
    dtype: torch.dtype | None
    """Of activations; None is that of the weights."""

    def objective(self, kind: type[Settings]) -> Settings:
        """The settings of the objective, which must be of this kind."""
        assert isinstance(self.config.objective, kind), f"{self.config.objective} is not a {kind.__name__}"
        return self.config.objective

    @property
    def batch_size(self) -> int:
        """Samples a step."""
        assert self.config.training
        return self.config.training.batch_size

    @property
    def drawing_device(self) -> torch.device:
        """Where batches are made: on the device, but for Apple's GPUs, which lack float64, which drawing needs."""
        return torch.device("cpu") if self.device.type == "mps" else self.device

    def all_sequences(self) -> Tensor:
        """The items of all actions, user after user, where batches are made of them."""
        return _as_tensor(self.dataset.sequences).to(self.drawing_device)

    def sequences(self) -> Sequences:
        """The same, unless they would take more than a modest share of the memory there: then they stay where they are.

        Batches are the same either way.
        """
        device, items = self.drawing_device, self.dataset.sequences
        if items.nbytes <= _room(device):
            return self.all_sequences()
        return MappedSequences(items, device)


def _room(device: torch.device) -> float:
    """Bytes that all actions may take."""
    if device.type == "cpu":
        return BYTES_AT_HAND
    return SHARE_OF_CARD * float(torch.cuda.get_device_properties(device).total_memory)


def _as_tensor(array: NDArray[np.int32]) -> Tensor:
    """The same numbers, without a copy."""
    with warnings.catch_warnings():
        # That of a memory map which is only read; so is the tensor.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


class Task(Protocol):
    """A model together with the data it learns from."""

    @property
    def model(self) -> SequentialModel: ...

    @property
    def width(self) -> int:
        """Numbers in a batch; 0 where there is nothing to train."""
        ...

    def block(self, step: int) -> tuple[int, Tensor]:
        """Batches made together: the step of the first, and int32 [steps, width]. A step always has the same batch."""
        ...

    def loss(self, batch: Tensor) -> Tensor:
        """The mean loss of one batch."""
        ...


@runtime_checkable
class SoftmaxTask(Task, Protocol):
    """A task whose loss is a softmax over items at the wanted rows of packed batches: it can be divided."""

    dtype: torch.dtype | None
    """Of activations; None is that of the weights."""
    has_softmax: bool
    """Whether that is so with these settings."""
    sampled: "SampledSoftmax | None"
    """None where it is over all items."""

    def parts(self, batch: Tensor) -> list[tuple[float, PackedBatch]]:
        """What a batch consists of, and how much the mean loss of each part counts.

        The negatives of a sampled softmax are those of the first part.
        """
        ...


class TaskKind(Task, Protocol):
    """A task as `register` takes it: its class says which settings and which models it can be made with."""

    objective_kind: ClassVar[type[ObjectiveSettings] | None]
    """What its settings, the section `objective`, must extend; None where there is nothing to train."""
    default_objective: ClassVar[type[ObjectiveSettings] | None]
    """Its settings unless a model has others."""

    def __init__(self, model: SequentialModel, inputs: TaskInputs) -> None: ...

    @staticmethod
    def check(model: SequentialModel) -> None:
        """Refuse a model that cannot learn this way."""
        ...


class CountingTask:
    """POP, or a model of your own that only counts: there is nothing to train."""

    objective_kind: ClassVar[type[ObjectiveSettings] | None] = None
    default_objective: ClassVar[type[ObjectiveSettings] | None] = None
    width = 0

    def __init__(self, model: SequentialModel, inputs: TaskInputs) -> None:
        self.model = model
        model.count(inputs.dataset, inputs.training_end)

    @staticmethod
    def check(model: SequentialModel) -> None:
        """A model must count something."""
        if type(model).count is SequentialModel.count:
            raise UsageError(
                f"CountingTask requires a model with a method `count`; {type(model).__name__} has none."
            )

    def block(self, step: int) -> tuple[int, Tensor]:
        return step, torch.empty((0, 0), dtype=torch.int32)

    def loss(self, batch: Tensor) -> Tensor:
        raise NotImplementedError("counting has no loss")


def check_encoder(model: SequentialModel, task: str, *, causal: bool) -> SequenceEncoder:
    """The same model, refused unless it reads sequences in the direction that a task requires."""
    name = type(model).__name__
    if not isinstance(model, SequenceEncoder):
        raise UsageError(f"{task} requires a `model` that extends SequenceEncoder; {name} does not.")
    if model.causal != causal:
        raise UsageError(f"{task} requires a model with `causal = {causal}`; {name} has {model.causal}.")
    return model
