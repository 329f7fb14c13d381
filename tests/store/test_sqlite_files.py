"""The file of a store: what is left of deleted events, damage, full disks, copies. Real processes, real damage."""

import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.store.events import Event, StoreError, StoreFullError, open_store
from bert4rec.store.sqlite_store import SQLiteHistory
from bert4rec.store.upkeep import back_up, check_store
from tests.service.servers import BERT4REC, PATIENCE

USERS = 400


def event(number: int, user: str = "u", timestamp: int = 0) -> Event:
    return Event(f"event-{number:06}", user, f"item-{number % 50}", timestamp)


def user_name(number: int) -> str:
    return f"somebody-{number:04}"


def fill(store: SQLiteHistory, count: int = 12_000) -> None:
    """Events of many users in no order, as they come, with ids in no order."""
    rng = random.Random(1)
    numbers = rng.sample(range(count), count)
    for first in range(0, count, 100):
        store.add(
            [event(each, user_name(rng.randrange(USERS)), each) for each in numbers[first : first + 100]]
        )


def traces_of(folder: Path, text: str) -> list[str]:
    """Files in which a text stands. Read by a process of its own: SQLite's locks belong to a process."""
    found = subprocess.run(
        ["grep", "-l", "-a", "-F", text, *map(str, folder.iterdir())],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return found.stdout.split()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "history.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteHistory]:
    opened = SQLiteHistory(path)
    yield opened
    opened.close()


def assert_sound(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_only_the_owner_can_read_the_files_of_a_new_store(store: SQLiteHistory, path: Path) -> None:
    store.add([event(1)])
    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert modes == dict.fromkeys(["history.db", "history.db-shm", "history.db-wal"], 0o600)


# Forgetting


def test_of_forgotten_users_no_file_says_anything(store: SQLiteHistory, path: Path) -> None:
    """Whatever pages were split and merged while their events came and others' went."""
    fill(store)
    for number in range(0, USERS, 4):
        events = [each.event_id for each in store.newest(user_name(number), 1000)]
        assert store.forget(user_name(number)) == (len(events), None)
        assert traces_of(path.parent, user_name(number)) == []
        assert events and traces_of(path.parent, events[0]) == traces_of(path.parent, events[-1]) == []
    assert traces_of(path.parent, user_name(1)) != []
    assert len(store.newest(user_name(1), 1000)) > 10
    assert_sound(path)


def test_of_a_removed_event_no_file_says_anything(store: SQLiteHistory, path: Path) -> None:
    fill(store, 1000)
    assert store.remove("event-000017") == (1, None)
    assert traces_of(path.parent, "event-000017") == []


@contextmanager
def reader(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that looks at the store as it is now, until its input ends."""
    program = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM bert4rec_events").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "reading\n"
        yield process
        process.kill()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline


def test_while_somebody_reads_what_was_there_the_answer_says_so_and_it_is_erased_afterwards(
    store: SQLiteHistory, path: Path
) -> None:
    fill(store, 2000)
    with reader(path) as process:
        deleted, traces = store.forget(user_name(3))
        assert deleted
        assert traces and "waits for whoever still reads" in traces
        assert store.newest(user_name(3), 10) == []
        assert store.add([event(99_999)]) == [True], "writing goes on"
        process.communicate(timeout=PATIENCE)
        wait_until(lambda: not traces_of(path.parent, user_name(3)))
    assert store.forget(user_name(5)).traces is None


def test_what_a_killed_process_could_not_erase_is_erased_by_the_next(path: Path) -> None:
    store = SQLiteHistory(path)
    fill(store, 2000)
    store.close()
    program = """
import os, signal, sys
from pathlib import Path
from bert4rec.store.sqlite_store import SQLiteHistory
store = SQLiteHistory(Path(sys.argv[1]))
assert store.forget("somebody-0003").traces
os.kill(os.getpid(), signal.SIGKILL)
"""
    with reader(path):
        killed = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=PATIENCE)
        assert killed.returncode < 0
        assert traces_of(path.parent, user_name(3))
    store = SQLiteHistory(path)
    wait_until(lambda: not traces_of(path.parent, user_name(3)))
    store.close()


def test_erasing_while_other_processes_write_and_are_killed_loses_and_damages_nothing(path: Path) -> None:
    """Three writers, one of them killed again and again, beside one that forgets without pause."""
    program = """
import sys
from pathlib import Path
from bert4rec.store.events import Event
from bert4rec.store.sqlite_store import SQLiteHistory
store, name = SQLiteHistory(Path(sys.argv[1])), sys.argv[2]
for number in range(int(sys.argv[3])):
    store.add([Event(f"{name}-{number}-{each}", f"{name}-{each}", "i", number) for each in range(7)])
    print(number, flush=True)
"""

    def writer(name: str, count: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(path), name, str(count)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    store = SQLiteHistory(path)
    steady = [writer(name, 150) for name in ("a", "b")]
    acknowledged = {}
    for attempt in range(4):
        hasty = writer(f"killed{attempt}", 10**6)
        assert hasty.stdout
        for round_ in range(5):
            store.add([event(round_ + 5 * attempt + each * 1000, user_name(each)) for each in range(50)])
            for each in range(0, 50, 2):
                store.forget(user_name(each))
            hasty.stdout.readline()
        hasty.kill()
        rest = [line for line in hasty.communicate(timeout=PATIENCE)[0].splitlines() if line.strip()]
        acknowledged[f"killed{attempt}"] = 4 + len(rest)
    for name, process in zip(("a", "b"), steady, strict=True):
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        acknowledged[name] = 149
    for name, last in acknowledged.items():
        kept = {each.timestamp for each in store.newest(f"{name}-3", 10**6)}
        assert kept >= set(range(last)), name
    store.close()
    assert_sound(path)


# Damage


def overwrite(content: bytearray, rng: random.Random) -> None:
    """A sector of nonsense."""
    place = rng.randrange(4096, len(content) - 512)
    content[place : place + 512] = rng.randbytes(512)


def blank(content: bytearray, rng: random.Random) -> None:
    """A page of zeros."""
    place = rng.randrange(1, len(content) // 4096) * 4096
    content[place : place + 4096] = bytes(4096)


def cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(8192, len(content) - 4096) :]


def swap(content: bytearray, rng: random.Random) -> None:
    """Two pages that were written to each other's place."""
    one, other = (4096 * each for each in rng.sample(range(1, len(content) // 4096), 2))
    content[one : one + 4096], content[other : other + 4096] = (
        content[other : other + 4096],
        content[one : one + 4096],
    )


def head(content: bytearray, rng: random.Random) -> None:
    content[: rng.randrange(20, 100)] = bytes(20)


@pytest.mark.parametrize("damage", [overwrite, blank, cut, swap, head])
def test_a_damaged_store_is_refused_with_the_way_out_and_without_what_it_holds(
    path: Path, damage: Callable[[bytearray, random.Random], None]
) -> None:
    store = SQLiteHistory(path)
    fill(store)
    store.close()
    sound, rng = path.read_bytes(), random.Random(3)
    for _ in range(10):
        content = bytearray(sound)
        damage(content, rng)
        path.write_bytes(content)
        for look in (lambda: open_store(f"sqlite:///{path}"), lambda: check_store(str(path))):
            with pytest.raises(DataError, match="is damaged: ") as caught:
                look()
            assert "move history.db, history.db-wal and history.db-shm out of the folder" in str(caught.value)
            assert not re.search("somebody|event-|item-", str(caught.value))
    path.write_bytes(sound)
    assert check_store(str(path)).events == 12_000


def test_a_store_that_is_damaged_while_it_is_used_acknowledges_nothing_more(
    store: SQLiteHistory, path: Path
) -> None:
    fill(store)
    store.forget(user_name(1))  # so that everything is in the file, and pages are read anew
    with path.open("r+b") as file:
        for page in range(1, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    with pytest.raises(StoreError, match="its file is damaged"):
        for number in range(USERS):
            store.newest(user_name(number), 1000)
    with pytest.raises(StoreError, match="its file is damaged"):
        store.add([event(99_999)])


def test_a_text_that_cannot_be_read_is_not_quoted(store: SQLiteHistory, path: Path) -> None:
    store.add([event(1, "somebody")])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE bert4rec_events SET item_id = CAST(x'7365637265747fff' AS TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="a stored text is not as it was written") as caught:
        store.newest("somebody", 5)
    assert "secret" not in str(caught.value)


# Full disks

FULL_DISK = """
import sys
from pathlib import Path
from bert4rec.store.events import Event, StoreFullError
from bert4rec.store.sqlite_store import SQLiteHistory
store, kept = SQLiteHistory(Path(sys.argv[1]) / "history.db"), 0

def add(number):
    store.add([Event(f"event-{number:06}", f"user-{number % 20}", f"item-{number % 50}", number)])

def fill_up():
    global kept
    try:
        while True:
            add(kept)
            kept += 1
    except StoreFullError:
        pass

fill_up()
first = kept
assert sum(len(store.newest(f"user-{each}", 10**6)) for each in range(20)) == kept
for number in range(10):
    assert store.forget(f"user-{number}").deleted >= kept // 20
    assert store.newest(f"user-{number}", 5) == []
assert store.remove("event-000017") == (1, None)
fill_up()
assert kept > first, "there is room again"
print(first)
"""


def test_a_disk_of_one_megabyte_holds_a_sensible_number_of_events_and_forgets_when_it_is_full(
    tmp_path: Path,
) -> None:
    """A real one, in a mount namespace of its own."""
    script = f'mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c "$0" {tmp_path}'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*command, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    found = subprocess.run(
        [*command, script, FULL_DISK], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 1500


def test_when_the_disk_is_full_a_request_is_kept_whole_or_not_at_all(store: SQLiteHistory) -> None:
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages + 4}")
    kept = 0
    with pytest.raises(StoreFullError):
        for first in range(0, 10_000, 50):
            store.add([event(number, timestamp=number) for number in range(first, first + 50)])
            kept += 50
    assert kept > 0
    assert len(store.newest("u", 10_000)) == kept
    store._writer.execute("PRAGMA max_page_count = 100000")
    assert store.add([event(99_999)]) == [True]


# Copies


def bert4rec(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [BERT4REC, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_a_copy_is_whole_while_others_write_and_can_take_the_place_of_a_damaged_file(
    store: SQLiteHistory, path: Path, tmp_path: Path
) -> None:
    store.add([event(number) for number in range(1000)])
    made = bert4rec("store", "backup", path, "-o", tmp_path / "copy.db")
    assert made.returncode == 0, made.stderr
    store.add([event(2000)])
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy.db", "store"]
    assert bert4rec("store", "backup", path, "-o", tmp_path / "copy.db").returncode == 2
    store.close()
    path.write_bytes(b"\xff" * path.stat().st_size)
    refused = bert4rec("store", "check", path)
    assert (refused.returncode, "is damaged" in refused.stderr) == (3, True)
    kept = bert4rec("store", "backup", path, "-o", tmp_path / "copy.db", "--overwrite")
    assert (kept.returncode, check_store(str(tmp_path / "copy.db")).events) == (3, 1000)
    for each in list(path.parent.iterdir()):
        each.unlink()
    path.write_bytes((tmp_path / "copy.db").read_bytes())
    found = bert4rec("store", "check", path)
    assert found.stderr == "Sound: 1,000 events of 1 user, from 1970-01-01 to 1970-01-01.\n"
    restored = SQLiteHistory(path)
    assert len(restored.newest("u", 2000)) == 1000
    restored.close()


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere\\.db does not exist"):
        check_store(str(tmp_path / "nowhere.db"))
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE accounts (owner TEXT)")
    connection.close()
    with pytest.raises(DataError, match="is not a history store"):
        check_store(str(tmp_path / "other.db"))
    with pytest.raises(UsageError, match="pg_dump"):
        back_up("postgresql://host/database", tmp_path / "copy.db")
    assert [each.name for each in tmp_path.iterdir()] == ["other.db"]
