"""What users did, stored: the store behind `POST /v1/events` and recommendations by user.

An event is acknowledged when it is on disk. SQLite writes ahead (WAL) and syncs that file at every commit, so an
acknowledged event survives `kill -9` and, where the disk keeps its word, a power cut. Events of requests that
arrive together share one commit, which is what makes the sync affordable.

Events have ids of the sender's choosing: the first event with an id counts, every later one is a duplicate,
whatever it says. A user's history is ordered by timestamp, and by arrival where timestamps are equal.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol

from bert4rec.errors import DataError, UsageError

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
NEWEST = """
SELECT event_id, user_id, item_id, timestamp, event_type, recommendation_id
FROM bert4rec_events WHERE user_id = ? ORDER BY timestamp DESC, arrival DESC LIMIT ?"""
FORGET = "DELETE FROM bert4rec_events WHERE user_id = ?"
WAIT_FOR_OTHER_WRITERS = 3.0
"""Seconds; only several workers that write to one SQLite file ever wait."""


class Event(NamedTuple):
    event_id: str
    user_id: str
    item_id: str
    timestamp: int
    """Microseconds since 1970."""
    event_type: str | None = None
    recommendation_id: str | None = None


class StoreError(Exception):
    """The store is unavailable now. Requests that need it may be repeated later."""


class StoreFullError(StoreError):
    """There is no room left; nothing of the request was stored."""


class HistoryStore(Protocol):
    """Every call may be made from any thread, blocks, and raises StoreError where the store is unavailable."""

    description: str
    """For people, without secrets."""

    def add(self, events: Sequence[Event]) -> list[bool]:
        """Keep all events or, where that fails, none; whether each was new. Returns when they are on disk."""

    def newest(self, user_id: str, limit: int) -> list[Event]:
        """The user's last events, oldest first."""

    def forget(self, user_id: str) -> int:
        """Remove all events of a user; how many there were. Their ids may be used again."""

    def interrupt(self) -> None:
        """Let calls under way fail soon, even where the store does not answer. Only `close` may follow."""

    def close(self) -> None:
        """When no call is under way any more."""


def open_store(url: str) -> HistoryStore:
    """The store a URL names: sqlite:///relative.db, sqlite:////absolute.db or postgresql://user@host/database.

    A database server that is unavailable is not an error here: it may come back.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return SQLiteHistory(Path(rest[1:]))
    if scheme in ("postgresql", "postgres") and separator:
        from bert4rec.service.store_postgres import PostgresHistory

        return PostgresHistory(url)
    found = f"{scheme}://…" if separator else repr(url)  # the rest may hold a password
    raise UsageError(
        f"`store`: {found} is not a known address. Expected sqlite:///history.db (in this folder), "
        "sqlite:////var/lib/history.db (absolute) or postgresql://user@host/database."
    )


class SQLiteHistory:
    """One file beside the service. Several workers may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.description = f"SQLite at {self.path}"
        if not self.path.parent.is_dir():
            raise UsageError(f"`store`: the folder {self.path.parent} does not exist. Create it first.")
        self._writing = Lock()
        try:
            self._writer = self._connect()
            self._create()
            self._reader = self._connect()
        except sqlite3.Error as error:
            kind = (
                DataError if _code(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT) else UsageError
            )
            raise kind(f"`store`: {self.path} cannot be used as a history store: {error}.") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=WAIT_FOR_OTHER_WRITERS, isolation_level=None, check_same_thread=False
        )
        self._refuse_foreign(connection)
        connection.execute("PRAGMA journal_mode = WAL")
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
        with self._transaction() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in SCHEMA.split(";"):
                    connection.execute(statement)
            elif version != 1:
                raise DataError(
                    f"`store`: {self.path} has version {version}; this version of bert4rec reads version 1."
                )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            finally:
                # An error may have ended the transaction by itself.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def add(self, events: Sequence[Event]) -> list[bool]:
        with _translated_errors(), self._transaction() as connection:
            return [connection.execute(INSERT, event).rowcount == 1 for event in events]

    def newest(self, user_id: str, limit: int) -> list[Event]:
        with _translated_errors():
            rows = self._reader.execute(NEWEST, (user_id, limit)).fetchall()
        return [Event._make(row) for row in reversed(rows)]

    def forget(self, user_id: str) -> int:
        with _translated_errors():
            with self._transaction() as connection:
                count = connection.execute(FORGET, (user_id,)).rowcount
            # The log of writes still holds them; it is emptied as soon as nobody reads it.
            with self._writing:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return count

    def interrupt(self) -> None:
        self._reader.interrupt()
        self._writer.interrupt()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if _code(error) == sqlite3.SQLITE_FULL:
            raise StoreFullError("the disk of the history store is full") from error
        raise StoreError(f"the history store is unavailable: {error}") from error


def _code(error: sqlite3.Error) -> int:
    """The kind of the error, without its finer distinctions."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
