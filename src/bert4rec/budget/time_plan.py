"""Settings with which all of a run ends in a given time: steps, width and validations, whatever nobody has set."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from bert4rec.budget.pace import Pace, measure_pace
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.errors import UsageError
from bert4rec.settings.config import GivenSettings
from bert4rec.settings.defaults import DataFacts
from bert4rec.settings.objectives import RunConfig, TrainingConfig
from bert4rec.settings.presets import Values
from bert4rec.settings.sections import DEFAULT_MODEL
from bert4rec.training.device import Placement
from bert4rec.training.plan import STAGES, Plan
from bert4rec.training.reporting.forecast import Forecast, in_words
from bert4rec.training.stages import growth

PLANNED_SHARE = 0.9
"""Of the time. The rest is for checkpoints, files and a machine that is slower later on."""
TRIAL_SHARE, SHORTEST_TRIAL, LONGEST_TRIAL = 0.02, 1.0, 10.0
"""Of the time, and seconds: how long steps are tried at most for each width."""
VALIDATION_SHARE = 0.15
"""Of the time, at most, as long as there are `FEWEST_VALIDATIONS`."""
FEWEST_VALIDATIONS = 5
ENOUGH_STEPS = 1 / 3
"""Of the usual ones. Before there are fewer, the model becomes narrower."""
FEWEST_STEPS = 100
"""Below, nothing is learned that is worth waiting for."""
NARROWEST = 32
"""Narrower still is hardly faster."""
CPU_MINUTES = 15.0
"""How long a training may take on a CPU where nobody has said."""


def usual_minutes(given: GivenSettings, placement: Placement) -> float | None:
    """The limit where nobody has set one: that of the default model on a CPU, if its settings follow from the data."""
    is_free = given.model == DEFAULT_MODEL and not given.preset and not given.has("training", "steps")
    return CPU_MINUTES if is_free and placement.device.type == "cpu" else None


def plan_minutes(
    minutes: float,
    plan: Plan,
    given: GivenSettings,
    dataset: Dataset,
    placement: Placement,
    *,
    compile_step: bool,
    began: float,
    is_asked: bool = True,
) -> tuple[Plan, str]:
    """The same plan with settings that fit into so many minutes from `began` on, and what was planned in words.

    If nobody asked for a limit, the smallest plan is taken where nothing fits, and what fits as it is needs no
    words.
    """
    dataset.verify()
    split = make_split(dataset, plan.split)
    if not len(split.valid):  # Nothing to measure by; `train` says why it cannot begin.
        return plan, ""
    # Without a limit to keep to, a rough idea is enough.
    share = TRIAL_SHARE * 60 * minutes if is_asked else 0.0
    seconds = min(LONGEST_TRIAL, max(SHORTEST_TRIAL, share))

    def pace_of(config: RunConfig) -> Pace:
        return measure_pace(
            config, plan, dataset, split, placement, compile_step=compile_step, seconds=seconds
        )

    facts = DataFacts.of(dataset)
    more = growth(dataset, split)
    budget = TimeBudget(minutes, plan, given, facts, lambda: time.perf_counter() - began, is_asked, more)
    config, told = budget.fit(pace_of)
    if not is_asked:
        told = f"{told} `minutes` sets another limit." if config != plan.config else ""
    return replace(plan, config=config), told


@dataclass(frozen=True)
class TimeBudget:
    """So many minutes for a run, and what may be changed to keep to them."""

    minutes: float
    plan: Plan
    """With the usual settings."""
    given: GivenSettings
    facts: DataFacts
    passed: Callable[[], float]
    """Seconds that are gone already."""
    is_strict: bool = True
    """Whether to refuse where nothing fits; otherwise the smallest plan is taken."""
    growth: float = 1.0
    """How many times the selection's steps a training for production takes."""

    def fit(self, pace_of: Callable[[RunConfig], Pace]) -> tuple[RunConfig, str]:
        """Settings that fit, and a few words on them.

        The usual ones, if they do. Otherwise fewer steps, down to a third; then narrower models; then fewer steps
        still.
        """
        most = self._usual.steps
        is_fixed = self.given.has("training", "steps")
        fewest = most if is_fixed else min(FEWEST_STEPS, most)
        usual_seconds = 0.0
        for network in self._networks():
            pace = pace_of(self.given.complete(self.facts, network))
            usual_seconds = usual_seconds or self._seconds(self.plan.config, pace)
            left = PLANNED_SHARE * 60 * self.minutes - self.passed()
            steps = self._most_steps(network, pace, left, fewest)
            if steps >= (most if is_fixed else ENOUGH_STEPS * most):
                break
        if steps < fewest and self.is_strict:
            raise self._too_little(self._config(network, fewest, self._validations(pace, left)), pace)
        steps = max(steps, fewest)
        if steps < most:
            steps -= steps % 10
        config = self._config(network, steps, self._validations(pace, left))
        return config, self._told(config, self._seconds(config, pace), usual_seconds)

    @property
    def _usual(self) -> TrainingConfig:
        assert self.plan.config.training, "a model that is not trained needs no plan"
        return self.plan.config.training

    def _networks(self) -> Iterator[Values]:
        """The usual width, then half of it, and so on, with heads in proportion; a width that is set stays."""
        yield {}
        usual = asdict(self.plan.config.model)
        if self.given.preset or self.given.has("model", "dim") or "dim" not in usual:
            return
        share = 2
        while usual["dim"] // share >= NARROWEST:
            sizes = {"dim": usual["dim"] // share}
            if "heads" in usual:
                sizes["heads"] = max(1, usual["heads"] // share)
            try:
                self.given.complete(self.facts, {"model": sizes})
            except UsageError:  # It does not go with something that is set, such as the number of heads.
                return
            yield {"model": sizes}
            share *= 2

    def _most_steps(self, network: Values, pace: Pace, seconds: float, fewest: int) -> int:
        """That fit into so many seconds; one less than the fewest if those do not."""
        validations = self._validations(pace, seconds)
        return bisect_right(
            range(fewest, self._usual.steps + 1),
            seconds,
            key=lambda steps: self._seconds(self._config(network, steps, validations), pace),
        ) + (fewest - 1)

    def _validations(self, pace: Pace, seconds: float) -> int:
        """As many as may be made."""
        return max(FEWEST_VALIDATIONS, int(VALIDATION_SHARE * seconds / pace.costs.selecting(self.plan)))

    def _config(self, network: Values, steps: int, validations: int) -> RunConfig:
        """All settings with so many steps, and at most so many validations."""
        usual = self._usual
        warmup = max(steps // 10, usual.warmup_steps * steps // usual.steps)
        training = {
            "steps": steps,
            "warmup_steps": min(usual.warmup_steps, warmup),
            "validate_every": max(
                1, usual.validate_every * steps // usual.steps, math.ceil(steps / validations)
            ),
        }
        return self.given.complete(self.facts, {**network, "training": training})

    def _seconds(self, config: RunConfig, pace: Pace) -> float:
        """Of a whole run, from now on."""
        assert config.training
        forecast = Forecast(replace(self.plan, config=config), self.growth)
        forecast.begin(pace.costs)
        stages = 1 + STAGES.index(self.plan.final_stage)
        return stages * pace.setup + forecast.seconds_left("selection", 0, config.training.steps)

    def _told(self, config: RunConfig, seconds: float, usual_seconds: float) -> str:
        assert config.training
        steps, every, usual = config.training.steps, config.training.validate_every, self._usual.steps
        width, usual_width = config.model.width, self.plan.config.model.width
        of = f" (instead of {usual:,})" if steps < usual else ""
        wide = f", width {width}" if width else ""
        wide += f" (instead of {usual_width})" if width < usual_width else ""
        late = "" if self.passed() + seconds <= 60 * self.minutes else ", the least that can be planned"
        told = (
            f"{_minutes(self.minutes)}: {steps:,} steps{of}{wide}, a validation every {every:,} steps; "
            f"{in_words(self.passed() + seconds)} in all{late}."
        )
        if steps < usual or width < usual_width:
            return f"{told} Without a limit it would take {in_words(self.passed() + usual_seconds)}."
        return f"{told} The rest is not needed: the best number of steps is chosen by validation anyway."

    def _too_little(self, config: RunConfig, pace: Pace) -> UsageError:
        assert config.training
        seconds = self.passed() + self._seconds(config, pace)
        wide = f" of width {config.model.width}" if config.model.width else ""
        return UsageError(
            f"`minutes={self.minutes:g}` is too little for {config.training.steps:,} steps{wide}, the least that can "
            f"be planned. Use `minutes={math.ceil(seconds / PLANNED_SHARE / 60)}` or more."
        )


def _minutes(minutes: float) -> str:
    return f"{minutes:g} minute{'s' * (minutes != 1)}"
