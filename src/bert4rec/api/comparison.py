"""Which of several runs is better, and how sure that is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert4rec.data.splits import PARTS, Part
from bert4rec.errors import DataError, UsageError, one_of
from bert4rec.evaluation.judge import load_ranks
from bert4rec.evaluation.metrics import METRICS, metric_per_user, parse_metric
from bert4rec.evaluation.protocol import PROTOCOLS, Protocol, Ranks
from bert4rec.evaluation.significance import (
    Difference,
    Sample,
    compare_over_seeds,
    compare_over_users,
    compare_samples,
    usual_seed_uncertainty,
    wilcoxon_signed_rank,
)
from bert4rec.frames import Tabular
from bert4rec.training.plan import flat
from bert4rec.training.run import Run

if TYPE_CHECKING:
    import polars as pl

Compared = Run | str | Path
"""A run or its folder."""
Systems = Compared | Iterable[Compared] | Mapping[str, Compared | Iterable[Compared]]
"""One run, several, or runs by the name of their system."""
SURE, LIKELY = 0.01, 0.05
"""Below these p-values the best system is surely, or probably, better than the second."""


@dataclass(frozen=True)
class System:
    """Runs that differ only in their seed."""

    name: str
    runs: list[Run]
    part: Part
    """The items on which they are compared."""

    @cached_property
    def ranks(self) -> list[Ranks]:
        return [load_ranks(run.path, self.part) for run in self.runs]

    def sample(self, metric: str, protocol: Protocol) -> Sample:
        values = np.stack([metric_per_user(getattr(each, protocol), metric) for each in self.ranks])
        return Sample.of(values, has_seed=self.runs[0].plan.config.training is not None)


@dataclass(frozen=True)
class SystemMetrics:
    """The means of one system over its runs and users."""

    name: str
    seeds: int
    """How many runs it has."""
    refitted: bool
    """Whether its final models also learned from the validation items."""
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class SystemDifference:
    """One system less the first."""

    name: str
    against: str
    total: Difference
    """Over users and seeds: the interval and p-value to report."""
    users: Difference
    """Over users only: the paired t-test."""
    seeds: Difference | None
    """Over seeds only: Welch's t-test. None unless both systems have several runs."""
    wilcoxon: float
    """The p-value of the signed-rank test over users, which ignores how large differences are."""


@dataclass(frozen=True)
class Winner:
    """The best system beside the second, under one protocol."""

    protocol: Protocol
    best: str
    second: str
    values: tuple[float, float]
    """The metric of both."""
    p_values: Mapping[str, float]
    """Over users and, if both have several runs, over seeds."""
    p_value: float
    """Over users and seeds together: it decides."""
    has_seeds: bool
    """Whether anything is known about the influence of the seeds."""

    @property
    def sure(self) -> str:
        """Whether the best is better than the second: yes, probably or no."""
        return "yes" if self.p_value < SURE else "probably" if self.p_value < LIKELY else "no"

    def sentence(self, metric: str) -> str:
        """Which system wins, by how much and how sure that is."""
        label, (ours, theirs) = PROTOCOLS[self.protocol].capitalize(), self.values
        if ours == theirs:
            return f"{label}: no winner. {self.best} and {self.second} have the same {metric}."
        more = f", {ours / theirs - 1:+.1%}" if theirs else ""
        found = f"{metric} {ours:.4f} vs {theirs:.4f}{more}; {_p_value(self.p_value)} over users"
        found += " and seeds" if self.has_seeds else ""
        if self.sure == "no":
            return f"{label}: no clear winner. {self.best} leads {self.second}, but this may be chance ({found})."
        beats = "beats" if self.sure == "yes" else "probably beats"
        return f"{label}: {self.best} {beats} {self.second} ({found})."


@dataclass(frozen=True)
class Comparison(Tabular):
    """Several systems on the same items: their metrics, and the difference of each from the first."""

    dataset: str
    protocol: Protocol
    split: Part
    metric: str
    """What `differences` and `winners` are about."""
    systems: tuple[SystemMetrics, ...]
    differences: tuple[SystemDifference, ...]
    """Of every system but the first."""
    winners: tuple[Winner, ...]
    """One a protocol, whatever `protocol` is."""

    @property
    def sentences(self) -> list[str]:
        """Which system wins under each protocol, and how sure that is."""
        return [winner.sentence(self.metric) for winner in self.winners]

    def to_polars(self) -> "pl.DataFrame":
        """A row a system: its metrics, and its difference from the first with interval and p-values."""
        import polars as pl

        differences: list[SystemDifference | None] = [None, *self.differences]
        rows = [
            {
                "system": system.name,
                "seeds": system.seeds,
                **system.metrics,
                "difference": each and each.total.difference,
                "low": each and each.total.low,
                "high": each and each.total.high,
                "p_value": each and each.total.p_value,
                "p_value_users": each and each.users.p_value,
                "p_value_seeds": each.seeds.p_value if each and each.seeds else None,
                "p_value_wilcoxon": each and each.wilcoxon,
            }
            for system, each in zip(self.systems, differences, strict=True)
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""

        def plain(found: Difference) -> dict[str, float]:
            ends = {"difference": found.difference, "low": found.low, "high": found.high}
            return {**ends, "t_test": found.p_value}

        return {
            "dataset": self.dataset,
            "protocol": self.protocol,
            "split": self.split,
            "metric": self.metric,
            "systems": [{**vars(each), "metrics": dict(each.metrics)} for each in self.systems],
            "differences": [
                {
                    "name": each.name,
                    "against": each.against,
                    "total": plain(each.total),
                    "users": {**plain(each.users), "wilcoxon": each.wilcoxon},
                    "seeds": plain(each.seeds) if each.seeds else None,
                }
                for each in self.differences
            ],
            "verdicts": [
                {
                    "protocol": each.protocol,
                    "best": each.best,
                    "second": each.second,
                    "values": list(each.values),
                    "p_values": {**each.p_values, "total": each.p_value},
                    "sure": each.sure,
                }
                for each in self.winners
            ],
        }

    def __repr__(self) -> str:
        """The metrics as a table, the differences, and which system wins."""
        names = list(self.systems[0].metrics)
        width = max(len(system.name) for system in self.systems)
        lines = [
            f"{self.dataset}, {self.split} items, {PROTOCOLS[self.protocol]}",
            " ".join([" " * width, "seeds", *(f"{name:>8}" for name in names)]),
        ]
        for system in self.systems:
            cells = [f"{system.metrics[name]:8.4f}" for name in names]
            lines.append(" ".join([f"{system.name:<{width}}", f"{system.seeds:5}", *cells]))
        for each in self.differences:
            found = each.total
            interval = f"{found.difference:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
            lines.append(
                f"{self.metric}, {each.name} − {each.against}: {interval}, {_p_value(found.p_value)}"
            )
        return "\n".join([*lines, *self.sentences])


def compare_runs(
    runs: Iterable[Systems],
    *,
    metric: str = "NDCG@10",
    protocol: Protocol = "sampled",
    part: Part = "test",
) -> Comparison:
    """Compare runs on the same items; runs that differ only in their seed count as one system.

    Parameters
    ----------
    runs
        Finished runs or their folders, of at least two systems; lists of them; or mappings from the name of a system
        to its run or runs.
    metric
        What is compared, as `parse_metric` takes it: NDCG@10, Recall@20, MRR, …
    protocol
        "sampled": among 100 candidates a user. "full": among all items.
    part
        The items to compare on: "test", or "valid" while settings are being chosen.
    """
    metric = str(parse_metric(metric))
    one_of("protocol", protocol, PROTOCOLS)
    one_of("split", part, PARTS)
    named = _named(runs)
    if len(named) < 2:
        raise UsageError("Two runs or more are required to compare.")
    opened = [run if isinstance(run, Run) else Run.open(run) for _, run in named]
    for run in opened:
        run.verify()
    systems = group_runs(opened, part, [name for name, _ in named])
    if len(systems) < 2:
        raise UsageError(
            f"At least two systems are required; the {len(opened)} runs given differ only in their seed. "
            "Pass runs with different settings."
        )
    samples = {each: [system.sample(metric, each) for system in systems] for each in PROTOCOLS}
    first, *others = zip(systems, samples[protocol], strict=True)
    usual = usual_seed_uncertainty(samples[protocol])
    return Comparison(
        dataset=opened[0].plan.dataset_name,
        protocol=protocol,
        split=part,
        metric=metric,
        systems=tuple(
            SystemMetrics(
                system.name,
                len(system.runs),
                bool(system.runs[0].plan.refit),
                {name: system.sample(name, protocol).mean for name in dict.fromkeys((*METRICS, metric))},
            )
            for system in systems
        ),
        differences=tuple(
            SystemDifference(
                name=system.name,
                against=first[0].name,
                users=compare_over_users(sample, first[1]),
                total=compare_samples(sample, first[1], usual),
                seeds=compare_over_seeds(sample, first[1]),
                wilcoxon=wilcoxon_signed_rank(sample, first[1]),
            )
            for system, sample in others
        ),
        winners=tuple(_winner(each, systems, samples[each]) for each in PROTOCOLS),
    )


def _winner(protocol: Protocol, systems: Sequence[System], samples: Sequence[Sample]) -> Winner:
    order = sorted(range(len(systems)), key=lambda place: -samples[place].mean)
    best, second = (samples[place] for place in order[:2])
    usual = usual_seed_uncertainty(samples)
    p_values = {"users": compare_over_users(best, second).p_value}
    if over_seeds := compare_over_seeds(best, second):
        p_values["seeds"] = over_seeds.p_value
    return Winner(
        protocol=protocol,
        best=systems[order[0]].name,
        second=systems[order[1]].name,
        values=(best.mean, second.mean),
        p_values=p_values,
        p_value=compare_samples(best, second, usual).p_value,
        has_seeds=any(len(each.runs) > 1 for each in samples if each.has_seed),
    )


def _named(
    runs: Iterable[Systems],
) -> list[tuple[str | None, Compared]]:
    """Every run, with the name of its system if the caller gave one."""
    found: list[tuple[str | None, Compared]] = []
    for given in runs:
        for name, members in given.items() if isinstance(given, Mapping) else [(None, given)]:
            if isinstance(members, str) or not isinstance(members, Iterable):
                found.append((name, members))
            else:
                found += [(name, run) for run in members]
    for _, run in found:
        if not isinstance(run, Run | str | Path):
            raise UsageError(f"`runs` must be runs or their folders; found {type(run).__name__}.")
    return found


def group_runs(
    runs: Sequence[Run], part: Part = "test", names: Sequence[str | None] | None = None
) -> list[System]:
    """Runs by settings, whatever the seed. All must have the same data, candidates and split.

    Runs with a name of `names` are a system of that name.
    """
    groups: dict[tuple[str | None, str], list[Run]] = {}
    for run, name in zip(runs, names or [None] * len(runs), strict=True):
        plan = run.plan
        if _task_of(run) != _task_of(runs[0]):
            raise DataError(f"{run.path} and {runs[0].path} have different data, candidates or splits.")
        settings = repr((plan.model, plan.variant, plan.config, bool(plan.refit), plan.select_by))
        if name and any(key[0] == name and key[1] != settings for key in groups):
            raise UsageError(f"The runs of {name!r} differ in more than their seed. Give each system a name.")
        members = groups.setdefault((name, settings), [])
        twin = next((member for member in members if member.plan.seed == plan.seed), None)
        if twin:
            raise UsageError(
                f"{run.path} repeats {twin.path}: same settings, same seed {plan.seed}. Pass each run once."
            )
        members.append(run)
    usual = _usual_names(list(groups.values()))
    return [
        System(name or usual[place], members, part)
        for place, ((name, _), members) in enumerate(groups.items())
    ]


def _task_of(run: Run) -> tuple[object, ...]:
    return run.plan.data_checksum, run.plan.candidates_checksum, run.plan.split


def _usual_names(groups: Sequence[list[Run]]) -> list[str]:
    """Systems are called by the folders of their runs, or by model and settings if those are temporary."""
    for whole_path in (False, True):
        names = []
        for members in groups:
            first, last = members[0].path, members[-1].path
            name = str(first) if whole_path else first.name
            name = name if len(members) == 1 else f"{name} … {last.name}"
            peers = [other[0] for other in groups if other[0].keeper and other[0].model == members[0].model]
            names.append(_settings_of(members[0], peers) if members[0].keeper else name)
        if len(set(names)) == len(names):
            break
    return names


def _settings_of(run: Run, peers: Sequence[Run]) -> str:
    """The model of a run and as many of its settings as distinguish it from its peers."""
    settings: dict[Path, dict[str, object]] = {}
    for peer in peers:
        own = {"refit": bool(peer.plan.refit), "select_by": peer.plan.select_by}
        settings[peer.path] = {**flat(peer.plan.config.as_dict()), **own}
    told = [run.model]
    others = [each for path, each in settings.items() if path != run.path]
    for key, value in settings[run.path].items():
        if any(other[key] != value for other in others):
            told.append(f"{key}={value}")
            others = [other for other in others if other[key] == value]
    return ", ".join(told)


def _p_value(value: float) -> str:
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.4f}"
