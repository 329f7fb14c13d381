"""The service as processes: an address, one or several workers, and what they all have in common."""

import asyncio
import gc
import logging
import logging.config
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from bert4rec.errors import Bert4RecError, UsageError
from bert4rec.service.app import Settings, check, create_app
from bert4rec.service.change_mark import ChangeMark
from bert4rec.service.http.listening import (
    BACKLOG,
    Address,
    allow_many_files,
    describe,
    listening,
    load_certificate,
)
from bert4rec.service.http.server import Server, on_listener
from bert4rec.service.http.workers import Supervisor, serve_given
from bert4rec.service.served_models import check_folder
from bert4rec.service.telemetry.counters import MULTIPROCESS_FOLDER
from bert4rec.service.telemetry.request_log import logging_config

log = logging.getLogger("bert4rec.service")


@dataclass(frozen=True)
class Launch:
    """Where and how to serve."""

    address: Address
    workers: int = 1
    drain: float = 3.0
    insecure: bool = False


def run(settings: Settings, launch: Launch) -> None:
    """Listen until told to stop. Errors in the settings are raised before the port opens."""
    for arm in settings.arms:
        check_folder(arm.model)  # first: a wrong folder must not be hidden by a port that is in use
    address = launch.address
    if not (address.is_local or settings.api_key_file or launch.insecure):
        raise UsageError(
            f"On {address.host} others can reach the service, and without keys each of them may read and delete "
            "what users did. Pass `api_key_file`; or `insecure=True` if something else guards it."
        )
    address.tls()  # a wrong certificate is told before a model is loaded
    with listening(address) as listener, _metrics_folder(launch.workers):
        logging.config.dictConfig(logging_config(settings.log_format))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
        allow_many_files()
        with suppress(KeyboardInterrupt):  # before there is a loop to hear of it
            if launch.workers == 1:
                _in_a_loop(_run_alone(settings, launch, listener))
            else:
                check(settings)
                _in_a_loop(_run_workers(settings, launch, listener))
    log.info("Stopped.")


def _spare_the_collector() -> None:
    """What is loaded stays, and requests leave next to no garbage in circles: Python need not look for it so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _in_a_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


async def _run_alone(settings: Settings, launch: Launch, listener: socket.socket) -> None:
    application = create_app(settings)
    _spare_the_collector()
    tls = launch.address.tls()
    server = Server(application, drain=launch.drain, reload_more=_certificate_reader(launch.address, tls))
    server.listen_to_signals()
    _announce(launch.address, listener)
    await server.run(on_listener(listener, tls))


async def _run_workers(settings: Settings, launch: Launch, listener: socket.socket) -> None:
    from prometheus_client.multiprocess import mark_process_dead

    work = partial(_work, settings, launch.address, ChangeMark())
    supervisor = Supervisor(work, launch.workers, drain=launch.drain, on_death=mark_process_dead)
    _announce(launch.address, listener)
    await supervisor.run(listener)


def _work(settings: Settings, address: Address, mark: ChangeMark, channel: socket.socket) -> None:
    """What a worker does, from its start to its end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent hears them too, and says what to do
    logging.config.dictConfig(logging_config(settings.log_format))

    async def serve() -> None:
        application = create_app(settings, mark)
        _spare_the_collector()
        tls = address.tls()
        server = Server(application, drain=None, reload_more=_certificate_reader(address, tls))
        await serve_given(server, channel, tls, application.life)

    try:
        _in_a_loop(serve())
    except Exception as error:  # to the log, in its format: left alone, it would be printed
        log.error("A worker fails: %s", error, exc_info=not isinstance(error, Bert4RecError))
        sys.exit(1)


def _certificate_reader(address: Address, tls: ssl.SSLContext | None) -> Callable[[], None]:
    def read() -> None:
        if tls:
            try:
                address.tls()  # tried first: a certificate without its key would be taken, and the key lost
                load_certificate(tls, address)
            except UsageError as error:
                log.error("The certificate cannot be read again; the known one stays: %s", error)

    return read


def _announce(address: Address, listener: socket.socket) -> None:
    """From here on clients may connect; they wait the moment until the first worker is ready."""
    listener.listen(BACKLOG)
    log.info("Serving on %s (page: /, documentation: /docs).", describe(address, listener))


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
