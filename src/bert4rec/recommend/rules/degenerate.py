"""Models that must not answer: those that recommend the same to everybody, or whose scores are no scores.

A run is judged by the lists of all its users (`evaluation/lists.py`). Whoever exports or loads a model may not have
them, so it is asked about a few histories, made of items as popular as those of a real one.
"""

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.histories import Histories
from bert4rec.errors import DataError
from bert4rec.recommend.engine import Engine

HISTORIES, LENGTH, K = 32, 4, 10
MOST = 0.9
"""Above this share, it is nearly everybody. Models that have learned something give hardly two histories the same."""
_GOLDEN = (5**0.5 - 1) / 2
ADVICE = "Train it again, or use `force=True`."


def refuse_degenerate(engine: Engine, counts: NDArray[np.int64]) -> None:
    """Raise an error for a model that has collapsed. One that looks at no history, such as POP, is meant to be so."""
    if engine.max_history == 0:
        return
    counts = np.where(np.isneginf(engine.bias), 0, counts)  # without items that it was never trained on
    num_items = int(np.count_nonzero(counts))
    k = min(K, num_items)
    nothing = Histories.from_lists([[]] * HISTORIES)
    numbers, scores = engine.top(sample_histories(counts).newest(engine.max_history), nothing, k)
    # Items that are never recommended have -inf.
    if np.isnan(scores).any() or np.isinf(scores[:, 0]).any():
        raise DataError(f"The model's scores are not finite numbers: it has diverged. {ADVICE}")
    # Few items have few orders: there, the same list may be right for everybody.
    if num_items < 2 * K:
        return
    if (scores[:, 0] == scores[:, -1]).all():
        raise DataError(f"The model gives the same score to all items: it has learned nothing. {ADVICE}")
    same = int(np.unique(numbers, axis=0, return_counts=True)[1].max())
    if same > MOST * HISTORIES:
        raise DataError(
            f"The model recommends the same {k} items in the same order after {same} of {HISTORIES} different "
            f"histories: it does not look at what users did. {ADVICE}"
        )


def sample_histories(counts: NDArray[np.int64], histories: int = HISTORIES) -> Histories:
    """Histories of items drawn by popularity; of the same counts always the same."""
    # Multiples of the golden ratio are spread evenly, and neighbours lie far apart.
    shares = np.modf(np.arange(1, histories * LENGTH + 1) * _GOLDEN)[0]
    items = np.searchsorted(np.cumsum(counts), shares * counts.sum(), side="right") + 1
    return Histories.from_lists(items.reshape(histories, LENGTH).tolist())
