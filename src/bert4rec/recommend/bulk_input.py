"""The users of a bulk request: who they are, and what they did as numbers of the model's items.

Three inputs are understood, told apart by looking:

- files with a row for each user and a column that is a list of items, oldest first (Parquet, Feather, JSON Lines):
  read piece by piece, whatever their size;
- an interaction log, in any form that `bert4rec prepare` reads: a row for each action, or lists of items with lists
  of their times; it is held in memory as numbers, about 16 bytes an action;
- a dataset that `bert4rec prepare` wrote: all its users, with all they did.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import MANIFEST, Dataset
from bert4rec.data.histories import Histories
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints, archive_of, find_files
from bert4rec.logs.log import Part, plan, read_parts
from bert4rec.logs.readers import read_rows
from bert4rec.logs.unpack import open_files
from bert4rec.recommend.catalogue import Catalogue

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Users:
    """Some users, and what each did of what the model knows."""

    ids: "pl.Series"
    histories: Histories
    unknown: int
    """Actions that were left out because the model does not know the item."""


def input_facts(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the last change of every file that decides what is read."""
    is_dataset = (source / MANIFEST).is_file()
    paths = [source / MANIFEST] if is_dataset else find_files([source])
    facts = [(path, (archive_of(path) or path).stat()) for path in paths]
    return [(str(path.absolute()), stat.st_size, stat.st_mtime_ns) for path, stat in facts]


@contextmanager
def open_users(
    source: Path, columns: ColumnRequest, catalogue: Catalogue, *, per_part: int, hints: Hints = Hints()
) -> Iterator[tuple[int | None, Iterator[Users]]]:
    """How many users there are, if known, and the users: the same parts, in the same order, in every call."""
    if (source / MANIFEST).is_file():
        everybody = _read_dataset(Dataset.open(source), catalogue)
        yield len(everybody.ids), everybody.in_parts(per_part)
        return
    with TemporaryDirectory(prefix="bert4rec-") as scratch:
        parts = plan(open_files([source], Path(scratch), hints), columns)
        if all(part.choice.lists and "time" not in part.choice.lists for part in parts):
            yield None, _read_lists(parts, catalogue, per_part)
        else:
            everybody = _read_log(parts, hints, catalogue)
            yield len(everybody.ids), everybody.in_parts(per_part)


@dataclass(frozen=True)
class _Everybody:
    """All users in memory."""

    ids: "pl.Series"
    actions: NDArray[np.int32]
    """All users' item numbers end to end, 0 for unknown ones."""
    lengths: NDArray[np.int64]

    def in_parts(self, per_part: int) -> Iterator[Users]:
        offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        for first in range(0, len(self.ids), per_part):
            last = min(first + per_part, len(self.ids))
            rows = np.repeat(np.arange(last - first), self.lengths[first:last])
            yield _without_unknown(self.ids[first:last], rows, self.actions[offsets[first] : offsets[last]])


def _read_dataset(dataset: Dataset, catalogue: Catalogue) -> _Everybody:
    numbers = _numbers(dataset.items()["id"], catalogue)
    return _Everybody(dataset.users()["id"], numbers[dataset.sequences - 1], dataset.lengths)


def _read_log(parts: Sequence[Part], hints: Hints, catalogue: Catalogue) -> _Everybody:
    """Users in the order of the log, their actions by time where there is one."""
    log = read_parts(parts, hints.time_format)
    order = np.lexsort((log.users,) if log.times is None else (log.times, log.users))
    actions = _numbers(log.item_ids, catalogue)[log.items[order]]
    return _Everybody(log.user_ids, actions, np.bincount(log.users, minlength=len(log.user_ids)))


def _read_lists(parts: Sequence[Part], catalogue: Catalogue, per_part: int) -> Iterator[Users]:
    """A user for each row, those without any item too. A time that is not a list says nothing about the order."""
    rows = (frame for part in parts for frame in read_rows(part.file, part.choice, per_part))
    for frame in _of_equal_height((frame.select("user", "item") for frame in rows), per_part):
        actions = frame.select("item").with_row_index("row").explode("item").drop_nulls("item")
        rows_of_actions = actions["row"].to_numpy().astype(np.int64)
        yield _without_unknown(frame["user"], rows_of_actions, _numbers(actions["item"], catalogue))


def _of_equal_height(frames: "Iterable[pl.DataFrame]", height: int) -> "Iterator[pl.DataFrame]":
    """The same rows, so many at a time, however they come in: a part must mean the same in every call."""
    import polars as pl

    rest: pl.DataFrame | None = None
    for frame in frames:
        rest = frame if rest is None else pl.concat([rest, frame], how="vertical_relaxed")
        while rest.height >= height:
            yield rest.head(height)
            rest = rest.slice(height)
    if rest is not None and rest.height:
        yield rest


def _without_unknown(ids: "pl.Series", rows: NDArray[np.int64], numbers: NDArray[np.int32]) -> Users:
    """`rows` says whose each action is, rising; unknown items have number 0."""
    is_known = numbers > 0
    limits = np.concatenate([[0], np.cumsum(np.bincount(rows[is_known], minlength=len(ids)))])
    histories = Histories(numbers[is_known], limits[:-1], limits[1:])
    return Users(ids, histories, len(numbers) - len(histories.items))


def _numbers(ids: "pl.Series", catalogue: Catalogue) -> NDArray[np.int32]:
    """The model's number of each id; 0 where it knows none."""
    import polars as pl

    if ids.dtype.is_float():  # whole numbers among missing ones
        whole = ids.cast(pl.Int64, strict=False)
        ids = whole.set(whole != ids, None)
    text = ids.cast(pl.String).str.strip_chars()
    if catalogue.whole_numbers:
        text = text.str.replace(r"\.0+$", "")
    places = text.cast(pl.Enum(catalogue.ids), strict=False).to_physical()
    numbers: NDArray[np.int32] = (places.cast(pl.Int32) + 1).fill_null(0).to_numpy()
    return numbers
