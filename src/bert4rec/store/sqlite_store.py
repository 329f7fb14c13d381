"""The history store in one SQLite file beside the service, which several workers may share.

SQLite writes ahead (WAL) and syncs that file at every commit, so an acknowledged event survives `kill -9` and, where
the disk keeps its word, a power cut. Events of requests that arrive together share one commit, which is what makes the
sync affordable.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from bert4rec.errors import DataError, UsageError
from bert4rec.store.events import (
    Action,
    Event,
    Forgotten,
    StoreError,
    StoreFullError,
    find_conflicts,
    missing_actions,
    whole_history,
)
from bert4rec.store.feedback import SCHEMA as FEEDBACK_SCHEMA
from bert4rec.store.feedback import subject_of
from bert4rec.store.hiding import TABLES, Hiding, HidingsRead, HidingStatements
from bert4rec.store.sqlite_files import (
    WAIT_FOR_OTHER_WRITERS,
    Eraser,
    begin,
    create_private,
    empty_log,
    find_damage,
    free_bytes,
    is_damage,
    is_full,
    patiently,
    reason_of,
    way_out,
)

Result = TypeVar("Result")
APPLICATION = 0x62657274
"""Written into the file, which is recognised by it."""
SCHEMA = f"""
CREATE TABLE bert4rec_events (
    arrival INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL UNIQUE,
    user_id TEXT NOT NULL,
    item_id TEXT NOT NULL,
    timestamp INTEGER NOT NULL,
    event_type TEXT,
    recommendation_id TEXT);
CREATE INDEX bert4rec_events_by_user ON bert4rec_events (user_id, timestamp, arrival);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = 1"""
INSERT = """
INSERT INTO bert4rec_events (event_id, user_id, item_id, timestamp, event_type, recommendation_id)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (event_id) DO NOTHING"""
STORED = """
SELECT event_id, user_id, item_id, timestamp, event_type, recommendation_id
FROM bert4rec_events WHERE event_id = ?"""
NEWEST = """
SELECT event_id, user_id, item_id, timestamp, event_type, recommendation_id
FROM bert4rec_events WHERE user_id = ? ORDER BY timestamp DESC, arrival DESC LIMIT ?"""
ITEMS = "SELECT DISTINCT item_id FROM bert4rec_events WHERE user_id = ?"
ACTIONS = "SELECT user_id, item_id, timestamp FROM bert4rec_events WHERE user_id BETWEEN ? AND ?"
NEXT = """
SELECT arrival, event_id, user_id, item_id, timestamp, event_type, recommendation_id
FROM bert4rec_events WHERE arrival > ? ORDER BY arrival LIMIT ?"""
PRUNE = "DELETE FROM bert4rec_events WHERE arrival BETWEEN ? AND ? AND timestamp < ?"
LAST = "SELECT coalesce(max(arrival), 0) FROM bert4rec_events"
FORGET = "DELETE FROM bert4rec_events WHERE arrival IN (SELECT arrival FROM bert4rec_events WHERE user_id = ? LIMIT ?)"
REMOVE = "DELETE FROM bert4rec_events WHERE arrival IN (SELECT arrival FROM bert4rec_events WHERE event_id = ? LIMIT ?)"
FORGET_SUBJECT = (
    "DELETE FROM bert4rec_exposures WHERE rowid IN (SELECT rowid FROM bert4rec_exposures WHERE subject = ? LIMIT ?)",
    "DELETE FROM bert4rec_feedback WHERE rowid IN (SELECT rowid FROM bert4rec_feedback WHERE subject = ? LIMIT ?)",
)
PRUNE_COUNTS = (
    "DELETE FROM bert4rec_exposures WHERE rowid IN (SELECT rowid FROM bert4rec_exposures WHERE timestamp < ? LIMIT ?)",
    "DELETE FROM bert4rec_feedback WHERE rowid IN (SELECT rowid FROM bert4rec_feedback WHERE timestamp < ? LIMIT ?)",
)
HIDING = HidingStatements("?")
WAIT_FOR_ERASURE = 2.5
"""Seconds; a store of ten million events takes less than two."""
SHORT_OF_SPACE = 8 * 2**20
"""Bytes. With less left on the disk, the log is emptied after every commit, so that it takes no room from events."""
RESERVE = 2**18
"""Bytes that are left for deleting, which needs room for the pages it changes."""
ROWS_AT_ONCE = 20_000
"""How many rows are looked at in one transaction of a large deletion."""
FEW = 4
"""How many events are deleted in one transaction where there is hardly any room."""
LATER = (
    "The store's files may hold something of them for a while: erasing waits for whoever still reads the store as it "
    "was. The service's log says when it is done; a command leaves it to the next process that opens the store."
)
NOW_DAMAGED = "its file is damaged"


class SQLiteHistory:
    """One file beside the service. Several workers may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.description = f"SQLite at {self.path}"
        if not self.path.parent.is_dir():
            raise UsageError(f"`store`: the folder {self.path.parent} does not exist. Create it first.")
        self._writing, self._reading_list = Lock(), Lock()
        self._is_damaged = False
        try:
            create_private(self.path)
            self._writer = self._connect()
            self._create()
            self._reader, self._list_reader = self._connect(), self._connect()
            self._eraser = Eraser(self.path, self._connect, self._writing)
        except sqlite3.Error as error:
            if is_damage(error):
                raise self._damaged(reason_of(error)) from error
            raise UsageError(f"`store`: {self.path} cannot be used as a history store: {error}.") from error
        except OSError as error:
            raise UsageError(
                f"`store`: {self.path} cannot be used as a history store: {error.strerror}."
            ) from error
        # What an earlier process could not erase any more; it need not be waited for.
        self._eraser.erase(patience=0)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=WAIT_FOR_OTHER_WRITERS, isolation_level=None, check_same_thread=False
        )
        self._refuse_foreign(connection)
        # Several workers may open a new file at once.
        patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # deleted events are overwritten, not only unlinked
        return connection

    def _refuse_foreign(self, connection: sqlite3.Connection) -> None:
        """Before anything is changed: the database may belong to another program."""
        # In this order, for another worker may be making our own tables right now.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if tables and application != APPLICATION:
            raise DataError(f"`store`: {self.path} is a database of another program. Choose another file.")

    def _create(self) -> None:
        if damage := find_damage(self._writer, self.path):
            raise self._damaged(damage)
        with self._transaction() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in SCHEMA.split(";"):
                    connection.execute(statement)
            elif version != 1:
                raise DataError(
                    f"`store`: {self.path} has version {version}; this version of bert4rec reads version 1."
                )
            # Tables that earlier versions do not look at.
            for statement in (*FEEDBACK_SCHEMA.split(";"), *TABLES):
                connection.execute(statement)

    def _damaged(self, damage: str) -> DataError:
        return DataError(f"`store`: {self.path} is damaged: {damage}. {way_out(self.path)}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing:
            begin(self._writer)
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            finally:
                # An error may have ended the transaction by itself.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def add(self, events: Sequence[Event]) -> list[bool]:
        return self._keep(lambda connection: _insert(connection, events))

    def change(self, *changes: tuple[str, Sequence[tuple[object, ...]]]) -> list[bool]:
        return self._keep(
            lambda connection: [
                connection.execute(statement.replace("%s", "?"), row).rowcount == 1
                for statement, rows in changes
                for row in rows
            ]
        )

    def _keep(self, insert: Callable[[sqlite3.Connection], Result]) -> Result:
        """Add something in one transaction, with room left for deleting."""
        with self._translated_errors():
            left = free_bytes(self.path)
            if left < RESERVE and not self._has_free_pages():
                raise StoreFullError("the disk of the history store is full")
            try:
                with self._transaction() as connection:
                    kept = insert(connection)
            except sqlite3.Error as error:
                if not is_full(error):
                    raise
                self._empty_log()  # which holds what could not be committed, and more
                with self._transaction() as connection:
                    kept = insert(connection)
            if left < SHORT_OF_SPACE:
                self._empty_log()
        return kept

    def _has_free_pages(self) -> bool:
        """Whether deleted events have left room in the file, so that it need not grow."""
        with self._writing:
            return bool(self._writer.execute("PRAGMA freelist_count").fetchone()[0])

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._translated_errors():
            return self._reader.execute(statement.replace("%s", "?"), values).fetchall()

    def newest(self, user_id: str, limit: int) -> list[Event]:
        with self._translated_errors():
            rows = self._reader.execute(NEWEST, (user_id, limit)).fetchall()
        return [Event._make(row) for row in reversed(rows)]

    def items_of(self, user_id: str, limit: int) -> list[str]:
        newest = [event.item_id for event in self.newest(user_id, limit)]
        if len(newest) < limit:
            return newest
        with self._translated_errors():
            return whole_history(newest, [item for (item,) in self._reader.execute(ITEMS, (user_id,))])

    def add_missing(self, actions: Sequence[Action], first_id: str) -> int:
        with self._translated_errors():
            if free_bytes(self.path) < RESERVE:
                raise StoreFullError("the disk of the history store is full")
            with self._transaction() as connection:
                # In the same transaction, so that nobody adds one of them meanwhile.
                stored = connection.execute(ACTIONS, (actions[0][0], actions[-1][0]))
                missing = missing_actions(actions, stored)
                connection.executemany(
                    INSERT, ((f"{first_id}-{n}", *action, None, None) for n, action in enumerate(missing))
                )
        return len(missing)

    def all_events(self, at_once: int) -> Iterator[list[Event]]:
        arrival = 0
        with self._translated_errors():
            while rows := self._reader.execute(NEXT, (arrival, at_once)).fetchall():
                yield [Event._make(row[1:]) for row in rows]
                arrival = rows[-1][0]

    def prune(self, before: int) -> Forgotten:
        """A part of the file at a time, so that others can write in between."""
        deleted = 0
        with self._translated_errors():
            (last,) = self._reader.execute(LAST).fetchone()
            for first in range(0, last + 1, ROWS_AT_ONCE):
                with self._transaction() as connection:
                    found = connection.execute(PRUNE, (first, first + ROWS_AT_ONCE - 1, before))
                    deleted += found.rowcount
            for statement in PRUNE_COUNTS:
                last = ROWS_AT_ONCE
                while last:
                    with self._transaction() as connection:
                        last = connection.execute(statement, (before, ROWS_AT_ONCE)).rowcount
        return self._erased(deleted)

    def forget(self, user_id: str) -> Forgotten:
        for statement in FORGET_SUBJECT:
            self._delete(statement, subject_of(user_id))
        return self._erased(self._delete(FORGET, user_id))

    def forget_counts(self, subjects: Sequence[str]) -> Forgotten:
        deleted = sum(self._delete(FORGET_SUBJECT[0], each) for each in subjects)
        return self._erased(deleted) if deleted else Forgotten(0, None)

    def remove(self, event_id: str) -> Forgotten:
        return self._erased(self._delete(REMOVE, event_id))

    def hide(self, hidings: Sequence[Hiding], instead_of: Sequence[str] = ()) -> None:
        with self._translated_errors(), self._transaction() as connection:
            HIDING.hide(connection.cursor(), hidings, instead_of)

    def unhide(self, item_ids: Sequence[str]) -> int:
        with self._translated_errors(), self._transaction() as connection:
            return HIDING.unhide(connection.cursor(), item_ids)

    def hidden(self, known: int | None = None) -> HidingsRead | None:
        """By a connection of its own: one on which something else is being read sees the store as it was before."""
        with self._translated_errors(), self._reading_list:
            return HIDING.read(self._list_reader.cursor(), known)

    def _delete(self, statement: str, of: str) -> int:
        with self._translated_errors():
            try:
                with self._transaction() as connection:
                    return connection.execute(statement, (of, -1)).rowcount
            except sqlite3.Error as error:
                if not is_full(error):
                    raise
                return self._delete_few_by_few(statement, of)

    def _erased(self, deleted: int) -> Forgotten:
        is_erased = self._eraser.erase(patience=WAIT_FOR_ERASURE)
        return Forgotten(deleted, None if is_erased else LATER)

    def _delete_few_by_few(self, statement: str, of: str) -> int:
        """On a full disk: every transaction finds the room that the one before it had."""
        deleted, last = 0, FEW
        while last:
            self._empty_log()
            with self._transaction() as connection:
                last = connection.execute(statement, (of, FEW)).rowcount
            deleted += last
        return deleted

    def _empty_log(self) -> None:
        """Without complaint if somebody reads it: what was asked for is done."""
        with self._writing, suppress(sqlite3.Error):
            self._writer.execute("PRAGMA busy_timeout = 100")
            empty_log(self._writer)

    def interrupt(self) -> None:
        for connection in (self._reader, self._list_reader, self._writer):
            connection.interrupt()

    def close(self) -> None:
        for connection in (self._reader, self._list_reader, self._writer):
            connection.close()
        self._eraser.close()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Errors of SQLite as ours. Once the file is known to be damaged, nothing is acknowledged any more."""
        try:
            if self._is_damaged:
                raise StoreError(f"{NOW_DAMAGED}. {way_out(self.path)}")
            yield
        except OSError as error:
            raise StoreError(f"the history store is unavailable: {error.strerror}") from error
        except sqlite3.Error as error:
            if is_full(error):
                self._empty_log()
                raise StoreFullError("the disk of the history store is full") from error
            if is_damage(error):
                self._is_damaged = True
                raise StoreError(f"{NOW_DAMAGED}: {reason_of(error)}. {way_out(self.path)}") from error
            raise StoreError(f"the history store is unavailable: {reason_of(error)}") from error


def _insert(connection: sqlite3.Connection, events: Sequence[Event]) -> list[bool]:
    """Add all events, or raise EventConflictError where an id is that of another event."""
    is_new = [connection.execute(INSERT, event).rowcount == 1 for event in events]
    if not all(is_new):
        repeated = [event.event_id for event, new in zip(events, is_new, strict=True) if not new]
        rows = [connection.execute(STORED, (each,)).fetchone() for each in repeated]
        find_conflicts(events, is_new, {row[0]: Event._make(row) for row in rows})
    return is_new
