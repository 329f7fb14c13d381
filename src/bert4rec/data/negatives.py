"""Stored candidates: the items that a target is ranked against (section 4.2 of the paper).

They are drawn once per dataset, so that every model meets the same ones. The draw uses the raw 64-bit
stream of PCG64, which NumPy promises never to change, and integer arithmetic: equal on every machine.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.blocks import count_numbers, forget_pages
from bert4rec.data.dataset import Repeats

NegativeKind = Literal["popularity", "uniform"]

_TABLE_CELLS = 2**28
"""Size of the table of taken items, in bytes. It decides who is drawn when: another value is another draw."""
_USERS_TO_KEEP = 2**18
"""Whose candidates stay in memory where they are drawn into a file."""
_TRIES_PER_NEGATIVE = 50
"""Tries, on average, before a user who has seen nearly all popular items is served by the slow, sure way."""


def draw_negatives(
    sequences: NDArray[np.int32],
    offsets: NDArray[np.int64],
    num_items: int,
    *,
    kind: NegativeKind,
    seed: int,
    count: int = 100,
    repeats: Repeats = "exclude",
    out: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]:
    """For every user, `count` distinct items in the order drawn: items that the user never had, or any items.

    "popularity" draws an item in proportion to its actions in the whole log, "uniform" all alike; either
    way without replacement. Popularity never draws an item without actions. If there are fewer than `count`
    to choose from, a user gets all of them, and 0 for the rest.

    `sequences` may be memory-mapped. `out`, if it is given, is [users, count], perhaps memory-mapped too: it is filled
    user after user and returned.
    """
    pool = np.asarray(sequences) if kind == "popularity" else np.arange(1, num_items + 1, dtype=np.int32)
    weights = count_numbers(pool, num_items + 1)
    never_drawn = weights == 0
    stream = np.random.PCG64(seed)
    num_users = len(offsets) - 1
    negatives = np.empty((num_users, count), np.int32) if out is None else out
    assert negatives.shape == (num_users, count) and negatives.dtype == np.int32
    users_at_once = max(1, _TABLE_CELLS // (num_items + 1))
    table = np.empty((min(num_users, users_at_once), num_items + 1), np.bool_)
    table[:] = never_drawn
    for first in range(0, num_users, users_at_once):
        limits = np.asarray(offsets[first : first + users_at_once + 1])
        rows, lengths = np.arange(len(limits) - 1), np.diff(limits)
        if repeats == "keep":  # Nothing is excluded, as if all histories were empty.
            lengths = np.zeros_like(lengths)
        history = np.asarray(sequences[limits[0] : limits[0] + lengths.sum()])
        history_rows = np.repeat(rows, lengths)
        block = _Block(table[: len(rows)], np.zeros((len(rows), count), np.int32))
        block.taken[history_rows, history] = True
        _fill(block, lengths, pool, weights, stream)
        # Undoing only what was marked keeps a large catalogue fast: most of the table was never written.
        block.taken[history_rows, history] = never_drawn[history]
        block.taken[rows[:, None], block.chosen] = never_drawn[block.chosen]
        negatives[first : first + len(rows)] = block.chosen
        if first // _USERS_TO_KEEP != (first + len(rows)) // _USERS_TO_KEEP:
            forget_pages(negatives)
            forget_pages(offsets)
    return negatives


@dataclass(frozen=True)
class _Block:
    """Some users, and what has been chosen for them so far."""

    taken: NDArray[np.bool_]
    """[users, items + 1]: what must not be drawn (again)."""
    chosen: NDArray[np.int32]
    """[users, count]: filled from the left, 0 if nothing is chosen yet."""

    def choose(self, rows: NDArray[np.int64], filled: NDArray[np.int64], items: NDArray[np.int32]) -> None:
        """Give each of the distinct `rows`, which has `filled` items already, one more."""
        self.taken[rows, items] = True
        self.chosen[rows, filled] = items


def _fill(
    block: _Block,
    lengths: NDArray[np.int64],
    pool: NDArray[np.int32],
    weights: NDArray[np.int64],
    stream: np.random.PCG64,
) -> None:
    """Draw from the pool, one try per user and round, until every row is full."""
    count = block.chosen.shape[1]
    # A history that repeats items touches fewer than its length, so these rows may still have a choice.
    perhaps_short = np.count_nonzero(weights) - lengths <= count
    has_choice = ~perhaps_short
    for row in np.flatnonzero(perhaps_short).tolist():
        has_choice[row] = not _take_all_that_is_left(block, row)
    rows = np.flatnonzero(has_choice)
    filled = np.zeros(len(rows), np.int64)
    for _ in range(_TRIES_PER_NEGATIVE * count):
        if not len(rows):
            return
        # A 64-bit number modulo the length favours no entry by more than one part in 2**64 / length.
        items = pool[_raw(stream, len(rows)) % np.uint64(len(pool))]
        fresh = ~block.taken[rows, items]
        block.choose(rows[fresh], filled[fresh], items[fresh])
        filled += fresh
        if filled.max() == count:
            unfinished = filled < count
            rows, filled = rows[unfinished], filled[unfinished]
    for row, done in zip(rows.tolist(), filled.tolist(), strict=True):
        _finish(block, row, done, weights, stream)


def _take_all_that_is_left(block: _Block, row: int) -> bool:
    """If there are no more items than wanted, give the row all of them and return True."""
    left = np.flatnonzero(~block.taken[row])
    fits = len(left) <= len(block.chosen[row])
    if fits:
        block.chosen[row, : len(left)] = left
    return fits


def _finish(
    block: _Block, row: int, filled: int, weights: NDArray[np.int64], stream: np.random.PCG64
) -> None:
    """The same draw without a miss: an item of one row in proportion to its weight among those left."""
    left = np.flatnonzero(~block.taken[row])
    weights_left = weights[left]
    for column in range(filled, block.chosen.shape[1]):
        cumulative = np.cumsum(weights_left)
        ticket = int(_raw(stream, 1)[0]) % int(cumulative[-1])
        winner = np.searchsorted(cumulative, ticket, side="right")
        block.chosen[row, column] = left[winner]
        weights_left[winner] = 0


def _raw(stream: np.random.PCG64, size: int) -> NDArray[np.uint64]:
    return np.asarray(stream.random_raw(size), dtype=np.uint64)
