"""What was measured beyond one data set, and what a step would cost on several GPUs, on paper."""

import pytest

from bert4rec.paper.reporting.cost_model import BETWEEN, INSIDE, Job, step_cost
from bert4rec.paper.reporting.report_text import table_text
from bert4rec.paper.reporting.summary_scale import larger_table, projection_table

TINY = Job(items=1_000, dim=8, layers=1, samples=4, tokens=5, targets=2)


def test_arithmetic_is_that_of_the_encoder_and_of_targets_against_items() -> None:
    dense, attention = 12 * 8 * 8, 2 * 5 * 8
    assert TINY.flops == 6 * 4 * (5 * (dense + attention) + 2 * 8 * 1_000)


def test_a_sampled_softmax_costs_what_it_draws_whatever_the_catalogue() -> None:
    costs = {Job(items, negatives=100).flops for items in (10**6, 10**8)}
    assert len(costs) == 1
    assert Job(100).flops == costs.pop()


def test_one_gpu_exchanges_nothing_and_holds_one_table() -> None:
    cost = step_cost(TINY, 1, 1e9)
    assert cost.exchanging == 0
    assert cost.learning_bytes == cost.validating_bytes == 4.5 * 4 * 1_000 * 8


def test_what_two_gpus_send_each_other_can_be_counted_by_hand() -> None:
    rows_there_and_back = 2 * 4 * 5 * 8 / 2
    gradients = 2 * 12 * 8 * 8 / 2
    hidden_there_and_back = 2 * 4 * 2 * 8
    assert TINY.exchanged(2) == 4 * (rows_there_and_back + gradients + hidden_there_and_back)


def test_more_gpus_divide_the_table_but_each_validates_with_the_whole_of_it() -> None:
    one, eight = (step_cost(TINY, gpus, 1e9) for gpus in (1, 8))
    assert eight.learning_bytes == one.learning_bytes / 8
    assert eight.validating_bytes == eight.learning_bytes + 4 * 1_000 * 8


def test_behind_one_machine_the_network_is_what_carries() -> None:
    inside, outside = (step_cost(TINY, gpus, 1e9) for gpus in (8, 9))
    assert inside.exchanging == TINY.exchanged(8) / INSIDE
    assert outside.exchanging == TINY.exchanged(9) / BETWEEN


def test_no_step_is_shorter_than_the_shortest_that_was_measured() -> None:
    assert step_cost(TINY, 1, 1e30, shortest=0.5).computing == 0.5


@pytest.mark.parametrize("device", ["a processor", "NVIDIA H200"])
def test_projections_are_made_from_what_a_gpu_was_measured_at_alone(device: str) -> None:
    line = {"device": device, "items": 1_000_000, "share_of_arithmetic_limit": 0.1, "step_milliseconds": 1.0}
    text = table_text(projection_table([line]))
    assert ("100 million items, sampled softmax, 64 GPUs" in text) is ("NVIDIA" in device)


def test_what_was_measured_stands_in_one_table_and_the_last_time_counts() -> None:
    processes = {
        "scale": "processes",
        "like": "ml-1m",
        "model": "bert4rec",
        "settings": ["model.dim=64"],
        "cores": 2,
        "processes": 2,
        "samples_per_second": {"1": 400.0, "2": 600.0},
        "ratio": 1.5,
    }
    prepared = {
        "scale": "prepare",
        "actions": 1_000_000_000,
        "cores": 2,
        "seconds": 1800.0,
        "shared": True,
        "peak_gib": 7.94,
        "peak_disk_gib": 41.2,
    }
    again = {**processes, "samples_per_second": {"1": 400.0, "2": 720.0}, "ratio": 1.8}
    text = table_text(larger_table([processes, prepared, {"scale": "generate"}, again]))
    assert text.splitlines()[2:] == [
        "| `torchrun`, 2 processes on 2 cores, ml-1m's shape, bert4rec, model.dim=64 "
        "| 720 samples/s, 1.80 times one process (400) |",
        "| `prepare`, 1,000 million actions, 2 cores | at most 30 min, 7.9 GiB at most, 41 GiB of disk |",
    ]


def test_data_on_the_disk_and_a_sampled_softmax_stand_beside_what_they_are_compared_with() -> None:
    streamed = {
        "scale": "streamed",
        "actions": 200_000_000,
        "like": "ml-1m",
        "dim": 64,
        "batch_size": 256,
        "device": "a card",
        "ratio": 0.962,
    }
    sampled = {
        "scale": "sampled softmax",
        "items": 1_000_000,
        "negatives": 65_536,
        "model": "bert4rec+",
        "dim": 64,
        "device": "a card",
        "exact": {"mean": 0.4},
        "sampled": {"mean": 0.396},
        "loss": 0.01,
        "best": 0.45,
    }
    text = table_text(larger_table([streamed, sampled]))
    assert "| training, 200 million actions in a mapped file, ml-1m's shape, d=64, batch 256 " in text
    assert "0.96 times the steps a second of data on the device (a card)" in text
    assert "NDCG@10 0.3960 (-1.0%), exact 0.4000, the best possible 0.4500 (a card)" in text
    nothing = {**sampled, "exact": {"mean": 0.0}, "loss": None}
    assert "NDCG@10 0.3960, exact 0.0000" in table_text(larger_table([nothing]))
