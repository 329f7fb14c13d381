"""A log that does not fit into memory becomes the dataset that it would become in memory, byte for byte."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest

import bert4rec
from bert4rec.data import blocks, dataset, sorted_actions
from bert4rec.data.dataset import Dataset
from bert4rec.logs import growing, readers

FILTERS: list[dict[str, Any]] = [
    {},
    {"min_user_actions": 1, "drop_duplicates": True},
    {"min_user_actions": 3, "drop_repeats": True, "negatives": "both"},
    {"min_item_actions": 8, "min_user_actions": 4},
    {"k_core": 5, "repeats": "keep"},
    {"after": 1_600_000_300, "before": 1_600_002_000, "min_user_actions": 2},
    {"min_user_actions": 2, "split": "time", "test_from": 0.9},
]
USERS, ITEMS, ACTIONS = 60, 150, 2_500


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a few hundred actions were all that fits."""
    monkeypatch.setattr(readers, "ROWS_PER_BATCH", 150)
    monkeypatch.setattr(growing, "MOST_IN_MEMORY", 400)
    monkeypatch.setattr(sorted_actions, "ACTIONS_AT_ONCE", 300)
    monkeypatch.setattr(blocks, "ACTIONS_AT_ONCE", 200)


def make_log(kind: str, seed: int = 1) -> pl.DataFrame:
    """Some users have hundreds of actions; there are ties, repeats and duplicates."""
    rng = np.random.default_rng(seed)
    users = (USERS * rng.random(ACTIONS) ** 2).astype(np.int64)
    items = (ITEMS * rng.random(ACTIONS) ** 2).astype(np.int64)
    times = 1_600_000_000 + rng.integers(0, 3_000, ACTIONS)
    if kind == "by time":
        times.sort()
    twice = rng.integers(0, ACTIONS, 40)
    columns = {"user": users, "item": items, "time": times}
    if kind == "no times":
        del columns["time"]
    frame = pl.DataFrame({name: np.concatenate([column, column[twice]]) for name, column in columns.items()})
    if kind == "written in two ways":  # 6 and 6.0 are one user.
        text = pl.col("user").cast(pl.String)
        frame = frame.with_columns(
            pl.when(pl.col("item") % 2 == 0).then(text + ".0").otherwise(text).alias("user")
        )
    return frame


def prepared(log: Path, folder: Path, **options: Any) -> dict[str, bytes]:
    """The files of the dataset, without what says where it came from."""
    bert4rec.prepare(log, folder, name="log", overwrite=True, **options)
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["by time", "in no order", "written in two ways"])
@pytest.mark.parametrize("options", FILTERS, ids=lambda options: ", ".join(options) or "default")
def test_a_log_is_prepared_in_pieces_as_in_one(
    tmp_path: Path, kind: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    log = tmp_path / "log.csv"
    make_log(kind).write_csv(log)
    whole = prepared(log, tmp_path / "dataset", **options)
    request.getfixturevalue("in_pieces")
    assert prepared(log, tmp_path / "dataset", **options) == whole


def test_a_log_without_times_is_prepared_in_pieces_as_in_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    log = tmp_path / "log.parquet"
    make_log("no times").write_parquet(log)
    whole = prepared(log, tmp_path / "dataset")
    request.getfixturevalue("in_pieces")
    assert prepared(log, tmp_path / "dataset") == whole


def test_what_is_told_about_a_dataset_is_the_same_in_pieces(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    make_log("in no order").write_csv(tmp_path / "log.csv")
    prepared = bert4rec.prepare(tmp_path / "log.csv", tmp_path / "dataset", min_user_actions=2)
    spec = bert4rec.SplitSpec("time", "0.8")

    def told() -> str:
        opened = Dataset.open(tmp_path / "dataset")
        sequences = Dataset.from_sequences(opened.sequences, opened.offsets, times=opened.times)
        facts = [opened.statistics(), opened.warnings(), opened.warnings(spec), sequences.statistics()]
        return json.dumps(facts)

    whole = told()
    request.getfixturevalue("in_pieces")
    assert told() == whole
    assert prepared.statistics() == Dataset.open(tmp_path / "dataset").statistics()


def test_equal_tables_are_equal_files_whether_written_whole_or_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "ROWS_PER_GROUP", 70)
    table = pl.DataFrame({"number": range(1_000), "id": [f"user {place % 7}" for place in range(1_000)]})
    parts = [tmp_path / f"{first}.arrow" for first in range(0, 1_000, 90)]
    for place, part in enumerate(parts):
        table[90 * place : 90 * (place + 1)].write_ipc(part)
    dataset.write_table(table.lazy(), tmp_path / "whole.parquet")
    dataset.write_table(pl.scan_ipc(parts), tmp_path / "pieces.parquet")
    assert (tmp_path / "whole.parquet").read_bytes() == (tmp_path / "pieces.parquet").read_bytes()
    assert pl.read_parquet(tmp_path / "pieces.parquet").equals(table)


@pytest.mark.usefixtures("in_pieces")
def test_a_full_disk_leaves_what_was_there_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, folder = tmp_path / "log.csv", tmp_path / "dataset"
    make_log("by time").write_csv(log)
    before = prepared(log, folder)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match="No space left"):
        bert4rec.prepare(log, folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "log.csv"]


@pytest.mark.usefixtures("in_pieces")
def test_a_filter_that_leaves_nothing_is_named_and_leaves_no_folder(tmp_path: Path) -> None:
    make_log("by time").write_csv(tmp_path / "log.csv")
    with pytest.raises(bert4rec.DataError, match="`min_user_actions=5000` leaves none of 2,540 actions"):
        bert4rec.prepare(tmp_path / "log.csv", tmp_path / "dataset", min_user_actions=5_000)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_what_was_written_to_a_memory_map_survives_a_look_at_it_in_blocks(
    tmp_path: Path, mode: Literal["r+", "c"]
) -> None:
    np.save(tmp_path / "numbers.npy", np.zeros(10_000, np.int32))
    numbers = np.load(tmp_path / "numbers.npy", mmap_mode=mode)
    numbers[:] = 1
    assert [blocks.count_numbers(numbers, 2).tolist() for _ in range(2)] == [[0, 10_000]] * 2
    assert blocks.count_numbers(np.asarray(numbers)[5:], 2).tolist() == [0, 9_995]
    assert numbers.sum() == 10_000


KILLED = """
import os, signal, sys
import bert4rec
from bert4rec.data import sorted_actions
from bert4rec.logs import growing

growing.MOST_IN_MEMORY, sorted_actions.ACTIONS_AT_ONCE = 400, 300
sorted_actions.SortedActions.with_users_of = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
bert4rec.prepare(sys.argv[1], sys.argv[2])
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    log, folder = tmp_path / "log.csv", tmp_path / "dataset"
    pl.concat([make_log("by time")] * 10).write_csv(log)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(log), str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".dataset.unfinished-"))
    assert len(left) == 2, "what was read of the log, and the dataset that was begun"
    bert4rec.prepare(log, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "log.csv"]
