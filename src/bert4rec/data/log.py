"""Read any interaction log into memory: one row an action, ids as small numbers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.columns import ColumnChoice, ColumnRequest, choose_columns, guess_columns
from bert4rec.data.files import LogFile, find_files, inspect_file, recode, without_header
from bert4rec.data.readers import LINES, column_types, read_frames
from bert4rec.data.times import TimeReader
from bert4rec.errors import DataError

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[int], None]
"""Hears how many rows have been read so far."""


@dataclass(frozen=True)
class Log:
    """An interaction log in the order it was written, not yet filtered or sorted."""

    users: NDArray[np.uint32]
    """Per action, an index into `user_ids`."""
    items: NDArray[np.uint32]
    """Per action, an index into `item_ids`."""
    times: NDArray[np.int64] | None
    """Per action, microseconds since 1970; None where the log's own order is all there is."""
    user_ids: "pl.Series"
    """Int64 or String, each id once, in the order of first appearance."""
    item_ids: "pl.Series"
    item_columns: "pl.DataFrame | None" = None
    """What else is known of items: a column `id` and others, `title` among them; not every item need have a row."""
    notes: list[str] = field(default_factory=list)
    """What was dropped or assumed while reading, one sentence each."""


def read_log(
    sources: Sequence[str | Path],
    columns: ColumnRequest = ColumnRequest(),
    *,
    encoding: str | None = None,
    progress: Progress | None = None,
) -> Log:
    """Read all files that `sources` names, one after the other, as one log."""
    paths = find_files(sources)
    with TemporaryDirectory(prefix="bert4rec-") as scratch:
        if encoding:
            paths = [recode(path, encoding, Path(scratch)) for path in paths]
        parts = [_plan(path, columns) for path in paths]
        if len({part.choice.time is None for part in parts}) > 1:
            raise DataError("Some files have a time column and some have none. Name it with --time-col.")
        text_ids = frozenset(role for part in parts for role in part.text_ids)
        times = TimeReader(parts[0].choice.time) if parts[0].choice.time else None
        log = encode(_frames(parts, times), text_ids=text_ids, progress=progress)
    notes = list(dict.fromkeys(f"Columns: {part.choice.describe()}." for part in parts))
    if times and times.unit:
        notes.append(f"Times are {times.describe()}.")
    return replace(log, notes=[*notes, *log.notes])


def encode(
    frames: "Iterable[pl.DataFrame]",
    *,
    text_ids: frozenset[str] = frozenset(),
    progress: Progress | None = None,
) -> Log:
    """Collect frames with columns `user`, `item` and perhaps `time` (microseconds) and `title` into a log.

    Rows without user, item or (where there are times) time are dropped and counted. Ids that are all whole
    numbers become integers, except for the roles in `text_ids`, whose source said that they are text.
    """
    import polars as pl

    # polars numbers the ids; its tables of names live only as long as some series refers to them.
    names = {role: pl.Series([], dtype=pl.Categorical(pl.Categories.random())) for role in ("user", "item")}
    numbers: dict[str, list[NDArray[np.uint32]]] = {"user": [], "item": []}
    times: list[NDArray[np.int64]] = []
    titles: list[pl.DataFrame] = []
    missing = dict.fromkeys(("user", "item", "time"), 0)
    rows = 0
    for frame in frames:
        rows += frame.height
        complete = _drop_incomplete(frame, missing)
        for role, parts in numbers.items():
            parts.append(complete[role].cast(names[role].dtype).to_physical().to_numpy())
        if "time" in frame.columns:
            times.append(complete["time"].to_numpy())
        if "title" in frame.columns:
            titles.append(_first_of_each(complete.select(pl.col("item").alias("id"), "title").drop_nulls()))
        if progress:
            progress(rows)
    return Log(
        users=np.concatenate([np.empty(0, np.uint32), *numbers["user"]]),
        items=np.concatenate([np.empty(0, np.uint32), *numbers["item"]]),
        times=np.concatenate(times) if times else None,
        user_ids=_ids(_all_names(names["user"]), as_text="user" in text_ids),
        item_ids=_ids(_all_names(names["item"]), as_text="item" in text_ids),
        item_columns=_first_of_each(pl.concat(titles)) if titles else None,
        notes=[f"{count:,} rows without {role} were dropped." for role, count in missing.items() if count],
    )


@dataclass(frozen=True)
class _Part:
    file: LogFile
    choice: ColumnChoice
    text_ids: frozenset[str]


def _plan(path: Path, request: ColumnRequest) -> _Part:
    """Settle how one file is read before anything is."""
    import polars as pl

    file = inspect_file(path)
    by_place = all(asked and asked.isdecimal() for asked in (request.user, request.item))
    if file.has_header and by_place and not guess_columns(file.columns):
        file = without_header(file)
    types = column_types(file)
    choice = LINES if file.format == "lines" else choose_columns(list(types), request, where=str(path))
    for role in ("user", "item"):
        if types[getattr(choice, role)].is_nested():
            raise DataError(
                f"{path}: column {getattr(choice, role)!r} holds {types[getattr(choice, role)]}, not single ids."
            )
    typed = file.format in ("parquet", "jsonl")
    text = {role for role in ("user", "item") if typed and types[getattr(choice, role)] == pl.String}
    return _Part(file, choice, frozenset(text))


def _frames(parts: list[_Part], times: TimeReader | None) -> "Iterator[pl.DataFrame]":
    """All files' rows with ids as text and times in microseconds."""
    for part in parts:
        first_row = 1
        for frame in read_frames(part.file, part.choice):
            as_text = frame.with_columns(_as_text(frame[role], part.file.path) for role in ("user", "item"))
            if times:
                micros = times.read(frame["time"], where=str(part.file.path), first_row=first_row)
                as_text = as_text.with_columns(micros.alias("time"))
            yield as_text
            first_row += frame.height


def _as_text(ids: "pl.Series", path: Path) -> "pl.Series":
    """Ids as String; whole numbers that were stored as floats lose their '.0'."""
    import polars as pl

    if ids.dtype.is_float():
        whole = ids.cast(pl.Int64, strict=False)
        if (whole != ids).any():
            raise DataError(
                f"{path}: column of {ids.name}s holds fractions such as {ids.filter(whole != ids)[0]}; ids are whole."
            )
        ids = whole
    return ids.cast(pl.String)


def _drop_incomplete(frame: "pl.DataFrame", missing: dict[str, int]) -> "pl.DataFrame":
    """Rows that have all they need; counts the others under the first thing they lack."""
    import polars as pl

    for role in missing:
        if role in frame.columns:
            lacking = (
                frame[role].is_null() | (frame[role] == "")
                if frame.schema[role] == pl.String
                else frame[role].is_null()
            )
            if lacking.any():
                missing[role] += int(lacking.sum())
                frame = frame.filter(~lacking)
    return frame


def _first_of_each(titles: "pl.DataFrame") -> "pl.DataFrame":
    return titles.unique("id", keep="first", maintain_order=True)


def _all_names(numbered: "pl.Series") -> "pl.Series":
    """Every name that polars has numbered for this column, in the order of their numbers."""
    import polars as pl

    assert isinstance(numbered.dtype, pl.Categorical)
    return numbered.dtype.categories.to_series()


def _ids(names: "pl.Series", *, as_text: bool) -> "pl.Series":
    """The ids as they were: integers where every one is written the way an integer is."""
    import polars as pl

    if not as_text:
        numbers = names.cast(pl.Int64, strict=False)
        if not numbers.has_nulls() and bool((numbers.cast(pl.String) == names).all()):
            return numbers.alias("id")
    return names.alias("id")
