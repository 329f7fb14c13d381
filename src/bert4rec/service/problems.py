"""Errors as clients see them: RFC 9457 problem documents with a stable `code`, a `detail` and the `request_id`.

`to_problem` is the one place where exceptions become problems.
"""

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bert4rec.service.batcher import OverloadedError, TooLateError
from bert4rec.store.events import StoreError, StoreFullError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MEDIA_TYPE = "application/problem+json"
request_id: ContextVar[str] = ContextVar("request_id")
"""Of the request that is being answered."""
BY_HISTORY, BY_USER, BY_DATE, BY_UNIT = "by history", "by user", "by date", "by unit"
"""The kinds of a request for recommendations and of events. An error's place may begin with one, though it is not a
field."""
MOST_MISTAKES = 100
"""To describe the hundred thousand that fit into a body would take longer than to answer a thousand requests."""
TRY_AGAIN = {"Retry-After": "1"}
EXPECTED: dict[type[Exception], tuple[int, str, str]] = {
    OverloadedError: (503, "overloaded", "The service is overloaded: too many requests are waiting."),
    TooLateError: (503, "deadline_exceeded", "The request was not answered in time."),
    StoreFullError: (507, "store_full", "The history store is full; no event was stored."),
    StoreError: (
        503,
        "store_unavailable",
        "The history store is unavailable. Requests that carry their history are still answered.",
    ),
}
"""Exception → status, code and detail. Subclasses stand before their bases."""
log = logging.getLogger("bert4rec.service")


class ProblemError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(code, detail)
        self.status, self.code, self.detail = status, code, detail
        self.headers = dict(headers or {})
        self.errors = list(errors)

    def document(self) -> dict[str, Any]:
        """Of the default type, `about:blank`, whose title is the phrase of the status: `code` tells more."""
        document = {
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "request_id": request_id.get(),
        }
        return {**document, "errors": self.errors} if self.errors else document


def to_problem(error: Exception, what: str) -> ProblemError:
    """The problem an exception stands for. A mistake of ours is logged; `what` says where it happened."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    for kind, (status, code, detail) in EXPECTED.items():
        if isinstance(error, kind):
            return ProblemError(status, code, detail, headers=TRY_AGAIN if status == 503 else None)
    log.error("%s failed, request %s.", what, request_id.get(), exc_info=error)
    return ProblemError(500, "internal_error", "Internal error. It was logged with this request id.")


def _invalid(error: ValidationError) -> ProblemError:
    """What is wrong with a request, field by field. What was sent is not quoted: it may be anything."""
    if error.error_count() > MOST_MISTAKES:
        return ProblemError(422, "invalid_request", f"{error.error_count():,} errors: too many to list.")
    errors = error.errors(include_url=False, include_input=False)
    found = [{"field": _field(each["loc"]), "message": _message(each)} for each in errors]
    if errors[0]["type"] == "json_invalid":
        return ProblemError(400, "invalid_json", found[0]["message"])
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in found[:3])
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return ProblemError(422, "invalid_request", detail + more, errors=found[:20])


def _message(error: "ErrorDetails") -> str:
    """What is wrong; in our words where pydantic's do not say what to send instead."""
    match error["type"], error["loc"]:
        case "missing", (kind, "history") if kind == BY_HISTORY:
            return "missing (send either history or user_id)"
        case "extra_forbidden", (kind, "history") if kind == BY_USER:
            return "send either history or user_id, not both"
        case "extra_forbidden", _:
            return "unknown field"
        case "missing", _:
            return "missing"
    return error["msg"]


def _field(place: tuple[int | str, ...]) -> str:
    is_kind = bool(place) and place[0] in (BY_HISTORY, BY_USER, BY_DATE, BY_UNIT)
    names = place[1:] if is_kind else place
    return ".".join(map(str, names)) or "body"
