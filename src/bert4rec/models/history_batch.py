"""A batch of histories as models read it: what a user did, newest item last, with or without padding.

`PackedHistories` come from evaluation and recommendation: no padding, any device. `PaddedHistories` are a rectangle:
what exported models and the pairs of training have. Both give a model the same numbers, up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.data.histories import Histories
from bert4rec.models.attention import Layout, PackedLayout, PaddedLayout

_SPREAD = 16
"""To send an item costs a small part of picking it out on the host: what lies between histories is sent as well,
unless it is so many times as much."""


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
    items: Tensor | None = None
    """`histories.items` on the device, with one more behind them, where many batches share them: see `send`. None:
    every batch picks out its own on the host."""

    def __len__(self) -> int:
        return len(self.histories)

    def __getitem__(self, rows: slice) -> "PackedHistories":
        return PackedHistories(self.histories[rows], self.device, self.items)

    def newest(self, count: int) -> Tensor:
        return self._send(self.histories.padded(count))

    def flat(self) -> tuple[Tensor, Tensor]:
        """The row number and the item of every action, row after row."""
        if self.items is None:
            of_host = self.histories.flat()
            return self._send(of_host[0]), self._send(of_host[1])
        lengths = self.histories.lengths
        rows = torch.repeat_interleave(self._send(lengths), output_size=int(lengths.sum()))
        shifts = self._send(self.histories.end - np.cumsum(lengths))
        return rows, self.items[torch.arange(len(rows), device=self.device) + shifts[rows]]

    def sequences(self, max_length: int, end_token: int | None = None, *, causal: bool) -> TokenSequences:
        num_end = int(end_token is not None)
        recent = self.histories.newest(max_length - num_end)
        num_tokens = (recent.lengths + num_end).clip(min=1)
        items, ends = self._items_and_ends(recent)
        lengths = self._send(recent.lengths)
        sizes = (lengths + num_end).clamp(min=1)
        bounds = F.pad(sizes.cumsum(0), (1, 0))
        row = torch.repeat_interleave(sizes, output_size=int(num_tokens.sum()))
        to_end = bounds[row + 1] - torch.arange(len(row), device=self.device)
        # Items back from the newest, which is 1; 0 is the end token.
        back = to_end - num_end
        is_item = (back > 0) & (back <= lengths[row])
        layout = PackedLayout(
            bounds=bounds.int(),
            max_length=int(num_tokens.max(initial=1)),
            rows=bounds[1:].int() - 1,
            row_bounds=torch.arange(len(bounds), dtype=torch.int32, device=self.device),
            max_rows=1,
            causal=causal,
        )
        read = items[torch.where(is_item, ends[row] - back, -1)]  # what stands at -1 is not looked at
        tokens = torch.where(is_item, read, PADDING if end_token is None else end_token)
        return TokenSequences(tokens, max_length - to_end, layout)

    def _items_and_ends(self, histories: Histories) -> tuple[Tensor, Tensor]:
        """Items on the device, with one more behind them, and where among them each history ends."""
        if self.items is not None:
            return self.items, self._send(histories.end)
        return F.pad(self._send(histories.flat()[1]), (0, 1)), self._send(histories.lengths).cumsum(0)

    def _send(self, array: NDArray[Any]) -> Tensor:
        return _to_device(array, self.device)


def send(
    histories: Histories, excluded: Histories, device: torch.device
) -> tuple[PackedHistories, PackedHistories]:
    """Both, with their items on the device; items that they have in common are sent once."""
    if len(histories) == 1:  # a single request should not have to wait for what many need
        return PackedHistories(histories, device), PackedHistories(excluded, device)
    if histories.items is excluded.items:
        packed, struck = _send_together([histories, excluded], device)
    else:
        (packed,), (struck,) = (_send_together([each], device) for each in (histories, excluded))
    return packed, struck


def _send_together(batches: Sequence[Histories], device: torch.device) -> list[PackedHistories]:
    """Views of one array, as views of the stretch of it that holds them all."""
    first = min(int(each.begin.min(initial=len(each.items))) for each in batches)
    last = max(int(each.end.max(initial=first)) for each in batches)
    if last - first > _SPREAD * sum(int(each.lengths.sum()) for each in batches):
        return [PackedHistories(each, device) for each in batches]
    stretch = batches[0].items[first:last]
    items = F.pad(_to_device(stretch, device), (0, 1))
    return [
        PackedHistories(Histories(stretch, each.begin - first, each.end - first), device, items)
        for each in batches
    ]


def _to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    # torch warns of what cannot be written to, such as a mapped file.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


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
