"""Traces: ids that are kept or begun, and spans that reach a collector."""

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import UsageError
from bert4rec.service.telemetry.tracing import Tracer, parent_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = f"00-{TRACE}-{SPAN}-01"
PATIENCE = 60
"""Seconds after which a test gives up waiting; never how long it waits when all is well."""


def headers(traceparent: str, tracestate: str | None = None) -> dict[bytes, bytes]:
    state = {} if tracestate is None else {b"tracestate": tracestate.encode("latin-1")}
    return {b"traceparent": traceparent.encode("latin-1"), **state}


# The ids


def test_the_callers_trace_goes_on_with_a_span_of_ours() -> None:
    trace = Tracer().begin(headers(SENT))
    assert trace.trace_id == TRACE
    assert re.fullmatch(r"[0-9a-f]{16}", trace.span_id) and trace.span_id != SPAN
    assert trace.traceparent == f"00-{TRACE}-{trace.span_id}-01"
    assert Tracer().begin(headers(SENT)).span_id != trace.span_id


def test_a_request_without_a_trace_begins_one() -> None:
    first, second = Tracer().begin({}), Tracer().begin({})
    assert first.trace_id != second.trace_id
    assert parent_of(headers(first.traceparent)) == (first.trace_id, first.span_id, 2, "")


@pytest.mark.parametrize(
    "valid",
    [
        SENT,
        f" {SENT} ",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-ff",  # flags that nobody knows yet
        f"01-{TRACE}-{SPAN}-01",  # later versions
        f"01-{TRACE}-{SPAN}-01-what-the-future-brings",
        f"cc-{TRACE}-{SPAN}-01-",
        f"00-{'0' * 31}1-{'0' * 15}1-01",
    ],
)
def test_a_valid_header_is_read(valid: str) -> None:
    parent = parent_of(headers(valid))
    _, trace_id, span_id, flags = valid.strip().split("-")[:4]
    assert parent == (trace_id, span_id, int(flags, 16) & 3, "")


@pytest.mark.parametrize(
    "invalid",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",  # version 00 ends here
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-011",
        f"01-{TRACE}-{SPAN}-01more",  # a later version goes on behind a dash
        f"ff-{TRACE}-{SPAN}-01",  # the version that never is
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        SENT.upper(),
        f"00-{TRACE}-{SPAN}-0A",
        f"0A-{TRACE}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN[:-1]}x-01",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"{SENT}, {SENT}",
        "\xff" * 55,
    ],
)
def test_an_invalid_header_is_as_good_as_none_and_takes_the_state_with_it(invalid: str) -> None:
    sent = headers(invalid, "vendor=1")
    assert parent_of(sent) is None
    trace = Tracer().begin(sent)
    assert trace.trace_id != TRACE and trace.state == ""


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_whatever_is_sent_the_answer_carries_a_valid_header(traceparent: bytes, tracestate: bytes) -> None:
    trace = Tracer().begin({b"traceparent": traceparent, b"tracestate": tracestate})
    assert parent_of(headers(trace.traceparent)) is not None


@pytest.mark.parametrize(
    "state",
    [
        "vendor=1",
        "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
        "a=1 , b=2,,\tc=3",
        "0tenant@system=x/y z!",
        ",".join(f"k{number}=v" for number in range(32)),
        f"{'k' * 256}={'v' * 256}",
    ],
)
def test_a_valid_state_is_kept_as_it_was_sent(state: str) -> None:
    assert Tracer().begin(headers(SENT, state)).state == state


@pytest.mark.parametrize(
    "state",
    [
        "no-value",
        "Upper=1",
        "a=b=c",
        "a=1,a=2",
        "a=\x01",
        "ü=1",
        f"{'k' * 257}=v",
        f"k={'v' * 257}",
        ",".join(f"k{number}=v" for number in range(33)),
        "a=1," + "," * 2**15,
    ],
)
def test_an_invalid_state_is_dropped_and_the_trace_goes_on(state: str) -> None:
    trace = Tracer().begin(headers(SENT, state))
    assert (trace.trace_id, trace.state) == (TRACE, "")


# Spans


class Collector:
    """Takes spans by OTLP over HTTP, as real collectors do."""

    def __init__(self) -> None:
        self.received: Queue[tuple[str, dict[str, str], bytes]] = Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        received, may_answer = self.received, self.may_answer

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.put((self.path, dict(self.headers.items()), body))
                may_answer.wait(PATIENCE)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """Everything received so far: the attributes of the service, and the span."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = []
        while not self.received.empty():
            path, _, body = self.received.get()
            assert path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = values_of(resource.resource.attributes)
                found += [(about, span) for scope in resource.scope_spans for span in scope.spans]
        return found


def values_of(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    yield collector
    collector.close()


def test_a_request_becomes_a_server_span_in_the_callers_trace(collector: Collector) -> None:
    tracer = Tracer(export=True)
    trace = tracer.begin(headers(SENT, "vendor=1"))
    tracer.end(trace, "GET", "/v1/users/{user_id}/history", 200)
    tracer.stop()
    ((about, span),) = collector.spans()
    assert about["service.name"] == "bert4rec" and about["service.version"]
    assert span.name == "GET /v1/users/{user_id}/history"
    assert span.kind == span.SPAN_KIND_SERVER
    assert values_of(span.attributes) == {
        "http.request.method": "GET",
        "http.route": "/v1/users/{user_id}/history",
        "http.response.status_code": 200,
    }
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert trace.traceparent == f"00-{TRACE}-{span.span_id.hex()}-01"
    assert span.trace_state == "vendor=1" == trace.state
    assert span.status.code == span.status.STATUS_CODE_UNSET
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano


def test_a_request_without_a_trace_is_the_root_of_a_sampled_one(collector: Collector) -> None:
    tracer = Tracer(export=True)
    trace = tracer.begin({})
    tracer.end(trace, "POST", "/v1/recommend", 503)
    tracer.stop()
    ((_, span),) = collector.spans()
    assert span.parent_span_id == b""
    assert span.trace_id.hex() == trace.trace_id
    assert trace.flags & 1
    assert span.status.code == span.status.STATUS_CODE_ERROR


def test_what_the_caller_does_not_sample_is_not_exported_but_keeps_its_trace(collector: Collector) -> None:
    tracer = Tracer(export=True)
    trace = tracer.begin(headers(f"00-{TRACE}-{SPAN}-00"))
    tracer.end(trace, "POST", "/v1/recommend", 200)
    tracer.stop()
    assert collector.spans() == []
    assert trace.trace_id == TRACE and trace.span_id != SPAN and trace.flags & 1 == 0


def test_the_standard_variables_configure_the_export(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES", "service.name=shop-recommender,deployment.environment=test"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop")
    tracer = Tracer(export=True)
    tracer.end(tracer.begin({}), "GET", "/v1/info", 200)
    tracer.stop()
    path, sent, body = collector.received.get(timeout=PATIENCE)
    assert sent["x-tenant"] == "shop"
    collector.received.put((path, sent, body))
    ((about, _),) = collector.spans()
    assert (about["service.name"], about["deployment.environment"]) == ("shop-recommender", "test")


def test_spans_leave_in_the_background_while_requests_go_on(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    tracer = Tracer(export=True)
    tracer.end(tracer.begin({}), "GET", "/v1/info", 200)
    assert collector.received.get(timeout=PATIENCE)
    tracer.stop()


def test_variables_may_switch_the_export_off(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    tracer = Tracer(export=True)
    trace = tracer.begin(headers(SENT))
    tracer.end(trace, "GET", "/v1/info", 200)
    tracer.stop()
    assert trace.trace_id == TRACE and trace.span_id != SPAN
    assert collector.spans() == []


def test_a_protocol_that_is_not_spoken_here_is_refused(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(UsageError, match="http/protobuf alone"):
        Tracer(export=True)


def test_no_header_of_a_client_makes_the_library_write_a_line(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = Tracer(export=True)
    with caplog.at_level(logging.DEBUG, "opentelemetry"):
        for state in ("Upper=1", "a=1,a=1", "0digit=1", "=", "a=1,", "x" * 5000):
            tracer.end(tracer.begin(headers(SENT, state)), "GET", "/v1/info", 200)
    assert caplog.records == []
    tracer.stop()


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.may_answer.clear()
    monkeypatch.setattr("bert4rec.service.telemetry.tracing.STOP_SECONDS", 0.01)
    before = set(threading.enumerate())
    tracer = Tracer(export=True)
    tracer.end(tracer.begin({}), "GET", "/v1/info", 200)
    tracer.stop()  # would wait for an answer that only comes below
    sending = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("Otel")]
    assert len(sending) == 1 and sending[0].daemon
    collector.may_answer.set()
    sending[0].join(PATIENCE)
    assert len(collector.spans()) == 1


def test_without_the_library_the_error_says_what_to_install() -> None:
    program = """if True:
        import sys
        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "opentelemetry":
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Missing())
        from bert4rec.errors import UsageError
        from bert4rec.service.telemetry.tracing import Tracer
        assert Tracer().begin({}).traceparent
        try:
            Tracer(export=True)
        except UsageError as error:
            print(error)
    """
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "OpenTelemetry is required to export traces: pip install 'bert4rec[otel]'.\n", (
        run.stderr
    )


def test_nothing_of_it_is_loaded_unless_spans_are_exported() -> None:
    program = """if True:
        import sys
        from bert4rec.service.telemetry.tracing import Tracer
        tracer = Tracer()
        tracer.end(tracer.begin({}), "GET", "/v1/info", 200)
        tracer.stop()
        sys.exit(any(name.partition(".")[0] in ("opentelemetry", "requests") for name in sys.modules))
    """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
