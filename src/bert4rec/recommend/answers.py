"""What a recommender is asked and what it answers: original ids in, original ids out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from bert4rec.frames import Tabular
from bert4rec.recommend.catalogue import Catalogue, Id
from bert4rec.recommend.engine import Numbers, Scores
from bert4rec.recommend.rules.subset import Subset

if TYPE_CHECKING:
    import polars as pl

ItemId = str | int | float | UUID | np.generic
"""6, 6.0 and "6" name the same item."""
History = Iterable[ItemId]
"""A list, a tuple, an array, a column of a table; oldest item first."""
HistoriesByUser = Mapping[str, History] | Mapping[int, History] | Mapping[UUID, History]
"""From users to what they did."""
POPULAR = "popular"
"""The fallback's name: without a known item in the history, the most popular items are the answer."""


@dataclass  # not frozen, as `Item`
class Question:
    """What should follow one history. All arrays hold item numbers."""

    history: Numbers
    """Oldest first. If it is empty, the most popular items are the answer."""
    k: int
    exclude: Numbers
    """Never recommended."""
    allow: Numbers | None = None
    """If given, nothing else is recommended."""
    subset: Subset | None = None
    """The same, by a filter."""
    diversity: float = 0.0
    """From 0, by score alone, to 1."""
    even_hidden: bool = False
    """Whether items that a service hides may be among the answer, because they are named."""

    @property
    def candidates(self) -> Numbers | None:
        """What may be recommended by `allow` and the filter; None: all items."""
        if self.subset is None:
            return self.allow
        return self.subset.numbers if self.allow is None else self.allow[self.subset.mask[self.allow - 1]]


@dataclass(
    unsafe_hash=True
)  # Not frozen: a service makes thousands a second, and freezing doubles what one costs.
class Item:
    """One recommended item. Scores can be compared within an answer, not between answers."""

    item_id: Id
    """As the log had it: an integer or a text."""
    title: str | None
    score: float


@dataclass(frozen=True, repr=False)
class Recommendation(Tabular):
    """Items, best first, and what they are based on. It is also a table of them."""

    items: list[Item]
    used: int
    """How many items of the history the model looked at: the newest that it knows."""
    unknown_items: list[Id]
    """Ids in the question that the model does not know, as they were given; they were skipped."""
    fallback: str | None
    """"popular" if the history held nothing known, so that the most popular items are the answer."""

    def to_polars(self) -> "pl.DataFrame":
        """A row for each item: `rank` (from 1), `item`, `title` if known, `score`."""
        import polars as pl

        columns = {
            "rank": pl.Series(range(1, len(self.items) + 1), dtype=pl.Int32),
            "item": pl.Series([item.item_id for item in self.items]),
            "title": pl.Series([item.title for item in self.items], dtype=pl.String),
            "score": pl.Series([item.score for item in self.items], dtype=pl.Float64),
        }
        has_titles = any(item.title is not None for item in self.items)
        return pl.DataFrame(
            {name: column for name, column in columns.items() if has_titles or name != "title"}
        )


@dataclass(frozen=True)
class Contribution:
    """What one action of the history did for an item's score."""

    item_id: Id
    title: str | None
    effect: float
    """How much the score falls when this action is left out; below 0 if it counts against the item."""


@dataclass(frozen=True)
class Explanation:
    """Why an item gets its score."""

    item: Item
    contributions: list[Contribution]
    """One for each action the model looked at, oldest first."""
    attention: NDArray[np.float32] | None
    """[layers, heads, actions + 1]: how much the next place looks at each action and, last, at itself."""
    unknown_items: list[Id]
    """Ids of the history that the model does not know; they were skipped."""
    fallback: str | None
    """"popular" if the history held nothing known, so that the score is the item's count."""


@dataclass(frozen=True, repr=False, eq=False)
class Recommendations(Tabular):
    """The recommendations of many users: a sequence with one `Recommendation` for each user, and a table.

    It is not a `collections.abc.Sequence`, which polars would take for a list of rows.
    """

    users: "pl.Series"
    """Ids of the users, in the order of the answers; of a plain list of histories, their places from 0."""
    numbers: Numbers
    """[users, k]: numbers of the recommended items, best first; 0 if fewer could be recommended."""
    scores: Scores
    """[users, k]"""
    used: NDArray[np.int64]
    """How many items of each history the model looked at."""
    is_fallback: NDArray[np.bool_]
    """Whose history held nothing known, so that they get the most popular items."""
    unknown: dict[int, list[Id]]
    """Place of a user → ids of the history that the model does not know."""
    catalogue: Catalogue
    unknown_options: list[Id] = field(default_factory=list)
    """Ids in `allow` and `deny` that the model does not know."""

    def __len__(self) -> int:
        return len(self.users)

    def __iter__(self) -> Iterator[Recommendation]:
        return (self[place] for place in range(len(self)))

    @overload
    def __getitem__(self, place: int) -> Recommendation: ...

    @overload
    def __getitem__(self, place: slice) -> list[Recommendation]: ...

    def __getitem__(self, place: int | slice) -> Recommendation | list[Recommendation]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        row = range(len(self))[place]
        found = np.count_nonzero(self.numbers[row])
        return Recommendation(
            items_of(self.catalogue, self.numbers[row, :found], self.scores[row, :found]),
            int(self.used[row]),
            list(dict.fromkeys([*self.unknown.get(row, []), *self.unknown_options])),
            POPULAR if self.is_fallback[row] else None,
        )

    def to_polars(self) -> "pl.DataFrame":
        """A row for each recommended item: `user`, `rank` (from 1), `item`, `title` if known, `score`, `fallback`."""
        return table_of(self.users, self.numbers, self.scores, self.is_fallback, self.catalogue, titles=True)


def items_of(catalogue: Catalogue, numbers: Numbers, scores: Scores) -> list[Item]:
    """Item numbers and their scores, in original ids."""
    return [
        Item(catalogue.id_of(number), catalogue.title_of(number), score)
        for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)
    ]


def explanation_of(
    catalogue: Catalogue,
    scored: tuple[int, float],
    history: Numbers,
    effects: Sequence[float],
    attention: NDArray[np.float32] | None,
    unknown: list[Id],
) -> Explanation:
    """Why an item, given by its number and score, got that score: the effect of each action looked at, the newest."""
    (item,) = items_of(catalogue, *map(np.array, zip(scored, strict=True)))
    used = history[len(history) - len(effects) :].tolist()
    contributions = [
        Contribution(catalogue.id_of(number), catalogue.title_of(number), effect)
        for number, effect in zip(used, effects, strict=True)
    ]
    return Explanation(item, contributions, attention, unknown, None if len(history) else POPULAR)


def table_of(
    users: "pl.Series",
    numbers: Numbers,
    scores: Scores,
    is_fallback: NDArray[np.bool_],
    catalogue: Catalogue,
    *,
    titles: bool,
) -> "pl.DataFrame":
    """A row for each recommended item, user after user, best first."""
    import polars as pl

    rows, places = np.nonzero(numbers)
    chosen = numbers[rows, places] - 1
    columns = {
        "user": users.gather(rows),
        "rank": (places + 1).astype(np.int32),
        "item": catalogue.id_column.gather(chosen),
    }
    if titles and catalogue.titles:
        columns["title"] = catalogue.title_column.gather(chosen)
    table = pl.DataFrame({**columns, "score": scores[rows, places], "fallback": is_fallback[rows]})
    return table.with_columns(fallback=pl.when("fallback").then(pl.lit(POPULAR)))
