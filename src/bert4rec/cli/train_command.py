"""`bert4rec train`."""

import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from bert4rec.artefact import held, refuse_existing
from bert4rec.cli.console import count, messages, print_json, say, this_command
from bert4rec.cli.evaluate_command import print_results
from bert4rec.cli.heartbeat import Heartbeat
from bert4rec.cli.needs import require_torch
from bert4rec.cli.prepare_command import Flag, Seed, SplitOptions
from bert4rec.cli.stopping import StopSwitch
from bert4rec.errors import UsageError

if TYPE_CHECKING:
    from rich.status import Status

    from bert4rec.data.dataset import Dataset
    from bert4rec.training.loop import TrainingProgress
    from bert4rec.training.run import Plan, Run, Stage
    from bert4rec.training.tracking import Tracker
    from bert4rec.training.train import Throughput


def train_command(
    dataset: Path,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    model: str = "bert4rec",
    preset: str | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", consume_multiple=False)] = (),
    seed: Seed | None = None,
    refit: bool = True,
    test: bool = True,
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
        bert4rec, or a baseline: pop, bpr-mf, ncf, fpmc, gru4rec, gru4rec+, caser, sasrec.
    preset
        Settings to start from. Without one, usual settings and as many steps as the size of the data asks for.
        There are ml-1m, beauty, steam, ml-20m and demo. All but demo also exist with -small (d = 64; bert4rec),
        -paper (the paper's own; bert4rec, pop) and -softmax (the exact softmax; sasrec, gru4rec+).
    settings
        Change one setting, such as model.dim=256. May be given several times.
    seed
        Of weights, batches, masks and dropout. [default: 1]
    refit
        Train again on all but the test items once the number of steps is chosen, as the paper's authors did.
    test
        Refit and look at the test items in the end. Say --no-test while you are still choosing settings.
    device
        auto, cpu, cuda or cuda:1.
    compile_step
        Compile the training step where that helps: on a GPU.
    resume
        Go on with an interrupted run, with the settings it was started with.
    overwrite
        Start anew in a folder that holds a run.
    results
        Append the result to this file, one JSON object a line; ranks go to a folder beside it.
    track
        Also log to TensorBoard (in the run's folder) or MLflow.
    json
        Print the result as JSON.
    """
    began = time.perf_counter()
    require_torch()
    from bert4rec.data.dataset import Dataset

    # What can be refused without torch is refused first: loading it takes seconds.
    opened = Dataset.open(dataset)
    changes = [model != "bert4rec", preset, settings, overwrite, seed is not None, split != SplitOptions()]
    if resume and any([*changes, not refit, not test]):
        raise UsageError("--resume keeps the settings of the run; leave out what would change them.")
    if not resume:
        from bert4rec.training.config import choose_config

        config = choose_config(opened, model, preset, settings)
        refuse_run(output, overwrite=overwrite)

    from bert4rec.training.device import place
    from bert4rec.training.loop import Interrupted
    from bert4rec.training.run import Plan
    from bert4rec.training.tracking import make_tracker
    from bert4rec.training.train import RunContext, train

    opened.verify()
    placement = place(device)
    if resume:
        plan = _resumed_plan(output, opened)
    else:
        plan = Plan.for_dataset(
            opened,
            model,
            config,
            preset=preset,
            seed=1 if seed is None else seed,
            split=split.to_spec(),
            refit=refit,
            test=test,
        )
    with held(output, wait=False):
        if not resume:
            clear_run(output, overwrite=overwrite)
        kept = {"--results": results, "--device": None if device == "auto" else device, "--track": track}
        flags = {"--no-compile": not compile_step, "--json": json}
        next_command = _command_to_go_on(dataset, output, kept, flags)

        def last_words() -> str:
            if not (output / "config.json").exists():
                return "Stopped before training began: nothing was written."
            return f"Stopped at once; the last checkpoint is kept. Go on with:\n  {next_command}"

        with (
            StopSwitch(last_words) as switch,
            make_tracker(track, output) as tracker,
            LiveLine(tracker) as line,
        ):
            around = RunContext(placement, line, compile_step, switch.is_on, began)
            try:
                run = train(opened, output, plan, around)
            except Interrupted:
                say(f"A checkpoint is written. Go on with:\n  {next_command}")
                raise
            except KeyboardInterrupt:
                say(last_words())
                raise
    _tell(run, results, as_json=json)


def _tell(run: "Run", results: Path | None, *, as_json: bool) -> None:
    from bert4rec.training.results import append_results

    lines = run.result["lines"]
    if results and not is_in(results, lines):
        append_results(results, run)
    if as_json:
        print_json(lines)
    else:
        print_results(lines)
    say(f"Wrote {run.path}.")


def _command_to_go_on(dataset: Path, output: Path, values: "dict[str, Any]", flags: "dict[str, bool]") -> str:
    """With what does not decide the outcome as it was; the rest is in the run's folder."""
    options = [str(word) for option, value in values.items() if value for word in (option, value)]
    options += [flag for flag, is_set in flags.items() if is_set]
    return shlex.join([this_command(), "train", str(dataset), "-o", str(output), "--resume", *options])


def _resumed_plan(folder: Path, dataset: "Dataset") -> "Plan":
    """What an interrupted run was asked to do; the dataset may have moved since."""
    from bert4rec.training.run import Plan

    plan = Plan.load(folder)
    plan.check_dataset(dataset)
    return replace(plan, dataset=str(dataset.folder.absolute()))


def refuse_run(folder: Path, *, overwrite: bool) -> None:
    """Say what stands in the way of a new run."""
    if (folder / "config.json").exists() and not (folder / "run.json").exists() and not overwrite:
        raise UsageError(
            f"{folder} holds an unfinished run. Go on with --resume, or start anew with --overwrite."
        )
    refuse_existing(folder, "config.json", overwrite=overwrite)


def is_in(results: Path, lines: "Sequence[dict[str, Any]]") -> bool:
    """Whether a file has these lines: an earlier call may have been killed before or after it added them."""
    there = set(results.read_text(encoding="utf-8").splitlines()) if results.exists() else set()
    return all(dumps(line, ensure_ascii=False) in there for line in lines)


def clear_run(folder: Path, *, overwrite: bool) -> None:
    """Make room for a new run, if that is wanted. The folder itself stays, for it may be held."""
    left = list(folder.iterdir()) if folder.is_dir() else []
    if left or folder.is_file():
        refuse_run(folder, overwrite=overwrite)
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class LiveLine:
    """One line on a terminal that is always up to date; elsewhere a plain line for each validation.

    Where there is no terminal and nothing to tell for half a minute, it says what is going on.
    """

    def __init__(self, tracker: "Tracker | None" = None) -> None:
        self._tracker = tracker
        self._steps = 0
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
            self.say(f"Refit: {count(steps, 'step')} on all but the test items.")
        if messages.is_terminal:
            self._status = messages.status("starting …")
            self._status.start()

    def progress(self, stage: "Stage", progress: "TrainingProgress", pace: "Throughput") -> None:
        last = progress.history[-1] if progress.history else {}
        is_mark = last.get("step") == progress.step
        if is_mark and self._tracker:
            for name in last.keys() & {"loss", "value"}:
                self._tracker(f"{stage}/{name}", last[name], progress.step)
        text = f"step {progress.step}/{self._steps}, loss {pace.loss:.3f}, "
        if progress.best_step:
            text += f"NDCG@10 {last['value']:.4f}, "
        text += f"{pace.samples_per_second:,.0f} samples/s"
        self._now = text, pace.seconds_left, time.monotonic()
        if is_mark:
            is_best = progress.best_step == progress.step
            self.say(_with_time_left(text, pace.seconds_left) + (": the best so far" if is_best else ""))
        if self._status:
            self._status.update(_with_time_left(text, pace.seconds_left))

    def busy(self, what: str, seconds_left: float) -> None:
        self._now = what, seconds_left, time.monotonic()

    def say(self, text: str) -> None:
        say(text)
        self._heartbeat.note()

    def _repeat(self) -> None:
        """With the time that has passed since it was told taken off."""
        if self._now is None:
            say("Getting ready.")
            return
        text, seconds_left, since = self._now
        say(_with_time_left(text, max(0.0, seconds_left - (time.monotonic() - since))))

    def _stop(self) -> None:
        if self._status:
            self._status.stop()
            self._status = None


def _with_time_left(text: str, seconds: float) -> str:
    return f"{text}, {timedelta(seconds=round(seconds))} left"
