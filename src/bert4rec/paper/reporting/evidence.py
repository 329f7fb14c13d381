"""What results say: the runs of a case found among the lines, their numbers with intervals, and comparisons."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bert4rec.evaluation.criterion import USUAL
from bert4rec.evaluation.metrics import METRICS, metric_per_user
from bert4rec.evaluation.significance import (
    NONE,
    Difference,
    Sample,
    Uncertainty,
    compare_samples,
    pooled_uncertainty,
)
from bert4rec.paper.experiments.cases import PAPER_NAMES, Case, DatasetFacts
from bert4rec.paper.reporting.layout import Measured, Verdict, p_text, percent
from bert4rec.training.plan import select_by_of
from bert4rec.training.reporting.results import JUDGED, ranks_path, read_ranks

Line = Mapping[str, Any]
SeedUncertainties = Mapping[tuple[str, str], Uncertainty]
"""What is usual for one run on a data set, by protocol and metric."""
UNDER = {"sampled": "under the paper's protocol", "full": "in full ranking"}
"""The protocols, as statements name them."""


@dataclass(frozen=True)
class SeedResults:
    """The finished runs of one case on one data set: one line a seed."""

    folder: Path
    lines: tuple[Line, ...]
    usual: SeedUncertainties = field(default_factory=dict)
    """For cases with one seed."""

    def values(self, metric: str, protocol: str = "sampled") -> list[float]:
        return [line["metrics"][protocol][metric] for line in self.lines]

    def mean(self, metric: str, protocol: str = "sampled") -> float:
        return float(np.mean(self.values(metric, protocol)))

    def measured(self, metric: str, protocol: str = "sampled", paper: float | None = None) -> Measured:
        """The mean with its interval over users and seeds, beside the paper's number."""
        sample = self.sample(metric, protocol, by_user=False)
        value = sample.mean
        if not sample.knows_users:
            return Measured(value, None, None, paper, self.at_last_step)
        margin = (sample.over_users() + sample.over_seeds(self.usual_for(metric, protocol))).margin
        return Measured(value, value - margin, value + margin, paper, self.at_last_step)

    def sample(self, metric: str, protocol: str, *, by_user: bool = True) -> Sample:
        """What comparisons need. The values of each user are read if wanted, or if there are no standard errors."""
        written = [
            line["standard_errors"][protocol][metric] for line in self.lines if line.get("standard_errors")
        ]
        error = Uncertainty(float(np.mean(written)) ** 2) if len(written) == len(self.lines) else None
        users = self._per_user(metric, protocol) if by_user or error is None else None
        has_seed = "training" in self.lines[0]["config"]
        return Sample(self.values(metric, protocol), users, error, has_seed)

    def usual_for(self, metric: str, protocol: str) -> Uncertainty:
        return self.usual.get((protocol, metric), NONE)

    @property
    def at_last_step(self) -> bool:
        """Whether the last validation was the best in every run, so that more steps might have given more.

        One seed that was best earlier shows that there were enough steps. A model that only counts has no steps.
        """
        return all(
            line["steps"] == line["config"].get("training", {}).get("steps", math.inf) for line in self.lines
        )

    def _per_user(self, metric: str, protocol: str) -> NDArray[np.float64] | None:
        """The mean over seeds for each test user, or None if ranks were not kept."""
        ranks = [read_ranks(self.folder, line) for line in self.lines]
        kept = [getattr(each, protocol) for each in ranks if each is not None]
        if len(kept) < len(ranks):
            return None
        mean: NDArray[np.float64] = np.mean([metric_per_user(each, metric) for each in kept], axis=0)
        return mean


def compare(
    one: SeedResults, other: SeedResults, metric: str, protocol: str = "sampled"
) -> Difference | None:
    """As `bert4rec.compare` does it, from the lines and ranks of results. None if nothing is known about the users."""
    samples = one.sample(metric, protocol), other.sample(metric, protocol)
    if not all(sample.knows_users for sample in samples):
        return None
    return compare_samples(*samples, usual=one.usual_for(metric, protocol))


@dataclass(frozen=True)
class Standing:
    """How one model stands to another by NDCG@10, under the paper's protocol and in full ranking."""

    gaps: Mapping[str, Difference]
    """By protocol."""

    @classmethod
    def of(cls, one: SeedResults, other: SeedResults) -> "Standing":
        gaps = {protocol: compare(one, other, "NDCG@10", protocol) for protocol in UNDER}
        return cls({protocol: gap for protocol, gap in gaps.items() if gap})

    @property
    def is_above_twice(self) -> bool:
        """Whether it is surely above under both protocols."""
        return [gap.direction for gap in self.gaps.values()] == [1] * len(UNDER)

    @property
    def word(self) -> Literal["above", "below", "neither above nor below"]:
        """Above: surely so under one protocol at least, and surely below under none."""
        directions = {gap.direction for gap in self.gaps.values()} - {0}
        if len(directions) != 1:
            return "neither above nor below"
        return "above" if directions == {1} else "below"

    def __str__(self) -> str:
        gaps = (f"{told(gap)} {UNDER[protocol]}" for protocol, gap in self.gaps.items())
        return f"NDCG@10 {', '.join(gaps)}"


def told(gap: Difference) -> str:
    """A difference as a share of the other, with its interval."""
    low, high = map(percent, gap.shares)
    return f"{percent(gap.share)} ({low} to {high}, {p_text(gap.p_value)})"


def judge_direction(differences: Iterable[Difference | None], expected: int = 1) -> Verdict:
    """On the statement "the one is better (1) or worse (-1) than the other": what all differences say together."""
    directions = [0 if each is None else each.direction for each in differences]
    if directions and all(each == expected for each in directions):
        return "reproduced"
    return "not reproduced" if -expected in directions else "undecided"


Index = dict[tuple[str, ...], dict[int, Line]]


@dataclass(frozen=True)
class Evidence:
    """All results of one data set."""

    facts: DatasetFacts
    folder: Path
    quick: bool = False
    index: Index = field(default_factory=dict)
    statistics: Line = field(default_factory=dict)
    """Empty if unknown."""
    titles: dict[str, str] = field(default_factory=dict)
    """Of the items that a report shows: number → title."""
    usual: SeedUncertainties = field(default_factory=dict)

    def find(
        self,
        case: Case,
        *,
        stage: str = "refit",
        part: str = "test",
        kind: str = "result",
        variant: str = "",
    ) -> SeedResults | None:
        """The runs of a case: the same model and exactly the same settings, from any version of the code.

        `variant` is that of a measure, if it is not the case's own.
        """
        config = case.config(self.facts.family, quick=self.quick).as_recorded()
        address = _address(
            kind, case.model, variant or case.variant, config, stage, part, select_by_of(case.model)
        )
        by_seed = self.index.get(address, {})
        lines = tuple(by_seed[seed] for seed in sorted(by_seed))
        return SeedResults(self.folder, lines, self.usual) if lines else None

    def stages(self, case: Case) -> list[tuple[Line | None, Line]]:
        """The selection and the refit of each run of a case.

        The selection's line for the test items was written with the refit. Its line for the validation items may belong
        to another run with the same settings, so it counts only if there is no other.
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
        """A number of a case; None if its runs are missing."""
        run = self.find(case)
        return run.measured(metric, protocol, paper) if run else None


def _address(
    kind: str, model: str, variant: str, config: Mapping[str, Any], stage: str, part: str, select_by: str
) -> tuple[str, ...]:
    return kind, model, variant, json.dumps(config, sort_keys=True), stage, part, select_by


@dataclass(frozen=True)
class Results:
    """A folder of results, read."""

    folder: Path
    data: list[Evidence]
    """One a data set: the paper's first, in its order."""
    quick: bool
    """Whether all lines are of quick runs."""
    left_out: int
    """How many lines of quick runs were found among real ones and ignored."""
    benches: list[Line]
    """What `bench train --json` and the benchmarks printed; it belongs to no data set."""
    code_versions: list[str]
    without_ranks: int
    """How many results cannot be compared with others user by user."""

    def benches_with(self, name: str) -> list[Line]:
        """The lines of one kind of benchmark, by a field that only this kind has, such as shape, recommend or serve."""
        return [line for line in self.benches if name in line]


def gather(folder: Path, lines: Iterable[Line]) -> Results:
    """Sort lines by data set and case. If two lines are about the same run, the later one counts."""
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
    """None if it is unknown with which presets this data set was run."""
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
            values = (*(line.get(name, "") for name in names), line.get("select_by", USUAL))
            index[_address(kind, *values)][line["seed"]] = line
    family = statistics.get("family", name)
    if family not in PAPER_NAMES:
        return None
    facts = DatasetFacts(name, checksum, protocol, family, candidates)
    return Evidence(facts, folder, quick, index, statistics, titles, _usual(folder, index))


def _usual(folder: Path, index: Index) -> SeedUncertainties:
    """From every trained model with several seeds, as judged on the test items.

    Variants do not count: one may be unstable, as an experiment shows, and that says nothing of the others.
    """
    runs = [SeedResults(folder, tuple(by_seed.values())) for by_seed in index.values()]
    plain = [run for run in runs if is_test(run.lines[0]) and not run.lines[0]["variant"]]
    trained = [run for run in plain if "training" in run.lines[0]["config"]]
    return {
        (protocol, metric): pooled_uncertainty(run.values(metric, protocol) for run in trained)
        for protocol in ("sampled", "full")
        for metric in METRICS
    }


def is_test(line: Line) -> bool:
    """Whether it is the result of a refitted model on the test items."""
    return "kind" not in line and (line["stage"], line["split"]) == ("refit", "test")
