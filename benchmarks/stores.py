"""A store of many events: how fast histories of a log go in and come out, how long it takes to open and to forget.

`python -m benchmarks.stores` imports 10 million made-up actions into an SQLite file in a temporary folder and prints a
JSON object; `--store postgresql://…` measures another store, which must be empty, and `--actions` another number.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.data.dataset import Dataset
from bert4rec.store.events import HistoryStore, open_store
from bert4rec.store.transfer import export_events, import_dataset

ACTIONS_PER_USER = 100
ITEMS = 50_000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--store")
    arguments.add_argument("--actions", type=int, default=10_000_000)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = made_up(given.actions, Path(folder) / "dataset")
        address = given.store or f"sqlite:///{folder}/history.db"
        sys.stdout.write(json.dumps(measure(address, data, Path(folder)), indent=2) + "\n")


def made_up(actions: int, folder: Path) -> Dataset:
    rng = np.random.default_rng(1)
    users = max(1, actions // ACTIONS_PER_USER)
    offsets = np.concatenate([[0], np.cumsum(rng.multinomial(actions, np.full(users, 1 / users)))])
    items = (rng.zipf(1.3, actions) % ITEMS + 1).astype(np.int32)
    seconds = np.sort(rng.integers(1_600_000_000, 1_700_000_000, actions))
    return Dataset.from_sequences(items, offsets, num_items=ITEMS, times=seconds * 1_000_000).save(folder)


def measure(address: str, data: Dataset, folder: Path) -> dict[str, Any]:
    store = open_store(address)
    first, _ = timed(lambda: import_dataset(store, data))
    again, (added, _) = timed(lambda: import_dataset(store, data))
    assert added == 0
    store.close()
    opening, store = timed(lambda: ready(address))
    forgetting, _ = timed(lambda: store.forget("17"))
    exporting, count = timed(lambda: export_events(store, folder / "events.parquet"))
    store.close()
    return {
        "actions": data.num_actions,
        "imported_per_second": round(data.num_actions / first),
        "imported_again_per_second": round(data.num_actions / again),
        "exported_per_second": round(count / exporting),
        "open_seconds": round(opening, 2),
        "forget_seconds": round(forgetting, 2),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def ready(address: str) -> HistoryStore:
    """A store that has answered once."""
    store = open_store(address)
    store.newest("17", 1)
    return store


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


if __name__ == "__main__":
    main()
