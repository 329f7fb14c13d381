"""What the service writes to its log: a line for each change of state and, if asked for, one for each request.

Two formats: text for people, and JSON, one object a line, for programs. Neither ever holds a key, or the raw path of a
request, which may hold the id of a user.
"""

import json
import logging
import time
from functools import lru_cache
from typing import Any, Literal

from pydantic_core import to_json

from bert4rec.service.problems import request_id as current_request_id

LogFormat = Literal["text", "json"]
REQUESTS = "bert4rec.requests"
encode = json.JSONEncoder(separators=(",", ":")).encode
"""As ASCII: nothing in a text can end the line, and no terminal's encoding can spoil it."""


def logging_config(log_format: LogFormat = "text") -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything goes to standard error, in one format.

    Besides the service's own loggers, those through which the event loop and the exporter of traces complain.
    """
    service: dict[str, Any] = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "lines": {"()": TextFormatter if log_format == "text" else JsonFormatter},
            "ready": {"()": ReadyFormatter},
        },
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "lines"},
            "requests": {"class": "logging.StreamHandler", "formatter": "ready"},
        },
        "loggers": {
            "bert4rec.service": service,
            REQUESTS: {**service, "handlers": ["requests"]},
            "asyncio": {**service, "level": "WARNING"},
            "opentelemetry": {**service, "level": "WARNING"},
        },
    }


class TextFormatter(logging.Formatter):
    """Time, level and message; an exception follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002
        return rfc3339(record.created)


class JsonFormatter(logging.Formatter):
    """Each record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": rfc3339(record.created), "level": record.levelname, "message": _message(record)}
        if identity := current_request_id.get(None):
            line["request_id"] = identity
        if record.exc_info:
            line["exception"] = _clean(self.formatException(record.exc_info))
        return encode(line)


class ReadyFormatter(logging.Formatter):
    """For lines that are complete already."""

    def format(self, record: logging.LogRecord) -> str:
        return str(record.msg)


class RequestLog:
    """Writes one line a request, to the logger "bert4rec.requests"."""

    def __init__(self, log_format: LogFormat = "text", *, user_ids: bool = False) -> None:
        """`user_ids` says whether the lines name the users that requests were about."""
        self._line = _json_line if log_format == "json" else _text_line
        self._user_ids = user_ids
        self._log = logging.getLogger(REQUESTS)

    def write(
        self,
        method: str,
        route: str,
        status: int,
        seconds: float,
        *,
        request_id: str,
        bytes_in: int = 0,
        bytes_out: int = 0,
        key: str | None = None,
        trace_id: str | None = None,
        model: str | None = None,
        user_id: str | int | None = None,
    ) -> None:
        """Log a request that has been answered.

        `route` is the path with names in braces, never the path that was sent; `key` is the name of a key; `model` is
        the version that answered. What is None is left out.
        """
        if not self._log.isEnabledFor(logging.INFO):
            return
        facts: dict[str, str | int | float] = {
            "time": rfc3339(time.time()),
            "level": "INFO",
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 3),
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "request_id": request_id,
        }
        if key is not None:
            facts["key"] = key
        if trace_id is not None:
            facts["trace_id"] = trace_id
        if model is not None:
            facts["model"] = model
        if user_id is not None and self._user_ids:
            facts["user_id"] = _clean(user_id) if isinstance(user_id, str) else user_id
        # Not by `info`, which would look through the stack for who called: that takes as long as all the rest.
        record = logging.LogRecord(REQUESTS, logging.INFO, "", 0, self._line(facts), None, None)
        self._log.handle(record)


def _json_line(facts: dict[str, Any]) -> str:
    line = to_json(facts).decode()  # a quarter of the time that `encode` takes
    return line if line.isascii() else encode(facts)


def _text_line(facts: dict[str, Any]) -> str:
    moment, level, method, route, status, milliseconds, *_ = facts.values()
    if "user_id" in facts:  # which may be any text
        facts["user_id"] = encode(facts["user_id"])
    others = " ".join([f"{name}={value}" for name, value in facts.items()][6:])
    return f"{moment} {level} {method} {route} {status} {milliseconds} ms {others}"


def rfc3339(seconds: float) -> str:
    """A moment since 1970, in UTC, to the millisecond."""
    whole = int(seconds)
    return f"{_to_the_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=2)
def _to_the_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _message(record: logging.LogRecord) -> str:
    try:
        return _clean(record.getMessage())
    except (TypeError, ValueError):  # arguments that do not suit the message
        return _clean(str(record.msg))


def _clean(text: str) -> str:
    """Halves of surrogate pairs, which no strict reader of JSON takes, become question marks."""
    return text.encode(errors="replace").decode()
