"""How long a run will take: as long as similar runs took, or a guess."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bert4rec.paper.runs.jobs import Job

GUESSES = {"cuda": 90.0, "cpu": 1800.0}
"""Seconds of a run if no similar one was timed on such a device."""
QUICK_GUESS = 60.0
SPEED_GUESS = 45.0
MARGIN = 1.25
"""A run is started only if it would finish in time even if it took this many times longer than expected."""

RUN = ("dataset", "data_checksum", "model", "variant", "config", "seed", "protocol", "versions")
"""What the lines of one run have in common."""

Line = Mapping[str, Any]
Times = dict[tuple[str, ...], list[float]]


def is_whole(final: Line, selection: Line | None) -> bool:
    """Whether `command_seconds` of a run's last line covers the whole run, and not only its last call.

    Older lines do not say so, but their seconds of training add up over all calls.
    """
    if "resumed" in final:
        return not final["resumed"]
    trained = sum(line.get("train_seconds", 0.0) for line in (selection, final) if line)
    return bool(final["command_seconds"] >= trained)


class RunTimes:
    """Seconds of earlier runs, by device and kind of run.

    How long a run takes depends on how many others share its device, and results do not say how many did. So two kinds
    of times are kept apart. *Comparable* are those of this call's own runs and, if it runs one at a time, earlier ones
    that had the device to themselves: the longest of them may come again. Of the *others* only the median is used: the
    longest says more about how busy the device was than about the run.
    """

    def __init__(self, lines: Sequence[Line] = (), *, side_by_side: bool = False) -> None:
        """`side_by_side`: whether the runs of this call share a device."""
        self._comparable: Times = defaultdict(list)
        self._others: Times = defaultdict(list)
        selections = {_run_of(line): line for line in lines if line.get("stage") == "selection"}
        for line in lines:
            is_timed = line.get("stage") == "refit" and "command_seconds" in line
            if is_timed and is_whole(line, selections.get(_run_of(line))):
                kind = line.get("kind", "result")
                names = line["dataset"], line["model"], json.dumps(line["config"], sort_keys=True)
                is_comparable = not (side_by_side or line.get("device_shared"))
                times = self._comparable if is_comparable else self._others
                for address in _addresses(kind, line["device"], names):
                    times[address].append(line["command_seconds"])

    def learn(self, job: Job, device: str, seconds: float) -> None:
        """From a run of this call."""
        for address in _addresses(*self._kind(job, device)):
            self._comparable[address].append(seconds)

    def knows(self, job: Job, device: str) -> bool:
        """Whether a similar run was ever timed; otherwise all times are guesses."""
        return any(self._found(job, device))

    def likely(self, job: Job, device: str) -> float:
        """To predict how much time is left."""
        comparable, others = self._times(job, device)
        return median(comparable or others)

    def longest(self, job: Job, device: str) -> float:
        """To decide whether a run is still started; with a margin."""
        comparable, others = self._times(job, device)
        return MARGIN * (max(comparable) if comparable else median(others))

    def _times(self, job: Job, device: str) -> tuple[list[float], list[float]]:
        comparable, others = self._found(job, device)
        return (comparable, others) if comparable or others else ([], [self._guess(job, device)])

    def _found(self, job: Job, device: str) -> tuple[list[float], list[float]]:
        """Times of the same settings, else of the same model on the same data: comparable and others."""
        for address in _addresses(*self._kind(job, device)):
            found = self._comparable.get(address, []), self._others.get(address, [])
            if any(found):
                return found
        return [], []

    def _guess(self, job: Job, device: str) -> float:
        if job.case.task == "speed":
            return SPEED_GUESS
        if job.quick:
            return QUICK_GUESS
        return GUESSES["cpu" if " thread" in device else "cuda"]

    def _kind(self, job: Job, device: str) -> tuple[str, str, tuple[str, str, str]]:
        config = job.case.config(job.facts.family, quick=job.quick).as_recorded()
        kind = "speed" if job.case.task == "speed" else "result"
        return kind, device, (job.facts.name, job.case.model, json.dumps(config, sort_keys=True))


def _run_of(line: Line) -> str:
    return json.dumps([line.get(name) for name in RUN], sort_keys=True)


def _addresses(kind: str, device: str, names: tuple[str, str, str]) -> list[tuple[str, ...]]:
    """The keys of a time, exact settings first."""
    return [(kind, device, *names), (kind, device, *names[:2])]
