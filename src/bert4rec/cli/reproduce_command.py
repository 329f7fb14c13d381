"""`bert4rec reproduce` and `bert4rec report`."""

import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bert4rec.cli.console import count, messages, print_table, results, say, this_command, warn
from bert4rec.cli.prepare_command import Flag
from bert4rec.errors import Bert4RecError, NotFoundError, UsageError
from bert4rec.extras import require_torch

if TYPE_CHECKING:
    from rich.progress import TaskID

    from bert4rec.paper.runs.jobs import Job
    from bert4rec.paper.runs.reproduce import Reproduction
    from bert4rec.paper.runs.runner import Outcome, OverallProgress

SHOWN = 8
"""How many of the runs that are left are named."""


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

    Runs that are already among the results, made by the same code, are not repeated. After an interruption, run the
    same command again to continue.

    Parameters
    ----------
    names
        table1, table2, table3, table4, table5, figure2, figure3, figure4, protocols, beyond; one, several, or all.
    data
        Folders of datasets, or names such as ml-1m, separated by commas. Named data sets are opened in the data folder;
        if they are not there, they are downloaded from their publisher and prepared there.
        [default: all datasets in the data folder]
    data_folder
        Where named datasets are.
    seeds
        Separated by commas. [default: 1,2,3 for table2, protocols and beyond, 1 for the others]
    minutes
        Start no run that would not finish within this time. Runs that have begun are finished.
    quick
        Train a few steps only, to see that everything works. The results go to a subfolder `quick`.
    results
        Folder of the results: a file of JSON lines for each data set, and the ranks behind them.
    work
        Folder of unfinished runs. Finished runs are removed from it.
    keep_runs
        Keep finished runs, with their weights.
    jobs
        How many runs share each device. Small models leave a large GPU idle.
    device
        auto (every GPU, or the CPU), cpu, cuda or cuda:1.
    compile_step
        Compile the training step where that helps: on a GPU, for models that have no kernels of their own.
    any_code
        Also count results that another version of the code made.
    dry_run
        Start nothing; only estimate how long the missing runs would take on this machine.
    """
    numbers = _numbers("--seeds", seeds) if seeds else None
    wanted = _parts("--data", data) if data is not None else None
    require_torch()
    from bert4rec.paper.runs.reproduce import reproduce

    with Board() as board:
        try:
            found = reproduce(
                names,
                data=wanted,
                data_folder=data_folder,
                seeds=numbers,
                minutes=minutes,
                quick=quick,
                results=results,
                work=work,
                keep_runs=keep_runs,
                jobs=jobs,
                device=device,
                compile=compile_step,
                any_code=any_code,
                dry_run=dry_run,
                listener=board,
            )
        except KeyboardInterrupt:
            if board.has_begun:
                say(f"Stopped; checkpoints are kept. Continue with:\n  {_this_call()}")
            raise
    if dry_run:
        _print_plan(found)
        return
    if not quick:
        _print_markdown(found)
    _say_what_is_left(found, quick=quick, in_time=minutes is not None)


def _parts(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{option} is empty. Separate several values by commas.")
    return parts


def _numbers(option: str, text: str) -> list[int]:
    parts = _parts(option, text)
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"{option} {text}: expected whole numbers separated by commas, such as 1,2,3.")
    return list(map(int, parts))


def _print_plan(found: "Reproduction") -> None:
    rows = [(run.job.label, f"{'~' * run.is_rough}{run.seconds or 0:,.0f} s") for run in found.left]
    if rows:
        print_table(["to be run", f"on {found.device}"], rows)
        say(f"One after the other, all of them take about {_time_left(found)}.")
    if any(run.is_rough for run in found.left):
        say("Times with ~ are rough guesses from a few steps with small batches.")


def _print_markdown(found: "Reproduction") -> None:
    """As it is: Markdown has no width and can be pasted anywhere."""
    results.out(found.to_markdown(), highlight=False)


def _say_what_is_left(found: "Reproduction", *, quick: bool, in_time: bool) -> None:
    left = found.left
    if left:
        why = " for lack of time" if in_time else ""
        say(f"Not run{why}: {count(len(left), 'run')}, about {_time_left(found)} if run one after the other:")
        for run in left[:SHOWN]:
            say(f"  {run.job.label}")
        if len(left) > SHOWN:
            say(f"  and {len(left) - SHOWN:,} more.")
        say(f"Continue with:\n  {_this_call()}")
    if found.failures:
        reasons = "\n".join(f"  {label}: {why}" for label, why in found.failures.items())
        raise Bert4RecError(f"{count(len(found.failures), 'run')} failed:\n{reasons}")
    if not left:
        command = f"{this_command()} report {found.results} -o {'report-quick' if quick else 'report'}"
        if quick:
            say(
                f"Everything works. The numbers mean nothing, after a few steps each. Make a report with: {command}"
            )
        else:
            say(f"All runs are done. Make a report with: {command}")


def _time_left(found: "Reproduction") -> timedelta:
    return timedelta(seconds=round(sum(run.seconds or 0.0 for run in found.left)))


def _this_call() -> str:
    return f"{this_command()} {shlex.join(sys.argv[1:])}"


class Board:
    """Shows how the runs are going: bars on a terminal, elsewhere a line for each finished run."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal)
        self._slots: dict[str, TaskID] = {}
        self._overall: TaskID | None = None

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @property
    def has_begun(self) -> bool:
        return self._overall is not None

    def say(self, text: str) -> None:
        say(text)

    def begin(self, total: int) -> None:
        self._overall = self._bars.add_task("All runs", total=total)
        self._bars.start()

    def progress(self, slot: str, job: "Job", event: dict[str, Any]) -> None:
        if slot not in self._slots:
            self._slots[slot] = self._bars.add_task("")
        text = f"{slot}: {job.label}, {event['stage']}"
        self._bars.update(self._slots[slot], description=text, completed=event["step"], total=event["steps"])

    def finished(self, slot: str, job: "Job", outcome: "Outcome", progress: "OverallProgress") -> None:  # noqa: ARG002
        left = str(timedelta(seconds=round(progress.seconds_left)))
        if self._overall is not None:
            self._bars.update(
                self._overall, completed=progress.finished, description=f"All runs, {left} left"
            )
        # An error may have several lines; a log has one line for each run.
        text = " ".join(outcome.text.split()).rstrip(".")
        if outcome.status != "done":
            text = f"{outcome.status.upper()}: {text}"
        took = f" ({outcome.seconds:.0f} s)" if outcome.seconds else ""
        say(f"[{progress.finished}/{progress.total}] {job.label}: {text}{took}. About {left} left.")


def report_command(
    results: Path = Path("results"), *, output: Annotated[Path, Parameter(alias="-o")] = Path("report")
) -> None:
    """Show every table and figure of the paper that was run, ours beside the paper's: a page, Markdown and figures.

    Needs neither a GPU nor data. Says which runs are missing, and the command that makes them.

    Parameters
    ----------
    results
        The folder that `bert4rec reproduce` wrote to.
    output
        Folder to write to.
    """
    if not results.exists():  # Before PyTorch is loaded, which takes seconds.
        raise NotFoundError(f"{results} does not exist; expected the results of `bert4rec reproduce`.")
    require_torch()
    from bert4rec.paper.reporting.report import report

    written = report(results, output)
    for warning in written.warnings:
        warn(warning)
    figures = f" and {count(len(written.figures), 'file')} of figures" if written.figures else ""
    say(f"Wrote {written.page}, {written.text}{figures}.")
