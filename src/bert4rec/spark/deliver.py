"""From actions on the executors to the files of a dataset on the driver, which never holds more than a part of them.

The executors number items and put the actions in order; every partition arrives as a few packed arrays, which are
appended to the files in the order of the partitions.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from bert4rec.data.array_files import new_array
from bert4rec.data.blocks import forget_pages
from bert4rec.data.dataset import write_table
from bert4rec.data.filters import Actions, count_oddities
from bert4rec.data.prepare import Ordered
from bert4rec.spark.complete_log import Shelf, one_by_one, sent, stream
from bert4rec.spark.spark_actions import SparkActions

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

ROWS_AT_ONCE = 1_000_000
"""About as many arrive at the driver in one piece."""
PACKED = "lengths binary, items binary, times binary, ties bigint, repeats bigint, duplicates bigint"


def deliver(actions: SparkActions, folder: Path, shelf: Shelf) -> Ordered:
    """Write sequences, offsets, times and users into a folder; of the tables, that of items comes back."""
    import polars as pl

    num_actions, num_users = len(actions), actions.count_users()
    items = _numbered(actions.items, actions.items.count(), shelf)
    users = _begun(actions.users, num_users, shelf)
    packed = shelf.keep(_packed(actions, sent(users.drop("count")), sent(items.drop("count"))))
    packed.count()  # all executors at once; what follows takes one partition after the other
    oddities = {"ties": 0, "repeats": 0, "duplicates": 0}
    offsets = new_array(folder / "offsets.npy", np.int64, (num_users + 1,))
    offsets[0] = 0
    sequences = new_array(folder / "sequences.npy", np.int32, (num_actions,))
    times = new_array(folder / "times.npy", np.int64, (num_actions,)) if actions.has_times else None
    user = begin = 0
    for part in one_by_one(packed):
        lengths = np.frombuffer(part.lengths, np.int64)
        offsets[user + 1 : user + 1 + len(lengths)] = begin + np.cumsum(lengths)
        forget_pages(offsets)
        end = begin + int(lengths.sum())
        for array, values in ((sequences, part.items), (times, part.times)):
            if array is not None:
                array[begin:end] = np.frombuffer(values, array.dtype)
                forget_pages(array)
        for oddity in oddities:
            oddities[oddity] += part[oddity]
        user, begin = user + len(lengths), end
    assert (user, begin) == (num_users, num_actions)
    _write_users(users, folder)
    return Ordered(
        sequences=sequences,
        offsets=offsets,
        times=times,
        oddities=oddities,
        tables={"items": pl.concat(_table(items, "item", first=1), rechunk=True)},
    )


def _in_order(table: "DataFrame", rows: int, *order: "str | Column") -> "DataFrame":
    """The rows in order, in partitions that the driver takes one by one."""
    return table.repartitionByRange(rows // ROWS_AT_ONCE + 1, *order).sortWithinPartitions(*order)


def _table(ordered: "DataFrame", role: str, *, first: int) -> "Iterator[pl.DataFrame]":
    """`number`, `id` and `count` of users or items, in pieces."""
    import polars as pl

    for rows in stream(ordered.select(role, "count")):
        numbers = np.arange(first, first + len(rows), dtype=np.int32)
        yield pl.DataFrame({"number": numbers, "id": rows[role], "count": rows["count"]})
        first += len(rows)


def _write_users(users: "DataFrame", folder: Path) -> None:
    """Pieces go to the disk as they arrive, and become one file there: users are too many for the driver's memory."""
    import polars as pl

    with TemporaryDirectory(prefix=".users-", dir=folder) as scratch:
        paths: list[Path] = []
        for piece in _table(users, "user", first=0):
            paths.append(Path(scratch, f"{len(paths)}.arrow"))
            piece.write_ipc(paths[-1])
        write_table(pl.scan_ipc(paths), folder / "users.parquet")


def _numbered(items: "DataFrame", rows: int, shelf: Shelf) -> "DataFrame":
    """In order: `item`, `count`, and `number`, from 1 by falling count, ties in the order of the log."""
    from pyspark.sql import functions as F

    ordered = _in_order(items, rows, F.desc("count"), F.asc("first"))
    number = (F.col("before") + 1).cast("int").alias("number")
    return _with_sums(ordered, F.lit(1), shelf).select("item", "count", number)


def _begun(users: "DataFrame", rows: int, shelf: Shelf) -> "DataFrame":
    """In the order of the log: `user`, `count`, and `begin`, how many actions all users before have."""
    from pyspark.sql import functions as F

    ordered = _in_order(users, rows, "first")
    return _with_sums(ordered, F.col("count"), shelf).select("user", "count", F.col("before").alias("begin"))


def _with_sums(ordered: "DataFrame", size: "Column", shelf: Shelf) -> "DataFrame":
    """A table in order, and `before`: the sum of the sizes of all rows before."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType, StructField, StructType

    sized = ordered.withColumn("size", size.cast("bigint"))
    summed = sized.mapInArrow(_sum_up, StructType([*sized.schema, StructField("before", LongType())]))
    summed = shelf.keep(summed.withColumn("partition", F.spark_partition_id()))
    sums: dict[int, int] = dict(summed.groupBy("partition").agg(F.sum("size")).collect())
    before = np.cumsum([0, *(sums.get(place, 0) for place in range(max(sums)))]).tolist()
    return summed.withColumn("before", F.col("before") + F.element_at(F.lit(before), F.col("partition") + 1))


def _sum_up(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """`before` within a partition."""
    import pyarrow as pa

    total = 0
    for batch in batches:
        sizes = batch.column("size").to_numpy()
        ends = total + np.cumsum(sizes)
        yield batch.append_column("before", pa.array(ends - sizes))
        total = int(ends[-1])


def _packed(actions: SparkActions, users: "DataFrame", items: "DataFrame") -> "DataFrame":
    """All actions, users in the order of the log, each user's oldest first; packed by `_pack`.

    Where a user begins among all actions is known beforehand, and with it the partition: Spark need not sample.
    """
    from pyspark.sql import functions as F

    rows = actions.rows.join(users, "user").join(items, "item")
    columns = ["begin", *(["time"] if actions.has_times else []), "row", "number"]
    partition = F.floor(F.col("begin") / ROWS_AT_ONCE).cast("int")
    rows = rows.select(*columns).repartitionById(len(actions) // ROWS_AT_ONCE + 1, partition)
    return rows.mapInArrow(_pack, PACKED)


def _pack(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """A partition as arrays: how many actions each user has, the items and times of all of them, and their oddities."""
    import pyarrow as pa

    arrays = [{name: batch.column(name).to_numpy() for name in batch.schema.names} for batch in batches]
    if not arrays:
        return
    columns = {name: np.concatenate([array[name] for array in arrays]) for name in arrays[0]}
    # By user, then time, then row. Most logs are in the order of time, so there is little to sort here.
    order = np.lexsort([columns[name] for name in ("row", "time", "begin") if name in columns])
    columns = {name: column[order] for name, column in columns.items()}
    starts = np.flatnonzero(np.diff(columns["begin"], prepend=-1))
    lengths = np.diff(starts, append=len(columns["begin"]))
    users = np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
    items, times = columns["number"].astype(np.int32), columns.get("time")
    found = count_oddities([Actions(users, items.astype(np.uint32), times)])
    packed: dict[str, list[Any]] = {
        "lengths": [lengths.astype(np.int64).tobytes()],
        "items": [items.tobytes()],
        "times": [b"" if times is None else times.tobytes()],
    }
    yield pa.RecordBatch.from_pydict(packed | {name: [count] for name, count in found.items()})
