"""`bert4rec.tune`: look for better settings than the default, for as many minutes as one has."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bert4rec.artefact import held
from bert4rec.data.dataset import Dataset
from bert4rec.errors import UsageError
from bert4rec.extras import require_torch, require_tuner
from bert4rec.progress import is_notebook, is_shown
from bert4rec.settings.checks import checked_minutes, checked_seed
from bert4rec.tuning.outcome import SETTINGS, Tuning

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from bert4rec.tuning.search import SearchListener

log = logging.getLogger("bert4rec")


def tune(
    dataset: Dataset | str | Path,
    folder: str | Path,
    minutes: float = 20,
    *,
    model: str | None = None,
    settings: Mapping[str, object] | Iterable[str] | None = None,
    trials: int | None = None,
    seed: int | None = None,
    select_by: str | None = None,
    device: str = "auto",
    compile: bool = True,  # noqa: A002 (the public name)
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    listener: "SearchListener | None" = None,
    should_stop: Callable[[], bool] | None = None,
) -> Tuning:
    """Search for better settings on the validation items, and write them to a file that `train(..., config=...)` takes.

    The default is tried first, then the model's presets, then what Optuna proposes; trials that fall behind are given
    up. Up to half of the time is kept for training the best and the default again with fresh seeds: the best of many
    trials owes part of its lead to luck. If it is not better then, the file holds the default settings. The test items
    are never looked at.

    The default is what `train` would do on this machine.

    Ctrl-C ends the search. What was found by then is in the folder, and the same call with `resume=True` goes on.

    Parameters
    ----------
    dataset
        A dataset, or the folder of one.
    folder
        Folder of the search: settings.toml, trials.jsonl, a figure of what mattered.
    minutes
        How long to search, over all calls that work on it. If too few whole trainings fit, trials are shorter.
    model
        As in `train`.
    settings
        Settings that are not searched but stay as given, such as `{"model.max_length": 50}`.
    trials
        End the search after so many trials, even if there is time.
    seed
        Of the trials and of what is proposed; 1 by default. The fresh seeds are those that follow.
    select_by
        What to search by, as in `train`.
    device
        "auto", "cpu", "cuda", "cuda:1" or "mps".
    compile
        Compile the training step of each trial where that helps: on a GPU, for models that have no kernels of their
        own. False starts trials sooner.
    resume
        Continue an interrupted search, or a finished one with more `minutes`.
    overwrite
        Start again in a folder that holds a search.
    progress
        Whether to show a live line and the trials; None shows them in notebooks. They are logged in any case.
    listener
        Hears about every trial, and how it stands. It replaces the logger and the live line.
    should_stop
        Asked before every step; True ends the search as Ctrl-C does.
    """
    began = time.perf_counter()
    require_torch()
    require_tuner()
    # What can be refused without torch and Optuna is refused first.
    from bert4rec.training.plan import open_dataset
    from bert4rec.tuning.request import Request, clear_search, refuse_search

    if not isinstance(folder, str | Path):
        raise UsageError(f"`folder` must be the path of a folder; found {folder!r}.")
    opened, target, seconds = open_dataset(dataset), Path(folder), 60 * checked_minutes(minutes)
    start = checked_seed(seed)
    if trials is not None and (not isinstance(trials, int) or trials < 1):
        raise UsageError(f"`trials` must be a whole number above 0; found {trials!r}.")
    if resume:
        if overwrite:
            raise UsageError("`resume=True` and `overwrite=True` cannot be used together.")
        request = Request.load(target)
        request.refuse_changes(settings or (), model=model, seed=seed, select_by=select_by)
        request.plan.check_dataset(opened)
    else:
        from bert4rec.settings.sections import DEFAULT_MODEL

        request = Request.for_dataset(opened, model or DEFAULT_MODEL, settings or (), start, select_by)
        refuse_search(target, overwrite=overwrite)
    from bert4rec.training.device import place
    from bert4rec.tuning.search import Search
    from bert4rec.tuning.study import quiet_optuna
    from bert4rec.tuning.trials import Trainer

    placement = place(device)
    opened.verify()
    with held(target, wait=False), quiet_optuna(), _Line(progress) as line:
        watcher = listener or line
        if not resume:
            clear_search(target)
            watcher.busy("finding out what `train` would do on this machine", seconds)
            usual, request = request, request.as_trained(opened, placement, compile_step=compile)
            if request != usual:
                watcher.say(f"The default is what `train` would do on this machine: {request.size}.")
            request.save(target)
        search = Search(
            request,
            opened,
            target,
            seconds,
            trials,
            Trainer(opened, request.plan, target / "trial", placement, compile),
            watcher,
            should_stop or (lambda: False),
            began,
        )
        try:
            return search.run()
        finally:
            if not (target / SETTINGS).exists():  # Nothing was found, so nothing is left.
                clear_search(target)


class _Line:
    """Who watches a search by default: the logger, and a live line where progress is shown."""

    _console: "Console | None" = None
    _status: "Status | None" = None

    def __init__(self, progress: bool | None) -> None:
        if is_shown(progress):
            from rich.console import Console

            self._console = Console(stderr=not is_notebook(), highlight=False, markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def say(self, text: str) -> None:
        log.info(text)
        if self._console:
            self._console.print(text)

    def warn(self, text: str) -> None:
        log.warning(text)

    def busy(self, what: str, seconds_left: float) -> None:
        if not self._console:
            return
        text = f"{what}, {timedelta(seconds=round(seconds_left))} left"
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)
