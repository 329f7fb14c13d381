"""The best of a large catalogue, found by vectors of whole numbers and settled by the exact ones.

A request reads every item's vector once, and memory is what it waits for. So a graph that `export.quantise` wrote
reads vectors of 8-bit numbers, a quarter as much, and says for each block of items how high one of them can score *at
most*: the best score by whole numbers, and the most by which that can be wrong. Then exact scores decide:

1. Score the blocks that look best. The k-th best score found is a floor: the true k-th best is no lower. Where it
   leaves too many blocks, because what looked best is hidden or filtered out, look once more, at several times as many.
2. Score every block whose bound reaches the floor. No item of the others can be among the k best: that is proven,
   not likely.

The bound of a block holds for some of its items as for all, so filters are proven in the same way.

Where the bounds still leave too many blocks, nothing is found here, and all items are scored. So the answers are always
those of a plain search, in the same order, with the same scores.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.histories import Histories
from bert4rec.recommend.engine import Numbers, Scores, by_rows
from bert4rec.recommend.rules.subset import Subset

BLOCK = 16
"""Items with one bound. Whole blocks are scored: ONNX Runtime multiplies four rows at a time, and a row that is left
over at the end would get a score that differs in its last bit."""
_LARGEST_WHOLE, _ZERO_POINT = 127, 128
_QUERIES_AT_ONCE = 8
_MOST_SCORED = 1 / 8
"""The share of the catalogue above which a plain search takes less time."""
_MORE = 8
"""How many times as many blocks a second look is at."""
_SMALLEST, _LARGEST = 1e-10, 1e10
"""The largest number of a query lies between them, or products might be too small or too large for bounds to hold."""

Queries = NDArray[np.float32]
Places = NDArray[np.int64]
ExactTop = Callable[[Queries, Places, Numbers, int, Subset | None], tuple[Numbers, Scores]]
"""Query [1, D], ascending places of items, excluded numbers, k, filter → the k best of these items [1, k]."""


class QuantisedSearch:
    """Finds the best items for queries, if few blocks can hold them."""

    def __init__(self, session: Any, num_items: int, exact_top: ExactTop) -> None:
        self._session, self._num_items, self._exact_top = session, num_items, exact_top
        self._bias_unit = float(session.get_modelmeta().custom_metadata_map["bias_unit"])
        self._most_blocks = int(_MOST_SCORED * num_items / BLOCK)

    def settled_by(self, exact_top: ExactTop) -> "QuantisedSearch":
        """The same search, where another function gives exact scores, none of which is higher."""
        other = copy(self)
        other._exact_top = exact_top
        return other

    def top(
        self, queries: Queries, excluded: Histories, k: int, subset: Subset | None = None
    ) -> Iterator[tuple[Numbers, Scores] | None]:
        """The k best items of each query less its `excluded`, [k]; None if too many may be among them."""
        without: Sequence[int] | Places = () if subset is None else subset.blocks_without(BLOCK)
        share = 1.0 if subset is None else max(subset.count, 1) / self._num_items
        for rows in by_rows(len(queries), _QUERIES_AT_ONCE):
            struck_out = [excluded.items[first:last] for first, last in _limits(excluded[rows])]
            # Even if each excluded item is the best of its block, these blocks hold k others that look best.
            look_best = k + max(map(len, struck_out))
            if look_best <= self._most_blocks:
                # A block may look best for an item that the filter leaves out, so more are looked at.
                look_best = min(int(look_best / share), self._most_blocks)
            largest = np.abs(queries[rows]).max(axis=1)
            if look_best > self._most_blocks or not np.all((largest > _SMALLEST) & (largest < _LARGEST)):
                yield from (None for _ in struck_out)
                continue
            bounds, best = self._bounds(queries[rows], look_best)
            if len(without):
                bounds[:, without] = -np.inf
                best = _highest(bounds, look_best)
            for query, *found in zip(queries[rows, None], bounds, best, struck_out, strict=True):
                yield self._settle(query, *found, k=k, subset=subset)

    def _bounds(self, queries: Queries, look_best: int) -> tuple[NDArray[np.float32], Places]:
        """How high an item of each block can score, [B, blocks], and the blocks that look best, [B, look_best]."""
        wide = queries.astype(np.float64)
        if self._bias_unit:  # the bias is one more number of every vector
            wide = np.pad(wide, ((0, 0), (0, 1)), constant_values=self._bias_unit)
        steps = np.abs(wide).max(axis=1, keepdims=True) / _LARGEST_WHOLE
        whole = np.rint(wide / steps)
        doubt = np.stack([np.linalg.norm(wide, axis=1), np.linalg.norm(wide - steps * whole, axis=1)], axis=1)
        asked = {
            "query": (whole + _ZERO_POINT).astype(np.uint8),
            "query_step": steps.astype(np.float32),
            "doubt": doubt.astype(np.float32),
            "count": np.array([look_best]),
        }
        bounds, best = self._session.run(["bounds", "best"], asked)
        return bounds, best

    def _settle(
        self,
        query: Queries,
        bounds: NDArray[np.float32],
        best: Places,
        excluded: Numbers,
        *,
        k: int,
        subset: Subset | None,
    ) -> tuple[Numbers, Scores] | None:
        def left(looked_at: Places) -> Places:
            """The blocks that may hold one of the k best, after an exact look at some."""
            _, scores = self._exact_top(query, self._places(np.sort(looked_at)), excluded, k, subset)
            return np.flatnonzero(~(bounds < scores[0, -1]))  # a bound that is not a number proves nothing

        blocks = left(best)
        if len(blocks) > self._most_blocks > len(best):
            blocks = left(_highest(bounds, min(_MORE * len(best), self._most_blocks)))
        if len(blocks) > self._most_blocks:
            return None
        numbers, scores = self._exact_top(query, self._places(blocks), excluded, k, subset)
        return numbers[0], scores[0]

    def _places(self, blocks: Places) -> Places:
        """Of all items in these blocks."""
        places = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        return places[: np.searchsorted(places, self._num_items)]


def _highest(bounds: NDArray[np.float32], count: int) -> Places:
    """The places of so many highest bounds, of each row."""
    return np.argpartition(-bounds, count - 1, axis=-1)[..., :count]


def _limits(rows: Histories) -> Iterator[tuple[int, int]]:
    return zip(rows.begin.tolist(), rows.end.tolist(), strict=True)
