"""Many texts as two arrays, in the layout of Arrow: no Python object for each of them, in memory or in a file.

The bytes of all texts stand end to end, as UTF-8; text n has those from offsets[n] to offsets[n + 1]. Where some are
missing, bit n % 8 of byte n // 8 of `valid` is set for those that are there. `pyarrow.Array.from_buffers` takes the
three as `large_utf8`. Arrays rather than an Arrow file, because NumPy alone maps them into memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

_AT_ONCE = 2**16
"""Texts that are Python objects at a time."""


class Texts(Sequence[str | None]):
    """Texts, some of which may be missing."""

    def __init__(
        self, content: NDArray[np.uint8], offsets: NDArray[np.int64], valid: NDArray[np.uint8] | None = None
    ) -> None:
        if len(offsets) == 0 or offsets[-1] != len(content):
            raise ValueError("the offsets of texts do not fit their bytes")
        if valid is not None and len(valid) != -(-(len(offsets) - 1) // 8):
            raise ValueError("not every text is said to be there or missing")
        self.content, self.offsets, self.valid = content, offsets, valid
        self._bytes = content.data

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> str | None: ...
    @overload
    def __getitem__(self, place: slice) -> list[str | None]: ...
    def __getitem__(self, place: int | slice) -> str | list[str | None] | None:
        if isinstance(place, slice):
            first, last, step = place.indices(len(self))
            assert step == 1
            limits = self.offsets[first : last + 1].tolist()
            texts = [self._bytes[begin:end].tobytes().decode() for begin, end in pairwise(limits)]
            return [text if self._is_there(first + n) else None for n, text in enumerate(texts)]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        return self.bytes_at(place).decode() if self._is_there(place) else None

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), _AT_ONCE):
            yield from self[first : first + _AT_ONCE]

    def bytes_at(self, place: int) -> bytes:
        """A text as UTF-8; of one that is missing, nothing."""
        return self._bytes[self.offsets[place] : self.offsets[place + 1]].tobytes()

    def _is_there(self, place: int) -> bool:
        return self.valid is None or bool(self.valid[place >> 3] >> (place & 7) & 1)

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> "Texts":
        """From texts of any kind."""
        rest, content, lengths, is_there = iter(texts), bytearray(), [], []
        while some := list(islice(rest, _AT_ONCE)):
            encoded = [(text or "").encode() for text in some]
            content += b"".join(encoded)
            lengths.append(np.fromiter(map(len, encoded), np.int64, len(some)))
            is_there.append(np.fromiter((text is not None for text in some), bool, len(some)))
        offsets = np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)
        all_there = all(part.all() for part in is_there)
        valid = None if all_there else np.packbits(np.concatenate(is_there), bitorder="little")
        return cls(np.frombuffer(content, np.uint8), offsets, valid)

    def column(self, name: str) -> "pl.Series":
        """All of them as a column of a table."""
        import polars as pl

        parts = [
            pl.Series(name, self[first : first + _AT_ONCE], dtype=pl.String)
            for first in range(0, len(self), _AT_ONCE)
        ]
        return pl.concat(parts) if parts else pl.Series(name, [], dtype=pl.String)

    def write(self, folder: Path, name: str) -> None:
        """As files that `read` maps into memory."""
        for part, array in (("", self.content), ("-offsets", self.offsets), ("-valid", self.valid)):
            if array is not None:
                np.save(folder / f"{name}{part}.npy", array)

    @classmethod
    def read(cls, folder: Path, name: str) -> "Texts":
        """What `write` wrote, where it lies."""
        valid = folder / f"{name}-valid.npy"
        return cls(
            mapped(folder / f"{name}.npy"),
            mapped(folder / f"{name}-offsets.npy"),
            mapped(valid) if valid.is_file() else None,
        )


def mapped(path: Path) -> NDArray[Any]:
    """The array of a file, which is read where it is asked for."""
    # A plain array: `np.memmap` takes longer for every slice.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
