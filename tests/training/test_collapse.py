"""A training that comes to nothing is noticed, said, and started over with half the learning rate."""

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.errors import DataError
from bert4rec.models.model import SequentialModel
from bert4rec.models.sasrec import SASRec
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tasks.next_item import NextItemTask
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.collapse import CollapsedError, why_collapsed, why_fallen_behind
from bert4rec.training.device import Placement
from bert4rec.training.launch import refit_run
from bert4rec.training.loop import Interrupted, TrainingProgress
from bert4rec.training.reporting.watch import Throughput
from bert4rec.training.run import Plan, Run, Stage
from bert4rec.training.specs import MODELS, ModelSpec
from bert4rec.training.train import RunContext, train
from tests.conftest import log_of
from tests.training.tiny import CPU, Witness, after, tiny_config, train_tiny

POPULAR = 0.1


def marks(values: list[float], losses: list[float]) -> TrainingProgress:
    """A validation every hundred steps; values are multiples of popularity's."""
    history: list[dict[str, Any]] = [
        {"step": 100 * number, "value": value * POPULAR, "loss": loss}
        for number, (value, loss) in enumerate(zip(values, losses, strict=True), start=1)
    ]
    best = int(np.argmax(values))
    return TrainingProgress(100 * len(values), stale=len(values) - 1 - best, history=history)


def steps_until_collapse(
    values: list[float], losses: list[float], *, steps: int, warmup: int = 100, patience: int = 50
) -> int | None:
    config = TrainingConfig(steps=steps, warmup_steps=warmup, patience=patience)
    for count in range(1, len(values) + 1):
        if why_collapsed(marks(values[:count], losses[:count]), config, POPULAR):
            return 100 * count
    return None


FALLING = [6.0, 5.9, 5.8, 5.6, 5.4, 5.2, 5.0, 4.9]
FLAT = [5.98, 5.88, 5.86, 5.87, 5.86, 5.86, 5.85, 5.86]


def test_staying_at_popularity_is_a_collapse_once_half_of_the_steps_are_over() -> None:
    """As measured on the built-in world, at ten times the learning rate that it takes."""
    values = [0.98, 0.96, 0.98, 0.98, 0.98, 1.01, 1.02, 0.98]
    assert steps_until_collapse(values, FLAT, steps=800) == 400
    assert steps_until_collapse(values, FLAT, steps=1200) == 600


def test_it_is_one_where_patience_ends_the_training_before() -> None:
    values = [0.98, 0.96, 0.95, 0.94, 0.93, 0.92, 0.91, 0.90]
    assert steps_until_collapse(values, FLAT, steps=2000) is None
    assert steps_until_collapse(values, FLAT, steps=2000, patience=3) == 400


def test_a_model_that_leaves_popularity_late_has_not_collapsed() -> None:
    """As measured on the built-in world, whose first 400 of 2,000 steps look like a collapse."""
    values = [1.00, 0.98, 1.01, 1.00, 1.57, 2.15, 2.83, 3.47]
    losses = [5.98, 5.86, 5.86, 5.86, 5.82, 5.63, 5.47, 5.31]
    assert steps_until_collapse(values, losses, steps=2000) is None


def test_a_model_that_learns_slowly_has_not_collapsed() -> None:
    values = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert steps_until_collapse(values, FALLING, steps=800) is None


def test_a_loss_that_only_falls_from_where_it_was_blown_up_to_does_not_save_a_training() -> None:
    values = [0.3, 0.3, 0.4, 0.5, 0.7, 0.7, 0.9, 0.9]
    losses = [4.8, 7.4, 5.4, 4.3, 4.0, 3.8, 3.7, 3.6]
    assert steps_until_collapse(values, losses, steps=800) == 400


def test_falling_back_to_popularity_twice_in_a_row_is_a_collapse() -> None:
    """As measured on Beauty at three times the learning rate that it takes."""
    values = [1.5, 1.5, 1.6, 1.0, 1.0, 1.6, 1.7, 2.6]
    assert steps_until_collapse(values, [7.0, 6.9, 6.8, 7.2, 7.2, 6.9, 6.8, 6.7], steps=9000) == 500
    once = [1.5, 1.5, 1.6, 1.0, 1.7, 1.6, 1.7, 2.6]
    assert steps_until_collapse(once, [7.0, 6.9, 6.8, 7.2, 6.8, 6.7, 6.7, 6.7], steps=800) is None


def test_a_model_that_over_fits_until_it_is_no_better_than_popularity_has_not_collapsed() -> None:
    values = [2.0, 1.9, 1.7, 1.5, 1.3, 1.1, 1.0, 0.9]
    assert steps_until_collapse(values, FALLING, steps=800) is None


def test_what_happens_before_the_end_of_the_warm_up_does_not_count() -> None:
    values = [0.9] * 8
    assert steps_until_collapse(values, FLAT, steps=800, warmup=500) == 800


LIVELY = ("steps=80", "validate_every=8", "warmup_steps=8", "batch_size=32")
TOO_HIGH, FAR_TOO_HIGH, NOT_EVEN_A_NUMBER = 0.1, 1.0, 1e30
"""Learning rates. At the first, BERT4Rec collapses, but not at half of it; at the second, not even a quarter helps."""


def settings_with(learning_rate: float) -> list[str]:
    return [f"training.{each}" for each in (*LIVELY, f"learning_rate={learning_rate}")]


def train_at(learning_rate: float, dataset: Dataset, folder: Path, **options: Any) -> Run:
    return train_tiny(dataset, folder, *settings_with(learning_rate), seed=2, **options)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Each item follows the one before it, and the first are the most popular: clear what is to be learned."""
    first = np.random.default_rng(0).geometric(0.06, size=160) % 40
    histories = [list(range(item, item + 9)) for item in first]
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=30)
    return prepare(log_of(histories), tmp_path_factory.mktemp("data") / "dataset", name="ring", recipe=recipe)


@pytest.fixture(scope="module")
def rescued(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_at(TOO_HIGH, dataset, tmp_path_factory.mktemp("rescued") / "run")


def assert_same_weights(run: Run, other: Run) -> None:
    for name in ("selection.safetensors", "model.safetensors"):
        assert (run.path / name).read_bytes() == (other.path / name).read_bytes()


def test_a_training_that_collapses_starts_over_with_half_the_learning_rate(
    dataset: Dataset, rescued: Run, tmp_path: Path
) -> None:
    valid, test = rescued.result["lines"]
    (restart,) = valid["restarts"]
    assert (restart["stage"], restart["learning_rate"]) == ("selection", TOO_HIGH / 2)
    assert "no better than the" in restart["reason"]
    assert test["restarts"] == [restart], "the refit follows from it"
    assert valid["config"]["training"]["learning_rate"] == TOO_HIGH, "as the user asked"
    assert f"The selection collapsed at step {restart['step']}" in rescued.notes[1], "behind what is unknown"
    by_hand = train_at(TOO_HIGH / 2, dataset, tmp_path / "run")
    assert by_hand.result["lines"][0]["restarts"] == []
    assert by_hand.metrics == rescued.metrics, "of the refit too: it takes the lower learning rate"
    assert valid["metrics"]["sampled"]["NDCG@10"] > 1.2 * rescued.result["standing"]["popular"]


def test_both_attempts_are_told_apart_in_the_history(rescued: Run) -> None:
    history = rescued.history.to_polars().filter(stage="selection")
    first, second = (history.filter(attempt=number)["step"].to_list() for number in (1, 2))
    (restart,) = rescued.result["lines"][0]["restarts"]
    assert first == list(range(8, restart["step"] + 1, 8))
    assert second == list(range(8, 81, 8))
    assert history["seconds"].is_sorted()
    assert [each["step"] for each in rescued.result["lines"][0]["validations"]] == second


def test_the_third_collapse_is_let_be_and_warned_about(dataset: Dataset, tmp_path: Path) -> None:
    witness = Witness()
    run = train_at(FAR_TOO_HIGH, dataset, tmp_path / "run", refit=False, witness=witness)
    assert [each["learning_rate"] for each in run.result["lines"][0]["restarts"]] == [0.5, 0.25]
    assert witness.stages == [("selection", 80)] * 3
    *collapses, little = (text for text in witness.warned if "popular items" in text)
    assert len(collapses) == 2
    assert collapses[0].startswith("The selection collapsed at step ")
    assert collapses[0].endswith("It was started over with half the learning rate, 0.5.")
    assert "to everybody" in little


def test_a_loss_that_is_no_number_is_noticed_and_in_the_end_refused(dataset: Dataset, tmp_path: Path) -> None:
    witness = Witness()
    with pytest.raises(DataError, match="it has diverged"):
        train_at(NOT_EVEN_A_NUMBER, dataset, tmp_path / "run", witness=witness)
    found = [text for text in witness.warned if "no longer" in text]
    assert [text.partition("the learning rate, ")[2] for text in found] == ["5e+29.", "2.5e+29."]


@pytest.mark.parametrize("learning_rate", [TOO_HIGH, NOT_EVEN_A_NUMBER])
def test_where_starting_over_is_no_use_a_collapse_ends_the_training(
    dataset: Dataset, tmp_path: Path, learning_rate: float
) -> None:
    config, witness = tiny_config(*settings_with(learning_rate)), Witness()
    plan = Plan.for_dataset(dataset, "bert4rec", config, preset=None, seed=2, split=None)
    around = RunContext(Placement(CPU, None), witness, may_restart=False)
    with pytest.raises(CollapsedError, match=r"no better than the|no longer"):
        train(dataset, tmp_path / "run", plan, around)
    assert witness.stages == [("selection", 80)]


@pytest.mark.parametrize("users", [40, 160])
def test_where_few_are_asked_or_popularity_is_hard_to_beat_nothing_is_started_over(
    dataset: Dataset, tmp_path: Path, users: int
) -> None:
    """What comes next does not depend on what came before, so no model is much better than popularity."""
    rng = np.random.default_rng(1)
    share = np.geomspace(1, 0.01, 30) / np.geomspace(1, 0.01, 30).sum()
    histories = [rng.choice(30, 8, replace=False, p=share).tolist() for _ in range(users)]
    if users == 40:
        histories = [dataset.sequences[each : each + 9].tolist() for each in dataset.offsets[:users]]
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=20)
    few = prepare(log_of(histories), tmp_path / "few", name="few", recipe=recipe)
    witness = Witness()
    run = train_at(FAR_TOO_HIGH, few, tmp_path / "run", refit=False, witness=witness)
    assert run.result["lines"][0]["restarts"] == []
    assert [text for text in witness.warned if "to everybody" in text]


class Killed(BaseException):
    """Ends a training as `kill -9` does: nothing more is written."""


class Killer(Witness):
    """Kills at a step of an attempt."""

    def __init__(self, stage: Stage, attempt: int, step: int) -> None:
        super().__init__()
        self.moment = stage, attempt, step

    def progress(self, stage: Stage, progress: TrainingProgress, pace: Throughput) -> None:
        if (stage, len(progress.restarts) + 1, progress.step) == self.moment:
            raise Killed


@pytest.mark.parametrize("moment", [("selection", 2, 8), ("selection", 2, 48)])
def test_killed_in_any_attempt_it_ends_with_the_same_weights(
    dataset: Dataset, rescued: Run, tmp_path: Path, moment: tuple[Stage, int, int]
) -> None:
    with pytest.raises(Killed):
        train_at(TOO_HIGH, dataset, tmp_path / "run", witness=Killer(*moment))
    resumed = train_at(TOO_HIGH, dataset, tmp_path / "run")
    assert_same_weights(resumed, rescued)
    ours, theirs = (run.history.to_polars().drop("seconds") for run in (resumed, rescued))
    assert ours.equals(theirs)
    assert [line["restarts"] for line in resumed.result["lines"]] == [
        line["restarts"] for line in rescued.result["lines"]
    ]


def test_interrupted_in_the_second_attempt_it_goes_on_with_that(
    dataset: Dataset, rescued: Run, tmp_path: Path
) -> None:
    witness = Witness()
    # In the first attempt, each validation of 160 users is one batch more.
    with pytest.raises(Interrupted):
        train_at(TOO_HIGH, dataset, tmp_path / "run", should_stop=after(110))
    resumed = train_at(TOO_HIGH, dataset, tmp_path / "run", witness=witness)
    assert not [text for text in witness.warned if "collapsed" in text]
    assert_same_weights(resumed, rescued)


def test_a_selection_that_was_started_over_is_refitted_later_with_its_learning_rate(
    dataset: Dataset, rescued: Run, tmp_path: Path
) -> None:
    selected = train_at(TOO_HIGH, dataset, tmp_path / "selected", test=False)
    final = refit_run(selected, tmp_path / "final", dataset=dataset, device="cpu")
    assert final.metrics == rescued.metrics
    assert final.notes == rescued.notes


class Fragile(NextItemTask):
    """Made for the second time, which is for the refit, its loss is no number, or its gradient points uphill."""

    made = 0
    slope: ClassVar[float]

    def __init__(self, model: SequentialModel, inputs: TaskInputs) -> None:
        super().__init__(model, inputs)
        type(self).made += 1
        self.is_sound = self.made != 2

    def loss(self, batch: Tensor) -> Tensor:
        loss = super().loss(batch)
        return loss if self.is_sound else loss.detach() + self.slope * (loss - loss.detach())


@pytest.mark.parametrize(
    ("slope", "reason"),
    [
        (torch.nan, "the loss is no longer a number"),
        (-0.01, r"the loss is .*, but in the selection it was .*"),
    ],
)
def test_a_refit_that_goes_wrong_is_started_over_too(
    slope: float, reason: str, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fragile, "made", 0)
    monkeypatch.setattr(Fragile, "slope", slope, raising=False)
    monkeypatch.setitem(MODELS, "sasrec", ModelSpec("SASRec", SASRec, Fragile))
    valid, test = train_at(0.02, dataset, tmp_path / "run", model="sasrec").result["lines"]
    assert valid["restarts"] == []
    (restart,) = test["restarts"]
    assert (restart["stage"], restart["learning_rate"]) == ("refit", 0.01)
    assert re.fullmatch(reason, restart["reason"])
    assert test["metrics"]["sampled"]["NDCG@10"] > 0.4


def test_a_refit_is_compared_with_what_the_selection_had_learned_at_the_same_step() -> None:
    def marks_of(*losses: float) -> list[dict[str, Any]]:
        return [{"step": 100 * number, "loss": loss} for number, loss in enumerate(losses, start=1)]

    def why(*losses: float, warmup: int = 100, steps: int = 1000) -> str:
        return why_fallen_behind(marks_of(*losses), marks_of(7.0, 6.0, 5.0, 4.5, 4.2), warmup, steps)

    assert why(7.0, 6.9, 6.8, 6.7)
    assert not why(7.0, 6.2, 5.3, 4.9), "a little above"
    assert not why(7.0, 6.9, 6.8, 6.7, warmup=200), "only twice after the warm-up"
    assert why(7.0, 6.9, 6.8, 6.7, warmup=200, steps=400), "but there is nothing more to come"
    assert not why(7.0, 6.9, 6.8, 5.0), "it comes back"
    assert not why_fallen_behind(marks_of(7.3, 7.2, 7.1), marks_of(7.0, 6.99, 6.98), 0, 300), (
        "nothing learned"
    )


def test_an_experiment_shows_what_becomes_of_its_variant(dataset: Dataset, tmp_path: Path) -> None:
    config, witness = tiny_config(*settings_with(NOT_EVEN_A_NUMBER)), Witness()
    plan = Plan.for_dataset(
        dataset, "bert4rec", config, preset=None, seed=1, split=None, variant="as it is, but called otherwise"
    )
    with pytest.raises(DataError, match="it has diverged"):
        train(dataset, tmp_path / "run", plan, RunContext(Placement(CPU, None), witness), MODELS["bert4rec"])
    assert not [text for text in witness.warned if "collapsed" in text]
