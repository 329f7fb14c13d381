"""Read the files of a log in batches: CSV, Parquet, JSON Lines, and "user item item …" lines.

Every reader yields frames with columns `user`, `item` and, where chosen, `time` and `title`, in the order
of the file and with bounded memory. Compressed files (.gz, .zst) are read as they are.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from glob import escape
from typing import TYPE_CHECKING

from bert4rec.data.columns import ColumnChoice
from bert4rec.data.files import LogFile, unreadable
from bert4rec.errors import DataError

if TYPE_CHECKING:
    import polars as pl

ROWS_PER_BATCH = 1_000_000
LINES_TO_KNOW_KEYS_BY = 10_000
"""Of a JSON Lines file: a key that first occurs later is not seen."""
LINES = ColumnChoice(user="first word of a line", item="every further word")


def column_types(file: LogFile) -> "dict[str, pl.DataType]":
    """The columns of a file with the types it declares; a text file declares none, so all are String there."""
    import polars as pl

    if file.format == "csv":
        return dict.fromkeys(file.columns, pl.String())
    if file.format == "lines":
        return {LINES.user: pl.String(), LINES.item: pl.String()}
    try:
        scan = _scan_parquet(file) if file.format == "parquet" else _scan_jsonl(file)
        return dict(scan.collect_schema())
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _explain(file, error) from error


def read_frames(file: LogFile, choice: ColumnChoice) -> "Iterator[pl.DataFrame]":
    """The chosen columns under the names of their roles, batch by batch."""
    import polars as pl

    readers = {"csv": _read_csv, "parquet": _read_parquet, "jsonl": _read_jsonl, "lines": _read_lines}
    try:
        yield from readers[file.format](file, choice)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _explain(file, error) from error


def read_columns(file: LogFile, names: Sequence[str]) -> "pl.DataFrame":
    """Whole columns of a table small enough for memory, such as a catalogue."""
    import polars as pl

    scans = {"csv": _scan_csv, "parquet": _scan_parquet, "jsonl": _scan_jsonl}
    if file.format not in scans:
        raise DataError(f"{file.path} is not a table with columns.")
    try:
        return scans[file.format](file).select(names).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _explain(file, error) from error


def _by_role(choice: ColumnChoice) -> "list[pl.Expr]":
    import polars as pl

    return [pl.col(name).alias(role) for role, name in vars(choice).items() if name]


def _batches(frame: "pl.LazyFrame") -> "Iterator[pl.DataFrame]":
    yield from frame.collect_batches(chunk_size=ROWS_PER_BATCH, maintain_order=True)


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


def _scan_parquet(file: LogFile) -> "pl.LazyFrame":
    import polars as pl

    return pl.scan_parquet(file.path, glob=False)


def _scan_jsonl(file: LogFile, schema: "dict[str, pl.DataType] | None" = None) -> "pl.LazyFrame":
    import polars as pl

    # The only scan that takes no glob=False: brackets in a file's name must not name another file.
    return pl.scan_ndjson(escape(str(file.path)), schema=schema, infer_schema_length=LINES_TO_KNOW_KEYS_BY)


def _read_csv(file: LogFile, choice: ColumnChoice) -> "Iterator[pl.DataFrame]":
    """A row with too few fields is an error; a blank line is nothing."""
    import polars as pl

    # A row that is too short lacks its last field, so that one is read along even where nobody asked for it.
    last = pl.col(file.columns[-1]).alias("last field")
    checked = False
    for batch in _batches(_scan_csv(file).select(*_by_role(choice), last)):
        if not checked and batch["last field"].has_nulls():
            checked = True
            if problem := _bad_csv_row(file):
                raise problem
        yield batch.filter(~pl.all_horizontal(pl.all().is_null())).drop("last field")


def _read_parquet(file: LogFile, choice: ColumnChoice) -> "Iterator[pl.DataFrame]":
    yield from _batches(_scan_parquet(file).select(_by_role(choice)))


def _read_jsonl(file: LogFile, choice: ColumnChoice) -> "Iterator[pl.DataFrame]":
    """Ids are read as text, since a column may hold numbers in one line and strings in the next."""
    import polars as pl

    text: dict[str, pl.DataType] = {name: pl.String() for name in vars(choice).values() if name}
    yield from _batches(_scan_jsonl(file, text).select(_by_role(choice)))


def _read_lines(file: LogFile, choice: ColumnChoice) -> "Iterator[pl.DataFrame]":
    """Each line is a user followed by one or more items; a user may have many lines."""
    import polars as pl

    assert choice == LINES
    first_line = 1
    for lines in _batches(pl.scan_lines(file.path, name="line", glob=False)):
        without_mark = pl.col("line").str.strip_prefix("\ufeff")
        words = lines.select(without_mark.str.extract_all(r"\S+").alias("words"))
        count = words["words"].list.len()
        if (count == 1).any():
            line = first_line + int((count == 1).arg_max() or 0)
            raise DataError(
                f"{file.path}:{line}: a user without an item. Expected 'user item' or 'user item item …'."
            )
        split = words.filter(count > 0).select(
            pl.col("words").list.first().alias("user"), pl.col("words").list.slice(1).alias("item")
        )
        yield split.explode("item")
        first_line += lines.height


def _explain(file: LogFile, error: Exception) -> DataError:
    """Find the place in the file that a reader stumbled over."""
    import polars as pl

    try:
        return _bad_csv_row(file) or _bad_json_line(file) or unreadable(file.path, error)
    except (OSError, pl.exceptions.PolarsError) as another:
        return unreadable(file.path, another)


def _bad_csv_row(file: LogFile) -> DataError | None:
    """The first row with too few or too many fields, by line; None where every row is complete.

    Quoted fields may hold separators and line ends: rows that span lines are left out.
    """
    if file.format != "csv":
        return None
    expected, inside_quotes = len(file.columns), False
    for number, line in _numbered_lines(file):
        quotes = line.count(file.quote) if file.quote else 0
        if not inside_quotes and quotes % 2 == 0 and line.strip():
            found = _count_fields(line, file.separator) if quotes else line.count(file.separator) + 1
            if found != expected:
                fields = f"{expected} fields separated by {file.separator!r}"
                return DataError(f"{file.path}:{number}: expected {fields}, found {found}.")
        inside_quotes ^= quotes % 2 == 1
    return None


def _count_fields(line: str, separator: str) -> int:
    return len(next(csv.reader([line], delimiter=separator)))


def _bad_json_line(file: LogFile) -> DataError | None:
    """The first line that is not a JSON object; None where all are."""
    if file.format != "jsonl":
        return None
    for number, line in _numbered_lines(file):
        try:
            if line.strip() and not isinstance(json.loads(line), dict):
                return DataError(
                    f"{file.path}:{number}: expected one JSON object a line, found {line[:40]!r}."
                )
        except json.JSONDecodeError as error:
            at = f"{error.msg} at character {error.pos + 1}"
            return DataError(f"{file.path}:{number}: not a line of JSON ({at}).")
    return None


def _numbered_lines(file: LogFile) -> Iterator[tuple[int, str]]:
    import polars as pl

    batches = _batches(pl.scan_lines(file.path, name="line", glob=False))
    return enumerate((line for batch in batches for line in batch.to_series()), start=1)
