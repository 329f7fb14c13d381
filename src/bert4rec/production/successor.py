"""Whether a new model may take the place of the one in service, by what users did since that one was trained.

Both are asked about the same users: the new run's test items that happened after the data of the model in service
ended. Neither has seen them: the new model is judged by the weights before its production stage. An item that the
model in service does not know is a miss, since it could not have been recommended.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

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


@dataclass(frozen=True)
class Verdict:
    """Whether the new model goes into service, and why."""

    accepted: bool
    reason: str
    """In a sentence."""
    users: int = 0
    """How many acted since the model in service was trained."""
    new: float | None = None
    """The metric of the new model on what they did; None where nothing could be compared."""
    in_service: float | None = None
    low: float | None = None
    """Of the 95% interval of the difference, new less in service."""
    high: float | None = None


def judge_successor(run: Run, dataset: Dataset, in_service: Path | None) -> Verdict:
    """Refuse a run whose model is worse, beyond chance, than the exported model in service."""
    if in_service is None:
        return Verdict(accepted=True, reason="It is the first model.")
    served = Recommender.load(in_service, force=True)
    until = served.trained.until if served.trained else None
    if until is None or dataset.times is None:
        return Verdict(
            accepted=True,
            reason="The model in service does not say until when it was trained, so there is nothing to compare on.",
        )
    targets = make_split(dataset, run.plan.split).test
    is_new = dataset.times[targets.positions] > parse_moment(until)
    newest = Targets(targets.users[is_new], targets.positions[is_new])
    if len(newest) < 2:
        return Verdict(
            accepted=True,
            reason=f"Hardly anybody did anything since {until}: nothing to compare on.",
            users=len(newest),
        )
    new = metric_per_user(load_ranks(run.path, "test").full[is_new], METRIC)
    old = metric_per_user(rank_by_ids(served, dataset, newest).full, METRIC)
    found = compare_over_users(Sample.of(new[None]), Sample.of(old[None]))
    measured = (
        f"{METRIC} {np.mean(new):.4f}, the model in service {np.mean(old):.4f} "
        f"(difference {found.difference:+.4f}, 95% interval {found.low:+.4f} to {found.high:+.4f}) "
        f"on {len(newest):,} users who acted since {until}."
    )
    is_worse = found.direction < 0
    return Verdict(
        accepted=not is_worse,
        reason=f"It is {'worse than' if is_worse else 'no worse than'} the model in service: {measured}",
        users=len(newest),
        new=float(np.mean(new)),
        in_service=float(np.mean(old)),
        low=found.low,
        high=found.high,
    )
