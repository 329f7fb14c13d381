"""Download a file: resumed after a broken connection, verified, and under its own name only when it is complete."""

import contextlib
import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from bert4rec.errors import DataError, NotFoundError
from bert4rec.progress import ProgressCallback

TRIES = 4
"""Broken connections in a row, without a byte gained, before giving up."""
Response = HTTPResponse | urllib.error.HTTPError
_BLOCK = 1 << 20
_TIMEOUT = 30.0
"""Seconds without data before a connection counts as broken."""


def download(
    url: str,
    target: Path,
    *,
    checksum: str | None,
    progress: ProgressCallback | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Download `url` to `target`, which appears only when it is complete and matches `checksum`.

    `checksum` is `md5:…` or `sha256:…`; with None only the length that the server announced is checked. What has
    arrived is in `target.part`. A broken connection is tried again, and a later call continues where this one
    stopped if the server can tell that its file is still the same; otherwise the download starts again.
    `wait` is called with the seconds to pause between tries.
    """
    part = _Part(target)
    failures, furthest = 0, 0
    while True:
        try:
            _fetch(url, part, progress)
            break
        except _BrokenConnectionError as error:
            # A server that always stops at the same place must not keep us here forever.
            gained = part.size > furthest
            furthest = max(furthest, part.size)
            failures = 1 if gained else failures + 1
            if failures >= TRIES:
                raise NotFoundError(
                    f"{url} cannot be reached: {error}. Try again later, or pass a copy with `local_copy`."
                ) from error
            wait(0.5 * 2 ** (failures - 1))
    _verify(url, part, checksum)
    part.finish()


def digest(path: Path, algorithm: str) -> str:
    """The checksum of a file as `download` takes it."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{found.hexdigest()}"


class _BrokenConnectionError(Exception):
    """The server did not answer or stopped in the middle; trying again may help."""


@dataclass(frozen=True)
class _Part:
    """What has arrived so far, and the mark by which the server knows its version of the file."""

    target: Path

    @property
    def path(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def _mark_path(self) -> Path:
        return self.target.with_name(self.target.name + ".part.version")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def mark(self) -> str:
        return self._mark_path.read_text(encoding="utf-8") if self._mark_path.exists() else ""

    def start(self, mark: str) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._mark_path.write_text(mark, encoding="utf-8")
        self.path.write_bytes(b"")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._mark_path.unlink(missing_ok=True)

    def finish(self) -> None:
        self.path.replace(self.target)
        self._mark_path.unlink(missing_ok=True)


def _fetch(url: str, part: _Part, progress: ProgressCallback | None) -> None:
    """One connection: append what is missing, or start again if the server offers only the whole file."""
    start = part.size if part.mark else 0
    with contextlib.closing(_connect(url, start, part.mark)) as response:
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if response.headers.get("Content-Range") == f"bytes */{start}":
                return  # nothing was missing
            part.discard()
            raise _BrokenConnectionError("its file has changed")
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            start = 0
            part.start(_mark_of(response))
        elif not _continues(response, start, part.mark):
            part.discard()
            raise _BrokenConnectionError("its file has changed")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        _append(response, part, total, progress)
    if total is not None and part.size < total:
        raise _BrokenConnectionError(f"the connection ended after {part.size:,} of {total:,} bytes")


def _connect(url: str, start: int, mark: str) -> Response:
    """The server's response: the rest from byte `start`, if its file is still the one that `mark` identifies."""
    assert url.startswith(("http://", "https://")), url
    headers = {"Accept-Encoding": "identity", "User-Agent": "bert4rec"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": mark}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (asserted above)
    try:
        response: Response = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return error
        error.close()
        if error.code == HTTPStatus.TOO_MANY_REQUESTS or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _BrokenConnectionError(f"the server answers {error.code} {error.reason}") from error
        raise NotFoundError(
            f"{url} cannot be downloaded: the server answers {error.code} {error.reason}. "
            "If you have a copy, pass it with `local_copy`."
        ) from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise _BrokenConnectionError(str(reason) or type(reason).__name__) from error
    return response


def _append(response: Response, part: _Part, total: int | None, progress: ProgressCallback | None) -> None:
    try:
        with part.path.open("ab") as file:
            for block in _blocks(response):
                file.write(block)
                if progress:
                    progress(file.tell(), total)
    except OSError as error:
        raise DataError(
            f"{part.path} cannot be written: {error.strerror}. What has arrived is kept: "
            "free some space, or set XDG_CACHE_HOME to another disk, and try again."
        ) from error


def _continues(response: Response, start: int, mark: str) -> bool:
    """Whether a part of a file is the part we requested. Not every server respects `If-Range`."""
    same_file = _mark_of(response) in ("", mark)
    return same_file and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _blocks(response: Response) -> Iterator[bytes]:
    while True:
        try:
            block = response.read(_BLOCK)
        except (OSError, HTTPException) as error:
            raise _BrokenConnectionError(str(error) or type(error).__name__) from error
        if not block:
            return
        yield block


def _mark_of(response: Response) -> str:
    """What `If-Range` accepts: an exact ETag, or the date of the last change."""
    etag = response.headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")


def _verify(url: str, part: _Part, checksum: str | None) -> None:
    """Refuse, and remove, a file that is not the one its publisher describes."""
    if checksum is None:
        return
    found = digest(part.path, checksum.partition(":")[0])
    if found != checksum:
        part.discard()
        raise DataError(
            f"{url} is not the expected file: its checksum is {found}, expected {checksum}. It was removed. "
            "Try again, or pass a copy that you trust with `local_copy`."
        )
