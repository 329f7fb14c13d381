"""Traces: which request of whom a request belongs to, by W3C's `traceparent` and `tracestate`.

Without an exporter, this is about ids alone: the caller's trace is kept, or a new one is begun, so that the log of
requests can be joined with the logs of others. With it, each request becomes a span that OpenTelemetry sends to a
collector by OTLP over HTTP. The standard OTEL_* variables configure that; the library is loaded only then.
"""

import os
import re
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bert4rec import __version__
from bert4rec.errors import UsageError
from bert4rec.extras import require_tracing
from bert4rec.service.http.messages import Headers

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

PARENT = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    rb"(?P<more>-.*)?"
)
SAMPLED, RANDOM = 1, 2
"""Flags: whether the caller may have recorded the trace, and whether its id was drawn at random."""
MEMBER = re.compile(
    r"(?P<key>[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
)
MOST_MEMBERS, LONGEST_STATE = 32, 2**14
STOP_SECONDS = 3.0
"""How long a stopping service waits for the collector to take the last spans."""
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Parent(NamedTuple):
    """The span of the caller."""

    trace_id: str
    span_id: str
    flags: int
    state: str


@dataclass(slots=True)
class Trace:
    """Where a request stands: its trace, and the service's own span in it. Ids are hexadecimal."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""
    """`tracestate` as the caller sent it; empty where there is none."""
    span: "Span | None" = None

    @property
    def traceparent(self) -> str:
        """The header that tells others of this span."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


class Tracer:
    """Gives each request its place in a trace and, if asked to, exports its span."""

    def __init__(self, *, export: bool = False) -> None:
        self._provider = _provider() if export else None
        self._tracer = self._provider.get_tracer("bert4rec", __version__) if self._provider else None

    @property
    def exports(self) -> bool:
        """Whether every request has to be traced, and not only those whose callers ask for it."""
        return self._tracer is not None

    def begin(self, headers: Headers) -> Trace:
        """The trace of a request that has just arrived. Headers that are wrong are as good as none."""
        parent = parent_of(headers)
        if self._tracer is None:
            span_id = secrets.token_hex(8)
            if parent is None:
                return Trace(secrets.token_hex(16), span_id, RANDOM)
            return Trace(parent.trace_id, span_id, parent.flags, parent.state)
        from opentelemetry.trace import SpanKind

        # The name follows when the request is answered.
        span = self._tracer.start_span("request", _context_of(parent), SpanKind.SERVER)
        ours = span.get_span_context()
        state = parent.state if parent else ""
        return Trace(f"{ours.trace_id:032x}", f"{ours.span_id:016x}", int(ours.trace_flags), state, span)

    def end(self, trace: Trace, method: str, route: str, status: int) -> None:
        """Export the span of an answered request. `route` is never the path that was sent: it may name a user."""
        if trace.span is None:
            return
        from opentelemetry.trace import StatusCode

        trace.span.update_name(f"{method} {route}")
        trace.span.set_attributes(
            {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        )
        if status >= 500:
            trace.span.set_status(StatusCode.ERROR)
        trace.span.end()

    def stop(self) -> None:
        """Send what is left. Blocks, but not for long if nobody takes it."""
        if self._provider:
            # In a thread that may be left alone: the library tries for up to half a minute.
            sending = threading.Thread(target=self._provider.shutdown, daemon=True)
            sending.start()
            sending.join(STOP_SECONDS)


def parent_of(headers: Headers) -> Parent | None:
    """The caller's span; None where there is none, or where the header is not valid.

    A later version of the header is read as far as it agrees with this one, as the specification demands.
    """
    found = PARENT.fullmatch(headers.get(b"traceparent", b"").strip(b" \t"))
    if found is None or found["version"] == b"ff" or (found["version"] == b"00" and found["more"]):
        return None
    if not found["trace"].strip(b"0") or not found["span"].strip(b"0"):
        return None
    flags = int(found["flags"], 16) & (SAMPLED | RANDOM)
    state = _state(headers.get(b"tracestate", b""))
    return Parent(found["trace"].decode(), found["span"].decode(), flags, state)


def _state(given: bytes) -> str:
    """`tracestate` as it was sent, or nothing if it is not valid: a trace goes on without it."""
    if len(given) > LONGEST_STATE:
        return ""
    text = given.decode("latin-1")
    members = [each for each in (part.strip(" \t") for part in text.split(",")) if each]
    found = [MEMBER.fullmatch(member) for member in members]
    keys = {member["key"] for member in found if member}
    return text.strip() if len(keys) == len(members) <= MOST_MEMBERS else ""


def _context_of(parent: Parent | None) -> "Context":
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

    if parent is None:
        return Context()
    span = SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(parent.flags),
        trace_state=TraceState.from_header([parent.state]) if parent.state else None,
    )
    return set_span_in_context(NonRecordingSpan(span), Context())


def _provider() -> "TracerProvider | None":
    """What exports spans, or None where the variables of OpenTelemetry switch it off."""
    require_tracing()
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        raise UsageError(
            f"Traces are exported by http/protobuf alone; OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}."
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "bert4rec"}))
    resource = Resource({"service.version": __version__}).merge(resource)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
