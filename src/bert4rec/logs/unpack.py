"""Make files readable: compressed ones are unpacked, archives opened, text recoded, other files refused by name.

polars reads .gz and .zst as they are. The rest goes through a scratch folder, which the caller removes.
The first bytes decide what a file is, because names may be wrong.
"""

import bz2
import csv
import gzip
import lzma
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import IO

from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.logs.binaries import EXCEL, NUMPY, OFFICE, Binary, is_columnar, recognise
from bert4rec.logs.files import (
    EncodingError,
    Hints,
    LogFile,
    archive_of,
    ending_of,
    find_files,
    inspect_file,
    is_log,
    is_zstd,
    split_row,
    unreadable,
)

_ZIP = rb"PK(\x03\x04|\x05\x06)"
_GZIP = rb"\x1f\x8b"
_Opener = Callable[[Path], IO[bytes] | gzip.GzipFile]
_OPENERS: tuple[tuple[bytes, _Opener], ...] = (
    (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", bz2.open),
    (rb"\xfd7zXZ\x00", lzma.open),
)


@dataclass(frozen=True)
class _Found:
    path: Path
    shown: str
    """What the user calls it: `path` may be a copy."""

    def head(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                return file.read(4096)
        except OSError as error:
            raise unreadable(self.path, error, shown=self.shown) from error

    def has_old_line_ends(self) -> bool:
        """Whether lines end in a carriage return alone, which polars does not take for an end."""
        head = self.head()
        begin = _begin_of_gzip(head) if re.match(_GZIP, head) else head
        return not is_columnar(head) and not is_zstd(head) and b"\r" in begin and b"\n" not in begin


def open_files(sources: Sequence[str | Path], scratch: Path, hints: Hints = Hints()) -> list[LogFile]:
    """Every file that `sources` name, ready to be read; copies that this takes lie below `scratch`."""
    found = [file for path in find_files(sources) for file in _open(path, scratch, hints.encoding)]
    if hints.encoding:
        found = [_recode(file, hints.encoding, scratch) for file in found]
    else:
        # As Latin-1 every byte comes back the same; only line ends change.
        found = [
            _recode(file, "latin-1", scratch, to="latin-1") if file.has_old_line_ends() else file
            for file in found
        ]
    files = [inspect_file(file.path, file.shown, hints.separator) for file in found]
    return [_without_blanks_before_quotes(file, scratch) for file in files]


def _open(path: Path, scratch: Path, encoding: str | None) -> list[_Found]:
    archive = archive_of(path)
    if archive is None:
        return _unpack(_Found(path, str(path)), scratch, encoding)
    found = _Found(archive, str(archive))
    if not re.match(_ZIP, found.head()):
        raise NotFoundError(f"{path} does not exist: {archive} is neither a folder nor a .zip archive.")
    return _members(found, scratch, encoding, path.relative_to(archive).as_posix())


def _unpack(file: _Found, scratch: Path, encoding: str | None) -> list[_Found]:
    """The file itself if it can be read as it is, or what is in it."""
    content = head = file.head()
    if re.match(_ZIP, head):
        return _members(file, scratch, encoding)
    opener = next((opener for magic, opener in _OPENERS if re.match(magic, head)), None)
    if re.match(_GZIP, head):
        content = _begin_of_gzip(head)
        if is_columnar(content):
            opener = gzip.open
    if opener:
        target = _new_path(scratch, file.path.with_suffix("").name)
        with _damage_of(file.shown), opener(file.path) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
        return _unpack(_Found(target, file.shown), scratch, encoding)
    if is_zstd(head):
        content = b""
    if head and (kind := recognise(content, ending_of(file.shown), encoding=encoding)):
        raise _refusal(file.shown, kind)
    return [file]


def _members(archive: _Found, scratch: Path, encoding: str | None, wanted: str | None = None) -> list[_Found]:
    """The files in an archive that look like logs, or those that `wanted` names, which may be a pattern."""
    files = []
    with _damage_of(archive.shown), zipfile.ZipFile(archive.path) as opened:
        members = (info.filename for info in opened.infolist() if not info.is_dir())
        names = sorted(name for name in members if not name.startswith("__MACOSX/"))
        if kind := _kind_of_archive(names):
            raise _refusal(archive.shown, kind)
        if wanted is None:
            chosen = [name for name in names if is_log(PurePosixPath(name))]
            chosen = chosen or (names if len(names) == 1 else [])
        else:
            chosen = [wanted] if wanted in names else [n for n in names if PurePosixPath(n).match(wanted)]
        if not chosen:
            what = wanted or "CSV, TSV, Parquet, Feather, JSON Lines or text file"
            listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "nothing"
            raise NotFoundError(f"{archive.shown} has no {what}. Found {listed}.")
        for name in chosen:
            target = _new_path(scratch, PurePosixPath(name).name)
            with opened.open(name) as packed, target.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
            files.append(_Found(target, f"{archive.shown}/{name}"))
    return [member for file in files for member in _unpack(file, scratch, encoding)]


def _kind_of_archive(names: list[str]) -> Binary | None:
    """Some programs write their own files as .zip."""
    if "xl/workbook.xml" in names:
        return EXCEL
    if "[Content_Types].xml" in names or {"mimetype", "content.xml"} <= set(names):
        return OFFICE
    return NUMPY if names and all(name.endswith(".npy") for name in names) else None


def _recode(file: _Found, encoding: str, scratch: Path, *, to: str = "utf-8") -> _Found:
    """A copy as plain text with usual line ends, in UTF-8 for readers that know nothing else."""
    head = file.head()
    if is_columnar(head):
        raise UsageError(f"`encoding` is for text files, and {file.shown} is not text.")
    if is_zstd(head):
        raise UsageError(f"`encoding` cannot be used with {file.shown}. Unpack the file first.")
    target = _new_path(scratch, file.path.name)
    open_text = gzip.open if re.match(_GZIP, head) else open
    try:
        with (
            _damage_of(file.shown),
            open_text(file.path, "rt", encoding=encoding) as source,
            target.open("w", encoding=to) as out,
        ):
            shutil.copyfileobj(source, out, 1 << 20)
    except LookupError as error:
        raise UsageError(f"`encoding`: {encoding!r} is unknown. Try latin-1 or cp1252.") from error
    except UnicodeError as error:
        raise DataError(f"{file.shown} cannot be read as {encoding}: {error}.") from error
    return _Found(target, file.shown)


def _without_blanks_before_quotes(file: LogFile, scratch: Path) -> LogFile:
    """A copy of a table with blanks before quotes (1, "Tea, green"), which polars does not recognise as quotes."""
    if not any(_has_blank_before_quote(line, file) for line in file.head):
        return file
    with file.path.open("rb") as begin:
        head = begin.read(4)
    if is_zstd(head):
        raise DataError(f"{file.shown} has blanks before quotes. Unpack it first, for example with zstd -d.")
    target = _new_path(scratch, file.path.name)
    open_text = gzip.open if re.match(_GZIP, head) else open
    # Bytes that are not UTF-8 stay as they are: the reader will name their line.
    try:
        with (
            _damage_of(file.shown),
            open_text(file.path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as source,
            target.open("w", encoding="utf-8", errors="surrogateescape", newline="") as out,
        ):
            rows = csv.reader(source, delimiter=file.separator, skipinitialspace=True)
            csv.writer(out, delimiter=file.separator, lineterminator="\n").writerows(rows)
    except csv.Error as error:
        raise DataError(f"{file.shown} cannot be read: {error}.") from error
    return replace(file, path=target)


def _has_blank_before_quote(line: str, file: LogFile) -> bool:
    if not file.quote or ' "' not in line:
        return False
    return any(re.match(' +"', field) for field in split_row(line, file.separator))


def _new_path(scratch: Path, name: str) -> Path:
    return Path(mkdtemp(dir=scratch)) / name


def _begin_of_gzip(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, 4096)
    except zlib.error:
        return b""


def _refusal(shown: str, kind: Binary) -> DataError:
    error = EncodingError if kind.is_text else DataError
    return error(f"{shown} is {kind.name}. {kind.advice}")


@contextmanager
def _damage_of(shown: str) -> Iterator[None]:
    """Turn errors of the unpackers into ours, with the name that the user knows."""
    try:
        yield
    except RuntimeError as error:  # encrypted, or packed in a way Python does not know
        raise DataError(f"{shown} cannot be unpacked: {error}. Unpack it first.") from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the file's
            raise
        raise DataError(f"{shown} is damaged or incomplete: {error}. Copy or download it again.") from error
