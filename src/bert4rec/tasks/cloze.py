"""The Cloze task (section 3.6): hide items of a history and guess them; at test time, guess what comes next.

Everything works on many samples at once, on whatever device the tensors are on. No value is ever read back
to the host, so nothing here makes a GPU wait.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.models.attention import Packed
from bert4rec.tasks.batches import Batch, Samples, TaskTargets, TokenLayout
from bert4rec.tasks.objectives import Cloze


@dataclass(frozen=True)
class MaskedItems:
    """The Cloze task as batches are made for it."""

    cloze: Cloze
    mask_number: int
    causal: bool = False

    def draw(self, begin: Tensor, length: Tensor, generator: torch.Generator) -> Samples:
        """Decide for each window whether to cut it and how many of its items to hide; at least one."""
        kind, place = torch.rand(
            (2, len(length)), generator=generator, device=length.device, dtype=torch.float64
        )
        is_prefix = kind < self.cloze.prefix_share
        last_only = kind < self.cloze.prefix_share + self.cloze.last_item_share
        # A prefix keeps at least one item before the hidden one, where there is one.
        cut_length = torch.minimum((2 + place * (length - 1)).long(), length)
        length = torch.where(is_prefix, cut_length, length)
        hidden = num_hidden(length, self.cloze.mask_probability)
        return Samples(begin, length, torch.where(last_only, 1, hidden), last_only)

    def most_asked(self, length: int) -> int:
        return int(num_hidden(torch.tensor(length), self.cloze.mask_probability))

    def num_negatives(self, samples: int, rows: int) -> int:  # noqa: ARG002
        return 0

    def ask(self, laid: TokenLayout, generator: torch.Generator) -> TaskTargets:
        """Hide items at random, or the last one.

        Shuffled inside their sequences, tokens of low rank are hidden. Where a token went, one of the same
        sequence came from: so the i-th token's sequence and offset are the sequence and rank of the i-th shuffled.
        """
        shuffled = shuffle_inside(laid.sequence, laid.last_only & (laid.to_end == 1), generator)
        shuffled_items = laid.items.gather(1, shuffled)
        is_hidden = laid.offset < laid.num_asked
        # One column more, for what is not hidden. Dead rows point at the last token, which is dead.
        slot = torch.where(is_hidden, laid.first_row + laid.offset, laid.num_rows)
        batches, num_tokens = laid.items.shape
        rows = slot.new_full((batches, laid.num_rows + 1), num_tokens - 1).scatter_(1, slot, shuffled)
        targets = laid.items.new_full(rows.shape, PADDING).scatter_(1, slot, shuffled_items)
        tokens = laid.items.scatter(1, shuffled, torch.where(is_hidden, self.mask_number, shuffled_items))
        return TaskTargets(tokens, rows[:, :-1], targets[:, :-1], negatives=rows[:, :0])


def num_hidden(length: Tensor, probability: float) -> Tensor:
    """How many items of a sample are hidden: this share, rounded, but at least one. A longer sample hides no fewer.

    In float64: in float32, 15% of 190 is a little more than 28.5, and a bound that is computed elsewhere is none.
    """
    return (length.double() * probability).round().long().clamp(min=1)


def shuffle_inside(sequence: Tensor, is_first: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle the tokens inside each sequence; those marked `is_first` come before the others of theirs.

    `sequence` [K, T] numbers each token's sequence, rising. Returns indices along T.
    """
    key = torch.randint(1, 1 << 31, sequence.shape, generator=generator, device=sequence.device)
    key = (sequence << 31) | torch.where(is_first, 0, key)
    # One sort for all rows, many times faster on a GPU than a sort per row.
    return (torch.argsort(key.flatten()) % sequence.shape[1]).view_as(sequence)


def append_mask(sequences: Tensor, begin: Tensor, end: Tensor, *, max_length: int, mask_number: int) -> Batch:
    """The question "what comes next?": each user's last N - 1 actions in [begin, end), then [mask].

    An empty history gives [mask] alone. The wanted rows are the [mask]s, in the order of the users. Targets
    are PADDING. Faster where users of equal length stand together.
    """
    kept = (end - begin).clamp(max=max_length - 1)
    bounds = F.pad((kept + 1).cumsum(0), (1, 0))
    user = torch.repeat_interleave(kept + 1)
    to_mask = bounds[user + 1] - 1 - torch.arange(len(user), device=user.device)
    with_mask = F.pad(sequences, (0, 1), value=mask_number)
    layout = Packed(
        bounds=bounds.int(),
        max_length=max_length,
        rows=bounds[1:].int() - 1,
        row_bounds=torch.arange(len(kept) + 1, dtype=torch.int32, device=kept.device),
        max_rows=1,
    )
    return Batch(
        tokens=with_mask[torch.where(to_mask > 0, end[user] - to_mask, len(sequences))],
        positions=max_length - 1 - to_mask,
        targets=torch.full_like(kept, PADDING),
        layout=layout,
    )
