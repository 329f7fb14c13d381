"""Datasets small enough to check by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.splits import SplitSpec

MICROSECOND = "1970-01-01T00:00:00.00000{}"
CUT_BY_TIME = SplitSpec("time", test_from=MICROSECOND.format(6), valid_from=MICROSECOND.format(3))
"""With `action_times`: three actions to learn from, three for validation, and all others for the test."""


def action_times(histories: Sequence[Sequence[int]]) -> list[int]:
    """The first action of everybody happens at 0, the second at 1, and so on."""
    return [time for history in histories for time in range(len(history))]


def dataset_of(histories: Sequence[Sequence[int]], num_items: int, repeats: Repeats = "exclude") -> Dataset:
    """A dataset that was never written: these users, these items, in this order."""
    return Dataset(
        path=Path("never-written"),
        manifest={"counts": {"items": num_items}, "repeats": repeats},
        sequences=np.array([item for history in histories for item in history], np.int32),
        offsets=np.cumsum([0, *map(len, histories)], dtype=np.int64),
        times=None,
    )


@dataclass(frozen=True)
class InChunks:
    """Scores, so many columns at a time."""

    scores: Any
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.scores.shape)

    @property
    def starts(self) -> range:
        return range(0, self.shape[1], self.width)

    def columns_from(self, start: int) -> Any:
        return self.scores[:, start : start + self.width]
