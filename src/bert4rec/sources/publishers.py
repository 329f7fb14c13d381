"""The publishers' file formats: how each writes its log, and what its items are called.

A reader yields frames in the order of the file, with columns `user` and `item` (String) and, if the file
has times, `time` (Int64, microseconds since 1970). Compressed files (.gz, .zst) are read as they are, a batch
of lines at a time, so memory stays bounded. A line that cannot be read is an error that names file and line; an id
that is not there comes back as missing, for the caller to count.
"""

import csv
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.errors import DataError
from bert4rec.logs.files import first_lines, unreadable
from bert4rec.logs.readers import in_batches
from bert4rec.sources.notations import JSON, PYTHON, Notation, as_text

if TYPE_CHECKING:
    import polars as pl

SECOND = 1_000_000
"""In microseconds."""
COMPRESSIONS = ("", ".gz", ".zst")
"""What a copy of a published file may have behind its name."""
BYTE_ORDER_MARK = "\ufeff"
"""What some editors put before the first line."""
# fmt: off
ML_100K_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)
# fmt: on
"""In the order of the flags in `u.item`."""

Reader = Callable[[Path], "Iterator[pl.DataFrame]"]
ItemReader = Callable[[Path], "pl.DataFrame"]


@dataclass(frozen=True)
class Format:
    """One way in which a data set is published."""

    description: str
    """What a line holds, for messages."""
    file_names: tuple[str, ...]
    """What the publisher calls such a file, when it is not compressed."""
    begins_right: Callable[[str], bool]
    """Whether this can be the first line of such a file."""
    read: Reader
    item_names: tuple[str, ...] = ()
    """What the publisher calls the file that describes the items."""
    read_items: ItemReader | None = None
    filtered: bool = False
    """Rare items were dropped before publication."""


def read_ml_100k(path: Path) -> "Iterator[pl.DataFrame]":
    """`u.data`: user, item, rating and seconds since 1970, separated by tabs."""
    return _read_ratings(path, "\t")


def read_ml_1m(path: Path) -> "Iterator[pl.DataFrame]":
    """`ratings.dat`: user::item::rating::seconds."""
    return _read_ratings(path, "::")


def read_ml_20m(path: Path) -> "Iterator[pl.DataFrame]":
    """`ratings.csv` of MovieLens 20M and the later ones: a header, then user,item,rating,seconds."""
    return _read_ratings(path, ",", header=True)


def read_amazon_ratings(path: Path) -> "Iterator[pl.DataFrame]":
    """`ratings_Beauty.csv`: user,item,rating,seconds; some copies have a header."""
    return _read_ratings(path, ",", header=True)


def read_amazon_reviews(path: Path) -> "Iterator[pl.DataFrame]":
    """`reviews_Beauty.json.gz`: one review per line, as JSON or, in older copies, as a Python dictionary."""
    import polars as pl

    seconds = pl.col("time").cast(pl.Int64, strict=False) * SECOND
    return _read_reviews(path, ("reviewerID", "asin", "unixReviewTime"), seconds, "seconds since 1970")


def read_steam(path: Path) -> "Iterator[pl.DataFrame]":
    """`steam_reviews.json.gz`: one review per line, as a dictionary of Python 2, with the day it was written."""
    import polars as pl

    day = pl.col("time").str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")).cast(pl.Int64)
    return _read_reviews(path, ("username", "product_id", "date"), day, "a day such as 2018-01-05")


def read_pairs(path: Path) -> "Iterator[pl.DataFrame]":
    """The paper's authors' own files: "user item" per line, oldest first, no times."""
    import polars as pl

    words = (
        pl.col("line").str.strip_chars().str.replace_all("\t", " ", literal=True).str.splitn(" ", 2).struct
    )
    columns = (words.field("field_0").alias("user"), words.field("field_1").alias("item"))
    for frame in _parse_lines(path, lambda lines: lines.select("number", *columns)):
        wrong = frame["item"].is_null() | frame["item"].str.contains(" ", literal=True)
        _refuse(path, frame["number"].filter(wrong), "two words, the user and the item")
        yield frame.drop("number")


def read_ml_100k_items(path: Path) -> "pl.DataFrame":
    """`u.item`: id|title|release date|…|, then a 0 or 1 for each of 19 genres; Latin-1."""
    rows = []
    for number, title, _, _, _, *flags in _fields_of_lines(path, "|", 5 + len(ML_100K_GENRES)):
        genres = [genre for genre, flag in zip(ML_100K_GENRES, flags, strict=True) if flag == "1"]
        rows.append((number, title, "|".join(genres)))
    return _items(path, rows, ("id", "title", "genres"))


def read_ml_1m_items(path: Path) -> "pl.DataFrame":
    """`movies.dat`: id::title::genres; Latin-1."""
    return _items(path, _fields_of_lines(path, "::", 3), ("id", "title", "genres"))


def read_ml_20m_items(path: Path) -> "pl.DataFrame":
    """`movies.csv`: a header, then id,title,genres; a title with a comma is quoted."""
    reader = csv.reader(_text_lines(path))
    rows = []
    for fields in reader:
        if len(fields) != 3:
            raise DataError(
                f"{path}:{reader.line_num}: expected 3 fields, found {len(fields)}: {fields!r:.80}."
            )
        rows.append(tuple(fields))
    return _items(path, rows[1:], ("id", "title", "genres"))


def read_amazon_items(path: Path) -> "pl.DataFrame":
    """`meta_Beauty.json.gz`: one product per line, as a Python dictionary. Many products have no title."""
    import polars as pl

    columns = {"asin": "id", "title": "title", "brand": "brand", "categories": "categories"}
    return _first_of_each(pl.concat(_records(path, tuple(columns))).rename(columns))


def read_steam_items(path: Path) -> "pl.DataFrame":
    """`steam_games.json.gz`: one game per line, as a dictionary of Python 2. Games without title have an `app_name`."""
    import polars as pl

    games = pl.concat(_records(path, ("id", "title", "app_name", "genres")))
    return _first_of_each(
        games.select("number", "id", pl.coalesce("title", "app_name").alias("title"), "genres")
    )


def _read_ratings(path: Path, separator: str, *, header: bool = False) -> "Iterator[pl.DataFrame]":
    """Lines of user, item, rating and seconds. With `header`, a first line without seconds is one."""
    import polars as pl

    # The last of four parts takes all that is left, so that a fifth field shows as a time that is not a number.
    fields = pl.col("line").str.splitn(separator, 4).struct
    columns = (
        fields.field("field_0").alias("user"),
        fields.field("field_1").alias("item"),
        (fields.field("field_3").cast(pl.Int64, strict=False) * SECOND).alias("time"),
    )
    expected = f"4 fields separated by {separator!r}, the last the time in seconds since 1970"
    for frame in _parse_lines(path, lambda lines: lines.select("number", *columns)):
        is_header = header and frame.item(0, "number") == 1 and frame.item(0, "time") is None
        rows = frame.slice(1) if is_header else frame
        _refuse(path, rows["number"].filter(rows["time"].is_null()), expected)
        yield rows.drop("number")


def _read_reviews(
    path: Path, keys: tuple[str, str, str], to_time: "pl.Expr", kind_of_time: str
) -> "Iterator[pl.DataFrame]":
    """Reviews with the given keys for user, item and time. `to_time` makes microseconds of the column `time`."""
    for records in _records(path, keys):
        frame = records.rename(dict(zip(keys, ("user", "item", "time"), strict=True)))
        parsed = frame.with_columns(to_time.alias("time"))
        wrong = frame["time"].is_not_null() & parsed["time"].is_null()
        _refuse(path, frame["number"].filter(wrong), f"{keys[2]!r} to be {kind_of_time}")
        yield parsed.drop("number")


def _records(path: Path, keys: tuple[str, ...]) -> "Iterator[pl.DataFrame]":
    """The values under `keys`, as text, of one dictionary per line, beside the `number` of the line."""
    import polars as pl

    notation = JSON if _first_line(path).startswith('{"') else PYTHON
    for frame in _parse_lines(path, lambda lines: notation.split(lines, keys)):
        decoded = frame.with_columns(notation.decode(frame[key]) for key in keys)
        unusual = frame["unusual"].is_not_null().arg_true()
        if len(unusual):
            records = [
                _record(path, number, line, notation)
                for number, line in frame[unusual].select("number", "unusual").rows()
            ]
            values = {
                key: pl.Series([as_text(record.get(key)) for record in records], dtype=pl.String)
                for key in keys
            }
            decoded = decoded.with_columns(decoded[key].scatter(unusual, values[key]) for key in keys)
        yield decoded.drop("unusual")


def _record(path: Path, number: int, line: str, notation: Notation) -> dict[str, object]:
    record = notation.parse(line)
    if not isinstance(record, dict):
        raise DataError(
            f"{path}:{number}: expected a dictionary as {notation.name} writes it, found {line!r:.80}."
        )
    return record


def _parse_lines(path: Path, parse: "Callable[[pl.LazyFrame], pl.LazyFrame]") -> "Iterator[pl.DataFrame]":
    """Run `parse` over columns `number` (from 1) and `line` of every line that is not blank."""
    import polars as pl

    lines = pl.scan_lines(path, glob=False, row_index_name="number", row_index_offset=1)
    lines = lines.with_columns(pl.col("line").str.strip_prefix(BYTE_ORDER_MARK)).filter(pl.col("line") != "")
    empty = True
    try:
        for frame in in_batches(parse(lines)):
            if not frame.is_empty():
                empty = False
                yield frame
    except (OSError, pl.exceptions.PolarsError) as error:
        raise unreadable(path, error) from error
    if empty:
        raise DataError(f"{path} is empty.")


def _refuse(path: Path, numbers: "pl.Series", expected: str) -> None:
    """Raise for the first of the lines with these numbers, if there is one."""
    import polars as pl

    if len(numbers):
        number = int(numbers[0])
        line = pl.scan_lines(path, glob=False).slice(number - 1, 1).collect().item()
        more = f" {len(numbers) - 1:,} lines after it have the same error." if len(numbers) > 1 else ""
        raise DataError(f"{path}:{number}: expected {expected}, found {line!r:.80}.{more}")


def _first_line(path: Path) -> str:
    return next((line for line in first_lines(path) if line), "").removeprefix(BYTE_ORDER_MARK)


def _fields_of_lines(path: Path, separator: str, count: int) -> list[tuple[str, ...]]:
    rows = []
    for number, line in enumerate(_text_lines(path), start=1):
        fields = line.split(separator)
        if len(fields) != count:
            expected = f"expected {count} fields separated by {separator!r}"
            raise DataError(f"{path}:{number}: {expected}, found {len(fields)}: {line!r:.80}.")
        rows.append(tuple(fields))
    return rows


def _text_lines(path: Path) -> list[str]:
    """All lines of a small text file: UTF-8, or else the Latin-1 of the older files."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}. Copy or download it again.") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _items(path: Path, rows: Sequence[tuple[str, ...]], columns: tuple[str, ...]) -> "pl.DataFrame":
    import polars as pl

    if not rows:
        raise DataError(f"{path} is empty.")
    return _first_of_each(pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row"))


def _first_of_each(items: "pl.DataFrame") -> "pl.DataFrame":
    return items.drop("number", strict=False).drop_nulls("id").unique("id", keep="first", maintain_order=True)


def _is_rating(separator: str) -> Callable[[str], bool]:
    def test(line: str) -> bool:
        fields = line.split(separator)
        return len(fields) == 4 and fields[3].strip().isdecimal()

    return test


def _is_header(*names: str) -> Callable[[str], bool]:
    return lambda line: line.strip().replace('"', "").lower() == ",".join(names)


def _is_record(*keys: str) -> Callable[[str], bool]:
    return lambda line: line.startswith("{") and all(re.search(rf"""['"]{key}['"]: """, line) for key in keys)


def _is_amazon_rating(line: str) -> bool:
    return _is_rating(",")(line) or _is_header("userid", "productid", "rating", "timestamp")(line)


def authors_file(source: str) -> Format:
    """The file that the paper's authors made of a source, with ids of their own, so without titles."""
    return Format(
        description='"user item" per line',
        file_names=(f"{source}.txt",),
        begins_right=lambda line: len(line.split()) == 2,
        read=read_pairs,
        filtered=True,
    )


ML_100K = Format(
    description="user, item, rating and time separated by tabs",
    file_names=("u.data",),
    begins_right=_is_rating("\t"),
    read=read_ml_100k,
    item_names=("u.item",),
    read_items=read_ml_100k_items,
)
ML_1M = Format(
    description="user::item::rating::time",
    file_names=("ratings.dat",),
    begins_right=_is_rating("::"),
    read=read_ml_1m,
    item_names=("movies.dat",),
    read_items=read_ml_1m_items,
)
ML_20M = Format(
    description="CSV with the header userId,movieId,rating,timestamp",
    file_names=("ratings.csv",),
    begins_right=_is_header("userid", "movieid", "rating", "timestamp"),
    read=read_ml_20m,
    item_names=("movies.csv",),
    read_items=read_ml_20m_items,
)
AMAZON_RATINGS = Format(
    description="user,item,rating,time",
    file_names=("ratings_Beauty.csv",),
    begins_right=_is_amazon_rating,
    read=read_amazon_ratings,
    item_names=("meta_Beauty.json",),
    read_items=read_amazon_items,
)
AMAZON_REVIEWS = Format(
    description="one review per line with reviewerID, asin and unixReviewTime",
    file_names=("reviews_Beauty.json",),
    begins_right=_is_record("reviewerID", "asin", "unixReviewTime"),
    read=read_amazon_reviews,
    item_names=("meta_Beauty.json",),
    read_items=read_amazon_items,
)
STEAM = Format(
    description="one review per line with username, product_id and date",
    file_names=("steam_reviews.json",),
    begins_right=_is_record("username", "product_id", "date"),
    read=read_steam,
    item_names=("steam_games.json",),
    read_items=read_steam_items,
)
