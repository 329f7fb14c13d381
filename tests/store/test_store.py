"""Both stores keep the same promises; PostgreSQL's are tried on a real server."""

import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert4rec.errors import Bert4RecError, DataError, UsageError
from bert4rec.store import postgres_store as history_postgres
from bert4rec.store.events import (
    Event,
    EventConflictError,
    HistoryStore,
    StoreError,
    open_store,
)
from tests.service.postgres import Postgres
from tests.store.conftest import Open


def event(number: int, user: str = "u", timestamp: int = 0, item: str = "i") -> Event:
    return Event(f"e{number}", user, item, timestamp)


def test_a_repeated_event_counts_once(store: HistoryStore) -> None:
    assert store.add([event(1, timestamp=5), event(2, timestamp=6)]) == [True, True]
    assert store.add([event(2, timestamp=6), event(3), event(3)]) == [False, True, False]
    assert store.newest("u", 10) == [event(3), event(1, timestamp=5), event(2, timestamp=6)]


@pytest.mark.parametrize(
    "change",
    [
        {"user_id": "another"},
        {"item_id": "j"},
        {"timestamp": 7},
        {"event_type": "view"},
        {"recommendation_id": "r"},
    ],
)
def test_another_event_with_a_used_id_is_refused_and_nothing_beside_it_is_kept(
    store: HistoryStore, change: dict[str, Any]
) -> None:
    store.add([event(1)])
    other = event(1)._replace(**change)
    for events, places in (
        ([event(2), other], [1]),
        ([event(3), event(1), event(3)._replace(**change), other], [2, 3]),
    ):
        with pytest.raises(EventConflictError) as caught:
            store.add(events)
        assert caught.value.places == places
    assert store.newest("u", 10) == [event(1)]
    assert store.newest("another", 10) == []
    assert store.add([event(2)]) == [True]


def test_one_event_can_be_removed(store: HistoryStore) -> None:
    store.add([event(1), event(2), event(3, user="another")])
    assert store.remove("e2").deleted == 1
    assert store.remove("e2").deleted == 0
    assert store.newest("u", 10) == [event(1)]
    assert store.add([event(2, user="another")]) == [True]


def test_events_come_back_by_timestamp_then_by_arrival(store: HistoryStore) -> None:
    store.add([event(1, timestamp=7), event(2, timestamp=-3), event(3, timestamp=7)])
    store.add([event(4, timestamp=7), event(5, timestamp=0), event(6, user="another", timestamp=7)])
    assert [each.event_id for each in store.newest("u", 10)] == ["e2", "e5", "e1", "e3", "e4"]


def test_only_so_many_of_the_newest_are_read(store: HistoryStore) -> None:
    store.add([event(number, timestamp=number) for number in range(50)])
    assert [each.timestamp for each in store.newest("u", 3)] == [47, 48, 49]


def test_forgetting_a_user_removes_everything_and_nothing_else(store: HistoryStore) -> None:
    store.add([event(1), event(2), event(3, user="another")])
    assert store.forget("u").deleted == 2
    assert store.forget("u").deleted == 0
    assert store.newest("u", 10) == []
    assert store.newest("another", 10) == [event(3, user="another")]
    assert store.add([event(1)]) == [True]


def test_nothing_to_add_is_no_mistake(store: HistoryStore) -> None:
    assert store.add([]) == []


def test_events_are_there_for_whoever_opens_the_store_next(open_again: Open) -> None:
    first = open_again()
    first.add([event(1)])
    first.close()
    assert open_again().newest("u", 10) == [event(1)]


def test_workers_that_share_a_store_keep_every_event_exactly_once(open_again: Open) -> None:
    """Each event is offered by two of four writers."""
    new: list[bool] = []

    def write(worker: int) -> None:
        store = open_again()
        for first in range(0, 200, 10):
            numbers = range(first + worker // 2 * 1000, first + 10 + worker // 2 * 1000)
            new.extend(store.add([event(number, timestamp=number) for number in numbers]))

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(new) == 800
    assert sum(new) == 400
    kept = [each.timestamp for each in open_again().newest("u", 1000)]
    assert kept == [*range(200), *range(1000, 1200)]


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=256)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(texts, texts, st.integers(-(2**55), 2**57), st.none() | texts, st.none() | texts)
def test_every_text_comes_back_as_it_was(
    store: HistoryStore, user: str, item: str, timestamp: int, kind: str | None, recommendation: str | None
) -> None:
    given_event = Event(f"{user}e", user, item, timestamp, kind, recommendation)
    assert store.add([given_event])[0]
    assert store.newest(user, 5) == [given_event]
    store.forget(user)


@pytest.mark.parametrize(
    "url",
    ["history.db", "sqlite://history.db", "sqlite:///", "mysql://u:secret@h/d", ""],
)
def test_an_address_that_names_no_store_is_refused_without_repeating_its_secrets(url: str) -> None:
    with pytest.raises(UsageError, match="Expected sqlite:///history") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_malformed_postgresql_address_is_refused_without_its_password() -> None:
    with pytest.raises(UsageError, match="not the address of a PostgreSQL database") as caught:
        open_store("postgresql://user:secret@host:port:1/x?nonsense=1")
    assert "secret" not in str(caught.value)


def test_without_psycopg_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"pip install 'bert4rec\[postgres\]'"):
        open_store("postgresql://host/database")


def foreign(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)


def future(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()


def test_a_database_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "accounts.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (owner TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="a database of another program"):
        open_store(f"sqlite:///{path}")
    assert [each.name for each in tmp_path.iterdir()] == ["accounts.db"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(("make", "message"), [(foreign, "not a database"), (future, "version 7")])
def test_a_file_that_is_something_else_is_refused(
    make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "history.db")
    with pytest.raises(DataError, match=message):
        open_store(f"sqlite:///{tmp_path}/history.db")


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(Bert4RecError, match="nowhere does not exist"):
        open_store(f"sqlite:///{tmp_path}/nowhere/history.db")


def test_a_database_that_restarts_between_two_calls_is_not_noticed(postgres: Postgres) -> None:
    store = open_store(postgres.new_store())
    assert store.add([event(1)]) == [True]
    postgres.stop()
    postgres.start()
    assert store.add([event(1), event(2)]) == [False, True]
    store.close()


def test_a_database_that_is_away_is_said_so_and_found_again(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_postgres, "REST_AFTER_FAILURE", 0.0)
    store = open_store(postgres.new_store())
    store.add([event(1)])
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreError, match="unavailable"):
                store.newest("u", 5)
            with pytest.raises(StoreError, match="unavailable"):
                store.add([event(2)])
    finally:
        postgres.start()
    assert store.newest("u", 5) == [event(1)]
    assert store.add([event(2)]) == [True]
    store.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_text_is_refused(encoding: str, postgres: Postgres) -> None:
    store = open_store(postgres.new_database(encoding))
    with pytest.raises(StoreError, match=f"encoded as {encoding}; create one with ENCODING 'UTF8'"):
        store.add([event(1, user="漢")])
    store.close()


def test_a_database_that_was_never_there_is_no_reason_not_to_start(tmp_path: Path) -> None:
    store = open_store(f"postgresql://postgres@/nowhere?host={tmp_path}")
    with pytest.raises(StoreError):
        store.newest("u", 5)
    with pytest.raises(StoreError, match="cannot be reached"):  # at once: it was just tried
        store.newest("u", 5)
    store.close()
