"""The log of the service: one format for all lines, one line for each request."""

import contextvars
import json
import logging
import logging.config
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.service.problems import request_id
from bert4rec.service.telemetry.request_log import (
    JsonFormatter,
    LogFormat,
    RequestLog,
    TextFormatter,
    logging_config,
    rfc3339,
)

MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
LOGGERS = ("bert4rec.service", "bert4rec.requests", "asyncio", "opentelemetry")


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    before = [(each, each.handlers, each.level, each.propagate) for each in map(logging.getLogger, LOGGERS)]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


Written = pytest.CaptureFixture[str]


def record_of(message: object, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("bert4rec.service", logging.WARNING, "", 0, message, arguments, None)


def write_one(log: RequestLog, **changes: Any) -> None:
    facts: dict[str, Any] = {
        "request_id": "r1",
        "bytes_in": 57,
        "bytes_out": 812,
        "key": "shop",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "model": "a1b2",
    }
    log.write("POST", "/v1/recommend", 200, 0.0032149, **{**facts, **changes})


# Lines of the service


def test_a_line_is_an_object_with_time_level_and_message() -> None:
    record = record_of("Model %s: %s.", "ml-1m", "loaded")
    line = contextvars.Context().run(JsonFormatter().format, record)
    fields = json.loads(line)
    assert fields.keys() == {"time", "level", "message"}
    assert re.fullmatch(MOMENT, fields["time"])
    assert (fields["level"], fields["message"]) == ("WARNING", "Model ml-1m: loaded.")


def test_the_request_that_is_being_answered_is_named() -> None:
    def formatted() -> dict[str, Any]:
        request_id.set("r-42")
        fields: dict[str, Any] = json.loads(JsonFormatter().format(record_of("x")))
        return fields

    assert contextvars.Context().run(formatted)["request_id"] == "r-42"


def test_an_exception_is_text_in_one_field() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        record = record_of("It failed.")
        record.exc_info = sys.exc_info()
    line = JsonFormatter().format(record)
    assert "\n" not in line
    exception = json.loads(line)["exception"]
    assert exception.startswith("Traceback (most recent call last):\n")
    assert exception.endswith("ValueError: first\nsecond")


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_a_message_contains_the_line_is_one_line_of_ascii_json(message: str) -> None:
    line = JsonFormatter().format(record_of("%s", message))
    assert line.isascii() and line.isprintable()
    told = json.loads(line)["message"]
    assert told == message.encode(errors="replace").decode()
    told.encode()  # no halves of surrogate pairs, which strict readers refuse


def test_arguments_that_do_not_suit_a_message_do_not_spoil_the_log() -> None:
    for message in ("%d items", "%s and %s", "%q"):
        assert json.loads(JsonFormatter().format(record_of(message, "x")))["message"] == message


def test_text_has_the_same_time_and_the_exception_below() -> None:
    line = TextFormatter().format(record_of("Ready."))
    assert re.fullmatch(rf"{MOMENT} WARNING Ready\.", line)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1769860800.9999, "2026-01-31T12:00:00.999Z"),
        (1769860799.25, "2026-01-31T11:59:59.250Z"),
    ],
)
def test_times_are_rfc_3339_in_utc_to_the_millisecond(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text


def test_all_loggers_that_speak_in_a_service_have_one_format(capsys: Written) -> None:
    logging.config.dictConfig(logging_config("json"))
    for name in LOGGERS[2:]:
        logging.getLogger(name).info("not important enough")
        logging.getLogger(name).warning("careful")
    logging.getLogger("bert4rec.service").info("Serving.")
    write_one(RequestLog("json"))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("message", "a request") for line in lines] == [
        "careful",
        "careful",
        "Serving.",
        "a request",
    ]


# A line for each request


def test_a_request_is_one_json_object(capsys: Written) -> None:
    logging.config.dictConfig(logging_config("json"))
    write_one(RequestLog("json"))
    line = capsys.readouterr().err
    assert line.endswith("}\n") and line.count("\n") == 1
    fields = json.loads(line)
    assert re.fullmatch(MOMENT, fields.pop("time"))
    assert fields == {
        "level": "INFO",
        "method": "POST",
        "route": "/v1/recommend",
        "status": 200,
        "ms": 3.215,
        "bytes_in": 57,
        "bytes_out": 812,
        "request_id": "r1",
        "key": "shop",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "model": "a1b2",
    }


def test_a_request_is_one_readable_line_with_the_same_facts(capsys: Written) -> None:
    logging.config.dictConfig(logging_config("text"))
    write_one(RequestLog("text"))
    moment, _, rest = capsys.readouterr().err.partition(" ")
    assert re.fullmatch(MOMENT, moment)
    assert rest == (
        "INFO POST /v1/recommend 200 3.215 ms bytes_in=57 bytes_out=812 request_id=r1 key=shop "
        "trace_id=0af7651916cd43dd8448eb211c80319c model=a1b2\n"
    )


def test_what_is_not_known_is_left_out(capsys: Written) -> None:
    logging.config.dictConfig(logging_config("json"))
    RequestLog("json").write("GET", "/health/live", 200, 0.0001, request_id="r1")
    assert not json.loads(capsys.readouterr().err).keys() & {"key", "trace_id", "model", "user_id"}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_users_are_named_only_if_asked_for(capsys: Written, log_format: LogFormat) -> None:
    logging.config.dictConfig(logging_config(log_format))
    write_one(RequestLog(log_format), user_id="ann")
    assert "ann" not in capsys.readouterr().err
    write_one(RequestLog(log_format, user_ids=True), user_id="ann")
    assert "ann" in capsys.readouterr().err


@pytest.mark.parametrize(
    "user_id", ["a\nb", 'a"b', "\x00\x1b[31m", "Jürgen", "\u2028", "\ud800x", "😀", 2**60, ""]
)
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_id_of_a_user_ends_the_line_or_forges_a_field(
    capsys: Written, log_format: LogFormat, user_id: str | int
) -> None:
    logging.config.dictConfig(logging_config(log_format))
    write_one(RequestLog(log_format, user_ids=True), user_id=user_id)
    line = capsys.readouterr().err.removesuffix("\n")
    assert line.isascii() and line.isprintable()
    told = json.loads(line)["user_id"] if log_format == "json" else json.loads(line.partition("user_id=")[2])
    assert told == (user_id.encode(errors="replace").decode() if isinstance(user_id, str) else user_id)


def test_nothing_is_written_where_the_logger_is_silenced(capsys: Written) -> None:
    logging.config.dictConfig(logging_config("json"))
    logging.getLogger("bert4rec.requests").setLevel(logging.WARNING)
    write_one(RequestLog("json"))
    assert capsys.readouterr().err == ""


def test_lines_of_several_processes_do_not_mix() -> None:
    """Each is one write into the pipe, in any encoding of the terminal."""
    program = """if True:
        import logging.config
        from bert4rec.service.telemetry.request_log import RequestLog, logging_config
        logging.config.dictConfig(logging_config("json"))
        log = RequestLog("json", user_ids=True)
        for number in range(500):
            log.write("GET", "/v1/users/{user_id}/history", 200, 0.001, request_id=str(number), user_id="ü" * 300)
    """
    reading, writing = os.pipe()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], stderr=writing, env={**os.environ, "PYTHONIOENCODING": "ascii"}
        )
        for _ in range(2)
    ]
    os.close(writing)
    with os.fdopen(reading, encoding="ascii") as pipe:
        lines = [json.loads(line) for line in pipe]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(lines) == 1000
    assert all(line["user_id"] == "ü" * 300 for line in lines)
