"""Read a log in batches: CSV, Parquet, Arrow, JSON Lines, "user item item …" lines, or a frame in memory.

Every reader yields frames with columns `user`, `item` and, if chosen, `time` and `title`, in the order
of the source and with bounded memory. Compressed files (.gz, .zst) are read as they are.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from itertools import islice
from typing import TYPE_CHECKING, Literal

from bert4rec.errors import DataError
from bert4rec.frames import Frame, to_lazy
from bert4rec.logs.columns import ColumnChoice
from bert4rec.logs.files import LogFile, split_row, takes_several_bytes, unreadable

if TYPE_CHECKING:
    import polars as pl

ROWS_PER_BATCH = 1_000_000
LISTS_PER_BATCH = 20_000
"""Fewer, since a list may be long."""
LINES_TO_KNOW_KEYS_BY = 10_000
"""Of a JSON Lines file: a key that first occurs later is not seen."""
LINES = ColumnChoice(user="first word of a line", item="every further word")


@dataclass(frozen=True)
class LogFrame:
    """A log, or a catalogue, that is a table in memory. It is read as Parquet would be."""

    table: "pl.LazyFrame"
    shown: str = "the frame"
    """What messages call it."""
    format: Literal["frame"] = "frame"

    @classmethod
    def of(cls, frame: Frame, parameter: str) -> "LogFrame":
        """Any library's frame; errors name the `parameter` that it was passed as."""
        return cls(to_lazy(frame, parameter))


LogSource = LogFile | LogFrame
"""Where rows come from."""


def column_types(file: LogSource) -> "dict[str, pl.DataType]":
    """The columns of a source with the types it declares; a text file declares none, so all are String there."""
    import polars as pl

    if file.format == "csv":
        doubled = next((name for name in file.columns if file.columns.count(name) > 1), None)
        if doubled is not None:
            raise DataError(f"{file.shown} has two columns called {doubled!r}. Rename one of them.")
        return dict.fromkeys(file.columns, pl.String())
    if file.format == "lines":
        return {LINES.user: pl.String(), LINES.item: pl.String()}
    try:
        return dict(_scan(file).collect_schema())
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _explain(file, error) from error


def declares_text(file: LogSource, kind: "pl.DataType") -> bool:
    """Whether the source says that a column of this type is text, even if all of it looks like numbers."""
    import polars as pl

    return file.format not in ("csv", "lines") and kind in (pl.String, pl.Categorical, pl.Enum)


def read_frames(file: LogSource, choice: ColumnChoice) -> "Iterator[pl.DataFrame]":
    """The chosen columns under the names of their roles, batch by batch.

    If they hold lists, every item gets a row of its own, and `row` is the row of the source that it was in.
    """
    if not choice.lists:
        yield from read_rows(file, choice)
        return
    first_row = 1
    for frame in read_rows(file, choice, LISTS_PER_BATCH):
        yield _explode(frame, choice.lists, file.shown, first_row)
        first_row += frame.height


def read_rows(
    file: LogSource, choice: ColumnChoice, rows_per_batch: int | None = None
) -> "Iterator[pl.DataFrame]":
    """The chosen columns under the names of their roles, row by row as in the source."""
    import polars as pl

    try:
        if file.format == "lines":
            yield from _read_lines(file, choice)
        elif file.format == "csv":
            yield from _read_csv(file, choice)
        else:
            chosen = _scan(file, choice).select(
                pl.col(name).alias(role) for role, name in choice.by_role().items()
            )
            yield from in_batches(chosen, rows_per_batch)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _explain(file, error) from error


def read_columns(file: LogSource, names: Sequence[str]) -> "pl.DataFrame":
    """Whole columns of a table small enough for memory, such as a catalogue."""
    import polars as pl

    if file.format == "lines":
        raise DataError(f"{file.shown} is not a table with columns.")
    try:
        return _scan(file).select(names).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _explain(file, error) from error


def place_of_row(file: LogSource, row: int) -> str:
    """Where the row with this number, from 1, stands: by line in a text file, by number elsewhere."""
    if file.format not in ("csv", "jsonl"):
        return f"{file.shown}, row {row}"
    headers = int(file.format == "csv" and file.has_header)
    line = next(islice(_lines_of_rows(file), headers + row - 1, None))
    return f"{file.shown}:{line}"


def _scan(file: LogSource, choice: ColumnChoice | None = None) -> "pl.LazyFrame":
    """All columns of a table. Of JSON, those of `choice` come as text if it is given."""
    import polars as pl

    if file.format == "frame":
        return file.table
    if file.format == "parquet":
        return pl.scan_parquet(file.path, glob=False)
    if file.format == "arrow":
        return pl.scan_ipc(file.path, glob=False)
    if file.format == "jsonl":
        # A column may hold numbers in one line and strings in the next.
        text: dict[str, pl.DataType] | None = None
        if choice:
            kinds = (pl.String(), pl.List(pl.String))
            text = {name: kinds[role in choice.lists] for role, name in choice.by_role().items()}
        # The only scan that takes no glob=False: brackets in a file's name must not name another file.
        return pl.scan_ndjson(escape(str(file.path)), schema=text, infer_schema_length=LINES_TO_KNOW_KEYS_BY)
    assert file.format == "csv"
    return _scan_split(file) if takes_several_bytes(file.separator) else _scan_csv(file)


def _explode(frame: "pl.DataFrame", lists: frozenset[str], shown: str, first_row: int) -> "pl.DataFrame":
    """A row for each item of the lists; what goes along with them must be as long."""
    import polars as pl

    arrays = (role for role in lists if isinstance(frame.schema[role], pl.Array))
    frame = frame.with_columns(pl.col(role).arr.to_list() for role in arrays)
    lengths = frame.select(pl.col(role).list.len().fill_null(0) for role in lists)
    for role in lists - {"item"}:
        wrong = lengths[role] != lengths["item"]
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise DataError(
                f"{shown}, row {first_row + row}: {lengths['item'][row]} items, but {lengths[role][row]} {role}s. "
                "Lists that go together must have the same length."
            )
    numbered = frame.with_row_index("row", offset=first_row)
    return numbered.filter(lengths["item"] > 0).explode(*lists)


def in_batches(frame: "pl.LazyFrame", rows: int | None = None) -> "Iterator[pl.DataFrame]":
    """All rows in their order, a million or so many at a time."""
    yield from frame.collect_batches(chunk_size=rows or ROWS_PER_BATCH, maintain_order=True)


def _scan_csv(file: LogFile) -> "pl.LazyFrame":
    """Fields stay text: what looks like a number may be an id with leading zeros."""
    import polars as pl

    return pl.scan_csv(
        file.path,
        separator=file.separator,
        has_header=file.has_header,
        quote_char=file.quote,
        new_columns=file.columns,
        infer_schema=False,
        glob=False,
    )


def _scan_split(file: LogFile) -> "pl.LazyFrame":
    """Lines whose separator is longer than polars' reader of CSV takes. Like there, an empty field is missing."""
    import polars as pl

    lines = _scan_lines(file).filter(pl.col("line").str.strip_chars() != "")
    # The last field takes all that is left, so that a separator in it shows that there is one too many.
    fields = pl.col("line").str.splitn(file.separator, len(file.columns)).struct
    text = [fields.field(f"field_{place}").alias(name) for place, name in enumerate(file.columns)]
    split = lines.slice(1 if file.has_header else 0).select(text)
    return split.with_columns(pl.when(pl.all() != "").then(pl.all()))


def _scan_lines(file: LogFile) -> "pl.LazyFrame":
    """Lines without the byte order mark, which only the first of a file may have."""
    import polars as pl

    lines = pl.scan_lines(file.path, name="line", row_index_name="number", glob=False)
    line, is_first = pl.col("line"), pl.col("number") == 0
    return lines.select(pl.when(is_first).then(line.str.strip_prefix("\ufeff")).otherwise(line))


def _read_csv(file: LogFile, choice: ColumnChoice) -> "Iterator[pl.DataFrame]":
    """A row with too few or too many fields is an error; a blank line is nothing."""
    import polars as pl

    # A row that is too short lacks its last field, so that one is read even if it was not chosen.
    last = pl.col(file.columns[-1]).alias("last field")
    chosen = [pl.col(name).alias(role) for role, name in choice.by_role().items()]
    checked = False
    for batch in in_batches(_scan(file).select(*chosen, last)):
        if not checked and batch.select(_is_doubtful(file)).item():
            checked = True
            if problem := _bad_csv_row(file):
                raise problem
        yield batch.filter(~pl.all_horizontal(pl.all().is_null())).drop("last field")


def _is_doubtful(file: LogFile) -> "pl.Expr":
    """Whether some row may have another number of fields than the rest."""
    import polars as pl

    too_short = pl.col("last field").is_null().any()
    if not takes_several_bytes(file.separator):  # polars itself refuses rows that are too long
        return too_short
    return too_short | pl.col("last field").str.contains(file.separator, literal=True).any()


def _read_lines(file: LogFile, choice: ColumnChoice) -> "Iterator[pl.DataFrame]":
    """Each line is a user followed by one or more items; a user may have many lines."""
    import polars as pl

    assert choice == LINES
    first_line = 1
    for lines in in_batches(_scan_lines(file)):
        words = lines.select(pl.col("line").str.extract_all(r"\S+").alias("words"))
        count = words["words"].list.len()
        if (count == 1).any():
            line = first_line + int((count == 1).arg_max() or 0)
            raise DataError(
                f"{file.shown}:{line}: found a user without items. Expected 'user item' or 'user item item …'."
            )
        split = words.filter(count > 0).select(
            pl.col("words").list.first().alias("user"), pl.col("words").list.slice(1).alias("item")
        )
        yield split.explode("item")
        first_line += lines.height


def _explain(file: LogSource, error: Exception) -> DataError:
    """Find the place in a file that a reader could not read."""
    import polars as pl

    if file.format == "frame":
        return DataError(f"{file.shown} cannot be read: {error}")
    try:
        return _bad_csv_row(file) or _bad_json_line(file) or unreadable(file.path, error, shown=file.shown)
    except (OSError, pl.exceptions.PolarsError) as another:
        return unreadable(file.path, another, shown=file.shown)


def _bad_csv_row(file: LogFile) -> DataError | None:
    """The first row with too few or too many fields, by line; None if every row is complete.

    Quoted fields may hold separators and line ends: rows that span lines are left out.
    """
    if file.format != "csv":
        return None
    expected, inside_quotes = len(file.columns), False
    for number, line in _numbered_lines(file):
        quotes = line.count(file.quote) if file.quote else 0
        if not inside_quotes and quotes % 2 == 0 and line.strip():
            found = len(split_row(line, file.separator)) if quotes else line.count(file.separator) + 1
            if found != expected:
                fields = f"{expected} fields separated by {file.separator!r}"
                return DataError(f"{file.shown}:{number}: expected {fields}, found {found}.")
        inside_quotes ^= quotes % 2 == 1
    return None


def _lines_of_rows(file: LogFile) -> Iterator[int]:
    """The line in which each row begins: blank ones hold none, and quoted fields may span several."""
    quote = file.quote if file.format == "csv" else None
    blank, inside_quotes = f"{file.separator} \t\r\ufeff", False
    for number, line in _numbered_lines(file):
        if not inside_quotes and line.strip(blank):
            yield number
        inside_quotes ^= quote is not None and line.count(quote) % 2 == 1


def _bad_json_line(file: LogFile) -> DataError | None:
    """The first line that is not a JSON object; None if all are."""
    if file.format != "jsonl":
        return None
    for number, line in _numbered_lines(file):
        if number == 1 and line.lstrip("\ufeff ").startswith("["):
            return DataError(
                f"{file.shown} is one JSON array. Expected one object per line, as pandas writes with "
                "to_json(…, orient='records', lines=True), or jq -c '.[]'."
            )
        try:
            if line.strip() and not isinstance(json.loads(line), dict):
                return DataError(
                    f"{file.shown}:{number}: expected one JSON object per line, found {line[:40]!r}."
                )
        except json.JSONDecodeError as error:
            at = f"{error.msg} at character {error.pos + 1}"
            return DataError(f"{file.shown}:{number}: not valid JSON ({at}).")
    return None


def _numbered_lines(file: LogFile) -> Iterator[tuple[int, str]]:
    import polars as pl

    batches = in_batches(pl.scan_lines(file.path, name="line", glob=False))
    return enumerate((line for batch in batches for line in batch.to_series()), start=1)
