"""The metrics: what is counted, what is looked up, and how several workers add up."""

import math
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bert4rec import __version__
from bert4rec.data.trained import Trained
from bert4rec.service.telemetry.counters import MULTIPROCESS_FOLDER, Metrics, Reason

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
WORKER = """
import sys
from bert4rec.service.telemetry.counters import Metrics
metrics, number = Metrics(), int(sys.argv[1])
metrics.count_refusal("forbidden")
metrics.count_store("write", "ok", 0.01)
metrics.follow(metrics.connections, lambda: number)
metrics.follow(metrics.queue_oldest_seconds, lambda: number)
metrics.follow(metrics.store_bytes, lambda: 1000 - number)
metrics.start_time.set(number)
metrics.refresh()
print("ready", flush=True)
sys.stdin.readline()
if number == 1:
    print(metrics.page()[0].decode(), flush=True)
"""


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def values(page: str) -> dict[str, float]:
    """Each line of a page: name and labels → value."""
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def shown(metrics: Metrics) -> dict[str, float]:
    return values(metrics.page()[0].decode())


def test_refusals_are_counted_by_reason_and_reasons_that_never_came_are_zero(metrics: Metrics) -> None:
    metrics.count_refusal("rate_limited")
    metrics.count_refusal("rate_limited")
    page = shown(metrics)
    for reason in get_args(Reason):
        expected = 2 if reason == "rate_limited" else 0
        assert page[f"bert4rec_refused_requests_total reason={reason}"] == expected


def test_calls_of_the_store_are_counted_by_result_and_timed_by_operation(metrics: Metrics) -> None:
    metrics.count_store("read", "ok", 0.003)
    metrics.count_store("read", "unavailable", 3.0)
    metrics.count_store("delete", "ok", 0.0)
    page = shown(metrics)
    assert page["bert4rec_store_operations_total operation=read result=ok"] == 1
    assert page["bert4rec_store_operations_total operation=read result=unavailable"] == 1
    assert page["bert4rec_store_operations_total operation=delete result=ok"] == 1
    assert page["bert4rec_store_duration_seconds_bucket le=0.005 operation=read"] == 1
    assert page["bert4rec_store_duration_seconds_bucket le=5.0 operation=read"] == 2
    assert page["bert4rec_store_duration_seconds_sum operation=read"] == 3.003


def test_threads_lose_no_count(metrics: Metrics) -> None:
    def count() -> None:
        for _ in range(2000):
            metrics.count_store("read", "ok", 0.001)
            metrics.count_request("/v1/info", 200, 0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    page = shown(metrics)
    assert page["bert4rec_store_operations_total operation=read result=ok"] == 8000
    assert page["bert4rec_requests_total code=200 route=/v1/info"] == 8000


def test_time_in_the_queue_is_a_histogram(metrics: Metrics) -> None:
    metrics.queue_seconds.observe(0.02)
    page = shown(metrics)
    assert page["bert4rec_queue_duration_seconds_bucket le=0.01"] == 0
    assert page["bert4rec_queue_duration_seconds_bucket le=0.025"] == 1


def test_what_is_followed_is_looked_up_for_each_page(metrics: Metrics) -> None:
    connections: list[object] = []
    metrics.follow(metrics.connections, lambda: len(connections))
    assert shown(metrics)["bert4rec_open_connections"] == 0
    connections += [1, 2]
    assert shown(metrics)["bert4rec_open_connections"] == 2


def test_the_size_of_a_store_includes_its_log_and_is_unknown_without_a_file(
    metrics: Metrics, tmp_path: Path
) -> None:
    assert math.isnan(shown(metrics)["bert4rec_store_size_bytes"])
    metrics.follow_store_file(tmp_path / "history.db")
    assert math.isnan(shown(metrics)["bert4rec_store_size_bytes"])
    (tmp_path / "history.db").write_bytes(b"x" * 1000)
    assert shown(metrics)["bert4rec_store_size_bytes"] == 1000
    (tmp_path / "history.db-wal").write_bytes(b"x" * 500)
    assert shown(metrics)["bert4rec_store_size_bytes"] == 1500


def test_the_model_grows_older_until_the_next_one(metrics: Metrics) -> None:
    metrics.note_model(datetime.now(UTC) - timedelta(hours=1))
    assert shown(metrics)["bert4rec_model_age_seconds"] >= 3600
    metrics.note_model(datetime.now(UTC))
    assert 0 <= shown(metrics)["bert4rec_model_age_seconds"] < 3600


def test_it_is_told_until_when_the_model_was_trained_if_that_is_known(metrics: Metrics) -> None:
    metrics.note_model(datetime.now(UTC))
    assert math.isnan(shown(metrics)["bert4rec_model_trained_until_seconds"])
    trained = Trained("sasrec", "production", "2026-01-31T12:00:00.5+00:00", 1, 1, 1, {})
    metrics.note_model(datetime.now(UTC), trained)
    assert shown(metrics)["bert4rec_model_trained_until_seconds"] == 1769860800.5
    metrics.note_model(datetime.now(UTC), replace(trained, until=None))
    assert math.isnan(shown(metrics)["bert4rec_model_trained_until_seconds"])


def test_of_several_models_the_oldest_counts_that_is_known_in_whatever_order(metrics: Metrics) -> None:
    old, new = (
        Trained("sasrec", "production", f"2026-01-{day}T00:00:00+00:00", 1, 1, 1, {}) for day in (10, 20)
    )
    for order in permutations([("a", old), ("b", None), ("c", new)]):
        for arm, trained in order:
            metrics.note_model(datetime.now(UTC), trained, arm)
        assert shown(metrics)["bert4rec_model_trained_until_seconds"] == 1768003200
    metrics.note_model(datetime.now(UTC), None, "a")
    assert shown(metrics)["bert4rec_model_trained_until_seconds"] == 1768867200


def test_a_version_is_current_as_long_as_one_arm_serves_it(metrics: Metrics) -> None:
    def current() -> dict[str, float]:
        page = shown(metrics)
        return {name[-1]: page[name] for name in page if name.startswith("bert4rec_model_info")}

    metrics.note_version(("films", "1"), "a")
    metrics.note_version(("films", "1"), "b")
    metrics.note_version(("films", "2"), "a")
    assert current() == {"1": 1, "2": 1}
    metrics.note_version(("films", "2"), "b")
    assert current() == {"1": 0, "2": 1}
    metrics.note_version(("films", "1"), "a")
    assert current() == {"1": 1, "2": 1}


def test_the_page_tells_what_runs_and_since_when() -> None:
    before = time.time()
    page = shown(Metrics())
    python = ".".join(map(str, sys.version_info[:3]))
    assert page[f"bert4rec_build_info python={python} version={__version__}"] == 1
    assert before <= page["bert4rec_start_time_seconds"] <= time.time()


def test_workers_add_up_and_a_dead_one_counts_only_for_what_it_did(tmp_path: Path) -> None:
    def page_with(numbers: tuple[int, ...]) -> dict[str, float]:
        environment = {**os.environ, MULTIPROCESS_FOLDER: str(tmp_path)}
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(number)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in numbers
        ]
        for worker in workers:
            assert worker.stdout and worker.stdout.readline() == "ready\n"
        page, _ = workers[-1].communicate("\n")
        for worker in workers[:-1]:
            worker.communicate("\n")
            # What the server does for a worker that has died, while the others are still alive.
            mark_dead(worker.pid, environment)
        mark_dead(workers[-1].pid, environment)
        return values(page)

    def mark_dead(pid: int, environment: dict[str, str]) -> None:
        program = f"from prometheus_client.multiprocess import mark_process_dead as dead; dead({pid})"
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)

    together = page_with((20, 1))
    assert together["bert4rec_refused_requests_total reason=forbidden"] == 2
    assert together["bert4rec_store_operations_total operation=write result=ok"] == 2
    assert together["bert4rec_store_duration_seconds_count operation=write"] == 2
    assert together["bert4rec_open_connections"] == 21
    assert together["bert4rec_queue_oldest_seconds"] == 20
    assert together["bert4rec_store_size_bytes"] == 999  # as seen by the one that looked last
    assert together["bert4rec_start_time_seconds"] == 20
    alone = page_with((1,))
    assert alone["bert4rec_refused_requests_total reason=forbidden"] == 3
    assert alone["bert4rec_open_connections"] == 1
    assert alone["bert4rec_queue_oldest_seconds"] == 1
    assert alone["bert4rec_start_time_seconds"] == 1


def test_the_library_of_metrics_is_loaded_when_there_are_some() -> None:
    program = "import sys, bert4rec.service.telemetry.counters; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_guide_names_every_metric_and_no_other(metrics: Metrics) -> None:
    families = text_string_to_metric_families(metrics.page()[0].decode())
    suffix = {"counter": "_total"}
    known = {family.name + suffix.get(family.type, "") for family in families}
    told = {
        name for page in GUIDES.glob("*.md") for name in re.findall(r"`(bert4rec_\w+)`", page.read_text())
    }
    assert told == known
