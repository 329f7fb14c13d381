"""The minutes of a search are enough for trials and for a verdict, whatever a training costs."""

import pytest

from bert4rec.errors import UsageError
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tuning.budget import FEWEST_SEEDS, TOLERANCE, Budget, Costs, TrialPlan, plan_trials

TRAINING = TrainingConfig(steps=1000)


def plan(
    minutes: float,
    trials: int | None = None,
    *,
    step: float = 0.1,
    validation: float = 0.0,
    setup: float = 0.0,
) -> TrialPlan:
    return plan_trials(Costs(setup, step, validation), TRAINING, 60 * minutes, trials)


@pytest.mark.parametrize(
    ("minutes", "share"),
    [(100, 1.0), (40, 1.0), (20, 0.5), (10, 0.25), (7, 0.25), (5, 0.2), (1, 0.04)],
)
def test_trials_are_whole_if_many_fit_then_shorter_then_fewer_then_shorter_again(
    minutes: float, share: float
) -> None:
    """A whole training takes 100 seconds here."""
    found = plan(minutes)
    assert found.share == pytest.approx(share)
    assert found.seconds == pytest.approx(100 * share)
    assert found.whole_seconds == pytest.approx(100)
    assert 60 * minutes / found.seconds >= 15 - 1e-9


def test_validations_take_a_quarter_of_a_trial_at_most_and_are_never_fewer_than_three() -> None:
    assert plan(24, validation=0.1).validations == 10
    assert plan(24, validation=2.0).validations == 7
    assert plan(24, validation=8.0).validations == 3


def test_setting_up_and_validating_come_out_of_the_time_of_a_trial() -> None:
    found = plan(20, validation=1.0, setup=5.0)
    assert found.seconds == pytest.approx(50)
    assert found.share * 100 == pytest.approx(50 - 5 - 11)


def test_a_search_that_could_try_next_to_nothing_is_refused_with_what_it_needs() -> None:
    """With one validation, such a trial takes 2 + 10 + 2 seconds, and six of them 84."""
    words = (
        "`minutes` must be at least 2 on this machine: 6 trainings of 10 steps, the least that makes a search"
    )
    with pytest.raises(UsageError, match=words):
        plan(1, step=1.0, validation=1.0, setup=2.0)
    found = plan(1.5, step=1.0, validation=1.0, setup=2.0)
    assert (found.share, found.validations, found.seconds) == (0.01, 1, 14.0)


def test_a_search_of_a_few_trials_needs_time_for_no_more_than_these_and_has_longer_ones() -> None:
    with pytest.raises(UsageError, match="6 trainings of 10 steps"):
        plan(0.2, 2, step=0.3)
    assert plan(0.2, 1, step=0.3).share == pytest.approx(0.02), "a default alone needs no fresh seeds"
    assert plan(10).share == 0.25
    assert plan(10, 3).share == pytest.approx(0.6)
    assert plan(10, 1000).share == 0.25


def test_a_training_of_a_few_steps_is_tried_whole() -> None:
    assert plan_trials(Costs(0.1, 0.01, 0.0), TrainingConfig(steps=4), 60).share == 1


@pytest.mark.parametrize(("seconds", "seeds"), [(30, 3), (75, 3), (80, 2), (100, 2), (500, 2)])
def test_half_of_the_time_goes_to_three_seeds_of_each_or_else_what_two_need(
    seconds: float, seeds: int
) -> None:
    """The default has its trial, so it needs one training less."""
    budget = Budget(total=900)
    assert budget.seeds_for(seconds, seconds) == seeds
    assert budget.left_to_search(seconds, seconds) <= 900 - (2 * seeds - 1) * seconds


@pytest.mark.parametrize("minutes", [5, 10, 20, 60])
def test_however_long_a_training_takes_there_is_time_for_three_seeds_of_a_trial_of_usual_length(
    minutes: float,
) -> None:
    seconds = plan(minutes, step=0.5).seconds
    assert Budget(total=60 * minutes).seeds_for(seconds, seconds) == 3


@pytest.mark.parametrize("spent", [0, 300, 600, 800])
def test_no_trial_takes_so_long_that_it_could_not_be_confirmed(spent: float) -> None:
    budget, default, best = Budget(total=900, spent_before=spent), 20.0, 30.0
    longest = budget.longest_trial(default, best)
    assert longest <= 2.5 * default
    assert longest <= budget.left_to_search(default, best) + 1e-3
    assert budget.longest_trial(default, best=0.0) >= longest, "as long as there is nothing to confirm"
    again = TOLERANCE * (FEWEST_SEEDS * longest + (FEWEST_SEEDS - 1) * default)
    assert longest + again <= budget.left() + 1e-2


def test_time_that_earlier_calls_have_spent_is_spent() -> None:
    budget = Budget(total=900, spent_before=800)
    assert budget.spent() >= 800
    assert budget.left() <= 100
