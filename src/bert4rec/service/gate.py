"""What every request passes: its id, its key, its size, its end.

Plain ASGI around the application, so that nothing is parsed before it is known to be welcome and small, and so
that every answer, whoever gives it, is counted and carries the request's id.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from bert4rec.service.answer import Answer, App, Message, Receive, Scope, Send
from bert4rec.service.batcher import OverloadedError
from bert4rec.service.counters import Metrics
from bert4rec.service.keys import Keys
from bert4rec.service.operations import Operation
from bert4rec.service.problems import ProblemError, internal_error, problem_of, request_id
from bert4rec.service.schemas import MAX_BODY

BODY_TIMEOUT = 10.0
"""Seconds in which the whole body must arrive."""
CLIENT_GONE = 499
"""Counted, never sent: nobody is there to read it."""
ASKS_THE_MODEL = {"/v1/recommend", "/v1/recommend/batch", "/v1/rank"}
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PLAIN_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
log = logging.getLogger("bert4rec.service")


class Gate:
    """Wraps the application; `operations` are answered past it, `open_paths` need no key."""

    def __init__(
        self,
        app: App,
        *,
        operations: Mapping[str, Operation],
        keys: Keys | None,
        open_paths: frozenset[str],
        metrics: Metrics,
        is_overloaded: Callable[[], bool],
    ) -> None:
        self._app, self._operations, self._keys, self._open_paths = app, operations, keys, open_paths
        self._metrics, self._is_overloaded = metrics, is_overloaded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        operation = self._operations.get(scope["path"]) if scope["method"] == "POST" else None
        answer = Answer(send, request_id_of(headers), route=scope["path"] if operation else "other")
        request_id.set(answer.request_id)
        try:
            self._admit(scope["path"], headers)
            body = await read_body(headers, receive)
            work = operation(headers, body, answer) if operation else self._pass_on(scope, body, answer)
            await until_hung_up(work, receive, answer)
        except ClientGoneError:
            answer.status = CLIENT_GONE
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                # The request's id, but no header: keys are never logged.
                log.exception("%s failed, request %s.", answer.route, answer.request_id)
            await answer.send_problem(problem or internal_error())
        finally:
            self._metrics.requests.labels(answer.route, answer.status).inc()
            self._metrics.request_seconds.labels(answer.route).observe(time.perf_counter() - answer.began)

    def _admit(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        if self._keys and path not in self._open_paths and not self._keys.admit(headers):
            detail = "A valid key is needed, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
            raise ProblemError(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
        if CONTROL.search(path):  # to a route, a path with a line end behind it would be the path without
            raise ProblemError(404, "not_found", "No path here has control characters.")
        # Turned away before anything is read or parsed: under overload, saying no must be cheap.
        if path in ASKS_THE_MODEL and self._is_overloaded():
            raise OverloadedError

    async def _pass_on(self, scope: Scope, body: bytes, answer: Answer) -> None:
        async def replay() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            await self._app(scope, replay, answer.send)
        finally:
            answer.route = getattr(scope.get("route"), "path_format", answer.route)


async def until_hung_up(work: Coroutine[Any, Any, None], receive: Receive, answer: Answer) -> None:
    """Do the work, and stop when the client hangs up: raises ClientGoneError then."""
    task = asyncio.current_task()
    assert task is not None

    def on_disconnect(_: object) -> None:
        if not answer.is_complete:
            answer.client_is_gone = True
            task.cancel()

    # The body has been read, so the next message can only be that the client has gone.
    watcher = asyncio.ensure_future(receive())
    watcher.add_done_callback(on_disconnect)
    try:
        await work
    except asyncio.CancelledError:
        if not answer.client_is_gone:
            raise
        task.uncancel()
        raise ClientGoneError from None
    finally:
        watcher.remove_done_callback(on_disconnect)
        watcher.cancel()


class ClientGoneError(Exception):
    """Nobody is there any more to hear the answer."""


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's own id where it is plain enough for logs and headers; otherwise a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if PLAIN_ID.fullmatch(given) else secrets.token_hex(8)


async def read_body(headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    """The whole body, unless it is announced or found to be larger than it may be."""
    announced = headers.get(b"content-length", b"0")
    if not announced.isdigit() or len(announced) > 9 or int(announced) > MAX_BODY:
        raise _too_large()
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_BODY:
                    raise _too_large()
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError as error:
        detail = f"The body did not arrive within {BODY_TIMEOUT:.0f} seconds."
        raise ProblemError(408, "request_timeout", detail, headers={"Connection": "close"}) from error


def _too_large() -> ProblemError:
    return ProblemError(413, "body_too_large", f"The body may have {MAX_BODY:,} bytes.")
