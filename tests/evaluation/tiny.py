"""Datasets small enough to check by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert4rec.data.dataset import Dataset, Repeats


def dataset_of(histories: Sequence[Sequence[int]], num_items: int, repeats: Repeats = "exclude") -> Dataset:
    """A dataset that was never written: these users, these items, in this order."""
    return Dataset(
        path=Path("never-written"),
        manifest={"counts": {"items": num_items}, "repeats": repeats},
        sequences=np.array([item for history in histories for item in history], np.int32),
        offsets=np.cumsum([0, *map(len, histories)], dtype=np.int64),
        times=None,
    )
