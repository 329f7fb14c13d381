"""Which files are read, packed in whatever way, and how those that are no logs are named."""

import bz2
import gzip
import io
import lzma
import pickle
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard

from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints
from bert4rec.logs.items import read_items
from bert4rec.logs.log import read_log
from tests.logs.logs import rows_of, zipped

CSV = b"user,item,time\nann,tea,1600000030\nbob,jam,1600000010\n"
ROWS = [("ann", "tea", 1_600_000_030), ("bob", "jam", 1_600_000_010)]


def table(write: Callable[[pl.DataFrame, io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(pl.DataFrame(ROWS, schema=["user", "item", "time"], orient="row"), buffer)
    return buffer.getvalue()


def case(value: object) -> str:
    """Packed bytes hold the time; names of tests must not."""
    return value if isinstance(value, str) else type(value).__name__


PARQUET, ARROW = table(pl.DataFrame.write_parquet), table(pl.DataFrame.write_ipc)


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("log.csv")
        member.size = len(CSV)
        archive.addfile(member, io.BytesIO(CSV))
    return buffer.getvalue()


def saved(save: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.csv.bz2", bz2.compress(CSV)),
        ("log.csv.xz", lzma.compress(CSV)),
        ("log.zip", zipped({"log.csv": CSV})),
        ("log.zip", zipped({"deep/log.csv.bz2": bz2.compress(CSV), "deep/notes.md": b"no log"})),
        ("log.zip", zipped({"log.parquet": PARQUET, "__MACOSX/._log.parquet": b"no log"})),
        ("log.zip", zipped({"only file": CSV})),
        ("log.feather", ARROW),
        ("log.arrow", table(lambda frame, file: frame.write_ipc(file, compression="zstd"))),
        ("log.parquet.gz", gzip.compress(PARQUET)),
        ("log.parquet.bz2", bz2.compress(PARQUET)),
    ],
    ids=case,
)
def test_packed_files_and_archives_read_the_same(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert rows_of(read_log([tmp_path / name])) == ROWS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.csv", gzip.compress(CSV)),
        ("log.csv", bz2.compress(CSV)),
        ("log.csv", zipped({"log.csv": CSV})),
        ("log.csv", PARQUET),
        ("log.parquet", ARROW),
        ("log.csv.bz2", CSV),
        ("log.xls", CSV),
    ],
    ids=case,
)
def test_an_ending_that_lies_does_not_matter(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert rows_of(read_log([tmp_path / name])) == ROWS


def test_the_files_of_a_folder_may_be_packed_in_different_ways(tmp_path: Path) -> None:
    header, first, second = CSV.splitlines(keepends=True)
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress(header + first))
    (tmp_path / "b.zip").write_bytes(zipped({"1.csv": header + second, "2.csv": header + first}))
    (tmp_path / "c.csv.xz").write_bytes(lzma.compress(header + second))
    (tmp_path / "d.feather").write_bytes(ARROW)
    (tmp_path / "e.xlsx").write_bytes(b"no log")
    assert rows_of(read_log([tmp_path])) == ROWS * 3


def test_what_a_readme_or_a_licence_says_is_no_log(tmp_path: Path) -> None:
    others = {
        "README.txt": b"About it.",
        "LICENSE.txt": b"Free.",
        "readme-first.csv": b"a,b\n",
        "notes.md": b"",
    }
    (tmp_path / "log.zip").write_bytes(zipped({"log.csv": CSV, **others}))
    assert rows_of(read_log([tmp_path / "log.zip"])) == ROWS
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    log = read_log([tmp_path])
    assert rows_of(log) == ROWS
    assert log.notes[0].startswith("Columns: ")


def test_several_files_are_counted(tmp_path: Path) -> None:
    for day in range(3):
        (tmp_path / f"{day}.csv").write_bytes(CSV)
    assert "Read 3 files." in read_log([tmp_path]).notes


@pytest.mark.parametrize("ending", [".parquet", ".csv.gz"])
def test_a_folder_of_folders_is_answered_with_the_glob_that_reads_them(tmp_path: Path, ending: str) -> None:
    content = PARQUET if ending == ".parquet" else gzip.compress(CSV)
    for day in ("day=1", "day=2", "_temporary"):
        (tmp_path / day).mkdir()
        (tmp_path / day / f"part-0.c000{ending}").write_bytes(content)
    with pytest.raises(NotFoundError, match=r"has no CSV.* Its folders do: name the files with") as raised:
        read_log([tmp_path])
    pattern = str(raised.value).split("'")[1]
    assert pattern == f"{tmp_path}/**/*{ending}"
    assert rows_of(read_log([pattern]))[:4] == ROWS * 2


def test_a_path_may_go_on_into_an_archive(tmp_path: Path) -> None:
    members = {"ml/ratings.csv": CSV, "ml/movies.csv": b"item,title\ntea,Tea\n"}
    (tmp_path / "ml.zip").write_bytes(zipped(members))
    for member in ("ml/ratings.csv", "ratings.csv", "ml/rat*.csv"):
        assert rows_of(read_log([tmp_path / "ml.zip" / member])) == ROWS
    assert read_items(tmp_path / "ml.zip" / "movies.csv").rows() == [("tea", "Tea")]
    with pytest.raises(NotFoundError, match=r"ml\.zip has no tags\.csv\. Found ml/movies\.csv, ml/ratings"):
        read_log([tmp_path / "ml.zip" / "tags.csv"])
    with pytest.raises(
        DataError, match=r"No column of .*movies\.csv .* named like archive\.zip/ratings\.csv"
    ):
        read_log([tmp_path / "ml.zip"])
    (tmp_path / "plain.csv").write_bytes(CSV)
    with pytest.raises(NotFoundError, match=r"plain\.csv is neither a folder nor a \.zip archive"):
        read_log([tmp_path / "plain.csv" / "ratings.csv"])


def test_an_archive_without_a_log_tells_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "log.zip").write_bytes(zipped({"a.md": b"", "b.md": b""}))
    with pytest.raises(NotFoundError, match=r"log\.zip has no CSV.*Found a\.md, b\.md"):
        read_log([tmp_path / "log.zip"])


def flagged(flags_and_method: bytes) -> bytes:
    """An archive whose headers say that it is packed in another way."""
    return zipped({"in.csv": CSV}).replace(b"\x14\x00\x00\x00\x08", b"\x14\x00" + flags_and_method)


BROKEN = b"user,item,time\nann,tea,1600000000\nbob,jam\n"
LATIN = "user,item\nann,thé\n".encode("latin-1")


@pytest.mark.parametrize(
    ("name", "content", "hints", "complaint"),
    [
        ("log.csv.bz2", bz2.compress(BROKEN), Hints(), "{}:3: expected 3 fields"),
        ("log.csv.gz", gzip.compress(BROKEN), Hints(encoding="latin-1"), "{}:3: expected 3 fields"),
        ("log.zip", zipped({"in.csv": BROKEN}), Hints(), "{}/in.csv:3: expected 3 fields"),
        ("log.zip", zipped({"in.csv": LATIN}), Hints(), "{}/in.csv:2 is not UTF-8 text"),
        ("log.csv.xz", lzma.compress(LATIN), Hints(), "{}:2 is not UTF-8 text"),
        ("log.csv.bz2", bz2.compress(b""), Hints(), "{} is empty"),
        ("log.zip", zipped({"in.parquet": PARQUET[:-20]}), Hints(), "{}/in.parquet ends too early"),
        ("log.feather", ARROW[:-20], Hints(), "{} ends too early"),
        ("log.csv.bz2", bz2.compress(CSV * 1000)[:-10], Hints(), "{} is damaged or incomplete"),
        ("log.csv.xz", lzma.compress(CSV * 1000)[:-10], Hints(), "{} is damaged or incomplete"),
        ("log.zip", zipped({"in.csv": CSV})[:-10], Hints(), "{} is damaged or incomplete"),
        ("log.zip", flagged(b"\x00\x00\x63"), Hints(), "{} cannot be unpacked: That compression method"),
        ("log.zip", flagged(b"\x01\x00\x08"), Hints(), "{} cannot be unpacked: File 'in.csv' is encrypted"),
        ("log.csv", CSV, Hints(encoding="utf-16"), "{} cannot be read as utf-16"),
    ],
    ids=case,
)
def test_errors_name_the_users_file_and_nothing_is_left_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    hints: Hints,
    complaint: str,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as raised:
        read_log([tmp_path / name], hints=hints)
    assert str(raised.value).startswith(complaint.format(tmp_path / name))
    assert "scratch" not in str(raised.value)
    assert not list(scratch.iterdir())


def sqlite_file(folder: Path) -> bytes:
    connection = sqlite3.connect(folder / "log.db")
    connection.execute("CREATE TABLE log (user, item)")
    connection.commit()
    connection.close()
    return (folder / "log.db").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("log.xlsx", zipped({"[Content_Types].xml": b"", "xl/workbook.xml": b""}), "an Excel workbook. Save the sheet"),
        ("log.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512), "an Excel workbook. Save the sheet"),
        ("log.ods", zipped({"mimetype": b"", "content.xml": b""}), "an office document. Save the sheet"),
        ("log.pkl", pickle.dumps([1, 2], protocol=0), "a pickle, which is never opened"),
        ("log.pkl.gz", gzip.compress(pickle.dumps([1, 2])), r"a pickle.*pandas\.read_pickle\(…\)\.to_parquet"),
        ("log.csv", pickle.dumps({"user": [1]}, protocol=4), "a pickle, which is never opened"),
        ("log.h5", b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file. Write it as Parquet: pandas.read_hdf"),
        ("log.npy", saved(lambda file: np.save(file, np.arange(3))), "a NumPy array. Save it as CSV"),
        ("log.npz", saved(lambda file: np.savez(file, a=np.arange(3))), "a NumPy array. Save it as CSV"),
        ("log.orc", b"ORC\x0a\x03\x00", "an ORC file. .*read_orc"),
        ("log.avro", b"Obj\x01\x04\x14", "an Avro file"),
        ("log.tar", tarred(), "a tar archive. Unpack it"),
        ("log.tar.gz", gzip.compress(tarred()), "a tar archive. Unpack it"),
        ("log.tar.zst", zstandard.compress(tarred()), "a tar archive. Unpack it"),
        ("log.7z", b"7z\xbc\xaf\x27\x1c\x00\x04", "a 7z archive. Unpack it"),
        ("log.rar", b"Rar!\x1a\x07\x01\x00", "a rar archive. Unpack it"),
        ("log.pdf", b"%PDF-1.4\n%\xe2\xe3", "a PDF"),
        ("log.png", b"\x89PNG\r\n\x1a\n\x00", "an image"),
        ("log.jpg", b"\xff\xd8\xff\xe0\x00", "an image"),
        ("log.feather", b"FEA1\x00\x00\x00\x00", "Feather of version 1"),
        ("log.arrows", table(pl.DataFrame.write_ipc_stream), "an Arrow stream"),
        ("log.rds", gzip.compress(b"X\n\x00\x00\x00\x03"), r"R data. Write it as CSV: write.csv"),
        ("log.sas7bdat", bytes(64), r"a SAS file. .*read_sas"),
        ("log.csv", b"<!DOCTYPE html>\n<html>Not found</html>", "a web page"),
        ("log.csv", CSV.decode().encode("utf-16"), 'UTF-16 text. Pass `encoding="utf-16"`'),
        ("log.csv", CSV.decode().encode("utf-16-le"), 'UTF-16 text. Pass `encoding="utf-16-le"`'),
        ("log.csv", b"user,item\na,b\nc\x00d,e\n", "not text: it holds NUL bytes"),
        ("log.json", b'[{"user": 1, "item": 2}]', "one JSON array. Expected one object per line"),
    ],
    ids=case,
)  # fmt: skip
def test_what_is_no_log_is_named_with_the_way_on(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} is {complaint}"):
        read_log([tmp_path / name])


def test_a_database_is_named_and_so_is_a_binary_in_spite_of_an_encoding(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(sqlite_file(tmp_path))
    for hints in (Hints(), Hints(encoding="latin-1")):
        with pytest.raises(DataError, match=r"log\.csv is an SQLite database\. Write the table as CSV"):
            read_log([tmp_path / "log.csv"], hints=hints)


@pytest.mark.parametrize("first", ["ORC", "FEA1", "PARE", "Rar!", "BZh9", "PK", "%PDF"])
def test_text_that_begins_with_a_magic_word_is_text(tmp_path: Path, first: str) -> None:
    (tmp_path / "log.csv").write_text(f"{first},tea\nann,jam\n")
    log = read_log([tmp_path / "log.csv"], ColumnRequest(user="1", item="2"))
    assert rows_of(log) == [(first, "tea"), ("ann", "jam")]


@pytest.mark.parametrize("content", [PARQUET, ARROW, "user,item\nann,thé\n".encode("latin-1")], ids=case)
def test_inside_zst_only_utf_8_text_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.zst").write_bytes(zstandard.compress(content))
    with pytest.raises(DataError, match=r"log\.zst is not UTF-8 text\. .*unpack Parquet, Feather .* zstd -d"):
        read_log([tmp_path / "log.zst"])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.csv", CSV),
        ("log.txt", CSV.replace(b",", b"::")),
        ("log.jsonl", table(pl.DataFrame.write_ndjson)),
        ("log.csv", b"\xef\xbb\xbf" + CSV),
    ],
    ids=case,
)
def test_lines_may_end_in_carriage_returns_alone(
    tmp_path: Path, name: str, content: bytes, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / name).write_bytes(pack(content.replace(b"\n", b"\r")))
    assert rows_of(read_log([tmp_path / name])) == ROWS


def test_histories_may_end_in_carriage_returns_alone_and_errors_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"7 tea jam\r8 tea\r")
    assert rows_of(read_log([tmp_path / "log.txt"])) == [(7, "tea"), (7, "jam"), (8, "tea")]
    (tmp_path / "log.csv").write_bytes(LATIN.replace(b"\n", b"\r"))
    with pytest.raises(DataError, match=r"log\.csv:2 is not UTF-8 text.*`encoding=\"latin-1\"`"):
        read_log([tmp_path / "log.csv"])


def test_a_carriage_return_within_a_line_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(b"user,item,no\rte\nann,te\ra,x\n")
    assert rows_of(read_log([tmp_path / "log.csv"])) == [("ann", "te\ra")]
    (tmp_path / "log.csv").write_bytes(b'user,item\n"ann",te\ra,x\n')
    with pytest.raises(DataError, match=r"log\.csv:2: expected 2 fields .* found 3"):
        read_log([tmp_path / "log.csv"])


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_the_encoding_of_the_log_is_that_of_a_catalogue_that_is_not_utf_8(
    tmp_path: Path, encoding: str
) -> None:
    (tmp_path / "items.csv").write_bytes("item_id,title\n1,Thé\n".encode(encoding))
    assert read_items(tmp_path / "items.csv", encoding).rows() == [("1", "Thé")]
    with pytest.raises(DataError, match=f'`encoding="{encoding}"`'):
        read_items(tmp_path / "items.csv")
    (tmp_path / "items.csv").write_text("item_id,title\n1,Thé\n", encoding="utf-8")
    assert read_items(tmp_path / "items.csv", encoding).rows() == [("1", "Thé")]
    pl.DataFrame({"id": [1], "title": ["Thé"]}).write_parquet(tmp_path / "items.parquet")
    assert read_items(tmp_path / "items.parquet", encoding).rows() == [("1", "Thé")]


def test_a_catalogue_is_one_file(tmp_path: Path) -> None:
    members = {"ml/movies.csv": b"item,title\ntea,Tea\n", "ml/ratings.csv": CSV}
    (tmp_path / "ml.zip").write_bytes(zipped(members))
    with pytest.raises(
        UsageError, match=r"^`items`: .*ml\.zip holds 2 files: .*ml\.zip/ml/movies\.csv, .* Name one"
    ):
        read_items(tmp_path / "ml.zip")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "cp1252"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
def test_a_named_encoding_is_read_packed_or_not(
    tmp_path: Path, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "log.csv").write_bytes(pack("user,item\nZoë,thé\n".encode(encoding)))
    assert rows_of(read_log([tmp_path / "log.csv"], hints=Hints(encoding=encoding))) == [("Zoë", "thé")]


def test_an_encoding_goes_with_text(tmp_path: Path) -> None:
    (tmp_path / "log.parquet").write_bytes(PARQUET)
    with pytest.raises(UsageError, match=r"`encoding` is for text files, and .*log\.parquet is not text"):
        read_log([tmp_path / "log.parquet"], hints=Hints(encoding="latin-1"))
    (tmp_path / "log.csv.zst").write_bytes(zstandard.compress(CSV))
    with pytest.raises(UsageError, match=r"`encoding` cannot be used with .*log\.csv\.zst"):
        read_log([tmp_path / "log.csv.zst"], hints=Hints(encoding="latin-1"))
    with pytest.raises(UsageError, match="`encoding`: 'klingon' is unknown"):
        (tmp_path / "log.csv").write_bytes(CSV)
        read_log([tmp_path / "log.csv"], hints=Hints(encoding="klingon"))
