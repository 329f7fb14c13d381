"""`bert4rec.prepare`: any source in, a dataset in memory or in a folder out, and both are the same."""

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from bert4rec.api.datasets import prepare
from bert4rec.artefact import sha256_of
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import SplitSpec, make_split
from bert4rec.errors import Bert4RecError, DataError, NotFoundError, UsageError
from bert4rec.frames import Frame

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
LOG = pl.DataFrame(
    {
        "user_id": [f"u{user}" for user in range(8) for _ in range(6)],
        "item_id": [(user + 3 * step) % 11 for user in range(8) for step in range(6)],
        "timestamp": [1_704_067_200 + 86_400 * step + user for user in range(8) for step in range(6)],
    }
)
TITLES = pl.DataFrame({"item_id": [0, 1, 2], "title": ["Tea", "Jam", None], "price": [1.5, 2.0, 2.5]})


@pytest.fixture
def in_memory() -> Dataset:
    return prepare(LOG, items=TITLES, negatives="both")


def pandas_of(log: pl.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(log.to_dict(as_series=False))


FRAMES: dict[str, Callable[[pl.DataFrame], Frame]] = {
    "pandas": pandas_of,
    "polars": lambda log: log,
    "lazy": lambda log: log.lazy(),
    "pyarrow": lambda log: log.to_arrow(),
}


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_of_any_library_is_read_as_the_file_would_be(library: str, tmp_path: Path) -> None:
    LOG.write_parquet(tmp_path / "log.parquet")
    from_file = prepare(tmp_path / "log.parquet", items=FRAMES[library](TITLES))
    from_frame = prepare(FRAMES[library](LOG), items=TITLES)
    assert from_frame.checksum == from_file.checksum
    assert from_frame.items().equals(from_file.items())
    assert from_frame.users().equals(from_file.users())
    assert from_frame.notes == from_file.notes
    assert from_frame.items().filter(pl.col("id") == 1).select("title", "price").row(0) == ("Jam", 2.0)


def test_a_dataset_in_memory_is_what_its_folder_would_be(in_memory: Dataset, tmp_path: Path) -> None:
    saved = prepare(LOG, tmp_path / "d", items=TITLES, negatives="both")
    assert (in_memory.path, saved.path) == (None, tmp_path / "d")
    assert in_memory.checksum == saved.checksum
    for kind in ("popularity", "uniform"):
        assert in_memory.candidates_checksum(kind) == saved.candidates_checksum(kind) != ""
        assert np.array_equal(in_memory.negatives(kind), saved.negatives(kind))
    assert in_memory.items().equals(saved.items())
    assert in_memory.users().equals(saved.users())
    assert in_memory.statistics() == saved.statistics()
    assert in_memory.warnings() == saved.warnings()
    assert np.array_equal(make_split(in_memory).test.positions, make_split(saved).test.positions)
    assert in_memory.to_polars().equals(saved.to_polars())
    in_memory.verify()


def test_saving_writes_the_same_bytes_as_preparing_into_a_folder(in_memory: Dataset, tmp_path: Path) -> None:
    prepare(LOG, tmp_path / "prepared", items=TITLES, negatives="both")
    in_memory.save(tmp_path / "saved").save(tmp_path / "again")
    written = {path.name: sha256_of(path) for path in (tmp_path / "prepared").iterdir()}
    assert {"dataset.json", "sequences.npy", "negatives-uniform.npy", "items.parquet"} < written.keys()
    for other in ("saved", "again"):
        assert {path.name: sha256_of(path) for path in (tmp_path / other).iterdir()} == written
    Dataset.open(tmp_path / "again").verify()


def test_saving_replaces_a_dataset_on_request_only(in_memory: Dataset, tmp_path: Path) -> None:
    in_memory.save(tmp_path / "d")
    with pytest.raises(UsageError, match=r"d already exists.*`overwrite=True`"):
        in_memory.save(tmp_path / "d")
    in_memory.save(tmp_path / "d", overwrite=True)


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = prepare(pandas_of(LOG))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
    with pytest.raises(UsageError, match=r"Dataset 'log' is in memory\. .*`dataset\.save\(folder\)`"):
        _ = dataset.folder


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        ([3, 1, 2], [3, 1, 2]),
        (["3", "1", "2"], ["3", "1", "2"]),
        (["a", "1", "007"], ["a", "1", "007"]),
        (pd.array([3, None, 2], dtype="Int64"), [3, 2]),
        ([3.0, None, 2.0], [3, 2]),
        (pd.Categorical(["x", "y", "x"]), ["x", "y"]),
        (np.array([3, 1, 2], np.uint8), [3, 1, 2]),
        ([2**70, 1, 2], [str(2**70), "1", "2"]),
        (["a", 1, 2.0], ["a", "1", "2.0"]),
    ],
)
def test_ids_keep_their_type_from_a_frame_to_the_tables_and_json(
    ids: Any, kept: list[object], tmp_path: Path
) -> None:
    frame = pd.DataFrame({"user": ids, "item": ids})
    saved = prepare(frame, tmp_path / "d", min_user_actions=1)
    for table in (saved.users(), saved.items(), prepare(frame, min_user_actions=1).users()):
        assert table["id"].to_list() == kept
        assert json.loads(json.dumps(table["id"].to_list())) == kept
    assert saved.to_pandas()["user"].tolist() == saved.to_polars()["item"].to_list()
    saved.items().write_csv(tmp_path / "items.csv")
    assert pl.read_csv(tmp_path / "items.csv")["id"].cast(pl.String).to_list()[0] == str(kept[0])


def test_a_row_per_user_with_lists_of_items_is_a_log() -> None:
    lists = LOG.group_by("user_id", maintain_order=True).agg("item_id")
    expected = prepare(LOG.drop("timestamp"))
    for frame in (
        lists,
        pandas_of(lists),
        pandas_of(LOG).groupby("user_id", sort=False)[["item_id"]].agg(list),
    ):
        assert prepare(frame).checksum == expected.checksum


def test_the_log_comes_back_and_can_be_prepared_again(in_memory: Dataset) -> None:
    log = in_memory.to_polars()
    assert log.columns == ["user", "item", "time"]
    assert log.row(1) == ("u0", 3, datetime(2024, 1, 2, tzinfo=UTC))
    assert prepare(in_memory).checksum == in_memory.checksum
    assert prepare(in_memory.to_pandas()).checksum == in_memory.checksum


def test_columns_are_named_by_parameters() -> None:
    frame = LOG.rename({"user_id": "who", "item_id": "what", "timestamp": "order"})
    named = prepare(frame, user="who", item="what", time="order")
    assert named.checksum == prepare(LOG).checksum
    assert prepare(frame, user="1", item="2", time="none").times is None


@pytest.mark.parametrize(
    ("asked", "kind", "complaint"),
    [
        (
            {"user": "usr_id"},
            DataError,
            r"^`user`: column 'usr_id' not found in the frame\. Columns: user_id, item_id, ",
        ),
        ({"user": "item_id"}, UsageError, "`user` and `item` cannot both be column 'item_id'"),
        ({"separator": ","}, UsageError, "`separator` and `encoding` are for files"),
        ({"time_format": "%d"}, UsageError, "`time_format`: '%d' does not describe a date"),
        (
            {"items": pl.DataFrame({"colour": ["red"]})},
            DataError,
            "`items`: no column of the frame looks like",
        ),
        ({"items": "nowhere.csv"}, NotFoundError, "nowhere.csv does not exist"),
        ({"like": "ml-1m"}, UsageError, "`like` requires the data set synthetic"),
        ({"local_copy": "ml.zip"}, UsageError, "`local_copy` requires a named data set: ml-100k"),
        ({"split": "time"}, UsageError, '`split="time"` requires `test_from`'),
        ({"test_from": 0.5}, UsageError, '`test_from` and `valid_from` require `split="time"`'),
        ({"split": SplitSpec(), "test_from": 0.5}, UsageError, "in the `SplitSpec`"),
        ({"after": "soon"}, UsageError, "'soon' is not a date"),
        ({"min_user_actions": -1}, UsageError, "`min_user_actions` must not be negative"),
        ({"min_user_actions": 99}, DataError, "`min_user_actions=99` leaves none of 48 actions"),
        (
            {"drop_repeats": True, "repeats": "keep"},
            UsageError,
            "`drop_repeats=True` leaves no repeats to keep",
        ),
    ],
)
def test_mistakes_are_named_by_parameter(
    asked: dict[str, Any], kind: type[Bert4RecError], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        prepare(LOG, **asked)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"user": [1], "item": [2]}, r"^`source` must be a DataFrame, a path.* found dict\."),
        ([LOG, LOG], "found list"),
        (None, "found NoneType"),
        ([], "`source` is required"),
    ],
)
def test_a_source_that_is_none_of_these_is_refused(source: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        prepare(source)


def test_a_frame_with_nothing_in_it_is_refused() -> None:
    with pytest.raises(DataError, match="The log has no actions"):
        prepare(LOG.head(0))


def test_several_files_are_one_log(tmp_path: Path) -> None:
    LOG.head(20).write_csv(tmp_path / "a.csv")
    LOG.slice(20).write_csv(tmp_path / "b.csv")
    both = prepare([tmp_path / "a.csv", str(tmp_path / "b.csv")])
    assert both.checksum == prepare(LOG).checksum
    assert both.name == "a"
    assert both.manifest["source"] == {"files": [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]}


def test_a_name_is_a_data_set_with_the_papers_filters(tmp_path: Path) -> None:
    """Of the items of the authors' file none is dropped: that was done before it was published."""
    lines = [f"{user} {(user + step) % 9}" for user in range(6) for step in range(6)]
    (tmp_path / "ml-1m.txt").write_text("\n".join(lines))
    dataset = prepare("ml-1m", local_copy=tmp_path / "ml-1m.txt")
    assert (dataset.name, dataset.num_users, dataset.num_items) == ("ml-1m", 6, 9)
    assert dataset.manifest["source"]["title"] == "MovieLens 1M"
    with pytest.raises(UsageError, match=r"`user`, .* are for files and frames; the form of ml-1m is known"):
        prepare("ml-1m", user="u")
    with pytest.raises(NotFoundError, match="Did you mean the data set ml-1m"):
        prepare("ml_1m")


def test_the_built_in_world_is_a_data_set() -> None:
    one, same, other = (prepare("synthetic", seed=seed) for seed in (1, 1, 2))
    assert one.checksum == same.checksum != other.checksum
    assert one.name == "synthetic"


def test_dates_are_texts_numbers_or_dates() -> None:
    by_text = prepare(LOG, after="2024-01-02", min_user_actions=1)
    assert prepare(LOG, after=date(2024, 1, 2), min_user_actions=1).checksum == by_text.checksum
    assert prepare(LOG, after=datetime(2024, 1, 2), min_user_actions=1).checksum == by_text.checksum
    assert by_text.num_actions == 40
    cut = prepare(LOG, split="time", test_from=date(2024, 1, 6), valid_from="2024-01-05")
    assert cut.manifest["split"] == {"kind": "time", "test_from": "2024-01-06", "valid_from": "2024-01-05"}
    assert prepare(LOG, split="time", test_from=0.8).manifest["split"]["test_from"] == "0.8"
    assert len(make_split(cut).test) == 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"negatives": "uniform"}, "`negatives` must be one of 'popularity', 'both'; found 'uniform'"),
        ({"split": "random"}, "`split` must be one of 'leave-one-out', 'time'; found 'random'"),
        ({"split": SplitSpec("random")}, "`split` must be one of 'leave-one-out', 'time'; found 'random'"),  # type: ignore[arg-type]
        ({"repeats": True}, "`repeats` must be one of 'keep', 'exclude'; found True"),
        ({"seed": -1}, "`seed` must be a whole number, 0 or more; found -1"),
        ({"seed": "1"}, "`seed` must be a whole number, 0 or more; found '1'"),
        ({"seed": True}, "`seed` must be a whole number, 0 or more; found True"),
    ],
)
def test_a_value_that_is_not_one_of_the_choices_is_refused_before_anything_is_read(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        prepare(tmp_path / "nowhere.csv", **wrong)


def test_an_existing_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    prepare(LOG, tmp_path / "d")
    with pytest.raises(UsageError, match="already exists"):
        prepare(tmp_path / "nowhere.csv", tmp_path / "d")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="will not be overwritten"):
        prepare(LOG, tmp_path / "mine", overwrite=True)


def test_a_dataset_is_not_taken_for_a_log(tmp_path: Path) -> None:
    prepare(LOG, tmp_path / "d")
    with pytest.raises(UsageError, match=r"d is a dataset; expected a log\. A dataset is for `train\("):
        prepare(tmp_path / "d", tmp_path / "e")


def test_progress_is_reported_to_a_callback_and_drawn_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, int | None]] = []
    prepare(LOG, callback=lambda done, total: heard.append((done, total)))
    assert heard[-1][0] == 48
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    prepare(LOG, progress=True)
    shown = capsys.readouterr()
    assert (shown.out, "Reading" in shown.err) == ("", True)


def test_sequences_of_ones_own_are_a_dataset() -> None:
    sequences = np.array([1, 2, 1, 3, 2], np.int32)
    candidates = {"popularity": np.array([[3], [1]], np.int32)}
    dataset = Dataset.from_sequences(sequences, np.array([0, 3, 5]), num_items=4, candidates=candidates)
    assert (dataset.num_users, dataset.num_items, dataset.num_actions) == (2, 4, 5)
    assert dataset.items().rows() == [(1, 1, 2), (2, 2, 2), (3, 3, 1), (4, 4, 0)]
    assert dataset.users()["count"].to_list() == [3, 2]
    assert dataset.to_polars().rows() == [(0, 1), (0, 2), (0, 1), (1, 3), (1, 2)]
    assert dataset.negatives().tolist() == [[3], [1]]
    assert (dataset.statistics()["repeats"], dataset.statistics()["density"]) == (1, 4 / 8)
    assert dataset.checksum == Dataset.from_sequences(sequences, np.array([0, 3, 5])).checksum


def test_sequences_of_ones_own_can_be_saved(tmp_path: Path) -> None:
    dataset = Dataset.from_sequences(np.array([1, 2, 3, 1], np.int32), np.array([0, 4]), name="mine")
    saved = dataset.save(tmp_path / "d")
    saved.verify()
    assert (saved.name, saved.checksum, saved.repeats) == ("mine", dataset.checksum, "exclude")
    assert saved.statistics() == dataset.statistics()


def test_a_dataset_shows_its_size_and_not_its_log(in_memory: Dataset, tmp_path: Path) -> None:
    assert repr(in_memory) == "<Dataset 'log': 8 users, 11 items, 48 actions, in memory>"
    assert repr(in_memory.save(tmp_path / "d")).endswith(f"48 actions, {tmp_path / 'd'}>")
    assert in_memory._repr_html_().startswith("<code>&lt;Dataset &#x27;log&#x27;: 8 users")


def test_the_table_of_items_is_written_for_others(in_memory: Dataset, tmp_path: Path) -> None:
    in_memory.write_items(tmp_path / "a.parquet")
    in_memory.save(tmp_path / "d").write_items(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert pl.read_parquet(tmp_path / "a.parquet").equals(in_memory.items())


def test_a_dataset_can_be_drawn(in_memory: Dataset, tmp_path: Path) -> None:
    in_memory.plot(tmp_path / "picture.svg")
    assert "<svg" in (tmp_path / "picture.svg").read_text()
