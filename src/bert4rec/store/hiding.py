"""Items that are hidden: never recommended, from a moment on and until another.

Both stores keep them in the same two tables. The second counts the changes of the first, so that whoever knows the list
of a moment ago is told by one number whether it still holds.
"""

import time
from collections.abc import Sequence
from typing import Any, LiteralString, NamedTuple

TABLES: tuple[LiteralString, ...] = (
    """
CREATE TABLE IF NOT EXISTS bert4rec_hidden (
    item_id text PRIMARY KEY,
    hidden_from bigint NOT NULL,
    hidden_until bigint)""",
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
ALL: LiteralString = """
SELECT item_id, hidden_from, hidden_until FROM bert4rec_hidden ORDER BY hidden_from DESC, item_id"""


HIDE: LiteralString = """
INSERT INTO bert4rec_hidden (item_id, hidden_from, hidden_until) VALUES (?, ?, ?)
ON CONFLICT (item_id) DO UPDATE SET hidden_from = excluded.hidden_from, hidden_until = excluded.hidden_until"""
UNHIDE: LiteralString = "DELETE FROM bert4rec_hidden WHERE item_id = ?"


class Hiding(NamedTuple):
    """An item that is hidden for a while, or for good."""

    item_id: str
    begin: int
    """Microseconds since 1970."""
    end: int | None = None
    """The first moment at which it is not hidden any more; None if there is none."""

    def holds_at(self, moment: int) -> bool:
        return self.begin <= moment and (self.end is None or moment < self.end)


class HiddenList(NamedTuple):
    """All that is, was or will be hidden, as it stood at a moment."""

    version: int
    """Another one whenever something has changed."""
    hidings: list[Hiding]
    """The latest to begin first."""


def now() -> int:
    """In microseconds since 1970."""
    return time.time_ns() // 1000


class HidingStatements:
    """What is done with the tables, by the cursor of a database within a transaction."""

    def __init__(self, value: LiteralString) -> None:
        """`value` is what stands for a value in the statements of the database."""
        self._hide, self._unhide = (each.replace("?", value) for each in (HIDE, UNHIDE))

    def hide(self, cursor: Any, hidings: Sequence[Hiding]) -> None:
        # First: in PostgreSQL, others who change something wait for this row.
        cursor.execute(COUNT_CHANGE)
        cursor.executemany(self._hide, hidings)

    def unhide(self, cursor: Any, item_ids: Sequence[str]) -> int:
        cursor.execute(COUNT_CHANGE)
        cursor.executemany(self._unhide, [(each,) for each in item_ids])
        count: int = cursor.rowcount
        return count

    @staticmethod
    def read(cursor: Any, known: int | None) -> HiddenList | None:
        """None if version `known` still holds. What changes between the two reads has a version that is not known."""
        found = cursor.execute(VERSION).fetchone()
        version = found[0] if found else 0
        if version == known:
            return None
        return HiddenList(version, [Hiding._make(row) for row in cursor.execute(ALL).fetchall()])
