"""A log of any size, in parts: `python -m benchmarks.make_stream FOLDER --actions 1000000000`.

Users act in turn, so that every part holds actions of nearly everybody, in the order of time. A part is drawn from the
seed and its own number, and nothing is kept between parts but each user's last item: the same seed writes the same
files, in a few hundred MiB, at some millions of rows a second.

A user's next item is near the last one with a probability of `FOLLOWED`, and otherwise drawn by popularity: the item of
rank r about in proportion to 1 / (r + OFFSET). So there is something to learn.
"""

import argparse
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

MOST_ROWS_A_PART = 10_000_000
ACTIONS_PER_USER, USERS_PER_ITEM = 100, 10
FOLLOWED = 0.5
NEXT = 4
"""How many items may follow each."""
OFFSET = 100
OPENING, SECONDS_A_PART = 1_600_000_000, 86_400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--actions", type=int, default=1_000_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    write_log(given.folder, given.actions, seed=given.seed)


def write_log(folder: Path, actions: int, *, seed: int = 1) -> None:
    """Write Parquet files with the columns `user`, `item` and `time` (epoch seconds)."""
    folder.mkdir(parents=True, exist_ok=True)
    num_users = max(1, actions // ACTIONS_PER_USER)
    num_items = max(NEXT + 1, num_users // USERS_PER_ITEM)
    # About one action of each user, so that the next part knows what came last.
    rows_per_part = min(MOST_ROWS_A_PART, num_users)
    last = np.random.default_rng(seed).integers(0, num_items, num_users, dtype=np.int32)
    for part, first in enumerate(range(0, actions, rows_per_part)):
        rows = min(rows_per_part, actions - first)
        rng = np.random.default_rng([seed, part])
        users = _draw_users(rng, rows, num_users)
        items = _draw_items(rng, users, last, num_items)
        span = max(1, SECONDS_A_PART * rows // rows_per_part)
        times = OPENING + part * SECONDS_A_PART + np.sort(rng.integers(0, span, rows))
        frame = pl.DataFrame(
            {"user": users.astype(np.int64) + 1, "item": items.astype(np.int64) + 1, "time": times}
        )
        frame.write_parquet(folder / f"part-{part:04d}.parquet", compression="zstd", compression_level=1)


def _draw_users(rng: np.random.Generator, rows: int, num_users: int) -> NDArray[np.int32]:
    """Some users act often, most now and then: the density falls from three times the average to none."""
    share = 1 - np.cbrt(1 - rng.random(rows))
    return np.asarray(np.minimum(share * num_users, num_users - 1), np.int32)


def _draw_items(
    rng: np.random.Generator, users: NDArray[np.int32], last: NDArray[np.int32], num_items: int
) -> NDArray[np.int32]:
    """Items for one part; `last` is brought up to date. Within a part, all of a user's actions follow the same item."""
    popular = OFFSET * np.expm1(rng.random(len(users)) * np.log1p(num_items / OFFSET))
    items = np.asarray(np.minimum(popular, num_items - 1), np.int32)
    is_followed = rng.random(len(users)) < FOLLOWED
    steps = rng.integers(1, NEXT + 1, len(users), dtype=np.int32)
    items[is_followed] = (last[users] + steps)[is_followed] % num_items
    last[users] = items
    return items


if __name__ == "__main__":
    main()
