"""The best of millions of items in all likelihood: candidates by an index of faiss, settled by the exact vectors.

The index (`export.build_index`) holds vectors of 8-bit numbers in lists of items that point in similar directions, and
only the lists that lie nearest to a query are read. A score is an inner product, so long vectors are among the best
for queries that they hardly point at; those stand in a list of their own, which is always read. The bias is one more
number of every vector, in a unit that makes queries as long there as they are elsewhere.

Candidates are scored by the graph that scores all items otherwise, so the scores are those of a plain search. What is
excluded, hidden or filtered out falls away there; more candidates than needed are fetched, then many more, and where
they are still too few, nothing is found here, and all items are searched.
"""

import math
from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.histories import Histories
from bert4rec.errors import DataError
from bert4rec.extras import require_faiss
from bert4rec.recommend.engine import Numbers, Scores, by_rows
from bert4rec.recommend.rules.subset import Subset
from bert4rec.recommend.search.quantised import BLOCK, ExactTop, Places, Queries

LONGEST, OTHERS = "index-longest.faiss", "index-others.faiss"
"""Items with long vectors, all of which are read, and all others. An item's id in them is its place, number - 1."""
K = 10
"""The best items of which `recall` is the share that is found."""
_FETCHED_AT_LEAST, _FETCHED_FOR_EACH = 128, 4
"""Candidates of a question, and for each item that is asked for or excluded."""
_MORE = 8
"""How many times as many candidates, from as many times as many lists, a second look is at."""
_MOST_FETCHED = 2**14
_QUERIES_AT_ONCE = 64


class IndexFacts(NamedTuple):
    """What a manifest says about an index, by these names."""

    lists: int
    """Into so many the items are divided, those with the longest vectors left aside."""
    probes: int
    """How many lists are read for a query."""
    longest: int
    """Items with the longest vectors."""
    bias_unit: float
    recall: float
    """The share of the K best items that is found, on average over `histories`."""
    histories: int
    """Made up of items drawn by popularity."""
    library: str


class ApproximateSearch:
    """Finds the best items for queries by an index."""

    def __init__(self, folder: Path, facts: IndexFacts, exact_top: ExactTop, *, threads: int) -> None:
        require_faiss()
        import faiss

        self._exact_top, self._threads = exact_top, threads
        self.probes, self._lists, self._bias_unit = facts.probes, facts.lists, facts.bias_unit
        self._faiss: Any = faiss  # whose types know half of it
        # Mapped into memory, as the vectors are: workers share them.
        self._longest, self._others = (_read(faiss, folder / name) for name in (LONGEST, OTHERS))

    def settled_by(self, exact_top: ExactTop) -> "ApproximateSearch":
        """The same search, where another function gives exact scores."""
        other = copy(self)
        other._exact_top = exact_top
        return other

    def top(
        self, queries: Queries, excluded: Histories, k: int, subset: Subset | None = None
    ) -> Iterator[tuple[Numbers, Scores] | None]:
        """The k best items of each query less its `excluded`, [k]; None if too few candidates are left."""
        share = 1.0 if subset is None else max(subset.count, 1) / len(subset.mask)
        self._faiss.omp_set_num_threads(self._threads)  # of the thread that asks
        for rows in by_rows(len(queries), _QUERIES_AT_ONCE):
            some, struck_out = queries[rows], excluded[rows]
            # How far down the list of all items the last one may stand that is wanted.
            depth = (k + int(struck_out.lengths.max())) / share
            fetched = _whole_blocks(max(_FETCHED_AT_LEAST, int(_FETCHED_FOR_EACH * depth)))
            if fetched > _MOST_FETCHED:
                yield from (None for _ in some)
                continue
            # The further down, the more lists: items there are less alike.
            probes = math.ceil(self.probes * max(1.0, depth / K) ** 0.5)
            candidates = self._candidates(some, fetched, probes)
            for row, query in enumerate(some[:, None]):
                without = struck_out.items[struck_out.begin[row] : struck_out.end[row]]
                found = self._settle(query, candidates[row], without, k, subset)
                if found is None and _MORE * fetched <= _MOST_FETCHED:
                    wider = self._candidates(query, _MORE * fetched, _MORE * probes)[0]
                    found = self._settle(query, wider, without, k, subset)
                yield found

    def _candidates(self, queries: Queries, count: int, probes: int) -> NDArray[np.int64]:
        """The places of so many items that seem best for each query, -1 where there are fewer."""
        wide = np.pad(queries, ((0, 0), (0, 1)), constant_values=self._bias_unit)
        read_lists = self._faiss.SearchParametersIVF(nprobe=min(probes, self._lists))
        found = [self._longest.search(wide, count), self._others.search(wide, count, params=read_lists)]
        scores, places = (np.concatenate(part, axis=1) for part in zip(*found, strict=True))
        best = np.argpartition(-scores, count, axis=1)[:, :count]
        return np.take_along_axis(places, best, axis=1)

    def _settle(
        self, query: Queries, places: Places, excluded: Numbers, k: int, subset: Subset | None
    ) -> tuple[Numbers, Scores] | None:
        places = np.sort(places[places >= 0])
        # Whole blocks alone are scored to the last bit as all items are.
        if len(places) < k or len(places) % BLOCK:
            return None
        numbers, scores = self._exact_top(query, places, excluded, k, subset)
        if not scores[0, -1] > -np.inf:  # as well if it is not a number
            return None
        return numbers[0], scores[0]


def facts_of(manifest: Mapping[str, Any]) -> IndexFacts | None:
    """What the manifest of a model says about its index; None if it has none."""
    return IndexFacts(**manifest["approximate"]) if "approximate" in manifest else None


def _whole_blocks(count: int) -> int:
    return -(-count // BLOCK) * BLOCK


def _read(faiss: Any, path: Path) -> Any:
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise DataError(f"{path} cannot be read by faiss: {error}. Export the model again.") from error
