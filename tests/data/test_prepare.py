"""The dataset folder: numbering, order, ties, tables, checksums."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.filters import Filters
from bert4rec.data.leakage import split_warnings
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.data.splits import make_split
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.logs.items import join_items, read_items
from bert4rec.logs.log import Log, encode
from tests.conftest import MakeDataset

EVERYTHING = Recipe(filters=Filters(min_user_actions=0), num_negatives=3)
Event = tuple[str, str, int]


def log_of_events(events: list[Event]) -> Log:
    return encode(
        [pl.DataFrame(events, schema={"user": pl.String, "item": pl.String, "time": pl.Int64}, orient="row")]
    )


def histories_of(dataset: Dataset) -> dict[str, list[str]]:
    item_ids = ["", *map(str, dataset.items()["id"])]
    return {
        str(user_id): [item_ids[number] for number in dataset.history(user)]
        for user, user_id in enumerate(dataset.users()["id"])
    }


event = st.tuples(st.sampled_from("abc"), st.sampled_from("wxyz"), st.integers(0, 5))


@given(st.lists(event, min_size=1, max_size=40))
def test_every_user_keeps_all_actions_in_order_of_time_ties_in_order_of_the_log(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    dataset = prepare(
        log_of_events(events), tmp_path_factory.mktemp("d") / "d", name="any", recipe=EVERYTHING
    )
    expected: dict[str, list[tuple[int, str]]] = {}
    for user, item, time in events:
        expected.setdefault(user, []).append((time, item))
    in_order = {
        user: [item for _, item in sorted(told, key=lambda pair: pair[0])] for user, told in expected.items()
    }
    assert histories_of(dataset) == in_order
    assert list(in_order) == dataset.users()["id"].to_list(), "users keep the order of the log"


def test_ties_repeats_and_duplicates_are_counted(tmp_path: Path) -> None:
    events = [("a", "x", 1), ("a", "y", 1), ("a", "x", 1), ("a", "z", 2), ("b", "x", 2)]
    counts = prepare(log_of_events(events), tmp_path / "d", name="t", recipe=EVERYTHING).manifest["counts"]
    assert counts == {"users": 2, "items": 3, "actions": 5, "ties": 2, "repeats": 1, "duplicates": 1}


def test_duplicates_are_named_and_dropped_on_request(tmp_path: Path) -> None:
    """The same item at another time, or by another user, is no duplicate."""
    events = [("a", "x", 1), ("b", "x", 1), ("a", "y", 1), ("a", "x", 1), ("a", "x", 2), ("a", "x", 1)]
    told = prepare(log_of_events(events), tmp_path / "d", name="t", recipe=EVERYTHING)
    assert told.manifest["counts"]["duplicates"] == 2
    assert any("2 actions are there twice" in each for each in split_warnings(told, make_split(told)))
    recipe = Recipe(Filters(min_user_actions=1, drop_duplicates=True))
    dropped = prepare(log_of_events(events), tmp_path / "e", name="t", recipe=recipe)
    assert histories_of(dropped) == {"a": ["x", "y", "x"], "b": ["x"]}
    assert any(
        note.startswith("`drop_duplicates=True` dropped 2 of 6 actions") for note in dropped.manifest["notes"]
    )


@pytest.mark.parametrize(
    ("history", "asked", "rule", "told"),
    [
        ("abcdefghijklm", None, "exclude", "No user has an item twice, so repeats are excluded"),
        ("abcdefghijkla", None, "exclude", "7.7% of the actions repeat an item of the user, so"),
        (
            "abcdefgha",
            None,
            "keep",
            "11.1% of the actions repeat an item of the user, so repeats are kept",
        ),
        ("abcdefgha", "exclude", "exclude", "As requested, repeats are excluded"),
        ("abcd", "keep", "keep", "As requested, repeats are kept"),
    ],
)
def test_whether_items_may_come_again_is_told_and_stored(
    tmp_path: Path, history: str, asked: Repeats | None, rule: Repeats, told: str
) -> None:
    events = [("a", item, time) for time, item in enumerate(history)]
    recipe = Recipe(Filters(min_user_actions=1), repeats=asked)
    prepare(log_of_events(events), tmp_path / "d", name="t", recipe=recipe)
    dataset = Dataset.open(tmp_path / "d")
    assert dataset.repeats == rule
    assert sum(told in note for note in dataset.manifest["notes"]) == 1


def test_a_log_that_was_exported_twice_is_not_taken_for_people_who_come_back(tmp_path: Path) -> None:
    events = [(user, item, time) for user in "ab" for time, item in enumerate("vwxyz")]
    dataset = prepare(log_of_events(events * 2), tmp_path / "d", name="t", recipe=EVERYTHING)
    assert (dataset.repeats, dataset.manifest["counts"]["duplicates"]) == ("exclude", 10)
    assert any("10 actions are there twice" in each for each in split_warnings(dataset, make_split(dataset)))


def test_without_times_nothing_is_a_duplicate_and_dropping_them_is_refused(tmp_path: Path) -> None:
    log = encode([pl.DataFrame({"user": ["u", "u", "u"], "item": ["1", "1", "2"]})])
    assert prepare(log, tmp_path / "d", name="t", recipe=EVERYTHING).manifest["counts"]["duplicates"] == 0
    with pytest.raises(UsageError, match="`drop_duplicates` requires times, and this log has none"):
        prepare(log, tmp_path / "e", name="t", recipe=Recipe(Filters(drop_duplicates=True)))


def test_repeats_that_are_dropped_cannot_be_kept() -> None:
    with pytest.raises(UsageError, match="leaves no repeats to keep"):
        Recipe(Filters(drop_repeats=True), repeats="keep")


def test_where_repeats_are_kept_items_of_the_history_are_candidates_and_one_is_spare(tmp_path: Path) -> None:
    events = [(user, item, time) for user in "ab" for time, item in enumerate("vwxyz")]
    recipe = Recipe(Filters(min_user_actions=1), num_negatives=4, repeats="keep")
    drawn = prepare(log_of_events(events), tmp_path / "d", name="t", recipe=recipe).negatives()
    assert [sorted(row) for row in drawn.tolist()] == [[1, 2, 3, 4, 5]] * 2


def test_items_are_numbered_from_one_by_falling_count(tmp_path: Path) -> None:
    events = [("a", item, time) for time, item in enumerate("xyyzzz")]
    dataset = prepare(log_of_events(events), tmp_path / "d", name="t", recipe=EVERYTHING)
    assert dataset.items().rows() == [(1, "z", 3), (2, "y", 2), (3, "x", 1)]
    assert dataset.item_counts.tolist() == [0, 3, 2, 1]
    assert dataset.mask_number == 4


def test_opening_again_gives_the_same_and_reads_with_numpy_alone(tmp_path: Path) -> None:
    """A machine that only trains has no polars: opening and reading sequences must not import it."""
    prepare(log_of_events([("a", "x", 1), ("a", "y", 2)]), tmp_path / "d", name="t", recipe=EVERYTHING)
    program = f"""
import sys
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
dataset = Dataset.open({str(tmp_path / "d")!r})
dataset.verify(); make_split(dataset); dataset.negatives("popularity")
print(dataset.history(0).tolist(), sorted({{"polars", "torch", "pydantic"}} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[1, 2] []\n"


def test_the_checksum_is_of_the_sequences_not_of_titles_or_names(tmp_path: Path) -> None:
    log = log_of_events([("a", "x", 1), ("a", "y", 2)])
    titled = Log(**{**vars(log), "item_columns": pl.DataFrame({"id": ["x"], "title": ["Ex"]})})
    other = log_of_events([("a", "y", 1), ("a", "x", 2), ("a", "x", 3)])
    one, same, different = (
        prepare(each, tmp_path / str(i), name=str(i), recipe=EVERYTHING).checksum
        for i, each in enumerate((log, titled, other))
    )
    assert one == same != different


def test_the_checksum_tells_times_apart(tmp_path: Path) -> None:
    """A split by time cuts them elsewhere, so a model of the one may have seen what the other asks."""
    logs = (log_of_events([("a", "x", 1), ("a", "y", time)]) for time in (2, 2, 3))
    checksums = [
        prepare(log, tmp_path / str(i), name="t", recipe=EVERYTHING).checksum for i, log in enumerate(logs)
    ]
    assert checksums[0] == checksums[1] != checksums[2]


def test_titles_and_other_columns_join_by_id_whatever_the_type_of_the_id(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text(
        "movieId,name,genre\n1,Heat,Crime\n3,Big,Comedy\n1,Heat again,Crime\n"
    )
    log = encode([pl.DataFrame({"user": ["u", "u"], "item": ["1", "2"]})])
    assert log.item_ids.dtype == pl.Int64
    with_items = Log(**{**vars(log), "item_columns": read_items(tmp_path / "items.csv")})
    table = prepare(with_items, tmp_path / "d", name="t", recipe=EVERYTHING).items()
    assert table.select("id", "title", "genre").rows() == [(1, "Heat", "Crime"), (2, None, None)]


def test_a_catalogue_adds_to_the_titles_of_the_log(tmp_path: Path) -> None:
    log_titles = pl.DataFrame({"id": ["1", "2"], "title": ["one", "two"]})
    catalogue = pl.DataFrame({"id": ["1"], "title": ["ONE"], "genre": ["x"]})
    joined = join_items(log_titles, catalogue).sort("id")
    assert joined.rows() == [("1", "ONE", "x"), ("2", "two", None)]


@pytest.mark.parametrize("columns", ["id,movie", "id,item_id,title"])
def test_the_id_of_an_item_is_found_among_its_lookalikes(tmp_path: Path, columns: str) -> None:
    rows = {"id,movie": "7,Heat", "id,item_id,title": "row-1,7,Heat"}
    (tmp_path / "items.csv").write_text(f"{columns}\n{rows[columns]}\n")
    assert read_items(tmp_path / "items.csv")["id"].to_list() == ["7"]


def test_users_with_few_items_left_are_counted(tmp_path: Path) -> None:
    events = [("a", item, 1) for item in "uvwxyz"] + [("b", "u", 1)]
    dataset = prepare(log_of_events(events), tmp_path / "d", name="t", recipe=EVERYTHING)
    assert any(
        "1 of 2 users have fewer than 3 items that they never had" in note
        for note in dataset.manifest["notes"]
    )


def test_a_catalogue_without_ids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("colour,size\nred,1\n")
    with pytest.raises(
        DataError, match=r"no column of .*items\.csv looks like the item's id\. Columns: colour, size"
    ):
        read_items(tmp_path / "items.csv")


def test_negatives_that_were_not_drawn_are_not_found(make_dataset: MakeDataset) -> None:
    with pytest.raises(NotFoundError, match='`negatives="both"`'):
        make_dataset([[1, 2, 3]]).negatives("uniform")


def test_dataset_json_says_where_everything_came_from(tmp_path: Path) -> None:
    events = [("a", item, 1) for item in "vwxyz"]
    prepare(log_of_events(events), tmp_path / "d", name="t", source={"files": ["log.csv"]})
    written = json.loads((tmp_path / "d" / "dataset.json").read_text())
    assert written["source"] == {"files": ["log.csv"]}
    assert written["filters"]["min_user_actions"] == 5
    assert "order of the log" in written["tie_rule"]
    assert {"sequences.npy", "offsets.npy", "times.npy", "items.parquet", "users.parquet"} < set(
        written["files"]
    )


def test_a_full_disk_leaves_the_old_dataset_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full answers every write as a full disk does."""
    log = log_of_events([("a", "x", 1), ("a", "y", 2)])
    old = prepare(log, tmp_path / "d", name="old", recipe=EVERYTHING)

    def save_to_full_disk(_path: Path, array: np.ndarray) -> None:
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(array.tobytes())

    monkeypatch.setattr(np, "save", save_to_full_disk)
    with pytest.raises(OSError, match="No space left"):
        prepare(log, tmp_path / "d", name="new", recipe=EVERYTHING, overwrite=True)
    monkeypatch.undo()
    again = Dataset.open(tmp_path / "d")
    again.verify()
    assert (again.name, again.checksum) == ("old", old.checksum)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
