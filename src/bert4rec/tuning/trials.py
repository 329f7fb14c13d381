"""One training of a search: what it costs, how it goes, when it is given up. The test items are left alone."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Split, make_split
from bert4rec.errors import UsageError
from bert4rec.evaluation.judge import load_ranks
from bert4rec.evaluation.protocol import Ranks
from bert4rec.evaluation.yardsticks import Yardsticks
from bert4rec.settings.objectives import RunConfig
from bert4rec.training.device import Placement
from bert4rec.training.loop import Interrupted, TrainingProgress
from bert4rec.training.plan import Plan, Stage
from bert4rec.training.reporting.watch import Throughput
from bert4rec.training.train import RunContext, train
from bert4rec.tuning.budget import Costs

MEASURED_EVERY, MEASURED_FOR = 5, 1.0
"""Steps from one validation to the next while costs are measured, and for how many seconds. Those before the first
validation do not count: a GPU has to compile."""


class GivenUp(Exception):  # noqa: N818 (nothing went wrong)
    """A training was ended before its time; the message says why."""


@dataclass
class TrialWatch:
    """Listens to a training, and ends it if it is behind or too slow."""

    tell: Callable[[str], object] = lambda _: None
    """Hears how the training stands."""
    is_behind: Callable[[float, float], bool] = lambda _done, _value: False
    """Hears how much of the training is done and the best value so far, at every validation. True ends it."""
    should_stop: Callable[[], bool] = lambda: False
    """Whether the user wants the whole search to end."""
    seconds: float = float("inf")
    """After which the training is ended."""
    looks_ahead: bool = False
    """Whether it is ended as soon as it shows that it would take longer."""

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        self._steps = self._reports = 0
        self._why = ""
        self.best_value = float("-inf")
        self.marks: list[dict[str, Any]] = []
        """The validations so far."""

    @property
    def why(self) -> str:
        """Why the training has to end; empty as long as it may go on."""
        return self._why or ("too slow" if self._passed() >= self.seconds else "")

    def is_over(self) -> bool:
        """Asked before every step and every batch of a ranking."""
        return bool(self.why) or self.should_stop()

    def _passed(self) -> float:
        return time.perf_counter() - self._began

    def stage(self, _stage: Stage, steps: int) -> None:
        self._steps = steps

    def progress(self, _stage: Stage, progress: TrainingProgress, pace: Throughput) -> None:
        self._reports += 1
        self.marks, self.best_value = progress.history, progress.best_value
        text = f"step {progress.step:,} of {self._steps:,}"
        self.tell(f"{text}, {self.marks[-1]['value']:.4f}" if self.marks else text)
        is_mark = bool(self.marks) and self.marks[-1]["step"] == progress.step
        # The first report may have been held up by something that is over.
        is_known = self.looks_ahead and self._reports > 1
        if is_mark and self.is_behind(progress.step / self._steps, self.best_value):
            self._why = "behind the others"
        elif is_known and self._passed() + pace.seconds_left > self.seconds:
            self._why = "too slow"

    def busy(self, what: str, seconds_left: float) -> None: ...

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True)
class Trainer:
    """Trains one setting after the other, and keeps nothing but the ranks of the validation items."""

    dataset: Dataset
    plan: Plan
    """What all trainings have in common."""
    folder: Path
    """Cleared before and after each training."""
    placement: Placement
    compile_step: bool

    @cached_property
    def split(self) -> Split:
        return make_split(self.dataset, self.plan.split)

    @cached_property
    def yardsticks(self) -> Yardsticks:
        """What counting reaches on the validation items, whatever is trained."""
        return Yardsticks.measure(self.dataset, self.split, self.plan.criterion)

    def train(self, config: RunConfig, watch: TrialWatch, seed: int | None = None) -> Ranks:
        """The ranks by the best weights of a training.

        Raises `GivenUp` if `watch` ended it, `Interrupted` if the user did, and `CollapsedError` if it came to nothing:
        started over with another learning rate, as by `bert4rec.train`, it would say nothing about its own.
        """
        plan = replace(self.plan, config=config, seed=self.plan.seed if seed is None else seed)
        # Each model is compiled anew, and torch stops compiling after a few.
        torch.compiler.reset()
        around = RunContext(
            self.placement,
            watch,
            self.compile_step,
            watch.is_over,
            may_restart=False,
            yardsticks=self.yardsticks,
        )
        device = self.placement.device
        try:
            self._clear()
            # Training seeds torch; the caller's random numbers go on as if nothing had happened.
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                run = train(self.dataset, self.folder, plan, around)
            return load_ranks(run.path, "valid")
        except Interrupted:
            if not watch.why:
                raise
            raise GivenUp(watch.why) from None
        finally:
            self._clear()

    def measure(self, config: RunConfig, should_stop: Callable[[], bool], seconds: float) -> Costs:
        """What the parts of a training cost, from its first steps, which must fit into so many seconds."""
        began, times = time.perf_counter(), []

        def is_enough(_done: float, _value: float) -> bool:
            times.append(time.perf_counter())
            return len(times) > 1 and times[-1] - times[0] > MEASURED_FOR

        watch = TrialWatch(is_behind=is_enough, should_stop=should_stop, seconds=seconds)
        assert config.training
        often = replace(config.training, validate_every=MEASURED_EVERY)
        with suppress(GivenUp):
            self.train(replace(config, training=often), watch)
        if not watch.marks:
            raise UsageError("`minutes` is too short: not even the first steps of a training fit into it.")
        first, *others = watch.marks
        validations = [mark["validation_seconds"] for mark in watch.marks]
        until_first = times[0] - began - validations[0]
        if not others:  # It was over at once.
            return Costs(0.0, until_first / first["step"], validations[0])
        steps = others[-1]["step"] - first["step"]
        step = max(0.0, times[-1] - times[0] - sum(validations[1:])) / steps
        return Costs(max(0.0, until_first - step * first["step"]), step, median(validations))

    def _clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
