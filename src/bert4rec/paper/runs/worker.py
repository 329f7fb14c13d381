"""A process that works off jobs one after the other, so that starting up is paid once.

The runner writes one JSON object a line to its stdin (first the `WorkerState`, then jobs) and reads events, one a line,
from its stdout. It stops with a checkpoint on SIGTERM, and when the runner is gone.
"""

import gc
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import torch

from bert4rec.artefact import held
from bert4rec.data.dataset import Dataset
from bert4rec.errors import Bert4RecError, DataError
from bert4rec.evaluation.judge import load_ranks, metrics_of
from bert4rec.evaluation.protocol import Ranks
from bert4rec.paper.experiments import compare_protocols as protocols
from bert4rec.paper.experiments import figure2
from bert4rec.paper.experiments.table5 import variant_spec
from bert4rec.paper.runs.jobs import Job, mark_of
from bert4rec.paper.runs.ledger import Ledger, standard_errors
from bert4rec.tasks.windows import cut_windows
from bert4rec.training.bench import time_ours
from bert4rec.training.device import Placement, place
from bert4rec.training.loop import Interrupted, Progress
from bert4rec.training.run import Run, Stage
from bert4rec.training.train import Pace, RunContext, train

NOT_OF_MEASURES = ("metrics", "standard_errors", "validations")
"""Parts of a result line that lines of other measurements do not repeat."""
Emit = Callable[..., None]


@dataclass(frozen=True)
class WorkerState:
    """Where a worker works."""

    results: Path
    work: Path
    device: str
    threads: int
    compile_step: bool
    quick: bool
    keep_runs: bool
    datasets: dict[Path, Dataset] = field(default_factory=dict)

    @cached_property
    def placement(self) -> Placement:
        return place(self.device)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.results, self.quick)

    def dataset(self, path: Path) -> Dataset:
        """Opened and verified once."""
        if path not in self.datasets:
            self.datasets[path] = Dataset.open(path)
            self.datasets[path].verify()
        return self.datasets[path]


@dataclass
class WorkerListener:
    """Tells the runner how a run is going. A `Listener`."""

    emit: Emit
    steps: int = 0

    def stage(self, stage: Stage, steps: int) -> None:
        self.steps = steps
        self.emit(event="progress", stage=stage, step=0, steps=steps)

    def progress(self, stage: Stage, progress: Progress, pace: Pace) -> None:  # noqa: ARG002
        self.emit(event="progress", stage=stage, step=progress.step, steps=self.steps)

    def busy(self, what: str, seconds_left: float) -> None:
        """The runner hears of steps alone."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)  # noqa: T201 - the worker's log


def perform(job: Job, desk: WorkerState, emit: Emit, should_stop: Callable[[], bool]) -> tuple[str, bool]:
    """Do a job and write its results down, each exactly once.

    Returns what came out, in a few words, and whether all of it was done now: a part may have been done before.
    """
    folder = desk.work / job.folder_name
    # Another worker may have it, such as one whose runner was killed just now.
    with held(folder, wait=True):
        is_whole = not any(folder.iterdir())
        around = RunContext(desk.placement, WorkerListener(emit), desk.compile_step, should_stop)
        if job.is_done(desk.ledger.marks()):
            told, is_whole = "was done by another process", False
        elif job.case.task == "speed":
            told = _time_speed(job, desk, around)
        else:
            told = _train(job, desk, around)
        if not desk.keep_runs or job.case.task == "speed":
            shutil.rmtree(folder)
    return told, is_whole


def _train(job: Job, desk: WorkerState, around: RunContext) -> str:
    dataset = desk.dataset(job.path)
    folder, kind = desk.work / job.folder_name, variant_spec(job.case.variant) if job.case.variant else None
    try:
        run = train(dataset, folder, job.plan(dataset), around, kind)
    except DataError as error:  # It diverged, or the data cannot be split: so it would another time.
        failure = {"error": str(error), "device": desk.placement.name}
        desk.ledger.add([{**job.identity(kind="failure"), **failure}])
        shutil.rmtree(folder)
        raise
    valid, test = run.result["lines"]
    ranks = load_ranks(run.path, "test")
    test["standard_errors"] = standard_errors(ranks)
    lines = [valid, test, *(_measure(each, run, desk, dataset, test) for each in job.case.measures)]
    desk.ledger.add(lines, {mark_of(test): ranks})
    return f"NDCG@10 {test['metrics']['sampled']['NDCG@10']:.4f}"


def _measure(
    name: str, run: Run, desk: WorkerState, dataset: Dataset, test: Mapping[str, Any]
) -> dict[str, Any]:
    facts = {key: value for key, value in test.items() if key not in NOT_OF_MEASURES}
    if name == "attention":
        return {**facts, **figure2.measure(run, dataset, desk.placement)}
    found = protocols.measure(run, dataset, desk.placement)
    ranks: Ranks = found.pop("ranks")
    return {**facts, **found, "metrics": metrics_of(ranks), "standard_errors": standard_errors(ranks)}


def _time_speed(job: Job, desk: WorkerState, around: RunContext) -> str:
    dataset, config = desk.dataset(job.path), job.plan(desk.dataset(job.path)).config
    windows = cut_windows(
        dataset.offsets[:-1],
        dataset.offsets[1:],
        max_length=config.model.max_length,
        step_share=config.objective.window_step,
    )
    tokens = float(windows.length.mean())
    speed = time_ours(dataset, config, desk.placement, tokens, compile_step=around.compile_step)
    line = {
        **job.identity(kind="speed"),
        "device": desk.placement.name,
        "device_shared": desk.placement.is_shared,
        "command_seconds": round(time.perf_counter() - around.began, 2),
        **vars(speed),
    }
    desk.ledger.add([line])
    return f"{speed.samples_per_second:,.0f} samples/s"


def forget(device: torch.device) -> None:
    """Leave nothing of a run behind that would slow down or crowd out the next."""
    torch.compiler.reset()  # Otherwise the compiler gives up on code that it has compiled eight times.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def serve(requests: Iterator[str], emit: Emit, should_stop: Callable[[], bool]) -> None:
    """Work until there are no more requests, or until a job ends in a way that may have broken this process."""
    values = json.loads(next(requests))
    desk = WorkerState(**{**values, "results": Path(values["results"]), "work": Path(values["work"])})
    torch.set_num_threads(desk.threads)
    emit(event="ready", device=desk.placement.name)
    for text in requests:
        job, began = Job.from_json(text), time.perf_counter()
        try:
            told, is_whole = perform(job, desk, emit, should_stop)
            emit(event="done", text=told, seconds=time.perf_counter() - began, is_whole=is_whole)
        except Interrupted:
            emit(event="interrupted", text="stopped with a checkpoint")
            return
        except Bert4RecError as error:
            emit(event="failed", text=str(error))
        except Exception as error:
            traceback.print_exc()
            emit(event="broken", text=f"{type(error).__name__}: {error}")
            return
        forget(desk.placement.device)


def main() -> None:
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Whatever libraries print goes to the log.
    runner = os.getppid()
    stops: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to pass on, as SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.append(number))
    serve(iter(sys.stdin.readline, ""), _emitter(events), lambda: bool(stops) or os.getppid() != runner)


def _emitter(events: TextIO) -> Emit:
    def emit(**event: Any) -> None:
        with suppress(BrokenPipeError):  # The runner is gone; `should_stop` will say so.
            print(json.dumps(event), file=events, flush=True)

    return emit


if __name__ == "__main__":
    main()
