"""Read any interaction log: one row per action, ids as small numbers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError
from bert4rec.logs.columns import ColumnChoice, ColumnRequest, choose_columns, guess_columns
from bert4rec.logs.files import Hints, ends_in_times, names_columns, without_header
from bert4rec.logs.growing import GrowingColumn, Scratch
from bert4rec.logs.readers import (
    LINES,
    ROWS_PER_BATCH,
    LogFrame,
    LogSource,
    column_types,
    declares_text,
    place_of_row,
    read_frames,
)
from bert4rec.logs.times import TimeReader
from bert4rec.logs.unpack import open_files
from bert4rec.progress import ProgressCallback

if TYPE_CHECKING:
    import polars as pl


MOST_TITLES = 2**22
"""Titles of items, some of them several times, that are held before each is kept once."""


@dataclass(frozen=True)
class Log:
    """An interaction log in the order it was written, not yet filtered or sorted.

    The rows of a large one may be memory-mapped files, which are there until it is prepared.
    """

    users: NDArray[np.uint32]
    """Per action, an index into `user_ids`."""
    items: NDArray[np.uint32]
    """Per action, an index into `item_ids`."""
    times: NDArray[np.int64] | None
    """Per action, microseconds since 1970; None if only the order of the log is known."""
    user_ids: "pl.Series"
    """Int64 or String, each id once, in the order of first appearance."""
    item_ids: "pl.Series"
    item_columns: "pl.DataFrame | None" = None
    """What else is known of items: a column `id` and others such as `title`; not every item needs a row."""
    notes: list[str] = field(default_factory=list)
    """What was dropped or assumed while reading, one sentence each."""


@dataclass(frozen=True)
class Part:
    """One file or frame of a log, and how it is read."""

    file: LogSource
    choice: ColumnChoice
    text_ids: frozenset[str]
    """Roles whose ids the source says are text."""


def read_log(
    sources: Sequence[str | Path],
    columns: ColumnRequest = ColumnRequest(),
    hints: Hints = Hints(),
    *,
    drop_bad_rows: bool = False,
    progress: ProgressCallback | None = None,
    scratch: Scratch | None = None,
) -> Log:
    """Read all files that `sources` names, one after the other, as one log."""
    with TemporaryDirectory(prefix="bert4rec-") as unpacked:
        files = open_files(sources, Path(unpacked), hints)
        parts = plan(files, columns)
        return read_parts(
            parts, hints.time_format, drop_bad_rows=drop_bad_rows, progress=progress, scratch=scratch
        )


def read_frame(
    frame: LogFrame,
    columns: ColumnRequest = ColumnRequest(),
    time_format: str | None = None,
    *,
    drop_bad_rows: bool = False,
    progress: ProgressCallback | None = None,
    scratch: Scratch | None = None,
) -> Log:
    """Read a table in memory as a log."""
    parts = plan([frame], columns)
    return read_parts(parts, time_format, drop_bad_rows=drop_bad_rows, progress=progress, scratch=scratch)


def plan(files: Sequence[LogSource], request: ColumnRequest) -> list[Part]:
    """Decide how every file or frame is read before any is read."""
    try:
        return [_plan(file, request) for file in files]
    except DataError as error:
        if len(files) == 1:
            raise
        raise DataError(
            f"{error} If this file is not part of the log, name only those that are; a file in an archive is named "
            "like archive.zip/ratings.csv."
        ) from error


def read_parts(
    parts: Sequence[Part],
    time_format: str | None = None,
    *,
    drop_bad_rows: bool = False,
    progress: ProgressCallback | None = None,
    scratch: Scratch | None = None,
) -> Log:
    """Read files or a frame as one log. Rows whose time cannot be read are an error, or are dropped and counted."""
    timed, timeless = (
        [part.file.shown for part in parts if bool(part.choice.time) is has_time]
        for has_time in (True, False)
    )
    if timed and timeless:
        raise DataError(
            f"Some files have a time column and some have none, such as {timed[0]} and {timeless[0]}. Name the column "
            "with `time`, or name only the files that hold actions."
        )
    if time_format is not None and not timed:
        raise UsageError(
            f"`time_format` requires a time column, and {timeless[0]} has none. Name the column with `time`."
        )
    text_ids = frozenset(role for part in parts for role in part.text_ids)
    times = TimeReader(parts[0].choice.time or "", time_format) if timed else None
    log = encode(_frames(parts, times), text_ids=text_ids, progress=progress, scratch=scratch)
    about_times = times.settle(drop_bad_rows=drop_bad_rows) if times else []
    notes = [f"Read {len(parts):,} files."] if len(parts) > 1 else []
    notes += dict.fromkeys(f"Columns: {part.choice.describe()}." for part in parts)
    return replace(log, notes=[*notes, *about_times, *log.notes])


def ids_as_text(ids: "pl.Series", where: str) -> "pl.Series":
    """Ids as String, without blanks around them; whole numbers that were stored as floats lose their '.0'."""
    import polars as pl

    if ids.dtype.is_float():
        whole = ids.cast(pl.Int64, strict=False)
        if (whole != ids).any():
            raise DataError(
                f"{where}: the {ids.name} column holds fractions such as {ids.filter(whole != ids)[0]}. Ids must be "
                "whole numbers or text."
            )
        ids = whole
    text = ids.cast(pl.String)
    return text if ids.dtype.is_integer() else text.str.strip_chars()


def trim_titles(table: "pl.DataFrame") -> "pl.DataFrame":
    """The same table, its titles without blanks around them; a blank title is missing."""
    import polars as pl

    if table.schema.get("title") != pl.String:
        return table
    title = pl.col("title").str.strip_chars()
    return table.with_columns(pl.when(title != "").then(title))


def whole_numbers(ids: "pl.Series") -> "pl.Series | None":
    """Ids as integers, if each is written like an integer or a whole float (6.0); None otherwise."""
    import polars as pl

    without_point = ids.str.replace(r"\.0+$", "")
    numbers = without_point.cast(pl.Int64, strict=False)
    # An id that does not come back the same, such as 007, is a name and not a number.
    same = numbers.null_count() == ids.null_count() and (numbers.cast(pl.String) == without_point).all()
    return numbers if same else None


def encode(
    frames: "Iterable[pl.DataFrame]",
    *,
    text_ids: frozenset[str] = frozenset(),
    progress: ProgressCallback | None = None,
    scratch: Scratch | None = None,
) -> Log:
    """Collect frames with columns `user`, `item` and perhaps `time` (microseconds) and `title` into a log.

    Rows without user, item or (if there are times) time are dropped and counted. Ids that are all whole
    numbers, some perhaps written as 6.0, become integers, except for the roles in `text_ids`, whose source says
    that they are text. With `scratch`, a log of very many rows is kept there and memory-mapped.
    """
    import polars as pl

    # polars numbers the ids; its tables of names live only as long as some series refers to them.
    names = {role: pl.Series([], dtype=pl.Categorical(pl.Categories.random())) for role in ("user", "item")}
    numbers = {role: GrowingColumn(role, np.uint32, scratch) for role in names}
    times: GrowingColumn | None = None
    titles: list[pl.DataFrame] = []
    missing = dict.fromkeys(("user", "item", "time"), 0)
    rows = 0
    for frame in frames:
        rows += frame.height
        complete = _drop_incomplete(frame, missing)
        for role, column in numbers.items():
            column.add(complete[role].cast(names[role].dtype).to_physical().to_numpy())
        if "time" in frame.columns:
            times = times or GrowingColumn("time", np.int64, scratch)
            times.add(complete["time"].to_numpy())
        if "title" in frame.columns:
            titles.append(_first_of_each(complete.select(pl.col("item").alias("id"), "title").drop_nulls()))
            if sum(each.height for each in titles) > MOST_TITLES:
                titles = [_first_of_each(pl.concat(titles))]
        if progress:
            progress(rows, None)
    users, user_ids = _ids(names["user"], numbers["user"].array(), as_text="user" in text_ids)
    items, item_ids = _ids(names["item"], numbers["item"].array(), as_text="item" in text_ids)
    return Log(
        users=users,
        items=items,
        times=times.array() if times else None,
        user_ids=user_ids,
        item_ids=item_ids,
        item_columns=_titles(titles, item_ids) if titles else None,
        notes=describe_missing(missing),
    )


def describe_missing(missing: Mapping[str, int]) -> list[str]:
    """How many rows were dropped because they lack a user, an item or a time."""
    return [
        f"1 row without {role} was dropped." if count == 1 else f"{count:,} rows without {role} were dropped."
        for role, count in missing.items()
        if count
    ]


def _plan(file: LogSource, request: ColumnRequest) -> Part:
    import polars as pl

    by_place = all(asked and asked.isdecimal() for asked in (request.user, request.item))
    if file.format == "csv":
        if file.has_header and by_place and not names_columns(file):
            file = without_header(file)
        if request.time is None and (by_place or not file.has_header) and ends_in_times(file):
            request = _with_time(request, file.columns)
    types = column_types(file)
    lists = {name: kind for name, kind in types.items() if isinstance(kind, pl.List | pl.Array)}
    dates = [name for name, kind in types.items() if isinstance(kind, pl.Date | pl.Datetime)]
    choice = (
        LINES
        if file.format == "lines"
        else choose_columns(list(types), request, where=file.shown, lists=lists, dates=dates)
    )
    ids = {"user": types[choice.user], "item": types[choice.item]}
    if "item" in choice.lists:
        inner = lists[choice.item].inner
        assert isinstance(inner, pl.DataType)
        ids["item"] = inner
    for role, kind in ids.items():
        if kind.is_nested():
            raise DataError(
                f"`{role}`: column {getattr(choice, role)!r} of {file.shown} holds {types[getattr(choice, role)]}. "
                "Expected single ids."
            )
    return Part(file, choice, frozenset(role for role, kind in ids.items() if declares_text(file, kind)))


def _with_time(request: ColumnRequest, columns: Sequence[str]) -> ColumnRequest:
    """The last column as the time, unless it is something else already."""
    last = str(len(columns))
    taken = {last, columns[-1]} & {request.user, request.item, request.title}
    if taken or last == "2" or "time" in guess_columns(columns):
        return request
    return replace(request, time=last)


def _frames(parts: Sequence[Part], times: TimeReader | None) -> "Iterator[pl.DataFrame]":
    """All rows with ids as text, times in microseconds, and no blanks around ids and titles.

    Rows whose time cannot be read are left out; `times` counts them.
    """
    for part in parts:
        first_row = 1
        for frame in read_frames(part.file, part.choice):
            as_text = frame.with_columns(
                ids_as_text(frame[role], part.file.shown) for role in ("user", "item")
            )
            if times:
                rows = frame["row"] if part.choice.lists else range(first_row, first_row + frame.height)
                place = partial(place_of_row, part.file)
                micros, is_bad = times.read(frame["time"], where=part.file.shown, rows=rows, place=place)
                as_text = as_text.with_columns(micros.alias("time")).filter(~is_bad)
            yield trim_titles(as_text)
            first_row += frame.height


def _drop_incomplete(frame: "pl.DataFrame", missing: dict[str, int]) -> "pl.DataFrame":
    """Rows that are complete; the others are counted under the first thing they lack."""
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


def _titles(titles: "list[pl.DataFrame]", item_ids: "pl.Series") -> "pl.DataFrame":
    """The first title of each item, whose id is text but written as in `item_ids`."""
    import polars as pl

    table = pl.concat(titles)
    if item_ids.dtype.is_integer() and (integers := whole_numbers(table["id"])) is not None:
        table = table.with_columns(integers.cast(pl.String))
    return _first_of_each(table)


def _ids(
    numbered: "pl.Series", per_action: NDArray[np.uint32], *, as_text: bool
) -> "tuple[NDArray[np.uint32], pl.Series]":
    """Per action the number of its id, and the ids in the order of their numbers.

    polars has numbered them as they are written. If all are whole numbers, 6 and 6.0 become one.
    """
    import polars as pl

    assert isinstance(numbered.dtype, pl.Categorical)
    names = numbered.dtype.categories.to_series().alias("id")
    integers = None if as_text else whole_numbers(names)
    if integers is None:
        return per_action, names
    ids = integers.unique(maintain_order=True)
    if len(ids) < len(names):
        places = ids.to_frame().with_row_index("place")
        place = integers.to_frame().join(places, on="id", how="left", maintain_order="left")["place"]
        place_of = place.to_numpy()
        for first in range(0, len(per_action), ROWS_PER_BATCH):  # They may be a memory map.
            part = slice(first, first + ROWS_PER_BATCH)
            per_action[part] = place_of[per_action[part]]
    return per_action, ids
