"""From the head of a request to its response: who may ask, what is asked, and what is said if it fails.

    Application.open → Call.respond → Operation.answer → a method of Service

A request is given an id and refused if it is unwelcome before its body is read. An operation reads the body into its
model, calls the service and writes the answer as JSON. Every error becomes a problem document, and every response is
counted.
"""

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import getrandbits
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json

from bert4rec.service.admission.access import Keys, Role
from bert4rec.service.admission.names import Names
from bert4rec.service.batcher import OverloadedError
from bert4rec.service.contract.schemas import MAX_BODY, ParametersModel
from bert4rec.service.http.connections import Connections
from bert4rec.service.http.messages import NO_STORE, Head, Headers, Response
from bert4rec.service.http.server import Life
from bert4rec.service.problems import MEDIA_TYPE, ProblemError, request_id, to_problem
from bert4rec.service.telemetry.counters import Metrics, Reason
from bert4rec.service.telemetry.request_log import RequestLog
from bert4rec.service.telemetry.tracing import Trace, Tracer

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
ENCODED_SLASH = re.compile(r"%2F", re.IGNORECASE)
SLASH_IN_NAME = "\0"
"""Stands for it while a path is taken apart; paths that hold this character do not exist."""
PLAIN_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
OTHER = "other"
"""The route of unknown paths in the metrics: each of its own would be counted without end."""

REASONS: dict[str, Reason] = {
    "overloaded": "overloaded",
    "deadline_exceeded": "deadline",
    "rate_limited": "rate_limited",
    "unauthorized": "unauthorized",
    "forbidden": "forbidden",
    "malformed_request": "unread",
    "head_too_large": "unread",
    "body_too_large": "unread",
    "request_timeout": "unread",
}
"""Problems that are counted by what they mean to an operator."""


class Request(NamedTuple):
    """A request whose body has arrived."""

    headers: Headers
    query: bytes
    path_fields: Mapping[str, str]
    """What stands in the path for the `{names}` of the operation's path."""
    body: bytes


@dataclass(frozen=True)
class Operation:
    """What one method on one path does: a row in the table of `app`."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    """As in the document: `{name}` is any text, slashes included. Of several paths that fit, the longest is meant;
    slashes that are written as %2F never belong to the path itself."""
    call: Callable[..., Awaitable[object]]
    """Takes nothing, or one argument whose type says what: a model of `schemas`, which is read from the body of a
    POST, and from the path and the query otherwise or if it is a `ParametersModel`; or the `Request` itself. Of a PUT,
    its field `body` is read from the body, if there is one. Returns content for JSON, or a `Response`."""
    response: type[BaseModel] | None = None
    """The model of the content; None where the document does not describe the operation."""
    status: int = 200
    role: Role | None = "read"
    """What a key must be allowed to do; None where no key is needed."""
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

    @cached_property
    def body(self) -> TypeAdapter[Any] | None:
        """Reads what the body holds, if there is one."""
        is_parameters = isinstance(self.argument, type) and issubclass(self.argument, ParametersModel)
        if self.method == "POST" and self.argument is not None and not is_parameters:
            return self.adapter
        if self.method != "PUT":
            return None
        kind: Any = self.argument.model_fields["body"].annotation
        return TypeAdapter(kind)

    async def answer(self, argument: object) -> object:
        """The answer to what `read` made of a request."""
        return await (self.call(argument) if self.argument else self.call())

    def respond(self, content: object) -> Response:
        if isinstance(content, Response):
            return content
        return Response(to_json(content), status=self.status, headers=NO_STORE)

    def read(self, request: Request) -> object:
        if self.argument is None or self.argument is Request:
            return request
        if self.method == "POST" and self.body:
            return self._read_body(self.body, request)
        query = parse_qsl(request.query.decode("latin-1"), keep_blank_values=True)
        body = {"body": self._read_body(self.body, request)} if self.body and request.body else {}
        return self.adapter.validate_python({**dict(query), **request.path_fields, **body})

    def _read_body(self, adapter: TypeAdapter[Any], request: Request) -> object:
        media_type = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            # Also keeps pages of other origins from posting here without a browser asking first.
            raise ProblemError(415, "unsupported_media_type", "Send JSON, as Content-Type: application/json.")
        return adapter.validate_json(request.body)


class Application:
    """Answers every request by one of its operations, or with a problem."""

    def __init__(
        self,
        operations: Iterable[Operation],
        *,
        life: Life,
        names: Names,
        keys: Keys | None,
        metrics: Metrics,
        is_overloaded: Callable[[], bool],
        tracer: Tracer,
        requests: RequestLog | None,
    ) -> None:
        """`requests` is the log of requests, if there is to be one."""
        self.life, self.metrics, self.tracer, self.requests = life, metrics, tracer, requests
        self.max_body = MAX_BODY
        self.is_overloaded = is_overloaded
        self._names, self._keys = names, keys
        self.in_flight = 0
        metrics.follow(metrics.in_flight, lambda: self.in_flight)
        self._fixed: dict[str, dict[str, Operation]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, Operation]] = {}
        for operation in sorted(operations, key=lambda each: -len(each.path)):
            if "{" in operation.path:
                pattern = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>.*)", operation.path))
                methods = self._patterns.setdefault(pattern, {})
            else:
                methods = self._fixed.setdefault(operation.path, {})
            methods[operation.method] = operation
            if operation.method == "GET":
                methods["HEAD"] = operation  # the connection leaves the content out

    def open(self, head: Head) -> "Call":
        """A request, admitted or refused, before its body is read."""
        methods, path_fields = self._find(head)
        route = next(iter(methods.values())).path if methods else OTHER
        call = Call(self, head.method, route, _request_id(head.headers))
        try:
            if self.tracer.exports or b"traceparent" in head.headers:
                call.trace = self.tracer.begin(head.headers)
            call.admit(*self._admit(head, methods), head, path_fields)
        except Exception as error:
            call.fail(error)
        return call

    def refuse(self, status: int, code: str, detail: str) -> "Call":
        """What was not even read as a request."""
        call = Call(self, "-", OTHER, _request_id({}))
        call.refuse(status, code, detail)
        return call

    def _find(self, head: Head) -> tuple[Mapping[str, Operation], Mapping[str, str]]:
        """The operations of a path by their methods, and the fields in the path."""
        if operations := self._fixed.get(head.path):
            return operations, {}
        path = unquote(ENCODED_SLASH.sub(SLASH_IN_NAME, head.written_path.decode("ascii")))
        for pattern, operations in self._patterns.items():
            if match := pattern.fullmatch(path):
                fields = match.groupdict()
                return operations, {name: fields[name].replace(SLASH_IN_NAME, "/") for name in fields}
        return {}, {}

    def watch_connections(self, connections: Connections) -> None:
        self.metrics.follow(self.metrics.connections, lambda: len(connections))

    def _admit(self, head: Head, methods: Mapping[str, Operation]) -> tuple[Operation, str | None]:
        """The operation that may answer, and the name of the key. Everything refused here is refused before the body
        is read."""
        self._names.check(head)
        operation = methods.get(head.method)
        role = operation.role if operation else "read"
        key = self._keys.admit(head.headers, role).name if self._keys and role else None
        if CONTROL.search(head.path):
            raise ProblemError(404, "not_found", "Paths with control characters do not exist.")
        if not methods:
            raise ProblemError(404, "not_found", f"{head.path} does not exist.")
        if operation is None:
            allowed = ", ".join(sorted(methods))
            detail = f"{head.method} is not allowed for {head.path}. Use {allowed}."
            raise ProblemError(405, "method_not_allowed", detail, headers={"Allow": allowed})
        if operation.needs_model and self.is_overloaded():
            raise OverloadedError
        return operation, key


class Call:
    """One request: an `Exchange` of the connection it came on."""

    def __init__(self, application: Application, method: str, route: str, identity: str) -> None:
        self.refusal: Response | None = None
        self.identity = identity
        self.trace: Trace | None = None
        self._application, self._method, self._route = application, method, route
        self._began = time.perf_counter()
        self._key: str | None = None
        self._user: str | None = None
        self._model: str | None = None
        self._bytes_in = 0
        application.in_flight += 1

    def admit(
        self, operation: Operation, key: str | None, head: Head, path_fields: Mapping[str, str]
    ) -> None:
        self._operation, self._key, self._head, self._path_fields = operation, key, head, path_fields

    def refuse(self, status: int, code: str, detail: str) -> None:
        self.fail(ProblemError(status, code, detail))

    def fail(self, error: Exception) -> None:
        token = request_id.set(self.identity)
        self.refusal = self._problem(error)
        request_id.reset(token)

    async def respond(self, body: bytes) -> Response:
        request_id.set(self.identity)
        self._bytes_in = len(body)
        request = Request(self._head.headers, self._head.query, self._path_fields, body)
        try:
            argument = self._operation.read(request)
            self._user = getattr(argument, "user_id", None)
            content = await self._operation.answer(argument)
            if isinstance(content, dict) and "model" in content:
                self._model = content["model"]["version"]
            return self._traced(self._operation.respond(content))
        except Exception as error:
            return self._problem(error)

    def close(self, status: int, sent: int) -> None:
        application, seconds = self._application, time.perf_counter() - self._began
        application.in_flight -= 1
        application.metrics.count_request(self._route, status, seconds)
        if self.trace:
            application.tracer.end(self.trace, self._method, self._route, status)
        if application.requests:
            application.requests.write(
                self._method,
                self._route,
                status,
                seconds,
                request_id=self.identity,
                bytes_in=self._bytes_in,
                bytes_out=sent,
                key=self._key,
                trace_id=self.trace.trace_id if self.trace else None,
                model=self._model,
                user_id=self._user,
            )

    def _problem(self, error: Exception) -> Response:
        """The log has the route and the request's id, but no header: keys are never logged."""
        problem = to_problem(error, self._route)
        if reason := REASONS.get(problem.code):
            self._application.metrics.count_refusal(reason)
        content = to_json(problem.document())
        return self._traced(Response(content, MEDIA_TYPE, problem.status, problem.headers))

    def _traced(self, response: Response) -> Response:
        if self.trace is None:
            return response
        return response._replace(headers={**response.headers, "traceparent": self.trace.traceparent})


def _request_id(headers: Headers) -> str:
    """The client's own id where it is plain enough for logs and headers; otherwise a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if PLAIN_ID.fullmatch(given) else f"{getrandbits(64):016x}"
