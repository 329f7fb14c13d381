"""Histories longer than the model can see, cut into windows that overlap."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Windows:
    """Pieces of the flat sequences: window w holds the actions begin[w] to begin[w] + length[w]."""

    begin: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def average_length(self) -> float:
        return float(self.length.mean())


def cut_windows(
    begin: NDArray[np.int64], end: NDArray[np.int64], *, max_length: int, step_share: float
) -> Windows:
    """Cut each user's actions [begin, end) into windows of at most `max_length`, as the authors' code does.

    The last window ends with the last action; each one before begins `step_share` of `max_length` earlier, and
    the first begins with the first action. So every action is in some window, and a history that fits is one
    window. A user without actions has none.
    """
    assert 0 < step_share <= 1, f"step_share must lie in (0, 1], not {step_share}"
    step = max(1, int(step_share * max_length))
    too_long = np.maximum(end - begin - max_length, 0)
    count = np.where(end > begin, 1 + -(-too_long // step), 0)
    user = np.repeat(np.arange(len(begin)), count)
    number = np.arange(len(user)) - np.repeat(np.cumsum(count) - count, count)
    start = begin[user] + np.maximum(too_long[user] - number * step, 0)
    return Windows(start, np.minimum(end[user] - start, max_length))
