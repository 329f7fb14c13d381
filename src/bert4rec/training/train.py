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

import torch

from bert4rec import __version__
from bert4rec.artefact import write_manifest, write_text
from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.leakage import too_little_to_judge, why_nobody
from bert4rec.data.splits import Part, Split, make_split
from bert4rec.errors import DataError, UsageError
from bert4rec.evaluation.judge import judge, judge_among_negatives, metrics_of, save_ranks
from bert4rec.evaluation.protocol import Ranks
from bert4rec.models.pop import Pop
from bert4rec.tasks.task import ModelScorer, TaskInputs
from bert4rec.training.checkpoint import load_tensors, save_tensors
from bert4rec.training.code_mark import code_checksum
from bert4rec.training.config import TrainingConfig
from bert4rec.training.device import Placement
from bert4rec.training.forecast import Forecast, measure, passes_for
from bert4rec.training.loop import Hooks, Interrupted, Loop, Progress, Task
from bert4rec.training.run import MANIFEST, SCHEMA, Plan, Run, Stage
from bert4rec.training.specs import MODELS, ModelSpec

SELECTION_METRIC = "NDCG@10"
"""Under the paper's protocol: it is what the paper reports, and noise is lower than in full ranking."""

LATE = 0.9
"""Share of the steps after which a best validation says that more steps might have given more."""
LEARNED = 1.5
"""What a model must have in multiples of what popularity has, or it is likely to have learned nothing else."""


@dataclass(frozen=True)
class Pace:
    """How training is going right now."""

    loss: float
    samples_per_second: float
    seconds_left: float
    """Of all that is still to come, if nothing ends early."""


class Listener(Protocol):
    """Who watches a run: a live line, a log, a tracker."""

    def stage(self, stage: Stage, steps: int) -> None: ...

    def progress(self, stage: Stage, progress: Progress, pace: "Pace") -> None: ...

    def busy(self, what: str, seconds_left: float) -> None:
        """Something has begun that may take minutes and is no training."""
        ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class RunContext:
    """What does not decide the outcome of a run: where it happens and who watches."""

    placement: Placement
    listener: Listener
    compile_step: bool = True
    should_stop: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.perf_counter)


def train(
    dataset: Dataset, folder: Path, plan: Plan, around: RunContext, kind: ModelSpec | None = None
) -> Run:
    """Train and judge one model; go on where an earlier call was cut off. Leaves a finished run in `folder`.

    A run that is finished already is returned as it is. An experiment may hand in a `kind` of its own, with
    parts of the model swapped; the plan then names the variant.
    """
    assert bool(plan.variant) == (kind is not None), (
        "a variant has a name and a kind, other runs have neither"
    )
    if (folder / "config.json").is_file() and replace(Plan.load(folder), dataset=plan.dataset) != plan:
        raise UsageError(f"{folder} holds a run with other settings or data. Choose another folder.")
    if (folder / MANIFEST).is_file():
        return Run.open(folder)
    split = make_split(dataset, plan.split)
    if not len(split.valid) or not len(split.test):
        raise DataError(
            f"The split of {dataset.path} leaves nobody to validate or to test on: {why_nobody(split)}"
        )
    for warning in too_little_to_judge(dataset, split.test):
        around.listener.say(f"Warning: {warning}")
    is_resumed = (folder / "config.json").is_file()
    kind = kind or MODELS[plan.model]
    trainer = _Trainer(dataset, split, folder, plan, around, kind, is_resumed, Forecast(plan))
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
    kind: ModelSpec
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
        self._warn_if_undertrained(state["best_step"])
        self._warn_if_no_better_than_popular()
        seconds = [entry["seconds"] for entry in self._progress_of("selection")]
        return _Fitted("selection", scorer, state["best_step"], max(seconds, default=0.0))

    def refit(self, selection: _Fitted) -> _Fitted:
        """Train a fresh model on more data for the chosen number of steps; there is nothing left to choose."""
        task, progress = self._task("test"), Progress()
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
        if (self.dataset.path / "items.parquet").exists():
            shutil.copyfile(self.dataset.path / "items.parquet", self.folder / "items.parquet")
        self._forget("refit")
        write_manifest(self.folder, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})

    def _open_folder(self) -> None:
        """Not before the task is made: where there is nothing to train on, no folder is left behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plan.save(self.folder)
        for left_by_a_killed_process in self.folder.glob(".*.unfinished-*"):
            left_by_a_killed_process.unlink()

    def _task(self, part: Part) -> Any:
        """A fresh model, and what it is to learn before the targets of `part`."""
        plan, placement = self.plan, self.around.placement
        ground = TaskInputs(
            self.dataset,
            self.split.training_end(part),
            plan.config,
            seed=plan.seed,
            device=placement.device,
            dtype=placement.dtype,
        )
        return self.kind.make_task(ground)

    def _loop(self, task: Task, training: TrainingConfig) -> Loop:
        device = self.around.placement.device
        compile_step = self.around.compile_step and device.type == "cuda"
        return Loop(task, training, device=device, seed=self.plan.seed, compile_step=compile_step)

    def _scorer(self, task: Any) -> ModelScorer:
        """Asks before each batch whether to stop: a ranking may take minutes."""
        plain = self._plain_scorer(task)

        def scores(users: Any, histories: Histories, items: Any = None) -> torch.Tensor:
            if self.around.should_stop():
                raise Interrupted
            return plain(users, histories, items)

        return scores

    def _plain_scorer(self, task: Any) -> ModelScorer:
        scorer: ModelScorer = self.kind.task.make_scorer(task.model, self.around.placement.dtype)
        return scorer

    def _run(self, loop: Loop, stage: Stage, steps: int, scorer: ModelScorer) -> Progress:
        self.around.listener.stage(stage, steps)
        checkpoint, tag = self._checkpoint(stage), self._tag(stage)
        if checkpoint.exists():
            loop.resume(checkpoint, tag)
            self.around.listener.say(f"Going on at step {loop.progress.step:,}.")
        learned, is_warm = loop.progress.step, loop.is_warm
        # A GPU has to compile first, and a step tried alone says little of one that is replayed: it is told later.
        is_told = is_warm
        passes = passes_for(self.forecast.steps_left(stage, learned, steps)) if is_warm else 0
        if self.forecast.is_blank and passes:
            plain = self._plain_scorer(loop.task)
            self.forecast.begin(measure(loop, plain, self.dataset, self.split.valid, passes=passes))
            self.around.listener.say(self.forecast.told(stage, learned, steps))

        def validate() -> float:
            step = loop.progress.step
            left = self.forecast.seconds_left(stage, step, steps)
            self.around.listener.busy(f"validating at step {step}", left)
            device = self.around.placement.device.type
            return judge_among_negatives(scorer, self.dataset, self.split, "valid", device)[SELECTION_METRIC]

        def report(progress: Progress, loss: float, steps_per_second: float) -> None:
            nonlocal learned, is_warm, is_told
            if steps_per_second and is_warm:
                self.forecast.learn_steps(
                    progress.step - learned, (progress.step - learned) / steps_per_second
                )
                if not is_told and stage == "selection":
                    self.around.listener.say(self.forecast.told(stage, progress.step, steps))
                is_told = True
            learned, is_warm = progress.step, loop.is_warm
            last = progress.history[-1] if progress.history else {}
            if last.get("step") == progress.step:
                self.forecast.learn_validation(last.get("validation_seconds", 0.0))
                last |= {
                    "command_seconds": self._seconds(),
                    "device_shared": self.around.placement.is_shared,
                }
                self._write_progress(stage, progress.history)
            pace = Pace(
                loss,
                samples_per_second=steps_per_second * loop.config.batch_size,
                seconds_left=self.forecast.seconds_left(stage, progress.step, steps),
            )
            self.around.listener.progress(stage, progress, pace)

        hooks = Hooks(validate if stage == "selection" else None, report, self.around.should_stop)
        progress = loop.run(steps, hooks, checkpoint, tag)
        loop.task.model.eval()
        return progress

    def _ranks(self, scorer: ModelScorer, part: Part) -> Ranks:
        items = "validation items" if part == "valid" else "test items"
        self.around.listener.busy(f"judging the {items}", self.forecast.seconds_of_judging(part))
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
            "command_seconds": self._seconds(),
            "resumed": self.is_resumed,
            "validations": self._validations() if fitted.stage == "selection" else [],
            "config": self.plan.config.as_dict(),
            "data_checksum": self.plan.data_checksum,
            "candidates_checksum": self.plan.candidates_checksum,
            "versions": {"bert4rec": __version__, "torch": str(torch.__version__), "code": code_checksum()},
            "metrics": metrics_of(ranks),
        }

    def _was_shared(self, stage: Stage) -> bool | None:
        """Whether others used the device at any mark of a stage, or do now. None where nobody can tell."""
        now = self.around.placement.is_shared
        if now is None:
            return None
        return now or any(each.get("device_shared") for each in self._progress_of(stage))

    def _seconds(self) -> float:
        """Since the command began."""
        return round(time.perf_counter() - self.around.began, 2)

    def _validations(self) -> list[dict[str, float]]:
        """How the selection went: step, value, and seconds since the command began."""
        names = ("step", "value", "command_seconds")
        return [{name: entry[name] for name in names} for entry in self._progress_of("selection")]

    def _write_progress(self, stage: Stage, history: list[dict[str, float]]) -> None:
        """All entries of this stage anew, behind those of the stages before: a resumed run has each once."""
        before = self._progress_of("selection") if stage == "refit" else []
        entries = [*before, *({"stage": stage, **entry} for entry in history)]
        write_text(self.folder / "progress.jsonl", "\n".join(map(json.dumps, entries)))

    def _progress_of(self, stage: Stage) -> list[dict[str, Any]]:
        path = self.folder / "progress.jsonl"
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            return [entry for entry in map(json.loads, lines) if entry["stage"] == stage]
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} is damaged ({error}). Start anew with --overwrite.") from error

    def _warn_if_undertrained(self, best_step: int) -> None:
        training = self.plan.config.training
        if training and best_step > LATE * training.steps:
            self.around.listener.say(
                f"Warning: validation was at its best at step {best_step:,} of {training.steps:,}, so the model may be "
                f"under-trained. Raise training.steps above {training.steps:,}."
            )

    def _warn_if_no_better_than_popular(self) -> None:
        """Weights may collapse until everybody is offered the same, and the run ends as if nothing were wrong."""
        values = [entry["value"] for entry in self._progress_of("selection")]
        if not values:
            return
        best, pop = max(values), Pop.fit(self.dataset, self.split.training_end("valid"))
        judged = judge_among_negatives(pop.scores, self.dataset, self.split, "valid", "cpu")
        popular = judged[SELECTION_METRIC]
        if best < LEARNED * popular:
            relation = (
                "not much more than" if best > popular else "no more than" if best == popular else "less than"
            )
            self.around.listener.say(
                f"Warning: {SELECTION_METRIC} on the validation items is {best:.4f}, {relation} the {popular:.4f} of "
                "offering everybody what is popular. More training.steps, or a lower training.learning_rate, may help."
            )

    def _checkpoint(self, stage: Stage) -> Path:
        return self.folder / f"resume-{stage}.safetensors"

    def _forget(self, stage: Stage) -> None:
        self._checkpoint(stage).unlink(missing_ok=True)

    def _tag(self, stage: Stage) -> str:
        return self.plan.tag(stage)
