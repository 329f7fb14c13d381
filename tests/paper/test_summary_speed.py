"""Tables about speed, from lines as the benchmarks print them."""

from bert4rec.paper.reporting.evidence import Line
from bert4rec.paper.reporting.report_text import table_text
from bert4rec.paper.reporting.summary_speed import (
    cpu_table,
    production_table,
    recommending_table,
    serving_sentence,
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


def test_serving_stands_beside_the_version_before() -> None:
    this = {
        "per_second": {"1": 700, "32": 2000, "128": 2400},
        "best": 2400,
        "best_at": 128,
        "p50_ms": 9.4,
        "p99_ms": 15.6,
        "alone_p50_ms": 1.26,
    }
    before = {**this, "per_second": {"32": 1000}, "best": 1200}
    line = {
        "throughput": {"this": {**this, "times_the_best_before": 2.0}, "before": before},
        "swaps": {"this": {"failed": 0, "swaps_seen": 29}},
    }
    text = table_text(serving_table([line]))
    for row in (
        "| requests a second, 32 connections | 2,000 | 1,000 |",
        "| requests a second, at best | 2,400 (128 connections) | 1,200 (128 connections) |",
        "| p50 and p99, 32 connections | 9 and 16 ms | 9 and 16 ms |",
        "| times the best of the version before | 2.00 |  |",
        "| failed requests while the model is replaced | 0 (29 times) |  |",
    ):
        assert row in text
    assert "kills" not in text, "only what was measured"


def test_what_was_measured_of_serving_by_itself_joins_the_same_table() -> None:
    flood = {"share_of_highest": 0.934, "p99_ms": 512.3, "unanswered": 0}
    nothing = {"share_of_highest": 0.0, "p99_ms": None, "unanswered": 7}
    floods = {"closed_loop": flood, "paced_2x": flood, "paced_4x": nothing}
    kills = {"kills": 1000, "store": "sqlite", "acknowledged": 123456, "lost": 0, "doubled": 0}
    lines: list[Line] = [
        {"overload": {"this": dict.fromkeys(("small", "beauty", "by_user"), floods)}},
        {"kills": {"this": kills}},
        {"kills": {"this": {**kills, "store": "postgresql", "lost": 2}}},
    ]
    text = table_text(serving_table(lines))
    for row in (
        "| 2,000 connections, 1,000 items, closed loop | 93% of the highest goodput, p99 512 ms, 0 unanswered |",
        "| 2,000 connections, 54,542 items, four times the load "
        "| 0% of the highest goodput, nothing answered, 7 unanswered |",
        "| acknowledged events lost or doubled by 1,000 kills, sqlite | 0 of 123,456 |",
        "| acknowledged events lost or doubled by 1,000 kills, postgresql | 2 of 123,456 |",
    ):
        assert row in text


def test_the_service_is_told_in_a_sentence_once_it_was_measured() -> None:
    usual: Line = {"throughput": {"this": {"per_second": {"32": 5123}, "p99_ms": 9.4}}}
    flood = {"share_of_highest": 0.934, "p99_ms": 512.3}
    overload: Line = {"overload": {"this": {"beauty": {"paced_4x": flood}}}}
    assert serving_sentence([usual]) == ""
    sentence = serving_sentence([usual, overload])
    assert "5,123 requests a second among 54,542 items, 99% of them within 9 ms" in sentence
    assert sentence.endswith("it goes on at 93% of its best, within 0.5 s.")


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
        "share_of_arithmetic_limit": 0.123,
        "ratio": 9.2,
    }
    beside_a_peer = {**line, "batch_size": 512, "hf": {"samples_per_second": 2918.0, "ratio": 10.0}}
    *_, alone = table_text(training_table([line])).splitlines()
    assert alone == "| ML-1m, 3,416 items, N=200 | 64 | 256 | a card | 29,180 | 12% | 9.2 | 10.0 |"
    head, _, first, second = table_text(training_table([line, beside_a_peer])).splitlines()
    assert "| times the plain loop | times transformers | times the paper |" in head
    assert first == "| ML-1m, 3,416 items, N=200 | 64 | 256 | a card | 29,180 | 12% | 9.2 |  | 10.0 |"
    assert second == "| ML-1m, 3,416 items, N=200 | 64 | 512 | a card | 29,180 | 12% | 9.2 | 10.0 | 10.0 |"


def test_what_production_costs_is_told_part_by_part_and_the_last_measurement_counts() -> None:
    machine = {"cores": 2}
    first = {"production": machine, "auto": {"users": 2000, "minutes": 10, "seconds": 300.0}}
    again = {
        "production": machine,
        "auto": {"users": 2000, "minutes": 10, "seconds": 222.2},
        "filters": {"items": 500, "milliseconds": 0.25, "shares": {"half": 1.05}},
    }
    text = table_text(production_table([first, again]))
    assert "| 2 cores | measured |" in text
    assert "| `auto`, 2,000 users, 10 minutes | 222 s |" in text
    assert "300 s" not in text
    assert "| a request among 500 items, one core, half | 1.05 of that |" in text


def test_a_cpu_is_told_by_what_one_waits_for() -> None:
    start = {"cpu": "start", "device": "a processor", "seconds": {"stats": 0.251}}
    step: Line = {
        "cpu": "training",
        "device": "a processor",
        "model": "bert4rec+",
        "preset": None,
        "users": 2000,
        "milliseconds": {"now": {"step": 18.04}},
    }
    beside = {**step, "preset": "demo", "before": "version 0.1", "times": {"step": 1.5}}
    search = {"cpu": "search", "device": "a processor", "vectors": "random", "items": 1_000_000}
    search |= {"quantised_ms": 3.21, "times": 3.0, "equal_answers": 10_000, "histories": 10_000}
    *_, first, second, third, last = table_text(cpu_table([start, step, beside, search])).splitlines()
    assert first == "| stats | 0.25 s | a processor |"
    assert second == "| a training step, bert4rec+, 2,000 users, no preset | 18.0 ms | a processor |"
    assert "preset demo | 18.0 ms, 1.50 times as fast as version 0.1 |" in third
    assert "| 3.2 ms, 3.0 times as fast as a plain search; 10,000 of 10,000 answers equal |" in last
