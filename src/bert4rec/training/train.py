"""One run from beginning to end, in honest stages (see ARCHITECTURE.md, "Two stages").

*Selection*: train on what lies before the validation items, choose the number of steps on those items.
*Refit*: train a fresh model for that many steps on all but the test items, as the paper's authors did.
Then, once, the test items are looked at.
*Production*, if it is asked for: train a fresh model on everything, for as many steps an action. Nobody can say how
good it is, for nothing is left to ask it about; the numbers are those of the stage before.
"""

import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bert4rec import __version__
from bert4rec.artefact import write_manifest, write_text
from bert4rec.data.dataset import Dataset
from bert4rec.data.leakage import too_little_to_judge, why_nobody
from bert4rec.data.splits import Part, make_split
from bert4rec.data.trained import Trained, untrained_items
from bert4rec.errors import DataError, UsageError
from bert4rec.evaluation.exam import Judged
from bert4rec.evaluation.judge import load_ranks, metrics_of, save_ranks
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tasks.task import Task
from bert4rec.training.checkpoint import load_tensors, save_tensors
from bert4rec.training.loop import TrainingProgress
from bert4rec.training.reporting import advice
from bert4rec.training.reporting.code_mark import code_checksum
from bert4rec.training.reporting.forecast import Forecast
from bert4rec.training.run import MANIFEST, SCHEMA, Plan, Run, Stage
from bert4rec.training.specs import MODELS, ModelSpec
from bert4rec.training.stages import RunContext, StageTrainer, growth, training_end

__all__ = ["RESULT", "RunContext", "train"]

RESULT = "result.json"
"""It is there as soon as the test items were looked at."""


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
    forecast = Forecast(plan, growth(dataset, split))
    trainer = _Trainer(dataset, split, folder, plan, around, spec, forecast, is_resumed)
    task, selection = trainer.select()
    if not (folder / RESULT).exists():
        # Several processes have one model at a time, so what is asked of this one is asked before the next is made.
        lines = [trainer.judge(task, selection, "valid")]
        if plan.refit:
            del task  # A GPU may not have room for both.
            task, final = trainer.refit(selection)
        else:
            final = trainer.keep(selection)
        if plan.test:
            lines.append(trainer.judge(task, final, "test"))
        trainer.write_down(lines, selection, final)
    del task
    if plan.refit == "all":
        trainer.train_for_production(selection)
    trainer.finish()
    return Run.open(folder)


@dataclass(frozen=True)
class _Fitted:
    """How a trained model came about."""

    stage: Stage
    steps: int
    seconds: float
    restarts: list[dict[str, Any]]
    """Attempts that came to nothing; also those of the selection, where a refit follows it."""
    asked: dict[str, float]
    """Way of asking → its value on the validation items, the best first; empty where there was no choice."""


@dataclass(frozen=True)
class _Trainer(StageTrainer):
    """The stages of a run, one after the other."""

    is_resumed: bool
    """Whether an earlier call began it."""

    def select(self) -> tuple[Task, _Fitted]:
        """Train with validation and keep the best weights, unless that was done before."""
        task, training = self.task("selection"), self.plan.config.training
        self._open_folder()
        kept, tag = self.folder / "selection.safetensors", self.plan.tag("selection")
        if not kept.exists():
            best, progress = task.model.state_dict(), TrainingProgress()
            if training:
                loop = self.fit(task, "selection", training.steps, training)
                task, best, progress = loop.task, loop.weights(), loop.progress
            self.set_weights(task, best)
            found = {"best_step": progress.best_step, "restarts": progress.restarts}
            save_tensors(kept, best, {"tag": tag, **found, "asked": self._ways_to_ask(task)})
        weights, state = load_tensors(kept)
        if state.get("tag") != tag:
            raise DataError(f"{kept} belongs to another run: its settings or data differ.")
        self.forget("selection")
        self.set_weights(task, weights)
        if training and (marks := self.log.read("selection")):
            for warning in advice.warn_of_selection(
                self.plan.select_by, training, marks, self.yardsticks, self.around.remedy
            ):
                self.around.listener.warn(warning)
        restarts, asked = state.get("restarts", []), state.get("asked", {})
        task.model.way_to_ask = next(iter(asked), None)
        if asked:
            self.around.listener.say(advice.tell_of_asking(self.plan.select_by, asked))
        steps, seconds = state["best_step"], self.log.seconds()
        return task, _Fitted("selection", steps, seconds, restarts, asked)

    def _ways_to_ask(self, task: Task) -> dict[str, float]:
        """What each way of asking the selected weights is worth on the validation items, the best first."""
        model, found = task.model.eval(), {}
        for way in model.ways_to_ask:
            self.around.listener.busy(f"asking by {way}", self.forecast.seconds_of_judging("valid"))
            model.way_to_ask = way
            found[way] = self.validate(task)
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    def refit(self, selection: _Fitted) -> tuple[Task, _Fitted]:
        """Train a fresh model on more data for the chosen number of steps; there is nothing left to choose."""
        task, progress = self.task("refit"), TrainingProgress()
        weights = task.model.state_dict()
        if training := self._training_of(selection):
            loop = self.fit(task, "refit", selection.steps, training)
            task, progress, weights = loop.task, loop.progress, loop.weights()
        save_tensors(self.folder / "model.safetensors", weights, {"asked": selection.asked})
        self.set_weights(task, weights)
        task.model.way_to_ask = next(iter(selection.asked), None)
        restarts = [*selection.restarts, *progress.restarts]
        return task, _Fitted("refit", progress.step, progress.seconds, restarts, selection.asked)

    def keep(self, selection: _Fitted) -> _Fitted:
        """Let the selected model be the final one."""
        shutil.copyfile(self.folder / "selection.safetensors", self.folder / "model.safetensors")
        return selection

    def judge(self, task: Task, fitted: _Fitted, part: Part) -> dict[str, Any]:
        """One line for a results file; the ranks behind it are saved beside."""
        judged = self._ask(task, part, fitted.steps)
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
            "device": f"{self.crew.size} × " * (not self.crew.is_alone) + self.around.placement.name,
            "device_shared": self._was_shared(fitted.stage),
            "steps": fitted.steps,
            "train_seconds": round(fitted.seconds, 2),
            "command_seconds": self.seconds(),
            "resumed": self.is_resumed,
            "restarts": fitted.restarts,
            "asked": fitted.asked,
            "validations": self.log.validations() if fitted.stage == "selection" else [],
            "config": self.plan.config.as_recorded(),
            "data_checksum": self.plan.data_checksum,
            "candidates_checksum": self.plan.candidates_checksum,
            "versions": {"bert4rec": __version__, "torch": str(torch.__version__), "code": code_checksum()},
            "metrics": metrics_of(ranks),
            "lists": judged.lists,
        }

    def write_down(self, lines: list[dict[str, Any]], selection: _Fitted, final: _Fitted) -> None:
        """What was found on the validation items and the test items."""
        result: dict[str, Any] = {"lines": lines}
        if self.plan.config.training:
            standing = self._standing(selection)
            (self.around.listener.warn if standing.hint else self.around.listener.say)(str(standing))
            result["standing"] = asdict(standing)
            told = [advice.tell_of_asking(self.plan.select_by, selection.asked)] if selection.asked else []
            result["notes"] = [*map(advice.tell_of_restart, final.restarts), *told, str(standing)]
        write_text(self.folder / RESULT, json.dumps(result, indent=2))
        self.forget("refit")

    def train_for_production(self, selection: _Fitted) -> None:
        """Train a fresh model on everything, for as many steps an action as the selection chose."""
        kept = self.folder / "production.safetensors"
        if not kept.exists():
            task, restarts = self.task("production"), []
            weights = task.model.state_dict()
            if training := self._training_of(selection):
                more = growth(self.dataset, self.split)
                # The learning rate falls to zero behind as many more steps.
                training = replace(training, steps=round(more * training.steps))
                loop = self.fit(task, "production", max(1, round(more * selection.steps)), training)
                weights, restarts = loop.weights(), loop.progress.restarts
            save_tensors(kept, weights, {"asked": selection.asked, "restarts": restarts})
        self.forget("production")

    def finish(self) -> None:
        """Write down what the final weights have seen, and only then call the run finished."""
        result = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
        result["seen"] = self._what_was_seen(result["lines"])
        write_text(self.folder / RESULT, json.dumps(result, indent=2))
        self.dataset.write_items(self.folder / "items.parquet")
        write_manifest(self.folder, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})

    def _what_was_seen(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """Of the final weights: what they were trained on, which items they know nothing about, and what to say."""
        stage, notes = self.plan.final_stage, list[str]()
        if stage == "production":
            _, state = load_tensors(self.folder / "production.safetensors")
            notes += map(advice.tell_of_restart, state["restarts"])
        end = training_end(self.dataset, self.split, stage)
        untrained = untrained_items(self.dataset, end)
        if len(untrained):
            notes.append(advice.tell_of_untrained(self.dataset, untrained))
            if not self.around.remedy:  # Who may not choose cannot train on everything either.
                self.around.listener.say(notes[-1])
        metrics = {
            protocol: found["NDCG@10"]
            for line in lines
            if line["split"] == "test"
            for protocol, found in line["metrics"].items()
        }
        trained = Trained.on(self.dataset, end, model=self.plan.model, stage=stage, metrics=metrics)
        return {"trained": asdict(trained), "untrained": untrained.tolist(), "notes": notes}

    def _standing(self, selection: _Fitted) -> advice.Standing:
        """How the selected weights stand on the validation items, whose ranks are known by now."""
        criterion, config = self.plan.criterion, self.plan.config
        value = criterion.of(metrics_of(load_ranks(self.folder, "valid"), [criterion.metric]))
        used = replace(config, training=self._training_of(selection))
        marks, remedy = self.log.read("selection"), self.around.remedy
        return advice.Standing.of(str(criterion), value, self.yardsticks, used, marks, remedy)

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

    def _ask(self, task: Task, part: Part, steps: int) -> Judged:
        items = "validation items" if part == "valid" else "test items"
        left = self.forecast.seconds_from_judging(part, steps)
        self.around.listener.busy(f"evaluating on the {items}", left)
        began = time.perf_counter()
        judged = self.ask(task, part)
        self.forecast.learn_judging(time.perf_counter() - began)
        return judged

    def _was_shared(self, stage: Stage) -> bool | None:
        """Whether other processes used the device at any mark of a stage, or do now. None if unknown."""
        now = self.around.placement.is_shared
        if now is None:
            return None
        return now or any(each.get("device_shared") for each in self.log.read(stage))
