"""Re-run tables and figures of the paper: choose experiments and data, run what is missing, record the results."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bert4rec.api.datasets import prepare
from bert4rec.data.dataset import MANIFEST, Dataset
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.frames import Tabular
from bert4rec.paper.experiments.cases import Experiment
from bert4rec.paper.experiments.index import EXPERIMENTS
from bert4rec.paper.reporting.evidence import gather
from bert4rec.paper.reporting.report import count
from bert4rec.paper.reporting.report_text import findings_text
from bert4rec.paper.runs.estimate import estimate, outline
from bert4rec.paper.runs.jobs import Job, make_jobs
from bert4rec.paper.runs.ledger import Ledger, describe
from bert4rec.paper.runs.run_times import RunTimes
from bert4rec.paper.runs.runner import (
    Outcome,
    OverallProgress,
    Runner,
    RunnerListener,
    Worker,
    WorkerSettings,
    make_slots,
)
from bert4rec.training.device import place

if TYPE_CHECKING:
    import polars as pl


class ReproduceListener(RunnerListener, Protocol):
    """Hears how a reproduction is going."""

    def say(self, text: str) -> None:
        """A message for the user."""

    def begin(self, total: int) -> None:
        """So many runs are about to be started."""


class _Quiet:
    """A listener that does nothing."""

    def say(self, text: str) -> None: ...

    def begin(self, total: int) -> None: ...

    def progress(self, slot: str, job: Job, event: dict[str, Any]) -> None: ...

    def finished(self, slot: str, job: Job, outcome: Outcome, progress: OverallProgress) -> None: ...


@dataclass(frozen=True)
class ReproducedRun:
    """One run of a reproduction."""

    job: Job
    status: Literal["done", "failed", "to do"]
    seconds: float | None = None
    """About how long it will take, if it is still to do."""
    is_rough: bool = False
    """Whether `seconds` is a rough guess from a few small steps."""
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Reproduction(Tabular):
    """What `reproduce` has done, and what is left."""

    results: Path
    """The folder of the results."""
    device: str
    """Its name in the results; empty if no run was started."""
    runs: tuple[ReproducedRun, ...]
    failures: dict[str, str]
    """What failed → the reason: runs, and workers that did not start."""
    experiments: tuple[Experiment, ...]
    checksums: frozenset[str]
    """Of the data sets."""

    @property
    def left(self) -> list[ReproducedRun]:
        """The runs that are still to do."""
        return [run for run in self.runs if run.status == "to do"]

    def to_polars(self) -> "pl.DataFrame":
        """A row a run: what it is, whether it is done, and about how many seconds it will take if not."""
        import polars as pl

        rows = [
            {
                "dataset": run.job.facts.name,
                "model": run.job.case.model,
                "case": run.job.case.label,
                "task": run.job.case.task,
                "seed": run.job.seed,
                "status": run.status,
                "seconds": run.seconds,
                "reason": run.reason,
            }
            for run in self.runs
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def to_markdown(self) -> str:
        """The tables and statements of the experiments on the data sets, ours beside the paper's."""
        everything = gather(self.results, Ledger(self.results).lines()).data
        sections = [
            f"## {experiment.title}: {evidence.facts.title}\n\n{findings_text(experiment.lay_out(evidence))}\n"
            for experiment in self.experiments
            for evidence in everything
            if evidence.facts.checksum in self.checksums
        ]
        return "\n".join(sections)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{sum(run.status == status for run in self.runs):,} {status}" for status in ("done", "to do")
        )
        return f"Reproduction({len(self.runs):,} runs: {counts}, {len(self.failures)} failed; {self.results})"


def reproduce(
    names: str | Sequence[str],
    *,
    data: str | Path | Sequence[str | Path] | None = None,
    data_folder: str | Path = "data",
    seeds: Sequence[int] | None = None,
    minutes: float | None = None,
    quick: bool = False,
    results: str | Path = "results",
    work: str | Path = "work",
    keep_runs: bool = False,
    jobs: int = 1,
    device: str = "auto",
    compile: bool = True,  # noqa: A002 - the public name
    any_code: bool = False,
    dry_run: bool = False,
    listener: ReproduceListener | None = None,
) -> Reproduction:
    """Re-run tables and figures of the paper.

    Runs that are already among the results, made by the same code, are not repeated. After an interruption, call it
    again with the same parameters to continue.

    Parameters
    ----------
    names
        table1 to table5, figure2, figure3, figure4, protocols, beyond; one, several, or "all".
    data
        Folders of datasets, or names such as "ml-1m". Named data sets are opened in `data_folder`; if they are not
        there, they are downloaded from their publisher and prepared there. By default, all datasets in `data_folder`.
    data_folder
        Where named datasets are.
    seeds
        By default 1, 2 and 3 for table2, protocols and beyond, and 1 for the others.
    minutes
        Start no run that would not finish within this time. Runs that have begun are finished.
    quick
        Train a few steps only, to see that everything works. The results go to a subfolder `quick`.
    results
        The folder of the results: a file of JSON lines for each data set, and the ranks behind them.
    work
        The folder of unfinished runs. Finished runs are removed from it.
    keep_runs
        Keep finished runs, with their weights.
    jobs
        How many runs share each device. Small models leave a large GPU idle.
    device
        "auto" (every GPU, or the CPU), "cpu", "cuda" or "cuda:1".
    compile
        Compile the training step where that helps: on a GPU, for models that have no kernels of their own.
    any_code
        Also count results that another version of the code made.
    dry_run
        Start nothing; only estimate how long the missing runs would take on this machine.
    listener
        Hears messages and how the runs are going. By default, nothing is shown.
    """
    began, listener = time.monotonic(), listener or _Quiet()
    experiments = choose_experiments([names] if isinstance(names, str) else names)
    if jobs < 1:
        raise UsageError(f"`jobs` must be at least 1; got {jobs}.")
    if device != "auto":
        place(device)  # An unknown device is refused at once.
    datasets = _datasets(data, Path(data_folder), listener, may_prepare=not dry_run)
    ledger = Ledger.open(Path(results), quick=quick)
    everything = make_jobs(experiments, datasets, tuple(seeds) if seeds else None, quick=quick)
    todo = _missing(everything, ledger, listener, any_code=any_code)
    times = RunTimes(ledger.lines(), side_by_side=jobs > 1)
    checksums = frozenset(dataset.checksum for dataset in datasets)
    if dry_run:
        here, rough = _estimate(todo, datasets, times, device, listener)
        runs = _statuses(everything, todo, times, here, rough, {})
        return Reproduction(ledger.folder, here, runs, {}, tuple(experiments), checksums)
    for dataset in datasets:
        dataset.verify()
        describe(dataset, ledger)
    settings = WorkerSettings(ledger.folder.absolute(), Path(work).absolute(), compile, quick, keep_runs)
    deadline = began + 60 * minutes if minutes is not None else float("inf")
    slots = make_slots(device, jobs)
    listener.begin(len(todo))
    runner = Runner(todo, slots, lambda slot: Worker(slot, settings, len(slots)), times, listener, deadline)
    runner.run()
    for dataset in datasets:
        describe(dataset, ledger)
    runs = _statuses(everything, runner.waiting, times, runner.device, {}, runner.failed)
    return Reproduction(ledger.folder, runner.device, runs, runner.failed, tuple(experiments), checksums)


def choose_experiments(names: Sequence[str]) -> list[Experiment]:
    """The experiments with these names, or all of them."""
    known = ", ".join(EXPERIMENTS)
    if not names:
        raise UsageError(f"The name of a table or figure is required: {known}, or all.")
    if list(names) == ["all"]:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            near = get_close_matches(name, EXPERIMENTS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"Unknown table or figure {name!r}.{hint} Known: {known}, and all.")
    return [EXPERIMENTS[name] for name in names]


def _datasets(
    data: str | Path | Sequence[str | Path] | None,
    folder: Path,
    listener: ReproduceListener,
    *,
    may_prepare: bool,
) -> list[Dataset]:
    if data is None:
        wanted: Sequence[str | Path] = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
    else:
        wanted = [data] if isinstance(data, str | Path) else data
    if not wanted:
        raise NotFoundError(
            f'No dataset found in {folder}. Pass the name of one that can be downloaded, such as `data="ml-1m"`, or '
            f"prepare your own in {folder / 'NAME'}."
        )
    return [_dataset(str(name), folder, listener, may_prepare=may_prepare) for name in wanted]


def _dataset(name: str, folder: Path, listener: ReproduceListener, *, may_prepare: bool) -> Dataset:
    """A folder, or a name: prepared in the data folder earlier or now."""
    from bert4rec.sources.named import SOURCES

    for path in (Path(name), folder / name):
        if (path / MANIFEST).is_file():
            return Dataset.open(path)
    path = folder / name
    if name not in SOURCES:
        raise NotFoundError(
            f"No dataset found at {name} or {path}, and {name!r} is not the name of a known data set: "
            f"{', '.join(SOURCES)}. Prepare your own log in {path} first."
        )
    if not may_prepare:
        listener.say(f"No dataset found at {path}. It would be downloaded first; that time is not counted.")
        return outline(name, path)
    listener.say(f"No dataset found at {path}. Preparing it.")
    return prepare(name, path)


def _missing(
    everything: list[Job], ledger: Ledger, listener: ReproduceListener, *, any_code: bool
) -> list[Job]:
    marks = ledger.marks(any_code=any_code)
    todo = [job for job in everything if not job.is_done(marks)]
    done = len(everything) - len(todo)
    listener.say(f"{count(len(everything), 'run')}: {done:,} done, {len(todo):,} to do.")
    of_any_code = ledger.marks(any_code=True)
    by_other_code = sum(job.is_done(of_any_code) for job in todo)
    if by_other_code:
        listener.say(
            f"{count(by_other_code, 'run')} to do were already done by another version of the code. They are repeated, "
            "and the new results are shown. To use the old results, pass `any_code=True`."
        )
    return todo


def _estimate(
    todo: list[Job], datasets: list[Dataset], times: RunTimes, device: str, listener: ReproduceListener
) -> tuple[str, dict[str, float]]:
    """The device here, and rough seconds of the jobs that were never timed on it, by mark."""
    placement = place(device)
    untimed = [job for job in todo if not times.knows(job, placement.name)]
    if untimed:
        listener.say(
            f"Trying a few steps of {count(len(untimed), 'run')} that were never timed on {placement.name} …"
        )
    return placement.name, estimate(untimed, datasets, placement)


def _statuses(
    everything: list[Job],
    waiting: list[Job],
    times: RunTimes,
    device: str,
    rough: dict[str, float],
    failed: dict[str, str],
) -> tuple[ReproducedRun, ...]:
    left = {job.mark for job in waiting}

    def status_of(job: Job) -> ReproducedRun:
        if job.mark in left:
            seconds = rough.get(job.mark) or times.likely(job, device)
            return ReproducedRun(job, "to do", seconds, job.mark in rough)
        reason = failed.get(job.label, "")
        return ReproducedRun(job, "failed" if reason else "done", reason=reason)

    return tuple(map(status_of, everything))
