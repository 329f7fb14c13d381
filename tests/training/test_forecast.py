"""How long a run takes is told before it begins, follows what happens, and decides nothing."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

import bert4rec
from bert4rec.data.dataset import Dataset
from bert4rec.training.loop import Interrupted, Loop
from bert4rec.training.reporting.forecast import Costs, Forecast, in_words
from bert4rec.training.run import Plan
from bert4rec.training.specs import MODELS
from tests.conftest import MakeDataset
from tests.training.tiny import (
    CPU,
    TRANSFORMER,
    Witness,
    after,
    make_task,
    random_histories,
    tiny_config,
    train_tiny,
)

LONG_ENOUGH = ("training.steps=120", "training.validate_every=60", "training.patience=120")
"""A hundred steps are worth trying one."""


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


@pytest.fixture
def plan(dataset: Dataset) -> Plan:
    config = tiny_config("training.steps=800", "training.validate_every=40")
    return Plan.for_dataset(dataset, "bert4rec", config, preset=None, seed=1, split=None)


def test_all_that_is_to_come_is_told_in_one_line(plan: Plan) -> None:
    forecast = Forecast(plan)
    forecast.begin(Costs(step=0.5, validation=10.0, judging=20.0))
    assert forecast.seconds_left("selection", 0, 800) == 1600 * 0.5 + 20 * 10 + 2 * 20
    assert (
        forecast.told("selection", 0, 800)
        == "About 17 minutes: at most 800 steps, 20 validations, then a refit."
    )
    assert forecast.seconds_left("selection", 770, 800) == 830 * 0.5 + 10 + 40
    assert forecast.told("refit", 100, 300) == "About 2 minutes: 200 steps."
    assert forecast.seconds_of_judging("test") == 20


def test_without_a_refit_and_a_test_none_is_expected(plan: Plan) -> None:
    forecast = Forecast(dataclasses.replace(plan, refit=False, test=False))
    forecast.begin(Costs(step=0.5, validation=10.0, judging=20.0))
    assert forecast.seconds_left("selection", 0, 800) == 800 * 0.5 + 20 * 10 + 20
    assert forecast.told("selection", 0, 800) == "About 10 minutes: at most 800 steps, 20 validations."


def test_a_stalled_second_does_not_show_and_a_lasting_slow_down_does(plan: Plan) -> None:
    forecast = Forecast(plan)
    for _ in range(300):
        forecast.learn_steps(10, 1.0)
    before = forecast.seconds_left("refit", 0, 800)
    assert before == pytest.approx(80)
    forecast.learn_steps(1, 1.0)
    assert forecast.seconds_left("refit", 0, 800) < 1.05 * before
    for _ in range(300):
        forecast.learn_steps(1, 1.0)
    assert forecast.seconds_left("refit", 0, 800) == pytest.approx(10 * before, rel=0.1)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "about 1 second"),
        (40, "about 40 seconds"),
        (700, "about 12 minutes"),
        (9_000, "about 2.5 hours"),
        (75_600, "about 21 hours"),
    ],
)
def test_durations_are_told_as_people_say_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize("model", [name for name in MODELS if name != "pop"])
def test_trying_a_step_changes_nothing(dataset: Dataset, model: str) -> None:
    """Neither weights, nor gradients, nor what dropout draws next."""
    config = tiny_config(model=model)
    training = config.training
    assert training

    def trained(*, tried: bool) -> Loop:
        loop = Loop(make_task(dataset, config, model), training, device=CPU, seed=1)
        loop.run_steps(2)
        if tried:
            loop.task.model.zero_grad()
            assert loop.time_step(3) > 0
            assert all(parameter.grad is None for parameter in loop.task.model.parameters())
        loop.run_steps(5)
        return loop

    ours, theirs = (trained(tried=tried).task.model.state_dict() for tried in (True, False))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_whose_time_is_told_ends_as_one_whose_time_is_not(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness()
    told = train_tiny(dataset, tmp_path / "told", *LONG_ENOUGH, witness=witness)
    line = r"About \d+ seconds?: at most 120 steps, 2 validations, then a refit\."
    assert [bool(re.fullmatch(line, text)) for text in witness.said].count(True) == 1
    monkeypatch.setattr("bert4rec.training.reporting.forecast.passes_for", lambda _steps: 0)
    untold = train_tiny(dataset, tmp_path / "untold", *LONG_ENOUGH)
    for name in ("selection.safetensors", "model.safetensors"):
        assert (told.path / name).read_bytes() == (untold.path / name).read_bytes()


def test_a_run_that_goes_on_is_told_how_long_the_rest_takes(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train_tiny(dataset, tmp_path / "run", *LONG_ENOUGH, should_stop=after(20))
    witness = Witness()
    train_tiny(dataset, tmp_path / "run", *LONG_ENOUGH, witness=witness)
    assert any(
        re.match(r"About .*: at most 1\d\d steps, 2 validations, then a refit", text) for text in witness.said
    )


@pytest.mark.parametrize("minutes", [None, 60])
def test_on_a_gpu_it_is_told_once_steps_are_compiled_unless_a_plan_has_told_it(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, minutes: float | None
) -> None:
    """Compiled once the first step is taken, as far as anybody can see."""
    monkeypatch.setattr(Loop, "is_warm", property(lambda loop: loop.progress.step > 0))
    witness = Witness()
    settings = {f"model.{key}": value for key, value in TRANSFORMER.items()}
    settings |= {"training.steps": 6, "training.validate_every": 2, "training.batch_size": 8}
    bert4rec.train(dataset, settings=settings, minutes=minutes, device="cpu", listener=witness)
    told = [text for text in witness.said if "then a refit" in text]
    assert len(told) == (minutes is None)


def test_of_a_run_of_a_few_steps_and_of_counting_nothing_is_foretold(
    dataset: Dataset, tmp_path: Path
) -> None:
    for model in ("bert4rec", "pop"):
        witness = Witness()
        train_tiny(dataset, tmp_path / model, model=model, witness=witness)
        assert not any(text.startswith("About") for text in witness.said)
