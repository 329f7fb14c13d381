"""Between a store and logs: the histories of a dataset into a store, all events of a store into a log.

An action of a dataset is an event that has no id yet. What the store already has, the same user, item and moment, is
not added again, wherever it came from. So a dataset may be imported twice, after a kill, or again when it has grown.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.artefact import behind_links
from bert4rec.data.dataset import Dataset
from bert4rec.errors import Bert4RecError, UsageError
from bert4rec.progress import ProgressCallback
from bert4rec.store.events import Action, Event, HistoryStore, StoreError, open_store

if TYPE_CHECKING:
    import polars as pl

ACTIONS_AT_ONCE = 30_000
"""In one transaction: other writers wait for a fraction of a second."""
EVENTS_PER_PART = 200_000
WHOLE_NUMBER = r"^(0|-?[1-9]\d{0,17})$"
"""As an integer is written, of 64 bits."""
ENDINGS = (".parquet", ".csv", ".jsonl")


def import_into(address: str, dataset: Dataset, progress: ProgressCallback | None = None) -> tuple[int, int]:
    """`import_dataset` into the store that an address names."""
    with opened(address) as store:
        return import_dataset(store, dataset, progress)


@contextmanager
def opened(address: str) -> Iterator[HistoryStore]:
    """The store that an address names, for a command. What keeps it from working may be over soon: exit code 1."""
    store = open_store(address)
    try:
        yield store
    except StoreError as error:
        raise Bert4RecError(f"The store does not work: {error}.") from error
    finally:
        store.close()


def import_dataset(
    store: HistoryStore, dataset: Dataset, progress: ProgressCallback | None = None
) -> tuple[int, int]:
    """Add the actions of a dataset that the store does not have yet; how many these were, and how many there are.

    Without times, a history begins in 1970 and its actions are a microsecond apart: before everything that comes.
    """
    dataset.verify()
    # One id after the other, so that each is added at the end of its index.
    run = f"log-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(2)}"
    added = done = 0
    for actions in _histories(dataset):
        added += store.add_missing(actions, f"{run}-{done:010}")
        done += len(actions)
        if progress:
            progress(done, dataset.num_actions)
    return added, done


def _histories(dataset: Dataset) -> Iterator[list[Action]]:
    """Whole histories, many at a time. Users come in the order of their ids, in which a store keeps them."""
    import polars as pl

    users = dataset.users()["id"].cast(pl.String)
    items = np.array(dataset.items()["id"].cast(pl.String).to_list(), object)
    order = users.arg_sort().to_numpy()
    lengths = dataset.lengths[order]
    parts = np.cumsum(lengths) // ACTIONS_AT_ONCE
    for place in np.split(np.arange(len(order)), np.flatnonzero(np.diff(parts)) + 1):
        count = lengths[place]
        first = np.repeat(dataset.offsets[:-1][order[place]], count)
        step = np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count)
        rows = first + step
        moments: NDArray[np.int64] = step if dataset.times is None else dataset.times[rows]
        names = np.repeat(np.array(users.gather(order[place]).to_list(), object), count)
        chosen = items[dataset.sequences[rows] - 1]
        if len(rows):
            yield list(zip(names.tolist(), chosen.tolist(), moments.tolist(), strict=True))


def export_events(
    store: HistoryStore, target: Path, *, overwrite: bool = False, progress: ProgressCallback | None = None
) -> int:
    """Write all events as a log that `bert4rec.prepare` reads, in bounded memory; how many there are.

    The file is whole or absent.
    """
    import polars as pl

    if target.suffix not in ENDINGS:
        raise UsageError(f"{target}: expected a name that ends in {', '.join(ENDINGS)}.")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} already exists. Choose another name, or use `overwrite=True`.")
    target = behind_links(target)
    for left_by_a_kill in target.parent.glob(f".{escape(target.name)}.unfinished-*"):
        shutil.rmtree(left_by_a_kill)
    count = 0
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.unfinished-", dir=target.parent) as folder:
        parts = Path(folder) / "parts"
        parts.mkdir()
        for number, events in enumerate(store.all_events(EVENTS_PER_PART)):
            _table(events).write_parquet(parts / f"{number:06}.parquet")
            count += len(events)
            if progress:
                progress(count, None)
        if not count:
            _table([]).write_parquet(parts / "000000.parquet")
        table = _with_whole_numbers(pl.scan_parquet(sorted(parts.iterdir()), glob=False))
        write: dict[str, Callable[[Path], Any]] = {
            ".parquet": table.sink_parquet,
            ".csv": table.sink_csv,
            ".jsonl": table.sink_ndjson,
        }
        write[target.suffix](Path(folder) / target.name)
        (Path(folder) / target.name).replace(target)
    return count


def _with_whole_numbers(table: "pl.LazyFrame") -> "pl.LazyFrame":
    """Ids that are all whole numbers as integers: a store keeps texts, but the log may have had numbers."""
    import polars as pl

    is_whole = pl.col("user_id", "item_id").str.contains(WHOLE_NUMBER).all()
    found = table.select(is_whole).collect(engine="streaming").row(0, named=True)
    return table.with_columns(pl.col(name).cast(pl.Int64) for name, is_so in found.items() if is_so)


def _table(events: Sequence[Event]) -> "pl.DataFrame":
    import polars as pl

    schema = {name: pl.Int64 if name == "timestamp" else pl.String for name in Event._fields}
    columns = list(zip(*events, strict=True)) or [()] * len(schema)
    table = pl.DataFrame(dict(zip(schema, columns, strict=True)), schema)
    moment = pl.col("timestamp").cast(pl.Datetime("us", "UTC"))
    return table.with_columns(moment).select(
        "user_id", "item_id", "timestamp", "event_type", "event_id", "recommendation_id"
    )
