"""Whether a new model may take the place of the one in service, by what users did since that one was trained.

Both are asked about the same users: the new run's test items that happened after the data of the model in service
ended. Neither was trained on them: the new model is judged by the weights before its production stage. An item that
the model in service does not know is a miss, since it could not have been recommended. What the new model has learned
from others since then counts for it, as it will in service.

Where hardly anybody did anything since, the two are held against each other by what each had on its own test items.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.api.backtest import rank_by_ids
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Targets, make_split
from bert4rec.evaluation.judge import load_ranks
from bert4rec.evaluation.metrics import metric_per_user
from bert4rec.evaluation.significance import Sample, compare_over_users
from bert4rec.logs.times import parse_moment
from bert4rec.recommend.recommender import Recommender
from bert4rec.training.run import Run

METRIC = "NDCG@10"
"""In full ranking: that is what a service does."""
FEWEST_USERS = 30
"""With fewer, an interval says little, or nothing where all of them have the same ranks."""
MOST_LOST = 0.1
"""Of the metric on test items that are not the same: more than what other items alone may explain."""


@dataclass(frozen=True)
class Verdict:
    """Whether the new model goes into service, and why."""

    accepted: bool
    reason: str
    """In a sentence."""
    users: int = 0
    """How many were asked about who acted since the model in service was trained."""
    new: float | None = None
    """The metric of the new model; None where nothing could be compared."""
    in_service: float | None = None
    low: float | None = None
    """Of the 95% interval of the difference, new less in service; None if they were not asked about the same users."""
    high: float | None = None


def judge_successor(run: Run, dataset: Dataset, served: Recommender | None) -> Verdict:
    """Refuse a run whose model is worse, beyond chance, than the one in service."""
    if served is None:
        return Verdict(accepted=True, reason="There is no other model in service.")
    until = served.trained.until if served.trained else None
    targets = make_split(dataset, run.plan.split).test
    is_new = np.zeros(len(targets), bool)
    if until is not None and dataset.times is not None:
        # A single action with a wrong date, far ahead, must not end all comparisons.
        moment = min(parse_moment(until), time.time_ns() // 1000)
        is_new = dataset.times[targets.positions] > moment
    if np.count_nonzero(is_new) < FEWEST_USERS:
        return _by_recorded_metrics(run, served, int(np.count_nonzero(is_new)))
    newest = Targets(targets.users[is_new], targets.positions[is_new])
    new = metric_per_user(load_ranks(run.path, "test").full[is_new], METRIC)
    old = metric_per_user(rank_by_ids(served, dataset, newest).full, METRIC)
    return _by_users(new, old, f"{len(newest):,} users who acted since {until}")


def _by_users(new: NDArray[np.float64], old: NDArray[np.float64], users: str) -> Verdict:
    found = compare_over_users(Sample.of(new[None]), Sample.of(old[None]))
    is_worse = found.direction < 0
    return Verdict(
        accepted=not is_worse,
        reason=f"It is {'worse' if is_worse else 'no worse'} than the model in service: {METRIC} {new.mean():.4f} and "
        f"{old.mean():.4f} (difference {found.difference:+.4f}, 95% interval {found.low:+.4f} to {found.high:+.4f}) "
        f"on {users}.",
        users=len(new),
        new=float(new.mean()),
        in_service=float(old.mean()),
        low=found.low,
        high=found.high,
    )


def _by_recorded_metrics(run: Run, served: Recommender, users: int) -> Verdict:
    """Not the same test items, so only a clear loss counts; without numbers, popularity must be beaten."""
    new = run.metrics["test"]["full"][METRIC]
    old = served.trained.metrics.get("full") if served.trained else None
    few = f"Only {users} users" if users else "No users"
    told = f"{few} can be asked about who acted since the model in service was trained. On its own test items"
    if old is not None:
        accepted = new >= (1 - MOST_LOST) * old
        reason = f"{told} the new model has {METRIC} {new:.4f}, the one in service had {old:.4f}."
        return Verdict(accepted=accepted, reason=reason, users=users, new=new, in_service=old)
    standing = run.result.get("standing")
    accepted = standing is None or standing["value"] > standing["popular"]
    beside = "better" if accepted else "no better"
    reason = f"{told} the model in service has no recorded metrics; the new one is {beside} than popularity."
    return Verdict(accepted=accepted, reason=reason, users=users, new=new)
