"""The care of an SQLite file: who may read it, whether it is sound, what deleted events leave in it, copies of it.

Deleted rows are overwritten (`secure_delete`), but two kinds of traces are left. The write-ahead log holds the pages as
they were, until it is emptied; that has to wait for readers who still look at them. And when SQLite splits or merges
pages, copies of rows stay in the unused space of a page, where no later deletion finds them: of 200 users that were
forgotten in a store of 30,000 events, four could still be read. So that space is overwritten too.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import numpy as np

from bert4rec.artefact import behind_links
from bert4rec.errors import DataError, UsageError

SMALL = 64 * 2**20
"""Bytes. Of a smaller file all entries of the indexes are compared with their rows, which takes a second at most."""
PAGES_AT_ONCE = 2**13
"""Writers wait while so many pages are looked at: some hundredths of a second."""
TRY_AGAIN_AFTER = 0.1
WAIT_FOR_READERS = 0.2
WAIT_FOR_OTHER_WRITERS = 3.0
"""Seconds; only several workers that write to one file ever wait."""
ATTEMPT_EVERY = 0.002
TREE_PAGES = (2, 5, 10, 13)
"""First byte of a page that holds rows or entries of an index → such pages have a header and unused space."""
INNER_PAGES = (2, 5)
MOST_PAGES = 2**25
"""In larger files (128 GiB), the first byte of a page could also be part of a page number."""
log = logging.getLogger("bert4rec.service")


def create_private(path: Path) -> None:
    """Make an empty file that only its owner can read, if there is none; SQLite gives its other files the same mode.

    An existing file is not even opened: to close it again would take away SQLite's locks on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def find_damage(connection: sqlite3.Connection, path: Path, *, thorough: bool = False) -> str | None:
    """What is wrong with the file, in words without anything that is stored in it; None if nothing is."""
    check = "integrity_check" if thorough or path.stat().st_size < SMALL else "quick_check"
    try:
        ((found,),) = connection.execute(f"PRAGMA {check}(1)").fetchall()
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return reason_of(error)
    return None if found == "ok" else " ".join(str(found).replace("*** in database main ***", "").split())


def is_damage(error: sqlite3.Error) -> bool:
    """Also a text that cannot be read, for which SQLite has no code."""
    is_unreadable = isinstance(error, sqlite3.OperationalError) and not hasattr(error, "sqlite_errorcode")
    return is_unreadable or kind_of(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def kind_of(error: sqlite3.Error) -> int:
    """SQLite's code of the error, without its finer distinctions."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_full(error: sqlite3.Error) -> bool:
    """Whether there is no room. SQLite tells a quota or a limit on the size of files from a full disk, we do not."""
    is_unwritable = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE
    return is_unwritable or kind_of(error) == sqlite3.SQLITE_FULL


def reason_of(error: sqlite3.Error) -> str:
    """What SQLite says without the texts it may quote from the file."""
    if getattr(error, "sqlite_errorcode", None) is None:
        return "a stored text is not as it was written"
    return str(error)


def way_out(path: Path) -> str:
    """What to do with a damaged file."""
    return (
        f"Stop what uses it, move {path.name}, {path.name}-wal and {path.name}-shm out of the folder, and copy the "
        "newest file that `bert4rec store backup` wrote to its place. `bert4rec store check` tells whether a file is "
        "sound."
    )


def begin(connection: sqlite3.Connection) -> None:
    """Begin to write. Other writers are waited for in short steps: SQLite's own are so long that, among several workers
    who write without pause, one may never get its turn."""
    connection.execute("PRAGMA busy_timeout = 0")
    patiently(lambda: connection.execute("BEGIN IMMEDIATE"))


def patiently(call: Callable[[], object]) -> None:
    """Make a call, again and again while others keep the file locked. For some locks SQLite itself does not wait."""
    deadline = time.monotonic() + WAIT_FOR_OTHER_WRITERS
    while True:
        try:
            call()
            return
        except sqlite3.OperationalError as error:
            if kind_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(ATTEMPT_EVERY)


def empty_log(connection: sqlite3.Connection) -> bool:
    """Move everything from the log into the file, and leave the log empty; False while somebody reads what is there."""
    (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not is_busy


def free_bytes(path: Path) -> int:
    """How much the disk of a file has left for us."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def copy_database(path: Path, target: Path, *, overwrite: bool) -> int:
    """Write a sound copy of a database that may be in use, under its own name when it is complete; how many bytes."""
    target = behind_links(target)
    if target.exists() and not overwrite:
        raise UsageError(f"{target} already exists. Choose another name, or use `overwrite=True`.")
    unfinished = target.with_name(f".{target.name}.unfinished-{os.getpid()}")
    create_private(unfinished)
    source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    copy = sqlite3.connect(unfinished)
    try:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, and no log beside it
        if damage := find_damage(copy, unfinished, thorough=True):
            raise DataError(f"{path} is damaged, so it was not copied: {damage}. {way_out(path)}")
        copy.close()
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(target)
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be copied: {reason_of(error)}. {way_out(path)}") from error
    finally:
        copy.close()
        source.close()
        unfinished.unlink(missing_ok=True)
    return target.stat().st_size


class Eraser:
    """Sees to it that no file of a store holds anything of what was deleted: at once or, while somebody still reads
    what was there before, as soon as that is over."""

    def __init__(
        self, path: Path, connect: Callable[[], sqlite3.Connection], writing: AbstractContextManager[object]
    ) -> None:
        """`writing` is held by whoever writes in this process."""
        self._writing = writing
        self._connection, self._other_connection = connect(), connect()
        self._other_connection.execute("PRAGMA busy_timeout = 20")
        # Closed with the store and not before: closing it takes away SQLite's locks on the file in this process.
        self._file = os.open(path, os.O_RDWR)
        self._asked = self._done = 0
        self._is_closed = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="store-eraser", daemon=True)
        self._thread.start()

    def erase(self, *, patience: float) -> bool:
        """Whether everything that was deleted before is gone; if not in time, it will be later."""
        with self._news:
            self._asked += 1
            mine = self._asked
            self._news.notify_all()
            self._news.wait_for(lambda: self._done >= mine or self._is_closed, patience)
            return self._done >= mine

    @property
    def is_behind(self) -> bool:
        """Whether something is still to be erased."""
        return self._done < self._asked

    def close(self) -> None:
        """After all other connections to the file, so that it has no locks to lose."""
        with self._news:
            if self._is_closed:
                return
            self._is_closed = True
            self._news.notify_all()
        self._thread.join()
        self._connection.close()
        self._other_connection.close()
        os.close(self._file)

    def _work(self) -> None:
        is_late = False
        while True:
            with self._news:
                self._news.wait_for(lambda: self.is_behind or self._is_closed)
                if self._is_closed:
                    return
                asked = self._asked
            is_erased = False
            with suppress(sqlite3.Error, OSError):  # it is tried again, and the state tells
                is_erased = self._try_once()
            with self._news:
                if is_erased:
                    self._done = asked
                    self._news.notify_all()
                    if is_late:
                        log.info("What was deleted is now erased from all files of the history store.")
                    is_late = False
                else:
                    is_late = True
                    self._news.wait_for(lambda: self._is_closed, TRY_AGAIN_AFTER)

    def _try_once(self) -> bool:
        page_size = self._connection.execute("PRAGMA page_size").fetchone()[0]
        first, is_last = 1, False
        while not is_last:
            with self._writing:
                begin(self._connection)
                try:
                    # Nobody writes now. Once all of the log is in the file, nobody writes to the file either.
                    if not self._is_all_in_file():
                        return False
                    pages = os.fstat(self._file).st_size // page_size
                    assert pages < MOST_PAGES
                    is_last = first + PAGES_AT_ONCE >= pages
                    if self._overwrite_unused(first, page_size):
                        os.fsync(self._file)
                        # A commit makes all connections read the pages anew: none writes back what it had read before.
                        self._connection.execute("PRAGMA user_version = 1")
                        self._connection.execute("COMMIT")
                finally:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
            first += PAGES_AT_ONCE
        return self._empty_log()

    def _is_all_in_file(self) -> bool:
        """Move everything from the log into the file, unless somebody reads what is there."""
        checkpoint = self._other_connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        is_busy, frames, moved = checkpoint
        return not is_busy and frames == moved

    def _empty_log(self) -> bool:
        deadline = time.monotonic() + WAIT_FOR_READERS
        while time.monotonic() < deadline:
            with self._writing, suppress(sqlite3.OperationalError):
                if empty_log(self._other_connection):
                    return True
            time.sleep(ATTEMPT_EVERY)
        return False

    def _overwrite_unused(self, first: int, page_size: int) -> bool:
        """Overwrite the unused space of some pages, at which readers never look; whether there was any.

        Page 1, which holds the schema alone, is never among the pages.
        """
        content = os.pread(self._file, PAGES_AT_ONCE * page_size, first * page_size)
        pages = np.frombuffer(content, np.uint8).reshape(-1, page_size)
        kind, cells, end = (
            pages[:, 0],
            *(pages[:, place].astype(int) * 256 + pages[:, place + 1] for place in (3, 5)),
        )
        begin = np.where(np.isin(kind, INNER_PAGES), 12, 8) + 2 * cells
        is_found = False
        for place in np.flatnonzero(np.isin(kind, TREE_PAGES) & (begin < end)).tolist():
            unused = pages[place, begin[place] : end[place]]
            if unused.any():
                os.pwrite(self._file, bytes(len(unused)), (first + place) * page_size + int(begin[place]))
                is_found = True
        return is_found
