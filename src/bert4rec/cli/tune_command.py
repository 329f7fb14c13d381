"""`bert4rec tune`."""

import shlex
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bert4rec.cli.console import messages, print_json, results, say, this_command, warn
from bert4rec.cli.prepare_command import Flag, Seed
from bert4rec.cli.process import StopSwitch
from bert4rec.cli.train_command import Heartbeat, meaning_of
from bert4rec.tuning.outcome import SETTINGS
from bert4rec.tuning.tune import tune

if TYPE_CHECKING:
    from rich.status import Status


def tune_command(
    dataset: Path,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    minutes: float = 20,
    model: str | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", consume_multiple=False)] = (),
    trials: int | None = None,
    seed: Seed | None = None,
    select_by: str | None = None,
    device: str = "auto",
    compile_step: Annotated[bool, Parameter(name="--compile")] = True,
    resume: Flag = False,
    overwrite: Flag = False,
    json: Flag = False,
) -> None:
    """Search for better settings on the validation items, and write them to a file for `train --config`.

    The default, which is what `train` would do on this machine, is tried first, then presets, then what Optuna
    proposes. In the end, the best and the default are trained again with fresh seeds. If the best is not better then,
    the file holds the default settings.

    Parameters
    ----------
    dataset
        A folder that `bert4rec prepare` wrote.
    output
        Folder of the search: settings.toml, trials.jsonl, and a figure of what mattered, tuning.png.
    minutes
        How long to search, over all calls that work on it. If too few whole trainings fit, trials are shorter.
    model
        As in `bert4rec train`.
    settings
        Keep one setting as it is, such as model.max_length=50. May be given several times.
    trials
        End the search after so many trials, even if there is time.
    seed
        Of the trials and of what is proposed; the fresh seeds are those that follow. [default: 1]
    select_by
        What to search by, as in `bert4rec train`.
    device
        auto, cpu, cuda, cuda:1 or mps.
    compile_step
        Compile the training step of each trial where that helps: on a GPU, for models that have no kernels of their
        own. Without, trials start sooner.
    resume
        Continue an interrupted search, or a finished one with more --minutes.
    overwrite
        Start again in a folder that holds a search.
    json
        Print what was found as JSON.
    """
    options = {
        "--minutes": f"{minutes:g}",
        "--trials": trials,
        "--device": None if device == "auto" else device,
    }
    words = [str(word) for option, value in options.items() if value for word in (option, value)]
    words += [flag for flag, is_set in {"--no-compile": not compile_step, "--json": json}.items() if is_set]
    again = f"{this_command()} {shlex.join(['tune', str(dataset), '-o', str(output), '--resume', *words])}"

    def last_words() -> str:
        if not (output / SETTINGS).exists():
            return "Stopped before the first trial was finished: nothing was found."
        kept = f"The best settings so far are in {output / SETTINGS}, which says how sure that is."
        return f"Stopped. {kept} Continue with:\n  {again}"

    with StopSwitch(last_words) as switch, SearchLine() as line:
        try:
            found = tune(
                dataset,
                output,
                minutes,
                model=model,
                settings=settings,
                trials=trials,
                seed=seed,
                select_by=select_by,
                device=device,
                compile=compile_step,
                resume=resume,
                overwrite=overwrite,
                listener=line,
                should_stop=switch.is_on,
            )
        except KeyboardInterrupt:
            line.stop()
            say(last_words())
            raise
    if json:
        print_json(found.as_dict())
    else:
        results.print(found.sentence)
        if meaning := meaning_of(found.metric):
            say(meaning)
        if found.importance:
            shares = [f"{key} ({share:.0%})" for key, share in list(found.importance.items())[:3]]
            results.print(f"What mattered most: {', '.join(shares)}.")
    train = [
        "train",
        str(dataset),
        "-o",
        f"{output}-run",
        "--model",
        found.model,
        "--config",
        str(found.file),
    ]
    train += ["--select-by", found.select_by] if found.select_by else []
    say(f"Wrote {found.file} and {found.figure}. Train with:\n  {this_command()} {shlex.join(train)}")


class SearchLine:
    """A line for every trial, and one on a terminal that is always up to date.

    Without a terminal, it says what is going on whenever half a minute has passed without a line.
    """

    def __init__(self) -> None:
        self._status: Status | None = None
        self._heartbeat = Heartbeat(self._repeat)
        self._now: tuple[str, float, float] | None = None
        """What is going on, the seconds left, and when that was."""

    def __enter__(self) -> "SearchLine":
        if messages.is_terminal:
            self._status = messages.status("Getting ready …")
            self._status.start()
        else:
            self._heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._heartbeat.__exit__()
        self.stop()

    def stop(self) -> None:
        """Leave the terminal to others."""
        if self._status:
            self._status.stop()

    def say(self, text: str) -> None:
        say(text)
        self._heartbeat.note()

    def warn(self, text: str) -> None:
        warn(text)
        self._heartbeat.note()

    def busy(self, what: str, seconds_left: float) -> None:
        self._now = what, seconds_left, time.monotonic()
        if self._status:
            self._status.update(self._told())

    def _repeat(self) -> None:
        say(self._told())

    def _told(self) -> str:
        """Less the time that has passed since."""
        if self._now is None:
            return "Getting ready."
        what, seconds_left, since = self._now
        left = max(0, round(seconds_left - (time.monotonic() - since)))
        return f"{what}, {timedelta(seconds=left)} left"
