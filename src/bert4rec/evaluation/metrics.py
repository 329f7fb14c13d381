"""From ranks to numbers: what each user's targets are worth by where a model ranks them, and the mean over users.

Most evaluations have one target a user: the next item. Then recall is HR, precision is HR / k, and the ideal DCG is 1.
HR@1 and NDCG@1 are always the same number, which is why the paper, and this project, name only the first.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import DataError, UsageError

METRICS = ("HR@1", "HR@5", "HR@10", "NDCG@5", "NDCG@10", "MRR")
"""The six of the paper's Table 2."""
KINDS = ("HR", "NDCG", "MRR", "Recall", "Precision")
"""Metrics of ranks, each at a cut-off k; MRR may do without."""
LARGEST_CUTOFF = 2**31 - 1
"""No catalogue is larger."""
LIST_KINDS = ("Coverage", "Popularity", "SameList")
"""Metrics of the lists that are recommended, whatever the targets; see `lists`."""


class Metric(NamedTuple):
    """A metric of ranks; `str` gives its usual name, such as NDCG@10."""

    kind: str
    k: int | None = None
    """Only the first k places count; None counts all of them."""

    def __str__(self) -> str:
        return self.kind if self.k is None else f"{self.kind}@{self.k}"


def cutoffs_of(k: int | Iterable[int]) -> list[int]:
    """One cut-off or several: sorted, each once."""
    given = list(k if isinstance(k, Iterable) else [k])
    wrong = [repr(each) for each in given if not _is_cutoff(each)]
    if wrong or not given:
        raise UsageError(
            f"`k`: expected whole numbers from 1 to {LARGEST_CUTOFF:,}; found {', '.join(wrong) or 'none'}."
        )
    return sorted(set(map(int, given)))


def _is_cutoff(k: object) -> bool:
    return isinstance(k, int | np.integer) and not isinstance(k, bool) and 1 <= int(k) <= LARGEST_CUTOFF


def usual_cutoff(cutoffs: Sequence[int]) -> int:
    """The one to show where one is enough: 10, or the largest."""
    return 10 if 10 in cutoffs else max(cutoffs)


def metrics_at(cutoffs: Sequence[int], *, several: bool = False) -> tuple[str, ...]:
    """The names of HR and NDCG at these cut-offs, and MRR; with `several` targets a user, also recall and precision."""
    kinds = ("HR", "NDCG", "Recall", "Precision") if several else ("HR", "NDCG")
    names = [f"{kind}@{k}" for kind in kinds for k in cutoffs]
    return (*(name for name in names if name != "NDCG@1"), "MRR")


def parse_metric(text: str) -> Metric:
    """A metric by its name, in upper or lower case: "ndcg@10" is NDCG@10. If it is unknown, the known are named."""
    name, at, cutoff = str(text).partition("@")
    kind = next((each for each in KINDS if each.lower() == name.lower()), None)
    if kind and cutoff.isdecimal() and _is_cutoff(int(cutoff)):
        return Metric(kind, int(cutoff))
    if kind == "MRR" and not at:
        return Metric(kind)
    known = ", ".join(f"{each}@k" for each in KINDS)
    expected = f"Expected {known} with any k, such as NDCG@10, or MRR."
    if name.lower() in map(str.lower, LIST_KINDS):
        raise UsageError(f"{text} is of lists, not of ranks: only `run.evaluate()` has it. {expected}")
    raise UsageError(f"Unknown metric {text!r}. {expected}")


def metric_per_user(
    ranks: NDArray[np.int32], metric: str, counts: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """What the ranks (0 is best) of each user's targets are worth.

    HR asks whether any target is among the first k, recall which share of them is, precision which share of the k
    places they take, MRR where the first one is. NDCG counts all of them by their places, relative to the best that
    k places allow.

    Parameters
    ----------
    ranks
        User after user, if they have several targets.
    metric
        Its name, as `parse_metric` takes it.
    counts
        How many targets each user has, at least one; None means one each.
    """
    kind, k = parse_metric(metric)
    counts = np.ones(len(ranks), np.int64) if counts is None else counts
    begin = np.cumsum(counts) - counts
    places = ranks.astype(np.float64) + 1
    if kind == "MRR":
        first = np.minimum.reduceat(places, begin)
        return np.where(first <= (k or np.inf), 1 / first, 0.0)
    assert k is not None
    gains = 1 / np.log2(places + 1) if kind == "NDCG" else np.ones_like(places)
    found: NDArray[np.float64] = np.add.reduceat(np.where(places <= k, gains, 0.0), begin)
    if kind == "HR":
        return np.minimum(found, 1)
    if kind == "Precision":
        return found / k
    if kind == "Recall":
        return found / counts
    best = np.cumsum(1 / np.log2(np.arange(2, counts.max(initial=1) + 2)))
    ideal: NDArray[np.float64] = best[np.minimum(counts, k) - 1]
    return found / ideal


def summarise(
    ranks: NDArray[np.int32], metrics: Sequence[str] = METRICS, counts: NDArray[np.int64] | None = None
) -> dict[str, float]:
    """The mean of each metric over all users; the arguments are those of `metric_per_user`."""
    if not len(ranks):
        raise DataError("No users to evaluate: this part of the split is empty.")
    return {metric: float(metric_per_user(ranks, metric, counts).mean()) for metric in metrics}
