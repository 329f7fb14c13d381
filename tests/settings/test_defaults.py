"""What follows from the data: its facts are counted right, and the paper's models keep what they always had."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.settings.config import make_config
from bert4rec.settings.defaults import LARGE, DataFacts, default_settings
from bert4rec.settings.objectives import RunConfig
from tests.conftest import MakeDataset

HISTORIES = [[0, 1, 2], [0, 1, 0, 1, 3], [2], [3, 1, 0]]
FACTS = DataFacts(
    users=4,
    actions=12,
    mean_length=3.0,
    longest_length=5,
    items=4,
)


def test_the_facts_of_a_log_are_counted(make_dataset: MakeDataset) -> None:
    assert DataFacts.of(make_dataset(HISTORIES)) == FACTS
    lengths = [len(history) for history in HISTORIES]
    in_memory = Dataset.from_sequences(
        np.array([item + 1 for history in HISTORIES for item in history], np.int32),
        np.concatenate([[0], np.cumsum(lengths)]),
        repeats="keep",
    )
    assert DataFacts.of(in_memory) == FACTS


ML_100K = replace(LARGE, users=943, actions=99_287)
ML_1M = replace(LARGE, users=6_040, actions=999_611)
BY_USERS = ("gru4rec", "gru4rec+", "sasrec", "bert4rec")
BY_ACTIONS = ("bpr-mf", "ncf", "fpmc", "caser")


@pytest.mark.parametrize(
    ("models", "facts", "steps", "warmup_steps", "validate_every"),
    [
        (BY_USERS, ML_100K, 1_105, 110, 55),
        (BY_USERS, ML_1M, 7_078, 200, 353),
        (BY_USERS, LARGE, 10_000, 200, 500),
        (BY_ACTIONS, ML_100K, 10_000, 200, 500),
        (BY_ACTIONS, replace(LARGE, actions=700), 820, 82, 41),
    ],
)
def test_the_models_of_the_paper_are_trained_as_long_as_they_always_were(
    models: tuple[str, ...], facts: DataFacts, steps: int, warmup_steps: int, validate_every: int
) -> None:
    for model in models:
        rate = 0.002 if model == "bert4rec" else 0.001
        assert default_settings(model, facts)["training"] == {
            "steps": steps,
            "warmup_steps": warmup_steps,
            "validate_every": validate_every,
            "learning_rate": rate,
        }


BEAUTY = replace(LARGE, users=40_226, actions=353_962, mean_length=8.8, longest_length=293)
HUNDREDS = replace(LARGE, users=300, actions=32_000, mean_length=107, longest_length=500)
TINY = replace(LARGE, users=1, actions=3, mean_length=3, longest_length=3)


def plus(facts: DataFacts, **given: dict[str, object]) -> RunConfig:
    return make_config("bert4rec+", default_settings("bert4rec+", facts, given))


def test_short_histories_get_more_dropout_decay_and_masks_than_long_ones() -> None:
    short, long = plus(BEAUTY), plus(replace(ML_1M, mean_length=165.5, longest_length=2_277))
    for section, names in {
        "model": ("embedding_dropout", "hidden_dropout"),
        "objective": ("mask_probability", "next_item_weight"),
        "training": ("weight_decay",),
    }.items():
        for name in names:
            assert getattr(getattr(short, section), name) > getattr(getattr(long, section), name), name


def test_the_more_data_the_wider_the_model_the_longer_the_training_and_the_less_dropout() -> None:
    models, trainings = zip(
        *((each.model, each.training) for each in map(plus, (HUNDREDS, ML_1M, LARGE))), strict=True
    )
    assert [each.width for each in models] == [64, 256, 256]
    assert models[1].hidden_dropout > models[2].hidden_dropout
    steps = [each.steps for each in trainings]
    assert sorted(set(steps)) == steps
    assert 1_000 <= steps[0] < steps[-1] <= 20_000
    assert [each.batch_size for each in trainings] == [32, 256, 256]


def test_histories_are_seen_as_far_as_they_go_and_at_most_200_actions_of_them() -> None:
    def window(facts: DataFacts) -> int:
        longest: int = plus(facts).as_dict()["model"]["max_length"]
        return longest

    assert window(BEAUTY) == 50
    assert window(replace(BEAUTY, longest_length=12)) == 12
    assert window(replace(BEAUTY, mean_length=20)) == 100
    assert window(LARGE) == window(replace(LARGE, mean_length=1_000)) == 200


@pytest.mark.parametrize("facts", [TINY, replace(TINY, longest_length=1), BEAUTY, HUNDREDS, LARGE])
def test_a_rule_gives_settings_that_can_be_trained_with_whatever_the_data(facts: DataFacts) -> None:
    training = plus(facts).training
    assert training
    assert 0 < training.warmup_steps < training.steps
    assert training.steps // training.validate_every >= 20


def test_warm_up_and_validations_go_by_the_number_of_steps_that_is_given() -> None:
    training = plus(BEAUTY, training={"steps": 60}).training
    assert training
    assert (training.steps, training.warmup_steps, training.validate_every) == (60, 12, 3)


def test_a_small_log_is_warmed_up_for_a_fifth_of_its_steps_and_a_large_one_for_a_tenth() -> None:
    shares = [
        each.warmup_steps / each.steps for each in (plus(HUNDREDS).training, plus(LARGE).training) if each
    ]
    assert shares == [0.2, pytest.approx(0.1)]


def test_samples_are_never_seen_much_more_often_in_a_larger_log() -> None:
    """Batches double in size at some sizes of the log, and so do the passes there, but no more than that."""

    def passes(users: int) -> float:
        training = plus(replace(BEAUTY, users=users, actions=10 * users, mean_length=10)).training
        assert training
        return training.steps * training.batch_size / users

    seen = [
        passes(users) for users in (500, 1_000, 2_499, 2_500, 4_999, 5_000, 8_999, 9_000, 20_000, 100_000)
    ]
    assert all(later <= 2.001 * earlier for earlier, later in pairwise(seen))
    assert seen[-1] < seen[0]


@pytest.mark.parametrize(("dim", "heads"), [(100, 2), (50, 1), (96, 4), (48, 2), (256, 4)])
def test_heads_fit_the_width_that_is_given(dim: int, heads: int) -> None:
    network = plus(BEAUTY, model={"dim": dim}).as_dict()["model"]
    assert (network["dim"], network["heads"]) == (dim, heads)


def test_dropout_and_learning_rate_fit_the_width_that_is_given() -> None:
    """As if the log had the size for which that width is usual."""
    narrow, usual, wide = (
        plus(BEAUTY, model={"dim": dim}) if dim else plus(BEAUTY) for dim in (48, None, 512)
    )
    small_log = plus(replace(BEAUTY, actions=40_000))
    for config, same in ((narrow, small_log), (wide, usual)):
        assert config.training and same.training
        assert config.training.learning_rate == same.training.learning_rate
        assert config.as_dict()["model"]["hidden_dropout"] == same.as_dict()["model"]["hidden_dropout"]
    assert narrow.training and usual.training
    assert narrow.training.learning_rate > usual.training.learning_rate


@pytest.mark.parametrize("model", ["sasrec", "bert4rec", "bert4rec+"])
def test_the_softmax_follows_from_the_number_of_items(model: str) -> None:
    for items, negatives in ((1_000_000, 0), (1_000_001, 65_536)):
        found = default_settings(model, replace(LARGE, items=items))
        assert make_config(model, found).as_dict()["objective"]["negatives"] == negatives
    assert make_config(model, {}).as_dict()["objective"]["negatives"] == 0, "presets and older runs are exact"


def test_losses_that_are_no_softmax_over_all_items_draw_as_they_did() -> None:
    many = replace(LARGE, items=10_000_000)
    assert "objective" not in default_settings("sasrec", many, {"objective": {"loss": "binary"}})
    assert all("objective" not in default_settings(model, many) for model in ("gru4rec+", "bpr-mf", "pop"))


@pytest.mark.parametrize("negatives", [0, 8_192])
def test_only_a_sampled_softmax_is_recorded(negatives: int) -> None:
    """So results and checkpoints of earlier versions, which had no choice, are found."""
    config = make_config("sasrec", {"objective": {"negatives": negatives}})
    assert config.as_recorded()["objective"].get("negatives", 0) == negatives
    assert ("negatives" in config.as_recorded()["objective"]) == bool(negatives)
