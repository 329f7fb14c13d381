"""How long a run still takes: measured before it begins, corrected as it goes on."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Part, Targets
from bert4rec.evaluation.protocol import rank_among_negatives, rank_targets
from bert4rec.models.model import ModelScorer, make_scorer
from bert4rec.training.loop import Loop, TrainingProgress
from bert4rec.training.reporting.progress_log import ProgressLog
from bert4rec.training.reporting.watch import Listener, Throughput
from bert4rec.training.run import Plan, Stage

MEMORY = 60.0
"""Seconds after which a step counts a third: a stalled second does not show, a lasting slow-down does."""
LARGEST_SHARE = 0.01
"""Of the steps to come that may be tried to learn how long one takes."""
MOST_PASSES = 8
MOST_USERS = 256
"""Whose targets are ranked to learn how long that takes; never more than a tenth of all."""


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts that a run is made of."""

    step: float
    validation: float
    """Of all validation items among their candidates."""
    judging: float
    """Of all items of a part, under both protocols."""

    def selecting(self, plan: Plan) -> float:
        """Of a validation by what the plan selects by."""
        return self.validation if plan.criterion.under == "sampled" else self.judging


def passes_for(steps: int) -> int:
    """How many may be tried where so many steps are to come."""
    return min(MOST_PASSES, int(steps * LARGEST_SHARE))


def measure(
    loop: Loop,
    scorer: ModelScorer,
    dataset: Dataset,
    targets: Targets,
    *,
    passes: int,
    users: int = MOST_USERS,
) -> Costs:
    """What a step and a ranking of all validation items cost, found by trying a few.

    Whatever is tried leaves no trace: see `Loop.time_step`.
    """
    step = loop.time_step(passes)
    loop.task.model.eval()
    return Costs(step, *measure_rankings(scorer, dataset, targets, users))


def measure_rankings(
    scorer: ModelScorer, dataset: Dataset, targets: Targets, users: int = MOST_USERS
) -> tuple[float, float]:
    """Seconds of ranking all targets among their candidates, and under both protocols, from those of some users."""
    size = max(1, min(users, len(targets) // 10))
    chosen = np.linspace(0, len(targets) - 1, size).astype(np.int64)
    some = Targets(targets.users[chosen], targets.positions[chosen])
    negatives = dataset.negatives("popularity")

    def seconds(rank: Callable[..., object]) -> float:
        began = time.perf_counter()
        rank(scorer, dataset, some, negatives=negatives)
        return (time.perf_counter() - began) * len(targets) / size

    return seconds(rank_among_negatives), seconds(rank_targets)


class Forecast:
    """Seconds that a run still takes, from what it has taken so far; none where there is nothing to go by."""

    def __init__(self, plan: Plan, growth: float = 1.0) -> None:
        """`growth`: how many times the selection's steps a training for production takes."""
        self._plan, self._growth = plan, growth if plan.refit == "all" else 0.0
        self._seconds = self._steps = self._validation = self._judging = 0.0

    @property
    def is_blank(self) -> bool:
        return not self._steps

    def begin(self, costs: Costs) -> None:
        self._seconds, self._steps = costs.step, 1.0
        self._validation, self._judging = costs.selecting(self._plan), costs.judging

    def learn_steps(self, steps: int, seconds: float) -> None:
        """An average over the last minute or so, of which the older counts ever less."""
        kept = math.exp(-seconds / MEMORY)
        self._seconds = kept * self._seconds + seconds
        self._steps = kept * self._steps + steps

    def learn_validation(self, seconds: float) -> None:
        self._validation = (self._validation + seconds) / 2 if self._validation else seconds

    def learn_judging(self, seconds: float) -> None:
        self._judging = seconds

    def steps_left(self, stage: Stage, step: int, last: int) -> int:
        """Until it is known how many steps are best, a refit may take all of them."""
        refit = last if stage == "selection" and self._plan.refit else 0
        return last - step + refit + (0 if stage == "production" else self._for_production(last))

    def _for_production(self, steps: int) -> int:
        return round(self._growth * steps)

    def seconds_left(self, stage: Stage, step: int, last: int) -> float:
        """Of all that is to come after this step of a stage, if nothing ends early."""
        seconds = self.steps_left(stage, step, last) * self._seconds_of_a_step
        if stage == "selection":
            seconds += self._validations(step, last) * self._validation
        if stage == "production":
            return seconds
        return seconds + self.seconds_of_judging("valid" if stage == "selection" else "test")

    @property
    def _seconds_of_a_step(self) -> float:
        return self._seconds / (self._steps or 1.0)

    def seconds_of_judging(self, part: Part) -> float:
        """Of what is judged in the end, from this part on."""
        return (1 + (part == "valid" and self._plan.test)) * (self._judging or self._validation)

    def seconds_from_judging(self, part: Part, steps: int) -> float:
        """Of what is judged from this part on, and of what is trained after it; `steps` were the best."""
        refit = steps if part == "valid" and self._plan.refit else 0
        return self.seconds_of_judging(part) + (refit + self._for_production(steps)) * self._seconds_of_a_step

    def told(self, stage: Stage, step: int, last: int) -> str:
        """In one line, before anything begins."""
        about, steps = in_words(self.seconds_left(stage, step, last)).capitalize(), f"{last - step:,} steps"
        if stage != "selection":
            return f"{about}: {steps}."
        validations = self._validations(step, last)
        refit = ", then a refit" if self._plan.refit else ""
        refit += " and a training on everything" if self._plan.refit == "all" else ""
        return f"{about}: at most {steps}, {validations:,} validation{'s' * (validations > 1)}{refit}."

    def _validations(self, step: int, last: int) -> int:
        training = self._plan.config.training
        return math.ceil((last - step) / training.validate_every) if training else 0


def in_words(seconds: float) -> str:
    """About 40 seconds, about 12 minutes, about 3.5 hours."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} second{'s' * (round(seconds) > 1)}"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} minutes"
    return f"about {seconds / 3600:.{0 if seconds > 36_000 else 1}f} hours"


@dataclass
class StageReporter:
    """Keeps the forecast, the log and the listener up to date while a stage is trained."""

    loop: Loop
    stage: Stage
    steps: int
    forecast: Forecast
    log: ProgressLog
    listener: Listener

    def __post_init__(self) -> None:
        self._learned, self._is_warm = self.loop.progress.step, self.loop.is_warm
        # A GPU has to compile first, and a single step says little about one that is replayed: it is announced later.
        self._is_announced = self._is_warm

    def forecast_first(
        self, dataset: Dataset, targets: Targets, dtype: torch.dtype | None, *, is_told: bool
    ) -> None:
        """Measure how long the run will take, where that can be done beforehand, and say so if nobody did yet."""
        if self.stage == "selection" and self.loop.path:
            self.listener.say(self.loop.path)
        self._is_announced |= not is_told
        to_come = self.forecast.steps_left(self.stage, self._learned, self.steps)
        passes = passes_for(to_come) if self._is_warm else 0
        if self.forecast.is_blank and passes:
            scorer = make_scorer(self.loop.task.model, dtype)
            self.forecast.begin(measure(self.loop, scorer, dataset, targets, passes=passes))
            if is_told:
                self.listener.say(self.forecast.told(self.stage, self._learned, self.steps))

    def report(self, progress: TrainingProgress, loss: float, steps_per_second: float) -> None:
        """What `Hooks.report` calls."""
        forecast = self.forecast
        if steps_per_second and self._is_warm:
            done = progress.step - self._learned
            forecast.learn_steps(done, done / steps_per_second)
            if not self._is_announced and self.stage == "selection":
                self.listener.say(forecast.told(self.stage, progress.step, self.steps))
            self._is_announced = True
        self._learned, self._is_warm = progress.step, self.loop.is_warm
        if progress.history and progress.history[-1]["step"] == progress.step:
            forecast.learn_validation(progress.history[-1].get("validation_seconds", 0.0))
            self.log.write(self.stage, len(progress.restarts) + 1, progress.history)
        seconds_left = forecast.seconds_left(self.stage, progress.step, self.steps)
        samples = steps_per_second * self.loop.config.batch_size
        self.listener.progress(self.stage, progress, Throughput(loss, samples, seconds_left))
