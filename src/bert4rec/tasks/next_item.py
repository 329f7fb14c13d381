"""Next-item prediction: at every place of a history, predict what comes next (SASRec, GRU4Rec, GRU4Rec+).

A window of n actions has n targets: at each of them, the item that follows.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.models.model import SequenceEncoder, SequentialModel
from bert4rec.settings.objectives import NextItem, NextItemSettings, ObjectiveSettings
from bert4rec.tasks import ranking_losses
from bert4rec.tasks.batches import (
    Batches,
    BatchTargets,
    PackedBatch,
    PlacedTokens,
    SequenceSamples,
    refuse_empty,
)
from bert4rec.tasks.losses import softmax_cross_entropy
from bert4rec.tasks.sampled_softmax import SampledSoftmax, softmax_for
from bert4rec.tasks.sampling import Chosen, ItemSampler, count_items, draw_wrong
from bert4rec.tasks.task import TaskInputs, check_encoder
from bert4rec.tasks.windows import Windows, cut_windows


class NextItemTask:
    """SASRec, GRU4Rec, GRU4Rec+ or a model of your own, and batches that predict at every action what follows."""

    objective_kind: ClassVar[type[ObjectiveSettings] | None] = NextItemSettings
    default_objective: ClassVar[type[ObjectiveSettings] | None] = NextItem

    def __init__(self, model: SequentialModel, inputs: TaskInputs) -> None:
        assert isinstance(model, SequenceEncoder)
        self.model, self.dtype = model, inputs.dtype
        self.objective = inputs.objective(NextItemSettings)
        self.sampled = softmax_for(inputs, self.objective.softmax_negatives)
        self._batches = followed_batches(inputs, self.objective, model.max_length, self.sampled)
        self.width = self._batches.shape.width
        self.block = self._batches.block
        self.has_softmax = self.objective.loss == "cross-entropy"

    @staticmethod
    def check(model: SequentialModel) -> None:
        """A model must not see what follows."""
        check_encoder(model, "NextItemTask", causal=True)

    def parts(self, batch: Tensor) -> list[tuple[float, PackedBatch]]:
        return [(1.0, self._batches.shape.read_alive(batch))]

    def loss(self, batch: Tensor) -> Tensor:
        read, model = self._batches.shape.read_alive(batch), self.model
        if self.sampled:
            asked = read.tokens, read.positions, read.layout
            return self.sampled.loss(model, *asked, read.targets, read.negatives, dtype=self.dtype)
        hidden = model.project(model.encode(read.tokens, read.positions, read.layout, self.dtype))
        output = hidden, *model.item_vectors(), read.targets
        if self.objective.loss == "cross-entropy":
            return softmax_cross_entropy(*output)
        if self.objective.loss == "binary":
            return ranking_losses.binary(*output, read.negatives[: len(read.targets)])
        return ranking_losses.shared(self.objective.loss, *output, read.negatives, self.objective.penalty)


def followed_batches(
    inputs: TaskInputs, objective: NextItemSettings, max_length: int, sampled: SampledSoftmax | None = None
) -> Batches:
    """Batches of the training part in which every action is followed by another."""
    dataset = inputs.dataset
    windows = cut_followed_windows(
        dataset.offsets[:-1], inputs.training_end, max_length=max_length, step_share=objective.window_step
    )
    refuse_empty(len(windows), dataset.where)
    return Batches(
        inputs.sequences(),
        windows,
        NextItems(SoftmaxNegatives(sampled) if sampled else _negatives(objective, inputs)),
        max_length=max_length,
        batch_size=inputs.batch_size,
        seed=inputs.seed,
    )


def _negatives(objective: NextItemSettings, inputs: TaskInputs) -> "Negatives":
    """What the chosen loss compares targets with."""
    if objective.loss == "cross-entropy":
        return NoNegatives()
    dataset = inputs.dataset
    user_of = np.repeat(np.arange(dataset.num_users), dataset.lengths)
    is_training = np.arange(dataset.num_actions) < inputs.training_end[user_of]
    actions = torch.from_numpy(np.flatnonzero(is_training)).to(inputs.device)
    items = inputs.all_sequences()[actions]
    sampler = ItemSampler(count_items(items, dataset.num_items), exponent=objective.exponent)
    if objective.loss != "binary":
        return SharedNegatives(inputs.batch_size, sampler, objective.negatives)
    users = torch.from_numpy(user_of).to(inputs.device)
    chosen = Chosen(users[actions], items, dataset.num_items) if dataset.repeats == "exclude" else None
    return UnchosenNegatives(sampler, users, chosen)


class Negatives(Protocol):
    """What targets are compared with."""

    def count(self, samples: int, rows: int) -> int:
        """How many a batch of this size needs."""
        ...

    def draw(self, placed: PlacedTokens, targets: Tensor, generator: torch.Generator) -> Tensor:
        """[K, count] item numbers for K batches."""
        ...


@dataclass(frozen=True)
class NoNegatives:
    """The softmax compares with all items already."""

    def count(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return 0

    def draw(self, placed: PlacedTokens, targets: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        return targets[:, :0]


@dataclass(frozen=True)
class SoftmaxNegatives:
    """Those of a sampled softmax."""

    softmax: SampledSoftmax

    def count(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return self.softmax.count

    def draw(self, placed: PlacedTokens, targets: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        return self.softmax.draw(len(targets), generator)


@dataclass(frozen=True)
class UnchosenNegatives:
    """For each target one item that the user did not choose or, where repeats are kept, did not choose then."""

    sampler: ItemSampler
    user_of: Tensor
    """The user of every action."""
    chosen: Chosen | None
    """None where repeats are kept."""

    def count(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return rows

    def draw(self, placed: PlacedTokens, targets: Tensor, generator: torch.Generator) -> Tensor:
        owners = targets if self.chosen is None else self.user_of[placed.source]
        is_right = torch.eq if self.chosen is None else self.chosen.contains
        return draw_wrong(self.sampler, is_right, owners[..., None], 1, generator).squeeze(-1)


@dataclass(frozen=True)
class SharedNegatives:
    """For the whole batch: as many of its own targets as it has samples, and some drawn from the catalogue."""

    samples: int
    sampler: ItemSampler
    extra: int

    def count(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return samples + self.extra

    def draw(self, placed: PlacedTokens, targets: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        batches, rows = targets.shape
        picks = torch.randint(rows, (batches, self.samples), generator=generator, device=targets.device)
        drawn = self.sampler.draw((batches, self.extra), generator)
        return torch.cat([targets.gather(1, picks), drawn.to(targets.dtype)], dim=1)


@dataclass(frozen=True)
class NextItems:
    """Every item is a target, and is predicted where the one before it stands."""

    negatives: Negatives
    causal: bool = True

    def draw(self, begin: Tensor, length: Tensor, generator: torch.Generator) -> SequenceSamples:  # noqa: ARG002
        return SequenceSamples(begin, length, length, torch.zeros_like(length, dtype=torch.bool))

    def max_targets(self, length: int) -> int:
        return length

    def num_negatives(self, samples: int, rows: int) -> int:
        return self.negatives.count(samples, rows)

    def choose(self, placed: PlacedTokens, generator: torch.Generator) -> BatchTargets:
        """At every token, the item that follows it."""
        # Windows end one action before the user's last, so there always is one.
        targets = torch.where(placed.is_alive, placed.at_hand[placed.place + placed.is_alive.long()], PADDING)
        rows = torch.arange(placed.num_rows, device=targets.device).expand_as(targets)
        return BatchTargets(placed.items, rows, targets, self.negatives.draw(placed, targets, generator))


def cut_followed_windows(
    begin: NDArray[np.int64], end: NDArray[np.int64], *, max_length: int, step_share: float
) -> Windows:
    """Windows of at most `max_length` actions that are each followed by another of the same user."""
    return cut_windows(begin, np.maximum(end - 1, begin), max_length=max_length, step_share=step_share)
