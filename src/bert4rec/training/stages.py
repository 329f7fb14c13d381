"""How one stage of a run is trained: a fresh model on what the stage may see, resumed where it was interrupted, and
begun anew where it collapsed."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.splits import Part, Split
from bert4rec.distributed.crew import ALONE, Crew
from bert4rec.errors import Bert4RecError
from bert4rec.evaluation.exam import Exam, Judged
from bert4rec.evaluation.protocol import DivergedError
from bert4rec.evaluation.yardsticks import Yardsticks
from bert4rec.models.model import ModelScorer, make_scorer
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tasks.task import Task, TaskInputs
from bert4rec.training.collapse import CollapsedError, why_collapsed, why_fallen_behind
from bert4rec.training.device import Placement
from bert4rec.training.loop import Hooks, Interrupted, Loop, TrainingProgress
from bert4rec.training.plan import Plan, Stage
from bert4rec.training.reporting import advice
from bert4rec.training.reporting.forecast import Forecast, StageReporter
from bert4rec.training.reporting.progress_log import ProgressLog
from bert4rec.training.reporting.watch import Listener
from bert4rec.training.specs import ModelSpec

if TYPE_CHECKING:
    from bert4rec.distributed.ranks import Ranks

LISTED = (10,)
"""How many items of each list count for what a result says of the lists."""
MOST_RESTARTS = 2
"""How often a stage that collapses is begun anew, with half the learning rate each time."""


def training_end(dataset: Dataset, split: Split, stage: Stage) -> NDArray[np.int64]:
    """Per user, where what a stage learns from ends (exclusive)."""
    if stage == "production":
        return dataset.offsets[1:]
    return split.training_end("valid" if stage == "selection" else "test")


def growth(dataset: Dataset, split: Split) -> float:
    """How many times as many actions there are in all as the selection learns from."""
    learned = training_end(dataset, split, "selection") - dataset.offsets[:-1]
    return dataset.num_actions / max(1, int(learned.sum()))


@dataclass(frozen=True)
class RunContext:
    """What is no part of a plan: where a run happens, what watches it, and what its caller does for it."""

    placement: Placement
    listener: Listener
    compile_step: bool = True
    should_stop: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.perf_counter)
    is_announced: bool = False
    """Whether it was said how long it will take."""
    may_restart: bool = True
    """Whether a stage that collapses is begun anew; otherwise `CollapsedError` is raised."""
    yardsticks: Yardsticks | None = None
    """What counting reaches, if the caller has counted already: it takes a while on a large log."""
    crew: Crew = ALONE
    """The processes that train together."""
    remedy: str = ""
    """What to try where a model is worth too little, if the caller lets nobody choose model and settings."""


@dataclass(frozen=True)
class StageTrainer:
    """Trains the stages of one run."""

    dataset: Dataset
    split: Split
    folder: Path
    plan: Plan
    around: RunContext
    spec: ModelSpec
    forecast: Forecast

    def task(self, stage: Stage) -> Task:
        """A fresh model, and what it is to learn."""
        placement = self.around.placement
        inputs = TaskInputs(
            self.dataset,
            training_end(self.dataset, self.split, stage),
            self.plan.config,
            seed=self.plan.seed,
            device=placement.device,
            dtype=placement.dtype,
        )
        with self.crew.order("task", stage=stage):
            return self.crew.divided(self.spec.make_task(inputs))

    @property
    def crew(self) -> Crew:
        return self.around.crew

    def fit(self, task: Task, stage: Stage, steps: int, training: TrainingConfig) -> Loop:
        """Train a model. One that collapses is given up, and a fresh one is trained with half the learning rate."""
        restarts: list[dict[str, Any]] = []
        seconds = 0.0
        while True:
            progress = TrainingProgress(metric=self.plan.select_by, restarts=restarts, seconds=seconds)
            loop = self._loop(task, training, progress)
            try:
                self._run(loop, stage, steps)
                return loop
            except CollapsedError as collapse:
                if not self.around.may_restart:
                    raise
                step, rate, reason = loop.progress.step, loop.learning_rate / 2, str(collapse)
                restart = {"stage": stage, "step": step, "learning_rate": rate, "reason": reason}
                restarts, seconds = [*loop.progress.restarts, restart], loop.progress.seconds
            self.around.listener.warn(advice.tell_of_restart(restart))
            del task, loop  # A GPU may not have room for both.
            task = self.task(stage)

    def _loop(self, task: Task, training: TrainingConfig, progress: TrainingProgress) -> Loop:
        with self.crew.order("loop", training=asdict(training), progress=asdict(progress)):
            return Loop(
                task,
                training,
                device=self.around.placement.device,
                seed=self.plan.seed,
                compile_step=self.around.compile_step,
                progress=progress,
                crew=self.crew,
            )

    def scorer(self, task: Task) -> ModelScorer:
        """Checks before each batch whether to stop: a ranking may take minutes."""
        plain = make_scorer(task.model, self.around.placement.dtype)

        def scores(
            users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
        ) -> torch.Tensor:
            if self.around.should_stop():
                raise Interrupted
            return plain(users, histories, items)

        return scores

    def set_weights(self, task: Task, weights: Mapping[str, Tensor]) -> None:
        """Let the model of every process have these, and be ready to be asked."""
        with self.crew.order("set_weights"):
            self.crew.set_weights(task.model, weights)
            task.model.eval()

    def validate(self, task: Task) -> float:
        """What the plan selects by, on the validation items."""
        device, model = self.around.placement.device.type, task.model
        with self.crew.order("validate", way_to_ask=model.way_to_ask), self.crew.judging(model):
            return self.plan.criterion.judge(
                self.scorer(task), self.dataset, self.split, device, party=self.crew
            )

    def ask(self, task: Task, part: Part) -> Judged:
        """All that is told of a model's answers about the items of a part."""
        device, model = self.around.placement.device.type, task.model
        exam = Exam(self.dataset, self.split, part, "next", "popularity", LISTED)
        with self.crew.order("ask", part=part, way_to_ask=model.way_to_ask), self.crew.judging(model):
            return exam.judge(self.scorer(task), device, party=self.crew)

    def _run(self, loop: Loop, stage: Stage, steps: int) -> None:
        self.around.listener.stage(stage, steps)
        checkpoint, tag = self._checkpoint(stage), self.plan.tag(stage)
        # What is there when an attempt follows another belongs to that one.
        if checkpoint.exists() and not loop.progress.restarts:
            loop.resume(checkpoint, tag)
            self.around.listener.say(f"Resuming at step {loop.progress.step:,}.")
        reporter = StageReporter(loop, stage, steps, self.forecast, self.log, self.around.listener)
        if self.crew.is_alone:
            reporter.forecast_first(
                self.dataset,
                self.split.valid,
                self.around.placement.dtype,
                is_told=not self.around.is_announced,
            )
        # An experiment shows what becomes of its variant, whatever that is.
        may_restart = len(loop.progress.restarts) < MOST_RESTARTS and not self.plan.variant
        why_over = self._judge_of_collapse(stage, steps, loop.config)

        def validate() -> float:
            step = loop.progress.step
            left = self.forecast.seconds_left(stage, step, steps)
            self.around.listener.busy(f"validating at step {step}", left)
            try:
                return self.validate(loop.task)
            except DivergedError as error:
                if may_restart:
                    raise CollapsedError("the model's scores are no longer numbers") from error
                raise

        def report(progress: TrainingProgress, loss: float, steps_per_second: float) -> None:
            if may_restart and not isfinite(loss):
                raise CollapsedError("the loss is no longer a number")
            reporter.report(progress, loss, steps_per_second)
            if may_restart and (why := why_over(progress)):
                raise CollapsedError(why)

        hooks = Hooks(
            validate=validate if stage == "selection" else None,
            report=report,
            should_stop=self.around.should_stop,
            facts=lambda: {
                "command_seconds": self.seconds(),
                "device_shared": self.around.placement.is_shared,
            },
        )
        loop.run(steps, hooks, checkpoint, tag)
        loop.task.model.eval()

    def follow(self, ranks: "Ranks") -> dict[str, Any] | None:
        """Do what the first process does, whenever it says so, until all is over or it has another plan, which is
        returned."""
        from bert4rec.distributed.ranks import DroppedError

        tasks: list[Task] = []
        loops: list[Loop] = []
        for name, given in ranks.orders():
            if name == "plan":
                return given
            if name == "task":
                tasks, loops = [], []  # A GPU may not have room for both.
                try:
                    tasks = [self.task(given["stage"])]
                except Bert4RecError as error:  # The first one has it, too, and says it.
                    ranks.leave(error.exit_code)
                continue
            task = tasks[0]
            if name == "loop":
                loops = []
                progress = TrainingProgress(**given["progress"])
                loops = [self._loop(task, TrainingConfig(**given["training"]), progress)]
                task.model.train()
            elif name == "go_on":
                loops[0].go_on({}, {})
            elif name == "set_weights":
                self.set_weights(task, {})
            elif name in ("validate", "ask"):
                task.model.eval()
                task.model.way_to_ask = given["way_to_ask"]
                with suppress(DroppedError, DivergedError):  # The first one knows, and says what is next.
                    self.validate(task) if name == "validate" else self.ask(task, given["part"])
                task.model.train(bool(loops))
            else:
                {
                    "take_step": loops[0].take_step,
                    "catch_up": loops[0].catch_up,
                    "keep_best": loops[0].keep_best,
                    "collect": loops[0].collect,
                    "weights": loops[0].weights,
                }[name]()
        return None

    def _judge_of_collapse(
        self, stage: Stage, steps: int, training: TrainingConfig
    ) -> Callable[[TrainingProgress], str]:
        """Why a training has come to nothing, from its progress; empty as long as something may become of it."""
        if stage == "selection":
            return lambda progress: self._why_collapsed(progress, training)
        selection, warmup = self.log.read("selection"), training.warmup_steps
        return lambda progress: why_fallen_behind(progress.history, selection, warmup, steps)

    def _why_collapsed(self, progress: TrainingProgress, training: TrainingConfig) -> str:
        # Counting takes a while, and nothing can be judged by it before the first validation.
        floor = self.yardsticks.floor(len(self.split.valid)) if progress.history else None
        return why_collapsed(progress, training, floor) if floor is not None else ""

    @cached_property
    def yardsticks(self) -> Yardsticks:
        """What counting reaches on the validation items."""
        return self.around.yardsticks or Yardsticks.measure(self.dataset, self.split, self.plan.criterion)

    def seconds(self) -> float:
        """Since the run began."""
        return round(time.perf_counter() - self.around.began, 2)

    @property
    def log(self) -> ProgressLog:
        return ProgressLog(self.folder)

    def _checkpoint(self, stage: Stage) -> Path:
        return self.folder / f"resume-{stage}.safetensors"

    def forget(self, stage: Stage) -> None:
        """Remove the checkpoint of a stage that is over."""
        self._checkpoint(stage).unlink(missing_ok=True)
