from importlib.util import find_spec

import pytest

from bert4rec import extras
from bert4rec.api import timing
from bert4rec.api.bench import bench_training
from bert4rec.api.peers import transformers_model
from bert4rec.cli.bench_command import train as bench_train
from bert4rec.errors import UsageError
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.settings.networks import ModelConfig
from bert4rec.training.device import place


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(timing, "MIN_STEPS", 2)


def test_the_ratio_is_how_many_times_faster_ours_is_than_the_plain_loop() -> None:
    found = bench_training("ml-1m", place("cpu"), dim=8, batch_size=2, num_items=5000)
    assert found["ratio"] == found["samples_per_second"] / found["plain"]["samples_per_second"]
    assert found["samples_per_second"] == pytest.approx(2000 / found["step_milliseconds"])
    assert found["tokens_per_second"] == pytest.approx(
        found["average_tokens"] * found["samples_per_second"], rel=0.01
    )
    assert (found["shape"], found["items"], found["max_length"]) == ("ml-1m", 5000, 200)
    assert found["negatives"] == 0, "the exact softmax, up to a million items"
    assert found["peak_memory_gib"] > 0


def test_without_the_plain_loop_there_is_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    bench_train(dim=8, batch_size=2, items=5000, negatives=100, device="cpu", plain=False)
    told = capsys.readouterr().out
    assert "sampled, 100 negatives" in told
    assert "samples/s" in told
    assert "ratio" not in told


def test_a_peer_is_timed_in_the_same_run_with_the_same_number_of_samples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = bench_training("ml-1m", place("cpu"), dim=8, batch_size=2, plain=False, peer="hf")
    peer = found["hf"]
    assert peer["ratio"] == found["samples_per_second"] / peer["samples_per_second"]
    assert peer["samples_per_second"] == pytest.approx(2000 / peer["step_milliseconds"])
    bench_train(dim=8, batch_size=2, device="cpu", plain=False, peer="hf")
    assert f"transformers {peer['version']}, samples/s" in capsys.readouterr().out


def test_the_peer_is_as_large_as_ours() -> None:
    """But for its norms of the output, its one segment, and a bias of padding and of [mask]."""
    size = ModelConfig(dim=64, heads=2, layers=2, max_length=50)
    ours, theirs = BERT4Rec(3000, size), transformers_model(3000, size)
    numbers = [sum(each.numel() for each in model.parameters()) for model in (ours, theirs)]
    assert numbers[1] == pytest.approx(numbers[0], rel=0.005)


def test_a_peer_that_is_not_installed_is_asked_for_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "transformers" else find_spec(name))
    with pytest.raises(UsageError, match="transformers is required: pip install transformers"):
        bench_train(device="no such device", peer="hf")
