"""For whom a model works, and for which items: the metrics by user activity and by item popularity.

The edges are fixed, so that slices of different models and data sets can be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import histories_before, training_histories
from bert4rec.data.splits import Targets
from bert4rec.evaluation.metrics import METRICS, metric_per_user

_HISTORY_EDGES = (0, 1, 5, 10, 20, 50, 100, 200)
_POPULARITY_EDGES = (0, 1, 5, 20, 100, 500, 5000)


@dataclass(frozen=True)
class Slice:
    """The metrics of some of the users."""

    label: str
    """What they have in common, with its bounds, such as "history 5-9"."""
    users: int
    metrics: dict[str, float]


def slice_by_activity(
    ranks: NDArray[np.int32],
    dataset: Dataset,
    targets: Targets,
    metrics: Sequence[str] = METRICS,
    counts: NDArray[np.int64] | None = None,
) -> list[Slice]:
    """By the length of the history before the target. Slices without users are left out.

    If users have several targets, `counts` says how many, and `targets` where their histories end.
    """
    lengths = histories_before(dataset, targets.users, targets.positions).lengths
    values = {metric: metric_per_user(ranks, metric, counts) for metric in metrics}
    return _slices(values, lengths, _HISTORY_EDGES, name="history", zero="no history")


def slice_by_popularity(
    ranks: NDArray[np.int32],
    dataset: Dataset,
    targets: Targets,
    training_end: NDArray[np.int64],
    metrics: Sequence[str] = METRICS,
) -> list[Slice]:
    """By how often the target occurs in the training part, which ends at `training_end` for each user.

    Targets that no training sequence contains have a slice of their own. Slices without users are left out.
    """
    counts = training_histories(dataset, training_end).item_counts(dataset.num_items)
    popularity = counts[dataset.sequences[targets.positions]]
    values = {metric: metric_per_user(ranks, metric) for metric in metrics}
    return _slices(values, popularity, _POPULARITY_EDGES, name="seen", zero="never seen in training")


def _slices(
    values: Mapping[str, NDArray[np.float64]],
    sizes: NDArray[np.int64],
    edges: tuple[int, ...],
    *,
    name: str,
    zero: str,
) -> list[Slice]:
    """The mean of each metric, which has a value a user, over the users whose `sizes` lie between the same edges."""
    assert {len(found) for found in values.values()} == {len(sizes)}, "a value and a size for each user"
    bucket_of_user = np.searchsorted(edges, sizes, side="right") - 1
    slices = []
    for bucket in np.unique(bucket_of_user).tolist():
        members = np.flatnonzero(bucket_of_user == bucket)
        label = zero if bucket == 0 else f"{name} {_bounds(edges, bucket)}"
        means = {metric: float(found[members].mean()) for metric, found in values.items()}
        slices.append(Slice(label, len(members), means))
    return slices


def _bounds(edges: tuple[int, ...], bucket: int) -> str:
    if bucket == len(edges) - 1:
        return f"{edges[bucket]} or more"
    return f"{edges[bucket]}-{edges[bucket + 1] - 1}"
