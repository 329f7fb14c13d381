"""Both stores keep what is hidden, and tell in one number whether that has changed."""

import sqlite3
import threading
from pathlib import Path

import pytest

from bert4rec.store import hiding
from bert4rec.store.events import Event, HistoryStore, open_store
from bert4rec.store.hiding import Hiding, HidingsRead
from bert4rec.store.sqlite_store import APPLICATION
from bert4rec.store.upkeep import back_up, check_store
from tests.store.conftest import Open

OLD_SCHEMA = f"""
CREATE TABLE bert4rec_events (
    arrival INTEGER PRIMARY KEY, event_id TEXT NOT NULL UNIQUE, user_id TEXT NOT NULL, item_id TEXT NOT NULL,
    timestamp INTEGER NOT NULL, event_type TEXT, recommendation_id TEXT);
CREATE INDEX bert4rec_events_by_user ON bert4rec_events (user_id, timestamp, arrival);
INSERT INTO bert4rec_events VALUES (1, 'e1', 'ann', 'i1', 7, NULL, NULL);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = 1;
"""
"""Of a store that knew nothing of hidden items yet."""


def listed(store: HistoryStore) -> HidingsRead:
    found = store.hidden()
    assert found is not None
    return found


def test_what_is_hidden_is_listed_until_it_is_shown_again(store: HistoryStore) -> None:
    assert listed(store).hidings == []
    store.hide([Hiding("tea", 5, 9), Hiding("it's 100 % 🫖", 7)])
    assert listed(store).hidings == [Hiding("it's 100 % 🫖", 7), Hiding("tea", 5, 9)]
    store.hide([Hiding("tea", 8)])
    assert listed(store).hidings == [Hiding("tea", 8), Hiding("it's 100 % 🫖", 7)]
    assert store.unhide(["tea", "coffee"]) == 1
    assert store.unhide(["tea"]) == 0
    assert listed(store).hidings == [Hiding("it's 100 % 🫖", 7)]


def test_only_what_has_changed_is_read_again(open_again: Open) -> None:
    store, other = open_again(), open_again()
    store.hide([Hiding("milk", 1)])
    known = listed(store).version
    assert store.hidden(known) is None
    other.add([Event("e1", "ann", "tea", 1)])
    assert store.hidden(known) is None
    for change, hidings, shown in (
        (lambda: other.hide([Hiding("tea", 1)]), [Hiding("tea", 1)], []),
        (lambda: other.hide([Hiding("tea", 2, 3)]), [Hiding("tea", 2, 3)], []),
        (lambda: store.hide([Hiding("milk", 4)], instead_of=["tea", "mílk"]), [Hiding("milk", 4)], ["tea"]),
        (lambda: other.hide([Hiding("tea", 3)]), [Hiding("tea", 3)], []),
        (lambda: other.unhide(["tea"]), [], ["tea"]),
        (lambda: store.hide([Hiding("tea", 2)]), [Hiding("tea", 2)], []),
    ):
        change()
        found = store.hidden(known)
        assert found == HidingsRead(known + 1, hidings, shown, is_whole=False)
        known += 1
        assert store.hidden(known) is None
    found = store.hidden(known - 2)
    assert found == HidingsRead(known, [Hiding("tea", 2)], [], is_whole=False)


def test_who_has_missed_too_many_changes_reads_the_whole_list(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hiding, "CHANGES_KEPT", 3)
    store.hide([Hiding(item, 1) for item in ("coffee", "milk", "tea")])
    known = listed(store).version
    for item in ("coffee", "milk", "tea"):
        store.unhide([item])
    found = store.hidden(known)
    assert found is not None
    assert (sorted(found.shown), found.is_whole) == (["coffee", "milk", "tea"], False)
    store.hide([Hiding("cake", 1)])
    assert store.hidden(known) == listed(store) == HidingsRead(known + 4, [Hiding("cake", 1)], [], True)
    for _ in range(3):
        store.unhide(["cake"])
    assert store.hidden(known + 20) == listed(store)  # as after a backup was restored


def test_it_is_there_for_whoever_opens_the_store_next(open_again: Open) -> None:
    first = open_again()
    first.hide([Hiding("tea", 1, 2)])
    first.close()
    assert listed(open_again()).hidings == [Hiding("tea", 1, 2)]


def test_a_change_is_seen_at_once_while_histories_are_being_read(open_again: Open) -> None:
    """A connection that is reading sees the store as it was when it began."""
    store, other = open_again(), open_again()
    store.add([Event(f"e{number}", "ann", f"item {number}", number) for number in range(2000)])
    is_enough = threading.Event()

    def read() -> None:
        while not is_enough.is_set():
            store.newest("ann", 2000)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        for number in range(50):
            other.hide([Hiding("tea", number)])
            assert listed(store).hidings == [Hiding("tea", number)]
    finally:
        is_enough.set()
        reading.join()


def test_workers_that_hide_at_once_lose_nothing(open_again: Open) -> None:
    def hide(worker: int) -> None:
        store = open_again()
        for number in range(20):
            store.hide([Hiding(f"{worker}-{number}", 1)])

    workers = [threading.Thread(target=hide, args=(number,)) for number in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    found = listed(open_again())
    assert (len(found.hidings), found.version) == (80, 80)


def test_many_items_are_hidden_and_shown_at_once(store: HistoryStore) -> None:
    hidings = [Hiding(f"{number:05}", 1) for number in range(20_000)]
    store.hide(hidings)
    assert listed(store).hidings == hidings
    assert store.unhide([each.item_id for each in hidings]) == len(hidings)


def test_events_and_users_come_and_go_without_it(store: HistoryStore) -> None:
    store.hide([Hiding("tea", 1)])
    store.add([Event("e1", "ann", "tea", 1)])
    assert store.forget("ann").deleted == 1
    store.prune(before=10)
    assert listed(store).hidings == [Hiding("tea", 1)]


def test_a_store_of_an_earlier_version_is_taken_on_and_can_still_be_opened_by_it(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as old:
        old.executescript(OLD_SCHEMA)
    old.close()
    store = open_store(f"sqlite:///{path}")
    store.hide([Hiding("tea", 1)])
    assert store.items_of("ann", 10) == ["i1"]
    store.close()
    with sqlite3.connect(path) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (1,)  # what it looks at
    old.close()


def test_a_backup_has_what_is_hidden(tmp_path: Path) -> None:
    path, copy = tmp_path / "history.db", tmp_path / "copy.db"
    store = open_store(f"sqlite:///{path}")
    store.hide([Hiding("tea", 1)])
    back_up(str(path), copy)
    assert check_store(str(copy)).events == 0
    store.close()
    restored = open_store(f"sqlite:///{copy}")
    assert listed(restored).hidings == [Hiding("tea", 1)]
    restored.close()
