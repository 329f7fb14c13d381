"""Arrays that are filled piece by piece: in memory, or as .npy files that are mapped into it."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def new_array(path: Path | None, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Room for an array: in memory, or with `path` in a new file.

    The file gets its place on the disk at once: a full disk is an OSError here, where it would end the process as soon
    as a page of the map could not be written.
    """
    if path is None:
        return np.empty(shape, dtype)
    with path.open("wb") as file:
        _write_header(file, np.dtype(dtype), shape)
        size = file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize
        file.flush()
        if sys.platform == "linux":  # others have no such call; there a full disk is found out later
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
    mapped: NDArray[Any] = np.lib.format.open_memmap(path, "r+")
    return mapped


def shortened(array: NDArray[Any], length: int) -> NDArray[Any]:
    """The first `length` rows of what `new_array` made; a file then holds nothing else."""
    if not isinstance(array, np.memmap) or length in (0, len(array)):  # Nothing cannot be mapped.
        return array[:length]
    path, first = Path(str(array.filename)), array.offset
    shape = (length, *array.shape[1:])
    with path.open("r+b") as file:
        _write_header(file, array.dtype, shape)
        assert file.tell() == first, "a header has room for any length"
        file.truncate(first + int(np.prod(shape)) * array.dtype.itemsize)
    mapped: NDArray[Any] = np.lib.format.open_memmap(path, "r+")
    return mapped


def _write_header(file: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """As `np.save` does."""
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, facts)
