"""What results say: the runs of a case found among the lines, its numbers with intervals, and comparisons."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.evaluation.metrics import metric_per_user
from bert4rec.evaluation.significance import student_two_sided
from bert4rec.experiments.cases import PAPER_NAMES, Case, Facts
from bert4rec.experiments.layout import Measured, Verdict
from bert4rec.training.results import read_ranks

Line = Mapping[str, Any]
NORMAL = 1.96
"""Standard errors in half a 95% interval, with as many users as a test has."""
ASYMPTOTIC = 1e6
"""Degrees of freedom where nobody counted them: so many that Student's t is normal."""


@dataclass(frozen=True)
class Found:
    """The finished runs of one case on one data set: one line a seed."""

    folder: Path
    lines: tuple[Line, ...]

    def values(self, metric: str, protocol: str = "sampled") -> list[float]:
        return [line["metrics"][protocol][metric] for line in self.lines]

    def mean(self, metric: str, protocol: str = "sampled") -> float:
        return float(np.mean(self.values(metric, protocol)))

    def error(self, metric: str, protocol: str = "sampled") -> float | None:
        """Standard error over test users and, where there are several, over seeds; None where it is not known."""
        written = [line.get("standard_errors") for line in self.lines]
        if all(written):
            over_users = float(np.mean([each[protocol][metric] for each in written if each]))
        elif (values := self.per_user(metric, protocol)) is not None:
            over_users = float(values.std() / math.sqrt(len(values)))
        else:
            return None
        over_seeds = np.std(self.values(metric, protocol), ddof=1) if len(self.lines) > 1 else 0.0
        return math.hypot(over_users, float(over_seeds) / math.sqrt(len(self.lines)))

    def measured(self, metric: str, protocol: str = "sampled", paper: float | None = None) -> Measured:
        error, value = self.error(metric, protocol), self.mean(metric, protocol)
        low, high = (None, None) if error is None else (value - NORMAL * error, value + NORMAL * error)
        return Measured(value, low, high, paper, self.at_last_step)

    @property
    def at_last_step(self) -> bool:
        """Whether every run ended because its steps were used up, with validation at its best.

        One seed that was best earlier shows that there were steps enough. A model that only counts has no steps.
        """
        return all(
            line["steps"] == line["config"].get("training", {}).get("steps", math.inf) for line in self.lines
        )

    def per_user(self, metric: str, protocol: str) -> NDArray[np.float64] | None:
        """The mean over seeds for each test user, or None where ranks were not kept."""
        ranks = [read_ranks(self.folder, line) for line in self.lines]
        kept = [getattr(each, protocol) for each in ranks if each is not None]
        if len(kept) < len(ranks):
            return None
        mean: NDArray[np.float64] = np.mean([metric_per_user(each, metric) for each in kept], axis=0)
        return mean


@dataclass(frozen=True)
class Comparison:
    """One case less another."""

    difference: float
    low: float
    high: float
    p: float
    base: float
    """The other's number."""

    @property
    def share(self) -> float:
        """The difference as a share of the other's number."""
        return self._relative(self.difference)

    @property
    def shares(self) -> tuple[float, float]:
        """The ends of the interval, as shares of the other's number."""
        return self._relative(self.low), self._relative(self.high)

    def _relative(self, value: float) -> float:
        return value / self.base if self.base else math.nan

    @property
    def direction(self) -> int:
        """1 or -1 where the interval lies on one side of zero, otherwise 0."""
        return (self.low > 0) - (self.high < 0)


def compare(one: Found, other: Found, metric: str, protocol: str = "sampled") -> Comparison | None:
    """Paired over the test users where ranks of both were kept; otherwise by the errors of the two numbers.

    None where neither is to be had.
    """
    ours, theirs = one.per_user(metric, protocol), other.per_user(metric, protocol)
    base = other.mean(metric, protocol)
    if ours is not None and theirs is not None and len(ours) == len(theirs):
        differences = ours - theirs
        error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
        return _comparison(float(differences.mean()), error, len(differences) - 1, base)
    errors = one.error(metric, protocol), other.error(metric, protocol)
    if errors[0] is None or errors[1] is None:
        return None
    return _comparison(one.mean(metric, protocol) - base, math.hypot(errors[0], errors[1]), ASYMPTOTIC, base)


def _comparison(difference: float, error: float, freedom: float, base: float) -> Comparison:
    if error == 0:
        return Comparison(difference, difference, difference, float(difference == 0), base)
    margin, p = NORMAL * error, student_two_sided(difference / error, freedom)
    return Comparison(difference, difference - margin, difference + margin, p, base)


def judge_direction(comparisons: Iterable[Comparison | None], expected: int = 1) -> Verdict:
    """Of a statement "the one is better (1) or worse (-1) than the other": what all these comparisons say together."""
    directions = [0 if each is None else each.direction for each in comparisons]
    if directions and all(each == expected for each in directions):
        return "reproduced"
    return "not reproduced" if -expected in directions else "undecided"


Index = dict[tuple[str, ...], dict[int, Line]]


@dataclass(frozen=True)
class Evidence:
    """All that the results hold of one data set."""

    facts: Facts
    folder: Path
    quick: bool = False
    index: Index = field(default_factory=dict)
    statistics: Line = field(default_factory=dict)
    """Empty where nobody wrote them down."""
    titles: dict[str, str] = field(default_factory=dict)
    """Of the items that a report shows: number → title."""

    def find(
        self, case: Case, *, stage: str = "refit", part: str = "test", kind: str = "result"
    ) -> Found | None:
        """The runs of a case: the same model and exactly its settings, whatever version of the code made them."""
        config = case.config(self.facts.family, quick=self.quick).as_dict()
        address = _address(kind, case.model, case.variant, config, stage, part, self.facts.split)
        by_seed = self.index.get(address, {})
        return Found(self.folder, tuple(by_seed[seed] for seed in sorted(by_seed))) if by_seed else None

    def stages(self, case: Case) -> list[tuple[Line | None, Line]]:
        """The selection and the refit of each run of a case.

        What the selection's model did on the test items was written with the refit. Its line for the validation items
        may be of another run with the same settings, and counts only where there is no other.
        """
        selections: dict[int, Line] = {}
        for part in ("valid", "test"):
            found = self.find(case, stage="selection", part=part)
            selections |= {line["seed"]: line for line in found.lines} if found else {}
        final = self.find(case)
        return [(selections.get(line["seed"]), line) for line in final.lines] if final else []

    def measured(
        self, case: Case, metric: str, *, protocol: str = "sampled", paper: float | None = None
    ) -> Measured | None:
        """A number of a case; None where its runs are missing."""
        run = self.find(case)
        return run.measured(metric, protocol, paper) if run else None


def _address(
    kind: str, model: str, variant: str, config: Mapping[str, Any], stage: str, part: str, protocol: str
) -> tuple[str, ...]:
    return kind, model, variant, json.dumps(config, sort_keys=True), stage, part, protocol


@dataclass(frozen=True)
class Results:
    """A folder of results, read."""

    folder: Path
    data: list[Evidence]
    """One a data set: the paper's first, in its order."""
    quick: bool
    """Whether all of it is from `--quick`."""
    left_out: int
    """Quick lines found among real ones, and ignored."""
    benches: list[Line]
    """Of no data set: what `bench train --json` and the benchmarks printed."""
    code_versions: list[str]

    def benches_with(self, name: str) -> list[Line]:
        """Each kind of benchmark has a field of its own: shape, recommend or serve."""
        return [line for line in self.benches if name in line]


def gather(folder: Path, lines: Iterable[Line]) -> Results:
    """Sort lines by data set and case. Of lines that say the same thing twice, the later counts."""
    everything = list(lines)
    quick = bool(everything) and all(line.get("quick") for line in everything)
    kept = [line for line in everything if bool(line.get("quick")) == quick]
    by_data: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in kept:
        if "data_checksum" in line:
            by_data[line["dataset"], line["data_checksum"]].append(line)
    data = [_evidence(folder, same, quick=quick) for same in by_data.values()]
    order = list(PAPER_NAMES)
    known = [each for each in data if each is not None]
    known.sort(key=lambda each: (each.facts.name not in order, each.facts.title, each.facts.checksum))
    codes = sorted({line["versions"]["code"] for line in kept if "metrics" in line and "versions" in line})
    benches = [line for line in kept if "data_checksum" not in line]
    return Results(folder, known, quick, len(everything) - len(kept), benches, codes)


def _evidence(folder: Path, lines: list[Line], *, quick: bool) -> Evidence | None:
    """None where nothing says with what presets this data set was run."""
    name, checksum = lines[0]["dataset"], lines[0]["data_checksum"]
    statistics: Line = {}
    titles: dict[str, str] = {}
    index: Index = defaultdict(dict)
    for line in lines:
        kind = line.get("kind", "result")
        if kind == "statistics":
            statistics = line
        elif kind == "titles":
            titles |= line["titles"]
        else:
            names = ("model", "variant", "config", "stage", "split", "protocol")
            index[_address(kind, *(line.get(name, "") for name in names))][line["seed"]] = line
    family = statistics.get("family", name)
    if family not in PAPER_NAMES:
        return None
    facts = Facts(name, checksum, statistics.get("split", "leave-one-out"), family)
    return Evidence(facts, folder, quick, index, statistics, titles)
