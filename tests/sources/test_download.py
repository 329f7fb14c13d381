import hashlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert4rec.errors import DataError, NotFoundError
from bert4rec.machine import cache_folder
from bert4rec.sources.download import TRIES, digest, download
from tests.sources.file_server import FileServer, serving

CONTENT = random.Random(1).randbytes(3_000_000)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with serving(FileServer({"data.zip": CONTENT})) as running:
        yield running


def fetch(server: FileServer, folder: Path, checksum: str | None = MD5) -> list[float]:
    """Download data.zip; returns the pauses that were made."""
    pauses: list[float] = []
    download(server.url("data.zip"), folder / "data.zip", checksum=checksum, wait=pauses.append)
    return pauses


def leave_a_part(server: FileServer, folder: Path, size: int) -> None:
    """Make a download that is interrupted for good after `size` bytes."""
    server.cuts = [size] + [0] * (2 * TRIES)
    with pytest.raises(NotFoundError):
        fetch(server, folder)
    server.cuts = []
    server.requests.clear()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_nothing_else_is_left(server: FileServer, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    assert fetch(server, folder) == []
    assert (folder / "data.zip").read_bytes() == CONTENT
    assert names(folder) == ["data.zip"]


def test_progress_counts_up_to_the_length_of_the_file(server: FileServer, tmp_path: Path) -> None:
    heard: list[tuple[int, int | None]] = []
    url = server.url("data.zip")
    download(url, tmp_path / "x", checksum=None, progress=lambda done, total: heard.append((done, total)))
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert heard[-1] == (len(CONTENT), len(CONTENT))


def test_a_broken_connection_is_taken_up_where_it_broke(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [1_000_000, 500_000]
    pauses = fetch(server, tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1000000-", "bytes=1500000-"]
    assert len(pauses) == 2


def test_a_later_call_goes_on_where_an_earlier_one_stopped(server: FileServer, tmp_path: Path) -> None:
    leave_a_part(server, tmp_path, 2_000_000)
    assert not (tmp_path / "data.zip").exists()
    fetch(server, tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT
    assert server.requests == [("/data.zip", "bytes=2000000-")]


def test_a_part_that_lacks_nothing_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    leave_a_part(server, tmp_path, 2_000_000)
    with (tmp_path / "data.zip.part").open("ab") as file:
        file.write(CONTENT[2_000_000:])
    fetch(server, tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_part_that_is_longer_than_the_file_is_thrown_away(server: FileServer, tmp_path: Path) -> None:
    leave_a_part(server, tmp_path, 2_000_000)
    with (tmp_path / "data.zip.part").open("ab") as file:
        file.write(bytes(2_000_000))
    fetch(server, tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_makes_us_start_again(server: FileServer, tmp_path: Path) -> None:
    server.knows_ranges = False
    server.cuts = [1_000_000]
    fetch(server, tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT


@pytest.mark.parametrize("heeds_if_range", [True, False])
def test_a_file_that_changed_meanwhile_is_fetched_from_the_start(
    server: FileServer, tmp_path: Path, heeds_if_range: bool
) -> None:
    leave_a_part(server, tmp_path, 2_000_000)
    changed = CONTENT[::-1]
    server.files["data.zip"], server.etag, server.heeds_if_range = changed, '"2"', heeds_if_range
    fetch(server, tmp_path, checksum=None)
    assert (tmp_path / "data.zip").read_bytes() == changed


@pytest.mark.parametrize("etag", [None, 'W/"1"'])
def test_without_a_mark_of_its_version_a_file_is_not_pieced_together(
    server: FileServer, tmp_path: Path, etag: str | None
) -> None:
    server.etag = etag
    server.cuts = [1_000_000]
    fetch(server, tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, None]


def test_a_wrong_checksum_is_an_error_with_both_values_and_leaves_nothing(
    server: FileServer, tmp_path: Path
) -> None:
    wrong = "sha256:" + "0" * 64
    with pytest.raises(DataError) as error:
        fetch(server, tmp_path, checksum=wrong)
    assert wrong in str(error.value)
    assert hashlib.sha256(CONTENT).hexdigest() in str(error.value)
    assert "`local_copy`" in str(error.value)
    assert names(tmp_path) == []


def test_what_does_not_exist_is_asked_for_once(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"404.*`local_copy`"):
        download(server.url("nothing.zip"), tmp_path / "x", checksum=None)
    assert len(server.requests) == 1
    assert names(tmp_path) == []


def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    server.failures = [503, 429]
    assert fetch(server, tmp_path) == [0.5, 1.0]
    assert (tmp_path / "data.zip").read_bytes() == CONTENT


def test_as_long_as_bytes_arrive_no_number_of_breaks_is_too_many(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [100_000] * (5 * TRIES)
    fetch(server, tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT


def test_a_server_that_always_breaks_off_at_the_same_place_is_given_up(
    server: FileServer, tmp_path: Path
) -> None:
    server.knows_ranges = False
    server.cuts = [1_000_000] * 100
    pauses: list[float] = []
    with pytest.raises(NotFoundError, match="1,000,000 of 3,000,000 bytes") as error:
        download(server.url("data.zip"), tmp_path / "data.zip", checksum=MD5, wait=pauses.append)
    assert server.url("data.zip") in str(error.value)
    assert len(server.requests) == TRIES
    assert sum(pauses) < 5
    assert not (tmp_path / "data.zip").exists()


def test_without_a_network_the_error_names_the_address_and_the_way_out(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/data.zip"
    with pytest.raises(NotFoundError) as error:
        download(url, tmp_path / "x", checksum=None, wait=lambda _: None)
    assert url in str(error.value)
    assert "`local_copy`" in str(error.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands in for a full disk")
def test_a_full_disk_is_said_and_not_tried_again(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "data.zip.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"cannot be written.*XDG_CACHE_HOME"):
        fetch(server, tmp_path)
    assert len(server.requests) == 1


def test_checksums_name_their_algorithm(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert digest(tmp_path / "x", "md5") == "md5:900150983cd24fb0d6963f7d28e17f72"


def test_fetched_files_are_kept_where_the_system_keeps_such_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/bert4rec")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/of/mine")
    assert cache_folder() == Path("/home/of/mine/.cache/bert4rec")
