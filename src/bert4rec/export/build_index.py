"""The index of an exported model for approximate search, and how much of an exact search it finds.

What is built, `recommend.search.approximate` describes. As few lists are read for a query as give the recall that is
wanted. It is measured on made-up histories, beside the answers of a plain search of the same model.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.histories import Histories
from bert4rec.errors import UsageError
from bert4rec.extras import require_faiss
from bert4rec.machine import usable_cores
from bert4rec.recommend.engine import Numbers, by_rows
from bert4rec.recommend.onnx_engine import OnnxEngine
from bert4rec.recommend.rules.degenerate import sample_histories
from bert4rec.recommend.search.approximate import LONGEST, OTHERS, ApproximateSearch, IndexFacts, K

MANY_ITEMS = 500_000
"""From so many on, an index is worth its while."""
RECALL = 0.98
"""The share of the best items that an index should find."""
HISTORIES = 1000
_LONGEST_SHARE, _MOST_LONGEST = 1 / 64, 2**15
"""Of the items: those that are always read; of millions, they alone would take most of the time."""
_PROBED_SHARE = 1 / 256
"""Of the lists, to begin with."""
_TRAINED_ON = 64
"""Vectors for each list: more make lists hardly better, and faiss asks for 39."""
_ROWS_AT_ONCE = 2**17


def check_index(num_items: int) -> None:
    """Refuse an index that cannot be built, or would make nothing faster."""
    require_faiss()
    if num_items < MANY_ITEMS:
        raise UsageError(
            f"`approximate=True` is for {MANY_ITEMS:,} items and more; the model has {num_items:,}, "
            "of which exact search finds the best in a few milliseconds."
        )


def build_index(folder: Path, max_history: int, counts: NDArray[np.int64]) -> IndexFacts:
    """Write the index of a model whose other files are there, and tell what is to be known of it."""
    threads = usable_cores()
    engine = OnnxEngine(folder, {"max_history": max_history, "files": {}}, threads=threads, quantised=False)
    known = ~np.isneginf(engine.bias)
    histories = sample_histories(np.where(known, counts, 0), HISTORIES).newest(max_history)
    queries = engine.queries(histories)
    facts = _write_lists(folder, engine, np.flatnonzero(known), float(np.linalg.norm(queries, axis=1).mean()))
    nothing = Histories.from_lists([[]] * HISTORIES)
    k = min(K, int(known.sum()))
    best, _ = engine.top(histories, nothing, k)
    search = ApproximateSearch(folder, facts, engine.best_of, threads=threads)
    search.probes = max(1, int(_PROBED_SHARE * facts.lists))
    while True:
        found = [each and each[0] for each in search.top(queries, nothing, k)]
        recall = _recall(found, best)
        if recall >= RECALL or search.probes >= facts.lists:
            return facts._replace(recall=recall, probes=search.probes)
        search.probes = min(2 * search.probes, facts.lists)


def _write_lists(folder: Path, engine: OnnxEngine, places: NDArray[np.int64], bias_unit: float) -> IndexFacts:
    import faiss

    def vectors(some: NDArray[np.int64]) -> NDArray[np.float32]:
        """The rows of some items, and their bias as one more number."""
        return np.column_stack([engine.rows[some], engine.bias[some] / np.float32(bias_unit)])

    faiss.omp_set_num_threads(usable_cores())
    parts = (places[part] for part in by_rows(len(places), _ROWS_AT_ONCE))
    lengths = np.concatenate([np.linalg.norm(vectors(part), axis=1) for part in parts])
    num_longest = max(1, min(int(_LONGEST_SHARE * len(places)), _MOST_LONGEST))
    is_long = np.zeros(len(places), bool)
    is_long[np.argpartition(-lengths, num_longest - 1)[:num_longest]] = True
    longest, others = places[is_long], places[~is_long]
    lists = max(1, min(int(2 * len(others) ** 0.5), len(others) // _TRAINED_ON))
    for name, chosen, description in ((LONGEST, longest, "IDMap,SQ8"), (OTHERS, others, f"IVF{lists},SQ8")):
        index = faiss.index_factory(engine.rows.shape[1] + 1, description, faiss.METRIC_INNER_PRODUCT)
        # Places are in the order of popularity, so these are of all kinds.
        index.train(vectors(chosen[:: max(1, len(chosen) // (_TRAINED_ON * lists))]))
        for part in by_rows(len(chosen), _ROWS_AT_ONCE):
            index.add_with_ids(vectors(chosen[part]), chosen[part])
        faiss.write_index(index, str(folder / name))
    return IndexFacts(
        lists=lists,
        probes=lists,
        longest=num_longest,
        bias_unit=bias_unit,
        recall=0.0,
        histories=HISTORIES,
        library=f"faiss {faiss.__version__}",
    )


def _recall(found: list[Numbers | None], best: Numbers) -> float:
    """The share of the best that was found. Where an index finds nothing, a service searches all items."""
    shares = [
        1.0 if numbers is None else float(np.isin(expected, numbers).mean())
        for numbers, expected in zip(found, best, strict=True)
    ]
    return float(np.mean(shares))
