"""Items found by id and title in files that are mapped into memory: ten million open at once, and hold hardly any.

catalogue-ids, catalogue-titles       the texts, as `Texts` keeps them
catalogue-ids-by-hash.npy             uint32 [2, V]: CRC-32 of all ids, ascending, and the numbers of their items
catalogue-ids-by-text.npy             int32 [V]: numbers, by the ids of their items in lower case
catalogue-words, if there are titles  `Texts`: of each title a line end and its words in lower case, behind blanks
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from bert4rec.recommend.names.listed_names import words_of
from bert4rec.recommend.names.texts import Texts, mapped

IDS, TITLES, _WORDS = "catalogue-ids", "catalogue-titles", "catalogue-words"
_BY_HASH, _BY_TEXT = "catalogue-ids-by-hash.npy", "catalogue-ids-by-text.npy"
_LINES_AT_ONCE = 2**11
"""Titles that are searched in one step, during which no other thread gets its turn."""
_MOST_TITLES = 2**14
"""How many titles that may begin as wanted are looked at; a text of punctuation could be the beginning of them all."""
_FIRST = 256
"""Few of the items whose id begins with a letter or two are wanted, so not all of them are put in order."""


class MappedNames:
    """Ids and titles that are files."""

    def __init__(self, folder: Path, ids: Texts, titles: Texts | None) -> None:
        self._ids, self._titles = ids, titles
        self._hashes, self._numbers = mapped(folder / _BY_HASH)
        self._by_text: NDArray[np.int32] = mapped(folder / _BY_TEXT)
        self._words = None if titles is None else Texts.read(folder, _WORDS)
        sizes = {
            len(self._hashes),
            len(self._by_text),
            len(self._ids if titles is None else self._words or ()),
        }
        if sizes != {len(ids)}:
            raise ValueError("the tables of its ids and titles have other lengths")

    def find(self, ids: Iterable[str]) -> list[int | None]:
        encoded = [text.encode("utf-8", "surrogatepass") for text in ids]
        hashes = np.fromiter(map(crc32, encoded), np.uint32, len(encoded))
        found: list[int | None] = [None] * len(encoded)
        first, last = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        for place in np.flatnonzero(first < last).tolist():
            same_hash = self._numbers[first[place] : last[place]].tolist()
            found[place] = next(
                (number for number in same_hash if self._ids.bytes_at(number - 1) == encoded[place]), None
            )
        return found

    def with_id(self, folded: str) -> Iterator[int]:
        first = bisect_left(self._by_text, folded, key=self._folded)
        last = bisect_right(self._by_text, folded, lo=first, key=self._folded)
        return iter(np.sort(self._by_text[first:last]).tolist())

    def with_ids_from(self, beginning: str) -> Iterator[int]:
        def its_beginning(number: int) -> str:
            return self._folded(number)[: len(beginning)]

        first = bisect_left(self._by_text, beginning, key=self._folded)
        last = bisect_right(self._by_text, beginning, lo=first, key=its_beginning)
        numbers = self._by_text[first:last]
        if len(numbers) > _FIRST:
            yield from np.sort(np.partition(numbers, _FIRST)[:_FIRST]).tolist()
        yield from np.sort(numbers)[_FIRST if len(numbers) > _FIRST else 0 :].tolist()

    def titled(self, words: Sequence[str]) -> Iterator[int]:
        return self._lines_with([f" {word}".encode("utf-8", "surrogatepass") for word in words])

    def with_titles_from(self, beginning: str) -> Iterator[int]:
        (line,) = words_of([beginning])
        candidates = islice(self._lines_with([f"\n{line}".encode("utf-8", "surrogatepass")]), _MOST_TITLES)
        titles = self._titles
        return (
            number
            for number in candidates
            if titles is not None and (titles[number - 1] or "").casefold().startswith(beginning)
        )

    def _lines_with(self, parts: Sequence[bytes]) -> Iterator[int]:
        """Numbers of the titles whose words hold all of these parts."""
        words = self._words
        if words is None:
            return
        longest, *others = sorted(parts, key=len, reverse=True)
        for first in range(0, len(words), _LINES_AT_ONCE):
            begins = words.offsets[first : first + _LINES_AT_ONCE + 1]
            text = words.content[begins[0] : begins[-1]].tobytes()
            if not all(part in text for part in parts):
                continue
            begins = begins - begins[0]
            place = text.find(longest)
            while place >= 0:
                row = int(np.searchsorted(begins, place, "right"))
                begin, end = begins[row - 1 : row + 1].tolist()
                if all(text.find(other, begin, end) >= 0 for other in others):
                    yield first + row
                place = text.find(longest, end)

    def _folded(self, number: int) -> str:
        return self._ids.bytes_at(number - 1).decode().casefold()


def write_names(folder: Path, ids: Sequence[str], titles: Sequence[str | None] | None) -> None:
    """Write the files that `MappedNames` reads."""
    import polars as pl

    Texts.of(ids).write(folder, IDS)
    hashes = np.fromiter((crc32(text.encode()) for text in ids), np.uint32, len(ids))
    order = np.argsort(hashes, kind="stable")
    np.save(folder / _BY_HASH, np.stack([hashes[order], order.astype(np.uint32) + np.uint32(1)]))
    # Of UTF-8, the order of the bytes is that of the letters.
    folded = pl.Series([text.casefold() for text in ids], dtype=pl.String)
    np.save(folder / _BY_TEXT, folded.arg_sort().to_numpy().astype(np.int32) + np.int32(1))
    if titles is not None:
        Texts.of(titles).write(folder, TITLES)
        Texts.of(_lines(titles)).write(folder, _WORDS)


def _lines(titles: Sequence[str | None]) -> Iterator[str]:
    for first in range(0, len(titles), _LINES_AT_ONCE):
        for line in words_of(titles[first : first + _LINES_AT_ONCE]):
            yield f"\n{line}"
