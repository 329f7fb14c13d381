"""A batch of histories of different lengths, as views into one flat array."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.blocks import forget_pages, user_blocks
from bert4rec.data.dataset import PADDING, Dataset

EndOf = Callable[[slice], NDArray[np.int64]]
"""Tells of some users where what is looked at ends, as indices into `Dataset.sequences`."""
_ROWS_AT_ONCE = 2**14
"""Rows whose items are laid end to end at a time while looking through them: bounds the memory, not the result."""


@dataclass(frozen=True)
class Histories:
    """Row r is items[begin[r] : end[r]], oldest first. A row may be empty. Nothing is copied."""

    items: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    @classmethod
    def from_lists(cls, rows: Iterable[Sequence[int]]) -> "Histories":
        """One row per list of item numbers, oldest first."""
        lists = list(rows)
        limits = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        items = np.array([item for row in lists for item in row], dtype=np.int32)
        return cls(items, limits[:-1], limits[1:])

    def __len__(self) -> int:
        return len(self.begin)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> "Histories":
        """Some of the rows, by slice or by row numbers."""
        return Histories(self.items, self.begin[rows], self.end[rows])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of actions of each row."""
        return self.end - self.begin

    def newest(self, count: int) -> "Histories":
        """The same rows without what lies more than `count` actions back."""
        return Histories(self.items, np.maximum(self.begin, self.end - count), self.end)

    def padded(self, length: int) -> NDArray[np.int32]:
        """[rows, length]: the newest `length` items of each row, padded on the left.

        The newest item always has the last column, whatever the length of the history.
        """
        positions = self.end[:, None] + np.arange(-length, 0)
        known = positions >= self.begin[:, None]
        table = np.full(known.shape, PADDING, np.int32)
        table[known] = self.items[positions[known]]
        return table

    def flat(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The row number and the item of every action, row after row."""
        lengths = self.lengths
        rows = np.repeat(np.arange(len(self)), lengths)
        places = np.arange(len(rows)) + np.repeat(self.end - np.cumsum(lengths), lengths)
        return rows, self.items[places]

    def followed_by(self, items: NDArray[np.int32]) -> "Histories":
        """A copy in which the same items stand behind every row."""
        rows, own = self.flat()
        lengths = self.lengths + len(items)
        end = np.cumsum(lengths)
        joined = np.empty(len(own) + len(self) * len(items), np.int32)
        joined[np.arange(len(own)) + rows * len(items)] = own
        joined[end[:, None] + np.arange(-len(items), 0)] = items
        return Histories(joined, end - lengths, end)

    def contain(self, items: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """For each row, whether its one of `items` occurs in it."""
        found = np.zeros(len(self), np.bool_)
        for first in range(0, len(self), _ROWS_AT_ONCE):
            rows, history = self[first : first + _ROWS_AT_ONCE].flat()
            rows += first
            found[rows[history == items[rows]]] = True
        return found

    def item_counts(self, num_items: int) -> NDArray[np.int64]:
        """How often each item number occurs in all rows together; entry 0, padding, is 0."""
        counts = np.zeros(num_items + 1, np.int64)
        for first in range(0, len(self), _ROWS_AT_ONCE):
            _, items = self[first : first + _ROWS_AT_ONCE].flat()
            counts += np.bincount(items, minlength=num_items + 1)
        return counts


def histories_before(dataset: Dataset, users: NDArray[np.int64], positions: NDArray[np.int64]) -> Histories:
    """What each user did before the action at index `positions` of `Dataset.sequences`."""
    return Histories(np.asarray(dataset.sequences), dataset.offsets[users], positions)


def training_histories(dataset: Dataset, end: NDArray[np.int64]) -> Histories:
    """Every user's actions up to `end`, one index a user, as `Split.training_end` gives it."""
    return Histories(np.asarray(dataset.sequences), dataset.offsets[:-1], end)


def seen_before(
    dataset: Dataset, end_of: EndOf
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64] | None]]:
    """Items and times of all actions before each user's end, in blocks."""
    for users in user_blocks(dataset.offsets):
        limits = dataset.offsets[users.start : users.stop + 1]
        first, last = int(limits[0]), int(limits[-1])
        is_seen = np.arange(first, last) < np.repeat(end_of(users), np.diff(limits))
        times = None if dataset.times is None else np.asarray(dataset.times[first:last])[is_seen]
        yield np.asarray(dataset.sequences[first:last])[is_seen], times
        forget_pages(dataset.sequences)
        if dataset.times is not None:
            forget_pages(dataset.times)
