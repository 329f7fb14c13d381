"""The users of a bulk request: who they are, and what they did as numbers of the model's items.

Three inputs are understood, told apart by looking:

- files with a row for each user and a column that is a list of items, oldest first (Parquet, JSON Lines): read
  piece by piece, whatever their size;
- an interaction log, a row for each action, in any form that `bert4rec prepare` reads; it is held in memory as
  numbers, about 16 bytes an action;
- a dataset that `bert4rec prepare` wrote: all its users, with all they did.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.columns import ColumnChoice, ColumnRequest, choose_columns
from bert4rec.data.dataset import MANIFEST, Dataset
from bert4rec.data.files import LogFile, find_files, inspect_file, unreadable
from bert4rec.data.histories import Histories
from bert4rec.data.log import read_log
from bert4rec.data.readers import column_types
from bert4rec.errors import DataError
from bert4rec.serving.catalogue import Catalogue

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Users:
    """Some users, and what each did of what the model knows."""

    ids: "pl.Series"
    histories: Histories
    unknown: int
    """Actions that were left out because the model does not know the item."""


def input_files(source: Path) -> list[Path]:
    """The files that decide what is read."""
    return [source / MANIFEST] if (source / MANIFEST).is_file() else find_files([source])


def read_users(
    source: Path, columns: ColumnRequest, catalogue: Catalogue, *, per_part: int
) -> tuple[int | None, Iterator[Users]]:
    """How many users there are, if known, and the users: the same parts, in the same order, in every call."""
    if (source / MANIFEST).is_file():
        everybody = _read_dataset(Dataset.open(source), catalogue)
        return len(everybody.ids), everybody.in_parts(per_part)
    files = [inspect_file(path) for path in find_files([source])]
    if any(_list_columns(file) for file in files):
        parts = [(file, _choose(file, columns)) for file in files]
        return None, _read_lists(parts, catalogue, per_part)
    everybody = _read_log(source, columns, catalogue)
    return len(everybody.ids), everybody.in_parts(per_part)


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


def _read_log(source: Path, columns: ColumnRequest, catalogue: Catalogue) -> _Everybody:
    """Users in the order of the log, their actions by time where there is one."""
    log = read_log([source], columns)
    order = np.lexsort((log.users,) if log.times is None else (log.times, log.users))
    actions = _numbers(log.item_ids, catalogue)[log.items[order]]
    return _Everybody(log.user_ids, actions, np.bincount(log.users, minlength=len(log.user_ids)))


def _list_columns(file: LogFile) -> list[str]:
    if file.format not in ("parquet", "jsonl"):
        return []
    import polars as pl

    return [name for name, kind in column_types(file).items() if isinstance(kind, pl.List | pl.Array)]


def _choose(file: LogFile, columns: ColumnRequest) -> ColumnChoice:
    """The column of lists is that of the items, whatever it is called."""
    lists, types = _list_columns(file), column_types(file)
    if columns.item is None and len(lists) != 1:
        raise DataError(
            f"{file.path}: expected one column that is a list of items, found {', '.join(lists) or 'none'}. "
            "Name it with --item-col."
        )
    asked = replace(columns, item=columns.item or lists[0], time=None)
    choice = choose_columns(list(types), asked, where=str(file.path))
    if choice.item not in lists or types[choice.user].is_nested():
        raise DataError(
            f"{file.path}: expected a user and a list of items in each row; columns of lists: {lists}."
        )
    return choice


def _read_lists(
    parts: list[tuple[LogFile, ColumnChoice]], catalogue: Catalogue, per_part: int
) -> Iterator[Users]:
    import polars as pl

    def frames() -> Iterator[pl.DataFrame]:
        for file, choice in parts:
            chosen = _scan(file, choice).select(user=pl.col(choice.user), item=pl.col(choice.item))
            try:
                yield from chosen.collect_batches(chunk_size=per_part, maintain_order=True)
            except (OSError, pl.exceptions.PolarsError) as error:
                raise unreadable(file.path, error) from error

    for frame in _of_equal_height(frames(), per_part):
        actions = frame.select("item").with_row_index("row").explode("item").drop_nulls("item")
        rows = actions["row"].to_numpy().astype(np.int64)
        yield _without_unknown(frame["user"], rows, _numbers(actions["item"], catalogue))


def _scan(file: LogFile, choice: ColumnChoice) -> "pl.LazyFrame":
    import polars as pl

    if file.format == "parquet":
        return pl.scan_parquet(file.path, glob=False)
    # Ids as text, since a line may hold numbers and the next strings. Brackets in the name must not name another file.
    text: dict[str, pl.DataType] = {choice.user: pl.String(), choice.item: pl.List(pl.String)}
    return pl.scan_ndjson(escape(str(file.path)), schema=text)


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

    if ids.dtype.is_nested():
        raise DataError(f"The lists of items hold {ids.dtype} where ids are expected.")
    if ids.dtype.is_float():  # whole numbers among missing ones
        whole = ids.cast(pl.Int64, strict=False)
        ids = whole.set(whole != ids, None)
    places = ids.cast(pl.String).cast(pl.Enum(catalogue.ids), strict=False).to_physical()
    numbers: NDArray[np.int32] = (places.cast(pl.Int32) + 1).fill_null(0).to_numpy()
    return numbers
