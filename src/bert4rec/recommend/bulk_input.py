"""The users of a bulk request: who they are, and what they did as numbers of the model's items.

These inputs are understood:

- files, or frames, with a row for each user and a column that is a list of items, oldest first (Parquet, Feather,
  JSON Lines): files are read piece by piece, whatever their size;
- an interaction log, in any form that `prepare` reads: a row for each action, or lists of items with lists of their
  times; it is held in memory as numbers, about 16 bytes an action;
- a dataset: all its users, with all they did;
- lists of ids, or a dict or pandas Series from users to lists of ids.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import MANIFEST, Dataset
from bert4rec.data.histories import Histories
from bert4rec.errors import UsageError
from bert4rec.frames import Frame, Tabular, is_frame
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints, archive_of, find_files
from bert4rec.logs.log import Part, plan, read_parts
from bert4rec.logs.readers import LogFrame, column_types, read_rows
from bert4rec.logs.unpack import open_files
from bert4rec.recommend.catalogue import Catalogue, Id
from bert4rec.recommend.ids import as_list, is_list, user_id
from bert4rec.recommend.ranker import join

if TYPE_CHECKING:
    import polars as pl


CheckDataset = Callable[[Dataset], Dataset]
"""Refuses a dataset that the model cannot answer for."""


@dataclass(frozen=True)
class Users:
    """Some users, and what each did of what the model knows."""

    ids: "pl.Series"
    histories: Histories
    unknown_rows: NDArray[np.int64]
    """Whose each action is that was left out because the model does not know the item."""
    unknown_ids: list[Id]
    """The items of those actions."""
    places: NDArray[np.int64] | None = None
    """Places of the users in the dataset, if they come from one."""

    @property
    def unknown(self) -> int:
        """How many actions were left out."""
        return len(self.unknown_rows)


def input_facts(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the last change of every file that decides what is read."""
    is_dataset = (source / MANIFEST).is_file()
    paths = [source / MANIFEST] if is_dataset else find_files([source])
    facts = [(path, (archive_of(path) or path).stat()) for path in paths]
    return [(str(path.absolute()), stat.st_size, stat.st_mtime_ns) for path, stat in facts]


@contextmanager
def users_of(
    source: object,
    columns: ColumnRequest,
    catalogue: Catalogue,
    *,
    per_part: int,
    check_dataset: CheckDataset,
) -> Iterator[tuple[int | None, Iterator[Users]]]:
    """The users of what `Recommender.recommend_many` takes, as `open_users` gives those of a file."""
    if isinstance(source, Dataset):
        everybody = _read_dataset(check_dataset(source), catalogue)
        yield len(everybody.ids), everybody.in_parts(per_part)
    elif is_table(source):
        parts = plan([LogFrame.of(source, "histories")], columns)
        yield _users_of_parts(parts, None, catalogue, per_part)
    else:
        if isinstance(source, str | PathLike):
            raise UsageError(
                f"`histories`: expected lists of item ids, a frame or a dataset; found {str(source)!r}. "
                "For a file, use `recommend_file()`."
            )
        if columns != ColumnRequest():
            raise UsageError("`user`, `item` and `time` are columns of a frame; `histories` is not a frame.")
        users, lists = _by_user(source)
        yield len(lists), _given(users, lists, catalogue, per_part)


def is_table(source: object) -> TypeGuard[Frame]:
    """Whether this is a frame, rather than a list of histories or one column."""
    has_columns = hasattr(type(source), "columns") or isinstance(source, Tabular)
    return has_columns or (is_frame(source) and not is_list(source))


def _by_user(source: object) -> tuple["pl.Series", list[object]]:
    """Users and their histories: of a mapping its keys, of a pandas Series its index, of a list the places from 0."""
    import polars as pl

    pandas = sys.modules.get("pandas")
    if isinstance(source, Mapping):
        keys, lists = list(source), list(source.values())
    elif pandas and isinstance(source, pandas.Series):
        keys, lists = source.index.to_list(), source.to_list()
    else:
        lists = as_list(source, "histories", ordered=True)
        return pl.Series("user", range(len(lists)), dtype=pl.Int64), lists
    users = [user_id(key) for key in keys]
    if all(isinstance(user, int) for user in users):
        return pl.Series("user", users, dtype=None if users else pl.Int64), lists
    return pl.Series("user", list(map(str, users)), dtype=pl.String), lists


def _given(
    users: "pl.Series", lists: Sequence[object], catalogue: Catalogue, per_part: int
) -> Iterator[Users]:
    """Histories that are lists of ids already."""
    for first in _firsts(len(lists), per_part):
        ids, rows = users[first : first + per_part], lists[first : first + per_part]
        found = [
            catalogue.numbers(as_list(each, "histories", place, ordered=True), "histories", place)
            for place, each in zip(ids, rows, strict=True)
        ]
        strangers = [(row, each) for row, (_, unknown) in enumerate(found) for each in unknown]
        yield Users(
            ids,
            join([numbers for numbers, _ in found]),
            np.array([row for row, _ in strangers], np.int64),
            [each for _, each in strangers],
        )


@contextmanager
def open_users(
    source: Path,
    columns: ColumnRequest,
    catalogue: Catalogue,
    *,
    per_part: int,
    check_dataset: CheckDataset,
    hints: Hints = Hints(),
) -> Iterator[tuple[int | None, Iterator[Users]]]:
    """How many users there are, if known, and the users: the same parts, in the same order, in every call."""
    if (source / MANIFEST).is_file():
        everybody = _read_dataset(check_dataset(Dataset.open(source)), catalogue)
        yield len(everybody.ids), everybody.in_parts(per_part)
        return
    with TemporaryDirectory(prefix="bert4rec-") as scratch:
        parts = plan(open_files([source], Path(scratch), hints), columns)
        yield _users_of_parts(parts, hints.time_format, catalogue, per_part)


def _users_of_parts(
    parts: Sequence[Part], time_format: str | None, catalogue: Catalogue, per_part: int
) -> tuple[int | None, Iterator[Users]]:
    """Lists without times row by row, anything else as a log."""
    if all(part.choice.lists and "time" not in part.choice.lists for part in parts):
        return None, _read_lists(parts, catalogue, per_part)
    everybody = _read_log(parts, time_format, catalogue)
    return len(everybody.ids), everybody.in_parts(per_part)


def _firsts(count: int, per_part: int) -> range:
    """Where each part begins. There is always one, so that a table of nobody has its types too."""
    return range(0, max(1, count), per_part)


@dataclass(frozen=True)
class _Everybody:
    """All users in memory, with their actions end to end."""

    ids: "pl.Series"
    names: "pl.Series"
    """Every item id once."""
    numbers: NDArray[np.int32]
    """The model's number of each of `names`, 0 if it does not know it."""
    actions: NDArray[np.integer[Any]]
    """All users' actions end to end, as places in `names`."""
    lengths: NDArray[np.int64]
    is_dataset: bool = False

    def in_parts(self, per_part: int) -> Iterator[Users]:
        offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        for first in _firsts(len(self.ids), per_part):
            last = min(first + per_part, len(self.ids))
            actions = self.actions[offsets[first] : offsets[last]]
            histories, rows, strangers = _without_unknown(self.lengths[first:last], self.numbers[actions])
            places = np.arange(first, last) if self.is_dataset else None
            names = self.names.gather(actions[strangers])
            yield Users(self.ids[first:last], histories, rows, names.to_list(), places)


def _read_dataset(dataset: Dataset, catalogue: Catalogue) -> _Everybody:
    names = dataset.items()["id"]
    numbers, actions = catalogue.numbers_of_column(names), dataset.sequences - 1
    return _Everybody(dataset.users()["id"], names, numbers, actions, dataset.lengths, is_dataset=True)


def _read_log(parts: Sequence[Part], time_format: str | None, catalogue: Catalogue) -> _Everybody:
    """Users in the order of the log, their actions by time if there is one."""
    log = read_parts(parts, time_format)
    order = np.lexsort((log.users,) if log.times is None else (log.times, log.users))
    lengths = np.bincount(log.users, minlength=len(log.user_ids))
    numbers = catalogue.numbers_of_column(log.item_ids)
    return _Everybody(log.user_ids, log.item_ids, numbers, log.items[order], lengths)


def _read_lists(parts: Sequence[Part], catalogue: Catalogue, per_part: int) -> Iterator[Users]:
    """A user for each row, also those without any item. A time that is not a list says nothing about the order."""
    import polars as pl

    types, choice = column_types(parts[0].file), parts[0].choice
    empty = pl.DataFrame(schema={"user": types[choice.user], "item": types[choice.item]})
    rows = (frame for part in parts for frame in read_rows(part.file, part.choice, per_part))
    for frame in _of_equal_height((frame.select("user", "item") for frame in rows), per_part, empty):
        yield users_of_lists(frame, catalogue)


def users_of_lists(frame: "pl.DataFrame", catalogue: Catalogue) -> Users:
    """A user for each row of a table with the columns `user` and `item`, a list of items."""
    lengths, items = _actions(frame["item"])
    histories, whose, strangers = _without_unknown(lengths, catalogue.numbers_of_column(items))
    return Users(frame["user"], histories, whose, items.gather(strangers).to_list())


def _actions(lists: "pl.Series") -> "tuple[NDArray[np.int64], pl.Series]":
    """The length of each list, and the items of all of them end to end. Missing lists and items count for nothing."""
    import polars as pl

    if isinstance(lists.dtype, pl.Array):
        lists = lists.arr.to_list()
    items = lists.explode()  # an empty list becomes a missing item
    if items.null_count():
        lists, items = lists.list.drop_nulls(), items.drop_nulls()
    return lists.list.len().fill_null(0).to_numpy().astype(np.int64), items


def _of_equal_height(
    frames: "Iterable[pl.DataFrame]", height: int, empty: "pl.DataFrame"
) -> "Iterator[pl.DataFrame]":
    """The same rows, so many at a time, however they come in: a part must mean the same in every call.

    If there are no rows, `empty`, which has the types.
    """
    import polars as pl

    rest: pl.DataFrame | None = None
    for frame in filter(len, frames):
        rest = frame if rest is None else pl.concat([rest, frame], how="vertical_relaxed")
        while rest.height >= height:
            yield rest.head(height)
            rest = rest.slice(height)
    if rest is None:
        yield empty
    elif rest.height:
        yield rest


def _without_unknown(
    lengths: NDArray[np.int64], numbers: NDArray[np.int32]
) -> tuple[Histories, NDArray[np.int64], NDArray[np.int64]]:
    """Histories of the known items, and of all others, which have number 0, the rows and the places in `numbers`."""
    strangers = np.flatnonzero(numbers == 0)
    ends = np.cumsum(lengths)
    rows = np.searchsorted(ends, strangers, side="right")
    if len(strangers):  # seldom: most files have nothing to be left out, and need no copy
        numbers = numbers[numbers > 0]
        lengths = lengths - np.bincount(rows, minlength=len(lengths))
        ends = np.cumsum(lengths)
    return Histories(numbers, ends - lengths, ends), rows, strangers
