"""`bert4rec train` and `bert4rec refit`."""

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from bert4rec.api.runs import train
from bert4rec.cli.console import count, messages, print_json, say, this_command, warn
from bert4rec.cli.evaluate_command import STAGE_BEFORE, print_results
from bert4rec.cli.prepare_command import Flag, Seed, SplitOptions
from bert4rec.cli.process import StopSwitch

if TYPE_CHECKING:
    from rich.status import Status

    from bert4rec.training.loop import TrainingProgress
    from bert4rec.training.reporting.watch import Throughput
    from bert4rec.training.run import Run, Stage


SILENCE = 30.0
"""Seconds without a line after which one is due."""


def train_command(
    dataset: Path,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    model: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", consume_multiple=False)] = (),
    minutes: float | None = None,
    seed: Seed | None = None,
    refit: Annotated[bool | Literal["all"] | None, Parameter(show_choices=False)] = None,
    test: bool | None = None,
    select_by: str | None = None,
    split: SplitOptions = SplitOptions(),
    device: str = "auto",
    compile_step: Annotated[bool, Parameter(name="--compile")] = True,
    resume: Flag = False,
    overwrite: Flag = False,
    results: Path | None = None,
    track: Literal["tensorboard", "mlflow"] | None = None,
    json: Flag = False,
) -> None:
    """Train a model: choose the number of steps on the validation items, refit, test once.

    Parameters
    ----------
    dataset
        A folder that `bert4rec prepare` wrote.
    output
        Folder of the run.
    model
        bert4rec+, bert4rec (the paper's), or a baseline: pop, bpr-mf, ncf, fpmc, gru4rec, gru4rec+, caser, sasrec.
        [default: bert4rec+]
    preset
        Settings to start from. Without one, settings follow from the data. There are ml-1m, beauty, steam, ml-20m and
        demo. All but demo also exist with -small (d = 64; bert4rec), -paper (the paper's own; bert4rec, pop) and
        -softmax (the exact softmax; sasrec, gru4rec+).
    config
        A TOML file of settings, with the sections model, objective and training. It changes the preset.
    settings
        Change one setting, such as model.dim=256. May be given several times.
    minutes
        How long all of it may take. Steps, width and validations are planned for that time on this machine, unless
        they were set; a preset keeps its width. [default: no limit; 15 for bert4rec+ on a CPU without a preset]
    seed
        Of weights, batches, masks and dropout. [default: 1]
    refit
        Train again on all but the test items once the number of steps is chosen, as the paper's authors did.
        --refit all then tests that model and trains one more on everything, to be exported and served.
        [default: --refit]
    test
        Refit and look at the test items in the end. Use --no-test while you are still choosing settings, and
        `bert4rec refit` when you have chosen. [default: --test]
    select_by
        The metric that chooses the best number of steps on the validation items: hr@k, ndcg@k or mrr, among the sampled
        candidates or, as in ndcg@10:full, among all items; ndcg@10:both is the geometric mean.
        [default: ndcg@10; ndcg@10:both for bert4rec+]
    device
        auto, cpu, cuda, cuda:1 or mps.
    compile_step
        Compile the training step where that helps: on a GPU, for models that have no kernels of their own.
    resume
        Continue an interrupted run, with the settings it was started with; begin where there is none. So the same
        command suits the first start and every restart.
    overwrite
        Start again in a folder that holds a run.
    results
        Append the result to this file, one JSON object a line; ranks go to a folder beside it.
    track
        Also log to TensorBoard (in the run's folder) or MLflow.
    json
        Print the result as JSON.
    """
    kept = {"--results": results, "--device": None if device == "auto" else device, "--track": track}
    flags = {"--no-compile": not compile_step, "--json": json}
    with _stoppable(output, _command_to_go_on(dataset, output, kept, flags)) as (line, switch):
        run = train(
            dataset,
            output,
            model=model,
            preset=preset,
            config=config,
            settings=settings,
            minutes=minutes,
            seed=seed,
            refit=refit,
            test=test,
            select_by=select_by,
            split=split.to_spec(),
            device=device,
            compile=compile_step,
            resume=resume,
            overwrite=overwrite,
            results=results,
            track=track,
            listener=line,
            should_stop=switch.is_on,
        )
    _print_run(run, json=json)


def refit_command(
    run: Path,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    for_production: Annotated[bool, Parameter(name="--all", negative="")] = False,
    data: Path | None = None,
    device: str = "auto",
    compile_step: Annotated[bool, Parameter(name="--compile")] = True,
    overwrite: Flag = False,
    results: Path | None = None,
    track: Literal["tensorboard", "mlflow"] | None = None,
    json: Flag = False,
) -> None:
    """Finish what `train --no-test` left out: train on all but the test items, then test once.

    Settings, seed and data are those of the run, and what it has trained and found is reused.

    Parameters
    ----------
    run
        A folder that `bert4rec train` wrote.
    output
        Folder of the new run.
    for_production
        Then train on everything, as `train --refit all` does, to be exported and served.
    data
        The dataset, if it has moved since the training.
    device
        auto, cpu, cuda, cuda:1 or mps.
    compile_step
        Compile the training step where that helps: on a GPU, for models that have no kernels of their own.
    overwrite
        Start again in a folder that holds a run.
    results
        Append the result to this file, one JSON object a line; ranks go to a folder beside it.
    track
        Also log to TensorBoard (in the run's folder) or MLflow.
    json
        Print the result as JSON.
    """
    from bert4rec.training.run import Run

    chosen = Run.open(run)
    kept = {"--results": results, "--device": None if device == "auto" else device, "--track": track}
    flags = {"--no-compile": not compile_step, "--json": json}
    dataset = data or Path(chosen.plan.dataset)
    with _stoppable(output, _command_to_go_on(dataset, output, kept, flags)) as (line, switch):
        final = chosen.refit(
            output,
            all=for_production,
            dataset=data,
            device=device,
            compile=compile_step,
            overwrite=overwrite,
            results=results,
            track=track,
            listener=line,
            should_stop=switch.is_on,
        )
    _print_run(final, json=json)


@contextmanager
def _stoppable(output: Path, next_command: str) -> "Iterator[tuple[LiveLine, StopSwitch]]":
    """A live line and a switch that stops training; if it was stopped, say how to continue."""

    def last_words() -> str:
        if not (output / "config.json").exists() or (output / "run.json").exists():
            return "Stopped before training began: nothing was written."
        return f"Stopped at once; the last checkpoint is kept. Continue with:\n  {next_command}"

    with StopSwitch(last_words) as switch, LiveLine() as line:
        try:
            yield line, switch
        except KeyboardInterrupt as stopped:
            # `Interrupted`, for which torch would have to be loaded.
            is_polite = type(stopped) is not KeyboardInterrupt
            say(f"A checkpoint is written. Continue with:\n  {next_command}" if is_polite else last_words())
            raise


def _print_run(run: "Run", *, json: bool) -> None:
    if json:
        print_json(run.result["lines"])
    else:
        print_results(run.result["lines"])
    if run.final_stage == "production":
        say(STAGE_BEFORE)
    say(f"Wrote {run.path}.")


def _command_to_go_on(dataset: Path, output: Path, values: "dict[str, Any]", flags: "dict[str, bool]") -> str:
    """With what does not decide the outcome as it was; the rest is in the run's folder."""
    options = [str(word) for option, value in values.items() if value for word in (option, value)]
    options += [flag for flag, is_set in flags.items() if is_set]
    words = ["train", str(dataset), "-o", str(output), "--resume", *options]
    return f"{this_command()} {shlex.join(words)}"


class Heartbeat:
    """Says how things stand whenever half a minute has passed without a line."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._news, self._is_over = threading.Event(), False

    def __enter__(self) -> "Heartbeat":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._news.set()

    def note(self) -> None:
        """Something was said."""
        self._news.set()

    def _watch(self) -> None:
        while not self._is_over:
            if self._news.wait(SILENCE):
                self._news.clear()
            else:
                self._tell()


class LiveLine:
    """One line on a terminal that is always up to date; elsewhere a plain line for each validation.

    Without a terminal, it says what is going on whenever half a minute has passed without a line.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._explained = False
        self._status: Status | None = None
        self._heartbeat = Heartbeat(self._repeat)
        self._now: tuple[str, float, float] | None = None
        """What is going on, the seconds left, and when that was."""

    def __enter__(self) -> "LiveLine":
        if not messages.is_terminal:
            self._heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._heartbeat.__exit__()
        self._stop()

    def stage(self, stage: "Stage", steps: int) -> None:
        self._stop()
        self._steps = steps
        self._now = None
        if stage == "selection":
            most = count(steps, "step")
            self.say(f"Selection: at most {most}; the best number of them is chosen on the validation items.")
        else:
            on = "all but the test items" if stage == "refit" else "everything"
            self.say(f"{stage.capitalize()}: {count(steps, 'step')} on {on}.")
        if messages.is_terminal:
            self._status = messages.status("starting …")
            self._status.start()

    def progress(self, _stage: "Stage", progress: "TrainingProgress", pace: "Throughput") -> None:
        last = progress.history[-1] if progress.history else {}
        is_mark = last.get("step") == progress.step
        text = f"step {progress.step}/{self._steps}, loss {pace.loss:.2f}, "
        if progress.best_step:
            text += f"{progress.metric} {last['value']:.4f}, "
        speed = pace.samples_per_second
        text += f"{speed:,.0f} samples/s" if speed < 100_000 else f"{speed / 1000:,.0f}k samples/s"
        self._now = text, pace.seconds_left, time.monotonic()
        if is_mark:
            self._explain(progress.metric)
            is_best = progress.best_step == progress.step
            self.mark(_with_time_left(text, pace.seconds_left) + (": the best so far" if is_best else ""))
        if self._status:
            self._status.update(_with_time_left(text, pace.seconds_left))

    def mark(self, text: str) -> None:
        """Tell of a validation."""
        self.say(text)

    def _explain(self, metric: str) -> None:
        """What the metric is, once: before the first line that has it."""
        if not self._explained and (meaning := meaning_of(metric)):
            self.say(meaning)
        self._explained = True

    def busy(self, what: str, seconds_left: float) -> None:
        self._now = what, seconds_left, time.monotonic()

    def say(self, text: str) -> None:
        say(text)
        self._heartbeat.note()

    def warn(self, text: str) -> None:
        warn(text)
        self._heartbeat.note()

    def _repeat(self) -> None:
        """Say it again, less the time that has passed since."""
        if self._now is None:
            say("Getting ready.")
            return
        text, seconds_left, since = self._now
        say(_with_time_left(text, max(0.0, seconds_left - (time.monotonic() - since))))

    def _stop(self) -> None:
        if self._status:
            self._status.stop()
            self._status = None


def meaning_of(metric: str) -> str | None:
    """What is meant by a metric of both protocols; None for others, which are named in every table."""
    from bert4rec.evaluation.criterion import CANDIDATES

    name, _, protocol = metric.partition(":")
    if protocol != "both":
        return None
    return f"{metric} is the geometric mean of {name} among {CANDIDATES} candidates and among all items."


def _with_time_left(text: str, seconds: float) -> str:
    return f"{text}, {timedelta(seconds=round(seconds))} left"
