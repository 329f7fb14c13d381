"""The minutes of a search are enough for trials and for a verdict, whatever a training costs."""

import pytest

from bert4rec.errors import UsageError
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tuning.budget import Budget, Costs, TrialPlan, plan_trials

TRAINING = TrainingConfig(steps=1000)


def plan(minutes: float, *, step: float = 0.1, validation: float = 0.0, setup: float = 0.0) -> TrialPlan:
    return plan_trials(Costs(setup, step, validation), TRAINING, 60 * minutes)


@pytest.mark.parametrize(
    ("minutes", "share"),
    [(100, 1.0), (40, 1.0), (20, 0.5), (10, 0.25), (6, 0.25), (5, 0.25), (1, 0.05)],
)
def test_trials_are_whole_if_many_fit_then_shorter_then_fewer_then_shorter_again(
    minutes: float, share: float
) -> None:
    """A whole training takes 100 seconds here."""
    found = plan(minutes)
    assert found.share == pytest.approx(share)
    assert found.seconds == pytest.approx(100 * share)
    assert found.whole_seconds == pytest.approx(100)
    assert 60 * minutes / found.seconds >= 12 - 1e-9


def test_validations_take_a_quarter_of_a_trial_at_most_and_are_never_fewer_than_three() -> None:
    assert plan(24, validation=0.1).validations == 10
    assert plan(24, validation=2.0).validations == 7
    assert plan(24, validation=8.0).validations == 3


def test_setting_up_and_validating_come_out_of_the_time_of_a_trial() -> None:
    found = plan(20, validation=1.0, setup=5.0)
    assert found.seconds == pytest.approx(50)
    assert found.share * 100 == pytest.approx(50 - 5 - 12)


def test_a_search_that_could_try_next_to_nothing_is_refused_with_what_it_needs() -> None:
    with pytest.raises(
        UsageError, match=r"`minutes` must be at least 4 on this machine: even trials of 10 steps"
    ):
        plan(1, step=1.0, validation=1.0, setup=2.0)


def test_a_training_of_a_few_steps_is_tried_whole() -> None:
    assert plan_trials(Costs(0.1, 0.01, 0.0), TrainingConfig(steps=4), 60).share == 1


@pytest.mark.parametrize(("seconds", "seeds"), [(30, 3), (60, 2), (100, 1), (500, 1)])
def test_a_third_of_the_time_goes_to_as_many_fresh_seeds_as_fit(seconds: float, seeds: int) -> None:
    budget = Budget(total=900)
    assert budget.seeds_for(seconds, seconds) == seeds
    assert budget.left_to_search(seconds, seconds) <= 900 - seeds * 2 * seconds


def test_time_that_earlier_calls_have_spent_is_spent() -> None:
    budget = Budget(total=900, spent_before=800)
    assert budget.spent() >= 800
    assert budget.left() <= 100
