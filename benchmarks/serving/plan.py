"""How long to measure, and how an outcome is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load import Outcome
from benchmarks.serving.servers import Version

Found = dict[str, Any]
Measure = Callable[["Plan"], Found]


@dataclass(frozen=True)
class Plan:
    """What all measurements are told."""

    versions: Sequence[Version]
    """This one first; the version before, if it is measured beside it, second."""
    seconds: float = 30.0
    """Of each overload."""
    rounds: int = 3
    """Turns that the versions take where a ratio is what counts."""
    requests: int = 50_000
    """Over which memory is watched."""
    stops: int = 5
    count: int = 100
    """Kills."""
    store: str | None = None
    """In which events must survive the kills; None for SQLite."""

    @property
    def turn(self) -> float:
        """Seconds of whatever needs no long time."""
        return self.seconds / 8

    def each(self, measure: Callable[[Version], Found]) -> Found:
        """One version after the other."""
        return {version.name: measure(version) for version in self.versions}

    def each_kind(self, measures: Mapping[str, Callable[[Version], Found]]) -> Found:
        """Several kinds of one measurement: the versions take turns at each."""
        found = {kind: self.each(measure) for kind, measure in measures.items()}
        return {
            version.name: {kind: by_version[version.name] for kind, by_version in found.items()}
            for version in self.versions
        }


def told(outcome: Outcome) -> Found:
    """What a reader wants to know of every load."""
    found: Found = {
        "per_second": round(outcome.per_second),
        "p50_ms": milliseconds(outcome, 50),
        "p99_ms": milliseconds(outcome, 99),
        "statuses": {str(status): count for status, count in sorted(outcome.statuses.items())},
        "unanswered": outcome.unanswered,
        "load_busy": round(outcome.own_processor_seconds / outcome.seconds, 2),
    }
    if outcome.processor_seconds > 0:
        found["per_processor_second"] = round(outcome.per_processor_second)
    if outcome.refused:
        found["connections_refused"] = outcome.refused
    return found


def milliseconds(outcome: Outcome, percent: float) -> float | None:
    """None where nothing was answered: JSON has no nan."""
    return round(outcome.percentile(percent), 1) if outcome.latencies else None


def share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
