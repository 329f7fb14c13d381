"""What the weights of a model have seen of a dataset."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import EndOf, seen_before


@dataclass(frozen=True)
class Trained:
    """What a model was trained on. Kept with a run, and in the manifest of an exported model."""

    model: str
    """Name of the model, such as bert4rec+."""
    stage: str
    """Which weights these are: "selection", "refit" (all but the test items) or "production" (everything)."""
    until: str | None
    """When the newest action was made that they have seen, in ISO 8601 and UTC; None if the log had no times."""
    actions: int
    """How many actions they have seen,"""
    users: int
    """of how many users,"""
    items: int
    """on how many items. All others are unknown to the model."""
    metrics: Mapping[str, float]
    """Protocol → NDCG@10 on the test items, by the last stage that did not see them; empty if nobody looked."""

    @classmethod
    def on(
        cls,
        dataset: Dataset,
        end: NDArray[np.int64],
        *,
        model: str,
        stage: str,
        metrics: Mapping[str, float],
    ) -> "Trained":
        """What weights have seen that learned from each user's actions up to `end` (exclusive)."""
        lengths = end - dataset.offsets[:-1]
        seen = (times for _, times in seen_before(dataset, end.__getitem__))
        newest = max((times.max() for times in seen if times is not None and len(times)), default=None)
        return cls(
            model=model,
            stage=stage,
            until=None if newest is None else in_iso(int(newest)),
            actions=int(lengths.sum()),
            users=int(np.count_nonzero(lengths)),
            items=dataset.num_items - len(untrained_items(dataset, end)),
            metrics=metrics,
        )


def untrained_items(dataset: Dataset, end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the items that occur nowhere before `end`: whoever learned from that knows nothing about them."""
    return np.flatnonzero(~is_item_seen(dataset, end.__getitem__)[1:]) + 1


def is_item_seen(dataset: Dataset, end_of: EndOf) -> NDArray[np.bool_]:
    """By item number: whether it occurs before the end of a user."""
    seen = np.zeros(dataset.num_items + 1, np.bool_)
    for items, _ in seen_before(dataset, end_of):
        seen[items] = True
    return seen


def in_iso(micros: int) -> str:
    """A moment in microseconds since 1970, exactly, as ISO 8601 in UTC."""
    seconds, rest = divmod(micros, 1_000_000)
    return datetime.fromtimestamp(seconds, tz=UTC).replace(microsecond=rest).isoformat()
