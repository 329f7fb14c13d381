"""Requests and responses, and what a connection needs of those who answer them."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol

Headers = Mapping[bytes, bytes]
"""Names in lower case. Of a header that is sent twice, the first counts."""
STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
LARGEST_WRITE = 2**16
"""Bytes that are written at once."""
NO_STORE = {"cache-control": "no-store"}


class Head(NamedTuple):
    """A request before its body."""

    method: str
    path: str
    """Decoded, without the query."""
    query: bytes
    headers: Headers
    written_path: bytes = b""
    """As it was sent: a slash that is part of a name may be told from one between names."""


class Response(NamedTuple):
    """What is sent back."""

    content: bytes | Iterator[bytes]
    """All of it, or its parts, which are made as the client reads them: an answer that nobody reads costs nothing."""
    media_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = {}


class Exchange(Protocol):
    """One request, from its head to the end of its response."""

    refusal: Response | None
    """Sent instead of an answer, without reading the body."""
    identity: str
    """Of the request: sent back as X-Request-ID."""

    def refuse(self, status: int, code: str, detail: str) -> None:
        """Give it a refusal: its body is not what it should be."""
        ...

    async def respond(self, body: bytes) -> Response:
        """The answer. Raises nothing; is cancelled if the client hangs up."""
        ...

    def close(self, status: int, sent: int) -> None:
        """The response has been sent, of so many bytes, or the client has gone."""
        ...


class Handler(Protocol):
    """Who answers."""

    def open(self, head: Head) -> Exchange:
        """Look at a request before its body is read. Raises nothing."""
        ...

    def refuse(self, status: int, code: str, detail: str) -> Exchange:
        """Answer what is no request, or comes when nothing can be answered."""
        ...


class Waiting(NamedTuple):
    """A request that is complete, or refused before it was, and waits for those before it."""

    exchange: Exchange
    body: bytes = b""
    is_head: bool = False
    """Whether it asks for the head of a response alone."""
    takes_parts: bool = False
    """HTTP/1.0 does not know responses whose length is not told beforehand."""
    keeps_alive: bool = False
    received: int = 0
    """Bytes that it takes of what all requests may hold."""


def encode_head(response: Response, exchange: Exchange, *, date: bytes, keep_alive: bool) -> bytes:
    """Status line and headers. Of a response in parts, the length is not known beforehand."""
    content = response.content
    length = f"content-length: {len(content)}" if isinstance(content, bytes) else "transfer-encoding: chunked"
    lines = [
        f"content-type: {response.media_type}",
        length,
        f"x-request-id: {exchange.identity}",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    if not keep_alive:
        lines.append("connection: close")
    return b"%b%b%b\r\n\r\n" % (STATUS_LINES[response.status], date, "\r\n".join(lines).encode("latin-1"))


def slices(content: bytes) -> Iterator[bytes]:
    """With TLS, only between two writes is it noticed that a client does not read."""
    for start in range(0, len(content), LARGEST_WRITE):
        yield content[start : start + LARGEST_WRITE]
