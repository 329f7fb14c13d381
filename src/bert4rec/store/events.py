"""An event, what every store of events promises, and which store an address names.

An event is acknowledged when it is on disk. Events have ids of the sender's choosing: the first event with an id
counts, the same event again is a duplicate, and another one with the same id is refused. A user's history is ordered
by timestamp, and by arrival where timestamps are equal.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, LiteralString, NamedTuple, Protocol

from bert4rec.errors import UsageError
from bert4rec.store.hiding import Hiding, HidingsRead


class Event(NamedTuple):
    event_id: str
    user_id: str
    item_id: str
    timestamp: int
    """Microseconds since 1970."""
    event_type: str | None = None
    recommendation_id: str | None = None


Action = tuple[str, str, int]
"""User, item and microseconds since 1970: what a log knows of an event."""


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

    @property
    def path(self) -> Path | None:
        """Its file, if it is one."""

    def add(self, events: Sequence[Event]) -> list[bool]:
        """Keep all events or, where that fails, none; whether each was new. Returns when they are on disk.

        Raises EventConflictError where an id is that of another event.
        """

    def newest(self, user_id: str, limit: int) -> list[Event]:
        """The user's last events, oldest first."""

    def items_of(self, user_id: str, limit: int) -> list[str]:
        """The items of a user's whole history: those of the last `limit` events in their order, oldest first, and
        before them once each all others."""

    def add_missing(self, actions: Sequence[Action], first_id: str) -> int:
        """Add whole histories, sorted by user, without what is already there; how many actions that is.

        Their event ids are `first_id` and numbers behind it.
        """

    def all_events(self, at_once: int) -> Iterator[list[Event]]:
        """All events, in the order of their arrival."""

    def prune(self, before: int) -> Forgotten:
        """Remove all events before a moment, in microseconds since 1970, and what tests counted before it."""

    def forget(self, user_id: str) -> Forgotten:
        """Remove all events of a user, whose ids may be used again, and what tests counted of the user."""

    def forget_counts(self, subjects: Sequence[str]) -> Forgotten:
        """Remove how many recommendations tests counted of some users, under the digests of their ids."""

    def remove(self, event_id: str) -> Forgotten:
        """Remove one event. Its id may be used again."""

    def query(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """All rows that a statement gives. Values stand where it has `%s`."""

    def change(self, *changes: tuple[LiteralString, Sequence[tuple[object, ...]]]) -> list[bool]:
        """Run each statement once for each of its rows, all in one transaction; whether each changed something."""

    def hide(self, hidings: Sequence[Hiding], instead_of: Sequence[str] = ()) -> None:
        """Hide items, each of them once. What was said of them before is replaced, and what was said of `instead_of`,
        other ids of theirs, is dropped. Returns when it is on disk."""

    def unhide(self, item_ids: Sequence[str]) -> int:
        """Show items again, each named once; how many of them were in the list."""

    def hidden(self, known: int | None = None) -> HidingsRead | None:
        """What is, was or will be hidden, or what of it has changed since version `known`; None if nothing has."""

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


def whole_history(newest: Sequence[str], others: Sequence[str]) -> list[str]:
    """What `HistoryStore.items_of` gives, of the newest items, oldest first, and all items in any order."""
    recent = set(newest)
    return [*(item for item in others if item not in recent), *newest]


def missing_actions(actions: Sequence[Action], stored: Iterable[Action]) -> Sequence[Action]:
    """The actions that are not stored yet. Where a user did the same twice in a moment, both count."""
    left = Counter(stored)
    if not left:
        return actions
    missing = []
    for action in actions:
        if left[action] > 0:
            left[action] -= 1
        else:
            missing.append(action)
    return missing


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
