"""How the minutes of a search are spent: trials first, then the best and the default again with fresh seeds."""

import math
import time
from dataclasses import dataclass, field

from bert4rec.errors import UsageError
from bert4rec.settings.objectives import TrainingConfig

MANY, FEW = 24, 12
"""Trainings that fit into a search, those with fresh seeds included. Trials are whole trainings where `MANY` of them
fit; otherwise they become shorter, down to a quarter, and then fewer; and shorter again where `FEW` do not fit."""
QUARTER = 0.25
MOST_VALIDATIONS, FEWEST_VALIDATIONS = 10, 3
VALIDATING = 0.25
"""Share of a trial that may go to validations, unless these are the fewest already."""
FEWEST_STEPS = 10
SEEDS = 3
"""Of the best and of the default in the end, if they take no more than `RESERVED` of the time; otherwise fewer."""
RESERVED = 1 / 3
TOLERANCE = 1.1
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
        """Of a whole trial: in the end, all validation items are ranked twice more."""
        return self.setup + steps * self.step + (validations + 2) * self.validation


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


def plan_trials(costs: Costs, training: TrainingConfig, seconds: float) -> TrialPlan:
    """Trials of such a length that enough of them fit into the time."""
    whole = costs.of(training.steps, MOST_VALIDATIONS)
    target = min(whole, max(seconds / MANY, min(QUARTER * whole, seconds / FEW)))
    affordable = int(VALIDATING * target / max(costs.validation, 1e-9))
    validations = min(MOST_VALIDATIONS, max(FEWEST_VALIDATIONS, affordable))
    spare = target - costs.of(0, validations)
    steps = training.steps if target == whole else min(training.steps, spare / max(costs.step, 1e-9))
    if steps < min(FEWEST_STEPS, training.steps):
        needed = FEW * costs.of(FEWEST_STEPS, FEWEST_VALIDATIONS) / 60
        raise UsageError(
            f"`minutes` must be at least {math.ceil(needed)} on this machine: even trials of {FEWEST_STEPS} steps take "
            "that long. For good settings, choose many more."
        )
    share = steps / training.steps
    return TrialPlan(share, validations, costs.of(steps, validations), whole)


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
        """How many fresh seeds of both there are to be, if a training of each takes so many seconds."""
        affordable = int(RESERVED * self.total / (TOLERANCE * (default + best)))
        return min(SEEDS, max(1, affordable))

    @staticmethod
    def longest_trial(default: float) -> float:
        """Seconds that a trial may take where the default takes so many."""
        return max(NEVER_TOO_SLOW, TOO_SLOW * default)

    def left_to_search(self, default: float, best: float) -> float:
        """Seconds until the trainings with fresh seeds have to begin."""
        return self.left() - self.seeds_for(default, best) * TOLERANCE * (default + best)
