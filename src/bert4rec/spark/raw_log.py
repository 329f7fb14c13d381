"""What Spark reads: files, tables and DataFrames as one raw log, whose rows know their place.

How text files are written and which columns are read is decided by the same code that reads logs on one machine, from
the first file of each source. Spark reads the rest on its executors.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import unquote

from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints, LogFile, ending_of, find_files
from bert4rec.logs.log import Part, plan
from bert4rec.logs.readers import LINES_TO_KNOW_KEYS_BY, LogFrame
from bert4rec.logs.unpack import open_files

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import Column, DataFrame, SparkSession

UNREADABLE = {
    "arrow": "an Arrow file",
    "lines": 'a file of "user item item …" lines',
    ".zip": "a .zip archive",
    ".xz": "compressed with xz",
    ".zst": "compressed with Zstandard",
}
"""What polars reads and Spark does not."""
BLANKS = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
BLANKS += "\u2028\u2029\u202f\u205f\u3000"
"""All that Unicode calls white space: what polars strips."""

_WHOLE_TYPES = dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "cast({} as bigint)")
_DATE_TYPES = {
    "date": "unix_date({}) * 86400000000L",
    "timestamp": "unix_micros({})",
    "timestamp_ntz": "timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01', {})",
}
_TIME_TYPES = {**_DATE_TYPES, **dict.fromkeys(("float", "double"), "nanvl(cast({} as double), NULL)")}
"""Type of a column → how it becomes microseconds or a number, in SQL."""
_LARGE_TYPES = {"tinyint": "long", "smallint": "long", "int": "long", "float": "double"}
FLOOR_DIVISION = "({0} - pmod({0}, {1})) div {1}"
"""In SQL, also of negative numbers."""


@dataclass(frozen=True)
class RawLog:
    """Every row as it was written, with nothing dropped."""

    rows: "DataFrame"
    """`source`, `file` (null if unknown) and `block` say which split a row is in, `id` rises within it; `user` and
    `item` are bigint or text; then `time` (bigint, double or text) and `title` if the log has them."""
    parts: Sequence[Part]
    """How each source is read."""
    files: Sequence[tuple[int, str | None]]
    """In the order of the log: the values of `source` and `file`."""
    time_types: "Sequence[pl.DataType | None]"
    """How each source stores times; if as dates, `time` is already in microseconds."""
    is_ordered: bool
    """Whether the rows have an order of their own; those of DataFrames and tables have none but that of partitions."""
    is_parsed: bool
    """Whether some of it is text, which costs much to read again."""

    @property
    def holds_dates(self) -> bool:
        """Whether the log stores times as dates."""
        return _is_date(self.time_types[0])


class ListsError(UsageError):
    """Where a row for each action was expected."""

    def __init__(self, table: "DataFrame", part: Part) -> None:
        super().__init__(
            f"{part.file.shown}: column {part.choice.item!r} holds lists, which Spark does not read here. Pass a row "
            "for each action, as the function explode of Spark makes them, or use `engine='embedded'`."
        )
        self.table = table


@dataclass(frozen=True)
class _Source:
    """One of the sources that the user named, and how it is read."""

    table: "DataFrame"
    part: Part
    time_type: "pl.DataType | None"
    is_file: bool = True
    only_file: str | None = None
    """The path of its file, if it is one: to tell rows apart by the path costs as much as to read them."""

    @property
    def files(self) -> list[str | None]:
        """What `file` is in its rows, in the order of the log."""
        if self.only_file or not self.is_file:
            return [self.only_file]
        # Java writes addresses in two ways.
        found = [re.sub("^file:/+", "file:/", file) for file in self.table.inputFiles()]
        return sorted(found, key=path_of)


def read_sources(
    spark: "SparkSession", sources: Sequence[str], request: ColumnRequest, hints: Hints
) -> RawLog:
    """The log that is in these files, folders, globs, addresses (s3a://…) or tables, in this order."""
    if hints.encoding:
        raise UsageError("`encoding`: Spark reads UTF-8. Recode the file, or use `engine='embedded'`.")
    seen: set[Path] = set()
    return _union([_open(spark, source, request, hints, seen) for source in sources])


def read_dataframe(frame: "DataFrame", request: ColumnRequest) -> RawLog:
    """The log that a DataFrame holds."""
    return _union([_of_table(frame, "the DataFrame", request)])


def _open(
    spark: "SparkSession", source: str, request: ColumnRequest, hints: Hints, seen: set[Path]
) -> _Source:
    """`seen` are the local files of earlier sources: each is read once."""
    if "://" in source:
        files = [unquote(file) for file in spark.read.text(source).inputFiles()]
        if not files:
            raise NotFoundError(f"{source} holds no files.")
        opened = _of_files(spark, [source], min(files), source, request, hints)
        return replace(opened, only_file=source if len(files) == 1 else None)
    try:
        found = [path for path in find_files([source]) if path not in seen]
    except NotFoundError:
        if re.fullmatch(r"[\w.`-]+", source) and spark.catalog.tableExists(source):
            return _of_table(spark.table(source), f"the table {source}", request)
        raise
    if not found:
        raise UsageError(f"{source} is named twice.")
    if hidden := next((path for path in found if path.name.startswith(("_", "."))), None):
        raise UsageError(f"{hidden}: Spark reads no files whose names begin with _ or a dot. Rename it.")
    seen.update(found)
    paths = [literal(f"file://{path.absolute()}") for path in found]
    opened = _of_files(spark, paths, str(found[0]), str(found[0]), request, hints)
    return replace(opened, only_file=str(found[0]) if len(found) == 1 else None)


def _of_table(
    table: "DataFrame",
    shown: str,
    request: ColumnRequest,
    *,
    is_file: bool = False,
    nanos: Sequence[str] = (),
) -> _Source:
    """A table that declares the types of its columns; `nanos` are times in nanoseconds, which Spark calls numbers."""
    import polars as pl

    empty = pl.DataFrame(table.limit(0).toArrow())
    empty = empty.with_columns(pl.col(name).cast(pl.Datetime("ns")) for name in nanos)
    part = plan([LogFrame(empty.lazy(), shown)], request)[0]
    if part.choice.lists:
        raise ListsError(table, part)
    return _Source(table, part, empty.schema[part.choice.time] if part.choice.time else None, is_file)


def _of_parquet(spark: "SparkSession", paths: list[str], shown: str, request: ColumnRequest) -> _Source:
    """Small and large numbers are read as large ones: one file may have these and the next those."""
    from pyspark.sql.types import StructType

    first = spark.read.parquet(*paths)
    large = StructType()
    for field in first.schema:
        large.add(field.name, _LARGE_TYPES.get(field.dataType.simpleString(), field.dataType))
    files = sorted(map(unquote, first.inputFiles()))
    nanos = _nanoseconds(spark, files[0]) if files else []
    opened = _of_table(first, shown, request, is_file=True, nanos=nanos)
    # As numbers, other times would pass for nanoseconds.
    for file in files if (time := opened.part.choice.time) in nanos else []:
        if time not in _nanoseconds(spark, file):
            raise DataError(
                f"{path_of(file)} does not store times in nanoseconds, as the first file does. Write all files alike, "
                "or use `engine='embedded'`."
            )
    return replace(opened, table=spark.read.schema(large).parquet(*paths))


def _nanoseconds(spark: "SparkSession", file: str) -> list[str]:
    """The columns of a Parquet file that are times in nanoseconds."""
    assert spark._jvm is not None
    conf, parquet = spark._jsc.hadoopConfiguration(), spark._jvm.org.apache.parquet.hadoop
    path = spark._jvm.org.apache.hadoop.fs.Path(file)
    reader = parquet.ParquetFileReader.open(parquet.util.HadoopInputFile.fromPath(path, conf))
    try:
        schema = reader.getFileMetaData().getSchema().toString()
    finally:
        reader.close()
    return re.findall(r"^  \w+ int64 (.+) \(TIMESTAMP\(NANOS,\w+\)\)", schema, re.MULTILINE)


def _of_files(
    spark: "SparkSession", paths: list[str], first: str, shown: str, request: ColumnRequest, hints: Hints
) -> _Source:
    """Files that are all written like the `first` of them."""
    import polars as pl

    if (compression := PurePosixPath(first).suffix.lower()) in UNREADABLE:
        raise _unreadable(shown, compression)
    if ending_of(first) in (".parquet", ".pq") or (Path(first).is_file() and _is_parquet(Path(first))):
        if hints.separator:
            raise UsageError(f"`separator` is for tables in text files, and {shown} is Parquet.")
        return _of_parquet(spark, paths, shown, request)
    with TemporaryDirectory(prefix="bert4rec-") as scratch:
        written = _inspect(spark, first, Path(scratch), hints)
        if written.format in UNREADABLE:
            raise _unreadable(shown, written.format)
        part = plan([replace(written, shown=shown)], request)[0]
    assert isinstance(part.file, LogFile)
    if part.choice.lists:
        raise ListsError(spark.read.json(paths), part)
    time_type = pl.String() if part.choice.time else None
    if written.format == "jsonl":
        keys = list(dict.fromkeys(part.choice.by_role().values()))
        return _Source(spark.read.json(paths, schema=_all_text(keys), mode="FAILFAST"), part, time_type)
    reader = spark.read.option("columnPruning", "false")  # or rows with too few fields would pass
    table = reader.csv(
        paths,
        schema=_all_text(part.file.columns),
        sep=part.file.separator,
        header=part.file.has_header,
        quote=part.file.quote or "",
        escape='"',
        mode="FAILFAST",
        # Of several files, each must have the columns of the first.
        enforceSchema=len(paths) == 1 and "://" not in first,
    )
    # A row of nothing is a blank line, as on one machine.
    last = [*part.choice.by_role().values(), part.file.columns[-1]]
    return _Source(table.dropna("all", subset=[_quoted(name) for name in last]), part, time_type)


def _inspect(spark: "SparkSession", first: str, scratch: Path, hints: Hints) -> LogFile:
    """How a text file is written; of one that is far away, the first lines are copied."""
    path = Path(first)
    if "://" in first:
        path = scratch / re.sub(r"\.(gz|bz2)$", "", PurePosixPath(first).name)
        text = spark.read.text(literal(first)).limit(LINES_TO_KNOW_KEYS_BY)
        lines = (row.value for row in text.toLocalIterator())
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    file = open_files([path], scratch, hints)[0]
    if file.path != path and path.suffix != ".bz2":
        raise UsageError(
            f"{first} is written in a way that Spark does not read: line ends of old, or blanks before quotes. Write "
            "it as Parquet, or use `engine='embedded'`."
        )
    return file


def _union(sources: Sequence[_Source]) -> RawLog:
    """All sources, one after the other, with the same types."""
    from pyspark.sql import functions as F

    roles = ["user", "item"]
    timed = [source.part.choice.time is not None for source in sources]
    if any(timed) and not all(timed):
        raise DataError(
            "Some sources have a time column and some have none. Name the column with `time`, or name only the "
            "sources that hold actions."
        )
    dates = [_is_date(source.time_type) for source in sources]
    if any(dates) and not all(dates):
        raise DataError("Some sources store times as dates and some do not. Write all in the same way.")
    roles += ["time"] * timed[0] + ["title"] * any(source.part.choice.title for source in sources)
    rows = _select(sources[0], 0, roles)
    for place, source in enumerate(sources[1:], start=1):
        more = _select(source, place, roles)
        for role in (role for role in roles if rows.schema[role].dataType != more.schema[role].dataType):
            rows, more = (table.withColumn(role, F.col(role).cast("string")) for table in (rows, more))
        rows = rows.union(more)
    return RawLog(
        rows.withColumn("id", F.monotonically_increasing_id()),
        [source.part for source in sources],
        files=[(place, file) for place, source in enumerate(sources) for file in source.files],
        time_types=[source.time_type for source in sources],
        is_ordered=all(source.is_file for source in sources),
        is_parsed=any(isinstance(source.part.file, LogFile) for source in sources),
    )


def _select(source: _Source, place: int, roles: Sequence[str]) -> "DataFrame":
    """What is read of a source, and which of its splits each row is in."""
    from pyspark.sql import functions as F

    file, block = F.lit(None).cast("string"), F.lit(0).cast("bigint")
    if source.is_file:
        file = F.lit(source.only_file) if source.only_file else F.col("_metadata.file_path")
        block = F.col("_metadata.file_block_start")
    split = (F.lit(place).alias("source"), file.alias("file"), block.alias("block"))
    return source.table.select(*split, *(_typed(source, role).alias(role) for role in roles))


def _typed(source: _Source, role: str) -> "Column":
    """The column of a role: whole numbers as bigint, dates as microseconds, the rest as text."""
    from pyspark.sql import functions as F

    name = getattr(source.part.choice, role)
    if name is None:
        return F.lit(None).cast("string")
    kind = source.table.schema[name].dataType.simpleString()
    if role == "time" and _is_date(source.time_type) and kind == "bigint":
        return F.expr(FLOOR_DIVISION.format(_quoted(name), 1000))
    converted = {"time": {**_WHOLE_TYPES, **_TIME_TYPES}, "title": {}}.get(role, _WHOLE_TYPES)
    if kind in converted:
        return F.expr(converted[kind].format(_quoted(name)))
    if kind in ("float", "double") and role != "title":
        return _whole(source, role, name)
    if kind == "string" or (role in ("user", "item") and re.match("boolean|date$|decimal", kind)):
        return F.col(_quoted(name)).cast("string")
    expected = {"time": "dates or numbers since 1970", "title": "text"}.get(role, "whole numbers or text")
    raise DataError(
        f"`{role}`: column {name!r} of {source.part.file.shown} holds {kind}. Expected {expected}."
    )


def _whole(source: _Source, role: str, name: str) -> "Column":
    """Ids that are stored as floats, as bigint; fractions are refused."""
    from pyspark.sql import functions as F

    column = F.col(_quoted(name))
    whole = column.try_cast("bigint")
    fraction = source.table.filter(column != whole).select(column).first()
    if fraction is not None:
        raise DataError(
            f"{source.part.file.shown}: the {role} column holds fractions such as {fraction[0]}. Ids must be whole "
            "numbers or text."
        )
    return whole


def _is_date(kind: "pl.DataType | None") -> bool:
    import polars as pl

    return isinstance(kind, pl.Date | pl.Datetime)


def path_of(file: str | None) -> PurePosixPath:
    """The path of a file, of which Spark gives the address."""
    return PurePosixPath(unquote(file or "").removeprefix("file:"))


def literal(path: str) -> str:
    """A path that Spark does not take for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _all_text(names: Sequence[str]) -> str:
    return ", ".join(f"{_quoted(name)} string" for name in names)


def _quoted(name: str) -> str:
    """A column's name as SQL takes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _unreadable(shown: str, kind: str) -> UsageError:
    return UsageError(
        f"{shown} is {UNREADABLE[kind]}, which Spark does not read. Write it as Parquet, or use `engine='embedded'`."
    )
