"""What tests of models count: added up, once each, forgotten with the user. In both stores."""

import random
import sqlite3
from pathlib import Path

import pytest

from bert4rec.store.events import Event, Forgotten, HistoryStore, open_store
from bert4rec.store.feedback import (
    A_DAY,
    Exposure,
    Feedback,
    Served,
    add_exposures,
    add_feedback,
    new_id,
    read_id,
    subject_of,
)
from bert4rec.store.sqlite_store import SQLiteHistory
from bert4rec.store.upkeep import back_up, check_store
from tests.store.conftest import Open
from tests.store.test_sqlite_files import assert_sound, traces_of

MODEL = Served.of("a=1:b=1", "a", "one")


def feedback_on(recommendation_id: str, item: str = "i", kind: str = "click", at: int = 0) -> Feedback:
    return Feedback(recommendation_id, item, kind, at)


def expose(store: HistoryStore, user: str, count: int = 1, day: int = 0) -> None:
    add_exposures(store, [MODEL], [Exposure(subject_of(user), MODEL.mark, day * A_DAY, count)])


def exposures(store: HistoryStore) -> list[tuple[object, ...]]:
    return store.query(
        "SELECT subject, timestamp, recommendations FROM bert4rec_exposures ORDER BY subject, timestamp"
    )


def test_an_id_says_when_by_which_model_and_for_whom() -> None:
    found = read_id(new_id(MODEL.mark, subject_of("ann")))
    assert found and (found.mark, found.subject) == (MODEL.mark, subject_of("ann"))
    assert new_id(MODEL.mark, None) != new_id(MODEL.mark, None), "nobody in particular"
    for malformed in ("", "x" * 32, "0" * 31, "0" * 33, "A" * 32, "0" * 32 + "\n"):
        assert read_id(malformed) is None


def test_pseudonyms_stay_the_same_for_ever() -> None:
    """They are in stores and in ids that clients hold."""
    assert subject_of("ann") == "be9d081407"
    assert Served.of("champion=90:challenger=10", "champion", "3f9c").mark == "479561"


def test_recommendations_add_up_whoever_counted_them(open_again: Open) -> None:
    for count in (1, 2):
        expose(open_again(), "ann", count)
    expose(open_again(), "ann", 5, day=1)
    assert exposures(open_again()) == [(subject_of("ann"), 0, 3), (subject_of("ann"), A_DAY, 5)]


def test_the_same_feedback_counts_once(store: HistoryStore) -> None:
    one, other = (new_id(MODEL.mark, subject_of("ann")) for _ in range(2))
    assert add_feedback(store, [feedback_on(one), feedback_on(one, "j")]) == [True, True]
    again = [
        feedback_on(one, at=7),
        feedback_on(one, kind="purchase"),
        feedback_on(other),
        feedback_on(other),
    ]
    assert add_feedback(store, again) == [False, True, True, False]
    assert add_feedback(store, []) == []


def test_forgetting_a_user_leaves_nothing_that_was_counted_of_the_user(store: HistoryStore) -> None:
    for user in ("ann", "ben"):
        expose(store, user)
        add_feedback(store, [feedback_on(new_id(MODEL.mark, subject_of(user)))])
    store.forget("ann")
    (left,) = store.query("SELECT subject FROM bert4rec_feedback")
    assert left == (subject_of("ben"),)
    assert [row[0] for row in exposures(store)] == [subject_of("ben")]


def test_counts_of_users_are_forgotten_without_their_feedback_and_events(store: HistoryStore) -> None:
    for user in ("ann", "ben", "cat"):
        expose(store, user)
    add_feedback(store, [feedback_on(new_id(MODEL.mark, subject_of("ann")))])
    store.add([Event("e1", "ann", "tea", 1)])
    forgotten = [subject_of("ann"), subject_of("ben")]
    assert store.forget_counts(forgotten).deleted == 2
    assert store.forget_counts(forgotten) == Forgotten(0, None)
    assert [row[0] for row in exposures(store)] == [subject_of("cat")]
    assert len(store.query("SELECT subject FROM bert4rec_feedback")) == 1
    assert len(store.newest("ann", 10)) == 1


def test_what_was_counted_before_a_moment_is_pruned_with_the_events(store: HistoryStore) -> None:
    store.add([Event("e1", "ann", "i", A_DAY), Event("e2", "ann", "i", 3 * A_DAY)])
    for day in (1, 2, 3):
        expose(store, "ann", day=day)
        add_feedback(store, [feedback_on(new_id(MODEL.mark, subject_of("ann")), at=day * A_DAY)])
    assert store.prune(2 * A_DAY).deleted == 1
    assert [row[1] for row in exposures(store)] == [2 * A_DAY, 3 * A_DAY]
    assert len(store.query("SELECT 1 FROM bert4rec_feedback")) == 2


def test_of_forgotten_users_no_file_has_even_the_pseudonym(tmp_path: Path) -> None:
    """Whatever pages were split and merged meanwhile."""
    store = SQLiteHistory(tmp_path / "history.db")
    rng, users = random.Random(1), [f"somebody-{number:04}" for number in range(400)]
    for _ in range(60):
        for user in rng.sample(users, 40):
            expose(store, user, day=rng.randrange(30))
            add_feedback(store, [feedback_on(new_id(MODEL.mark, subject_of(user)), at=rng.randrange(30))])
    for user in users[::4]:
        assert store.forget(user) == (0, None)
        assert traces_of(tmp_path, subject_of(user)) == []
    assert traces_of(tmp_path, subject_of(users[1])) != []
    store.close()
    assert_sound(tmp_path / "history.db")


def test_a_store_of_an_earlier_version_takes_feedback_and_can_still_be_opened_by_that_version(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.db"
    SQLiteHistory(path).close()
    with sqlite3.connect(path) as connection:
        for table in ("served", "exposures", "feedback"):
            connection.execute(f"DROP TABLE bert4rec_{table}")
    connection.close()
    store = open_store(f"sqlite:///{path}")
    assert add_feedback(store, [feedback_on(new_id(MODEL.mark, None))]) == [True]
    assert store.query("PRAGMA user_version") == [(1,)]
    store.close()


def test_a_copy_of_a_store_has_the_feedback_too(tmp_path: Path) -> None:
    store = SQLiteHistory(tmp_path / "history.db")
    add_feedback(store, [feedback_on(new_id(MODEL.mark, subject_of("ann")))])
    back_up(str(tmp_path / "history.db"), tmp_path / "copy.db")
    store.close()
    assert check_store(str(tmp_path / "copy.db")).events == 0
    copy = SQLiteHistory(tmp_path / "copy.db")
    assert copy.query("SELECT subject FROM bert4rec_feedback") == [(subject_of("ann"),)]
    copy.close()


def test_a_full_disk_refuses_feedback_whole_and_still_forgets(tmp_path: Path) -> None:
    from bert4rec.store.events import StoreFullError

    store = SQLiteHistory(tmp_path / "history.db")
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages + 4}")
    kept = 0
    with pytest.raises(StoreFullError):
        for _ in range(100):
            add_feedback(store, [feedback_on(new_id(MODEL.mark, subject_of("ann"))) for _ in range(50)])
            kept += 50
    assert store.query("SELECT count(*) FROM bert4rec_feedback") == [(kept,)]
    store.forget("ann")
    assert store.query("SELECT count(*) FROM bert4rec_feedback") == [(0,)]
    store.close()
