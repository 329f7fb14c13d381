"""The service as processes: a socket, one or several workers, how they end, and what a connection may cost.

SIGTERM and Ctrl-C: no new connections; accepted requests are answered; then the end.
SIGHUP: every worker rolls back to the previous model. This is not recorded: a worker that is started afterwards
serves the model in the folder.
"""

import asyncio
import logging
import logging.config
import os
import signal
import socket
from asyncio import TimerHandle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from bert4rec.errors import UsageError
from bert4rec.service.app import Settings, check, create_app
from bert4rec.service.asgi import Application
from bert4rec.service.counters import MULTIPROCESS_FOLDER
from bert4rec.service.served_models import check_folder

GRACE = 30
"""Seconds that requests in progress have to end after SIGTERM."""
KEEP_ALIVE = 75
"""Seconds; longer than the usual proxies keep a connection, so that they are the ones who close it."""
BACKLOG = 2048
MAX_HEAD = 2**16
"""Bytes of one request's line and headers."""
MAX_PIPELINE = 16
"""Requests that one connection may send ahead of their responses."""
HEAD_TIMEOUT = 15.0
"""Seconds in which the head of a request must arrive."""
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {
        "bert4rec.service": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        # Its warnings are about what clients send, a line for each.
        "uvicorn": {"handlers": ["stderr"], "level": "ERROR", "propagate": False},
    },
}
log = logging.getLogger("bert4rec.service")


def run(settings: Settings, *, host: str, port: int, workers: int = 1) -> None:
    """Listen until told to stop. Errors in the settings are raised before the port opens."""
    check_folder(settings.model)  # first: a wrong folder must not be hidden by a port that is in use
    listener = _bind(host, port)
    logging.config.dictConfig(LOGGING)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a model to roll back from
    with listener, _metrics_folder(workers):
        if workers == 1:
            app = create_app(settings)
            config = _config(lambda: app)
            _announce(listener)
            with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after it has stopped
                uvicorn.Server(config).run(sockets=[listener])
        else:
            check(settings)
            config = _config(partial(create_app, settings), workers)
            _announce(listener)
            Workers(config, [listener]).run()
    log.info("Stopped.")


def _config(factory: Callable[[], Application], workers: int = 1) -> uvicorn.Config:
    return uvicorn.Config(
        factory,
        factory=True,
        workers=workers,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=LOGGING,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        backlog=BACKLOG,
    )


def _bind(host: str, port: int) -> socket.socket:
    """Take the address at once, before a model is loaded in vain, but accept no connection yet."""
    with ExitStack() as closing:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = closing.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", error)
            raise UsageError(
                f"Cannot listen on {host}:{port}: {reason}. Choose another `host` or `port`."
            ) from error
        closing.pop_all()
    return listener


def _announce(listener: socket.socket) -> None:
    """From here on clients may connect; they wait the moment until the first worker is ready."""
    listener.listen(BACKLOG)
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    log.info("Serving on http://%s:%d (page: /, documentation: /docs).", address, port)


@contextmanager
def _metrics_folder(workers: int) -> Iterator[None]:
    """Where several workers put their metrics, so that any of them can add up all."""
    if workers == 1:
        yield
        return
    with TemporaryDirectory(prefix="bert4rec-metrics-") as folder:
        os.environ[MULTIPROCESS_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[MULTIPROCESS_FOLDER]


class Workers(Multiprocess):
    """Several processes behind one socket; one that dies is replaced."""

    def handle_hup(self) -> None:
        for process in self.processes:
            # One that is still starting loads the model in the folder, and the signal would kill it.
            if process.pid and process.is_ready():
                os.kill(process.pid, signal.SIGHUP)

    def keep_subprocess_alive(self) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]


class BoundedProtocol(HttpToolsProtocol):
    """HTTP as uvicorn reads it, with bounds on what a client may cost before a request of its reaches the application.

    Answers 400 to what is too much, and closes a connection on which no request arrives.
    """

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
            raise ValueError("too many pipelined requests")  # which the parser reports as malformed
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
