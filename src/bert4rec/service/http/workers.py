"""Several processes behind one address.

The parent accepts connections and gives each to the worker that has fewest, so that all have the same share of the
work, and none is lost with a worker. A worker that dies or hangs is replaced; if it dies before it is ready, the next
is started later and later. While no worker can be started, the parent itself says so to whoever connects.

Parent and worker talk over a pair of sockets, a word at a time. A worker whose parent has died ends by itself.
"""

import asyncio
import logging
import multiprocessing
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from multiprocessing.process import BaseProcess

from bert4rec.service.http.connection import Connection
from bert4rec.service.http.server import GRACE, Life, Server, tls_options

CONNECTION, DRAIN, STOP, RELOAD, ROLL_BACK = b"c", b"d", b"s", b"h", b"b"
"""From the parent. A worker may say ROLL_BACK too, and behind it which of several models: all others then do the
same."""
READY, ALIVE = b"r", b"n"
"""From a worker; behind ALIVE stands how many connections it has."""
BEAT_EVERY = 0.5
HANG = 30.0
"""Seconds without a sign of life after which a worker is killed."""
LONGEST_DELAY = 30.0
ACCEPT_AT_ONCE = 64
_PROBLEM = (
    b'{"title":"Service Unavailable","status":503,"code":"no_worker",'
    b'"detail":"No worker is running. The log of the service says why."}'
)
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 5\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_PROBLEM), _PROBLEM)
)
log = logging.getLogger("bert4rec.service")
Work = Callable[[socket.socket], None]
"""What a worker does, given its end of the pair; must be picklable."""


class Worker:
    """A process, as its parent sees it."""

    def __init__(self, work: Work) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        self.process: BaseProcess = multiprocessing.get_context("spawn").Process(target=work, args=(theirs,))
        self.process.start()
        theirs.close()
        self.is_ready = False
        self.connections = 0
        self.last_sign = time.monotonic()

    def tell(self, word: bytes) -> None:
        with suppress(OSError):  # it is about to be noticed that the worker has gone
            self.channel.send(word)

    def give(self, connection: socket.socket) -> bool:
        """Whether the worker took it."""
        try:
            socket.send_fds(self.channel, [CONNECTION], [connection.fileno()])
        except OSError:
            return False
        self.connections += 1
        return True

    def hear(self) -> list[bytes]:
        words = []
        with suppress(OSError):
            while word := self.channel.recv(64):
                self.last_sign = time.monotonic()
                words.append(word)
        return words


class Supervisor:
    """Keeps as many workers as wanted. Lives in the parent's event loop."""

    def __init__(
        self, work: Work, count: int, *, drain: float, on_death: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_death` is told the process id of each worker that has ended."""
        self._work, self._count, self._drain, self._on_death = work, count, drain, on_death
        self._workers: list[Worker] = []
        self._failures = 0
        """Workers that died before they were ready, since one was."""
        self._draining, self._stopping = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._refusing: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Until told to stop. Connections wait in the system's queue until the first worker is ready."""
        self._listener = listener
        listener.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._tell_all, RELOAD)
        for _ in range(self._count):
            self._start()
        watching = self._loop.create_task(self._watch_for_hangs())
        await self._draining.wait()
        self._tell_all(DRAIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain):
                await self._stopping.wait()
        self._accept()  # who came before the door is closed
        self._stopping.set()
        self._loop.remove_reader(listener)
        listener.close()
        watching.cancel()
        await self._end_all()

    def _on_signal(self, number: int) -> None:
        if self._draining.is_set() or number == signal.SIGINT:
            self._stopping.set()
        self._draining.set()

    def _tell_all(self, word: bytes, but: Worker | None = None) -> None:
        """Also those that are still loading, perhaps what has changed since: they hear it when they are ready."""
        for worker in self._workers:
            if worker is not but:
                worker.tell(word)

    # Workers come and go

    def _start(self) -> None:
        if self._draining.is_set():
            return
        try:
            worker = Worker(self._work)
        except OSError as error:
            self._failures += 1
            log.error("No worker can be started: %s. It is tried again.", error.strerror)
            self._loop.call_later(self._delay(), self._start)
            return
        self._workers.append(worker)
        self._loop.add_reader(worker.channel, self._hear, worker)
        self._loop.add_reader(worker.process.sentinel, self._bury, worker)

    def _hear(self, worker: Worker) -> None:
        for word in worker.hear():
            if word == READY:
                worker.is_ready, self._failures = True, 0
                self._begin_to_accept()
            elif word.startswith(ROLL_BACK):
                self._tell_all(word, but=worker)
            elif word.startswith(ALIVE):
                worker.connections = int(word[1:])

    def _bury(self, worker: Worker) -> None:
        """A worker has ended."""
        self._loop.remove_reader(worker.channel)
        self._loop.remove_reader(worker.process.sentinel)
        worker.process.join()
        worker.channel.close()
        self._workers.remove(worker)
        assert worker.process.pid
        self._on_death(worker.process.pid)
        if self._draining.is_set():
            return
        delay = 0.0
        if not worker.is_ready:
            self._failures += 1
            delay = self._delay()
            self._begin_to_accept()  # to tell whoever waits
        log.error(
            "Worker %d ended (%s); another one is started%s.",
            worker.process.pid,
            _how(worker.process.exitcode),
            f" in {delay:g} seconds" if delay else "",
        )
        self._loop.call_later(delay, self._start)

    def _delay(self) -> float:
        """Seconds until a worker is tried again."""
        return min(LONGEST_DELAY, 0.5 * 2.0 ** min(self._failures, 10))

    async def _watch_for_hangs(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for worker in self._workers:
                self._hear(worker)  # what it has said, if this process itself was held up
                if worker.is_ready and time.monotonic() - worker.last_sign > HANG:
                    log.error("Worker %d does not respond and is killed.", worker.process.pid)
                    worker.process.kill()

    async def _end_all(self) -> None:
        for worker in self._workers:
            # One that is still loading its model hears nothing yet.
            worker.tell(STOP) if worker.is_ready else worker.process.kill()
        deadline = time.monotonic() + GRACE + 15
        while self._workers and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for worker in self._workers:
            worker.process.kill()

    # Connections

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            ready = [worker for worker in self._workers if worker.is_ready]
            if not ready and not self._failures:
                self._loop.remove_reader(self._listener)  # until a worker is ready
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:  # as when there is no file left to open
                log.error("No connection can be accepted: %s.", error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(1.0, self._begin_to_accept)
                return
            with connection:
                ready.sort(key=lambda worker: worker.connections)
                if not any(worker.give(connection) for worker in ready):
                    task = self._loop.create_task(_refuse(connection.dup()))
                    self._refusing.add(task)
                    task.add_done_callback(self._refusing.discard)

    def _begin_to_accept(self) -> None:
        if not self._stopping.is_set():
            self._loop.add_reader(self._listener, self._accept)


async def _refuse(connection: socket.socket) -> None:
    """Say that nobody is there, when the request has been sent: closing before would lose the answer."""
    connection.setblocking(False)
    with connection, suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            loop = asyncio.get_running_loop()
            await loop.sock_recv(connection, 2**16)
            await loop.sock_sendall(connection, UNAVAILABLE)
            connection.shutdown(socket.SHUT_WR)
            await loop.sock_recv(connection, 2**16)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"


# In a worker


async def serve_given(server: Server, channel: socket.socket, tls: ssl.SSLContext | None, life: Life) -> None:
    """Serve the connections that the parent gives, until it says stop or has gone."""
    channel.setblocking(False)
    life.tell_others = lambda arm: _say(channel, ROLL_BACK + arm.encode())
    await server.run(partial(_accepting, channel, tls, server, life), on_ready=partial(_say, channel, READY))


def _say(channel: socket.socket, word: bytes) -> None:
    with suppress(OSError):  # the parent has gone, which is noticed elsewhere
        channel.send(word)


@asynccontextmanager
async def _accepting(
    channel: socket.socket,
    tls: ssl.SSLContext | None,
    server: Server,
    life: Life,
    new_connection: Callable[[], Connection],
) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def begin(connection: socket.socket) -> None:
        with suppress(OSError):  # as when a handshake fails
            await loop.connect_accepted_socket(new_connection, connection, **tls_options(tls))

    def obey() -> None:
        while True:
            try:
                word, files, _, _ = socket.recv_fds(channel, 64, 1)
            except BlockingIOError:
                return
            except OSError:  # the parent has died, with something that it had not heard
                word, files = b"", []
            if word == CONNECTION and files:
                task = loop.create_task(begin(socket.socket(fileno=files[0])))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            elif word == DRAIN:
                server.drain()
            elif word == RELOAD:
                server.reload()
            elif word.startswith(ROLL_BACK):
                life.roll_back(word[1:].decode())
            elif word in (STOP, b""):  # told to stop, or the parent has died
                server.stop()
                loop.remove_reader(channel)
                return

    async def beat() -> None:
        while True:
            _say(channel, ALIVE + str(len(server.connections or ())).encode())
            await asyncio.sleep(BEAT_EVERY)

    loop.add_reader(channel, obey)
    beating = loop.create_task(beat())
    yield
    await asyncio.gather(*tasks)
    beating.cancel()
