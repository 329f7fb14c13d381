"""All actions of a log by user, then by time, in pieces that fit into the memory.

A log that is larger than a piece is cut into ranges of users, each as long as a piece: its actions are distributed over
them as they are read, then each is sorted by itself. What is left of them after filters moves up in its place.
"""

from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.array_files import new_array, shortened
from bert4rec.data.blocks import count_numbers, forget_pages, in_blocks, user_blocks
from bert4rec.data.filters import Actions, Mask, duplicates, repeats
from bert4rec.logs.log import Log

ACTIONS_AT_ONCE = 2**25
"""How many are sorted and filtered at a time: about 2 GiB. Of a log with more, all but these stay on the disk."""


def is_large(log: Log) -> bool:
    """Whether a log is not sorted in one piece."""
    return len(log.users) > ACTIONS_AT_ONCE


class SortedActions:
    """Actions of all users in turn, each user's oldest first, ties in the order of the log.

    What a filter leaves takes the place of what was there: of the actions before it, only the counts remain.
    """

    def __init__(self, log: Log, folder: Path | None = None) -> None:
        """Sort a log: in memory, or in files of `folder`, `sequences.npy` and `times.npy`."""
        self._num_items = len(log.item_ids)
        self.counts = count_numbers(log.users, len(log.user_ids))
        """How many actions each user of the log has."""
        paths = [
            None if folder is None else folder / f"{name}.npy" for name in ("sequences", "times", "users")
        ]
        self._items = new_array(paths[0], np.int32, log.users.shape)
        self._times = None if log.times is None else new_array(paths[1], np.int64, log.users.shape)
        users = new_array(paths[2], np.uint32, log.users.shape)
        offsets = self.offsets
        ranges = list(user_blocks(offsets, ACTIONS_AT_ONCE))
        _distribute(log, ranges, offsets, (users, self._items, self._times))
        for range_ in ranges:
            self._sort(users, slice(*offsets[[range_.start, range_.stop]]))
        del users
        if paths[2] is not None:
            paths[2].unlink()

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def has_times(self) -> bool:
        """Whether it is known when actions were made, and not only in which order."""
        return self._times is not None

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each user of the log begins, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    def count_users(self) -> int:
        """How many users have an action."""
        return int(np.count_nonzero(self.counts))

    def blocks(self) -> Iterator[Actions]:
        """All actions, those of a user in one piece."""
        offsets = self.offsets
        for range_ in user_blocks(offsets, ACTIONS_AT_ONCE):
            users = np.repeat(np.arange(range_.start, range_.stop, dtype=np.uint32), self.counts[range_])
            part = slice(*offsets[[range_.start, range_.stop]])
            times = None if self._times is None else np.asarray(self._times[part])
            yield Actions(users, np.asarray(self._items[part]).view(np.uint32), times)
            self._forget()

    def item_counts(self) -> NDArray[np.int64]:
        """How many actions each item of the log has."""
        return count_numbers(self._items, self._num_items)

    def since(self, moment: int) -> "SortedActions":
        """Only actions at or after a moment."""
        return self._keep(lambda block: _times(block) >= moment)

    def until(self, moment: int) -> "SortedActions":
        """Only actions before a moment."""
        return self._keep(lambda block: _times(block) < moment)

    def without_duplicates(self) -> "SortedActions":
        """Only the first of several actions that agree in user, item and time."""
        return self._keep(lambda block: ~duplicates(block, _times(block)))

    def without_repeats(self) -> "SortedActions":
        """Only a user's first action on an item."""
        return self._keep(lambda block: ~repeats(block.users, block.items))

    def with_items_of(self, least: int) -> "SortedActions":
        """Only items with at least so many actions."""
        is_frequent = self.item_counts() >= least
        return self._keep(lambda block: is_frequent[block.items])

    def with_users_of(self, least: int) -> "SortedActions":
        """Only users with at least so many actions."""
        is_frequent = self.counts >= least
        return self._keep(lambda block: is_frequent[block.users])

    def _keep(self, choose: Callable[[Actions], Mask]) -> "SortedActions":
        """Only the actions that `choose` says True for, given all actions of some users."""
        kept_of_all, written = copy(self), 0
        kept_of_all.counts = np.zeros_like(self.counts)
        for block in self.blocks():
            kept = block.keep(choose(block))
            kept_of_all.counts += np.bincount(kept.users, minlength=len(self.counts))
            part = slice(written, written + len(kept))
            self._items[part] = kept.items.view(np.int32)
            if self._times is not None:
                self._times[part] = kept.times
            written += len(kept)
        kept_of_all._items = shortened(self._items, written)
        kept_of_all._times = None if self._times is None else shortened(self._times, written)
        return kept_of_all

    def numbered(self, numbers: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64] | None]:
        """Items by their `numbers`, and times. This ends the actions, whose place they take."""
        for block in in_blocks(self._items):
            block[:] = numbers[block.view(np.uint32)]
        return self._items, self._times

    def _sort(self, users: NDArray[np.uint32], part: slice) -> None:
        """Put the actions of some users, which are together but in the order of the log, in order."""
        columns = [column for column in (self._items, self._times) if column is not None]
        times = None if self._times is None else np.asarray(self._times[part])
        order = _order(np.asarray(users[part]), times)
        for column in columns:
            column[part] = column[part][order]
        for column in (users, *columns):
            forget_pages(column)

    def _forget(self) -> None:
        for column in (self._items, self._times):
            if column is not None:
                forget_pages(column)


def _times(actions: Actions) -> NDArray[np.int64]:
    assert actions.times is not None, "filters look whether there are times"
    return actions.times


def _distribute(
    log: Log,
    ranges: list[slice],
    offsets: NDArray[np.int64],
    columns: tuple[NDArray[np.uint32], NDArray[np.int32], NDArray[np.int64] | None],
) -> None:
    """Put the actions of each range of users together, in the order of the log."""
    sizes = [range_.stop - range_.start for range_ in ranges]
    range_of = np.repeat(np.arange(len(ranges), dtype=np.min_scalar_type(len(ranges))), sizes)
    filled = offsets[[range_.start for range_ in ranges]]
    sources = [(log.users, columns[0]), (log.items, columns[1]), (log.times, columns[2])]
    for first in range(0, len(log.users), ACTIONS_AT_ONCE):
        rows = slice(first, first + ACTIONS_AT_ONCE)
        numbers = range_of[log.users[rows]]
        # By counting, where there are few ranges.
        order = np.argsort(numbers, kind="stable") if len(ranges) > 1 else slice(None)
        ends = np.cumsum(np.bincount(numbers, minlength=len(ranges)))
        for source, target in sources:
            if source is None or target is None:
                continue
            block = np.asarray(source[rows])[order]
            for begin, part in zip(filled, np.split(block, ends[:-1]), strict=True):
                target[begin : begin + len(part)] = part.view(target.dtype)
            forget_pages(source)
            forget_pages(target)
        filled += np.diff(ends, prepend=0)


def _order(users: NDArray[np.uint32], times: NDArray[np.int64] | None) -> NDArray[np.integer]:
    """The order by user, then time. Stable: what the log does not order by time stays in the log's order.

    Most logs are in the order of time already, so users and places are sorted as one number each, which is many times
    faster, and users with both only where that was not enough.
    """
    import polars as pl

    keys = (users.astype(np.uint64) << np.uint64(32)) | np.arange(len(users), dtype=np.uint64)
    keys.sort()
    order = keys.astype(np.uint32)
    if times is None:
        return order
    in_order, owners = times[order], keys >> np.uint64(32)
    if not ((in_order[1:] < in_order[:-1]) & (owners[1:] == owners[:-1])).any():
        return order
    frame = pl.DataFrame({"user": users, "time": times})
    return frame.select(pl.arg_sort_by(frame.columns, maintain_order=True)).to_series().to_numpy()
