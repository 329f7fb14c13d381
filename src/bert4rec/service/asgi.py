"""HTTP: the service as an ASGI application, and the way of every request through it.

    Application.__call__ → Operation.respond → a method of Service

The application gives each request an id, refuses what is unwelcome or too large before anything is parsed, turns
every error into a problem document, and counts every response. An operation reads the request into its model, calls
the service and writes the answer as JSON.
"""

import asyncio
import hashlib
import hmac
import inspect
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json

from bert4rec.errors import NotFoundError, UsageError
from bert4rec.service.batcher import OverloadedError
from bert4rec.service.counters import Metrics
from bert4rec.service.problems import MEDIA_TYPE, ProblemError, request_id, to_problem
from bert4rec.service.schemas import MAX_BODY

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Mapping[bytes, bytes]
Result = TypeVar("Result")
BODY_TIMEOUT = 10.0
"""Seconds in which the whole body must arrive."""
CLIENT_GONE = 499
"""Counted, never sent: the client hung up."""
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PLAIN_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
OTHER = "other"
"""The route of unknown paths in the metrics: each of its own would be counted without end."""


class Request(NamedTuple):
    """A request whose body has arrived."""

    headers: Headers
    query: bytes
    path_fields: Mapping[str, str]
    """What stands in the path for the `{names}` of the operation's path."""
    body: bytes


class Response(NamedTuple):
    """A whole response."""

    content: bytes
    media_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = {}


@dataclass(frozen=True)
class Operation:
    """What one method on one path does: a row in the table of `app`."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    """As in the document: `{name}` is any text, slashes included."""
    call: Callable[..., Awaitable[object]]
    """Takes nothing, or one argument whose type says what: a model of `schemas`, which is read from the body of a
    POST and from the path and the query otherwise; or the `Request` itself. Returns content for JSON, or a
    `Response`."""
    response: type[BaseModel] | None = None
    """The model of the content; None where the document does not describe the operation."""
    status: int = 200
    needs_key: bool = True
    needs_model: bool = False
    """Refused at once, before anything is read, while the model's queue is full."""

    @cached_property
    def argument(self) -> Any:
        """The type that `call` takes, or None."""
        annotations = [each.annotation for each in inspect.signature(self.call).parameters.values()]
        return annotations[0] if annotations else None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.argument)

    async def respond(self, request: Request) -> Response:
        content = await (self.call(self._read(request)) if self.argument else self.call())
        return content if isinstance(content, Response) else Response(to_json(content), status=self.status)

    def _read(self, request: Request) -> object:
        if self.argument is Request:
            return request
        if self.method != "POST":
            query = parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)
            return self.adapter.validate_python({**dict(query), **request.path_fields})
        media_type = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            # Also keeps pages of other origins from posting here without a browser asking first.
            raise ProblemError(415, "unsupported_media_type", "Send JSON, as Content-Type: application/json.")
        return self.adapter.validate_json(request.body)


class Application:
    """Answers every request by one of its operations, or with a problem."""

    def __init__(
        self,
        operations: Iterable[Operation],
        *,
        running: Callable[[], AbstractAsyncContextManager[None]],
        keys: "Keys | None",
        metrics: Metrics,
        is_overloaded: Callable[[], bool],
    ) -> None:
        """`running` is entered before the first request and left after the last."""
        self._running, self._keys, self._metrics = running, keys, metrics
        self.is_overloaded = is_overloaded
        self._fixed: dict[str, dict[str, Operation]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, Operation]] = {}
        for operation in operations:
            if "{" in operation.path:
                pattern = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>.*)", operation.path))
                self._patterns.setdefault(pattern, {})[operation.method] = operation
            else:
                self._fixed.setdefault(operation.path, {})[operation.method] = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        began = time.perf_counter()
        headers: Headers = dict(scope["headers"])
        identity = _request_id(headers)
        request_id.set(identity)
        methods, path_fields = self._find(scope["path"])
        route = next(iter(methods.values())).path if methods else OTHER
        status = CLIENT_GONE
        try:
            try:
                operation = self._admit(scope["method"], scope["path"], headers, methods)
                body = await _read_body(headers, receive)
                request = Request(headers, scope["query_string"], path_fields, body)
                response = await _unless_hung_up(operation.respond(request), receive)
            except ClientGoneError:
                return
            except Exception as error:
                # The log has the route and the request's id, but no header: keys are never logged.
                response = _problem_response(to_problem(error, route))
            status = response.status
            await _send(send, response, identity)
        finally:
            self._metrics.count_request(route, status, time.perf_counter() - began)

    async def _live(self, receive: Receive, send: Send) -> None:
        """ASGI's lifespan: start when told to, say so, and stop when told to."""
        await receive()
        async with self._running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _find(self, path: str) -> tuple[Mapping[str, Operation], Mapping[str, str]]:
        """The operations of a path by their methods, and the fields in the path."""
        if operations := self._fixed.get(path):
            return operations, {}
        for pattern, operations in self._patterns.items():
            if match := pattern.fullmatch(path):
                return operations, match.groupdict()
        return {}, {}

    def _admit(self, method: str, path: str, headers: Headers, methods: Mapping[str, Operation]) -> Operation:
        """The operation that may answer. Everything refused here is refused before the body is read."""
        operation = methods.get(method)
        needs_key = operation is None or operation.needs_key
        if self._keys and needs_key and not self._keys.admit(headers):
            detail = "A valid API key is required, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
            raise ProblemError(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
        if CONTROL.search(path):
            raise ProblemError(404, "not_found", "Paths with control characters do not exist.")
        if not methods:
            raise ProblemError(404, "not_found", f"{path} does not exist.")
        if operation is None:
            allowed = ", ".join(sorted(methods))
            detail = f"{method} is not allowed for {path}. Use {allowed}."
            raise ProblemError(405, "method_not_allowed", detail, headers={"Allow": allowed})
        if operation.needs_model and self.is_overloaded():
            raise OverloadedError
        return operation


async def _unless_hung_up(work: Awaitable[Result], receive: Receive) -> Result:
    """The result of the work, which is stopped when the client hangs up: ClientGoneError is raised then."""
    task = asyncio.current_task()
    assert task is not None
    is_working, is_gone = True, False

    def on_disconnect(_: object) -> None:
        nonlocal is_gone
        if is_working:
            is_gone = True
            task.cancel()

    # The body has been read, so the next message can only be that the client has gone.
    watcher = asyncio.ensure_future(receive())
    watcher.add_done_callback(on_disconnect)
    try:
        return await work
    except asyncio.CancelledError:
        if not is_gone:
            raise
        task.uncancel()
        raise ClientGoneError from None
    finally:
        is_working = False  # the callback may be scheduled already, and must not cancel what comes after
        watcher.remove_done_callback(on_disconnect)
        watcher.cancel()


class ClientGoneError(Exception):
    """The client hung up before it was answered."""


def _request_id(headers: Headers) -> str:
    """The client's own id where it is plain enough for logs and headers; otherwise a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if PLAIN_ID.fullmatch(given) else secrets.token_hex(8)


async def _read_body(headers: Headers, receive: Receive) -> bytes:
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
    return ProblemError(413, "body_too_large", f"The body must not exceed {MAX_BODY:,} bytes.")


def _problem_response(problem: ProblemError) -> Response:
    return Response(to_json(problem.document()), MEDIA_TYPE, problem.status, problem.headers)


async def _send(send: Send, response: Response, identity: str) -> None:
    headers = {
        "content-type": response.media_type,
        "content-length": str(len(response.content)),
        "x-request-id": identity,
        **response.headers,
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.content})


class Keys:
    """The known API keys, as digests: all of one length, and useless to anybody who reads this memory."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._digests = [hashlib.sha256(key).digest() for key in keys]

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """From a file with one key a line; empty lines and lines that begin with # do not count."""
        try:
            lines = [line.strip() for line in path.read_bytes().splitlines()]
        except FileNotFoundError as error:
            raise NotFoundError(f"`api_key_file`: {path} does not exist.") from error
        except OSError as error:
            raise UsageError(f"`api_key_file`: {path} cannot be read: {error.strerror}.") from error
        keys = {line for line in lines if line and not line.startswith(b"#")}
        if not keys:
            raise UsageError(
                f"`api_key_file`: {path} contains no key. Write one key a line, or omit `api_key_file`."
            )
        return cls(keys)

    def admit(self, headers: Headers) -> bool:
        """Whether the request carries a known key, as `Authorization: Bearer KEY` or as `X-API-Key: KEY`."""
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        given = credentials.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        digest = hashlib.sha256(given).digest()
        # All of them, always: the time taken says nothing about which key matched, or how nearly.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0
