"""What the service counts, for Prometheus.

With several workers, each writes its numbers to files in the folder that PROMETHEUS_MULTIPROC_DIR names, and
the worker that is asked adds up all of them. That variable must be set before prometheus_client is first imported.
"""

import os

MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The numbers of one process. An attribute for each metric."""

    def __init__(self) -> None:
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            disable_created_metrics,
        )

        disable_created_metrics()  # type: ignore[no-untyped-call]  # when each number was first counted: as many lines again
        self._registry = registry = CollectorRegistry()
        self._of_routes: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.requests = Counter(
            "bert4rec_requests", "Requests answered.", ["route", "code"], registry=registry
        )
        self.request_seconds = Histogram(
            "bert4rec_request_duration_seconds",
            "From the end of a request's head to the end of its response.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.inference_seconds = Histogram(
            "bert4rec_inference_duration_seconds",
            "Time of one batch in the model.",
            buckets=SECONDS,
            registry=registry,
        )
        self.batch_size = Histogram(
            "bert4rec_batch_size", "Questions in one batch.", buckets=SIZES, registry=registry
        )
        self.queue_depth = Gauge(
            "bert4rec_queue_depth",
            "Questions that wait for the model.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.fallbacks = Counter(
            "bert4rec_fallbacks", "Recommendations by popularity.", ["reason"], registry=registry
        )
        self.unknown_items = Counter(
            "bert4rec_unknown_items", "Items in requests that the model does not know.", registry=registry
        )
        self.events = Counter("bert4rec_events", "Events received.", ["result"], registry=registry)
        self.model_info = Gauge(
            "bert4rec_model_info",
            "1 for the current model.",
            ["name", "version"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.model_loads = Counter(
            "bert4rec_model_loads",
            "Models loaded, failed to load or rolled back to.",
            ["result"],
            registry=registry,
        )

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one response. The metrics of a route are looked up once: that takes longer than to count."""
        counter, histogram = self._of_routes.get((route, status), (None, None))
        if counter is None or histogram is None:
            counter, histogram = self.requests.labels(route, status), self.request_seconds.labels(route)
            self._of_routes[route, status] = counter, histogram
        counter.inc()
        histogram.observe(seconds)

    def page(self) -> tuple[bytes, str]:
        """Everything in Prometheus's text format, of all workers together, and its media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = self._registry
        if MULTIPROCESS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST
