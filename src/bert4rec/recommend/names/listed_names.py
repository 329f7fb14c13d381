"""Items found by id and title in memory: the fastest way, at the price of Python objects for every item."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

_NOT_A_WORD = re.compile(r"[^\w\n]+")


class Names(Protocol):
    """How items are found by what they are called. What is looked for, apart from ids, is in lower case (folded)."""

    def find(self, ids: Iterable[str]) -> list[int | None]:
        """The number of each id, None if there is none that is equal to the letter."""
        ...

    def with_id(self, folded: str) -> Iterator[int]:
        """Numbers of the items with this id, rising."""
        ...

    def with_ids_from(self, beginning: str) -> Iterator[int]:
        """Numbers of the items whose id begins so, rising."""
        ...

    def titled(self, words: Sequence[str]) -> Iterator[int]:
        """Numbers of the items whose title has words that begin with all of these, rising."""
        ...

    def with_titles_from(self, beginning: str) -> Iterator[int]:
        """Numbers of the items whose title begins so, rising."""
        ...


class ListedNames:
    """Ids and titles that are lists."""

    def __init__(self, ids: Sequence[str], titles: Sequence[str | None] | None) -> None:
        self._ids, self._titles = ids, titles or ()

    def find(self, ids: Iterable[str]) -> list[int | None]:
        return list(map(self._numbers.get, ids))

    def with_id(self, folded: str) -> Iterator[int]:
        return (number for number, text in enumerate(self._ids, start=1) if text.casefold() == folded)

    def with_ids_from(self, beginning: str) -> Iterator[int]:
        found = self._ids_text.lines_with("\n" + beginning)
        # There may be line ends in ids, too.
        return (number for number in found if self._ids[number - 1].casefold().startswith(beginning))

    def titled(self, words: Sequence[str]) -> Iterator[int]:
        text = self._titles_text
        # Long words are rare. To count them would be to read all titles once for every word.
        longest, *others = sorted((f" {word}" for word in words), key=len, reverse=True)
        return (
            number
            for number in text.lines_with(longest)
            if all(other in text.line(number) for other in others)
        )

    def with_titles_from(self, beginning: str) -> Iterator[int]:
        return (
            number
            for number, title in enumerate(self._titles, start=1)
            if title and title.casefold().startswith(beginning)
        )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {item_id: number for number, item_id in enumerate(self._ids, start=1)}

    @cached_property
    def _ids_text(self) -> "_Lines":
        return _Lines.join(item_id.casefold() for item_id in self._ids)

    @cached_property
    def _titles_text(self) -> "_Lines":
        return _Lines.join(words_of(self._titles))


def words_in(text: str) -> list[str]:
    """The words of a text, in lower case, each once."""
    return list(dict.fromkeys(_NOT_A_WORD.sub(" ", text.casefold()).split()))


def words_of(titles: Iterable[str | None]) -> list[str]:
    """The words of each title in lower case, each behind a blank: " word" is where one begins, and nowhere else."""
    lines = ((title or "").replace("\n", " ") for title in titles)
    return _NOT_A_WORD.sub(" ", "\n".join(f" {line}" for line in lines).casefold()).split("\n")


@dataclass(frozen=True)
class _Lines:
    """Many short texts as one long one, which is searched at the speed of memory. Lines are numbered from 1."""

    text: str
    """Every line stands behind a line end."""
    begins: list[int]

    @classmethod
    def join(cls, lines: Iterable[str]) -> "_Lines":
        kept = list(lines)
        begins = list(accumulate((len(line) + 1 for line in kept), initial=0))
        return cls("\n" + "\n".join(kept), begins)

    def line(self, number: int) -> str:
        return self.text[self.begins[number - 1] : self.begins[number]]

    def lines_with(self, wanted: str) -> Iterator[int]:
        """Numbers of the lines that hold `wanted`, which may begin with the line end before them; rising."""
        place = self.text.find(wanted)
        while place >= 0:
            number = bisect_right(self.begins, place)
            yield number
            place = self.text.find(wanted, self.begins[number])
