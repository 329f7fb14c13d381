"""How the minutes of a search are spent: trials first, then the best and the default again with fresh seeds."""

import math
import time
from dataclasses import dataclass, field

from bert4rec.errors import UsageError
from bert4rec.settings.objectives import TrainingConfig

MANY, FEW, FEWEST = 24, 15, 6
"""Trainings that fit into a search, those with fresh seeds included. Trials are whole trainings where `MANY` of them
fit; otherwise they become shorter, down to a quarter, and then fewer; shorter again where `FEW` do not fit; and, if
they have `FEWEST_STEPS`, fewer again, down to the default, another one, and what it takes to confirm that."""
FRESH, SPARE = 6, 1
"""How many of them are not trials: those with fresh seeds, unless nothing but the default is tried, and some time to
spare."""
QUARTER = 0.25
MOST_VALIDATIONS, FEWEST_VALIDATIONS = 10, 3
VALIDATING = 0.25
"""Share of a trial that may go to validations, unless these are the fewest already."""
FEWEST_STEPS = 10
SEEDS, FEWEST_SEEDS = 3, 2
"""Trainings of the best and of the default that are compared in the end: the fewest if more would take more than
`RESERVED` of the time. The default's trial is one of them, for it was not chosen by its value; those of the best are
all fresh."""
RESERVED = 0.5
TOLERANCE = 1.2
"""A training may take longer than the same one before."""
TOO_SLOW, NEVER_TOO_SLOW = 2.5, 5.0
"""A trial that would take so many times as long as the default is given up, unless that is a few seconds."""


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a trial."""

    setup: float
    step: float
    validation: float

    def of(self, steps: float, validations: int) -> float:
        """Of a whole trial: in the end, all validation items are ranked once more."""
        return self.setup + steps * self.step + (validations + 1) * self.validation


@dataclass(frozen=True)
class TrialPlan:
    """How long each trial is trained."""

    share: float
    """Of the steps of a whole training."""
    validations: int
    seconds: float
    """About how long a trial of the default takes."""
    whole_seconds: float
    """About how long a whole training of the default takes."""

    @property
    def minutes_for_whole_ones(self) -> int:
        """Of a search whose trials are whole trainings."""
        return math.ceil(MANY * self.whole_seconds / 60)


def plan_trials(
    costs: Costs, training: TrainingConfig, seconds: float, trials: int | None = None
) -> TrialPlan:
    """Trials of such a length that enough of them fit into the time: as many as are asked for, if that is enough."""
    asked = MANY if trials is None else trials + FRESH * (trials > 1) + SPARE
    many, few, fewest = (min(enough, asked) for enough in (MANY, FEW, FEWEST))
    whole = costs.of(training.steps, MOST_VALIDATIONS)
    target = min(whole, max(seconds / many, min(QUARTER * whole, seconds / few)))
    fewest_steps = min(FEWEST_STEPS, training.steps)
    least = costs.of(fewest_steps, validations=1)
    if fewest * least > seconds:
        raise UsageError(
            f"`minutes` must be at least {math.ceil(fewest * least / 60)} on this machine: {fewest} trainings of "
            f"{fewest_steps} steps, the least that makes a search, take that long. For good settings, choose many more."
        )
    target = max(target, least)
    affordable = int(VALIDATING * target / max(costs.validation, 1e-9))
    validations = min(MOST_VALIDATIONS, max(FEWEST_VALIDATIONS, affordable))
    if costs.of(fewest_steps, validations) > target:
        validations = 1
    spare = target - costs.of(0, validations)
    steps = training.steps if target == whole else min(training.steps, spare / max(costs.step, 1e-9))
    share = max(steps, fewest_steps) / training.steps
    return TrialPlan(share, validations, costs.of(share * training.steps, validations), whole)


@dataclass(frozen=True)
class Budget:
    """The time of a search over all calls that worked on it."""

    total: float
    spent_before: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def spent(self) -> float:
        """Seconds, those of earlier calls included."""
        return self.spent_before + time.perf_counter() - self.began

    def left(self) -> float:
        return self.total - self.spent()

    def seeds_for(self, default: float, best: float) -> int:
        """How many trainings of each are to be compared, if one of them takes so many seconds."""
        is_enough = _confirming(SEEDS, default, best) <= RESERVED * self.total
        return SEEDS if is_enough else FEWEST_SEEDS

    def left_to_search(self, default: float, best: float) -> float:
        """Seconds until the trainings with fresh seeds have to begin."""
        return self.left() - _confirming(self.seeds_for(default, best), default, best)

    def longest_trial(self, default: float, best: float) -> float:
        """Seconds that the next trial may take.

        In the end there must be time for the fresh seeds of the best so far, if there is any, and for those of the
        trial itself, if it is better.
        """
        spare = self.left() - _confirming(FEWEST_SEEDS, default, best=0.0)
        with_its_own = spare / (1 + TOLERANCE * FEWEST_SEEDS)
        return min(too_slow(default), self.left_to_search(default, best), with_its_own)


def too_slow(default: float) -> float:
    """Seconds from which on a trial is given up where the default takes so many."""
    return max(NEVER_TOO_SLOW, TOO_SLOW * default)


def _confirming(seeds: int, default: float, best: float) -> float:
    """Seconds of the trainings with fresh seeds. The default needs one less: it has its trial."""
    return TOLERANCE * (seeds * best + (seeds - 1) * default)
