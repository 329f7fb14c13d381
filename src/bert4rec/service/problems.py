"""Errors as clients see them: RFC 9457 problem documents with a stable `code`, a `detail` and the `request_id`."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from bert4rec.service.batcher import OverloadedError, TooLateError
from bert4rec.service.store import StoreError, StoreFullError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, ValidationError

MEDIA_TYPE = "application/problem+json"
request_id: ContextVar[str] = ContextVar("request_id")
"""Of the request that is being answered."""
BY_HISTORY, BY_USER = "by history", "by user"
_NOT_FIELDS = {"query", "path", BY_HISTORY, BY_USER}
"""Where an error's place may begin, though it is no field: parts of a request, and the kinds of a shape."""
MOST_MISTAKES = 100
"""To describe the hundred thousand that fit into a body would take longer than to answer a thousand requests."""
TRY_AGAIN = {"Retry-After": "1"}


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


def internal_error() -> ProblemError:
    return ProblemError(
        500, "internal_error", "A mistake of the service. It was logged with this request id."
    )


def problem_of(error: Exception) -> ProblemError | None:
    """The problem an expected exception stands for; None for a mistake of ours."""
    match error:
        case ProblemError():
            return error
        case OverloadedError():
            detail = "More requests are waiting than can be answered in good time."
            return ProblemError(503, "overloaded", detail, headers=TRY_AGAIN)
        case TooLateError():
            return ProblemError(503, "deadline_exceeded", "No answer was found in time.", headers=TRY_AGAIN)
        case StoreFullError():
            return ProblemError(507, "store_full", "The history store has no room left; nothing was kept.")
        case StoreError():
            detail = (
                "The history store is out of reach. Requests that carry their history are still answered."
            )
            return ProblemError(503, "store_unavailable", detail, headers=TRY_AGAIN)
    return None


def invalid_body(error: "ValidationError") -> ProblemError:
    """As `invalid`, however much is wrong."""
    if error.error_count() > MOST_MISTAKES:
        return ProblemError(422, "invalid_request", f"{error.error_count():,} mistakes: too many to name.")
    return invalid(error.errors(include_url=False, include_input=False))


def invalid(errors: "Sequence[ErrorDetails]") -> ProblemError:
    """What is wrong with a request, field by field. What was sent is not quoted: it may be anything."""
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
    names = place[1:] if place and place[0] in _NOT_FIELDS else place
    return ".".join(map(str, names)) or "body"
