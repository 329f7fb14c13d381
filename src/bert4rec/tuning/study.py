"""The search as Optuna keeps it: which settings to try next, which trials to give up, and a journal of all of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from bert4rec.training.reporting.results import locked
from bert4rec.tuning.outcome import State, TuningTrial

JOURNAL = "study.jsonl"
DRAWN = 6
"""Trials, default and presets included, before the sampler goes by what was found."""
STATES: dict[TrialState, State] = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}
NEVER_PRUNED = 3
"""Trials that come to their end, so that there is something to compare with."""
TENTHS, LEFT_ALONE = 10, 2
"""The parts of a trial by which Optuna compares it with others, and in how many of them it is never pruned."""


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """What Optuna would log of every trial is told by us."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def open_study(folder: Path, seed: int) -> Study:
    """The study in this folder, which nobody else may be using; a new one if there is none.

    What a killed process left is put in order: half a line, a lock, a trial that seems to be running.
    """
    path = folder / JOURNAL
    with locked(path):  # This completes its last line.
        path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path))),
        study_name="tuning",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=NEVER_PRUNED, n_warmup_steps=LEFT_ALONE),
    )
    # A search that goes on must not draw the same settings again.
    seed = (seed + len(study.trials)) % 2**32
    study.sampler = optuna.samplers.TPESampler(multivariate=True, n_startup_trials=DRAWN, seed=seed)
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def as_told(trial: FrozenTrial) -> TuningTrial:
    """A finished trial without Optuna's types."""
    noted = {"changes": {}, "seconds": 0.0, "minute": 0.0, "note": "", **trial.user_attrs}
    return TuningTrial(trial.number, STATES.get(trial.state, "failed"), trial.value, **noted)
