"""From a raw log to complete actions, on the executors: ids, times, what was dropped, and the order of the rows.

What is decided for the log as a whole (how times are written, whether ids are numbers) is decided as it is on one
machine. Dates and whole numbers are converted by Spark itself; other times by the code that one machine uses, in the
Python of the executors.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from bert4rec.errors import DataError, UsageError
from bert4rec.logs.log import describe_missing
from bert4rec.logs.readers import ROWS_PER_BATCH
from bert4rec.logs.times import EARLIEST, LATEST, MICROSECONDS_PER, MOST_EXAMPLES, TimeReader, without_blanks
from bert4rec.spark.raw_log import BLANKS, FLOOR_DIVISION, RawLog, literal, path_of

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Row

WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
"""How a whole number is written; 007 is a name."""


PLACES = 33
"""Bits of Spark's rising ids that count within a partition."""
MOST_SENT, BYTES_A_ROW = 1 << 26, 48
"""Bytes of a table that is sent to all executors, by way of the driver; what a row takes there besides its content."""


def sent(table: "DataFrame") -> "DataFrame":
    """A table that is to be joined with a larger one, and that is sent to all executors if it is small.

    Spark would go by its bytes, compressed: of ids that can be compressed well, so many are sent that the driver runs
    out of memory.
    """
    from pyspark.sql import functions as F

    sizes = [F.octet_length(name) if _is_text(table, name) else F.lit(8) for name in table.columns]
    size = table.agg(F.sum(sum(sizes, F.lit(BYTES_A_ROW))).alias("size")).first()
    assert size is not None
    return F.broadcast(table) if (size.size or 0) <= MOST_SENT else shuffled(table)


def shuffled(table: "DataFrame") -> "DataFrame":
    """A table that is joined where its rows are, and never sent to all executors."""
    return table.hint("merge")


class Shelf(ExitStack):
    """Tables that are kept on the executors' disks until the block ends."""

    def keep(self, table: "DataFrame") -> "DataFrame":
        """The same table, computed once."""
        from pyspark import StorageLevel

        kept = table.persist(StorageLevel.DISK_ONLY)
        self.callback(kept.unpersist)
        return kept

    def keep_apart(self, table: "DataFrame") -> "DataFrame":
        """The same table, computed once, whose plan begins with itself.

        Spark's plans are trees: where one is made of another twice, in turn, they grow beyond all bounds. A checkpoint
        would end them as well, but would be lost with its executor.
        """
        from pyspark.sql import DataFrame

        spark = table.sparkSession
        rows = spark._jsparkSession.createDataFrame(table._jdf.toJavaRDD(), table._jdf.schema())
        return self.keep(DataFrame(rows, spark))


@dataclass(frozen=True)
class SparkLog:
    """Complete actions, not yet filtered."""

    actions: "DataFrame"
    """`row` (in the order of the log), `user`, `item` (bigint or text), `time` (microseconds) and `title` if known."""
    notes: list[str]


def read_complete(
    raw: RawLog, shelf: Shelf, time_format: str | None = None, *, drop_bad_rows: bool = False
) -> SparkLog:
    """Every action that has a user, an item and, if the log has times, a time."""
    from pyspark.sql import functions as F

    rows = raw.rows if raw.is_ordered else shelf.keep(raw.rows)  # Another reading may find another order.
    where, column = raw.parts[0].file.shown, raw.parts[0].choice.time
    if time_format is not None and not column:
        raise UsageError(
            f"`time_format` requires a time column, and {where} has none. Name the column with `time`."
        )
    times = TimeReader(column, time_format) if column else None
    rows = _with_times(rows, times, raw) if times else rows.withColumn("bad", F.lit(None).cast("string"))
    text_ids = {role for part in raw.parts for role in part.text_ids}
    undecided = [role for role in ("user", "item") if _is_text(rows, role) and role not in text_ids]
    written, rows = rows, _without_blanks(rows)
    splits = _in_order_of_log(_survey(rows, undecided))
    if not _total(splits, "blanks"):
        rows = written  # To look for blanks takes as long as to read.
    notes = _notes(raw, splits)
    if times:
        _count_bad_times(times, rows, splits, raw)
        notes += times.settle(drop_bad_rows=drop_bad_rows)
    _refuse_other_columns(raw, splits)
    missing = {role: _total(splits, f"no {role}") for role in _roles(rows)}
    # Without a filter, what counts users need not read items and times.
    lacks_nothing = not any(missing.values()) and not _total(splits, "bad")
    complete = _with_row(rows if lacks_nothing else rows.filter(_is_complete(rows)), splits)
    for role in undecided:
        if all(split[f"whole {role}"] is not False for split in splits):
            complete = complete.withColumn(role, _without_point(F.col(role)).cast("bigint"))
    columns = ["row", *_roles(rows), *(["title"] if "title" in rows.columns else [])]
    complete = complete.select(columns)
    if raw.is_parsed:  # Columns of a file are as fast to read as what would be kept of them.
        complete = shelf.keep(complete)
    return SparkLog(complete, notes + describe_missing(missing))


def _with_times(rows: "DataFrame", times: TimeReader, raw: RawLog) -> "DataFrame":
    """`time` in microseconds, and `bad`, the text of what is not a time."""
    import polars as pl
    from pyspark.sql import functions as F

    where = raw.parts[0].file.shown
    if raw.holds_dates:
        example = pl.Series([0]).cast(pl.Datetime("us"))
        times.learn(example)
        times.convert(example, where)  # Refuses a format: dates have none.
        micros = F.col("time")
    else:
        _learn(times, rows, raw)
        is_whole = rows.schema["time"].dataType.simpleString() == "bigint"
        if times.unit not in MICROSECONDS_PER or not is_whole:
            return rows.mapInArrow(_reader_of(times, where), _and_bad(rows))
        micros = _epoch(MICROSECONDS_PER[times.unit])
    is_time = F.coalesce(micros.between(EARLIEST, LATEST), F.lit(False))
    bad = F.when(F.col("time").isNotNull() & ~is_time, F.col("time").cast("string"))
    return rows.withColumn("bad", bad).withColumn("time", micros)


def _learn(times: TimeReader, rows: "DataFrame", raw: RawLog) -> None:
    """How times are written, from the first ones of the log. Spark itself may read another file first."""
    import polars as pl
    from pyspark.sql import functions as F

    timed = rows.filter(F.col("time").isNotNull())
    for source, file in raw.files:
        if times.unit is not None:
            return
        here = timed.filter(F.col("source") == source)
        first = pl.Series("time", [], dtype=pl.Null)
        some = _beginnings(here.filter(F.col("file") == file) if file else here)
        for frame in stream(some.select("time")):
            first = pl.concat([first.cast(frame.schema["time"]), without_blanks(frame["time"]).drop_nulls()])
            if len(first) >= ROWS_PER_BATCH:
                break
        times.learn(first.head(ROWS_PER_BATCH))


def _epoch(factor: float) -> "Column":
    """The whole numbers of `time` in microseconds. Never as floats, which have too few digits for nanoseconds."""
    from pyspark.sql import functions as F

    if factor >= 1:
        return F.try_multiply(F.col("time"), F.lit(int(factor)))
    per_microsecond = round(1 / factor)
    return F.expr(FLOOR_DIVISION.format("time", per_microsecond))


def _and_bad(rows: "DataFrame") -> str:
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema} | {
        "time": "bigint",
        "bad": "string",
    }
    return ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())


def _reader_of(
    times: TimeReader, where: str
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """Reads times on the executors, a batch of rows at a time."""

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import polars as pl
        import pyarrow as pa

        for batch in batches:
            place = batch.schema.get_field_index("time")
            values = without_blanks(pl.Series(batch.column(place)))
            micros, is_bad = times.convert(values, where)
            bad = values.cast(pl.String).set(~is_bad, None).to_arrow(compat_level=pl.CompatLevel.oldest())
            converted = batch.set_column(place, "time", micros.to_arrow())
            yield converted.append_column("bad", bad.cast(pa.string()))

    return read


def _is_text(rows: "DataFrame", role: str) -> bool:
    return rows.schema[role].dataType.simpleString() == "string"


def _roles(rows: "DataFrame") -> list[str]:
    """What an action must have, in the order in which it is missed."""
    return [role for role in ("user", "item", "time") if role in rows.columns]


def _without_blanks(rows: "DataFrame") -> "DataFrame":
    """Text without blanks around it, and `blanks`: whether there may have been some.

    What begins and ends with a sign of ASCII has none. To see that is much faster than to trim, and the last byte is
    found faster than the last sign.
    """
    from pyspark.sql import functions as F

    has_none, texts = F.lit(True), dict[str, "Column"]()
    for role in rows.columns:
        if role not in ("user", "item", "title") or not _is_text(rows, role):
            continue
        text, last = F.col(role), F.substring(F.col(role).cast("binary"), -1, 1)
        is_plain = (text >= "!") & (text < "\x7f") & (last >= F.lit(b"!")) & (last < F.lit(b"\x7f"))
        has_none &= F.coalesce(is_plain, F.lit(True))
        texts[role] = F.when(is_plain, text).otherwise(F.btrim(text, F.lit(BLANKS)))
    return rows.withColumns({**texts, "blanks": ~has_none})


def _lacks(rows: "DataFrame", role: str) -> "Column":
    from pyspark.sql import functions as F

    return F.col(role).isNull() | (F.col(role) == "") if _is_text(rows, role) else F.col(role).isNull()


def _is_complete(rows: "DataFrame") -> "Column":
    from pyspark.sql import functions as F

    complete = F.col("bad").isNull()
    for role in _roles(rows):
        complete &= ~_lacks(rows, role)
    return complete


def _without_point(text: "Column") -> "Column":
    """Whole numbers that were stored as floats lose their '.0'."""
    from pyspark.sql import functions as F

    return F.regexp_replace(text, r"\.0+$", "")


def _survey(rows: "DataFrame", undecided: Sequence[str]) -> "list[Row]":
    """For each split of the log: where its rows begin, what they lack, whether all ids look like numbers."""
    from pyspark.sql import functions as F

    found = [F.min("id").alias("first"), F.count("*").alias("rows"), F.count("bad").alias("bad")]
    found.append(F.count_if("blanks").alias("blanks"))
    left = F.col("bad").isNull()
    for role in _roles(rows):
        found.append(F.count_if(left & _lacks(rows, role)).alias(f"no {role}"))
        left &= ~_lacks(rows, role)
    for role in undecided:
        number = _without_point(F.col(role))
        is_whole = number.rlike(WHOLE) & number.try_cast("bigint").isNotNull()
        # Most names begin with a letter, which is seen many times as fast as that they match no pattern.
        is_name = F.when(left & (F.col(role) >= ":"), F.lit(False))
        found.append(F.bool_and(is_name.when(left, is_whole)).alias(f"whole {role}"))
    found.append(F.count_if(left).alias("complete"))
    if "time" in rows.columns:
        found.append(F.count_if(F.col("bad").isNull() & F.col("time").isNull()).alias("untimed"))
    return rows.groupBy("source", "file", "block").agg(*found).collect()


def _in_order_of_log(splits: "Sequence[Row]") -> "list[Row]":
    return sorted(splits, key=lambda split: (split.source, path_of(split.file), split.block))


def _with_row(rows: "DataFrame", splits: "Sequence[Row]") -> "DataFrame":
    """`row`: rising in the order of the log. Spark may read files and their splits in another order."""
    from pyspark.sql import functions as F

    firsts = [split.first for split in splits]
    if firsts == sorted(firsts):
        return rows.withColumn("row", F.col("id"))
    shifts, start = [], 0
    for split in splits:
        shifts.append((split.source, split.file, split.block, start - split.first))
        start += split.rows
    table = rows.sparkSession.createDataFrame(shifts, "source int, file string, block bigint, shift bigint")
    joined = rows.join(F.broadcast(table), ["source", "file", "block"])
    return joined.withColumn("row", F.col("id") + F.col("shift"))


def _total(splits: "Sequence[Row]", name: str) -> int:
    return sum(split[name] for split in splits)


def _count_bad_times(times: TimeReader, rows: "DataFrame", splits: "Sequence[Row]", raw: RawLog) -> None:
    """Tell `times` how many values are not times, with the first few as examples."""
    from pyspark.sql import functions as F

    times.count = _total(splits, "rows") - _total(splits, "untimed")
    times.bad = _total(splits, "bad")
    if not times.bad:
        return
    first = _with_row(rows.filter(F.col("bad").isNotNull()), splits).orderBy("row").limit(MOST_EXAMPLES)
    for row in first.collect():
        where, kind = raw.parts[row.source].file.shown, raw.time_types[row.source]
        assert kind is not None
        value = _as_stored(row.bad, kind)
        shown = where if row.file is None else path_of(row.file)
        times.add_example(
            value[0], times.convert(value, where)[0][0], f"{shown}, row {_row_of_file(row, splits)}"
        )


def _as_stored(bad: str, kind: "pl.DataType") -> "pl.Series":
    """What is not a time, as the log has it: text, a number, or a date, which `bad` has in microseconds."""
    import polars as pl

    if not kind.is_temporal():
        return pl.Series([bad]).cast(kind)
    moment = pl.Series([int(bad)]).cast(pl.Datetime("us"))
    return moment.dt.replace_time_zone(kind.time_zone) if isinstance(kind, pl.Datetime) else moment.cast(kind)


def _refuse_other_columns(raw: RawLog, splits: "Sequence[Row]") -> None:
    """Refuse a file without a single action if that is because its columns have other names than in the first file."""
    spark = raw.rows.sparkSession
    useless = {(split.source, split.file) for split in splits if split.file} - {
        (split.source, split.file) for split in splits if split.complete
    }
    for source, file in sorted(useless & set(raw.files[1:])):
        part = raw.parts[source]
        if part.file.format == "csv" or ":/" not in file:
            continue  # Spark itself compares headers, and a source of one file is read as that file is written.
        reader = spark.read.json if part.file.format == "jsonl" else spark.read.parquet
        columns = reader(literal(unquote(file))).columns
        for role in ("user", "item", "time"):
            name = part.choice.by_role().get(role)
            if name and name not in columns:
                raise DataError(
                    f"{path_of(file)} has no column {name!r}, which the first file has; its columns are "
                    f"{', '.join(columns)}. Write all files alike, or use `engine='embedded'`."
                )


def _row_of_file(row: "Row", splits: "Sequence[Row]") -> int:
    """Which row of its file a row is, from 1."""
    same = [split for split in splits if (split.source, split.file) == (row.source, row.file)]
    before = sum(split.rows for split in same if split.block < row.block)
    split = next(split for split in same if split.block == row.block)
    return int(before + row.id - split.first + 1)


def _beginnings(rows: "DataFrame") -> "DataFrame":
    """Of each partition as many rows as are needed: all of one may be more than the driver can take."""
    from pyspark.sql import functions as F

    place = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << PLACES) - 1))
    return rows.withColumn("place", place).filter(F.col("place") < ROWS_PER_BATCH)


def _notes(raw: RawLog, splits: "Sequence[Row]") -> list[str]:
    files = len({(split.source, split.file) for split in splits})
    notes = [f"Read {files:,} files."] if files > 1 else []
    notes += dict.fromkeys(f"Columns: {part.choice.describe()}." for part in raw.parts)
    return notes if raw.is_ordered else [*notes, "The order of the rows is that of Spark's partitions."]


def stream(table: "DataFrame") -> "Iterator[pl.DataFrame]":
    """The rows of a table in their order, one partition after the other."""
    import polars as pl

    for row in one_by_one(table.mapInArrow(_to_bytes, "batch binary")):
        yield pl.read_ipc_stream(bytes(row.batch))


def one_by_one(table: "DataFrame") -> "Iterator[Row]":
    """The rows of a table in their order; the driver holds a partition and the next.

    As rows of an RDD. Those of a DataFrame belong to a query, and Spark (4.3) keeps what all jobs of a query have
    brought until it ends; what is begun when it has ended is never let go of.
    """
    return iter(table.rdd.toLocalIterator(prefetchPartitions=True))


def _to_bytes(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"batch": [sink.getvalue().to_pybytes()]})
