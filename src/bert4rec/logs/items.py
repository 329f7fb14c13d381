"""Catalogues: titles and other columns of items, from a file or frame of their own."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bert4rec.errors import DataError, UsageError
from bert4rec.logs.columns import guess_columns
from bert4rec.logs.files import EncodingError, Hints, LogFile
from bert4rec.logs.log import ids_as_text, trim_titles, whole_numbers
from bert4rec.logs.readers import LogFrame, LogSource, column_types, declares_text, read_columns
from bert4rec.logs.unpack import open_files

if TYPE_CHECKING:
    import polars as pl

_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


def read_items(source: Path | LogFrame, encoding: str | None = None) -> "pl.DataFrame":
    """Every column of a catalogue, with the item's id as `id` and its title, if there is one, as `title`.

    An item that is listed twice keeps its first row. Ids are text, written as those of a log would be. `encoding` is
    that of the log: it is used if this file is not UTF-8.
    """
    if isinstance(source, LogFrame):
        return _read_items(source)
    with TemporaryDirectory(prefix="bert4rec-") as scratch:
        try:
            return _read_items(_open(source, Path(scratch), Hints()))
        except EncodingError:
            if encoding is None:
                raise
            return _read_items(_open(source, Path(scratch), Hints(encoding)))


def _open(path: Path, scratch: Path, hints: Hints) -> LogFile:
    files = open_files([path], scratch, hints)
    if len(files) > 1:
        shown = ", ".join(file.shown for file in files[:8]) + (", …" if len(files) > 8 else "")
        raise UsageError(f"`items`: {path} holds {len(files)} files: {shown}. Name one of them.")
    return files[0]


def _read_items(file: LogSource) -> "pl.DataFrame":
    import polars as pl

    types = column_types(file)
    names = list(types)
    roles = guess_columns(names)
    plain_id = next((name for name in names if name.lower() == "id"), None)
    guessed = roles.get("item")
    # "item_id" is surely the id; of "id" and "movie", "id" is.
    id_column = (
        guessed if guessed and (guessed.lower().endswith(("id", "asin", "sku")) or not plain_id) else plain_id
    )
    if id_column is None or (file.format == "csv" and not file.has_header):
        raise DataError(
            f"`items`: no column of {file.shown} looks like the item's id. Columns: {', '.join(names)}. "
            "Name the column 'item_id' and, for readable output, add one called 'title'."
        )
    others = [name for name in names if name == id_column or name != "id"]
    table = read_columns(file, others).rename({id_column: "id"})
    if "title" in roles and "title" not in table.columns:
        table = table.rename({roles["title"]: "title"})
    first = ["id", "title"] if "title" in table.columns else ["id"]
    ids = ids_as_text(table["id"], file.shown)
    if not declares_text(file, types[id_column]) and (integers := whole_numbers(ids)) is not None:
        ids = integers.cast(pl.String)
    if file.format == "csv":
        table = table.with_columns(_typed(table[name]) for name in table.columns if name not in first)
    table = trim_titles(table).select(*first, pl.exclude(first)).with_columns(ids)
    return table.unique("id", keep="first", maintain_order=True)


def _typed(texts: "pl.Series") -> "pl.Series":
    """A column of a text file as numbers, dates or true and false, if all its values are; otherwise as it is.

    Codes that begin with 0, such as "007", are no numbers.
    """
    import polars as pl

    given = texts.str.strip_chars()
    given = given.set(given == "", None)
    if given.null_count() == len(given):
        return texts
    if given.str.contains(_NUMBER).all():
        whole = given.cast(pl.Int64, strict=False)
        return given.cast(pl.Float64) if whole.null_count() > given.null_count() else whole
    if given.str.to_lowercase().is_in(["true", "false"]).all():
        return given.str.to_lowercase() == "true"
    if given.str.contains(_DATE).all():
        days = given.str.to_date("%Y-%m-%d", strict=False)
        return texts if days.null_count() > given.null_count() else days
    return texts


def join_items(known: "pl.DataFrame | None", more: "pl.DataFrame") -> "pl.DataFrame":
    """Two catalogues as one: rows and columns of both; `more` wins if both have a value."""
    import polars as pl

    if known is None:
        return more
    both = more.join(
        known.with_columns(pl.col("id").cast(pl.String)),
        on="id",
        how="full",
        coalesce=True,
        suffix=" of the log",
    )
    doubled = [name for name in both.columns if name.endswith(" of the log")]
    for name in doubled:
        original = name.removesuffix(" of the log")
        both = both.with_columns(pl.coalesce(original, name).alias(original)).drop(name)
    return both
