"""The service as processes: a socket, one or several workers, and how they end.

SIGTERM and Ctrl-C: no new connections; what was accepted is answered; then the end.
SIGHUP: the model before this one answers again, in every worker. Nothing is written down: a worker that is
started afterwards serves what lies in the folder.
"""

import logging
import logging.config
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from bert4rec.errors import UsageError
from bert4rec.service.app import Settings, check, create_app
from bert4rec.service.counters import MULTIPROCESS_FOLDER
from bert4rec.service.gate import Gate
from bert4rec.service.http_limits import BoundedProtocol
from bert4rec.service.served_models import check_folder

GRACE = 30
"""Seconds that requests under way have to end after SIGTERM."""
KEEP_ALIVE = 75
"""Seconds; longer than the usual proxies keep a connection, so that it is they who close it."""
BACKLOG = 2048
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {
        "bert4rec": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        # Its warnings are about what strangers send, a line for each.
        "uvicorn": {"handlers": ["stderr"], "level": "ERROR", "propagate": False},
    },
}
log = logging.getLogger("bert4rec.service")


def serve(settings: Settings, *, host: str, port: int, workers: int = 1) -> None:
    """Listen until told to stop. Mistakes in the settings are raised before the port opens."""
    check_folder(settings.model)  # first: a slip in its name is not to be hidden by a port that is taken
    logging.config.dictConfig(LOGGING)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a model to go back from
    listener = _bind(host, port)
    with listener, _metrics_folder(workers):
        if workers == 1:
            app = create_app(settings)
            config = _config(lambda: app)
            _announce(listener)
            with suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it has done as told
                uvicorn.Server(config).run(sockets=[listener])
        else:
            check(settings)
            config = _config(partial(create_app, settings), workers)
            _announce(listener)
            Workers(config, [listener]).run()
    log.info("Stopped.")


def _config(factory: Callable[[], Gate], workers: int = 1) -> uvicorn.Config:
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
    """The address is taken at once, before a model is loaded for nothing, but nobody is listened to yet."""
    with ExitStack() as closing:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = closing.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", error)
            raise UsageError(
                f"{host}:{port} cannot be listened on: {reason}. Choose another --host or --port."
            ) from error
        closing.pop_all()
    return listener


def _announce(listener: socket.socket) -> None:
    """From here on, clients may connect; they wait the moment until the first worker is there."""
    listener.listen(BACKLOG)
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    log.info("Serving on http://%s:%d: a page at /, what can be asked at /docs.", address, port)


@contextmanager
def _metrics_folder(workers: int) -> Iterator[None]:
    """Where several workers put their numbers, so that any of them can add up all."""
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
            # One that is still starting loads what lies in the folder, and would die of the signal.
            if process.pid and process.is_ready():
                os.kill(process.pid, signal.SIGHUP)

    def keep_subprocess_alive(self) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
