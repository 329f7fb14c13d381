"""The Cloze task (section 3.6): mask items of a history and predict them.

Everything works on many samples at once, on whatever device the tensors are on. No value is ever read back
to the host, so nothing here makes a GPU wait.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.errors import UsageError
from bert4rec.models.model import SequenceEncoder, SequentialModel
from bert4rec.settings.objectives import Cloze, ObjectiveSettings
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
from bert4rec.tasks.task import TaskInputs, check_encoder
from bert4rec.tasks.windows import cut_windows


class ClozeTask:
    """BERT4Rec or a model of your own, and batches of the training part in which items are masked."""

    objective_kind: ClassVar[type[ObjectiveSettings] | None] = Cloze
    default_objective: ClassVar[type[ObjectiveSettings] | None] = Cloze

    def __init__(self, model: SequentialModel, inputs: TaskInputs) -> None:
        assert isinstance(model, SequenceEncoder)
        self.model, self.dtype = model, inputs.dtype
        cloze = inputs.objective(Cloze)
        self.sampled = softmax_for(inputs, cloze.negatives)
        self._batches = masked_batches(inputs, cloze, model.max_length, self.sampled)
        self.width = self._batches.shape.width
        self.block = self._batches.block
        self.has_softmax = True

    @staticmethod
    def check(model: SequentialModel) -> None:
        """A model must see both sides of a masked item, and know the token [mask]."""
        check_masking(model, "ClozeTask")

    def parts(self, batch: Tensor) -> list[tuple[float, PackedBatch]]:
        return [(1.0, self._batches.shape.read_alive(batch))]

    def loss(self, batch: Tensor) -> Tensor:
        read = self._batches.shape.read_alive(batch)
        if self.sampled:
            asked = read.tokens, read.positions, read.layout
            return self.sampled.loss(self.model, *asked, read.targets, read.negatives, dtype=self.dtype)
        return cloze_loss(self.model, read, self.dtype)


def check_masking(model: SequentialModel, task: str) -> None:
    """Refuse a model that cannot predict masked items."""
    if check_encoder(model, task, causal=False).end_token is None:
        raise UsageError(
            f"{task} requires a model with an `end_token`: the number of [mask], one above that of the last item. "
            f"{type(model).__name__} has none."
        )


def masked_batches(
    inputs: TaskInputs, cloze: Cloze, max_length: int, sampled: SampledSoftmax | None = None
) -> Batches:
    """Batches of the training part in which items are masked, with the negatives of a sampled softmax."""
    dataset = inputs.dataset
    windows = cut_windows(
        dataset.offsets[:-1], inputs.training_end, max_length=max_length, step_share=cloze.window_step
    )
    refuse_empty(len(windows), dataset.where)
    return Batches(
        inputs.sequences(),
        windows,
        MaskedItems(cloze, dataset.mask_number, sampled),
        max_length=max_length,
        batch_size=inputs.batch_size,
        seed=inputs.seed,
    )


def cloze_loss(model: SequenceEncoder, batch: PackedBatch, dtype: torch.dtype | None = None) -> Tensor:
    """Mean negative log-likelihood of all masked items of the batch (the authors' form of equation 8)."""
    hidden = model.encode(batch.tokens, batch.positions, batch.layout, dtype)
    return softmax_cross_entropy(model.project(hidden), *model.item_vectors(), batch.targets)


@dataclass(frozen=True)
class MaskedItems:
    """Which items of a batch are masked."""

    cloze: Cloze
    mask_number: int
    sampled: SampledSoftmax | None = None
    """None where targets are compared with all items."""
    causal: bool = False

    def draw(self, begin: Tensor, length: Tensor, generator: torch.Generator) -> SequenceSamples:
        """Decide for each window whether to cut it and how many of its items to mask; at least one."""
        kind, place = torch.rand(
            (2, len(length)), generator=generator, device=length.device, dtype=torch.float64
        )
        is_prefix = kind < self.cloze.prefix_share
        last_only = kind < self.cloze.prefix_share + self.cloze.last_item_share
        # A prefix keeps at least one item before the masked one, if there is one.
        cut_length = torch.minimum((2 + place * (length - 1)).long(), length)
        length = torch.where(is_prefix, cut_length, length)
        masked = num_masked(length, self.cloze.mask_probability)
        return SequenceSamples(begin, length, torch.where(last_only, 1, masked), last_only)

    def max_targets(self, length: int) -> int:
        return int(num_masked(torch.tensor(length), self.cloze.mask_probability))

    def num_negatives(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return self.sampled.count if self.sampled else 0

    def choose(self, placed: PlacedTokens, generator: torch.Generator) -> BatchTargets:
        """Mask items at random, or the last one.

        Shuffled inside their sequences, tokens of low rank are masked. Where a token went, one of the same
        sequence came from: so the i-th token's sequence and offset are the sequence and rank of the i-th shuffled.
        """
        shuffled = shuffle_inside(placed.sequence, placed.last_only & (placed.to_end == 1), generator)
        shuffled_items = placed.items.gather(1, shuffled)
        is_masked = placed.offset < placed.num_targets
        # One column more, for what is not masked. Dead rows point at the last token, which is dead.
        slot = torch.where(is_masked, placed.first_row + placed.offset, placed.num_rows).long()
        batches, num_tokens = placed.items.shape
        rows = slot.new_full((batches, placed.num_rows + 1), num_tokens - 1).scatter_(1, slot, shuffled)
        targets = placed.items.new_full(rows.shape, PADDING).scatter_(1, slot, shuffled_items)
        tokens = placed.items.scatter(1, shuffled, torch.where(is_masked, self.mask_number, shuffled_items))
        negatives = self.sampled.draw(batches, generator) if self.sampled else rows[:, :0]
        return BatchTargets(tokens, rows[:, :-1], targets[:, :-1], negatives)


def num_masked(length: Tensor, probability: float) -> Tensor:
    """How many items of a sample are masked: this share, rounded, but at least one. A longer sample masks no fewer.

    In float64: in float32, 15% of 190 is a little more than 28.5, and a bound computed elsewhere would be exceeded.
    """
    return (length.double() * probability).round().long().clamp(min=1)


def shuffle_inside(sequence: Tensor, is_first: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle the tokens inside each sequence; those marked `is_first` come before the others of theirs.

    `sequence` [K, T] numbers each token's sequence, rising. Returns indices along T.
    """
    key = torch.randint(1, 1 << 31, sequence.shape, generator=generator, device=sequence.device)
    key = (sequence.long() << 31).bitwise_or_(torch.where(is_first, 0, key))
    # One sort for all rows, many times faster on a GPU than a sort per row.
    return torch.argsort(key.flatten()).remainder_(sequence.shape[1]).view_as(sequence)
