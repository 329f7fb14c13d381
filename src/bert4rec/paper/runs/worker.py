"""A process that does jobs one after the other, so that it has to start only once.

The runner writes one JSON object a line to its stdin (first the `WorkerState`, then jobs) and reads events, one a line,
from its stdout. It stops with a checkpoint on SIGTERM, or when the runner is gone.
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

from bert4rec.api.bench import bench_windows, time_ours
from bert4rec.artefact import held
from bert4rec.data.dataset import Dataset
from bert4rec.errors import Bert4RecError, DataError
from bert4rec.evaluation.judge import load_ranks, metrics_of
from bert4rec.evaluation.protocol import Ranks
from bert4rec.paper.experiments import beyond, figure2
from bert4rec.paper.experiments import compare_protocols as protocols
from bert4rec.paper.experiments.cases import Measure, asked_by
from bert4rec.paper.experiments.index import VARIANTS
from bert4rec.paper.runs.jobs import Job, mark_of
from bert4rec.paper.runs.ledger import Ledger, standard_errors
from bert4rec.training.device import Placement, place
from bert4rec.training.loop import Interrupted, TrainingProgress
from bert4rec.training.reporting.watch import Throughput
from bert4rec.training.run import Run, Stage
from bert4rec.training.train import RunContext, train

NOT_OF_MEASURES = ("metrics", "standard_errors", "validations")
"""Fields of a result line that lines of other measurements do not repeat."""
Emit = Callable[..., None]


@dataclass(frozen=True)
class WorkerState:
    """The settings of a worker, and the datasets that it has opened."""

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
    """Tells the runner how a run is going: a `Listener`."""

    emit: Emit
    steps: int = 0

    def stage(self, stage: Stage, steps: int) -> None:
        self.steps = steps
        self.emit(event="progress", stage=stage, step=0, steps=steps)

    def progress(self, stage: Stage, progress: TrainingProgress, pace: Throughput) -> None:  # noqa: ARG002
        self.emit(event="progress", stage=stage, step=progress.step, steps=self.steps)

    def busy(self, what: str, seconds_left: float) -> None:
        """The runner only hears about steps."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr)  # noqa: T201 - the worker's log

    def warn(self, text: str) -> None:
        self.say(f"Warning: {text}")


def perform(job: Job, state: WorkerState, emit: Emit, should_stop: Callable[[], bool]) -> tuple[str, bool]:
    """Do a job and record its results, each exactly once.

    Returns a short summary, and whether the whole run was done now: a part may have been done before.
    """
    folder = state.work / job.folder_name
    # Another worker may hold it, such as one whose runner was just killed.
    with held(folder, wait=True):
        is_whole = not any(folder.iterdir())
        context = RunContext(state.placement, WorkerListener(emit), state.compile_step, should_stop)
        if job.is_done(state.ledger.marks()):
            summary, is_whole = "was done by another process", False
        elif job.case.task == "speed":
            summary = _time_speed(job, state, context)
        else:
            summary = _train(job, state, context)
        if not state.keep_runs or job.case.task == "speed":
            shutil.rmtree(folder)
    return summary, is_whole


def _train(job: Job, state: WorkerState, context: RunContext) -> str:
    dataset = state.dataset(job.path)
    folder = state.work / job.folder_name
    try:
        run = train(dataset, folder, job.plan(dataset), context, VARIANTS.get(job.case.variant))
    except DataError as error:  # It diverged, or the data cannot be split: trying again would not help.
        failure = {"error": str(error), "device": state.placement.name}
        state.ledger.add([{**job.identity(kind="failure"), **failure}])
        shutil.rmtree(folder)
        raise
    valid, test = run.result["lines"]
    ranks = {mark_of(test): load_ranks(run.path, "test")}
    test["standard_errors"] = standard_errors(ranks[mark_of(test)])
    lines = [valid, test]
    for measure in job.case.measures:
        for line, found in _measure(measure, run, state, dataset, test):
            lines.append(line)
            ranks |= {mark_of(line): found} if found else {}
    state.ledger.add(lines, ranks)
    return f"NDCG@10 {test['metrics']['sampled']['NDCG@10']:.4f}"


def _measure(
    measure: Measure, run: Run, state: WorkerState, dataset: Dataset, test: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], Ranks | None]]:
    """The lines of a measure, with the ranks that are kept of them."""
    facts = {key: value for key, value in test.items() if key not in NOT_OF_MEASURES}
    if measure == "attention":
        yield {**facts, **figure2.measure(run, dataset, state.placement)}, None
    elif measure == "selection":
        found = protocols.measure(run, dataset, state.placement)
        yield {**facts, **_numbers(found.pop("ranks")), **found}, None
    else:
        for way, ranks in beyond.measure(run, dataset, state.placement).items():
            yield {**facts, "variant": asked_by(way), **_numbers(ranks)}, ranks


def _numbers(ranks: Ranks) -> dict[str, Any]:
    return {"metrics": metrics_of(ranks), "standard_errors": standard_errors(ranks)}


def _time_speed(job: Job, state: WorkerState, context: RunContext) -> str:
    dataset, config = state.dataset(job.path), job.plan(state.dataset(job.path)).config
    tokens = bench_windows(dataset, config).average_length
    speed = time_ours(dataset, config, state.placement, tokens)
    line = {
        **job.identity(kind="speed"),
        "device": state.placement.name,
        "device_shared": state.placement.is_shared,
        "command_seconds": round(time.perf_counter() - context.began, 2),
        **vars(speed),
    }
    state.ledger.add([line])
    return f"{speed.samples_per_second:,.0f} samples/s"


def forget(device: torch.device) -> None:
    """Free what would slow down the next run or take its memory."""
    torch.compiler.reset()  # The compiler gives up on code that it has compiled eight times.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def serve(requests: Iterator[str], emit: Emit, should_stop: Callable[[], bool]) -> None:
    """Work until there are no more requests, or until an unexpected error may have broken this process."""
    values = json.loads(next(requests))
    state = WorkerState(**{**values, "results": Path(values["results"]), "work": Path(values["work"])})
    torch.set_num_threads(state.threads)
    emit(event="ready", device=state.placement.name)
    for text in requests:
        job, began = Job.from_json(text), time.perf_counter()
        try:
            summary, is_whole = perform(job, state, emit, should_stop)
            emit(event="done", text=summary, seconds=time.perf_counter() - began, is_whole=is_whole)
        except Interrupted:
            emit(event="interrupted", text="stopped with a checkpoint")
            return
        except Bert4RecError as error:
            emit(event="failed", text=str(error))
        except Exception as error:
            traceback.print_exc()
            emit(event="broken", text=f"{type(error).__name__}: {error}")
            return
        forget(state.placement.device)


def main() -> None:
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What libraries print goes to the log.
    runner = os.getppid()
    stops: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The runner passes Ctrl-C on, as SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.append(number))
    serve(iter(sys.stdin.readline, ""), _emitter(events), lambda: bool(stops) or os.getppid() != runner)


def _emitter(events: TextIO) -> Emit:
    def emit(**event: Any) -> None:
        with suppress(BrokenPipeError):  # The runner is gone; `should_stop` will notice.
            print(json.dumps(event), file=events, flush=True)

    return emit


if __name__ == "__main__":
    main()
