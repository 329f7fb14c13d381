"""What a search may change: always around the default, never outside of what a setting allows."""

from dataclasses import replace
from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from bert4rec.settings.config import make_config
from bert4rec.settings.objectives import RunConfig
from bert4rec.settings.sections import SECTIONS
from bert4rec.tuning.space import Near, Space, shortened

TRAINED = [model for model, sections in SECTIONS.items() if sections.objective]


def space(model: str = "bert4rec", *, longest: int = 1000, share: float = 1.0, **changes: Any) -> Space:
    return replace(Space(model, make_config(model, {}), longest, share), **changes)


def ends_of(found: BaseDistribution) -> list[Any]:
    if isinstance(found, CategoricalDistribution):
        return list(found.choices)
    assert isinstance(found, FloatDistribution | IntDistribution)
    return [found.low, found.high]


def training(config: RunConfig) -> Any:
    assert config.training
    return config.training


@pytest.mark.parametrize("model", TRAINED)
def test_the_default_is_where_the_search_begins_and_stays_as_it_is(model: str) -> None:
    searched = space(model)
    params = searched.nearest(searched.usual)
    assert params == {key: searched.usual[key] for key in searched.ranges}
    assert searched.config_of(params) == searched.default
    assert searched.changes(searched.default) == {}
    assert {"model.dim", "training.learning_rate"} <= params.keys()


@pytest.mark.parametrize("model", TRAINED)
def test_every_end_of_every_range_is_allowed_beside_the_default(model: str) -> None:
    searched = space(model)
    params = searched.nearest(searched.usual)
    for key, found in searched.ranges.items():
        for value in ends_of(found):
            config = searched.config_of({**params, key: value})
            assert key in searched.changes(config) or value == searched.usual[key]


def test_a_range_reaches_out_to_an_unusual_default() -> None:
    default = make_config("bert4rec", {"model": {"hidden_dropout": 0.9}, "objective": {"prefix_share": 0.85}})
    ranges = space(default=default).ranges
    assert ends_of(ranges["model.hidden_dropout"]) == [0, 0.9]
    assert ends_of(ranges["objective.prefix_share"]) == [0, 0.85]
    none = make_config("bert4rec", {"training": {"weight_decay": 0.0}})
    assert "training.weight_decay" not in space(default=none).ranges, "no multiple of it is another"


def test_a_range_ends_where_the_setting_does() -> None:
    found = Near(4).around(0.5, (0.0, 1.0))
    assert found
    assert ends_of(found) == [0.125, 1.0]


def test_named_values_are_all_tried() -> None:
    assert ends_of(space("gru4rec+").ranges["objective.loss"]) == ["bpr-max", "top1-max", "cross-entropy"]


def test_what_every_training_finds_out_by_itself_is_not_searched() -> None:
    assert space("bert4rec+").usual["model.ask"] == "auto"
    assert "model.ask" not in space("bert4rec+").ranges


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [(1000, {50, 100, 200, 400}), (201, {50, 100, 200, 400}), (200, {50, 100, 200}), (60, {50, 200})],
)
def test_no_length_is_tried_that_shows_no_more_than_another(longest: int, lengths: set[int]) -> None:
    found = space(longest=longest).ranges
    assert set(ends_of(found["model.max_length"])) == lengths
    assert "objective.window_step" in found


def test_histories_that_every_model_sees_whole_leave_nothing_to_choose() -> None:
    for longest in (30, 50):
        assert not {"model.max_length", "objective.window_step"} & space(longest=longest).ranges.keys()
    whole = space(longest=200, fixed=("model.max_length",))
    assert "objective.window_step" not in whole.ranges, "200 actions are seen by default"


def test_short_trials_decide_neither_on_dropout_nor_on_the_number_of_steps() -> None:
    whole, half, tenth = (space(share=share).ranges.keys() for share in (1.0, 0.5, 0.1))
    assert whole - half == {"training.steps"}
    assert half - tenth == {
        "model.embedding_dropout",
        "model.hidden_dropout",
        "model.attention_dropout",
        "training.weight_decay",
    }


def test_what_the_user_has_chosen_is_neither_searched_nor_adjusted() -> None:
    searched = space(fixed=("model.heads", "training.learning_rate", "training.warmup_steps"))
    assert "training.learning_rate" not in searched.ranges
    config = searched.config_of({"model.dim": 128, "training.steps": 20_000})
    assert searched.changes(config) == {
        "model.dim": 128,
        "training.steps": 20_000,
        "training.validate_every": 1000,
    }


def test_heads_keep_their_width_and_the_warm_up_its_share() -> None:
    searched = space()
    config = searched.config_of(
        {"model.dim": 256, "training.steps": 5000, "training.learning_rate": 0.00123456}
    )
    assert searched.changes(config) == {
        "model.dim": 256,
        "model.heads": 8,
        "training.steps": 5000,
        "training.warmup_steps": 100,
        "training.validate_every": 250,
        "training.learning_rate": 0.00123,
    }
    assert searched.config_of({"model.dim": 32}).as_dict()["model"]["heads"] == 1


def test_presets_are_tried_as_far_as_they_lie_within_the_ranges() -> None:
    searched = space()
    found = [searched.changes(searched.config_of(params)) for params in searched.presets()]
    assert {
        "model.embedding_dropout": 0.1,
        "model.hidden_dropout": 0.1,
        "model.attention_dropout": 0.0,
        "objective.prefix_share": 0.0,
        "training.learning_rate": 0.002,
    } in found, "ml-1m-small"
    assert {} not in found
    assert not any("model.feed_forward" in changes for changes in found), "the paper's own are left out"
    assert not any("training.steps" in changes for changes in found)
    widths = [changes.get("model.dim", 64) for changes in found]
    assert widths == sorted(widths), "the fastest first"


def test_a_model_without_presets_has_none_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECTIONS, "mine", SECTIONS["sasrec"])
    assert space("mine").presets() == []


def test_a_shortened_training_has_the_same_shape() -> None:
    config = make_config("bert4rec", {"training": {"steps": 1000, "warmup_steps": 100, "batch_size": 64}})
    short = training(shortened(config, 0.25, 10))
    assert (short.steps, short.warmup_steps, short.validate_every, short.batch_size) == (250, 25, 25, 64)
    assert training(shortened(config, 0.013, 10)).validate_every == 2, "at most ten validations of 13 steps"
