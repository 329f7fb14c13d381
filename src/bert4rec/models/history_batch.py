"""A batch of histories as models read it: what a user did, newest item last, with or without padding.

`PackedHistories` come from evaluation and recommendation: no padding, any device. `PaddedHistories` are a rectangle:
what exported models and the pairs of training have. Both give a model the same numbers, up to rounding.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.data.histories import Histories
from bert4rec.models.attention import Layout, PackedLayout, PaddedLayout


@dataclass(frozen=True)
class TokenSequences:
    """Histories as `SequenceEncoder.encode` takes them; the last token of each is the wanted one."""

    tokens: Tensor
    """Item numbers, and the end token; arranged as the layout says."""
    positions: Tensor
    """The newest token of each sequence has the last position, whatever the length."""
    layout: Layout


class HistoryBatch(Protocol):
    """B histories, on the device of the model."""

    def __len__(self) -> int: ...

    def newest(self, count: int) -> Tensor:
        """[B, count]: the newest items of each history, filled up on the left with PADDING."""
        ...

    def sequences(self, max_length: int, end_token: int | None = None, *, causal: bool) -> TokenSequences:
        """The newest items of each history that fit into `max_length` tokens, then `end_token`.

        Without an end token, an empty history is a single PADDING.
        """
        ...


@dataclass(frozen=True)
class PackedHistories:
    """Histories end to end, without padding. Faster where histories of equal length stand together."""

    histories: Histories
    device: torch.device

    def __len__(self) -> int:
        return len(self.histories)

    def newest(self, count: int) -> Tensor:
        return torch.from_numpy(self.histories.padded(count)).to(self.device)

    def sequences(self, max_length: int, end_token: int | None = None, *, causal: bool) -> TokenSequences:
        num_end = int(end_token is not None)
        recent = self.histories.newest(max_length - num_end)
        num_tokens = (recent.lengths + num_end).clip(min=1)
        items, lengths, sizes = (
            torch.from_numpy(array).to(self.device)
            for array in (recent.flat()[1], recent.lengths, num_tokens)
        )
        bounds = F.pad(sizes.cumsum(0), (1, 0))
        row = torch.repeat_interleave(sizes, output_size=int(num_tokens.sum()))
        to_end = bounds[row + 1] - torch.arange(len(row), device=self.device)
        # Items back from the newest, which is 1; 0 is the end token.
        back = to_end - num_end
        is_item = (back > 0) & (back <= lengths[row])
        with_end = F.pad(items, (0, 1), value=PADDING if end_token is None else end_token)
        layout = PackedLayout(
            bounds=bounds.int(),
            max_length=int(num_tokens.max(initial=1)),
            rows=bounds[1:].int() - 1,
            row_bounds=torch.arange(len(bounds), dtype=torch.int32, device=self.device),
            max_rows=1,
            causal=causal,
        )
        tokens = with_end[torch.where(is_item, lengths.cumsum(0)[row] - back, len(items))]
        return TokenSequences(tokens, max_length - to_end, layout)


@dataclass(frozen=True)
class PaddedHistories:
    """Histories in a rectangle."""

    items: Tensor
    """[B, L] item numbers, filled up on the left with PADDING."""

    def __len__(self) -> int:
        return len(self.items)

    def newest(self, count: int) -> Tensor:
        if count == self.items.shape[1]:
            return self.items
        return F.pad(self.items, (count, 0))[:, self.items.shape[1] :]

    def sequences(self, max_length: int, end_token: int | None = None, *, causal: bool) -> TokenSequences:
        tokens = self.items if end_token is None else F.pad(self.items, (0, 1), value=end_token)
        length = tokens.shape[1]
        assert length <= max_length, f"{length} tokens, but max_length is {max_length}"
        positions = torch.arange(max_length - length, max_length, device=tokens.device)
        present = tokens != PADDING
        if end_token is None:  # The last token is always looked at, also where a history is empty.
            present = present | (positions == max_length - 1)
        return TokenSequences(tokens, positions, PaddedLayout(present, causal))
