"""From ranks to numbers. One item is right per user, so HR is recall and the ideal DCG is 1.

HR@1 and NDCG@1 are the same number, which is why the paper, and this project, name only the first.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError

METRICS = ("HR@1", "HR@5", "HR@10", "NDCG@5", "NDCG@10", "MRR")
"""The six of the paper's Table 2."""


def metrics_at(cutoffs: Iterable[int]) -> tuple[str, ...]:
    """The names of HR and NDCG at these cut-offs, and MRR."""
    given = set(cutoffs)
    if wrong := [k for k in given if not isinstance(k, int | np.integer) or k < 1]:
        raise UsageError(f"`k`: expected whole numbers of at least 1; found {wrong[0]!r}.")
    places = sorted(given)
    return (*(f"HR@{k}" for k in places), *(f"NDCG@{k}" for k in places if k > 1), "MRR")


def metric_per_user(ranks: NDArray[np.int32], metric: str) -> NDArray[np.float64]:
    """What each rank (0 is best) is worth: "HR@k", "NDCG@k" for any k, or "MRR", which is not cut off."""
    places = ranks.astype(np.float64) + 1
    if metric == "MRR":
        return 1 / places
    name, _, cutoff = metric.partition("@")
    if name not in ("HR", "NDCG") or not cutoff.isdecimal() or int(cutoff) < 1:
        raise UsageError(f"Unknown metric {metric!r}. Expected HR@k, NDCG@k or MRR, such as NDCG@10.")
    gains = np.ones_like(places) if name == "HR" else 1 / np.log2(places + 1)
    return np.where(places <= int(cutoff), gains, 0.0)


def summarise(ranks: NDArray[np.int32], metrics: Sequence[str] = METRICS) -> dict[str, float]:
    """The mean of each metric over all users."""
    if not len(ranks):
        raise DataError("No users to evaluate: this part of the split is empty.")
    return {metric: float(metric_per_user(ranks, metric).mean()) for metric in metrics}
