"""The items that may be recommended, as engines need them."""

import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_THREADS = threading.local()


def _scratch(size: int) -> NDArray[np.float32]:
    """Memory of this thread, to be overwritten."""
    known: NDArray[np.float32] | None = getattr(_THREADS, "scratch", None)
    if known is None or len(known) != size:
        known = _THREADS.scratch = np.empty(size, np.float32)
    return known


class Subset:
    """Some items of the catalogue. They are found when first asked for: by the thread that answers."""

    def __init__(self, find: Callable[[], NDArray[np.bool_]]) -> None:
        self._find = find
        self._bias: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        """Of all items, and of these."""
        self._is_asked_again = False
        self._blocks: dict[int, NDArray[np.int64]] = {}

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """[V]: which items belong to it."""
        return self._find()

    @cached_property
    def count(self) -> int:
        """How many these are."""
        return int(np.count_nonzero(self.mask))

    @property
    def numbers(self) -> NDArray[np.int32]:
        """Their numbers, the most popular first."""
        return np.flatnonzero(self.mask).astype(np.int32) + np.int32(1)

    def bias(self, bias: NDArray[np.float32]) -> NDArray[np.float32]:
        """The bias of all items, -inf for those outside: so they are scored like any other, and never recommended.

        It holds until this thread asks for another. Only a subset that is asked for again keeps it: new memory for
        each would take longer than to fill it.
        """
        kept = self._bias
        if kept is not None and kept[0] is bias:  # a service hides items by another bias
            return kept[1]
        found = np.empty_like(bias) if self._is_asked_again else _scratch(len(bias))
        with np.errstate(divide="ignore"):  # 1 - 1/0 is -inf; `np.where` would take ten times as long
            np.reciprocal(self.mask, dtype=np.float32, out=found)
        np.subtract(np.float32(1), found, out=found)
        found += bias
        if self._is_asked_again:
            self._bias = bias, found
        self._is_asked_again = True
        return found

    def blocks_without(self, size: int) -> NDArray[np.int64]:
        """The blocks of so many items, a multiple of 8, that hold none of these."""
        if size not in self._blocks:
            eights = np.packbits(self.mask)  # so that there is less to look through
            whole = np.pad(eights, (0, -len(eights) % (size // 8)))
            self._blocks[size] = np.flatnonzero(~whole.reshape(-1, size // 8).any(axis=1))
        return self._blocks[size]
