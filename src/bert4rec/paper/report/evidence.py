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

from bert4rec.evaluation.metrics import METRICS, metric_per_user
from bert4rec.paper.experiments.cases import PAPER_NAMES, Case, Facts
from bert4rec.paper.report.layout import Measured, Verdict
from bert4rec.paper.report.luck import Uncertainty, uncertainty_of, uncertainty_of_one_seed
from bert4rec.training.results import JUDGED, ranks_path, read_ranks

Line = Mapping[str, Any]
LuckOfSeeds = Mapping[tuple[str, str], Uncertainty]
"""What is usual for one run on a data set, by protocol and metric."""


@dataclass(frozen=True)
class Found:
    """The finished runs of one case on one data set: one line a seed."""

    folder: Path
    lines: tuple[Line, ...]
    usual_luck: LuckOfSeeds = field(default_factory=dict)

    def values(self, metric: str, protocol: str = "sampled") -> list[float]:
        return [line["metrics"][protocol][metric] for line in self.lines]

    def mean(self, metric: str, protocol: str = "sampled") -> float:
        return float(np.mean(self.values(metric, protocol)))

    def luck_with_seeds(self, metric: str, protocol: str) -> Uncertainty:
        """Own where there are several seeds, otherwise what is usual. A model that only counts has none."""
        if "training" not in self.lines[0]["config"]:
            return Uncertainty()
        if len(self.lines) > 1:
            return uncertainty_of(self.values(metric, protocol))
        return self.usual_luck.get((protocol, metric), Uncertainty())

    def luck_with_users(self, metric: str, protocol: str) -> Uncertainty | None:
        """None where it is not known: neither standard errors nor ranks were kept."""
        written = [line.get("standard_errors") for line in self.lines]
        if all(written):
            return Uncertainty(float(np.mean([each[protocol][metric] for each in written if each])) ** 2)
        values = self.per_user(metric, protocol)
        return None if values is None else uncertainty_of(values)

    def measured(self, metric: str, protocol: str = "sampled", paper: float | None = None) -> Measured:
        users, value = self.luck_with_users(metric, protocol), self.mean(metric, protocol)
        if users is None:
            return Measured(value, None, None, paper, self.at_last_step)
        margin = (users + self.luck_with_seeds(metric, protocol)).margin
        return Measured(value, value - margin, value + margin, paper, self.at_last_step)

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
    """Paired over the test users where ranks of both were kept; otherwise by the luck of each with its users.

    The luck of both with their seeds comes on top. None where nothing is known of the users.
    """
    users = _users_of_both(one, other, metric, protocol)
    if users is None:
        return None
    luck = users + one.luck_with_seeds(metric, protocol) + other.luck_with_seeds(metric, protocol)
    base = other.mean(metric, protocol)
    difference = one.mean(metric, protocol) - base
    return Comparison(
        difference, difference - luck.margin, difference + luck.margin, luck.p(difference), base
    )


def _users_of_both(one: Found, other: Found, metric: str, protocol: str) -> Uncertainty | None:
    values = one.per_user(metric, protocol), other.per_user(metric, protocol)
    if values[0] is not None and values[1] is not None and len(values[0]) == len(values[1]):
        return uncertainty_of(values[0] - values[1])
    lucks = one.luck_with_users(metric, protocol), other.luck_with_users(metric, protocol)
    return None if lucks[0] is None or lucks[1] is None else lucks[0] + lucks[1]


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
    usual_luck: LuckOfSeeds = field(default_factory=dict)

    def find(
        self, case: Case, *, stage: str = "refit", part: str = "test", kind: str = "result"
    ) -> Found | None:
        """The runs of a case: the same model and exactly its settings, whatever version of the code made them."""
        config = case.config(self.facts.family, quick=self.quick).as_dict()
        address = _address(kind, case.model, case.variant, config, stage, part)
        by_seed = self.index.get(address, {})
        lines = tuple(by_seed[seed] for seed in sorted(by_seed))
        return Found(self.folder, lines, self.usual_luck) if lines else None

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
    kind: str, model: str, variant: str, config: Mapping[str, Any], stage: str, part: str
) -> tuple[str, ...]:
    return kind, model, variant, json.dumps(config, sort_keys=True), stage, part


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
    without_ranks: int
    """Results on the test items that can be compared with others only as a whole, not user by user."""

    def benches_with(self, name: str) -> list[Line]:
        """Each kind of benchmark has a field of its own: shape, recommend or serve."""
        return [line for line in self.benches if name in line]


def gather(folder: Path, lines: Iterable[Line]) -> Results:
    """Sort lines by data set and case. Of lines that say the same thing twice, the later counts."""
    everything = list(lines)
    quick = bool(everything) and all(line.get("quick") for line in everything)
    kept = [line for line in everything if bool(line.get("quick")) == quick]
    by_data: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for line in kept:
        if "data_checksum" in line:
            by_data[tuple(line.get(name, "") for name in JUDGED)].append(line)
    data = [_evidence(folder, judged, same, quick=quick) for judged, same in by_data.items()]
    known = [each for each in data if each is not None]
    known.sort(key=lambda each: (_place(each.facts.name), *each.facts.identity.values()))
    codes = sorted({line["versions"]["code"] for line in kept if "metrics" in line and "versions" in line})
    benches = [line for line in kept if "data_checksum" not in line]
    results = [line for line in kept if "metrics" in line and is_test(line)]
    without = sum(not ranks_path(folder, line).is_file() for line in results)
    return Results(folder, known, quick, len(everything) - len(kept), benches, codes, without)


def _place(name: str) -> int:
    """Of a data set in the paper's order; others come last."""
    return [*PAPER_NAMES, name].index(name)


def _evidence(folder: Path, judged: tuple[str, ...], lines: list[Line], *, quick: bool) -> Evidence | None:
    """None where nothing says with what presets this data set was run."""
    name, checksum, candidates, protocol = judged
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
            names = ("model", "variant", "config", "stage", "split")
            index[_address(kind, *(line.get(name, "") for name in names))][line["seed"]] = line
    family = statistics.get("family", name)
    if family not in PAPER_NAMES:
        return None
    facts = Facts(name, checksum, protocol, family, candidates)
    return Evidence(facts, folder, quick, index, statistics, titles, _usual_luck(folder, index))


def _usual_luck(folder: Path, index: Index) -> LuckOfSeeds:
    """From every trained model with several seeds, as it was judged in the end."""
    runs = [Found(folder, tuple(by_seed.values())) for by_seed in index.values()]
    trained = [run for run in runs if is_test(run.lines[0]) and "training" in run.lines[0]["config"]]
    return {
        (protocol, metric): uncertainty_of_one_seed(run.values(metric, protocol) for run in trained)
        for protocol in ("sampled", "full")
        for metric in METRICS
    }


def is_test(line: Line) -> bool:
    """Whether it holds what a refitted model did on the test items."""
    return "kind" not in line and (line["stage"], line["split"]) == ("refit", "test")
