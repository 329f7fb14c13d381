"""From ranks to numbers. One item is right per user, so HR is recall and the ideal DCG is 1.

HR@1 and NDCG@1 are the same number, which is why the paper, and this project, name only the first.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError

METRICS = ("HR@1", "HR@5", "HR@10", "NDCG@5", "NDCG@10", "MRR")
"""The six of the paper's Table 2."""
KINDS = ("HR", "NDCG", "MRR", "Recall", "Precision")
"""What the ranks of a user's targets are worth, each at a cut-off k; MRR may do without."""


class Metric(NamedTuple):
    """A metric of ranks; `str` gives its usual name, such as NDCG@10."""

    kind: str
    k: int | None = None
    """Only the first k places count; None counts all of them."""

    def __str__(self) -> str:
        return self.kind if self.k is None else f"{self.kind}@{self.k}"


def metrics_at(cutoffs: Iterable[int]) -> tuple[str, ...]:
    """The names of HR and NDCG at these cut-offs, and MRR."""
    given = set(cutoffs)
    if wrong := [k for k in given if not isinstance(k, int | np.integer) or k < 1]:
        raise UsageError(f"`k`: expected whole numbers of at least 1; found {wrong[0]!r}.")
    places = sorted(given)
    return (*(f"HR@{k}" for k in places), *(f"NDCG@{k}" for k in places if k > 1), "MRR")


def parse_metric(text: str) -> Metric:
    """A metric by its name in any case: "ndcg@10" is NDCG@10. Unknown ones are refused with a list of the known."""
    name, at, cutoff = str(text).partition("@")
    kind = next((each for each in KINDS if each.lower() == name.lower()), None)
    if kind and cutoff.isdecimal() and int(cutoff) >= 1:
        return Metric(kind, int(cutoff))
    if kind == "MRR" and not at:
        return Metric(kind)
    known = ", ".join(f"{each}@k" for each in KINDS)
    raise UsageError(f"Unknown metric {text!r}. Expected {known} with any k, such as NDCG@10, or MRR.")


def metric_per_user(ranks: NDArray[np.int32], metric: str) -> NDArray[np.float64]:
    """What each rank (0 is best) is worth."""
    kind, k = parse_metric(metric)
    places = ranks.astype(np.float64) + 1
    gains = {
        "MRR": 1 / places,
        "NDCG": 1 / np.log2(places + 1),
        "Precision": np.full_like(places, 1 / (k or 1)),
    }
    return np.where(places <= (k or np.inf), gains.get(kind, 1.0), 0.0)


def summarise(ranks: NDArray[np.int32], metrics: Sequence[str] = METRICS) -> dict[str, float]:
    """The mean of each metric over all users."""
    if not len(ranks):
        raise DataError("No users to evaluate: this part of the split is empty.")
    return {metric: float(metric_per_user(ranks, metric).mean()) for metric in metrics}
