"""Tables of Spark: what a path or name stands for, and a row for each user out of lists or a log."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.artefact import kind_of
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.logs.columns import ColumnRequest, choose_columns
from bert4rec.logs.files import Hints
from bert4rec.spark.complete_log import Shelf, read_complete
from bert4rec.spark.raw_log import BLANKS, ListsError, RawLog, read_sources

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE = r"\w+(\.\w+){0,2}"
"""How tables are called: with their schema, and that with its catalogue, if need be."""


def open_lists(spark: "SparkSession", source: str, columns: ColumnRequest, shelf: Shelf) -> "DataFrame":
    """What `lists_of` gives, of a table of the catalogue, or of a file, folder or pattern of files.

    A log in files is read as `prepare` reads it, by the rules of one machine.
    """
    num_tasks = spark.sparkContext.defaultParallelism  # even a small file is much to compute
    if re.fullmatch(TABLE, source) and not Path(source).exists() and spark.catalog.tableExists(source):
        return lists_of(spark.table(source), columns, where=source, num_tasks=num_tasks)
    if kind_of(Path(source)) == "dataset":
        raise UsageError(
            f"{source} is a dataset, which one machine reads: leave out `engine`, or pass the log that it was made of."
        )
    if _holds_orc(spark, source):
        table = spark.read.orc(full_path(spark, source))
        return lists_of(table, columns, where=source, num_tasks=num_tasks)
    try:
        raw = _read_files(spark, source, columns)
    except ListsError as found:
        return lists_of(found.table, columns, where=source, num_tasks=num_tasks)
    return _histories(read_complete(raw, shelf).actions)


def _read_files(spark: "SparkSession", source: str, columns: ColumnRequest) -> RawLog:
    address = full_path(spark, source)
    try:
        return read_sources(spark, [address if "://" in address else source], columns, Hints())
    except NotFoundError:
        files, path = file_system(spark, address)
        if "://" in address or not files.globStatus(path):
            raise
        # Spark knows more than we do: patterns with braces, folders in folders.
        return read_sources(spark, [f"file://{address}"], columns, Hints())


def _holds_orc(spark: "SparkSession", source: str) -> bool:
    """Whether it is ORC, which bert4rec reads with Spark alone, by its name or that of the first file in it."""
    if Path(source).suffix.lower() == ".orc":
        return True
    files, path = file_system(spark, full_path(spark, source))
    if not files.exists(path) or not files.getFileStatus(path).isDirectory():
        return False
    listed = files.listFiles(path, True)
    while listed.hasNext():
        name = listed.next().getPath().getName()
        if not name.startswith(("_", ".")):
            return bool(name.lower().endswith(".orc"))
    return False


def full_path(spark: "SparkSession", path: str) -> str:
    """Without a slash at the end. Java does not know of the folder that Python works in, if that has changed."""
    path = path.rstrip("/")
    if ":/" in path:
        return path
    if spark._jsc.hadoopConfiguration().get("fs.defaultFS").startswith("file:"):
        return str(Path(path).expanduser().absolute())
    files, java_path = file_system(spark, path)
    return str(files.makeQualified(java_path).toString())


def file_system(spark: "SparkSession", path: str):  # type: ignore[no-untyped-def]
    """Hadoop's file system of a path, and the path: local files, HDFS and object stores alike."""
    assert spark._jvm is not None
    java_path = spark._jvm.org.apache.hadoop.fs.Path(path)
    return java_path.getFileSystem(spark._jsc.hadoopConfiguration()), java_path


def lists_of(
    table: "DataFrame", columns: ColumnRequest, *, where: str, num_tasks: int | None = None
) -> "DataFrame":
    """A row for each user, with the columns `user` and `item`, the list of what the user did, oldest first.

    A table with lists is taken as it is, row by row. Of a log, rows are grouped by user and sorted by time; actions of
    the same time stay in the order in which Spark reads the rows. Rows without user, item or time are left out.
    Lists that lie in fewer parts than `num_tasks` are dealt out among so many.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, TimestampNTZType, TimestampType

    fields = {field.name: field.dataType for field in table.schema.fields}
    choice = choose_columns(
        list(fields),
        columns,
        where=where,
        lists=[name for name, kind in fields.items() if isinstance(kind, ArrayType)],
        dates=[
            name
            for name, kind in fields.items()
            if isinstance(kind, DateType | TimestampType | TimestampNTZType)
        ],
    )
    if "time" in choice.lists:
        raise DataError(
            f"{where}: column {choice.time!r} holds lists of times. With Spark, write a row for each action; or, if "
            'the lists of items are in order, use `time="none"`.'
        )
    user, item = _column(choice.user), _column(choice.item)
    if choice.lists:
        lists = table.select(user.alias("user"), item.alias("item"))
        is_small = num_tasks is not None and lists.rdd.getNumPartitions() < num_tasks
        return lists.repartition(num_tasks) if is_small and num_tasks else lists
    place = F.monotonically_increasing_id()
    order = _moment(table, choice.time, where) if choice.time else F.lit(0)
    actions = table.select(
        _id(user, fields[choice.user]).alias("user"),
        F.struct(
            order.alias("time"), place.alias("place"), _id(item, fields[choice.item]).alias("item")
        ).alias("action"),
    ).filter("user is not null and action.item is not null and action.time is not null")
    return _grouped(actions)


def _histories(actions: "DataFrame") -> "DataFrame":
    """The same of a log whose actions are complete."""
    from pyspark.sql import functions as F

    order = ["time", "row"] if "time" in actions.columns else ["row"]
    return _grouped(actions.select("user", F.struct(*order, "item").alias("action")))


def _grouped(actions: "DataFrame") -> "DataFrame":
    """From `user` and `action`, whose first fields are what to sort by, to `user` and the list `item`."""
    from pyspark.sql import functions as F

    histories = actions.groupBy("user").agg(F.sort_array(F.collect_list("action")).alias("actions"))
    return histories.select("user", F.col("actions.item").alias("item"))


def _column(name: str) -> "Column":
    """By its name, which may hold dots."""
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")


def _id(column: "Column", kind: object) -> "Column":
    """As logs are read anywhere: whole numbers stay numbers, all else is text without blanks around it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType, FractionalType, IntegralType

    if isinstance(kind, IntegralType):
        return column.cast("long")
    if isinstance(kind, FloatType | DoubleType):
        column = _number(column)
    if isinstance(kind, FractionalType):  # whole numbers among missing ones
        fraction = F.raise_error(
            F.concat(F.lit("Ids must be whole numbers or text; found "), column.cast("string"))
        )
        whole = column.try_cast("long")
        return F.when(column == whole, whole).when(column.isNotNull(), fraction)
    text = F.btrim(column.cast("string"), F.lit(BLANKS))
    return F.when(text != "", text)


def _number(column: "Column") -> "Column":
    """What is not a number is missing: so pandas writes it."""
    from pyspark.sql import functions as F

    return F.nanvl(column.cast("double"), F.lit(None))


def _moment(table: "DataFrame", name: str, where: str) -> "Column":
    """What to sort by. Text must be numbers or ISO dates; numbers count as they are, whatever their unit."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType, StringType

    column, kind = _column(name), table.schema[name].dataType
    if isinstance(kind, FloatType | DoubleType):
        return _number(column)
    if not isinstance(kind, StringType):
        return column
    text = F.btrim(column, F.lit(BLANKS))
    number, moment = text.try_cast("double"), text.try_cast("timestamp")
    problem = F.raise_error(
        F.concat(
            F.lit(f"{where}: the time "),
            text,
            F.lit(f" of column {name!r} is neither a number nor an ISO date. Make it a timestamp first."),
        )
    )
    readable = F.when(number.isNotNull() | moment.isNotNull(), F.struct(number, moment)).otherwise(problem)
    return F.when(text != "", readable)
