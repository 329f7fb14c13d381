"""From a log into a store and back, into both kinds of stores; what the commands around it say and do."""

import random
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bert4rec
from bert4rec.data.dataset import Dataset
from bert4rec.errors import Bert4RecError, DataError, UsageError
from bert4rec.store import transfer
from bert4rec.store.events import Event, HistoryStore, open_store
from bert4rec.store.transfer import export_events, import_dataset, import_into
from bert4rec.store.upkeep import check_store, moment_before
from tests.service.servers import BERT4REC, PATIENCE, running

DAY = 86_400_000_000


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Ids that sort otherwise as text than as numbers, the same action twice, and users of every length."""
    rng = random.Random(1)
    rows = [
        {"user": user, "item": rng.randrange(60), "time": 1_700_000_000 + rng.randrange(10_000)}
        for user in range(1, 120)
        for _ in range(rng.randrange(5, 40))
    ]
    rows += [rows[0], rows[7]]
    folder = tmp_path_factory.mktemp("data") / "dataset"
    return bert4rec.prepare(pl.DataFrame(rows), folder, repeats="keep")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "ACTIONS_AT_ONCE", 100)
    monkeypatch.setattr(transfer, "EVENTS_PER_PART", 500)


def log_of(dataset: Dataset) -> list[tuple[str, str, int]]:
    table = dataset.to_polars().with_columns(pl.col("time").cast(pl.Int64))
    return sorted((str(user), str(item), time) for user, item, time in table.rows())


def log_in(store: HistoryStore) -> list[tuple[str, str, int]]:
    return sorted(event[1:4] for events in store.all_events(700) for event in events)


@pytest.mark.usefixtures("small_parts")
def test_an_import_adds_every_action_once_however_often_it_is_made(store_url: str, dataset: Dataset) -> None:
    reports: list[tuple[int, int | None]] = []
    store = open_store(store_url)
    assert (
        import_dataset(store, dataset, lambda *report: reports.append(report)) == (dataset.num_actions,) * 2
    )
    assert reports[-1] == (dataset.num_actions, dataset.num_actions)
    assert len(reports) > 10
    assert log_in(store) == log_of(dataset)
    assert import_dataset(store, dataset) == (0, dataset.num_actions)
    number = 17
    ids = dataset.items()["id"].cast(pl.String)
    history = ids.gather(dataset.history(number) - np.int32(1)).to_list()
    user = str(dataset.users()["id"][number])
    assert [event.item_id for event in store.newest(user, 1000)] == history
    store.close()


@pytest.mark.usefixtures("small_parts")
def test_what_the_service_had_stored_of_the_log_is_not_doubled_and_what_is_missing_is_added(
    store_url: str, dataset: Dataset
) -> None:
    store, log = open_store(store_url), log_of(dataset)
    for place, (user, item, moment) in enumerate(log[::3]):
        store.add([Event(f"sent-{place}", user, item, moment)])
    store.add([Event("other", "somebody else", "1", 5), Event("later", log[0][0], log[0][1], 2**50)])
    before = len(log[::3])
    assert import_dataset(store, dataset) == (len(log) - before, len(log))
    assert log_in(store) == sorted([*log, ("somebody else", "1", 5), (log[0][0], log[0][1], 2**50)])
    store.close()


def test_an_import_that_is_killed_goes_on_and_doubles_nothing(store_url: str, dataset: Dataset) -> None:
    program = """
import os, signal, sys
from bert4rec.data.dataset import Dataset
from bert4rec.store import transfer
transfer.ACTIONS_AT_ONCE = 100
seen = 0

def die(done, total):
    global seen
    seen += 1
    if seen == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

transfer.import_into(sys.argv[1], Dataset.open(sys.argv[2]), die)
"""
    for parts in (1, 4, 9):
        command = [sys.executable, "-c", program, store_url, str(dataset.folder), str(parts)]
        killed = subprocess.run(command, check=False, timeout=PATIENCE)
        assert killed.returncode == -signal.SIGKILL
    added, found = import_into(store_url, dataset)
    assert 0 < added < found == dataset.num_actions
    store = open_store(store_url)
    assert log_in(store) == log_of(dataset)
    store.close()


def test_without_times_the_order_of_the_log_is_kept_and_comes_before_everything(
    store_url: str, dataset: Dataset
) -> None:
    timeless = Dataset.from_sequences(np.array([3, 1, 2, 5, 4], np.int32), np.array([0, 3, 5]))
    store = open_store(store_url)
    store.add([Event("new", "1", "9", DAY)])
    assert import_dataset(store, timeless) == (5, 5)
    assert [event.item_id for event in store.newest("1", 10)] == ["5", "4", "9"]
    assert import_dataset(store, timeless) == (0, 5)
    store.close()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_an_export_is_a_log_that_prepare_reads(
    store_url: str, dataset: Dataset, tmp_path: Path, ending: str
) -> None:
    store, target = open_store(store_url), tmp_path / "out" / f"events{ending}"
    target.parent.mkdir()
    import_dataset(store, dataset)
    store.add([Event("e1", "1", "2", 1_700_000_000_123_456, "view, then buy", "r1")])
    assert export_events(store, target) == dataset.num_actions + 1
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    again = bert4rec.prepare(target, repeats="keep")
    assert log_of(again) == sorted([*log_of(dataset), ("1", "2", 1_700_000_000_123_456)])
    assert again.users()["id"].dtype.is_integer()
    with pytest.raises(UsageError, match="already exists"):
        export_events(store, target)
    with pytest.raises(UsageError, match="expected a name that ends in"):
        export_events(store, tmp_path / "events.xlsx")
    store.close()


def test_pruning_removes_what_is_older_and_nothing_else(store_url: str, dataset: Dataset) -> None:
    store, log = open_store(store_url), log_of(dataset)
    import_dataset(store, dataset)
    middle = sorted(moment for _, _, moment in log)[len(log) // 2]
    assert store.prune(middle).deleted == sum(moment < middle for _, _, moment in log)
    assert log_in(store) == [action for action in log if action[2] >= middle]
    assert store.prune(middle).deleted == 0
    store.close()


def test_ids_of_any_text_go_in_and_come_back(store_url: str, tmp_path: Path) -> None:
    odd = ["a\\tb", "tab\there", "line\nend", "\\N", "漢字", '"quoted", comma', "007"]
    log = pl.DataFrame({"user": sorted(odd * 5), "item": odd * 5, "time": range(35)})
    store = open_store(store_url)
    dataset = bert4rec.prepare(log, repeats="keep")
    assert import_dataset(store, dataset)[0] == 35
    assert log_in(store) == log_of(dataset)
    export_events(store, tmp_path / "events.parquet")
    assert log_of(bert4rec.prepare(tmp_path / "events.parquet", repeats="keep")) == log_of(dataset)
    store.close()


@pytest.mark.parametrize(("age", "days"), [("90d", 90), ("12w", 84), ("2 y", 730), ("48h", 2)])
def test_an_age_is_counted_from_now(age: str, days: int) -> None:
    expected = (datetime.now(UTC) - timedelta(days=days)).timestamp() * 1e6
    assert abs(moment_before(age) - expected) < 60e6
    assert moment_before("1970-01-02") == DAY
    with pytest.raises(UsageError, match="is not a date"):
        moment_before("yesterday")


def test_the_whole_history_counts_as_seen_and_the_newest_are_in_their_order(store_url: str) -> None:
    store = open_store(store_url)
    store.add([Event(f"e{number}", "u", f"i{number % 30}", number) for number in range(100)])
    store.add([Event(f"f{number}", "u", f"j{number}", 1000 + number) for number in range(10)])
    found = store.items_of("u", 12)
    assert found[-12:] == ["i8", "i9", *(f"j{number}" for number in range(10))]
    assert sorted(found[:-12]) == sorted(f"i{number}" for number in range(30) if number not in (8, 9))
    assert store.items_of("u", 200) == [event.item_id for event in store.newest("u", 200)]
    assert store.items_of("nobody", 5) == []
    store.close()


def run(*arguments: object, code: int = 0) -> str:
    command = [BERT4REC, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_the_commands_go_round(store_url: str, dataset: Dataset, tmp_path: Path) -> None:
    count = f"{dataset.num_actions:,}"
    few = (
        "Warning: Users with fewer than 5 actions are not in this dataset, so the service will not know them. To "
        "import everybody, prepare the log with --min-user-actions 1.\n"
    )
    assert run("store", "import", store_url, dataset.folder) == f"Added {count} actions.\n{few}"
    again = run("store", "import", store_url, dataset.folder)
    assert again == f"Added 0 actions; {count} actions were there already.\n{few}"
    assert f"Sound: {count} events of 119 users, from 2023-11-14" in run("store", "check", store_url)
    out = tmp_path / "events.parquet"
    assert run("store", "export", store_url, "-o", out) == f"Wrote {out}: {count} events.\n"
    left = pl.read_parquet(out)
    forgotten = left.filter(pl.col("user_id") == 17).height
    assert run("store", "forget", store_url, "17").startswith(f"Deleted {forgotten} events.\n")
    assert run("store", "prune", store_url, "--older-than", "1d").startswith("Deleted ")
    assert "Sound: 0 events of 0 users." in run("store", "check", store_url)
    assert "is not a date" in run("store", "prune", store_url, "--older-than", "long", code=2)


def test_commands_on_what_is_not_there_say_so(dataset: Dataset, tmp_path: Path) -> None:
    for command in (("export", "x.db", "-o", tmp_path / "e.csv"), ("forget", "x.db", "u")):
        assert "x.db does not exist" in run("store", *command, code=4)
    with pytest.raises(Bert4RecError, match=r"cannot be reached|unavailable"):
        import_into(f"postgresql://postgres@/nowhere?host={tmp_path}", dataset)
    with pytest.raises(DataError, match="cannot be read"):
        check_store(f"postgresql://postgres@/nowhere?host={tmp_path}")


def test_a_service_that_is_given_a_dataset_knows_its_users(exported_model: Path, tmp_path: Path) -> None:
    """Also after a restart, which adds nothing twice; and nothing of a long history is recommended again."""
    items = [number % 60 + 1 for number in range(1500)]
    log = pl.DataFrame({"user": ["ann"] * 1500, "item": [f"i{each}" for each in items], "time": range(1500)})
    few = log.filter(pl.col("item").is_in([f"i{each}" for each in range(1, 6)])).head(20)
    late = log.tail(1100).with_columns(pl.lit("i1").alias("item"))
    folder = tmp_path / "dataset"
    bert4rec.prepare(pl.concat([few, late]), folder, repeats="keep")
    store = f"sqlite:///{tmp_path}/history.db"
    for _ in range(2):
        with (
            running(exported_model, "--history", str(folder), store=store) as server,
            server.client() as client,
        ):
            body = {"user_id": "ann", "k": 500, "exclude_seen": True}
            answer = client.post("/v1/recommend", json=body).json()
            assert answer["context"]["source"] == "store"
            assert not {f"i{each}" for each in range(1, 6)} & {each["item_id"] for each in answer["items"]}
            assert len(client.get("/v1/users/ann/history").json()["events"]) == 1000
            assert server.stop() == 0
    assert check_store(str(tmp_path / "history.db")).events == 1120
