"""A load generator for one address: as many connections as wanted, each with one request under way.

Closed loop: a connection asks again as soon as it is answered. Paced: requests begin on a schedule, whether or not
earlier ones are answered, as requests of many people do.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np


@dataclass
class Outcome:
    """What became of the requests."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Seconds, of requests answered with 200."""
    unanswered: int = 0
    processor_seconds: float = float("nan")
    """What the server used of its core meanwhile, where somebody looked."""

    @property
    def per_second(self) -> float:
        return self.statuses[200] / self.seconds

    @property
    def per_processor_second(self) -> float:
        return self.statuses[200] / self.processor_seconds

    def percentile(self, percent: float) -> float:
        """Milliseconds."""
        return float(np.percentile(self.latencies, percent)) * 1000


class Connection(asyncio.Protocol):
    """One keep-alive connection; parses just enough of HTTP to know when an answer is complete."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) >= length and self._answer:
            self._buffer = b""
            self._answer.set_result(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError())

    async def ask(self, request: bytes) -> int:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer


def post(path: str, content: object) -> bytes:
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def connect(port: int, count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)]


async def closed_loop(port: int, requests: Sequence[bytes], *, connections: int, seconds: float) -> Outcome:
    """Every connection asks again as soon as it is answered."""
    outcome = Outcome()
    opened = await connect(port, connections)
    began = time.perf_counter()

    async def go(first: int, connection: Connection) -> None:
        place = first
        while time.perf_counter() - began < seconds:
            await _timed(connection, requests[place % len(requests)], outcome)
            place += connections

    await asyncio.gather(*(go(place, each) for place, each in enumerate(opened)))
    outcome.seconds = time.perf_counter() - began
    return outcome


async def paced(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float, per_second: float
) -> Outcome:
    """Requests begin on a schedule. Returns when every one of them is answered, or after 30 seconds."""
    outcome = Outcome()
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for each in await connect(port, connections):
        free.put_nowait(each)
    began = time.perf_counter()

    async def one(place: int) -> None:
        connection = await free.get()
        await _timed(connection, requests[place % len(requests)], outcome)
        free.put_nowait(connection)

    tasks: list[asyncio.Task[None]] = []
    total = int(per_second * seconds)
    while len(tasks) < total:
        due = min(total, int((time.perf_counter() - began) * per_second) + 1)
        tasks += [asyncio.create_task(one(place)) for place in range(len(tasks), due)]
        await asyncio.sleep(0.001)
    _, pending = await asyncio.wait(tasks, timeout=30)
    outcome.unanswered += len(pending)
    for task in pending:
        task.cancel()
    outcome.seconds = time.perf_counter() - began
    return outcome


async def _timed(connection: Connection, request: bytes, outcome: Outcome) -> None:
    began = time.perf_counter()
    try:
        status = await connection.ask(request)
    except OSError:
        outcome.unanswered += 1
        return
    outcome.statuses[status] += 1
    if status == 200:
        outcome.latencies.append(time.perf_counter() - began)
