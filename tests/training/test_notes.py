"""What a run notes of its own course: whether it was resumed, who else used the device, how long it will take."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.evaluation import criterion
from bert4rec.training.device import Placement
from bert4rec.training.loop import Interrupted, TrainingProgress
from bert4rec.training.reporting.watch import Throughput
from bert4rec.training.run import Stage
from tests.conftest import MakeDataset
from tests.training.tiny import Witness, after, random_histories, train_tiny


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


def test_a_run_that_was_interrupted_says_so(dataset: Dataset, tmp_path: Path) -> None:
    assert [line["resumed"] for line in train_tiny(dataset, tmp_path / "whole").result["lines"]] == [
        False
    ] * 2
    with pytest.raises(Interrupted):
        train_tiny(dataset, tmp_path / "run", should_stop=after(5))
    assert [line["resumed"] for line in train_tiny(dataset, tmp_path / "run").result["lines"]] == [True] * 2


def test_a_device_that_was_shared_at_one_validation_was_shared(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True])
    monkeypatch.setattr(Placement, "is_shared", property(lambda _: next(answers, False)))
    valid, test = train_tiny(dataset, tmp_path / "run").result["lines"]
    assert (valid["device_shared"], test["device_shared"]) == (True, False)


def test_of_a_processor_nobody_can_tell_whether_it_was_shared(dataset: Dataset, tmp_path: Path) -> None:
    assert [line["device_shared"] for line in train_tiny(dataset, tmp_path / "run").result["lines"]] == [
        None
    ] * 2


@dataclass
class Timekeeper(Witness):
    left: list[float] = field(default_factory=list)

    def progress(self, stage: Stage, progress: TrainingProgress, pace: Throughput) -> None:
        if stage == "selection" and progress.step % 3 == 0:
            self.left.append(pace.seconds_left)


def test_the_time_left_has_all_in_it_that_is_still_to_come(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve steps of a second and a validation of a hundred after every third; a refit as long, and two judgings."""
    now, witness = [0.0], Timekeeper()

    def let_pass(seconds: float) -> bool:
        now[0] += seconds
        return False

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(criterion, "judge_among_negatives", lambda *_: {"NDCG@10": float(let_pass(100.0))})
    train_tiny(dataset, tmp_path / "run", witness=witness, should_stop=lambda: let_pass(1.0))
    ends = 12.0 + 2 * 100.0
    assert witness.left == pytest.approx([309.0 + ends, 206.0 + ends, 103.0 + ends, ends])
