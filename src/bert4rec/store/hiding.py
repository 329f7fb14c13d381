"""Items that are hidden: never recommended, from a moment on and until another.

Both stores keep them in the same two tables. The second has a number that grows with every change, and each row of the
first has the number of its own. So whoever knows the list of a moment ago learns by one number whether it still holds,
and reads nothing but what has changed. What is shown again stays for a while, without dates, to be read by them.
"""

import time
from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

TABLES: tuple[LiteralString, ...] = (
    """
CREATE TABLE IF NOT EXISTS bert4rec_hidden (
    item_id text PRIMARY KEY,
    hidden_from bigint,
    hidden_until bigint,
    version bigint NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS bert4rec_hidden_by_version ON bert4rec_hidden (version)",
    """
CREATE TABLE IF NOT EXISTS bert4rec_changes (
    what text PRIMARY KEY,
    version bigint NOT NULL)""",
)
"""The types are PostgreSQL's; SQLite takes them for its own."""
COUNT_CHANGE: LiteralString = """
INSERT INTO bert4rec_changes (what, version) VALUES ('hidden', 1)
ON CONFLICT (what) DO UPDATE SET version = bert4rec_changes.version + 1"""
VERSION: LiteralString = "SELECT version FROM bert4rec_changes WHERE what = 'hidden'"
HIDE: LiteralString = """
INSERT INTO bert4rec_hidden (item_id, hidden_from, hidden_until, version) VALUES (?, ?, ?, ?)
ON CONFLICT (item_id) DO UPDATE
SET hidden_from = excluded.hidden_from, hidden_until = excluded.hidden_until, version = excluded.version"""
UNHIDE: LiteralString = """
UPDATE bert4rec_hidden SET hidden_from = NULL, hidden_until = NULL, version = ?
WHERE item_id = ? AND hidden_from IS NOT NULL"""
DROP_SHOWN: LiteralString = "DELETE FROM bert4rec_hidden WHERE hidden_from IS NULL AND version <= ?"
ALL: LiteralString = """
SELECT item_id, hidden_from, hidden_until FROM bert4rec_hidden WHERE hidden_from IS NOT NULL
ORDER BY hidden_from DESC, item_id"""
SINCE: LiteralString = "SELECT item_id, hidden_from, hidden_until FROM bert4rec_hidden WHERE version > ?"
CHANGES_KEPT = 1000
"""Who has missed more of them reads the whole list."""


class Hiding(NamedTuple):
    """An item that is hidden for a while, or for good."""

    item_id: str
    begin: int
    """Microseconds since 1970."""
    end: int | None = None
    """The first moment at which it is not hidden any more; None if there is none."""

    def holds_at(self, moment: int) -> bool:
        return self.begin <= moment and (self.end is None or moment < self.end)


class HidingsRead(NamedTuple):
    """What is, was or will be hidden: all of it, or what has changed."""

    version: int
    """Another one whenever something has changed."""
    hidings: list[Hiding]
    """Of the whole list, the latest to begin first."""
    shown: list[str]
    """Items that are not in the list any more."""
    is_whole: bool


def now() -> int:
    """In microseconds since 1970."""
    return time.time_ns() // 1000


class HidingStatements:
    """What is done with the tables, by the cursor of a database, within a transaction if something is changed."""

    def __init__(self, value: LiteralString) -> None:
        """`value` is what stands for a value in the statements of the database."""
        self._hide, self._unhide, self._drop_shown, self._since = (
            each.replace("?", value) for each in (HIDE, UNHIDE, DROP_SHOWN, SINCE)
        )

    def hide(self, cursor: Any, hidings: Sequence[Hiding], instead_of: Sequence[str] = ()) -> None:
        version = self._next_version(cursor)
        if instead_of:
            cursor.executemany(self._unhide, [(version, each) for each in instead_of])
        cursor.executemany(self._hide, [(*each, version) for each in hidings])

    def unhide(self, cursor: Any, item_ids: Sequence[str]) -> int:
        version = self._next_version(cursor)
        cursor.execute(self._drop_shown, (version - CHANGES_KEPT,))
        cursor.executemany(self._unhide, [(version, each) for each in item_ids])
        count: int = cursor.rowcount
        return count

    def read(self, cursor: Any, known: int | None) -> HidingsRead | None:
        """What has changed since version `known`, or everything; None if nothing has."""
        version = self._version(cursor)
        if version == known:
            return None
        is_whole = known is None or not 0 < version - known <= CHANGES_KEPT
        # What others change between the two reads is read now, and once more under its own version.
        rows = cursor.execute(*((ALL,) if is_whole else (self._since, (known,)))).fetchall()
        hidings = [Hiding._make(row) for row in rows if row[1] is not None]
        return HidingsRead(version, hidings, [row[0] for row in rows if row[1] is None], is_whole)

    def _next_version(self, cursor: Any) -> int:
        """First of all: whoever else changes something waits for this row, so that changes come in their order."""
        cursor.execute(COUNT_CHANGE)
        return self._version(cursor)

    @staticmethod
    def _version(cursor: Any) -> int:
        found = cursor.execute(VERSION).fetchone()
        return found[0] if found else 0
