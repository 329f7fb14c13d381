"""Next-item prediction: at every place of a history, guess what comes next (SASRec, GRU4Rec, GRU4Rec+).

A window of n actions is n questions: at each of them, the action behind it is the answer.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.data.histories import Histories
from bert4rec.models.attention import Packed
from bert4rec.tasks.batches import Batch, Samples, TaskTargets, TokenLayout
from bert4rec.tasks.sampling import Chosen, ItemSampler, draw_wrong
from bert4rec.tasks.windows import Windows, cut_windows


class Negatives(Protocol):
    """What answers are compared with."""

    def count(self, samples: int, rows: int) -> int:
        """How many a batch of this size needs."""
        ...

    def draw(self, laid: TokenLayout, targets: Tensor, generator: torch.Generator) -> Tensor:
        """[K, count] item numbers for K batches."""
        ...


@dataclass(frozen=True)
class NoNegatives:
    """The softmax compares with everything already."""

    def count(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return 0

    def draw(self, laid: TokenLayout, targets: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        return targets[:, :0]


@dataclass(frozen=True)
class UnchosenNegatives:
    """For each answer one item that the user did not choose or, where repeats are kept, did not choose then."""

    sampler: ItemSampler
    user_of: Tensor
    """The user of every action."""
    chosen: Chosen | None
    """None where repeats are kept."""

    def count(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return rows

    def draw(self, laid: TokenLayout, targets: Tensor, generator: torch.Generator) -> Tensor:
        owners = targets if self.chosen is None else self.user_of[laid.source]
        is_right = torch.eq if self.chosen is None else self.chosen.contains
        return draw_wrong(self.sampler, is_right, owners[..., None], 1, generator).squeeze(-1)


@dataclass(frozen=True)
class SharedNegatives:
    """For the whole batch: as many of its own answers as it has samples, and some drawn from the catalogue."""

    samples: int
    sampler: ItemSampler
    extra: int

    def count(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return samples + self.extra

    def draw(self, laid: TokenLayout, targets: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        batches, rows = targets.shape
        picks = torch.randint(rows, (batches, self.samples), generator=generator, device=targets.device)
        drawn = self.sampler.draw((batches, self.extra), generator)
        return torch.cat([targets.gather(1, picks), drawn.to(targets.dtype)], dim=1)


@dataclass(frozen=True)
class NextItems:
    """Next-item prediction as batches are made for it."""

    sequences: Tensor
    negatives: Negatives
    causal: bool = True

    def draw(self, begin: Tensor, length: Tensor, generator: torch.Generator) -> Samples:  # noqa: ARG002
        return Samples(begin, length, length, torch.zeros_like(length, dtype=torch.bool))

    def most_asked(self, length: int) -> int:
        return length

    def num_negatives(self, samples: int, rows: int) -> int:
        return self.negatives.count(samples, rows)

    def ask(self, laid: TokenLayout, generator: torch.Generator) -> TaskTargets:
        """At every token, the item that follows it."""
        # Windows end one action before the user's last, so there always is one.
        targets = torch.where(laid.is_alive, self.sequences[laid.source + laid.is_alive.long()], PADDING)
        rows = torch.arange(laid.num_rows, device=targets.device).expand_as(targets)
        return TaskTargets(laid.items, rows, targets, self.negatives.draw(laid, targets, generator))


def cut_questions(
    begin: NDArray[np.int64], end: NDArray[np.int64], *, max_length: int, step_share: float
) -> Windows:
    """Windows of at most `max_length` actions that are each followed by another of the same user."""
    return cut_windows(begin, np.maximum(end - 1, begin), max_length=max_length, step_share=step_share)


def ask_what_follows(histories: Histories, max_length: int, device: torch.device) -> Batch:
    """The newest items of each history; the wanted rows are the last ones. Targets are PADDING.

    An empty history is a single PADDING. Faster where users of equal length stand together.
    """
    recent = histories.newest(max_length)
    _, items = recent.flat()
    lengths = np.maximum(recent.lengths, 1)
    tokens = np.full(lengths.sum(), PADDING, np.int32)
    tokens[np.repeat(recent.lengths > 0, lengths)] = items
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    to_end = np.repeat(bounds[1:], lengths) - np.arange(len(tokens))
    integers = (tokens, max_length - to_end, bounds, bounds[1:] - 1, np.arange(len(bounds)))
    on_device = [torch.as_tensor(each, dtype=torch.int32, device=device) for each in integers]
    tokens_T, positions_T, bounds_B, rows_B, row_bounds_B = on_device
    layout = Packed(bounds_B, int(lengths.max(initial=1)), rows_B, row_bounds_B, max_rows=1, causal=True)
    return Batch(tokens_T, positions_T, torch.zeros_like(rows_B), layout)
