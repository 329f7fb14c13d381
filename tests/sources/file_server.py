"""A small HTTP server on loopback that offers files and can misbehave in the ways real servers do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class FileServer:
    """What the server offers, how it behaves, and what it was asked."""

    files: dict[str, bytes]
    address: str = ""
    etag: str | None = '"1"'
    knows_ranges: bool = True
    heeds_if_range: bool = True
    cuts: list[int] = field(default_factory=list)
    """The connection ends after this many bytes: one entry for each request, until there are no more."""
    failures: list[int] = field(default_factory=list)
    """Status codes to answer with, one for each request, until there are no more."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and `Range` of every request so far."""

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, server)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.address = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def _answer(handler: BaseHTTPRequestHandler, server: FileServer) -> None:
    wanted = handler.headers.get("Range")
    server.requests.append((handler.path, wanted))
    content = server.files.get(handler.path.lstrip("/"))
    if server.failures:
        handler.send_error(server.failures.pop(0))
        return
    if content is None:
        handler.send_error(404)
        return
    same = handler.headers.get("If-Range") == server.etag or not server.heeds_if_range
    start = (
        int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.knows_ranges and same else 0
    )
    if start >= len(content) > 0:
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(content)}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handler.send_response(206 if start else 200)
    handler.send_header("Content-Length", str(len(content) - start))
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    if server.etag:
        handler.send_header("ETag", server.etag)
    handler.end_headers()
    handler.wfile.write(content[start : start + server.cuts.pop(0)] if server.cuts else content[start:])
