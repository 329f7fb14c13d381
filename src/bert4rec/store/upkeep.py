"""What an operator does with a store: see whether it is sound, copy it."""

import re
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.logs.times import parse_moment
from bert4rec.store.events import StoreError
from bert4rec.store.sqlite_files import copy_database, find_damage, is_damage, reason_of, way_out

SUMMARY = "SELECT count(*), count(DISTINCT user_id), min(timestamp), max(timestamp) FROM bert4rec_events"


class Summary(NamedTuple):
    """What a store holds."""

    events: int
    users: int
    first: int | None
    """Microseconds since 1970."""
    last: int | None


def address_of(store: str) -> str:
    """The address of a store that may also be given by the name of its file."""
    return store if "://" in store else f"sqlite:///{store}"


def check_store(store: str) -> Summary:
    """Look at everything in a store, which may be in use; raises DataError where it is damaged."""
    path = sqlite_file(store)
    if path is None:
        from bert4rec.store.postgres_store import PostgresHistory

        history = PostgresHistory(store)
        try:
            return Summary._make(history.query(SUMMARY)[0])
        except StoreError as error:
            raise DataError(f"The store cannot be read: {error}.") from error
        finally:
            history.close()
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        damage = find_damage(connection, path, thorough=True)
        if damage is None:
            return Summary._make(connection.execute(SUMMARY).fetchone())
    except sqlite3.Error as error:
        if not is_damage(error):
            raise DataError(f"{path} is not a history store: {error}.") from error
        damage = reason_of(error)
    finally:
        connection.close()
    raise DataError(f"{path} is damaged: {damage}. {way_out(path)}")


def back_up(store: str, target: Path, *, overwrite: bool = False) -> int:
    """Copy a store that may be in use to a file that is complete or absent; how many bytes it has."""
    path = sqlite_file(store)
    if path is None:
        raise UsageError(
            "A PostgreSQL database is copied by its own tools: pg_dump -t 'bert4rec_*' DATABASE."
        )
    return copy_database(path, target, overwrite=overwrite)


def moment_before(age: str) -> int:
    """`90d`, `12w`, `2y` or a date, as microseconds since 1970."""
    found = re.fullmatch(r"(\d+)\s*([hdwy])", age.strip())
    if found is None:
        return parse_moment(age)
    hours = int(found[1]) * {"h": 1, "d": 24, "w": 24 * 7, "y": 24 * 365}[found[2]]
    return time.time_ns() // 1000 - hours * 3_600_000_000


def sqlite_file(store: str) -> Path | None:
    """The file of a store that must exist; None if the store is not a file."""
    scheme, _, rest = address_of(store).partition("://")
    if scheme != "sqlite":
        return None
    path = Path(rest.removeprefix("/"))
    if not path.is_file():
        raise NotFoundError(f"{path} does not exist; expected the file of a history store.")
    return path
