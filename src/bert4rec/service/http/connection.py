"""One connection: requests are read by httptools, answered one after the other, and bounded in everything.

A request is looked at as soon as its head has arrived, so that what is refused is refused before its body is read.
A client that hangs up stops the work on its request. An answer in parts is made as fast as it is read.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import cast
from urllib.parse import unquote

import httptools

from bert4rec.service.http import connections as bounds
from bert4rec.service.http.connections import Connections
from bert4rec.service.http.messages import (
    LARGEST_WRITE,
    Exchange,
    Head,
    Response,
    Waiting,
    encode_head,
    slices,
)

CLIENT_GONE = 499
"""Counted, never sent: the client hung up."""
PARTS_AT_ONCE = 8
"""Parts of an answer that are made before others have their turn."""
FOREVER = float("inf")
log = logging.getLogger("bert4rec.service")


class RefusedError(Exception):
    """Ends the parser's work: the connection has said why."""


class Connection(asyncio.Protocol):
    """HTTP/1.1, and 1.0, on one transport."""

    _transport: asyncio.Transport

    def __init__(self, all_connections: Connections) -> None:
        self._all, self._loop = all_connections, all_connections.loop
        self._parser = httptools.HttpRequestParser(self)
        self.due = FOREVER
        """When `expire` is called."""
        # What is being read: a head, then a body.
        self._is_in_head = False
        self._head_bytes = 0
        self._is_one_head = True
        """Whether all that was read last belongs to one head."""
        self._unread_head = 0
        """Bytes of a head that has not ended: the parser does not tell of a line without end."""
        self._url, self._headers, self._hosts = b"", dict[bytes, bytes](), 0
        self._exchange: Exchange | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._received = 0
        # What is being answered.
        self._answering: Waiting | None = None
        self._pipeline: deque[Waiting] = deque()
        self._task: asyncio.Task[Response] | None = None
        self._parts: Iterator[bytes] | None = None
        self._status, self._sent = CLIENT_GONE, 0
        self._is_chunked = False
        self._is_paused = self._is_written = False
        """Whether the client does not read, and whether that is all there is to wait for."""
        self._is_ending = False
        """Nothing more is read as a request; what is written is still sent."""
        self._has_asked, self._thrown_away = False, 0

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport.set_write_buffer_limits(high=bounds.HIGH_WATER)
        self._all.add(self)
        self.due = self._loop.time() + bounds.HEAD_TIMEOUT
        if self._all.is_full:
            self._refuse(503, "overloaded", "The service has as many connections as it can hold.")

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            self._thrown_away += len(data)
            if self._thrown_away > self._all.max_body:
                self.give_up()
            return
        self._count_received(len(data))
        if self._answering is None and not self._is_in_head and not self._exchange:
            self.due = min(self.due, self._loop.time() + bounds.HEAD_TIMEOUT)
        self._is_one_head = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end()  # the request is answered, and nothing after it is read
        except httptools.HttpParserError as error:
            if isinstance(error, httptools.HttpParserCallbackError) and not self._is_ending:
                log.error("A request could not be read.", exc_info=error.__context__)
            self._refuse(400, "malformed_request", "This is not an HTTP request.")
        if not self._is_ending:
            self._check_what_was_read(len(data))

    def _check_what_was_read(self, size: int) -> None:
        """Of a request that has not ended."""
        if self._is_in_head and self._is_one_head:
            self._unread_head += size
        if self._unread_head > bounds.MAX_HEAD:
            self._refuse(*bounds.head_too_large())
        elif self._exchange and self._exchange.refusal:
            self._stop_reading(self._exchange)
        elif self._received > 2 * self._all.max_body:  # with what is around the parts of a body
            self._refuse(*self._all.body_too_large())
        elif self._all.received > bounds.MAX_RECEIVED and (self._exchange or self._is_in_head):
            self._refuse(503, "overloaded", "The service is overloaded: too much is being sent to it.")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Also called when the client only stops sending: to wait for those would be to work for the dead."""
        self._end()
        self._parts = None
        if self._task:
            self._task.cancel()
        self._status = CLIENT_GONE
        self._close_exchange()
        for waiting in self._pipeline:
            self._close_waiting(waiting)
        self._pipeline.clear()
        if self._exchange:
            self._exchange.close(CLIENT_GONE, 0)
        self._exchange = None
        self._all.remove(self)
        del self._parser  # which holds this connection, as this one holds it

    def pause_writing(self) -> None:
        self._is_paused = True
        self._all.pause(self)

    def resume_writing(self) -> None:
        self._is_paused = False
        self._all.resume(self)
        if self._is_written:
            self._finish()
        else:
            self._write_parts()

    # What httptools calls

    def on_message_begin(self) -> None:
        self._has_asked = True
        self._is_in_head, self._head_bytes, self._unread_head = True, 0, 0
        self._url, self._headers, self._hosts = b"", {}, 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer, which comes after the request was looked at
        self._count_head(len(name) + len(value))
        name = name.lower()
        self._hosts += name == b"host"
        self._headers.setdefault(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = self._is_one_head = False
        self._unread_head = 0
        self._body, self._body_bytes = [], 0
        if len(self._pipeline) >= bounds.MAX_PIPELINE:
            self._refuse(400, "malformed_request", "Too many requests were sent ahead of their answers.")
            raise RefusedError
        self._exchange = self._open()
        if self._answering is None:
            self.due = self._loop.time() + bounds.BODY_TIMEOUT
            asks_first = self._headers.get(b"expect", b"").lower() == b"100-continue"
            if asks_first and self._parser.get_http_version() != "1.0" and not self._exchange.refusal:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        assert self._exchange
        self._body_bytes += len(body)
        if self._exchange.refusal:
            return
        if self._body_bytes > self._all.max_body:
            self._exchange.refuse(*self._all.body_too_large())
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        assert self._exchange
        is_new = self._parser.get_http_version() != "1.0"
        waiting = Waiting(
            self._exchange,
            b"".join(self._body),
            is_head=self._parser.get_method() == b"HEAD",
            takes_parts=is_new,
            keeps_alive=is_new and self._parser.should_keep_alive() and not self._parser.should_upgrade(),
            received=self._received,
        )
        self._exchange, self._body, self._received = None, [], 0
        self._is_one_head = False
        self._answer_in_turn(waiting)

    # Reading

    def _count_received(self, size: int) -> None:
        self._received += size
        self._all.received += size

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > bounds.MAX_HEAD:
            self._refuse(*bounds.head_too_large())
            raise RefusedError

    def _open(self) -> Exchange:
        """The request, as soon as its head is complete."""
        handler = self._all.handler
        if self._hosts > 1 or (self._hosts == 0 and self._parser.get_http_version() != "1.0"):
            return handler.refuse(400, "malformed_request", "Send exactly one Host header.")
        try:
            url = httptools.parse_url(self._url)
            path = unquote((url.path or b"/").decode("ascii"), errors="strict")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            return handler.refuse(400, "malformed_request", "The path is not valid.")
        length = self._headers.get(b"content-length", b"0")
        if len(length) > 9 or int(length) > self._all.max_body:
            return handler.refuse(*self._all.body_too_large())
        method = self._parser.get_method().decode("ascii")
        return handler.open(Head(method, path, url.query or b"", self._headers, url.path or b"/"))

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer what cannot be read on, and end."""
        if self._is_ending:
            return
        exchange = self._exchange
        if exchange is None:
            exchange = self._all.handler.refuse(status, code, detail)
        else:
            exchange.refuse(status, code, detail)
        self._stop_reading(exchange)

    def _stop_reading(self, exchange: Exchange) -> None:
        """The last answer on this connection, though its request was not read to its end."""
        is_head = self._exchange is not None and self._parser.get_method() == b"HEAD"
        self._exchange = None
        self._end()
        self._answer_in_turn(Waiting(exchange, is_head=is_head))

    def _end(self) -> None:
        self._is_ending = True
        self._count_received(-self._received)

    # Answering

    def _answer_in_turn(self, waiting: Waiting) -> None:
        if self._answering is None:
            self._answer(waiting)
        else:
            self._pipeline.append(waiting)

    def _answer(self, waiting: Waiting) -> None:
        self._answering = waiting
        self._status, self._sent = CLIENT_GONE, 0
        self.due = FOREVER
        if waiting.exchange.refusal:
            self._send(waiting, waiting.exchange.refusal)
            return
        self._task = self._loop.create_task(waiting.exchange.respond(waiting.body))
        self._task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[Response]) -> None:
        if not self._answering or self._transport.is_closing():
            return
        if task.cancelled() or task.exception():  # which an exchange promises not to raise
            self.give_up()
        else:
            self._send(self._answering, task.result())

    def _send(self, waiting: Waiting, response: Response) -> None:
        content = response.content
        if not isinstance(content, bytes) and not waiting.takes_parts:
            content = b"".join(content)
            response = response._replace(content=content)
        is_last = (self._is_ending and not self._pipeline) or self._all.is_draining
        keeps_alive = waiting.keeps_alive and not is_last
        self._answering = waiting._replace(keeps_alive=keeps_alive)
        self._status = response.status
        self.due = self._loop.time() + bounds.WRITE_TIMEOUT
        head = encode_head(response, waiting.exchange, date=self._all.date, keep_alive=keeps_alive)
        if waiting.is_head:
            self._write(head)
            self._finish()
        elif isinstance(content, bytes) and len(content) <= LARGEST_WRITE:
            self._write(head + content)
            self._finish()
        else:
            self._write(head)
            self._is_chunked = not isinstance(content, bytes)
            self._parts = slices(content) if isinstance(content, bytes) else content
            self._write_parts()

    def _write_parts(self) -> None:
        """Some of an answer, for as long as its client reads; then others have their turn."""
        for _ in range(PARTS_AT_ONCE):
            if self._parts is None or self._is_paused or self._transport.is_closing():
                return
            try:
                part = next(self._parts, b"")
            except Exception:
                self.give_up()  # rather than let it look complete
                raise
            if part:
                self._write(b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part)
                continue
            self._parts = None
            if self._is_chunked:
                self._write(b"0\r\n\r\n")
            self._finish()
            return
        self._loop.call_soon(self._write_parts)

    def _write(self, data: bytes) -> None:
        self._sent += len(data)
        self._transport.write(data)

    def _finish(self) -> None:
        """The response is written: the next request, or the end. Nothing is done for a client that does not read."""
        assert self._answering
        self._is_written = self._is_paused
        if self._is_paused:
            return
        keeps_alive = self._answering.keeps_alive
        self._close_exchange()
        if self._pipeline and keeps_alive:
            self._answering = self._pipeline.popleft()
            # Not at once: many small ones would be answered one inside the other.
            self._loop.call_soon(self._answer_next, self._answering)
        elif not keeps_alive:
            self._close()
        elif self._exchange or self._is_in_head:
            self.due = self._loop.time() + bounds.BODY_TIMEOUT
        else:
            self.due = self._loop.time() + bounds.KEEP_ALIVE

    def _answer_next(self, waiting: Waiting) -> None:
        if self._answering:  # the client is still there
            self._answer(waiting)

    def _close(self) -> None:
        """When all is written. What a client sends after it was told no is thrown away for a moment, since closing at
        once would lose the answer."""
        if self._is_ending and self._transport.can_write_eof():
            self._transport.write_eof()
            self.due = self._loop.time() + bounds.LINGER
        else:
            self._is_ending = True
            self._transport.close()

    def _close_exchange(self) -> None:
        if self._answering:
            self._close_waiting(self._answering)
        self._answering = self._task = None

    def _close_waiting(self, waiting: Waiting) -> None:
        self._all.received -= waiting.received
        waiting.exchange.close(self._status, self._sent)

    # What is asked of every connection

    @property
    def buffered(self) -> int:
        """Bytes that the client has not read."""
        return self._transport.get_write_buffer_size()

    def expire(self) -> None:
        """The time for what is going on is over."""
        self.due = FOREVER
        if self.buffered:
            self.give_up()
        elif self._exchange and not self._is_ending:
            detail = f"The body did not arrive within {bounds.BODY_TIMEOUT:.0f} seconds."
            self._refuse(408, "request_timeout", detail)
        else:
            self._transport.close()

    def close_if_idle(self) -> None:
        """What was only just opened may be about to ask."""
        if self._answering is None and not self._received:
            if self._has_asked:
                self._transport.close()
            else:
                self.due = min(self.due, self._loop.time() + 1.0)

    def give_up(self) -> None:
        """Close without waiting for the client to read."""
        self._all.unread += bool(self.buffered)
        self._transport.abort()
