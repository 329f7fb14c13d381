"""HTTP as uvicorn reads it, with bounds on what a client may cost before a request of its reaches the gate."""

import asyncio
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 2**16
"""Bytes of one request's line and headers."""
MAX_PIPELINE = 16
"""Requests that one connection may send ahead of their answers."""
HEAD_TIMEOUT = 15.0
"""Seconds in which the head of a request must arrive."""


class BoundedProtocol(HttpToolsProtocol):
    """Answers 400 to what is too much, and closes a connection on which nothing useful comes."""

    _unused = 0
    """Bytes that have become neither a whole head nor a part of a body."""
    _deadline: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()
        self._unused += len(data)
        super().data_received(data)
        if self._unused > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_headers_complete(self) -> None:
        self._unused = 0
        self._stop_waiting()
        if len(self.pipeline) >= MAX_PIPELINE:
            raise ValueError("too many requests at once")  # which the parser reports as malformed
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        super().on_body(body)

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
