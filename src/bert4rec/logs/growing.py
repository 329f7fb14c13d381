"""Columns of a log that grow while it is read: in memory, or in files once there are too many rows for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MOST_IN_MEMORY = 2**25
"""Rows of a column. What is read after that goes to a file, if there is a place for it."""

Scratch = Callable[[], Path]
"""Gives a folder for files that nobody needs once the log is prepared; it is made when it is asked for."""


class GrowingColumn:
    """Numbers, block after block."""

    def __init__(self, name: str, dtype: DTypeLike, scratch: Scratch | None) -> None:
        self._name, self._dtype, self._scratch = name, np.dtype(dtype), scratch
        self._blocks: list[NDArray[Any]] = []
        self._waiting = 0
        self._path: Path | None = None

    def add(self, block: NDArray[Any]) -> None:
        """Put these behind the others."""
        self._blocks.append(block)
        self._waiting += len(block)
        if self._scratch and self._waiting > MOST_IN_MEMORY:
            self._write(self._scratch())

    def array(self) -> NDArray[Any]:
        """All of them, in memory or as a memory map."""
        if self._path is None:
            return np.concatenate([np.empty(0, self._dtype), *self._blocks])
        self._write(self._path.parent)
        return np.memmap(self._path, self._dtype, "r+")

    def _write(self, folder: Path) -> None:
        self._path = folder / f"log-{self._name}"
        with self._path.open("ab") as file:
            for block in self._blocks:
                file.write(np.ascontiguousarray(block, self._dtype).data)
        self._blocks, self._waiting = [], 0
