"""The history store in a PostgreSQL database, which several machines may share.

Connections that break are opened again by the next call, and a call that met a broken one is made once more:
adding is safe to repeat, because an event id counts once. What was added by a call whose answer got lost is then
reported as a duplicate.
"""

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

from bert4rec.errors import UsageError
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
from bert4rec.store.feedback import TABLES as FEEDBACK_TABLES
from bert4rec.store.feedback import subject_of
from bert4rec.store.hiding import TABLES, Hiding, HidingsRead, HidingStatements

if TYPE_CHECKING:
    import psycopg

Result = TypeVar("Result")
DEFAULTS = {
    "connect_timeout": 3,
    "application_name": "bert4rec",
    "client_encoding": "utf8",
    # A server whose machine or network has failed is noticed within seconds, whether or not we wait for an answer.
    "tcp_user_timeout": 5000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
STATEMENT_TIMEOUT = "5s"
REST_AFTER_FAILURE = 0.5
"""Seconds without another attempt, so that requests are refused at once while the server is down."""
SCHEMA_LOCK = 0x62657274  # workers that start together create the table one after the other
IMPORT_LOCK = SCHEMA_LOCK + 1  # two imports would both miss what the other is adding
SCHEMA = """
CREATE TABLE IF NOT EXISTS bert4rec_events (
    arrival bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL UNIQUE,
    user_id text NOT NULL,
    item_id text NOT NULL,
    timestamp bigint NOT NULL,
    event_type text,
    recommendation_id text);
CREATE INDEX IF NOT EXISTS bert4rec_events_by_user ON bert4rec_events (user_id, timestamp, arrival)"""
# One statement, so one round trip, however many events.
INSERT = """
INSERT INTO bert4rec_events (event_id, user_id, item_id, timestamp, event_type, recommendation_id)
SELECT e, u, i, t, y, r
FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::text[])
    WITH ORDINALITY AS given (e, u, i, t, y, r, place)
ORDER BY place
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id"""
NEWEST = """
SELECT event_id, user_id, item_id, timestamp, event_type, recommendation_id
FROM bert4rec_events WHERE user_id = %s ORDER BY timestamp DESC, arrival DESC LIMIT %s"""
STORED = """
SELECT event_id, user_id, item_id, timestamp, event_type, recommendation_id
FROM bert4rec_events WHERE event_id = ANY(%s)"""
ITEMS = "SELECT DISTINCT item_id FROM bert4rec_events WHERE user_id = %s"
ACTIONS = "SELECT user_id, item_id, timestamp FROM bert4rec_events WHERE user_id = ANY(%s)"
NEXT = """
SELECT arrival, event_id, user_id, item_id, timestamp, event_type, recommendation_id
FROM bert4rec_events WHERE arrival > %s ORDER BY arrival LIMIT %s"""
PRUNE = "DELETE FROM bert4rec_events WHERE arrival BETWEEN %s AND %s AND timestamp < %s"
LAST = "SELECT coalesce(max(arrival), 0) FROM bert4rec_events"
COPY = "COPY bert4rec_events (event_id, user_id, item_id, timestamp) FROM STDIN"
ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""What has a meaning in the text that COPY reads."""
ROWS_AT_ONCE = 50_000
FORGET = "DELETE FROM bert4rec_events WHERE user_id = %s"
REMOVE = "DELETE FROM bert4rec_events WHERE event_id = %s"
FORGET_SUBJECT = (
    "DELETE FROM bert4rec_exposures WHERE subject = %s",
    "DELETE FROM bert4rec_feedback WHERE subject = %s",
)
PRUNE_COUNTS = (
    "DELETE FROM bert4rec_exposures WHERE ctid = ANY(ARRAY("
    "SELECT ctid FROM bert4rec_exposures WHERE timestamp < %s LIMIT %s))",
    "DELETE FROM bert4rec_feedback WHERE ctid = ANY(ARRAY("
    "SELECT ctid FROM bert4rec_feedback WHERE timestamp < %s LIMIT %s))",
)
MISSING = "SELECT count(*) FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL"
HIDING = HidingStatements("%s")
TRACES = (
    "No query finds the events any more. The database server's files, its write-ahead log and backups may hold them "
    "until its VACUUM and its rotation of the log reuse the space."
)


class PostgresHistory:
    """One connection for each thread that calls."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise UsageError(
                "`store`: postgresql://… requires psycopg: pip install 'bert4rec[postgres]'."
            ) from error
        try:
            self._settings: dict[str, Any] = {**DEFAULTS, **conninfo_to_dict(url)}
        except psycopg.ProgrammingError as error:
            # Not what psycopg says of it: that may quote the password.
            raise UsageError(
                "`store`: this is not the address of a PostgreSQL database. "
                "Expected postgresql://user:password@host:port/database."
            ) from error
        where = self._settings.get("host", "its default socket")
        self.path = None
        self.description = f"PostgreSQL at {where}, database {self._settings.get('dbname', '(default)')}"
        self._threads = threading.local()
        self._opened: set[psycopg.Connection] = set()
        self._resting_until = 0.0

    def add(self, events: Sequence[Event]) -> list[bool]:
        return self._call(lambda connection: _add(connection, events))

    def change(self, *changes: tuple[LiteralString, Sequence[tuple[object, ...]]]) -> list[bool]:
        return self._call(lambda connection: _change(connection, changes))

    def newest(self, user_id: str, limit: int) -> list[Event]:
        rows = self._call(lambda connection: connection.execute(NEWEST, (user_id, limit)).fetchall())
        return [Event._make(row) for row in reversed(rows)]

    def query(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """All rows that a statement gives."""
        return self._call(lambda connection: connection.execute(statement, values).fetchall())

    def items_of(self, user_id: str, limit: int) -> list[str]:
        newest = [event.item_id for event in self.newest(user_id, limit)]
        if len(newest) < limit:
            return newest
        return whole_history(newest, [item for (item,) in self.query(ITEMS, user_id)])

    def add_missing(self, actions: Sequence[Action], first_id: str) -> int:
        return self._call(lambda connection: _add_missing(connection, actions, first_id))

    def all_events(self, at_once: int) -> Iterator[list[Event]]:
        arrival = 0
        while rows := self.query(NEXT, arrival, at_once):
            yield [Event._make(row[1:]) for row in rows]
            arrival = rows[-1][0]

    def prune(self, before: int) -> Forgotten:
        """Some rows at a time: a statement may not take long."""
        deleted = 0
        ((last,),) = self.query(LAST)
        for first in range(0, last + 1, ROWS_AT_ONCE):
            deleted += self._delete(PRUNE, first, first + ROWS_AT_ONCE - 1, before).deleted
        for statement in PRUNE_COUNTS:
            while self._delete(statement, before, ROWS_AT_ONCE).deleted:
                pass
        return Forgotten(deleted, TRACES if deleted else None)

    def forget(self, user_id: str) -> Forgotten:
        for statement in FORGET_SUBJECT:
            self._delete(statement, subject_of(user_id))
        return self._delete(FORGET, user_id)

    def forget_counts(self, subjects: Sequence[str]) -> Forgotten:
        deleted = sum(self._delete(FORGET_SUBJECT[0], each).deleted for each in subjects)
        return Forgotten(deleted, TRACES if deleted else None)

    def remove(self, event_id: str) -> Forgotten:
        return self._delete(REMOVE, event_id)

    def hide(self, hidings: Sequence[Hiding], instead_of: Sequence[str] = ()) -> None:
        self._change(lambda cursor: HIDING.hide(cursor, hidings, instead_of))

    def unhide(self, item_ids: Sequence[str]) -> int:
        return self._change(lambda cursor: HIDING.unhide(cursor, item_ids))

    def hidden(self, known: int | None = None) -> HidingsRead | None:
        return self._call(lambda connection: HIDING.read(connection.cursor(), known))

    def _change(self, action: Callable[["psycopg.Cursor"], Result]) -> Result:
        """Do something in one transaction."""

        def change(connection: "psycopg.Connection") -> Result:
            with connection.transaction(), connection.cursor() as cursor:
                return action(cursor)

        return self._call(change)

    def _delete(self, statement: LiteralString, *which: object) -> Forgotten:
        deleted = self._call(lambda connection: connection.execute(statement, which).rowcount)
        return Forgotten(deleted, TRACES if deleted else None)

    def interrupt(self) -> None:
        """Cuts the connections: calls that wait for one fail because it is closed."""
        import psycopg

        self._resting_until = math.inf
        for connection in list(self._opened):
            with (
                suppress(OSError, psycopg.Error),
                socket.socket(fileno=os.dup(connection.fileno())) as channel,
            ):
                channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connection in self._opened:
            connection.close()

    def _call(self, action: Callable[["psycopg.Connection"], Result]) -> Result:
        """Do something with a connection; once more with a new one where that fails."""
        import psycopg

        failure: psycopg.Error | None = None
        for _ in range(2):
            if time.monotonic() < self._resting_until:
                raise StoreError("the database of the history store cannot be reached")
            try:
                return action(self._connection())
            except psycopg.errors.DiskFull as error:
                raise StoreFullError("the disk of the history store is full") from error
            except psycopg.Error as error:
                failure = error
                self._discard()
        self._resting_until = max(self._resting_until, time.monotonic() + REST_AFTER_FAILURE)
        assert failure is not None
        # Of what the server says, the first part: the rest may quote what users sent.
        reason = failure.diag.message_primary or str(failure).strip()
        raise StoreError(f"the history store is unavailable: {reason}") from failure

    def _connection(self) -> "psycopg.Connection":
        import psycopg

        known: psycopg.Connection | None = getattr(self._threads, "connection", None)
        if known is not None:
            return known
        connection = psycopg.connect(**self._settings, autocommit=True)
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            connection.close()
            raise StoreError(f"the database is encoded as {encoding}; create one with ENCODING 'UTF8'")
        self._threads.connection = connection
        self._opened.add(connection)
        connection.execute("SELECT set_config('statement_timeout', %s, false)", (STATEMENT_TIMEOUT,))
        ours = ["bert4rec_events", "bert4rec_hidden", "bert4rec_changes", *FEEDBACK_TABLES]
        if connection.execute(MISSING, (ours,)).fetchone() != (0,):
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
                for statement in (SCHEMA, FEEDBACK_SCHEMA, *TABLES):
                    connection.execute(statement)
        return connection

    def _discard(self) -> None:
        connection: psycopg.Connection | None = getattr(self._threads, "connection", None)
        if connection is not None:
            self._opened.discard(connection)
            connection.close()
        self._threads.connection = None


def _add(connection: "psycopg.Connection", events: Sequence[Event]) -> list[bool]:
    """Add all events in one transaction, or none where an id is that of another event."""
    columns = [list(column) for column in zip(*events, strict=True)] or [[]] * len(Event._fields)
    with connection.transaction():
        new = {event_id for (event_id,) in connection.execute(INSERT, columns).fetchall()}
        is_new = []
        for event in events:
            is_new.append(event.event_id in new)
            new.discard(event.event_id)  # the same id again, within this call
        if not all(is_new):
            repeated = [
                event.event_id for event, is_first in zip(events, is_new, strict=True) if not is_first
            ]
            rows = connection.execute(STORED, (repeated,)).fetchall()
            find_conflicts(events, is_new, {row[0]: Event._make(row) for row in rows})
    return is_new


def _change(
    connection: "psycopg.Connection", changes: Sequence[tuple[LiteralString, Sequence[tuple[object, ...]]]]
) -> list[bool]:
    changed = []
    with connection.transaction(), connection.cursor() as cursor:
        for statement, rows in changes:
            cursor.executemany(statement + " RETURNING 1", rows, returning=True)  # one round trip for all
            is_left = bool(rows)
            while is_left:
                changed.append(cursor.rowcount == 1)
                is_left = bool(cursor.nextset())
    return changed


def _add_missing(connection: "psycopg.Connection", actions: Sequence[Action], first_id: str) -> int:
    users = list(dict.fromkeys(user for user, _, _ in actions))
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (IMPORT_LOCK,))
        missing = missing_actions(actions, connection.execute(ACTIONS, (users,)).fetchall())
        with connection.cursor() as cursor, cursor.copy(COPY) as copy:
            # All at once: a row at a time takes several times as long.
            copy.write(
                "".join(
                    f"{first_id}-{number}\t{user.translate(ESCAPES)}\t{item.translate(ESCAPES)}\t{moment}\n"
                    for number, (user, item, moment) in enumerate(missing)
                )
            )
    return len(missing)
