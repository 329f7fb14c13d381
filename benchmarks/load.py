"""A load generator for one address: as many connections as wanted, each with one request under way.

Closed loop: a connection asks again as soon as it is answered. Paced: requests begin on a schedule, whether or not
earlier ones are answered, as requests of many people do. What becomes of every request is counted; a connection that
the server ends is opened again.

One core can offer far more than ten thousand requests a second: a request costs one callback and no task.
"""

import asyncio
import gc
import json
import re
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

HOST = "127.0.0.1"
DEADLINE = 15.0
"""Seconds after which a request counts as unanswered."""
RETRY = 0.05
"""Seconds until a refused connection is tried again."""
LENGTH = re.compile(rb"content-length: *(\d+)")
LAST_CHUNK = b"\r\n0\r\n\r\n"
"""Ends a body in chunks. Their contents are JSON, which has no line breaks of its own here."""
Result = TypeVar("Result")


@dataclass
class Outcome:
    """What became of the requests."""

    seconds: float = 0.0
    sent: int = 0
    held_back: int = 0
    """Requests of a schedule that were due while every connection was waiting for an answer, and were not sent."""
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds, of requests that were answered with success."""
    in_time: int = 0
    """Successes that came before the time was up."""
    reset: int = 0
    """Requests whose connection ended before the answer."""
    overdue: int = 0
    """Requests that were given up after the deadline."""
    refused: int = 0
    """Attempts to connect that failed."""
    bodies: list[bytes] = field(default_factory=list)
    """Of the answers, where somebody wants to read them."""
    own_processor_seconds: float = 0.0
    processor_seconds: float = float("nan")
    """What the server used meanwhile, where somebody looked."""

    @property
    def per_second(self) -> float:
        """Goodput: successes, not answers."""
        return self.in_time / self.seconds

    @property
    def per_processor_second(self) -> float:
        return len(self.latencies) / self.processor_seconds

    @property
    def unanswered(self) -> int:
        return self.reset + self.overdue

    @property
    def failed(self) -> int:
        """Everything but successes."""
        return self.statuses.total() - len(self.latencies) + self.unanswered

    def percentile(self, percent: float) -> float:
        """Milliseconds; nan where nothing was answered."""
        return float(np.percentile(self.latencies, percent)) * 1000 if self.latencies else float("nan")


class Connection(asyncio.Protocol):
    """One keep-alive connection; parses just enough of HTTP to know when an answer is complete."""

    def __init__(self, crowd: "Crowd") -> None:
        self._crowd = crowd
        self._transport: asyncio.Transport | None = None
        self.port = crowd.port
        self.asked_at = 0.0
        """When the request under way was sent, or 0."""
        self._forget()

    def _forget(self) -> None:
        self._head = self._tail = b""
        self._missing = 0
        self._chunked = False
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._crowd.joined(self)

    def ask(self, request: bytes) -> None:
        assert self._transport is not None
        self.asked_at = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._missing or self._chunked:
            self._missing -= len(data)
        else:
            data = self._head + data
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = data
                return
            head = data[:end].lower()
            length = LENGTH.search(head)
            self._status = int(head[9:12])
            self._last = b"connection: close" in head
            self._chunked = b"transfer-encoding: chunked" in head
            data = data[end:]
            self._missing = int(length[1]) - len(data) if length else 0
        if self._crowd.keep_bodies:
            self._parts.append(data)
        if self._chunked:
            self._tail = (self._tail + data)[-len(LAST_CHUNK) :]
        if self._tail == LAST_CHUNK if self._chunked else self._missing <= 0:
            asked_at, self.asked_at = self.asked_at, 0.0
            body = b"".join(self._parts)
            if self._chunked:
                body = b"".join(body.split(b"\r\n")[1:-3:2])
            self._forget()
            self._crowd.answered(self, self._status, asked_at, body, last=self._last)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        asked_at, self.asked_at = self.asked_at, 0.0
        self._crowd.lost(self, was_asked=asked_at > 0)

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()


class Crowd:
    """Many connections to one port. `port` may be changed: each connection moves once it has its answer."""

    def __init__(
        self,
        port: int,
        requests: Sequence[bytes],
        *,
        connections: int,
        deadline: float = DEADLINE,
        fresh: bool = False,
        keep_bodies: bool = False,
    ) -> None:
        """`fresh`: every request has a connection of its own, `connections` at a time."""
        self.port, self.outcome, self.keep_bodies = port, Outcome(), keep_bodies
        self._requests, self._connections, self._deadline = requests, connections, deadline
        self._fresh = fresh
        self._open: set[Connection] = set()
        self._free: deque[Connection] | None = None
        """Of a schedule; None in a closed loop, where no connection is ever free."""
        self._limit: int | None = None
        self._until = 0.0
        self._leaving = False
        self._next_look = 0.0
        self._opening: set[asyncio.Task[None]] = set()

    async def closed_loop(self, seconds: float, *, limit: int | None = None) -> Outcome:
        """Every connection asks again as soon as it is answered, for so long, or until so many were asked."""
        self._limit = limit
        await self._connect()
        began = self._begin(seconds)
        for connection in list(self._open):
            self._go_on(connection)
        while time.perf_counter() < self._until and (limit is None or self.outcome.sent < limit):
            await self._give_up_late(0.02)
        return await self._end(min(seconds, time.perf_counter() - began))

    async def paced(self, seconds: float, per_second: float) -> Outcome:
        """Requests begin on a schedule, if a connection is free for them."""
        await self._connect()
        self._free = deque(self._open)
        began = self._begin(seconds)
        due, total = 0, int(per_second * seconds)
        while due < total:
            await self._give_up_late(0.001)
            now_due = min(total, int((time.perf_counter() - began) * per_second))
            for _ in range(due, now_due):
                while self._free and self._free[0] not in self._open:  # lost while it was free
                    self._free.popleft()
                if self._free:
                    self._ask(self._free.popleft())
                else:
                    self.outcome.held_back += 1
            due = now_due
        return await self._end(seconds)

    def joined(self, connection: Connection) -> None:
        if self._leaving:
            connection.abort()
            return
        self._open.add(connection)
        if self._until:
            self._go_on(connection)

    def answered(
        self, connection: Connection, status: int, asked_at: float, body: bytes, *, last: bool
    ) -> None:
        now, outcome = time.perf_counter(), self.outcome
        outcome.statuses[status] += 1
        if 200 <= status < 300:
            outcome.latencies.append(now - asked_at)
            outcome.in_time += now < self._until
        if self.keep_bodies:
            outcome.bodies.append(body)
        if last or self._fresh or connection.port != self.port:
            connection.close()  # and another one is opened when it is
        else:
            self._go_on(connection)

    def lost(self, connection: Connection, *, was_asked: bool) -> None:
        self.outcome.reset += was_asked
        self._open.discard(connection)
        if not self._leaving:
            task = asyncio.get_running_loop().create_task(self._open_one())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _begin(self, seconds: float) -> float:
        self._own = time.process_time()
        began = time.perf_counter()
        self._until = began + seconds
        return began

    async def _end(self, seconds: float) -> Outcome:
        """When everything that was asked is answered or given up."""
        self.outcome.seconds = seconds
        self.outcome.own_processor_seconds = time.process_time() - self._own
        self._until = 0.0
        while any(each.asked_at for each in self._open):
            await self._give_up_late(0.02)
        self._leaving = True
        for task in self._opening:
            task.cancel()
        for connection in list(self._open):
            connection.close()
        while self._open:
            await asyncio.sleep(0.01)
        return self.outcome

    def _go_on(self, connection: Connection) -> None:
        """A connection is free: ask again, if there is still time."""
        if self._free is not None:
            self._free.append(connection)
        elif time.perf_counter() < self._until and (self._limit is None or self.outcome.sent < self._limit):
            self._ask(connection)

    def _ask(self, connection: Connection) -> None:
        connection.ask(self._requests[self.outcome.sent % len(self._requests)])
        self.outcome.sent += 1

    async def _give_up_late(self, pause: float) -> None:
        """Wait a moment, then look for requests that are past their deadline."""
        await asyncio.sleep(pause)
        now = time.perf_counter()
        if now < self._next_look:
            return
        self._next_look = now + 0.25
        for connection in list(self._open):
            if 0 < connection.asked_at < now - self._deadline:
                self.outcome.overdue += 1
                connection.asked_at = 0.0
                connection.abort()

    async def _connect(self) -> None:
        for first in range(0, self._connections, 100):
            count = min(100, self._connections - first)
            await asyncio.gather(*(self._open_one() for _ in range(count)))

    async def _open_one(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._leaving:
            try:
                await loop.create_connection(lambda: Connection(self), HOST, self.port)
            except OSError:
                self.outcome.refused += 1
                await asyncio.sleep(RETRY)
            else:
                return


def closed_loop(port: int, requests: Sequence[bytes], *, connections: int, seconds: float) -> Outcome:
    return run(Crowd(port, requests, connections=connections).closed_loop(seconds))


def paced(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float, per_second: float
) -> Outcome:
    return run(Crowd(port, requests, connections=connections).paced(seconds, per_second))


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """In an event loop as fast as can be had, with no pauses to collect garbage."""
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(work)
    finally:
        gc.enable()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def post(path: str, content: object) -> bytes:
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
