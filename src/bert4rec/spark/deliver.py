"""From actions on the executors to the files of a dataset on the driver, which never holds more than a part of them.

The executors number items and put the actions in order; every partition arrives as a few packed arrays, which are
appended to the files in the order of the partitions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from bert4rec.data.filters import Actions, count_oddities
from bert4rec.data.prepare import Ordered
from bert4rec.spark.complete_log import Shelf
from bert4rec.spark.spark_actions import SparkActions

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame

ACTIONS_AT_ONCE = 1_000_000
"""About as many arrive at the driver in one piece."""
PACKED = "lengths binary, items binary, times binary, ties bigint, repeats bigint, duplicates bigint"
_PLACES = 33
"""Of the bits of Spark's rising ids, those that count within a partition."""


def deliver(actions: SparkActions, folder: Path, shelf: Shelf) -> Ordered:
    """Write sequences, offsets and times into a folder; the tables of users and items come back."""
    num_actions, num_users = len(actions), actions.count_users()
    items = _numbered(actions.items, shelf)
    packed = shelf.keep(_packed(actions, items))
    packed.count()  # all executors at once; what follows takes one partition after the other
    oddities = {"ties": 0, "repeats": 0, "duplicates": 0}
    offsets = np.zeros(num_users + 1, np.int64)
    arrays = {"sequences": np.int32} | ({"times": np.int64} if actions.has_times else {})
    writers = {name: _ArrayWriter(folder / f"{name}.npy", kind, num_actions) for name, kind in arrays.items()}
    users = 0
    for part in packed.toLocalIterator(prefetchPartitions=True):
        lengths = np.frombuffer(part.lengths, np.int64)
        offsets[users + 1 : users + 1 + len(lengths)] = lengths
        users += len(lengths)
        writers["sequences"].append(part.items)
        if actions.has_times:
            writers["times"].append(part.times)
        for oddity in oddities:
            oddities[oddity] += part[oddity]
    assert users == num_users
    np.cumsum(offsets, out=offsets)
    for writer in writers.values():
        writer.close()
    return Ordered(
        sequences=np.load(folder / "sequences.npy", mmap_mode="r"),
        offsets=offsets,
        times=np.load(folder / "times.npy", mmap_mode="r") if actions.has_times else None,
        oddities=oddities,
        tables={
            "items": _table(items.orderBy("number").select("item", "count"), first=1),
            "users": _table(actions.users.orderBy("first").select("user", "count"), first=0),
        },
    )


def stream(table: "DataFrame") -> "Iterator[pl.DataFrame]":
    """The rows of a table in their order, one partition after the other."""
    import polars as pl

    for row in table.mapInArrow(_to_bytes, "batch binary").toLocalIterator(prefetchPartitions=True):
        yield pl.read_ipc_stream(bytes(row.batch))


def _to_bytes(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"batch": [sink.getvalue().to_pybytes()]})


def _table(counted: "DataFrame", *, first: int) -> "pl.DataFrame":
    """`number`, `id` and `count` in the order of the rows."""
    import polars as pl

    rows = pl.concat(stream(counted), rechunk=True)
    numbers = np.arange(first, first + len(rows), dtype=np.int32)
    return pl.DataFrame({"number": numbers, "id": rows.to_series(0), "count": rows["count"]})


def _numbered(items: "DataFrame", shelf: Shelf) -> "DataFrame":
    """Items with their `number`, from 1 by falling count, ties in the order of the log."""
    from pyspark.sql import functions as F

    ordered = items.orderBy(F.desc("count"), "first").withColumn("id", F.monotonically_increasing_id())
    ordered = shelf.keep(ordered)
    partition = F.shiftright("id", _PLACES)
    sizes = {
        row.partition: row["count"] for row in ordered.groupBy(partition.alias("partition")).count().collect()
    }
    starts, start = [], 1
    for place in range(max(sizes) + 1):
        starts.append(start)
        start += sizes.get(place, 0)
    in_partition = F.col("id").bitwiseAND(F.lit((1 << _PLACES) - 1))
    number = in_partition + F.element_at(F.lit(starts), (partition + 1).cast("int"))
    return ordered.withColumn("number", number.cast("int"))


def _packed(actions: SparkActions, items: "DataFrame") -> "DataFrame":
    """All actions, users in the order of the log, each user's oldest first; packed by `_pack`."""
    order = ["first", "time", "row"] if actions.has_times else ["first", "row"]
    rows = actions.rows.join(actions.users.select("user", "first"), "user")
    rows = rows.join(items.select("item", "number"), "item").select(*order, "number")
    partitions = len(actions) // ACTIONS_AT_ONCE + 1
    return rows.repartitionByRange(partitions, "first").sortWithinPartitions(*order).mapInArrow(_pack, PACKED)


def _pack(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """A partition as arrays: how many actions each user has, the items and times of all of them, and their oddities."""
    import pyarrow as pa

    arrays = [
        {name: batch.column(name).to_numpy() for name in batch.schema.names if name != "row"}
        for batch in batches
    ]
    if not arrays:
        return
    columns = {name: np.concatenate([array[name] for array in arrays]) for name in arrays[0]}
    starts = np.flatnonzero(np.diff(columns["first"], prepend=-1))
    lengths = np.diff(starts, append=len(columns["first"]))
    users = np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
    items, times = columns["number"].astype(np.int32), columns.get("time")
    found = count_oddities([Actions(users, items.astype(np.uint32), times)])
    packed: dict[str, list[Any]] = {
        "lengths": [lengths.astype(np.int64).tobytes()],
        "items": [items.tobytes()],
        "times": [b"" if times is None else times.tobytes()],
    }
    yield pa.RecordBatch.from_pydict(packed | {name: [count] for name, count in found.items()})


@dataclass
class _ArrayWriter:
    """Writes the file that `np.save` would write, piece by piece."""

    path: Path
    kind: DTypeLike
    length: int

    def __post_init__(self) -> None:
        self.file = self.path.open("wb")
        self.written = 0
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(self.kind)),
            "fortran_order": False,
            "shape": (self.length,),
        }
        np.lib.format.write_array_header_1_0(self.file, header)

    def append(self, values: bytes) -> None:
        """Add values, which are bytes as they are in memory."""
        self.file.write(values)
        self.written += len(values) // np.dtype(self.kind).itemsize

    def close(self) -> None:
        """Finish the file; all values must have come."""
        self.file.close()
        assert self.written == self.length
