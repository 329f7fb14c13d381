"""What the service counts, for Prometheus.

With several workers, each writes its numbers to files in the folder that PROMETHEUS_MULTIPROC_DIR names, and
the worker that is asked adds up all of them. That variable must be set before prometheus_client is first imported.

Events are counted when they happen. What can be looked up at any moment, such as how many questions wait, costs a
request nothing: it is followed (`Metrics.follow`) and looked up for each page. With several workers, each has to call
`Metrics.refresh` every second or so, because a page shows of the others what they wrote last.
"""

import math
import os
import platform
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bert4rec import __version__
from bert4rec.data.trained import Trained

if TYPE_CHECKING:
    from prometheus_client import Gauge

Reason = Literal["overloaded", "deadline", "rate_limited", "unauthorized", "forbidden", "unread"]
"""Why a request was refused. unread: it was malformed, too large or too slow to be read."""
StoreOperation = Literal["read", "write", "delete"]
StoreResult = Literal["ok", "conflict", "full", "unavailable", "late"]
MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The numbers of one process. An attribute for each metric."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

        disable_created_metrics()  # type: ignore[no-untyped-call]  # when each number was first counted: as many lines again
        self._registry = registry = CollectorRegistry()
        self._of_routes: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._of_store: dict[tuple[StoreOperation, StoreResult], tuple[Counter, Histogram]] = {}
        self._followed: dict[Gauge, Callable[[], float]] = {}
        self._versions: dict[str, tuple[str, str]] = {}
        self._loaded_at: dict[str, float] = {}
        self._trained_until: dict[str, float] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"bert4rec_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(f"bert4rec_{name}", text, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Requests answered.", "route", "code")
        self.request_seconds = histogram(
            "request_duration_seconds",
            "From the end of a request's head to the end of its response.",
            "route",
        )
        self.refused = counter("refused_requests", "Requests refused.", "reason")
        self._of_reasons = {reason: self.refused.labels(reason) for reason in get_args(Reason)}
        self.queue_seconds = histogram(
            "queue_duration_seconds", "How long the first question of a batch waited for the model."
        )
        self.inference_seconds = histogram("inference_duration_seconds", "Time of one batch in the model.")
        self.batch_size = histogram("batch_size", "Questions in one batch.", buckets=SIZES)
        self.fallbacks = counter("fallbacks", "Recommendations by popularity.", "reason")
        self.recommendations = counter(
            "recommendations", "Recommendations given, by arm of a test and version.", "arm", "version"
        )
        self.feedback = counter("feedback", "Feedback received, by arm of a test.", "arm", "result")
        self.unknown_items = counter("unknown_items", "Items in requests that the model does not know.")
        self.events = counter("events", "Events received.", "result")
        self.store_operations = counter(
            "store_operations", "Calls of the history store.", "operation", "result"
        )
        self.store_seconds = histogram(
            "store_duration_seconds", "Time of one call of the history store.", "operation"
        )
        self.model_loads = counter(
            "model_loads", "Models loaded, failed to load or rolled back to.", "result"
        )
        self._create_gauges()

    def _create_gauges(self) -> None:
        """Numbers that rise and fall. Of dead workers nothing counts; how those of the living are joined, each says."""
        from prometheus_client import Gauge

        def gauge(
            name: str,
            text: str,
            *labels: str,
            workers: Literal["livesum", "livemax", "livemin", "livemostrecent"],
        ) -> Gauge:
            return Gauge(f"bert4rec_{name}", text, labels, registry=self._registry, multiprocess_mode=workers)

        self.in_flight = gauge(
            "requests_in_flight", "Requests that are being read or answered.", workers="livesum"
        )
        self.connections = gauge("open_connections", "Connections of clients.", workers="livesum")
        self.queue_depth = gauge("queue_depth", "Questions that wait for the model.", workers="livesum")
        self.queue_oldest_seconds = gauge(
            "queue_oldest_seconds",
            "How long the oldest question has waited for the model.",
            workers="livemax",
        )
        self.store_writes_waiting = gauge(
            "store_writes_waiting", "Requests whose events wait to be written.", workers="livesum"
        )
        # All workers see one file, and the last look at it is the best.
        self.store_bytes = gauge(
            "store_size_bytes", "Size of an SQLite store and its log.", workers="livemostrecent"
        )
        self.model_info = gauge("model_info", "1 for a current model.", "name", "version", workers="livemax")
        # The worker that is furthest behind tells whether all have switched.
        self.model_age = gauge("model_age_seconds", "Since the current model was loaded.", workers="livemax")
        self.model_trained_until = gauge(
            "model_trained_until_seconds",
            "When the newest action was made that the current model was trained on.",
            workers="livemin",
        )
        # The youngest: a worker that had to be replaced shows as a change.
        self.start_time = gauge(
            "start_time_seconds", "When the process started, or the youngest of several.", workers="livemax"
        )
        self.start_time.set_to_current_time()
        build = gauge("build_info", "What runs here.", "version", "python", workers="livemax")
        build.labels(__version__, platform.python_version()).set(1)
        self.store_bytes.set(math.nan)  # unknown, rather than 0, which would be a size

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one response. The metrics of a route are looked up once: that takes longer than to count."""
        counter, histogram = self._of_routes.get((route, status), (None, None))
        if counter is None or histogram is None:
            counter, histogram = self.requests.labels(route, status), self.request_seconds.labels(route)
            self._of_routes[route, status] = counter, histogram
        counter.inc()
        histogram.observe(seconds)

    def count_refusal(self, reason: Reason) -> None:
        """Count a request that was refused."""
        self._of_reasons[reason].inc()

    def count_store(self, operation: StoreOperation, result: StoreResult, seconds: float) -> None:
        """Count one call of the history store. May be called from any thread."""
        counter, histogram = self._of_store.get((operation, result), (None, None))
        if counter is None or histogram is None:
            counter = self.store_operations.labels(operation, result)
            histogram = self.store_seconds.labels(operation)
            self._of_store[operation, result] = counter, histogram
        counter.inc()
        histogram.observe(seconds)

    def note_version(self, version: tuple[str, str], arm: str = "") -> None:
        """Remember name and version of the current model. What it replaces may still be that of another arm."""
        replaced = self._versions.get(arm, version)
        self._versions[arm] = version
        for each in (replaced, version):
            self.model_info.labels(*each).set(each in self._versions.values())

    def note_model(self, loaded_at: datetime, trained: Trained | None = None, arm: str = "") -> None:
        """Remember when the current model was loaded, and until when it was trained, if that is known; of several that
        are served, the oldest counts of those of which it is known."""
        self._loaded_at[arm] = loaded_at.timestamp()
        self.follow(self.model_age, lambda: time.time() - min(self._loaded_at.values()))
        until = trained and trained.until
        self._trained_until.pop(arm, None)
        if until:
            self._trained_until[arm] = datetime.fromisoformat(until).timestamp()
        self.model_trained_until.set(min(self._trained_until.values(), default=math.nan))

    def follow(self, gauge: "Gauge", look: Callable[[], float]) -> None:
        """Have a number looked up by `look` from now on, whenever somebody wants to know."""
        self._followed[gauge] = look

    def follow_store_file(self, path: Path) -> None:
        """Have the size of an SQLite store looked up."""
        self.follow(self.store_bytes, lambda: size_of_store(path))

    def refresh(self) -> None:
        """Look up what is followed."""
        for gauge, look in self._followed.items():
            gauge.set(look())

    def page(self) -> tuple[bytes, str]:
        """Everything in Prometheus's text format, of all workers together, and its media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        self.refresh()
        registry = self._registry
        if MULTIPROCESS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST


def size_of_store(path: Path) -> float:
    """Bytes of an SQLite file and of its log; not a number while there is no such file."""
    sizes = []
    for each in (path, path.with_name(f"{path.name}-wal")):
        try:
            sizes.append(each.stat().st_size)
        except OSError:  # the log comes and goes
            continue
    return float(sum(sizes)) if sizes else math.nan
