"""What a search is worth is told honestly: with its interval, and with what luck it may owe."""

import numpy as np
import pytest

from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.protocol import Ranks
from bert4rec.evaluation.significance import Difference
from bert4rec.tuning.outcome import TuningTrial
from bert4rec.tuning.verdict import compare, sentence

USUAL = Criterion("NDCG@10")
DEFAULT = TuningTrial(0, "complete", 0.4, {}, 1.0, 0.1)
BEST = TuningTrial(3, "complete", 0.5, {"model.dim": 128}, 1.0, 0.1)


def ranks(seed: int, share_of_hits: float, users: int = 400) -> Ranks:
    """Targets that come first for a share of the users, and nowhere for the others."""
    found = (np.random.default_rng(seed).random(users) >= share_of_hits) * np.int32(50)
    return Ranks(found.astype(np.int32), np.full(users, 99, np.int32))


def tell(best: TuningTrial, worth: Difference | None, *, trials: int = 10, is_over: bool = True) -> str:
    return sentence(DEFAULT, best, worth, metric="NDCG@10", trials=trials, seeds=2, is_over=is_over)


def told(best: float, default: float) -> str:
    worth = compare([ranks(1, best), ranks(2, best)], [ranks(3, default), ranks(4, default)], USUAL)
    return tell(BEST, worth)


def test_a_gain_is_told_with_its_interval_its_seeds_and_where_it_was_measured() -> None:
    found = told(0.7, 0.4)
    assert found.startswith("better than the default by 0.3")
    assert "95% interval +0.2" in found
    assert "at least 2 seeds each, on the validation items, which were searched by" in found


@pytest.mark.parametrize(("best", "default"), [(0.4, 0.4), (0.4, 0.7)])
def test_what_may_be_chance_or_is_worse_is_no_gain(best: float, default: float) -> None:
    found = told(best, default)
    assert found.startswith("no better than the default: trial 3 differs by ")
    assert found.endswith("The settings are those of the default.")


def test_the_interval_is_that_of_compare() -> None:
    """Paired over users: the same users fail under both systems, so only the seeds are left to doubt."""
    same = [ranks(1, 0.5), ranks(1, 0.5)]
    found = compare(same, same, USUAL)
    assert found
    assert (found.difference, found.low, found.high) == (0, 0, 0)


class Lottery:
    """Trainings of one and the same setting, whose seeds differ by 2% of the mean."""

    users, chance, seeds_differ_by = 6000, 0.3, 0.02
    own_luck = 0.2
    """Share of the users whose target a seed finds or not for reasons of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.luck = self.rng.random(self.users)

    def training(self) -> Ranks:
        chance = self.chance * (1 + self.seeds_differ_by * self.rng.standard_normal())
        is_own = self.rng.random(self.users) < self.own_luck
        found = np.where(is_own, self.rng.random(self.users), self.luck) < chance
        return Ranks(np.where(found, 0, 50).astype(np.int32), np.full(self.users, 99, np.int32))

    def is_called_different(self, trainings: int, trials: int) -> bool:
        """Whether a search of so many trials tells this setting from itself.

        The default's first training is its trial. If it is the best trial, nothing is compared.
        """
        default, *others = (self.training() for _ in range(trials))
        values = [USUAL.per_user(each).mean() for each in (default, *others)]
        if max(values) == values[0]:
            return False
        again = [default, *(self.training() for _ in range(trainings - 1))]
        worth = compare([self.training() for _ in range(trainings)], again, USUAL)
        return worth is not None and worth.direction != 0


@pytest.mark.parametrize(("trainings", "most"), [(2, 0.07), (3, 0.05)])
@pytest.mark.parametrize("trials", [2, 6])
def test_a_setting_is_hardly_ever_better_or_worse_than_itself(
    trainings: int, most: float, trials: int
) -> None:
    """With one training of each, users alone would be counted, and up to a third of these calls would be wrong."""
    calls = [Lottery(seed).is_called_different(trainings, trials) for seed in range(400)]
    assert np.mean(calls) <= most


def test_one_training_of_each_says_nothing() -> None:
    one, two = [ranks(1, 0.9)], [ranks(2, 0.1), ranks(3, 0.1)]
    assert compare(one, two, USUAL) is None
    assert compare(two, one, USUAL) is None


def test_a_best_trial_that_was_not_trained_again_is_not_confirmed_as_long_as_the_search_goes_on() -> None:
    found = tell(BEST, None, is_over=False)
    assert found.startswith("trial 3, not confirmed: it has NDCG@10 0.5000, the default 0.4000.")
    assert "owes part of that to luck" in found


def test_a_best_trial_that_there_was_no_time_to_confirm_is_not_taken() -> None:
    found = tell(BEST, None)
    assert found.startswith(
        "not sure: trial 3 has NDCG@10 0.5000, the default 0.4000, but there was too little"
    )
    assert found.endswith("The settings are those of the default.")


@pytest.mark.parametrize(
    ("trials", "words"), [(10, "none of 9 other trials was better"), (1, "nothing else was tried")]
)
def test_a_default_that_nothing_beat_is_told(trials: int, words: str) -> None:
    assert words in tell(DEFAULT, None, trials=trials)
