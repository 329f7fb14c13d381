"""What a search is worth is told honestly: with its interval, and with what luck it may owe."""

import numpy as np
import pytest

from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.protocol import Ranks
from bert4rec.tuning.outcome import TuningTrial
from bert4rec.tuning.verdict import compare, sentence

USUAL = Criterion("NDCG@10")
DEFAULT = TuningTrial(0, "complete", 0.4, {}, 1.0, 0.1)
BEST = TuningTrial(3, "complete", 0.5, {"model.dim": 128}, 1.0, 0.1)


def ranks(seed: int, share_of_hits: float, users: int = 400) -> Ranks:
    """Targets that come first for a share of the users, and nowhere for the others."""
    found = (np.random.default_rng(seed).random(users) >= share_of_hits) * np.int32(50)
    return Ranks(found.astype(np.int32), np.full(users, 99, np.int32))


def told(best: float, default: float) -> str:
    worth = compare([ranks(1, best), ranks(2, best)], [ranks(3, default), ranks(4, default)], USUAL)
    return sentence(DEFAULT, BEST, worth, metric="NDCG@10", trials=10, seeds=2)


def test_a_gain_is_told_with_its_interval_its_seeds_and_where_it_was_measured() -> None:
    found = told(0.7, 0.4)
    assert found.startswith("better than the default by 0.3")
    assert "95% interval +0.2" in found
    assert "2 fresh seeds each, on the validation items, which were searched by" in found


@pytest.mark.parametrize(("best", "default"), [(0.4, 0.4), (0.4, 0.7)])
def test_what_may_be_chance_or_is_worse_is_no_gain(best: float, default: float) -> None:
    found = told(best, default)
    assert found.startswith("no better than the default: trial 3 differs by ")
    assert found.endswith("The settings are those of the default.")


def test_the_interval_is_that_of_compare() -> None:
    """Paired over users: the same users fail under both systems, so only the seeds are left to doubt."""
    same = [ranks(1, 0.5), ranks(1, 0.5)]
    found = compare(same, same, USUAL)
    assert (found.difference, found.low, found.high) == (0, 0, 0)


def test_a_best_trial_that_was_not_trained_again_is_called_lucky() -> None:
    found = sentence(DEFAULT, BEST, None, metric="NDCG@10", trials=10, seeds=0)
    assert "trial 3 has NDCG@10 0.5000, the default 0.4000" in found
    assert "owes part of that to luck" in found


@pytest.mark.parametrize(
    ("trials", "words"), [(10, "none of 9 other trials was better"), (1, "nothing else was tried")]
)
def test_a_default_that_nothing_beat_is_told(trials: int, words: str) -> None:
    assert words in sentence(DEFAULT, DEFAULT, None, metric="NDCG@10", trials=trials, seeds=0)
