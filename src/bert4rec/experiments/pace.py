"""How long a run will take: as long as others like it did, or a guess that is said aloud."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from bert4rec.experiments.jobs import Job

GUESSES = {"cuda": 90.0, "cpu": 1800.0}
"""Seconds of a run that nobody has timed on such a device."""
QUICK_GUESS = 60.0
SPEED_GUESS = 45.0
MARGIN = 1.25
"""Nothing is started that would not finish if it took this much longer than the longest like it."""


class Pace:
    """Seconds of earlier runs, by device and kind of run."""

    def __init__(self, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self._seen: dict[tuple[str, ...], float] = defaultdict(float)
        for line in lines:
            if line.get("split") == "test" and "command_seconds" in line:
                kind = line.get("kind", "result")
                names = line["dataset"], line["model"], json.dumps(line["config"], sort_keys=True)
                self._learn(kind, line["device"], names, line["command_seconds"])

    def learn(self, job: Job, device: str, seconds: float) -> None:
        self._learn(*self._kind(job, device), seconds)

    def seconds(self, job: Job, device: str) -> float:
        """Of the same settings, else of the same model on the same data, else a guess; with a margin."""
        kind, _, (dataset, model, config) = self._kind(job, device)
        exact = self._seen.get((kind, device, dataset, model, config))
        rough = self._seen.get((kind, device, dataset, model))
        return MARGIN * (exact or rough or self._guess(job, device))

    def _guess(self, job: Job, device: str) -> float:
        if job.case.task == "speed":
            return SPEED_GUESS
        if job.quick:
            return QUICK_GUESS
        return GUESSES["cpu" if "threads" in device else "cuda"]

    def _kind(self, job: Job, device: str) -> tuple[str, str, tuple[str, str, str]]:
        config = job.case.config(job.facts.family, quick=job.quick).as_dict()
        kind = "speed" if job.case.task == "speed" else "result"
        return kind, device, (job.facts.name, job.case.model, json.dumps(config, sort_keys=True))

    def _learn(self, kind: str, device: str, names: tuple[str, ...], seconds: float) -> None:
        for key in (names, names[:2]):
            address = (kind, device, *key)
            self._seen[address] = max(self._seen[address], seconds)
