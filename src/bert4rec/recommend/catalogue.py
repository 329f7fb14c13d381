"""The items a model knows: number ↔ original id, title, popularity, and search by title.

Ids are kept as text and given back as the log had them: as integers where those were integers. 42, 42.0 and "42" name
the same item. Items are numbered from 1 by falling popularity, so the order of the numbers is the order of popularity.

An exported model has all of it in catalogue.json, or, if it has many items, in files beside it that are mapped into
memory (`names/mapped_names.py`); then catalogue.json only says which there are.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from bert4rec.artefact import write_text
from bert4rec.errors import DataError, NotFoundError
from bert4rec.recommend.ids import PLAIN, as_given, as_list, id_text, slips, spellings
from bert4rec.recommend.names.listed_names import ListedNames, Names, words_in
from bert4rec.recommend.names.mapped_names import IDS, TITLES, MappedNames, write_names
from bert4rec.recommend.names.texts import Texts, mapped

if TYPE_CHECKING:
    import polars as pl

Id = str | int
"""An id as it comes out: an integer if the log's ids were integers."""
_COUNTS = "catalogue-counts.npy"
_MOST_WORDS = 8
"""Of a search; every further one would cost time and tell little."""
_WIDEST_TABLE = 2**24
"""From the lowest to the highest whole number: a table of them all is the fastest way to look one up."""


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Item n has ids[n - 1], titles[n - 1] and counts[n - 1]."""

    ids: Sequence[str]
    titles: Sequence[str | None] | None
    """None if the log had no titles at all."""
    counts: NDArray[np.int64]
    """How often each item occurs in the log the model was made from."""
    whole_numbers: bool = False
    """Whether the log's ids were integers; then answers and tables have integers again."""
    untrained: NDArray[np.integer[Any]] = field(default_factory=lambda: np.empty(0, np.int32))
    """Numbers of the items that the model was never trained on. They have numbers, yet their ids are unknown."""
    stored: MappedNames | None = None
    """How items are found by id and title, if there are files for it; tables are made otherwise, when needed."""

    def __len__(self) -> int:
        return len(self.ids)

    def id_of(self, number: int) -> Id:
        """The id of an item, as the log had it."""
        text = self.ids[number - 1]
        return int(text) if self.whole_numbers else text

    def title_of(self, number: int) -> str | None:
        """The title of an item, or None if it has none."""
        return self.titles[number - 1] if self.titles else None

    def number_of(self, item_id: object) -> int | None:
        """The number of an id, or None if it is unknown."""
        return self._find(id_text(item_id, "item"))

    def known(self, item_id: object) -> int:
        """The number of an id that must be known."""
        number = self.number_of(item_id)
        if number is None:
            near = self.near(str(item_id))
            hint = f"Did you mean {self.describe(near)}?" if near else f"A known item is {self.known_id!r}."
            raise NotFoundError(f"Unknown item {str(item_id)!r}. {hint}")
        return number

    def numbers(self, ids: Iterable[object], *where: object) -> tuple[NDArray[np.int32], list[Id]]:
        """The numbers of the ids that are known, in their order, and the ids that are not, each once, as given.

        `where` is how errors call the list: a name, then indices.
        """
        values = given = as_list(ids, *where)
        types = set(map(type, values))
        if not types <= PLAIN:
            values = [id_text(value, *where, place) for place, value in enumerate(values)]
        texts = cast("list[str]", values) if types == {str} else list(map(str, values))
        found = self._find_all(texts)
        if None not in found:
            return np.array(found, np.int32), []
        # Some are spelt otherwise, or unknown.
        found = [number or self._find(text) for number, text in zip(found, texts, strict=True)]
        unknown = {
            text.strip(): as_given(value)
            for text, value, number in zip(texts, given, found, strict=True)
            if number is None
        }
        return np.array([number for number in found if number], np.int32), list(unknown.values())

    def numbers_of_column(self, ids: "pl.Series") -> NDArray[np.int32]:
        """The number of each id of a column, which may be of any type; 0 if it is unknown or missing."""
        import polars as pl

        if ids.dtype.is_float():  # whole numbers among missing ones
            whole = ids.cast(pl.Int64, strict=False)
            ids = whole.set(whole != ids, None)
        if ids.dtype.is_integer():
            whole = ids.cast(pl.Int64, strict=False)
            if whole.null_count() == ids.null_count():
                return self._whole_numbers.find(whole)
        text = ids.cast(pl.String)
        numbers = self._numbers_of_texts(text)
        # Few ids are spelt otherwise or unknown: taking off blanks costs more than looking up.
        others = np.flatnonzero(numbers == 0)
        if len(others):
            stripped = text.gather(others).str.strip_chars()
            if self.whole_numbers:
                stripped = stripped.str.replace(r"\.0+$", "")
            numbers[others] = self._numbers_of_texts(stripped)
        return numbers

    def _numbers_of_texts(self, texts: "pl.Series") -> NDArray[np.int32]:
        """The number of each text that is an id to the letter; 0 for all others."""
        import polars as pl

        places = pl.col("id").cast(self._known_texts, strict=False).to_physical().cast(pl.Int32)
        # The streaming engine takes all processors.
        found = texts.to_frame("id").lazy().select((places + 1).fill_null(0)).collect(engine="streaming")
        numbers = found["id"].to_numpy(writable=True)
        return self._number_or_0[numbers] if len(self.untrained) else numbers

    def _find(self, text: str) -> int | None:
        numbers = self._find_all(spellings(text, whole_numbers=self.whole_numbers))
        return next(filter(None, numbers), None)

    def _find_all(self, texts: Iterable[str]) -> list[int | None]:
        """The number of each text that is an id to the letter, and known."""
        found = self._names.find(texts)
        if self._unknown:
            return [None if number in self._unknown else number for number in found]
        return found

    def near(self, text: str) -> int | None:
        """The item that somebody may have meant by an unknown id.

        It has the same id but for upper and lower case, or one slip away (of several the most popular), or its title
        is or begins with the text.
        """
        wanted = text.strip().casefold()
        titled = self._names.with_titles_from(wanted) if len(wanted) > 2 else ()
        return (
            next(self._known(self._names.with_id(wanted)), None)
            or min(filter(None, self._find_all(slips(text.strip()))), default=None)
            or min(self._known(titled), key=lambda number: len(self.title_of(number) or ""), default=None)
        )

    def describe(self, number: int) -> str:
        """An item for people: its id and its title, if it has one."""
        title = self.title_of(number)
        return f"{self.id_of(number)}" + (f" ({title})" if title else "")

    def search(self, text: str, limit: int = 20) -> list[int]:
        """Numbers of the items that `text` may mean, popular ones first.

        First come items whose title has words that begin with the words of `text`, at most eight of them; then the
        item with that id, and items whose id begins with it. Upper and lower case are the same.
        """
        words = words_in(text)[:_MOST_WORDS]
        found = dict.fromkeys(islice(self._known(self._names.titled(words)), limit)) if words else {}
        beginning = text.strip().casefold()
        if beginning:
            exact = self.number_of(text.strip())
            found |= dict.fromkeys([exact] if exact else [])
            found |= dict.fromkeys(islice(self._known(self._names.with_ids_from(beginning)), limit))
        return list(found)[:limit]

    def _known(self, numbers: Iterable[int]) -> Iterator[int]:
        return (number for number in numbers if number not in self._unknown)

    @cached_property
    def _unknown(self) -> frozenset[int]:
        return frozenset(self.untrained.tolist())

    @property
    def known_numbers(self) -> NDArray[np.int32]:
        """Of all items that the model was trained on, the most popular first."""
        return np.delete(np.arange(1, len(self) + 1, dtype=np.int32), self.untrained - 1)

    @property
    def num_known(self) -> int:
        """How many items the model was trained on."""
        return len(self) - len(self.untrained)

    @property
    def known_id(self) -> Id:
        """Of the most popular item that the model was trained on: an example for messages."""
        return self.id_of(next(self._known(range(1, len(self) + 1))))

    @cached_property
    def _number_or_0(self) -> NDArray[np.int32]:
        """Every number, from 0 on; 0 in the place of those that are unknown."""
        numbers = np.arange(len(self) + 1, dtype=np.int32)
        numbers[self.untrained] = 0
        return numbers

    @cached_property
    def _names(self) -> Names:
        return self.stored or ListedNames(self.ids, self.titles)

    @cached_property
    def id_column(self) -> "pl.Series":
        """All ids, as the log had them: Int64 or String."""
        import polars as pl

        texts = _column("item", self.ids)
        return texts.cast(pl.Int64) if self.whole_numbers else texts

    @cached_property
    def title_column(self) -> "pl.Series":
        """All titles; null for items that have none."""
        return _column("title", self.titles or [None] * len(self))

    @cached_property
    def _known_texts(self) -> "pl.Enum":
        import polars as pl

        return pl.Enum(_column("id", self.ids))

    @cached_property
    def _whole_numbers(self) -> "_WholeNumbers":
        return _WholeNumbers.among(_column("id", self.ids), self.untrained)

    @classmethod
    def read_table(cls, path: Path) -> "Catalogue":
        """From the items.parquet of a dataset or a run."""
        import polars as pl

        try:
            table = pl.read_parquet(path)
            ids, titles = table["id"], table["title"] if "title" in table.columns else None
            return cls(
                ids=ids.cast(pl.String).to_list(),
                titles=None if titles is None else titles.cast(pl.String).to_list(),
                counts=table["count"].to_numpy().astype(np.int64),
                whole_numbers=ids.dtype.is_integer(),
            )
        except (OSError, pl.exceptions.PolarsError) as error:
            raise DataError(f"{path} cannot be read as the table of items: {error}") from error

    def write(self, path: Path, *, in_files: bool = False) -> None:
        """As JSON, which a service reads without polars; or `in_files` beside it, which it need not read at all."""
        content: dict[str, Any] = {"whole_numbers": self.whole_numbers}
        # Which items were never trained on, their biases tell.
        if in_files:
            write_names(path.parent, self.ids, self.titles)
            np.save(path.with_name(_COUNTS), self.counts)
            content |= {"in_files": True, "items": len(self), "titles": self.titles is not None}
        else:
            titles = list(self.titles) if self.titles else None
            content |= {"ids": list(self.ids), "titles": titles, "counts": self.counts.tolist()}
        write_text(path, json.dumps(content, ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def read(cls, path: Path) -> "Catalogue":
        """From the catalogue.json of an exported model, and the files beside it."""
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if not content.pop("in_files", False):
                return cls(**{**content, "counts": np.array(content["counts"], np.int64)})
            ids = Texts.read(path.parent, IDS)
            titles = Texts.read(path.parent, TITLES) if content["titles"] else None
            counts = mapped(path.with_name(_COUNTS))
            if {len(ids), len(counts), len(ids if titles is None else titles)} != {content["items"]}:
                raise ValueError("its files have other lengths")
            stored = MappedNames(path.parent, ids, titles)
            texts = cast("Sequence[str]", ids)  # none of them is missing
            return cls(texts, titles, counts, content["whole_numbers"], stored=stored)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is damaged and cannot be read ({error}). Export the model again."
            ) from error


def _column(name: str, texts: Sequence[str | None]) -> "pl.Series":
    import polars as pl

    return texts.column(name) if isinstance(texts, Texts) else pl.Series(name, texts, dtype=pl.String)


@dataclass(frozen=True)
class _WholeNumbers:
    """The ids that are whole numbers, to be found by columns of whole numbers."""

    known: NDArray[np.int64]
    numbers: NDArray[np.int32]
    """The number of each item of `known`."""
    below: int
    """The whole number before the lowest of `known`."""
    table: NDArray[np.int32] | None
    """The number of every whole number from `below` to the one behind the highest; 0 if it is unknown. None: the
    table would be too long."""

    @classmethod
    def among(cls, texts: "pl.Series", untrained: NDArray[np.integer[Any]]) -> "_WholeNumbers":
        import polars as pl

        whole = texts.cast(pl.Int64, strict=False)
        as_written = (whole.cast(pl.String) == texts).fill_null(value=False)  # not so "007"
        is_whole = as_written.to_numpy(writable=True)
        is_whole[untrained - 1] = False
        known = whole.filter(is_whole).to_numpy()
        numbers = np.flatnonzero(is_whole).astype(np.int32) + np.int32(1)
        lowest, highest = (int(known.min()), int(known.max())) if len(known) else (0, 0)
        below, above = lowest - 1, highest + 1
        if above - below >= _WIDEST_TABLE or below < np.iinfo(np.int64).min:
            return cls(known, numbers, below, None)
        table = np.zeros(above - below + 1, np.int32)
        table[known - below] = numbers
        return cls(known, numbers, below, table)

    def find(self, column: "pl.Series") -> NDArray[np.int32]:
        """The number of each, 0 if it is unknown or missing."""
        import polars as pl

        if self.table is None:
            found = column.replace_strict(self.known, self.numbers, default=0, return_dtype=pl.Int32)
            return found.to_numpy(writable=True)
        # Both ends of the table are unknown, and so is what lies beyond them: also where the difference overflows.
        places = column.fill_null(self.below).to_numpy() - self.below
        return np.take(self.table, places, mode="clip")
