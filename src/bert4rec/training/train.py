"""One run from beginning to end, in two honest stages (see ARCHITECTURE.md, "Two stages").

*Selection*: train on what lies before the validation items, choose the number of steps on those items.
*Refit*: train a fresh model for that many steps on all but the test items, as the paper's authors did.
Then, once, the test items are looked at.
"""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

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
from bert4rec.evaluation.judge import judge, judge_among_negatives, metrics_of, save_ranks
from bert4rec.evaluation.protocol import Ranks
from bert4rec.models.model import ModelScorer, make_scorer
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tasks.task import Task, TaskInputs
from bert4rec.training.advice import SELECTION_METRIC, warn_of_few_steps, warn_of_little_learned
from bert4rec.training.checkpoint import load_tensors, save_tensors
from bert4rec.training.code_mark import code_checksum
from bert4rec.training.device import Placement
from bert4rec.training.forecast import Forecast, measure, passes_for
from bert4rec.training.loop import Hooks, Interrupted, Loop, TrainingProgress
from bert4rec.training.progress_log import ProgressLog
from bert4rec.training.run import MANIFEST, SCHEMA, Plan, Run, Stage
from bert4rec.training.specs import MODELS, ModelSpec


@dataclass(frozen=True)
class Throughput:
    """How fast training is right now."""

    loss: float
    """Mean loss since the last mark."""
    samples_per_second: float
    seconds_left: float
    """Until the end of the run, if nothing ends early."""


class Listener(Protocol):
    """Watches a run: a live line, a log, a tracker."""

    def stage(self, stage: Stage, steps: int) -> None:
        """A stage begins, of at most so many steps."""
        ...

    def progress(self, stage: Stage, progress: TrainingProgress, pace: Throughput) -> None:
        """About once a second, and after every validation."""
        ...

    def busy(self, what: str, seconds_left: float) -> None:
        """Something other than training has begun that may take minutes."""
        ...

    def say(self, text: str) -> None:
        """Something that the user should know."""
        ...

    def warn(self, text: str) -> None:
        """Something that makes the result doubtful, and what to do about it."""
        ...


@dataclass(frozen=True)
class RunContext:
    """What does not decide the outcome of a run: where it happens and what watches it."""

    placement: Placement
    listener: Listener
    compile_step: bool = True
    should_stop: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.perf_counter)


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
        task = self._task("valid")
        self._open_folder()
        kept, tag = self.folder / "selection.safetensors", self._tag("selection")
        scorer = self._scorer(task)
        if not kept.exists():
            best, best_step = task.model.state_dict(), 0
            if self.plan.config.training:
                loop = self._loop(task, self.plan.config.training)
                progress = self._run(loop, "selection", self.plan.config.training.steps, scorer)
                best, best_step = loop.best, progress.best_step
            save_tensors(kept, best, {"tag": tag, "best_step": best_step})
        weights, state = load_tensors(kept)
        if state.get("tag") != tag:
            raise DataError(f"{kept} belongs to another run: its settings or data differ.")
        self._forget("selection")
        task.model.load_state_dict(weights)
        task.model.eval()
        for warning in self._warnings(state["best_step"]):
            self.around.listener.warn(warning)
        return _Fitted("selection", scorer, state["best_step"], self.log.seconds())

    def refit(self, selection: _Fitted) -> _Fitted:
        """Train a fresh model on more data for the chosen number of steps; there is nothing left to choose."""
        task, progress = self._task("test"), TrainingProgress()
        scorer = self._scorer(task)
        if self.plan.config.training:
            progress = self._run(
                self._loop(task, self.plan.config.training), "refit", selection.steps, scorer
            )
        save_tensors(self.folder / "model.safetensors", task.model.state_dict())
        task.model.eval()
        return _Fitted("refit", scorer, progress.step, progress.seconds)

    def keep(self, selection: _Fitted) -> _Fitted:
        """Let the selected model be the final one."""
        shutil.copyfile(self.folder / "selection.safetensors", self.folder / "model.safetensors")
        return selection

    def finish(self, selection: _Fitted, final: _Fitted) -> None:
        """Look at the test items, write everything down, and only then call the run finished."""
        lines = [self._judge(selection, "valid")]
        if self.plan.test:
            lines.append(self._judge(final, "test"))
        write_text(self.folder / "result.json", json.dumps({"lines": lines}, indent=2))
        self.dataset.write_items(self.folder / "items.parquet")
        self._forget("refit")
        write_manifest(self.folder, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})

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

    def _loop(self, task: Task, training: TrainingConfig) -> Loop:
        device = self.around.placement.device
        compile_step = self.around.compile_step and device.type == "cuda"
        return Loop(task, training, device=device, seed=self.plan.seed, compile_step=compile_step)

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

    def _run(self, loop: Loop, stage: Stage, steps: int, scorer: ModelScorer) -> TrainingProgress:
        self.around.listener.stage(stage, steps)
        checkpoint, tag = self._checkpoint(stage), self._tag(stage)
        if checkpoint.exists():
            loop.resume(checkpoint, tag)
            self.around.listener.say(f"Resuming at step {loop.progress.step:,}.")
        reporter = _StageReporter(self, loop, stage, steps)
        reporter.forecast_first()

        def validate() -> float:
            step = loop.progress.step
            left = self.forecast.seconds_left(stage, step, steps)
            self.around.listener.busy(f"validating at step {step}", left)
            device = self.around.placement.device.type
            return judge_among_negatives(scorer, self.dataset, self.split, "valid", device)[SELECTION_METRIC]

        hooks = Hooks(
            validate=validate if stage == "selection" else None,
            report=reporter.report,
            should_stop=self.around.should_stop,
            facts=lambda: {
                "command_seconds": self.seconds(),
                "device_shared": self.around.placement.is_shared,
            },
        )
        progress = loop.run(steps, hooks, checkpoint, tag)
        loop.task.model.eval()
        return progress

    def _ranks(self, scorer: ModelScorer, part: Part) -> Ranks:
        items = "validation items" if part == "valid" else "test items"
        self.around.listener.busy(f"evaluating on the {items}", self.forecast.seconds_of_judging(part))
        began = time.perf_counter()
        ranks = judge(scorer, self.dataset, self.split, part, self.around.placement.device.type)
        self.forecast.learn_judging(time.perf_counter() - began)
        return ranks

    def _judge(self, fitted: _Fitted, part: Part) -> dict[str, Any]:
        """One line for a results file; the ranks behind it are saved beside."""
        ranks = self._ranks(fitted.scorer, part)
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
            "users": len(ranks.full),
            "device": self.around.placement.name,
            "device_shared": self._was_shared(fitted.stage),
            "steps": fitted.steps,
            "train_seconds": round(fitted.seconds, 2),
            "command_seconds": self.seconds(),
            "resumed": self.is_resumed,
            "validations": self.log.validations() if fitted.stage == "selection" else [],
            "config": self.plan.config.as_dict(),
            "data_checksum": self.plan.data_checksum,
            "candidates_checksum": self.plan.candidates_checksum,
            "versions": {"bert4rec": __version__, "torch": str(torch.__version__), "code": code_checksum()},
            "metrics": metrics_of(ranks),
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

    def _warnings(self, best_step: int) -> list[str]:
        values, training = [entry["value"] for entry in self.log.read("selection")], self.plan.config.training
        few_steps = warn_of_few_steps(training, best_step) if training else []
        return few_steps + (warn_of_little_learned(max(values), self.dataset, self.split) if values else [])

    def _checkpoint(self, stage: Stage) -> Path:
        return self.folder / f"resume-{stage}.safetensors"

    def _forget(self, stage: Stage) -> None:
        self._checkpoint(stage).unlink(missing_ok=True)

    def _tag(self, stage: Stage) -> str:
        return self.plan.tag(stage)


@dataclass
class _StageReporter:
    """Keeps the forecast, the log and the listener up to date while a stage is trained."""

    trainer: _Trainer
    loop: Loop
    stage: Stage
    steps: int

    def __post_init__(self) -> None:
        self._learned, self._is_warm = self.loop.progress.step, self.loop.is_warm
        # A GPU has to compile first, and a single step says little about one that is replayed: it is announced later.
        self._is_announced = self._is_warm

    def forecast_first(self) -> None:
        """Measure how long the run will take, where that can be done beforehand, and say so."""
        trainer, forecast = self.trainer, self.trainer.forecast
        passes = (
            passes_for(forecast.steps_left(self.stage, self._learned, self.steps)) if self._is_warm else 0
        )
        if forecast.is_blank and passes:
            scorer = make_scorer(self.loop.task.model, trainer.around.placement.dtype)
            forecast.begin(measure(self.loop, scorer, trainer.dataset, trainer.split.valid, passes=passes))
            trainer.around.listener.say(forecast.told(self.stage, self._learned, self.steps))

    def report(self, progress: TrainingProgress, loss: float, steps_per_second: float) -> None:
        """What `Hooks.report` calls."""
        trainer, forecast = self.trainer, self.trainer.forecast
        if steps_per_second and self._is_warm:
            done = progress.step - self._learned
            forecast.learn_steps(done, done / steps_per_second)
            if not self._is_announced and self.stage == "selection":
                trainer.around.listener.say(forecast.told(self.stage, progress.step, self.steps))
            self._is_announced = True
        self._learned, self._is_warm = progress.step, self.loop.is_warm
        if progress.history and progress.history[-1]["step"] == progress.step:
            forecast.learn_validation(progress.history[-1].get("validation_seconds", 0.0))
            trainer.log.write(self.stage, progress.history)
        pace = Throughput(
            loss,
            samples_per_second=steps_per_second * self.loop.config.batch_size,
            seconds_left=forecast.seconds_left(self.stage, progress.step, self.steps),
        )
        trainer.around.listener.progress(self.stage, progress, pace)
