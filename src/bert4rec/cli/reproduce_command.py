"""`bert4rec reproduce`."""

import shlex
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bert4rec.cli.console import count, messages, print_table, results, say, this_command
from bert4rec.cli.needs import require_torch
from bert4rec.cli.prepare_command import Flag
from bert4rec.errors import Bert4RecError, NotFoundError, UsageError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from bert4rec.data.dataset import Dataset
    from bert4rec.paper.experiments.cases import Experiment
    from bert4rec.paper.runs.jobs import Job
    from bert4rec.paper.runs.ledger import Ledger
    from bert4rec.paper.runs.run_times import RunTimes
    from bert4rec.paper.runs.runner import Outcome, OverallProgress, Runner
    from bert4rec.training.device import Placement

SHOWN = 8
"""Runs named one by one where many are left."""
QUICK_END = "Everything runs. The numbers mean nothing: a few steps each. How a report of them looks:"


def reproduce_command(
    *names: str,
    data: str | None = None,
    data_folder: Path = Path("data"),
    seeds: str | None = None,
    minutes: float | None = None,
    quick: Flag = False,
    results: Path = Path("results"),
    work: Path = Path("work"),
    keep_runs: Flag = False,
    jobs: int = 1,
    device: str = "auto",
    compile_step: Annotated[bool, Parameter(name="--compile")] = True,
    any_code: Flag = False,
    dry_run: Flag = False,
) -> None:
    """Re-run a table or figure of the paper and show it beside the paper's numbers.

    What is among the results already, made by the same code, is not run again. Whatever interrupts it, the same
    command goes on.

    Parameters
    ----------
    names
        table1, table2, table3, table4, table5, figure2, figure3, figure4, protocols; several, or all.
    data
        Datasets, separated by commas: folders that `bert4rec prepare` wrote, or names such as ml-1m, which are
        looked for in the data folder and, if they are not there, fetched from their publisher and prepared there.
        [default: all in the data folder]
    data_folder
        Where datasets are looked for.
    seeds
        Separated by commas. [default: 1,2,3 for table2 and protocols, 1 for the others]
    minutes
        Start nothing that will not finish within so many minutes. What has begun goes on to its end.
    quick
        A few steps only, to see that everything runs. Results are marked and go to a folder `quick` of their own.
    results
        Folder of the results: one JSON object a line, one file a data set, and the ranks behind them.
    work
        Folder of unfinished runs. A finished run is removed, unless told otherwise.
    keep_runs
        Keep the folders of finished runs, with their weights.
    jobs
        Runs side by side on each device. Small models leave a large GPU idle.
    device
        auto (every GPU, or the CPU), cpu, cuda or cuda:1.
    compile_step
        Compile the training step where that helps: on a GPU.
    any_code
        Results that other versions of the code made count too, and are not run again.
    dry_run
        Only say what would be run, and about how long it would take on this machine.
    """
    began = time.monotonic()
    numbers = _numbers("--seeds", seeds) if seeds else None
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one run at a time.")
    require_torch()
    from bert4rec.paper.runs.descriptions import describe
    from bert4rec.paper.runs.jobs import make_jobs
    from bert4rec.paper.runs.ledger import Ledger
    from bert4rec.paper.runs.run_times import RunTimes
    from bert4rec.paper.runs.runner import Runner, Worker, WorkerSettings, make_slots
    from bert4rec.training.device import place

    experiments = _experiments(names)
    if device != "auto":
        place(device)  # What is not there is said at once.
    wanted = _parts("--data", data) if data is not None else _all_in(data_folder)
    datasets = [_dataset(name, data_folder, may_prepare=not dry_run) for name in wanted]
    ledger = Ledger.open(results, quick=quick)
    everything = make_jobs(experiments, datasets, numbers, quick=quick)
    marks, marks_of_any_code = ledger.marks(), ledger.marks(any_code=True)
    todo = [job for job in everything if not job.is_done(marks_of_any_code if any_code else marks)]
    pace = RunTimes(ledger.lines(), side_by_side=jobs > 1)
    if dry_run:
        _print_plan(todo, datasets, pace, place(device))
    say(f"{_how_far(len(everything), len(todo))}.")
    _say_what_other_code_did(sum(job.is_done(marks_of_any_code) for job in todo))
    if dry_run:
        return
    for dataset in datasets:
        dataset.verify()
        describe(dataset, ledger)
    office = WorkerSettings(ledger.folder.absolute(), work.absolute(), compile_step, quick, keep_runs)
    deadline = began + 60 * minutes if minutes is not None else float("inf")
    slots = make_slots(device, jobs)
    with Board(len(todo)) as board:
        runner = Runner(todo, slots, lambda slot: Worker(slot, office, len(slots)), pace, board, deadline)
        _run(runner)
    for dataset in datasets:
        describe(dataset, ledger)
    if not quick:
        _print_sections(experiments, datasets, ledger)
    _say_what_is_left(runner, ledger.folder, quick=quick)


def _run(runner: "Runner") -> None:
    try:
        runner.run()
    except KeyboardInterrupt:
        say(f"Stopped; checkpoints are kept. Go on with:\n  {_this_call()}")
        raise


def _experiments(names: Sequence[str]) -> "list[Experiment]":
    from difflib import get_close_matches

    from bert4rec.paper.experiments.index import EXPERIMENTS

    if not names:
        raise UsageError(f"Name what to reproduce: {', '.join(EXPERIMENTS)}, or all.")
    if names == ("all",):
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            near = get_close_matches(name, EXPERIMENTS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"There is no {name!r}.{hint} Known: {', '.join(EXPERIMENTS)}, and all.")
    return [EXPERIMENTS[name] for name in names]


def _parts(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{option} is empty. Separate several by commas.")
    return parts


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = _parts(option, text)
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"{option} {text}: expected whole numbers separated by commas, such as 1,2,3.")
    return tuple(map(int, parts))


def _say_what_other_code_did(runs: int) -> None:
    if runs:
        say(
            f"Of {count(runs, 'run')} to do there are results of other versions of the code. With --any-code they "
            "count; without, they are made again, and the new ones are shown."
        )


def _all_in(folder: Path) -> list[str]:
    from bert4rec.data.dataset import MANIFEST

    found = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
    if not found:
        raise NotFoundError(
            f"There is no dataset in {folder}. Name one with --data: ml-1m, say, is fetched from its publisher and "
            f"prepared there. Or prepare your own with: {this_command()} prepare … -o {folder / 'NAME'}"
        )
    return found


def _dataset(name: str, folder: Path, *, may_prepare: bool) -> "Dataset":
    """A folder as it is, or a name: prepared in the data folder, before or now."""
    from bert4rec.cli.prepare_command import prepare_command
    from bert4rec.data.dataset import MANIFEST, Dataset
    from bert4rec.sources.named import SOURCES

    for path in (Path(name), folder / name):
        if (path / MANIFEST).is_file():
            return Dataset.open(path)
    if name not in SOURCES:
        raise NotFoundError(
            f"There is no dataset at {name} or {folder / name}, and no data set is called so. "
            f"Prepare one with: bert4rec prepare … -o {folder / name}. Known by name: {', '.join(SOURCES)}."
        )
    if not may_prepare:
        from bert4rec.paper.runs.estimate import outline

        say(
            f"There is no dataset at {folder / name} yet: it would be fetched first. That time is not counted."
        )
        return outline(name, folder / name)
    say(f"There is no dataset at {folder / name} yet. Preparing it:")
    try:
        prepare_command(name, output=folder / name)
    except NotFoundError as error:
        command = f"{this_command()} prepare {name} --from PATH -o {folder / name}"
        raise NotFoundError(f"{error}\nThat is: {command}") from error
    return Dataset.open(folder / name)


def _how_far(total: int, left: int) -> str:
    return f"{count(total, 'run')}: {total - left:,} done, {left:,} to do"


def _print_plan(
    todo: "list[Job]", datasets: "list[Dataset]", pace: "RunTimes", placement: "Placement"
) -> None:
    """With the seconds that such runs took here, or about what they would: a few steps are tried."""
    from bert4rec.paper.runs.estimate import estimate

    device = placement.name
    untimed = [job for job in todo if not pace.knows(job, device)]
    if untimed:
        say(f"Trying a few steps of what was never timed on {device} …")
    rough = estimate(untimed, datasets, placement)
    seconds = {job.mark: rough.get(job.mark) or pace.likely(job, device) for job in todo}
    rows = [(job.label, f"{'~' * (job.mark in rough)}{seconds[job.mark]:,.0f} s") for job in todo]
    if rows:
        print_table(["to be run", f"on {device}"], rows)
        time_left = timedelta(seconds=round(sum(seconds.values())))
        say(f"One after the other, all of them take about {time_left}.")
    if rough:
        say("Times with ~ are rough guesses from a few steps with small batches.")


def _print_sections(experiments: "list[Experiment]", datasets: "list[Dataset]", ledger: "Ledger") -> None:
    """What was asked for, from the results, as Markdown: it has no width and can be pasted anywhere."""
    from bert4rec.paper.reporting.evidence import gather
    from bert4rec.paper.reporting.report_text import part_text

    checksums = {dataset.checksum for dataset in datasets}
    found = gather(ledger.folder, ledger.lines())
    for experiment in experiments:
        for evidence in found.data:
            if evidence.facts.checksum in checksums:
                title = f"## {experiment.title}: {evidence.facts.title}"
                results.out(f"{title}\n\n{part_text(experiment.lay_out(evidence))}\n", highlight=False)


def _say_what_is_left(runner: "Runner", folder: Path, *, quick: bool) -> None:
    if runner.waiting:
        seconds = timedelta(
            seconds=round(sum(runner.pace.likely(job, runner.device) for job in runner.waiting))
        )
        why = " for want of time" if runner.deadline < float("inf") else ""
        left = count(len(runner.waiting), "run")
        say(f"Left out{why}: {left}, about {seconds} if done one after the other:")
        for job in runner.waiting[:SHOWN]:
            say(f"  {job.label}")
        if len(runner.waiting) > SHOWN:
            say(f"  and {len(runner.waiting) - SHOWN:,} more.")
        say(f"Go on with:\n  {_this_call()}")
    if runner.failed:
        told = "\n".join(f"  {label}: {why}" for label, why in runner.failed.items())
        raise Bert4RecError(f"{count(len(runner.failed), 'run')} failed:\n{told}")
    if not runner.waiting:
        command = f"{this_command()} report {folder} -o {'report-quick' if quick else 'report'}"
        say(f"{QUICK_END} {command}" if quick else f"All is there. See it with: {command}")


def _this_call() -> str:
    return shlex.join([this_command(), *sys.argv[1:]])


class Board:
    """Shows how far everything has come: a bar and a line a worker on a terminal, elsewhere a line a finished run."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal)
        self._overall = self._bars.add_task("All runs", total=total)
        self._slots: dict[str, TaskID] = {}

    def __enter__(self) -> "Board":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def progress(self, slot: str, job: "Job", event: dict[str, Any]) -> None:
        if slot not in self._slots:
            self._slots[slot] = self._bars.add_task("")
        text = f"{slot}: {job.label}, {event['stage']}"
        self._bars.update(self._slots[slot], description=text, completed=event["step"], total=event["steps"])

    def finished(self, slot: str, job: "Job", outcome: "Outcome", tally: "OverallProgress") -> None:  # noqa: ARG002
        left = str(timedelta(seconds=round(tally.seconds_left)))
        self._bars.update(self._overall, completed=tally.finished, description=f"All runs, {left} left")
        # Errors may be of several lines; whoever reads a log counts on one a run.
        told = " ".join(outcome.text.split()).rstrip(".")
        if outcome.status != "done":
            told = f"{outcome.status.upper()}: {told}"
        took = f" ({outcome.seconds:.0f} s)" if outcome.seconds else ""
        say(f"[{tally.finished}/{tally.total}] {job.label}: {told}{took}. About {left} left.")
