"""Large logs for the benchmarks: `python -m benchmarks.make_logs csv|parquet PATH`."""

import sys
from pathlib import Path

import numpy as np
import polars as pl

from bert4rec.world.world import World, like

SECOND = 1_000_000


def write_csv(path: Path) -> None:
    """20 million rows as MovieLens publishes them: userId, movieId, rating, timestamp."""
    log = World.generate(like("ml-20m")).log()
    assert log.times is not None
    rating = np.random.default_rng(1).integers(1, 11, len(log.users)) / 2
    columns = {"userId": log.users, "movieId": log.items, "rating": rating, "timestamp": log.times // SECOND}
    pl.DataFrame(columns).write_csv(path)


def write_parquet(path: Path) -> None:
    """100 million actions of a million users on 200,000 items, in the order of time."""
    rng = np.random.default_rng(1)
    rows = 100_000_000
    users = rng.integers(0, 1_000_000, rows, dtype=np.int32)
    items = (rng.beta(0.4, 3, rows) * 200_000).astype(np.int32)
    times = np.sort(rng.integers(1_600_000_000, 1_700_000_000, rows))
    pl.DataFrame({"user_id": users, "item_id": items, "timestamp": times}).write_parquet(path)


if __name__ == "__main__":
    kind, target = sys.argv[1:]
    {"csv": write_csv, "parquet": write_parquet}[kind](Path(target))
