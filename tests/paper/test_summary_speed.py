"""Tables about speed, from lines as the benchmarks print them."""

from bert4rec.paper.reporting.report_text import table_text
from bert4rec.paper.reporting.summary_speed import (
    recommending_table,
    serving_table,
    speed_beside_paper,
    training_table,
)


def test_recommending_tells_what_was_measured_and_leaves_the_rest_empty() -> None:
    on_cpu = {
        "recommend": "beauty",
        "items": 54542,
        "device": "a processor",
        "milliseconds": {"PyTorch": 2.5, "exported": 1.25},
        "users_per_second": {"plain": 100.4, "run": 900.0, "exported": 1000.0},
    }
    on_gpu = {
        "recommend": "ml-1m",
        "items": 3416,
        "device": "a card",
        "milliseconds": {},
        "users_per_second": {"run": 170_000.0, "file to file": 57_477.0},
    }
    *_, first, second = table_text(recommending_table([on_cpu, on_gpu])).splitlines()
    expected = (
        "| Beauty, 54,542 items | a processor | 2.50 ms | 1.25 ms | 2.0 | 100 | 900 | 1,000 | 10.0 |  |"
    )
    assert first == expected
    assert second == "| ML-1m, 3,416 items | a card |  |  |  |  | 170,000 |  |  | 57,477 |"


def test_serving_tells_the_middle_of_its_turns() -> None:
    batched = {
        "requests_per_second": [2000, 1000, 1800],
        "p50_ms": [9.0, 9.4, 30.0],
        "p99_ms": [20.0, 26.2, 99.0],
    }
    line = {
        "serve": batched,
        "serve_unbatched": {"requests_per_second": [900, 1000, 1100]},
        "ratio": [1.9, 1.8, 1.2],
        "alone_p50_ms": 1.26,
        "overload": {"answered_per_second": 1700, "statuses": {"200": 5000, "503": 12000}, "unanswered": 0},
        "events_per_second": 1500,
        "import_seconds": 0.33,
        "resident_mb": 233,
    }
    text = table_text(serving_table([line]))
    for row in (
        "| requests a second, batched | 1,800 |",
        "| requests a second, model called in the handler | 1,000 |",
        "| times | 1.80 |",
        "| p50 and p99, 32 connections | 9 and 26 ms |",
        "| at four times the load | 1,700 answered a second, 12,000 times 503, 0 unanswered |",
    ):
        assert row in text


def test_speed_beside_the_paper_is_that_of_the_fastest_device_that_was_timed_beside_a_plain_loop() -> None:
    line = {"shape": "ml-1m", "dim": 64, "max_length": 200, "samples_per_second": 2918 * 10.0}
    lines = [
        {**line, "device": "a card", "ratio": 9.0},
        {**line, "device": "a processor", "ratio": 9.0, "samples_per_second": 2918 / 2},
        {**line, "device": "a large batch", "samples_per_second": 2918 * 99.0},
        {
            **line,
            "device": "a shared card",
            "ratio": 9.0,
            "samples_per_second": 2918 * 50.0,
            "device_shared": True,
        },
        {**line, "device": "another width", "ratio": 9.0, "dim": 256, "samples_per_second": 2918 * 70.0},
    ]
    assert speed_beside_paper("ML-1m", lines) == "10 times the paper's (a card)"
    assert speed_beside_paper("Beauty", lines) == "–"


def test_training_has_a_column_of_a_peer_once_one_was_measured() -> None:
    line = {
        "shape": "ml-1m",
        "items": 3416,
        "max_length": 200,
        "dim": 64,
        "batch_size": 256,
        "device": "a card",
        "samples_per_second": 2918 * 10.0,
        "ratio": 9.2,
    }
    beside_a_peer = {**line, "batch_size": 512, "hf": {"samples_per_second": 2918.0, "ratio": 10.0}}
    *_, alone = table_text(training_table([line])).splitlines()
    assert alone == "| ML-1m, 3,416 items, N=200 | 64 | 256 | a card | 29,180 | 9.2 | 10.0 |"
    head, _, first, second = table_text(training_table([line, beside_a_peer])).splitlines()
    assert "| times the plain loop | times transformers | times the paper |" in head
    assert first == "| ML-1m, 3,416 items, N=200 | 64 | 256 | a card | 29,180 | 9.2 |  | 10.0 |"
    assert second == "| ML-1m, 3,416 items, N=200 | 64 | 512 | a card | 29,180 | 9.2 | 10.0 | 10.0 |"
