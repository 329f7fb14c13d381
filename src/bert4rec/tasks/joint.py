"""Joint training: in one step the same weights learn what was masked, and what comes next at every place.

Masked items are predicted from both sides, next items from what came before. The two halves of a batch go through the
network together; only attention, which must not see the future in the second half, takes them apart. Predicting the
next item gives a target at every action, so the network learns fast; predicting masked items keeps it from
over-fitting and lets it use both sides. With a weight of 0 the second half is left out.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from bert4rec.models.attention import JoinedLayout, Layout
from bert4rec.models.model import SequenceEncoder, SequentialModel
from bert4rec.settings.objectives import Joint, NextItem, ObjectiveSettings
from bert4rec.tasks.batches import PackedBatch
from bert4rec.tasks.cloze import check_masking, masked_batches
from bert4rec.tasks.losses import shares, softmax_cross_entropy
from bert4rec.tasks.next_item import followed_batches
from bert4rec.tasks.sampled_softmax import softmax_for
from bert4rec.tasks.task import TaskInputs

Block = tuple[int, Tensor]
"""The step of its first batch, and the batches."""


class JointTask:
    """BERT4Rec+ or a model of your own, and batches whose first half is masked and whose second is followed."""

    objective_kind: ClassVar[type[ObjectiveSettings] | None] = Joint
    default_objective: ClassVar[type[ObjectiveSettings] | None] = Joint

    def __init__(self, model: SequentialModel, inputs: TaskInputs) -> None:
        assert isinstance(model, SequenceEncoder)
        self.model, self.dtype, joint = model, inputs.dtype, inputs.objective(Joint)
        # Both halves are compared with the negatives of the first.
        self.sampled = softmax_for(inputs, joint.negatives)
        self._halves = [masked_batches(inputs, joint.cloze, model.max_length, self.sampled)]
        self._weights = [1.0]
        if joint.next_item_weight:
            # One item less, because [mask] needs a place: so both questions are about the same items.
            next_item = NextItem(window_step=joint.window_step)
            self._halves.append(followed_batches(inputs, next_item, model.max_history))
            self._weights.append(joint.next_item_weight)
        # A mean of the two, so that the loss is what it is called: -log of a probability.
        self._weights = [weight / sum(self._weights) for weight in self._weights]
        self._widths = [half.shape.width for half in self._halves]
        self._blocks: list[Block] = [(0, torch.empty(0)) for _ in self._halves]
        self.width = sum(self._widths)
        self.has_softmax = True

    @staticmethod
    def check(model: SequentialModel) -> None:
        """A model must know the token [mask], and look where the layout says."""
        check_masking(model, "JointTask")

    def block(self, step: int) -> Block:
        """The halves side by side, for as many steps as all blocks have."""
        for number, half in enumerate(self._halves):
            first, rows = self._blocks[number]
            if not 0 <= step - first < len(rows):
                self._blocks[number] = half.block(step)
        begin = max(first for first, _ in self._blocks)
        end = min(first + len(rows) for first, rows in self._blocks)
        return begin, torch.cat([rows[begin - first : end - first] for first, rows in self._blocks], dim=1)

    def parts(self, batch: Tensor) -> list[tuple[float, PackedBatch]]:
        rows = torch.split(batch, self._widths)
        halves = [half.shape.read_alive(row) for half, row in zip(self._halves, rows, strict=True)]
        return list(zip(self._weights, halves, strict=True))

    def loss(self, batch: Tensor) -> Tensor:
        parts = self.parts(batch)
        halves = [half for _, half in parts]
        tokens = torch.cat([half.tokens for half in halves])
        positions = torch.cat([half.positions for half in halves])
        layout = joined_layout(halves)
        # One softmax for both: the gradient of the item table, the largest there is, is made once.
        targets = torch.cat([half.targets for half in halves])
        dtype = self.dtype or self.model.item_vectors()[0].dtype
        weights = torch.cat([weight * shares(half.targets, dtype) for weight, half in parts])
        if self.sampled:
            asked, negatives = (tokens, positions, layout), halves[0].negatives
            return self.sampled.loss(
                self.model, *asked, targets, negatives, weights=weights, dtype=self.dtype
            )
        queries = self.model.project(self.model.encode(tokens, positions, layout, self.dtype))
        return softmax_cross_entropy(queries, *self.model.item_vectors(), targets, weights=weights)


def joined_layout(parts: Sequence[PackedBatch]) -> Layout:
    """Of the tokens of one or two batches, one behind the other."""
    if len(parts) == 1:
        return parts[0].layout
    first, second = parts
    return JoinedLayout(first.layout, second.layout, num_tokens=len(first.tokens))
