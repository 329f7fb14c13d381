"""What follows from the data: its facts are counted right, and the paper's models keep what they always had."""

from dataclasses import replace

import numpy as np
import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.settings.defaults import LARGE, RULES, DataFacts, default_settings
from bert4rec.settings.sections import SECTIONS
from tests.conftest import MakeDataset

HISTORIES = [[0, 1, 2], [0, 1, 0, 1, 3], [2], [3, 1, 0]]
FACTS = DataFacts(
    users=4,
    items=4,
    actions=12,
    mean_length=3.0,
    median_length=3.0,
    longest_length=5,
    density=10 / 16,
    repeat_share=2 / 12,
    repeats="keep",
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


ML_100K = replace(LARGE, users=943, items=1_349, actions=99_287)
ML_1M = replace(LARGE, users=6_040, items=3_416, actions=999_611)
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
        assert default_settings(model, facts) == {
            "training": {
                "steps": steps,
                "warmup_steps": warmup_steps,
                "validate_every": validate_every,
                "learning_rate": rate,
            }
        }


def test_a_rule_belongs_to_a_model_of_the_package_and_to_none_of_the_paper() -> None:
    assert RULES.keys() <= SECTIONS.keys() - {"pop", *BY_USERS, *BY_ACTIONS}
