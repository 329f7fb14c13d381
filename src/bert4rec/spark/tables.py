"""Tables of Spark: what a path or name stands for, and a row for each user out of lists or a log."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.artefact import kind_of
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.logs.columns import ColumnRequest, choose_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = {
    ".parquet": "parquet",
    ".orc": "orc",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
"""How a name ends, before ".gz" and its like → how Spark reads it."""
TABLE = r"\w+(\.\w+){0,2}"
"""How tables are called: with their schema, and that with its catalogue, if need be."""
PACKED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")


def open_table(spark: "SparkSession", source: str, columns: ColumnRequest) -> "DataFrame":
    """A table of the catalogue, or a file, folder or pattern of files; its rows are read later.

    Text files alone are looked through at once: users that are all whole numbers become numbers, as on one machine.
    """
    from pyspark.errors import AnalysisException

    if re.fullmatch(TABLE, source) and not Path(source).exists() and spark.catalog.tableExists(source):
        return spark.table(source)
    if kind_of(Path(source)) == "dataset":
        raise UsageError(
            f"{source} is a dataset, which one machine reads: leave out `engine`, or pass the log that it was made of."
        )
    source = full_path(spark, source)
    ending = _ending(source) or _ending_of_first_file(spark, source)
    if ending is None:
        raise DataError(
            f"{source}: expected a table of Spark, or files that end in {', '.join(FORMATS)}; found none."
        )
    reader = spark.read.option("header", True).option("sep", "\t" if ending == ".tsv" else ",")
    try:
        table = reader.format(FORMATS[ending]).load(source)
    except AnalysisException as error:
        raise NotFoundError(
            f"{source} cannot be read by Spark: {str(error).partition(chr(10))[0]}"
        ) from error
    return _with_numbered_users(table, columns, source) if FORMATS[ending] == "csv" else table


def full_path(spark: "SparkSession", path: str) -> str:
    """Without a slash at the end. Java does not know of the folder that Python works in, if that has changed."""
    path = path.rstrip("/")
    is_local = spark._jsc.hadoopConfiguration().get("fs.defaultFS").startswith("file:")
    return str(Path(path).absolute()) if is_local and ":/" not in path else path


def _with_numbered_users(table: "DataFrame", columns: ColumnRequest, where: str) -> "DataFrame":
    from pyspark.sql import functions as F

    name = choose_columns(table.columns, columns, where=where).user
    text = F.regexp_replace(F.trim(_column(name)), r"\.0+$", "")
    # Not so 007, which is a name, nor what no number of 64 bits holds for certain.
    (are_whole,) = table.select(F.min(text.rlike("^(0|-?[1-9][0-9]{0,17}|)$"))).first() or (False,)
    return table.withColumn(name, F.when(text != "", text).cast("long")) if are_whole else table


def _ending(name: str) -> str | None:
    path = Path(name)
    if path.suffix in PACKED:
        path = path.with_suffix("")
    return path.suffix if path.suffix in FORMATS else None


def _ending_of_first_file(spark: "SparkSession", folder: str) -> str | None:
    """Of a folder whose name tells nothing."""
    files, path = file_system(spark, folder)
    if not files.exists(path):
        raise NotFoundError(
            f"{folder} does not exist; expected a file, a folder of files or a table of Spark."
        )
    listed = files.listFiles(path, True)
    while listed.hasNext():
        name = listed.next().getPath().getName()
        if not name.startswith(("_", ".")) and (ending := _ending(name)):
            return ending
    return None


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
    histories = actions.groupBy("user").agg(F.sort_array(F.collect_list("action")).alias("actions"))
    return histories.select("user", F.col("actions.item").alias("item"))


def _column(name: str) -> "Column":
    """By its name, which may hold dots."""
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")


def _id(column: "Column", kind: object) -> "Column":
    """As logs are read anywhere: whole numbers stay numbers, all else is text without blanks around it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import FractionalType, IntegralType

    if isinstance(kind, IntegralType):
        return column.cast("long")
    if isinstance(kind, FractionalType):  # whole numbers among missing ones
        fraction = F.raise_error(
            F.concat(F.lit("Ids must be whole numbers or text; found "), column.cast("string"))
        )
        return F.when(column == F.floor(column), column.cast("long")).when(column.isNotNull(), fraction)
    text = F.trim(column.cast("string"))
    return F.when(text != "", text)


def _moment(table: "DataFrame", name: str, where: str) -> "Column":
    """What to sort by. Text must be numbers or ISO dates; numbers count as they are, whatever their unit."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    column = _column(name)
    if not isinstance(table.schema[name].dataType, StringType):
        return column
    text = F.trim(column)
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
