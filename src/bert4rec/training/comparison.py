"""Which of several runs is better, and how sure that is."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.splits import Part
from bert4rec.errors import DataError, UsageError
from bert4rec.evaluation.judge import load_ranks
from bert4rec.evaluation.metrics import METRICS, metric_per_user
from bert4rec.evaluation.significance import compare_over_seeds, compare_over_users, paired_t_test
from bert4rec.training.run import Run

SURE, LIKELY = 0.01, 0.05
"""Below these p-values the best system surely, or probably, is better than the next."""


@dataclass(frozen=True)
class System:
    """Runs that differ in nothing but their seed."""

    name: str
    runs: list[Run]
    part: Part
    """What they are compared on."""

    def values(self, metric: str, protocol: str) -> NDArray[np.float64]:
        """[runs, users]"""
        ranks = (getattr(load_ranks(run.path, self.part), protocol) for run in self.runs)
        return np.stack([metric_per_user(each, metric) for each in ranks])


def compare_runs(paths: Sequence[Path], *, metric: str, protocol: str, part: Part = "test") -> dict[str, Any]:
    """Mean metrics of every system, and the difference of each from the first, ready for JSON."""
    runs = [Run.open(path) for path in paths]
    for run in runs:
        run.verify()
    systems = group_runs(runs, part)
    if len(systems) < 2:
        raise UsageError(
            f"There is nothing to compare: the {len(paths)} runs named differ in nothing but their seed. "
            "Name runs with different settings."
        )
    first, *others = systems
    return {
        "dataset": first.runs[0].plan.dataset_name,
        "protocol": protocol,
        "split": part,
        "metric": metric,
        "systems": [
            {
                "name": system.name,
                "seeds": len(system.runs),
                "refitted": system.runs[0].plan.refit,
                "metrics": {name: float(system.values(name, protocol).mean()) for name in METRICS},
            }
            for system in systems
        ],
        "differences": [_difference(other, first, metric, protocol) for other in others],
        "verdicts": [_verdict(systems, metric, each) for each in ("sampled", "full")],
    }


def _verdict(systems: Sequence[System], metric: str, protocol: str) -> dict[str, Any]:
    """The best system beside the next one, and how likely luck alone would set them so far apart."""
    values = {system.name: system.values(metric, protocol) for system in systems}
    best, second = sorted(values, key=lambda name: -float(values[name].mean()))[:2]
    ours, theirs = values[best], values[second]
    p_values = {"users": paired_t_test(ours.mean(axis=0) - theirs.mean(axis=0))}
    if min(len(ours), len(theirs)) > 1:
        over_seeds = compare_over_seeds(ours.mean(axis=1).tolist(), theirs.mean(axis=1).tolist())
        p_values["seeds"] = over_seeds.t_test
    likeliest = max(p_values.values())
    return {
        "protocol": protocol,
        "best": best,
        "second": second,
        "values": [float(ours.mean()), float(theirs.mean())],
        "p_values": p_values,
        "sure": "yes" if likeliest < SURE else "probably" if likeliest < LIKELY else "no",
    }


def group_runs(runs: Sequence[Run], part: Part = "test") -> list[System]:
    """Runs by what they were asked to do, less the seed; all must be judged on the same targets."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        one = run.plan
        if _task_of(run) != _task_of(runs[0]):
            raise DataError(f"{run.path} and {runs[0].path} had different data, candidates or splits.")
        members = groups.setdefault(repr((one.model, one.variant, one.config, one.refit)), [])
        twin = next((member for member in members if member.plan.seed == one.seed), None)
        if twin:
            raise UsageError(
                f"{run.path} repeats {twin.path}: same settings, same seed {one.seed}. "
                "A repeated run is no further seed; name each once."
            )
        members.append(run)
    are_distinct = len({_name(members) for members in groups.values()}) == len(groups)
    return [System(_name(members, whole_path=not are_distinct), members, part) for members in groups.values()]


def _task_of(run: Run) -> tuple[object, ...]:
    return run.plan.data_checksum, run.plan.candidates_checksum, run.plan.split


def _name(runs: list[Run], *, whole_path: bool = False) -> str:
    first = str(runs[0].path) if whole_path else runs[0].path.name
    return first if len(runs) == 1 else f"{first} … {runs[-1].path.name}"


def _difference(one: System, other: System, metric: str, protocol: str) -> dict[str, Any]:
    ours, theirs = one.values(metric, protocol), other.values(metric, protocol)
    several = min(len(ours), len(theirs)) > 1
    over_users = compare_over_users(ours.mean(axis=0), theirs.mean(axis=0), seed=0)
    over_seeds = (
        compare_over_seeds(ours.mean(axis=1).tolist(), theirs.mean(axis=1).tolist()) if several else None
    )
    return {
        "name": one.name,
        "against": other.name,
        "users": asdict(over_users),
        "seeds": asdict(over_seeds) if over_seeds else None,
    }
