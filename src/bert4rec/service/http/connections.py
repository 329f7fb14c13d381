"""All connections of a process: how much they may hold together, and how long each may take.

Every bound that a client can run into is here. One timer looks at all connections, so that a request needs none.
"""

import asyncio
import time
from email.utils import formatdate
from typing import TYPE_CHECKING

from bert4rec.service.http.messages import Handler

if TYPE_CHECKING:
    from bert4rec.service.http.connection import Connection

MAX_CONNECTIONS = 4096
MAX_HEAD = 2**16
"""Bytes of one request's line and headers."""
MAX_PIPELINE = 16
"""Requests that one connection may send ahead of their responses."""
MAX_RECEIVED = 2**24
"""Bytes of all requests that are being read or answered."""
MAX_BUFFERED = 2**24
"""Bytes of all answers that clients do not read. Those who have not read for longest are cut off."""
HIGH_WATER = 2**14
"""Bytes that wait to be read by one client, above which no further part of its answer is made."""
HEAD_TIMEOUT = 15.0
"""Seconds in which the head of a request must arrive."""
BODY_TIMEOUT = 10.0
"""Seconds in which the whole body must arrive."""
WRITE_TIMEOUT = 30.0
"""Seconds in which an answer must be read."""
KEEP_ALIVE = 75.0
"""Seconds; longer than the usual proxies keep a connection, so that they are the ones who close it."""
LINGER = 2.0
"""Seconds in which what a client still sends is thrown away, after it was told no. Closing at once would lose that."""
SWEEP_EVERY = 0.25


class Connections:
    """The connections of one process, and what they share."""

    def __init__(self, handler: Handler, *, max_body: int) -> None:
        self.handler, self.max_body = handler, max_body
        self.loop = asyncio.get_running_loop()
        self.is_draining = False
        """Whether every response says that it is the last on its connection."""
        self.received = 0
        """Bytes of requests that are being read or answered."""
        self.unread = 0
        """Answers that were given up because they were not read."""
        self._all: set[Connection] = set()
        self._paused: dict[Connection, None] = {}
        """Those whose clients do not read as fast as we write, longest first."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._tick()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        return len(self._all) > MAX_CONNECTIONS

    def body_too_large(self) -> tuple[int, str, str]:
        return 413, "body_too_large", f"The body must not exceed {self.max_body:,} bytes."

    def add(self, connection: "Connection") -> None:
        self._all.add(connection)
        self._empty.clear()

    def remove(self, connection: "Connection") -> None:
        self._all.discard(connection)
        self._paused.pop(connection, None)
        if not self._all:
            self._empty.set()

    def pause(self, connection: "Connection") -> None:
        """A client does not read. If too much waits in all, those who have not read for longest are cut off."""
        self._paused[connection] = None
        buffered = sum(each.buffered for each in self._paused)
        for each in list(self._paused):
            if buffered <= MAX_BUFFERED:
                break
            buffered -= each.buffered
            each.give_up()

    def resume(self, connection: "Connection") -> None:
        self._paused.pop(connection, None)

    async def close(self, grace: float) -> int:
        """Close what is idle, wait for what is being answered, and cut off the rest; how many that were."""
        for each in list(self._all):
            each.close_if_idle()
        try:
            async with asyncio.timeout(grace):
                await self._empty.wait()
        except TimeoutError:
            pass
        rest = list(self._all)
        for each in rest:
            each.give_up()
        self._ticking.cancel()
        return len(rest)

    def _tick(self) -> None:
        self.date = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
        now = self.loop.time()
        for each in list(self._all):
            if each.due < now:
                each.expire()
        self._ticking = self.loop.call_later(SWEEP_EVERY, self._tick)


def head_too_large() -> tuple[int, str, str]:
    return 431, "head_too_large", f"The head must not exceed {MAX_HEAD:,} bytes."
