"""An event, what every store of events promises, and which store an address names.

An event is acknowledged when it is on disk. Events have ids of the sender's choosing: the first event with an id
counts, the same event again is a duplicate, and another one with the same id is refused. A user's history is ordered
by timestamp, and by arrival where timestamps are equal.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from bert4rec.errors import UsageError


class Event(NamedTuple):
    event_id: str
    user_id: str
    item_id: str
    timestamp: int
    """Microseconds since 1970."""
    event_type: str | None = None
    recommendation_id: str | None = None


class Forgotten(NamedTuple):
    """What became of events that were to be deleted."""

    deleted: int
    traces: str | None
    """Where something of them is left and until when, in a sentence; None if no file holds anything of them."""


class StoreError(Exception):
    """The store is unavailable now. Requests that need it may be repeated later."""


class StoreFullError(StoreError):
    """There is no room left; nothing of the request was stored."""


class EventConflictError(Exception):
    """Some events have the id of another event; nothing of the request was stored."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(f"{len(places)} events have the id of another event")
        self.places = places
        """Of these events in the request."""


class HistoryStore(Protocol):
    """Every call may be made from any thread, blocks, and raises StoreError where the store is unavailable."""

    description: str
    """For people, without secrets."""

    def add(self, events: Sequence[Event]) -> list[bool]:
        """Keep all events or, where that fails, none; whether each was new. Returns when they are on disk.

        Raises EventConflictError where an id is that of another event.
        """

    def newest(self, user_id: str, limit: int) -> list[Event]:
        """The user's last events, oldest first."""

    def forget(self, user_id: str) -> Forgotten:
        """Remove all events of a user. Their ids may be used again."""

    def remove(self, event_id: str) -> Forgotten:
        """Remove one event. Its id may be used again."""

    def interrupt(self) -> None:
        """Let calls under way fail soon, even where the store does not answer. Only `close` may follow."""

    def close(self) -> None:
        """When no call is under way any more."""


def open_store(url: str) -> HistoryStore:
    """The store a URL names: sqlite:///relative.db, sqlite:////absolute.db or postgresql://user@host/database.

    A database server that is unavailable is not an error here: it may come back. A file that is damaged is.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        from bert4rec.store.sqlite_store import SQLiteHistory

        return SQLiteHistory(Path(rest[1:]))
    if scheme in ("postgresql", "postgres") and separator:
        from bert4rec.store.postgres_store import PostgresHistory

        return PostgresHistory(url)
    found = f"{scheme}://…" if separator else repr(url)  # the rest may hold a password
    raise UsageError(
        f"`store`: {found} is not a known address. Expected sqlite:///history.db (in this folder), "
        "sqlite:////var/lib/history.db (absolute) or postgresql://user@host/database."
    )


def find_conflicts(events: Sequence[Event], is_new: Sequence[bool], stored: dict[str, Event]) -> None:
    """Raise EventConflictError if an event that is not new is not the one that has its id."""
    known = dict(stored)
    places = []
    for place, (event, new) in enumerate(zip(events, is_new, strict=True)):
        if new:
            known[event.event_id] = event
        elif known.get(event.event_id, event) != event:
            places.append(place)
    if places:
        raise EventConflictError(places)
