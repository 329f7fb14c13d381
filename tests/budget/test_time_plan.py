"""Settings are planned so that all of a run ends in time; what somebody has set is never touched."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bert4rec
from bert4rec.budget.pace import Pace
from bert4rec.budget.time_plan import TimeBudget, plan_minutes, usual_minutes
from bert4rec.data.dataset import Dataset
from bert4rec.errors import UsageError
from bert4rec.settings.config import GivenSettings
from bert4rec.settings.defaults import LARGE
from bert4rec.settings.networks import ModelConfig
from bert4rec.settings.objectives import RunConfig
from bert4rec.settings.sections import DEFAULT_MODEL
from bert4rec.training.device import Placement
from bert4rec.training.plan import Plan, Refit, flat
from bert4rec.training.reporting.forecast import Costs
from bert4rec.training.specs import MODELS
from tests.conftest import MakeDataset
from tests.training.tiny import CPU, SETTINGS, TRANSFORMER, random_histories

ML_1M = replace(LARGE, users=6_040, actions=999_611)
"""Without a preset: 7,078 steps, a validation every 353 of them."""
PASSED = 10.0


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


def plan_of(dataset: Dataset, given: GivenSettings, *, refit: Refit = True, test: bool = True) -> Plan:
    config = given.complete(ML_1M)
    return Plan.for_dataset(
        dataset, given.model, config, preset=given.preset, seed=1, split=None, refit=refit, test=test
    )


def pace_of(config: RunConfig, validation: float = 1.0) -> Pace:
    """A tenth of a second for a step of width 64, and as much less as the model is narrower."""
    return Pace(setup=2.0, costs=Costs(config.model.width / 640, validation, judging=3.0))


def planned(
    dataset: Dataset,
    minutes: float,
    *settings: str,
    model: str = "bert4rec",
    preset: str | None = None,
    validation: float = 1.0,
    refit: Refit = True,
    test: bool = True,
    growth: float = 1.0,
) -> tuple[RunConfig, str]:
    given = GivenSettings.read(model, preset, settings)
    plan = plan_of(dataset, given, refit=refit, test=test)
    budget = TimeBudget(minutes, plan, given, ML_1M, passed=lambda: PASSED, growth=growth)
    return budget.fit(lambda config: pace_of(config, validation))


def sizes(config: RunConfig) -> tuple[int, int, int, int, int]:
    network, training = config.model, config.training
    assert isinstance(network, ModelConfig)
    assert training
    return network.dim, network.heads, training.steps, training.warmup_steps, training.validate_every


@pytest.mark.parametrize("model", [name for name in MODELS if name != "pop"])
def test_where_there_is_time_for_them_the_usual_settings_stay(dataset: Dataset, model: str) -> None:
    config, told = planned(dataset, 10_000, model=model)
    assert config == GivenSettings.read(model).complete(ML_1M)
    assert "instead of" not in told
    assert told.endswith("The rest is not needed: the best number of steps is chosen by validation anyway.")


def test_the_presets_stay_too(dataset: Dataset) -> None:
    for preset in bert4rec.list_presets("bert4rec"):
        config, _ = planned(dataset, 10**6, preset=preset)
        assert config == GivenSettings.read("bert4rec", preset).complete(ML_1M)


def test_first_there_are_fewer_steps(dataset: Dataset) -> None:
    """Of 540 seconds 10 are gone. Both stages: 4 to begin, 498 for steps; 21 validations, 6 to judge."""
    config, told = planned(dataset, 10)
    assert sizes(config) == (64, 2, 2_490, 200, 124)
    assert told == (
        "10 minutes: 2,490 steps (instead of 7,078), width 64, a validation every 124 steps; about 9 minutes in all. "
        "Without a limit it would take about 24 minutes."
    )


def test_a_narrower_model_comes_before_less_than_a_third_of_the_steps(dataset: Dataset) -> None:
    config, told = planned(dataset, 6)
    assert sizes(config) == (32, 1, 2_830, 200, 141)
    assert "2,830 steps (instead of 7,078), width 32 (instead of 64)" in told
    config, _ = planned(dataset, 3)
    assert sizes(config) == (32, 1, 1_210, 121, 60), "then there are fewer steps still"


def test_without_a_refit_and_a_test_there_is_more_time(dataset: Dataset) -> None:
    config, _ = planned(dataset, 10, refit=False, test=False)
    assert sizes(config)[:3] == (64, 2, 5_040)


def test_a_training_for_production_has_its_share_of_the_time(dataset: Dataset) -> None:
    """Of 1,080 seconds 10 are gone. Three stages: 6 to begin, 6 to judge, 21 validations; the last has half as many
    steps again."""
    config, _ = planned(dataset, 20, refit="all", growth=1.5)
    steps = sizes(config)[2]
    assert sizes(config)[:2] == (64, 2)
    assert 1030 < (1 + 1 + 1.5) * steps / 10 <= 1080 - 10 - 6 - 6 - 20


def test_validations_take_a_seventh_of_the_time_at_most_and_are_five_at_least(dataset: Dataset) -> None:
    config, _ = planned(dataset, 20, validation=15.0)
    _, _, steps, _, every = sizes(config)
    assert steps // every == 10
    config, _ = planned(dataset, 20, validation=60.0)
    _, _, steps, _, every = sizes(config)
    assert steps / every == 5


def test_what_is_set_stays_as_it_is(dataset: Dataset) -> None:
    config, _ = planned(dataset, 5, "model.dim=64")
    assert sizes(config)[:3] == (64, 2, 1_140)
    config, _ = planned(dataset, 5, "model.heads=64")
    assert sizes(config)[:3] == (64, 64, 1_140), "half the width cannot be shared by as many heads"
    config, _ = planned(dataset, 10, "training.validate_every=100", "training.warmup_steps=7")
    assert sizes(config) == (64, 2, 2_470, 7, 100)
    config, _ = planned(dataset, 15, "training.steps=5000")
    assert sizes(config) == (32, 1, 5_000, 200, 250)


def test_a_preset_keeps_its_width_and_how_much_of_it_is_warm_up(dataset: Dataset) -> None:
    usual = GivenSettings.read("bert4rec", "ml-1m").complete(ML_1M)
    config, _ = planned(dataset, 20, preset="ml-1m")
    assert config.model == usual.model
    assert usual.training
    assert config.training
    assert config.training.steps < usual.training.steps
    share = usual.training.warmup_steps / usual.training.steps
    assert config.training.warmup_steps / config.training.steps == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(
    ("minutes", "settings", "told"),
    [
        (0.5, (), "`minutes=0.5` is too little for 100 steps of width 32, the least that can be planned. "),
        (5, ("training.steps=9999", "model.dim=64"), "`minutes=5` is too little for 9,999 steps of width 64"),
    ],
)
def test_where_even_the_least_takes_longer_it_is_said_how_long(
    dataset: Dataset, minutes: float, settings: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        planned(dataset, minutes, *settings)
    message = str(refused.value)
    assert message.startswith(told)
    enough = int(message.rpartition("minutes=")[2].partition("`")[0])
    assert planned(dataset, enough, *settings)
    with pytest.raises(UsageError):
        planned(dataset, enough - 1, *settings)


def test_what_a_training_costs_is_tried_on_this_machine_without_a_trace(dataset: Dataset) -> None:
    small = [f"model.{key}={value}" for key, value in TRANSFORMER.items()]
    given = GivenSettings.read("bert4rec", "steam", [*small, "training.batch_size=8"])
    plan, random = plan_of(dataset, given), torch.get_rng_state()
    found, told = plan_minutes(
        0.2, plan, given, dataset, Placement(CPU, None), compile_step=True, began=time.perf_counter()
    )
    assert torch.equal(torch.get_rng_state(), random)
    assert found.config.training
    assert 100 <= found.config.training.steps < 60_000
    assert found.config.model == plan.config.model
    assert told.startswith("0.2 minutes: ")


def test_a_run_with_time_enough_ends_as_one_without_a_limit(dataset: Dataset, tmp_path: Path) -> None:
    heard: list[str] = []
    settings = {
        f"{section}.{key}": value
        for section, values in SETTINGS[DEFAULT_MODEL].items()
        for key, value in values.items()
    }
    limited = bert4rec.train(
        dataset,
        tmp_path / "limited",
        settings=settings,
        minutes=60,
        callback=lambda status: heard.append(str(status)),
    )
    free = bert4rec.train(dataset, tmp_path / "free", settings=settings)
    assert heard[0].startswith("60 minutes: 12 steps, width 16, a validation every 3 steps; about ")
    for name in ("selection.safetensors", "model.safetensors"):
        assert (limited.path / name).read_bytes() == (free.path / name).read_bytes()


def test_where_nobody_asked_for_a_limit_a_large_log_gets_one_on_a_cpu() -> None:
    card = Placement(torch.device("cuda"), None)
    here, free = Placement(CPU, None), GivenSettings.read(DEFAULT_MODEL)
    assert usual_minutes(free, here) == 15
    assert usual_minutes(free, card) is None
    for given in (
        GivenSettings.read(DEFAULT_MODEL, "ml-1m"),
        GivenSettings.read(DEFAULT_MODEL, settings={"training.steps": 9}),
        GivenSettings.read("sasrec"),
    ):
        assert usual_minutes(given, here) is None


def test_a_limit_that_nobody_asked_for_never_keeps_a_training_from_beginning(dataset: Dataset) -> None:
    given = GivenSettings.read("bert4rec")
    budget = TimeBudget(0.5, plan_of(dataset, given), given, ML_1M, lambda: PASSED, is_strict=False)
    config, told = budget.fit(pace_of)
    assert sizes(config)[:3] == (32, 1, 100)
    assert told.startswith("0.5 minutes: 100 steps (instead of 7,078), width 32 (instead of 64)")


def test_a_model_that_only_counts_needs_no_plan(dataset: Dataset, tmp_path: Path) -> None:
    assert bert4rec.train(dataset, tmp_path / "pop", model="pop", minutes=1).model == "pop"


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf"), "5"])
def test_minutes_must_be_a_number_above_zero(dataset: Dataset, minutes: float) -> None:
    with pytest.raises(UsageError, match=r"`minutes` must be (a number above 0|at most)"):
        bert4rec.train(dataset, minutes=minutes)


def test_a_run_that_goes_on_keeps_what_was_planned(dataset: Dataset, tmp_path: Path) -> None:
    """The time that it may take counts when it begins; the same call goes on with it."""

    def stop(status: bert4rec.TrainingStatus) -> bool:
        return status.step > 0

    folder = tmp_path / "run"
    same: dict[str, Any] = {
        "settings": flat(SETTINGS[DEFAULT_MODEL]),
        "minutes": 5,
        "resume": True,
        "device": "cpu",
    }
    with pytest.raises(KeyboardInterrupt):
        bert4rec.train(dataset, folder, **same, callback=stop)
    planned = Plan.load(folder)
    assert bert4rec.train(dataset, folder, **same).plan == planned
