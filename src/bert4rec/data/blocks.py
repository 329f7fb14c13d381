"""Arrays that may be larger than the memory, a block at a time.

A dataset's arrays are memory-mapped. What looks at all of them goes through here, so that neither copies nor pages that
were read take more memory than a block does.
"""

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

ACTIONS_AT_ONCE = 2**22
"""Bounds the memory, not the result."""
INTERVALS = 2**16
"""In which values are counted to find one of them."""


def in_blocks(array: NDArray[Any], size: int | None = None) -> Iterator[NDArray[Any]]:
    """The array, piece by piece."""
    size = size or ACTIONS_AT_ONCE
    for first in range(0, len(array), size):
        yield np.asarray(array[first : first + size])
        forget_pages(array)


def user_blocks(offsets: NDArray[np.int64], size: int | None = None) -> Iterator[slice]:
    """All users, in turn, as many at a time as have about `size` actions; at least one.

    User u's actions are those from offsets[u] to offsets[u + 1].
    """
    size, num_users, first = size or ACTIONS_AT_ONCE, len(offsets) - 1, 0
    while first < num_users:
        end = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        end = min(max(end, first + 1), num_users)
        yield slice(first, end)
        forget_pages(offsets)
        first = end


def count_numbers(numbers: NDArray[np.integer[Any]], length: int) -> NDArray[np.int64]:
    """How often each of the numbers from 0 to `length` - 1 occurs, as `np.bincount` finds it in an array in memory."""
    counts = np.zeros(length, np.int64)
    for block in in_blocks(numbers):
        counts += np.bincount(block, minlength=length)
    return counts


def forget_pages(array: NDArray[Any]) -> None:
    """Give back the memory of what was read or written of a memory map: it is in the file, and can be read again."""
    owner: object = array
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    # What was written to a map that is private ("c") is in no file.
    if isinstance(owner, np.memmap) and owner.mode != "c":
        mapped = getattr(owner, "_mmap", None)
        if isinstance(mapped, mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)


def count_true(values: NDArray[Any], is_counted: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> int:
    """For how many values the answer is True."""
    return sum(int(np.count_nonzero(is_counted(block))) for block in in_blocks(values))


def nth_smallest(values: NDArray[np.int64], place: int) -> int:
    """The value at this place, from 0, if all were sorted. Looks through them a few times and never holds them all."""
    (low, high), left = first_and_last(values), len(values)
    while left > ACTIONS_AT_ONCE and low < high:
        # Values are counted in intervals of equal width, and the one that holds the place is looked at next.
        width = -(-(high - low + 1) // INTERVALS)
        counts = np.zeros(INTERVALS, np.int64)
        for block in in_blocks(values):
            inside = block[(block >= low) & (block <= high)]
            counts += np.bincount((inside - low) // width, minlength=INTERVALS)
        before = np.cumsum(counts) - counts
        interval = int(np.searchsorted(before, place, side="right")) - 1
        place, left = place - int(before[interval]), int(counts[interval])
        low, high = low + interval * width, min(high, low + (interval + 1) * width - 1)
    if low == high:
        return low
    found = np.concatenate([block[(block >= low) & (block <= high)] for block in in_blocks(values)])
    return int(np.partition(found, place)[place])


def first_and_last(times: NDArray[np.int64]) -> tuple[int, int]:
    """The earliest and the latest of all times."""
    ends = [(int(block.min()), int(block.max())) for block in in_blocks(times)]
    return min(first for first, _ in ends), max(last for _, last in ends)
