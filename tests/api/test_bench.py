import pytest

from bert4rec.api import bench
from bert4rec.api.bench import bench_training
from bert4rec.cli.bench_command import train as bench_train
from bert4rec.training.device import place


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(bench, "MIN_STEPS", 2)


def test_the_ratio_is_how_many_times_faster_ours_is_than_the_plain_loop() -> None:
    found = bench_training("ml-1m", place("cpu"), dim=8, batch_size=2, num_items=5000)
    assert found["ratio"] == found["samples_per_second"] / found["plain"]["samples_per_second"]
    assert found["samples_per_second"] == pytest.approx(2000 / found["step_milliseconds"])
    assert found["tokens_per_second"] == pytest.approx(
        found["average_tokens"] * found["samples_per_second"], rel=0.01
    )
    assert (found["shape"], found["items"], found["max_length"]) == ("ml-1m", 5000, 200)
    assert found["peak_memory_gib"] > 0


def test_without_the_plain_loop_there_is_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    bench_train(dim=8, batch_size=2, device="cpu", plain=False)
    told = capsys.readouterr().out
    assert "samples/s" in told
    assert "ratio" not in told
