"""A task of which each rank does a part: some of the samples of every batch, with some of the items.

All ranks make the same batches, because a batch depends on its step alone, so each of them knows what all the others
do and need: which samples are whose, which rows of the item table to send to whom, how much every row weighs. Only
vectors travel.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING
from bert4rec.distributed.collectives import exchanged, summed
from bert4rec.distributed.divided_sampled_softmax import UsedItems
from bert4rec.distributed.divided_softmax import AllItems, AskedRows
from bert4rec.distributed.item_shards import ItemShards
from bert4rec.errors import UsageError
from bert4rec.kernels.adamw import gradient_norm
from bert4rec.models.model import TiedEncoder
from bert4rec.tasks.batches import PackedBatch
from bert4rec.tasks.joint import joined_layout
from bert4rec.tasks.losses import shares
from bert4rec.tasks.task import SoftmaxTask, Task


@dataclass(frozen=True)
class _Route:
    """Which rows of the item table go where in a step."""

    places: Tensor
    """In this rank's table, of the rows that it sends, rank after rank."""
    sent: list[int]
    """How many go to each rank."""
    received: list[int]
    """How many come from each."""
    numbers: Tensor
    """Of this rank's tokens, among the rows that come."""


class DividedTask:
    """This rank's part of a task."""

    def __init__(self, task: Task, rank: int, ranks: int) -> None:
        model = task.model
        if not isinstance(task, SoftmaxTask) or not task.has_softmax or not isinstance(model, TiedEncoder):
            raise UsageError(
                f"{type(model).__name__} with these settings cannot be trained by several processes: that takes a "
                "softmax over one table of items, so bert4rec+, bert4rec or sasrec with objective.loss=cross-entropy. "
                "Train it without torchrun."
            )
        if model.num_items < ranks:
            raise UsageError(
                f"There are {ranks} processes but only {model.num_items} items. Start fewer processes."
            )
        self._task, self.model, self._rank, self._ranks = task, model, rank, ranks
        self._softmax = task.sampled
        self.width, self.block = task.width, task.block
        self.shards = ItemShards(model, rank, ranks)
        of_items = set(self.shards.parameters)
        self._dense = [each for each in model.parameters() if each not in of_items]
        self._step: tuple[_Route, AllItems | UsedItems, nn.Parameter] | None = None
        """Of the last loss: which rows went where, the items they came from, and what came here."""

    def loss(self, batch: Tensor) -> Tensor:
        """The mean loss of the whole batch. Going back from it gives this rank's part of the gradients."""
        parts = self._task.parts(batch)
        owners = [_Owners.of(part, self._ranks) for _, part in parts]
        dtype = self._task.dtype or self.shards.table.dtype
        weights = torch.cat([weight * shares(part.targets, dtype) for weight, part in parts])
        targets = torch.cat([part.targets for _, part in parts])
        asked = AskedRows.sort(targets, weights, torch.cat([each.rows for each in owners]), self._ranks)
        route = self._route([part.tokens for _, part in parts], [each.tokens for each in owners])
        items = self._items(asked, route.places, parts[0][1].negatives)
        fetched = exchanged(items.table.detach()[items.sent], route.sent, route.received)
        self._step = route, items, self.shards.lend(fetched)
        queries = fetched.new_empty(0, fetched.shape[1], dtype=dtype)
        if len(route.numbers):
            own = [_taken(part, each, self._rank) for (_, part), each in zip(parts, owners, strict=True)]
            positions = torch.cat([each.positions for each in own])
            hidden = self.model.encode(route.numbers, positions, joined_layout(own), self._task.dtype)
            queries = self.model.project(hidden)
        return items.loss(queries)

    def _items(self, asked: AskedRows, sent: Tensor, negatives: Tensor) -> AllItems | UsedItems:
        """What a step uses of this rank's items."""
        if self._softmax is None:
            return AllItems(self.shards, asked, sent)
        return UsedItems.lend(self.shards, asked, sent, negatives, self._softmax)

    def share_gradients(self) -> None:
        """After going back: gradients of fetched rows go to their owners, all others are summed over ranks."""
        assert self._step is not None, "there was no loss"
        (route, items, fetched), self._step = self._step, None
        self.shards.divide()
        of_fetched = fetched.grad if fetched.grad is not None else torch.zeros_like(fetched)
        incoming = exchanged(of_fetched, route.received, route.sent)
        assert items.table.grad is not None, "the softmax has a gradient for all that it uses"
        items.table.grad.index_add_(0, items.sent, incoming)
        # One buffer: many small messages would take longer than the numbers.
        flat = torch.cat(
            [
                each.new_zeros(each.numel()) if each.grad is None else each.grad.flatten()
                for each in self._dense
            ]
        )
        sizes = [each.numel() for each in self._dense]
        for parameter, gradient in zip(self._dense, summed(flat).split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)

    def norm(self, learned: list[Tensor]) -> Tensor:
        """How long the gradients of these parameters are, over the items of all ranks."""
        # What is not dense is the rows of items, all of a rank's or those that it lent.
        dense = set(self._dense)
        of_items = gradient_norm([each for each in learned if each not in dense]) ** 2
        of_dense = gradient_norm([each for each in learned if each in dense])
        return (of_dense**2 + summed(of_items)).sqrt()

    def _route(self, tokens: list[Tensor], owners: list[Tensor]) -> _Route:
        """How the rows of all tokens come to the ranks that have these."""
        token, owner, rows = torch.cat(tokens).long(), torch.cat(owners), self.model.num_items + 2
        # Sorted by where they come from; and what is to be sent, by where it goes to.
        wanted, numbers = torch.unique(
            _pair(token % self._ranks, token, rows)[owner == self._rank], return_inverse=True
        )
        is_asked_here = (token % self._ranks == self._rank) & (owner >= 0)
        asked_here = torch.unique(_pair(owner, token, rows)[is_asked_here])
        places = asked_here % rows // self._ranks
        sent, received = (
            torch.bincount(each // rows, minlength=self._ranks).tolist() for each in (asked_here, wanted)
        )
        return _Route(places, sent, received, numbers)


def _pair(rank: Tensor, token: Tensor, rows: int) -> Tensor:
    return rank * rows + token


@dataclass(frozen=True)
class _Owners:
    """Which rank does what of a packed batch; -1 for what is dead."""

    samples: Tensor
    tokens: Tensor
    rows: Tensor

    @classmethod
    def of(cls, batch: PackedBatch, ranks: int) -> "_Owners":
        """Samples stand in the order of their size, so they are dealt out to and fro: all get about as much."""
        lengths, counts = batch.layout.bounds.diff(), batch.layout.row_bounds.diff()
        number = torch.arange(len(lengths), device=lengths.device)
        turn, place = number // ranks, number % ranks
        samples = torch.where(turn % 2 == 0, place, ranks - 1 - place)
        # What fills up a batch of fixed shape is padding, which no history holds.
        begin = batch.layout.bounds[:-1].long().clamp(max=len(batch.tokens) - 1)
        samples = torch.where(batch.tokens[begin] == PADDING, -1, samples)
        return cls(
            samples,
            torch.repeat_interleave(samples, lengths, output_size=len(batch.tokens)),
            torch.repeat_interleave(samples, counts, output_size=len(batch.targets)),
        )


def _taken(batch: PackedBatch, owners: _Owners, rank: int) -> PackedBatch:
    """The samples of one rank, as a packed batch."""
    is_own_token, is_own_row, layout = owners.tokens == rank, owners.rows == rank, batch.layout
    place = is_own_token.cumsum(0) - 1
    lengths, counts = (sizes.diff()[owners.samples == rank] for sizes in (layout.bounds, layout.row_bounds))
    bounds, row_bounds = (F.pad(sizes.cumsum(0), (1, 0)).int() for sizes in (lengths, counts))
    rows = place[layout.rows[is_own_row].long()].int()
    return replace(
        batch,
        tokens=batch.tokens[is_own_token],
        positions=batch.positions[is_own_token],
        targets=batch.targets[is_own_row],
        layout=replace(layout, bounds=bounds, rows=rows, row_bounds=row_bounds),
    )
