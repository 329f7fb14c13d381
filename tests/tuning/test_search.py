"""Real searches of a few trials: what is found is written down, taken by `train`, and told honestly."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bert4rec
from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.data.splits import Part, Split, Targets
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.evaluation.protocol import Ranks
from bert4rec.evaluation.yardsticks import Yardsticks
from bert4rec.settings.config import make_config, read_config
from bert4rec.settings.objectives import RunConfig
from bert4rec.tasks import pairs
from bert4rec.training.collapse import CollapsedError
from bert4rec.training.plan import Plan, flat
from bert4rec.tuning.budget import Budget, Costs
from bert4rec.tuning.outcome import Tuning
from bert4rec.tuning.space import RANGES, OneOf
from bert4rec.tuning.trials import GivenUp, Trainer
from tests.conftest import MakeDataset, log_of
from tests.training.tiny import random_histories
from tests.tuning.tiny import Witness, tiny_shop

FEW_STEPS = {"training.steps": 40, "training.batch_size": 64}
"""So few that the default has hardly begun to learn: higher learning rates, as presets have them, are better."""


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Any:
    """Pairs are drawn two million numbers at a time; a few steps need a few hundred."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "BLOCK_NUMBERS", 1 << 12)
        yield


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return tiny_shop(tmp_path_factory.mktemp("shop") / "dataset")


def tune(dataset: Dataset, folder: Path, trials: int, **options: Any) -> Tuning:
    """As fast as it goes: neither the number of trials nor that of the seeds depends on the time."""
    return bert4rec.tune(dataset, folder, 10, trials=trials, device="cpu", **options)


@pytest.fixture(scope="module")
def witness() -> Witness:
    return Witness()


@pytest.fixture(scope="module")
def found(shop: Dataset, witness: Witness, tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """A search that finds something. It must not look at the test items, nor count what is popular twice."""
    targets, measure, counted = Split.targets, Yardsticks.measure, []

    def validation_only(split: Split, part: Part) -> Targets:
        assert part == "valid"
        return targets(split, part)

    def once(*data: Any) -> Yardsticks:
        counted.append(data)
        assert len(counted) == 1
        return measure(*data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Split, "targets", validation_only)
        patch.setattr(Yardsticks, "measure", once)
        folder = tmp_path_factory.mktemp("found") / "tuned"
        return tune(shop, folder, 8, model="fpmc", settings=FEW_STEPS, listener=witness)


def test_a_better_setting_is_found_and_confirmed_with_fresh_seeds(found: Tuning) -> None:
    default, best = found.trials[0], found.trials[found.best]
    assert default.changes == {}
    assert best.value and default.value and best.value > default.value
    assert found.worth and 0 < found.worth["low"] < found.worth["difference"] < found.worth["high"]
    assert found.worth["seeds"] == 3
    assert found.changes == best.changes
    assert found.sentence.startswith("Better than the default by ")
    assert {path.name for path in (found.path / "ranks").iterdir()} == {
        *(f"0-{seed}.npz" for seed in (1, 2, 3)),
        *(f"{found.best}-{seed}.npz" for seed in (2, 3, 4)),
    }, "the default's trial counts, that of the best does not"


def test_the_file_holds_all_settings_is_taken_by_train_and_says_how_it_was_found(
    found: Tuning, shop: Dataset, tmp_path: Path
) -> None:
    assert read_config("fpmc", found.file) == found.settings
    config = make_config("fpmc", tomllib.loads(found.file.read_text()))
    assert config.as_dict() == found.settings
    assert found.settings["training"]["steps"] == 40
    run = bert4rec.train(shop, tmp_path / "run", model="fpmc", config=found.file, test=False, device="cpu")
    assert run.plan.config == config
    head = [line for line in found.file.read_text().splitlines() if line.startswith("#")]
    assert head[0] == (
        f"# Settings of fpmc for tiny shop (checksum {shop.checksum}), found by `bert4rec tune`."
    )
    assert head[1].startswith("# 8 trials in ")
    assert head[2] == f"# {found.sentence}"


def test_every_trial_is_kept_as_a_line_and_as_a_row(found: Tuning) -> None:
    lines = [json.loads(line) for line in (found.path / "trials.jsonl").read_text().splitlines()]
    assert lines == [vars(trial) for trial in found.trials]
    table = found.to_polars()
    assert table.height == 8
    assert table["training.learning_rate"].dtype == pl.Float64
    assert json.loads((found.path / "outcome.json").read_text()) == json.loads(json.dumps(found.as_dict()))


def test_each_trial_is_told_in_a_line_with_the_best_so_far_and_the_time_left(
    found: Tuning, witness: Witness
) -> None:
    trials = [line for line in witness.said if line.startswith("Trial ")]
    assert [line.partition(":")[0] for line in trials[:8]] == [f"Trial {number}" for number in range(8)]
    assert trials[0].endswith("left. The default.")
    best = trials[found.best]
    value = f"{found.trials[found.best].value:.4f}"
    assert re.search(rf"NDCG@10 {value}; the best so far; 0:\d\d:\d\d left\. .*learning_rate=", best)
    assert any(now.startswith("trial 1: step ") and "best so far" in now for now in witness.now)


def test_what_mattered_is_told_and_drawn(found: Tuning) -> None:
    assert sum(found.importance.values()) == pytest.approx(1)
    assert set(found.importance) <= set(found.to_polars().columns) | {"training.weight_decay"}
    assert found.figure.read_bytes().startswith(b"\x89PNG")


def test_nothing_else_is_left_of_the_trials(found: Tuning) -> None:
    names = {path.name for path in found.path.iterdir()}
    made = {
        "tune.json",
        "study.jsonl",
        "ranks",
        "settings.toml",
        "trials.jsonl",
        "tuning.png",
        "outcome.json",
    }
    assert names == made


def test_a_finished_search_goes_on_if_it_is_asked_for_more(shop: Dataset, found: Tuning) -> None:
    before = found.trials
    with pytest.raises(UsageError, match="already exists"):
        tune(shop, found.path, 9, model="fpmc")
    more = tune(shop, found.path, 9, resume=True)
    assert more.trials[:8] == before
    assert [trial.number for trial in more.trials] == list(range(9))
    assert more.settings["training"]["batch_size"] == 64, "what was fixed stays so"
    with pytest.raises(UsageError, match="`resume=True` keeps the settings of the run, which has `seed=1`"):
        tune(shop, found.path, 10, resume=True, seed=2)


def test_a_search_goes_on_with_the_settings_it_was_begun_with_alone(shop: Dataset, found: Tuning) -> None:
    with pytest.raises(UsageError, match=r"that was without `model\.dim` among its `settings`"):
        tune(shop, found.path, 8, resume=True, settings={"model.dim": 64})
    with pytest.raises(UsageError, match=r"which has `settings=\{'training\.steps': 40\}`"):
        tune(shop, found.path, 8, resume=True, settings={"training.steps": 50})
    assert tune(shop, found.path, 8, resume=True, settings=["training.steps=40"]).trials[:8] == found.trials


def test_settings_that_fail_with_other_seeds_are_worth_nothing(
    shop: Dataset, found: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(found.path, tmp_path / "tuned")
    for path in folder.glob(f"ranks/{found.best}-*.npz"):
        path.unlink()

    def collapse(*_: object) -> Ranks:
        raise CollapsedError("the loss is no longer a number")

    monkeypatch.setattr(Trainer, "train", collapse)
    again = tune(shop, folder, 8, resume=True)
    assert again.best == found.best
    assert again.worth and again.worth["high"] < 0
    assert again.sentence.startswith(f"No better than the default: trial {found.best} differs by -0.")
    assert again.changes == {}


def test_without_the_time_to_confirm_it_the_best_trial_is_not_taken(
    shop: Dataset, found: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(found.path, tmp_path / "tuned")
    for seed in (3, 4):
        (folder / "ranks" / f"{found.best}-{seed}.npz").unlink()

    def run_out_of_time(*_: object) -> Ranks:
        raise GivenUp("out of time")

    monkeypatch.setattr(Trainer, "train", run_out_of_time)
    again = tune(shop, folder, 8, resume=True)
    assert again.sentence.startswith(f"Not sure: trial {found.best} has NDCG@10 ")
    assert again.sentence.endswith("The settings are those of the default.")
    assert (again.worth, again.changes) == (None, {})


def test_of_trials_that_are_much_shorter_than_a_whole_training_nothing_is_taken(
    shop: Dataset, found: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What helps in a few steps, such as a high learning rate, may harm in many."""
    folder = shutil.copytree(found.path, tmp_path / "tuned")
    monkeypatch.setattr("bert4rec.tuning.search.ENOUGH", 2.0)
    again = tune(shop, folder, 8, resume=True)
    assert again.worth == found.worth
    assert again.changes == {}


def test_a_search_that_was_stopped_leaves_its_best_trial_and_says_that_it_is_not_confirmed(
    shop: Dataset, tmp_path: Path
) -> None:
    witness, folder = Witness(), tmp_path / "tuned"

    def is_enough() -> bool:
        return any(line.startswith("Trial 3") for line in witness.said)

    with pytest.raises(KeyboardInterrupt):
        tune(shop, folder, 8, model="fpmc", settings=FEW_STEPS, listener=witness, should_stop=is_enough)
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    best = max(trials[:4], key=lambda trial: trial["value"])
    assert best["number"] > 0
    head = (folder / "settings.toml").read_text().splitlines()[2]
    assert head.startswith(f"# Trial {best['number']}, not confirmed: it has NDCG@10 {best['value']:.4f}")
    settings = flat(read_config("fpmc", folder / "settings.toml"))
    assert best["changes"].items() <= settings.items()


def test_where_nothing_can_be_gained_the_file_holds_the_default(shop: Dataset, tmp_path: Path) -> None:
    """Weight decay, which is all that is left to choose, does nothing in so few steps."""
    fixed = {
        **FEW_STEPS,
        "model.dim": 64,
        "objective.negatives": 1,
        "objective.exponent": 0.5,
        "training.learning_rate": 0.02,
    }
    found = tune(shop, tmp_path / "tuned", 4, model="fpmc", settings=fixed)
    assert found.sentence.startswith("No better than the default: ")
    assert found.sentence.endswith("The settings are those of the default.")
    assert found.changes == {}
    assert found.settings["training"]["learning_rate"] == 0.02


def test_trials_that_have_learned_nothing_choose_nothing(shop: Dataset, tmp_path: Path) -> None:
    settings = {"training.steps": 1, "training.learning_rate": 1e-9, "training.batch_size": 8}
    found = tune(shop, tmp_path / "tuned", 3, model="fpmc", settings=settings)
    assert found.sentence.startswith(
        "Nothing was found, because no trial has learned more than what is popular"
    )
    assert found.changes == {}


@pytest.mark.parametrize("users", [30, 150])
def test_where_few_are_asked_or_popularity_is_hard_to_beat_trials_are_judged_all_the_same(
    tmp_path: Path, users: int
) -> None:
    """What comes next does not depend on what came before. A trial that learns nothing is the best one can hope for."""
    rng, share = np.random.default_rng(1), np.geomspace(1, 0.01, 30) / np.geomspace(1, 0.01, 30).sum()
    histories = [rng.choice(30, 8, replace=False, p=share).tolist() for _ in range(users)]
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=20)
    dataset = prepare(log_of(histories), tmp_path / "dataset", name="popular", recipe=recipe)
    settings = {"training.steps": 2, "training.batch_size": 8, "model.dim": 8}
    witness = Witness()
    found = tune(
        dataset, tmp_path / "tuned", 3, model="fpmc", settings=settings, listener=witness, seed=2**63 - 1
    )
    default, best = found.trials[0], found.trials[found.best]
    assert default.value and best.value and best.value > default.value
    assert found.worth, found.sentence
    assert any("Too few users to judge" in line for line in witness.said) == (users == 30)


def test_a_trial_that_collapses_is_given_up_with_the_reason_and_not_started_over(
    shop: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The proposed learning rates are such that the loss is no number."""
    monkeypatch.setitem(RANGES, "training.learning_rate", OneOf((1e30,)))
    found = tune(shop, tmp_path / "tuned", 6, model="fpmc", settings=FEW_STEPS)
    collapsed = [trial for trial in found.trials if trial.changes.get("training.learning_rate") == 1e30]
    assert collapsed
    for trial in collapsed:
        assert trial.state == "pruned"
        assert "no longer" in trial.note
    assert found.trials[0].state == "complete"
    assert not [each for each in recwarn if "reported" in str(each.message)]


def test_a_default_that_collapses_takes_half_its_learning_rate_as_a_training_does(
    shop: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Trainer.train

    def collapse_at_first(self: Trainer, config: RunConfig, *others: Any) -> Ranks:
        if config.training and config.training.learning_rate > 0.006:
            raise CollapsedError("the loss is no longer a number")
        return train(self, config, *others)

    monkeypatch.setattr(Trainer, "train", collapse_at_first)
    witness = Witness()
    settings = {**FEW_STEPS, "training.learning_rate": 0.02}
    found = tune(shop, tmp_path / "tuned", 1, model="fpmc", settings=settings, listener=witness)
    assert [line for line in witness.said if "collapsed" in line] == [
        f"Warning: The default collapsed: the loss is no longer a number. Half its learning rate, {rate}, is the "
        "default from now on."
        for rate in (0.01, 0.005)
    ]
    assert found.settings["training"]["learning_rate"] == 0.005
    assert found.changes == {}
    with pytest.raises(DataError, match="The default collapses, whatever is done about it"):
        tune(shop, tmp_path / "other", 1, model="fpmc", settings={**settings, "training.learning_rate": 1})


def test_the_default_is_what_train_would_do_on_this_machine(
    shop: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a log that takes long on a CPU: the fewest steps that are planned, and the narrowest model."""
    monkeypatch.setattr("bert4rec.budget.time_plan.CPU_MINUTES", 1e-6)
    witness = Witness()
    settings = {"model.layers": 1, "model.max_length": 8, "training.batch_size": 8}
    found = tune(shop, tmp_path / "tuned", 1, settings=settings, listener=witness)
    with pytest.raises(KeyboardInterrupt):
        bert4rec.train(shop, tmp_path / "run", settings=settings, device="cpu", should_stop=lambda: True)
    assert found.settings == Plan.load(tmp_path / "run").config.as_dict()
    assert found.settings["training"]["steps"] == 100
    assert "The default is what `train` would do on this machine: 100 steps, width 32." in witness.said


def test_progress_is_shown_where_it_is_asked_for(
    make_dataset: MakeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = make_dataset(random_histories())
    tune(dataset, tmp_path / "tuned", 1, model="fpmc", settings={"training.steps": 2}, progress=True)
    assert "Trial 0: NDCG@10 " in capsys.readouterr().err


def test_too_little_time_is_told_before_it_is_spent(shop: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`minutes` is too short: not even the first steps"):
        bert4rec.tune(shop, tmp_path / "tuned", 0.00001, model="fpmc", device="cpu")
    assert not (tmp_path / "tuned").exists()


def test_trials_become_shorter_if_the_default_takes_much_longer_than_it_seemed_to(
    shop: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that gets busy as soon as the first steps were timed."""
    too_fast, right = Costs(0.0, 1e-6, 0.0), Costs(0.0, 1.0, 0.0)
    measured = iter([too_fast, right])
    monkeypatch.setattr(Trainer, "measure", lambda *_: next(measured))
    monkeypatch.setattr("bert4rec.tuning.budget.NEVER_TOO_SLOW", 0.0)
    witness = Witness()
    settings = {"training.steps": 500, "training.batch_size": 64}
    found = tune(shop, tmp_path / "tuned", 1, model="fpmc", settings=settings, listener=witness)
    assert "The default takes much longer than it seemed to: trials become shorter." in witness.said
    assert [trial.state for trial in found.trials] == ["complete"]
    assert found.steps[0] < found.steps[1] == 500


@pytest.mark.parametrize(
    ("whole", "takes", "doubt"),
    [
        (1000, "17 minutes", "Whole ones may turn out otherwise; 400 minutes would be enough for them."),
        (
            2000,
            "33 minutes",
            "That says little about whole ones, so the settings stay those of the default; 800 minutes would be enough "
            "for them.",
        ),
    ],
)
def test_short_trials_are_told_and_the_file_has_the_steps_of_a_whole_training(
    shop: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int, takes: str, doubt: str
) -> None:
    """Where a step takes a second, 300 steps are half of ten minutes: one trial, and time to spare."""
    monkeypatch.setattr(Trainer, "measure", lambda *_: Costs(setup=0.0, step=1.0, validation=0.0))
    monkeypatch.setattr(Budget, "spent", lambda _: 0.0)
    witness = Witness()
    settings = {"training.steps": whole, "training.batch_size": 64}
    found = tune(shop, tmp_path / "tuned", 1, model="fpmc", settings=settings, listener=witness)
    assert found.steps == (300, whole)
    told = f"About 1 trial of 300 steps, because a whole training, of {whole:,}, takes about {takes}."
    assert told in witness.said
    assert found.sentence.startswith(f"In trainings of 300 of {whole:,} steps: no")
    assert found.sentence.endswith(doubt)
    warned = (
        "Warning: Such short trials say little about whole trainings, so the settings will stay those of the default; "
        "800 minutes would be enough for whole ones."
    )
    assert (warned in witness.said) == (whole == 2000)
    assert found.settings["training"]["steps"] == whole


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"minutes": 0}, UsageError, "`minutes` must be a number above 0; found 0"),
        ({"minutes": float("nan")}, UsageError, "`minutes` must be a number above 0"),
        ({"minutes": True}, UsageError, "`minutes` must be a number above 0"),
        ({"settings": 5}, UsageError, "`settings` must be a mapping or a list; found 5"),
        ({"trials": 0}, UsageError, "`trials` must be a whole number above 0"),
        ({"model": "sasrek"}, UsageError, "Did you mean sasrec"),
        ({"model": "pop"}, UsageError, "pop is not trained, so there is nothing to tune"),
        ({"settings": {"model.dmi": 3}}, UsageError, "Did you mean model.dim"),
        ({"seed": -1}, UsageError, "`seed` must be a whole number"),
        ({"resume": True}, NotFoundError, "has no tune.json: this is not a search"),
        ({"resume": True, "overwrite": True}, UsageError, "cannot be used together"),
        ({"device": "abacus"}, UsageError, "Unknown device"),
    ],
)
def test_slips_are_told_and_leave_no_folder(
    shop: Dataset, tmp_path: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        bert4rec.tune(shop, tmp_path / "tuned", **{"minutes": 1, **options})
    assert not (tmp_path / "tuned").exists()


def test_one_user_is_not_enough_to_tell_settings_apart(make_dataset: MakeDataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="by 1 user to validate on"):
        tune(make_dataset([[0, 1, 2, 3, 4]]), tmp_path / "tuned", 2)


def test_without_optuna_it_says_how_to_install_it(
    shop: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert4rec.extras.find_spec", lambda name: None if name == "optuna" else object())
    with pytest.raises(UsageError, match=r"pip install 'bert4rec\[train,tune\]'"):
        tune(shop, tmp_path / "tuned", 2)
