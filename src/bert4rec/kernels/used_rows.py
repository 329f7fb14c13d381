"""Rows of a large table that one step uses, lent out as a small table: the rest is neither read nor written.

The small table is learned like any parameter, so its gradient is small too. `ClippedAdamW` lends the moments of the
same rows, updates both as it updates everything, and puts them back. Shapes are fixed by the number of rows that were
asked for, repeats included, and nothing is read back to the host, so a step with lent rows can be recorded.

A row that no step uses has a gradient of 0, with which the optimiser moves it all the same: it decays, and goes on for
a while where it was going. What a row has missed is made up for when it is lent again.
"""

from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakMethod

import torch
import torch.nn.functional as F
from torch import Tensor


class Distinct(NamedTuple):
    """Which rows are used, each once, and where it stands among them."""

    numbers: Tensor
    """[K], rising. Where a fixed shape leaves room, the smallest is repeated in front: the largest is always last."""
    writers: Tensor
    """[K]: who knows the new content of each row; for repeats in front, the one that they repeat."""
    places: Tensor
    """[N]: of each of the numbers asked for, among `numbers`."""


Moments = dict[str, Tensor]
"""What an optimiser remembers of rows, by its own names."""
CatchUp = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Moments]]
"""From a table, row numbers and rows to what these have become, and their moments."""


class LentRows(NamedTuple):
    """A small table, and the rows of the large one that it stands for."""

    rows: Tensor
    distinct: Distinct
    moments: Moments
    """Of the rows; empty before the first step."""

    def put_back(self, table: Tensor, rows: Tensor) -> None:
        """Repeats write what is there already, so it does not matter who comes last."""
        table.index_copy_(0, self.distinct.numbers, rows[self.distinct.writers])


def distinct(numbers: Tensor, *, fixed: bool) -> Distinct:
    """Each of the numbers [N] once. With a `fixed` shape there is room for N of them, else for as many as there are."""
    ordered, order = numbers.long().sort()
    # Cut, because there may be no numbers at all.
    is_new = F.pad(ordered[1:] != ordered[:-1], (1, 0), value=True)[: len(ordered)]
    count = is_new.sum()
    size = len(numbers) if fixed else int(count)
    first = size - count
    place = is_new.cumsum(0) - 1 + first
    writers = torch.maximum(torch.arange(size, device=numbers.device), first)
    found = ordered.new_empty(size).scatter_(0, place, ordered)[writers]
    return Distinct(found, writers, torch.empty_like(place).scatter_(0, order, place))


def lend_rows(table: Tensor, used: Distinct) -> Tensor:
    """The used rows of a table. Of one that is learned, they are what the next step of the optimiser updates."""
    rows = table.detach()[used.numbers]
    if table.requires_grad:
        known: WeakMethod[CatchUp] | None = getattr(table, "_catch_up", None)
        catch_up = known() if known else None
        rows, moments = catch_up(table, used.numbers, rows) if catch_up else (rows, {})
        rows.requires_grad_()
        table._lent = LentRows(rows, used, moments)  # type: ignore[attr-defined]
    return rows


def when_lent(table: Tensor, catch_up: CatchUp | None) -> None:
    """Let this method bring rows of the table up to date before they are lent; None lends them as they are.

    The table does not keep it alive: an optimiser knows its tables, and both shall be gone when a training is over.
    """
    table._catch_up = WeakMethod(catch_up) if catch_up else None  # type: ignore[attr-defined]


def lent_rows(table: Tensor) -> LentRows | None:
    """What was lent since the last step, if a gradient was found for it."""
    lent: LentRows | None = getattr(table, "_lent", None)
    return lent if lent is not None and lent.rows.grad is not None else None


def forget_rows(table: Tensor) -> None:
    """Whatever was lent is not learned from any more."""
    table._lent = None  # type: ignore[attr-defined]
