"""One run from beginning to end, in two honest stages (see ARCHITECTURE.md, "Two stages").

*Selection*: train on what lies before the validation items, choose the number of steps on those items.
*Refit*: train a fresh model for that many steps on all but the test items, as the paper's authors did.
Then, once, the test items are looked at.
"""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bert4rec import __version__
from bert4rec.artefact import write_manifest, write_text
from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.leakage import too_little_to_judge, why_nobody
from bert4rec.data.splits import Part, Split, make_split
from bert4rec.errors import DataError, UsageError
from bert4rec.evaluation.exam import Exam, Judged
from bert4rec.evaluation.judge import load_ranks, metrics_of, save_ranks
from bert4rec.evaluation.protocol import DivergedError
from bert4rec.evaluation.yardsticks import Yardsticks
from bert4rec.models.model import ModelScorer, make_scorer
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tasks.task import Task, TaskInputs
from bert4rec.training.checkpoint import load_tensors, save_tensors
from bert4rec.training.collapse import CollapsedError, why_collapsed, why_fallen_behind
from bert4rec.training.device import Placement
from bert4rec.training.loop import Hooks, Interrupted, Loop, TrainingProgress
from bert4rec.training.reporting import advice
from bert4rec.training.reporting.code_mark import code_checksum
from bert4rec.training.reporting.forecast import Forecast, StageReporter
from bert4rec.training.reporting.progress_log import ProgressLog
from bert4rec.training.reporting.watch import Listener
from bert4rec.training.run import MANIFEST, SCHEMA, Plan, Run, Stage
from bert4rec.training.specs import MODELS, ModelSpec

LISTED = (10,)
"""How many items of each list count for what a result says of the lists."""
MOST_RESTARTS = 2
"""How often a stage that collapses is begun anew, with half the learning rate each time."""


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


def train(
    dataset: Dataset, folder: Path, plan: Plan, around: RunContext, spec: ModelSpec | None = None
) -> Run:
    """Train and evaluate one model; resume where an earlier call was interrupted. Leaves a finished run in `folder`.

    A run that is already finished is returned as it is. An experiment may pass a `spec` of its own, with parts of the
    model swapped; the plan then names the variant.
    """
    assert bool(plan.variant) == (spec is not None), (
        "a variant has a name and a spec, other runs have neither"
    )
    if (folder / "config.json").is_file() and replace(Plan.load(folder), dataset=plan.dataset) != plan:
        raise UsageError(f"{folder} holds a run with other settings or data. Choose another folder.")
    if (folder / MANIFEST).is_file():
        return Run.open(folder)
    split = make_split(dataset, plan.split)
    if not len(split.valid) or not len(split.test):
        raise DataError(
            f"The split of {dataset.where} leaves no users to validate or to test on: {why_nobody(split)}"
        )
    for warning in too_little_to_judge(dataset, split.test):
        around.listener.warn(warning)
    is_resumed = (folder / "config.json").is_file()
    spec = spec or MODELS[plan.model]
    trainer = _Trainer(dataset, split, folder, plan, around, spec, is_resumed, Forecast(plan))
    selection = trainer.select()
    final = trainer.refit(selection) if plan.refit else trainer.keep(selection)
    trainer.finish(selection, final)
    return Run.open(folder)


@dataclass(frozen=True)
class _Fitted:
    """A trained model and how it came about."""

    stage: Stage
    scorer: ModelScorer
    steps: int
    seconds: float
    restarts: list[dict[str, Any]]
    """Attempts that came to nothing; also those of the selection, where a refit follows it."""
    asked: dict[str, float]
    """Way of asking → its value on the validation items, the best first; empty where there was no choice."""


@dataclass(frozen=True)
class _Trainer:
    dataset: Dataset
    split: Split
    folder: Path
    plan: Plan
    around: RunContext
    spec: ModelSpec
    is_resumed: bool
    """Whether an earlier call began it."""
    forecast: Forecast

    def select(self) -> _Fitted:
        """Train with validation and keep the best weights, unless that was done before."""
        task, training = self._task("valid"), self.plan.config.training
        self._open_folder()
        kept, tag = self.folder / "selection.safetensors", self.plan.tag("selection")
        if not kept.exists():
            best, progress = task.model.state_dict(), TrainingProgress()
            if training:
                loop = self._fit(task, "selection", training.steps, training)
                task, best, progress = loop.task, loop.best, loop.progress
            task.model.load_state_dict(best)
            found = {"best_step": progress.best_step, "restarts": progress.restarts}
            save_tensors(kept, best, {"tag": tag, **found, "asked": self._ways_to_ask(task)})
        weights, state = load_tensors(kept)
        if state.get("tag") != tag:
            raise DataError(f"{kept} belongs to another run: its settings or data differ.")
        self._forget("selection")
        task.model.load_state_dict(weights)
        task.model.eval()
        if training and (marks := self.log.read("selection")):
            for warning in advice.warn_of_selection(self.plan.select_by, training, marks, self.yardsticks):
                self.around.listener.warn(warning)
        restarts, asked = state.get("restarts", []), state.get("asked", {})
        task.model.way_to_ask = next(iter(asked), None)
        if asked:
            self.around.listener.say(advice.tell_of_asking(self.plan.select_by, asked))
        steps, seconds = state["best_step"], self.log.seconds()
        return _Fitted("selection", self._scorer(task), steps, seconds, restarts, asked)

    def _ways_to_ask(self, task: Task) -> dict[str, float]:
        """What each way of asking the selected weights is worth on the validation items, the best first."""
        model, found = task.model.eval(), {}
        for way in model.ways_to_ask:
            self.around.listener.busy(f"asking by {way}", self.forecast.seconds_of_judging("valid"))
            model.way_to_ask = way
            found[way] = self._validate(self._scorer(task))
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    def _validate(self, scorer: ModelScorer) -> float:
        device = self.around.placement.device.type
        return self.plan.criterion.judge(scorer, self.dataset, self.split, device)

    def refit(self, selection: _Fitted) -> _Fitted:
        """Train a fresh model on more data for the chosen number of steps; there is nothing left to choose."""
        task, progress = self._task("test"), TrainingProgress()
        if training := self._training_of(selection):
            loop = self._fit(task, "refit", selection.steps, training)
            task, progress = loop.task, loop.progress
        save_tensors(self.folder / "model.safetensors", task.model.state_dict(), {"asked": selection.asked})
        task.model.eval()
        task.model.way_to_ask = next(iter(selection.asked), None)
        restarts, scorer = [*selection.restarts, *progress.restarts], self._scorer(task)
        return _Fitted("refit", scorer, progress.step, progress.seconds, restarts, selection.asked)

    def keep(self, selection: _Fitted) -> _Fitted:
        """Let the selected model be the final one."""
        shutil.copyfile(self.folder / "selection.safetensors", self.folder / "model.safetensors")
        return selection

    def finish(self, selection: _Fitted, final: _Fitted) -> None:
        """Look at the test items, write everything down, and only then call the run finished."""
        lines = [self._judge(selection, "valid")]
        if self.plan.test:
            lines.append(self._judge(final, "test"))
        result: dict[str, Any] = {"lines": lines}
        if self.plan.config.training:
            standing = self._standing(selection)
            (self.around.listener.warn if standing.hint else self.around.listener.say)(str(standing))
            result["standing"] = asdict(standing)
            told = [advice.tell_of_asking(self.plan.select_by, selection.asked)] if selection.asked else []
            result["notes"] = [*map(advice.tell_of_restart, final.restarts), *told, str(standing)]
        write_text(self.folder / "result.json", json.dumps(result, indent=2))
        self.dataset.write_items(self.folder / "items.parquet")
        self._forget("refit")
        write_manifest(self.folder, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})

    def _standing(self, selection: _Fitted) -> advice.Standing:
        """How the selected weights stand on the validation items, whose ranks are known by now."""
        criterion, config = self.plan.criterion, self.plan.config
        value = criterion.of(metrics_of(load_ranks(self.folder, "valid"), [criterion.metric]))
        used = replace(config, training=self._training_of(selection))
        return advice.Standing.of(str(criterion), value, self.yardsticks, used, self.log.read("selection"))

    def _training_of(self, selection: _Fitted) -> TrainingConfig | None:
        """The settings that the selection ended with: each restart halves the learning rate."""
        training = self.plan.config.training
        if training is None:
            return None
        return replace(training, learning_rate=training.learning_rate / 2 ** len(selection.restarts))

    def _open_folder(self) -> None:
        """Not before the task is made: if there is nothing to train on, no folder is left behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plan.save(self.folder)
        for left_by_a_killed_process in self.folder.glob(".*.unfinished-*"):
            left_by_a_killed_process.unlink()

    def _task(self, part: Part) -> Task:
        """A fresh model, and what it is to learn before the targets of `part`."""
        plan, placement = self.plan, self.around.placement
        inputs = TaskInputs(
            self.dataset,
            self.split.training_end(part),
            plan.config,
            seed=plan.seed,
            device=placement.device,
            dtype=placement.dtype,
        )
        return self.spec.make_task(inputs)

    def _fit(self, task: Task, stage: Stage, steps: int, training: TrainingConfig) -> Loop:
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
            task = self._task("valid" if stage == "selection" else "test")

    def _loop(self, task: Task, training: TrainingConfig, progress: TrainingProgress) -> Loop:
        device, is_compiled, seed = self.around.placement.device, self.around.compile_step, self.plan.seed
        return Loop(task, training, device=device, seed=seed, compile_step=is_compiled, progress=progress)

    def _scorer(self, task: Task) -> ModelScorer:
        """Checks before each batch whether to stop: a ranking may take minutes."""
        plain = make_scorer(task.model, self.around.placement.dtype)

        def scores(
            users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
        ) -> torch.Tensor:
            if self.around.should_stop():
                raise Interrupted
            return plain(users, histories, items)

        return scores

    def _run(self, loop: Loop, stage: Stage, steps: int) -> None:
        self.around.listener.stage(stage, steps)
        checkpoint, tag = self._checkpoint(stage), self.plan.tag(stage)
        # What is there when an attempt follows another belongs to that one.
        if checkpoint.exists() and not loop.progress.restarts:
            loop.resume(checkpoint, tag)
            self.around.listener.say(f"Resuming at step {loop.progress.step:,}.")
        scorer = self._scorer(loop.task)
        reporter = StageReporter(loop, stage, steps, self.forecast, self.log, self.around.listener)
        reporter.forecast_first(
            self.dataset, self.split.valid, self.around.placement.dtype, is_told=not self.around.is_announced
        )
        # An experiment shows what becomes of its variant, whatever that is.
        may_restart = len(loop.progress.restarts) < MOST_RESTARTS and not self.plan.variant
        why_over = self._judge_of_collapse(stage, steps, loop.config)

        def validate() -> float:
            step = loop.progress.step
            left = self.forecast.seconds_left(stage, step, steps)
            self.around.listener.busy(f"validating at step {step}", left)
            try:
                return self._validate(scorer)
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

    def _judge_of_collapse(
        self, stage: Stage, steps: int, training: TrainingConfig
    ) -> Callable[[TrainingProgress], str]:
        """Why a training has come to nothing, from its progress; empty as long as something may become of it."""
        if stage == "selection":
            floor = self.yardsticks.floor(len(self.split.valid))
            return lambda progress: why_collapsed(progress, training, floor) if floor is not None else ""
        selection, warmup = self.log.read("selection"), training.warmup_steps
        return lambda progress: why_fallen_behind(progress.history, selection, warmup, steps)

    @cached_property
    def yardsticks(self) -> Yardsticks:
        """What counting reaches on the validation items."""
        return self.around.yardsticks or Yardsticks.measure(self.dataset, self.split, self.plan.criterion)

    def _ask(self, scorer: ModelScorer, part: Part) -> Judged:
        items = "validation items" if part == "valid" else "test items"
        self.around.listener.busy(f"evaluating on the {items}", self.forecast.seconds_of_judging(part))
        began = time.perf_counter()
        exam = Exam(self.dataset, self.split, part, "next", "popularity", LISTED)
        judged = exam.judge(scorer, self.around.placement.device.type)
        self.forecast.learn_judging(time.perf_counter() - began)
        return judged

    def _judge(self, fitted: _Fitted, part: Part) -> dict[str, Any]:
        """One line for a results file; the ranks behind it are saved beside."""
        judged = self._ask(fitted.scorer, part)
        ranks = judged.ranks
        assert ranks, "next items have ranks"
        save_ranks(self.folder, part, ranks)
        return {
            "dataset": self.plan.dataset_name,
            "model": self.plan.model,
            "variant": self.plan.variant,
            "preset": self.plan.preset,
            "seed": self.plan.seed,
            "stage": fitted.stage,
            "split": part,
            "protocol": str(self.plan.split),
            "repeats": self.plan.repeats,
            "select_by": self.plan.select_by,
            "users": len(ranks.full),
            "device": self.around.placement.name,
            "device_shared": self._was_shared(fitted.stage),
            "steps": fitted.steps,
            "train_seconds": round(fitted.seconds, 2),
            "command_seconds": self.seconds(),
            "resumed": self.is_resumed,
            "restarts": fitted.restarts,
            "asked": fitted.asked,
            "validations": self.log.validations() if fitted.stage == "selection" else [],
            "config": self.plan.config.as_dict(),
            "data_checksum": self.plan.data_checksum,
            "candidates_checksum": self.plan.candidates_checksum,
            "versions": {"bert4rec": __version__, "torch": str(torch.__version__), "code": code_checksum()},
            "metrics": metrics_of(ranks),
            "lists": judged.lists,
        }

    def _was_shared(self, stage: Stage) -> bool | None:
        """Whether other processes used the device at any mark of a stage, or do now. None if unknown."""
        now = self.around.placement.is_shared
        if now is None:
            return None
        return now or any(each.get("device_shared") for each in self.log.read(stage))

    def seconds(self) -> float:
        """Since the run began."""
        return round(time.perf_counter() - self.around.began, 2)

    @property
    def log(self) -> ProgressLog:
        return ProgressLog(self.folder)

    def _checkpoint(self, stage: Stage) -> Path:
        return self.folder / f"resume-{stage}.safetensors"

    def _forget(self, stage: Stage) -> None:
        self._checkpoint(stage).unlink(missing_ok=True)
