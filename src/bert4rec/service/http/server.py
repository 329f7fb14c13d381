"""One process that answers: start, signals, and how it ends.

SIGTERM: from now on `/health/ready` says no; for some seconds connections are still accepted, and each is told that its
answer is the last, so that whoever sends requests here can go elsewhere; then the listener is closed, what was accepted
is answered, and the process ends. Ctrl-C leaves out the seconds, and so does a second signal.
SIGHUP: read keys and certificate again, and look for a new model.
"""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol

from bert4rec.service.http.connection import Connection
from bert4rec.service.http.connections import HEAD_TIMEOUT, LINGER, Connections
from bert4rec.service.http.listening import BACKLOG
from bert4rec.service.http.messages import Handler

GRACE = 30.0
"""Seconds that requests in progress have to end after the listener is closed."""
log = logging.getLogger("bert4rec.service")


class Life(Protocol):
    """What is served, from its start to its end."""

    tell_others: Callable[[str], None]
    """Called when this process goes back to the model before, with the name of the arm it serves: other workers must
    do so too."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Entered before the first request and left after the last."""
        ...

    def drain(self) -> None:
        """Say that no more requests should come."""
        ...

    def reload(self) -> None:
        """Look whether anything has changed on disk."""
        ...

    def roll_back(self, arm: str) -> None:
        """Go back to the model before, as another worker did."""
        ...


class Application(Handler, Protocol):
    """What a server serves."""

    max_body: int

    @property
    def life(self) -> Life: ...

    def watch_connections(self, connections: Connections) -> None:
        """To be counted."""
        ...


Accepting = Callable[[Callable[[], Connection]], AbstractAsyncContextManager[None]]
"""Where connections come from: gives each to a protocol that the factory makes."""


class Server:
    """Serves an application until told to stop. Lives in one event loop."""

    def __init__(
        self,
        application: Application,
        *,
        drain: float | None,
        reload_more: Callable[[], None] = lambda: None,
    ) -> None:
        """`drain`: seconds from being told to stop to closing the listener; None: until told again."""
        self._application, self._drain, self._reload_more = application, drain, reload_more
        self._draining, self._stopping = asyncio.Event(), asyncio.Event()
        self.connections: Connections | None = None

    async def run(self, accepting: Accepting, *, on_ready: Callable[[], None] = lambda: None) -> None:
        async with self._application.life.running():
            connections = Connections(self._application, max_body=self._application.max_body)
            self.connections = connections
            self._application.watch_connections(connections)
            async with accepting(lambda: Connection(connections)):
                on_ready()
                await self._draining.wait()
                self._application.life.drain()
                connections.is_draining = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._drain):
                        await self._stopping.wait()
            if cut := await connections.close(GRACE):
                log.warning("%d connections did not end in %g seconds and were cut.", cut, GRACE)

    def drain(self) -> None:
        """Stop after a while; when called again, at once."""
        if self._draining.is_set():
            self._stopping.set()
        self._draining.set()

    def stop(self) -> None:
        """Stop at once, when what was accepted is answered."""
        self._stopping.set()
        self._draining.set()

    def reload(self) -> None:
        self._application.life.reload()
        self._reload_more()

    def listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain)
        loop.add_signal_handler(signal.SIGINT, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)


def tls_options(tls: ssl.SSLContext | None) -> dict[str, Any]:
    """For asyncio. Neither the beginning nor the end of a connection may wait for its client for long."""
    if tls is None:
        return {}
    return {"ssl": tls, "ssl_handshake_timeout": HEAD_TIMEOUT, "ssl_shutdown_timeout": LINGER}


def on_listener(listener: socket.socket, tls: ssl.SSLContext | None) -> Accepting:
    """Connections from a socket of this process alone."""

    @asynccontextmanager
    async def accepting(new_connection: Callable[[], Connection]) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
        server = await create(new_connection, sock=listener, backlog=BACKLOG, **tls_options(tls))
        try:
            yield
            with suppress(OSError):  # who came before the door is closed
                while True:
                    connection, _ = listener.accept()
                    await loop.connect_accepted_socket(new_connection, connection, **tls_options(tls))
        finally:
            server.close()

    return accepting
