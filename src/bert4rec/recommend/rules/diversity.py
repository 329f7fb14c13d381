"""Lists whose items differ: maximal marginal relevance.

From the best items by score, a list takes one after the other, each time that with the largest
(1 - diversity) * relevance - diversity * (its largest cosine to an item already taken).
"""

import numpy as np
from numpy.typing import NDArray

from bert4rec.recommend.engine import Numbers, Scores, by_rows

_NUMBERS_AT_ONCE = 2**20
"""How much of the items' vectors is compared at a time: what the caches of a processor hold."""
_LARGEST_POOL = 500
"""Unless more items are asked for. The work grows with the pool and with k, and others wait for it."""


def pool_size(k: int) -> int:
    """Among how many of the best items a list of k is chosen."""
    return max(k, min(max(5 * k, 50), _LARGEST_POOL))


def diversify(
    numbers: Numbers, scores: Scores, rows: NDArray[np.float32], k: int, diversity: float
) -> tuple[Numbers, Scores]:
    """The k items to recommend from each pool, [B, k] of [B, pool], and their scores.

    Pools have the best first, and are filled up with number 0 and score -inf; so are the lists. `rows` are the vectors
    of all items.
    """
    k = min(k, numbers.shape[1])
    if not k:
        return numbers, scores
    chosen_numbers, chosen_scores = (
        np.empty((len(numbers), k), np.int32),
        np.empty((len(numbers), k), np.float32),
    )
    rows_at_once = max(1, _NUMBERS_AT_ONCE // (numbers.shape[1] * rows.shape[1]))
    for some in by_rows(len(numbers), rows_at_once):
        order = _order(rows[numbers[some] - 1], scores[some], k, diversity)
        chosen_numbers[some] = np.take_along_axis(numbers[some], order, axis=1)
        chosen_scores[some] = np.take_along_axis(scores[some], order, axis=1)
    return chosen_numbers, chosen_scores


def _order(vectors: NDArray[np.float32], scores: Scores, k: int, diversity: float) -> NDArray[np.int64]:
    """Which places of each pool are taken, one after the other: [B, k] of [B, pool, D] and [B, pool]."""
    vectors /= np.maximum(np.linalg.norm(vectors, axis=2, keepdims=True), np.finfo(np.float32).tiny)
    each, order = np.arange(len(scores)), np.empty((len(scores), k), np.int64)
    # What fills up a pool comes behind all items, and what is taken behind that.
    is_item = scores > -np.inf
    relevance = _relevance(np.where(is_item, scores, np.where(is_item[:, :1], scores[:, :1], 0)))
    worth = np.where(is_item, (1 - diversity) * relevance, np.finfo(np.float32).min)
    nearest = np.full_like(worth, -1.0)
    for place in range(k):
        best = np.argmax(worth - diversity * nearest, axis=1)  # of equals that with the highest score
        order[:, place] = best
        worth[each, best] = -np.inf
        np.maximum(nearest, np.einsum("bpd,bd->bp", vectors, vectors[each, best]), out=nearest)
    return order


def _relevance(scores: Scores) -> Scores:
    """From 1 for the best of each pool to 0 for the last.

    Scores have any offset and scale, by model and by user, while cosines lie between -1 and 1. Laid over one range,
    the same diversity means the same for every model.
    """
    last = scores.min(axis=1, keepdims=True)
    relevance: Scores = (scores - last) / np.maximum(scores[:, :1] - last, np.finfo(np.float32).tiny)
    return relevance
