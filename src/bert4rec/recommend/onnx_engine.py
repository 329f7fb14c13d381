"""An exported model, computed by ONNX Runtime: what a service loads, without torch.

model.json       manifest: schema, data set, version, what it was trained on, sizes, checksums
encoder.onnx     history [B, L], filled up on the left with 0 → query [B, D]
head.onnx        query, rows, bias, excluded places, k → scores and places of the k best
search.onnx      query of whole numbers → how high items of each block can score at most; large catalogues only
index-*.faiss    vectors of 8-bit numbers in lists, for approximate search; only if requested
attention.onnx   history [1, L] → how much the asked place looks at what, [layers, heads, L + 1]; BERT4Rec only
items.npy        [V + 2, D]: row i is the vector of item i; read by the graphs from this very file
bias.npy         [V]; -inf for items that the model was never trained on, which are unknown to it
catalogue.json   ids, titles and counts of the items; of large catalogues in catalogue-*.npy
attributes.npz   the other columns of the table of items, for filters; only if there are some
samples.json     histories of a few users for the service's page; only if requested
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.artefact import Manifest, read_manifest, verify_files
from bert4rec.data.histories import Histories
from bert4rec.data.trained import Trained
from bert4rec.errors import DataError, UsageError
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.engine import Engine, Numbers, Scores, by_rows, by_tokens
from bert4rec.recommend.names.texts import mapped
from bert4rec.recommend.rules.subset import Subset
from bert4rec.recommend.search.approximate import ApproximateSearch, facts_of
from bert4rec.recommend.search.quantised import QuantisedSearch

MANIFEST = "model.json"
SCHEMA = 1
_TOKENS_AT_ONCE = 2**10
"""More would not fit a processor's caches."""
_ROWS_AT_LEAST, _SCORES_AT_ONCE = 32, 2**21
"""Many rows make good use of each item's vector that is fetched; their scores should fit a processor's caches."""
_MOST_SCORES = 2**27
"""Half a gigabyte."""
_MANY_ROWS, _FEW_ITEMS = 8, 2**18
"""So many rows, of so few items, are scored one and all sooner than whole numbers tell which to score."""


class OnnxEngine:
    """An exported model folder. With `quantised`, its vectors of whole numbers are searched first, if it has them.

    With `approximate`, its index is searched, which it must have, and all items only where that finds too little.
    """

    enough = 256

    def __init__(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        *,
        threads: int,
        quantised: bool = True,
        approximate: bool = False,
    ) -> None:
        self.max_history = int(manifest["max_history"])
        table = mapped(folder / "items.npy")
        self.bias = mapped(folder / "bias.npy")
        self.rows = table[1 : len(self.bias) + 1]
        self._encoder = _session(folder / "encoder.onnx", threads)
        self._head = _session(folder / "head.onnx", threads)
        has_attention, has_search = (name in manifest["files"] for name in ("attention.onnx", "search.onnx"))
        self._attention = _session(folder / "attention.onnx", threads) if has_attention else None
        self._search: QuantisedSearch | ApproximateSearch | None = None
        if approximate:
            if (index := facts_of(manifest)) is None:
                raise UsageError(
                    f"{folder} has no index for approximate search. Export the model with `approximate=True`."
                )
            self._search = ApproximateSearch(folder, index, self.best_of, threads=threads)
        elif quantised and has_search:
            session = _session(folder / "search.onnx", threads)
            self._search = QuantisedSearch(session, len(self.bias), self.best_of)

    @property
    def is_exact(self) -> bool:
        """Whether the best items are found for certain."""
        return not isinstance(self._search, ApproximateSearch)

    def without(self, numbers: Numbers) -> "OnnxEngine":
        """The same model, by which none of these items is ever among the best. Only the bias is held twice."""
        other = copy(self)
        other.bias = self.bias.copy()
        other.bias[numbers - 1] = -np.inf
        # Bounds hold on: no item scores higher than before.
        other._search = self._search and self._search.settled_by(other.best_of)
        return other

    def queries(self, histories: Histories) -> NDArray[np.float32]:
        # Sums over what a history is filled up with are 0, but taken in another order at another length.
        pieces = by_tokens(histories, _TOKENS_AT_ONCE, of_one_length=len(histories) >= self.enough)
        return np.concatenate([self._encode(each) for each in pieces])

    def top(
        self, histories: Histories, excluded: Histories, k: int, subset: Subset | None = None
    ) -> tuple[Numbers, Scores]:
        if len(histories) == 1:
            return self._best(self._encode(histories), excluded, k, subset)
        queries = self.queries(histories)
        rows_at_once = _ROWS_AT_LEAST * max(1, _SCORES_AT_ONCE // (_ROWS_AT_LEAST * len(self.bias)))
        rows_at_once = max(1, min(rows_at_once, _MOST_SCORES // len(self.bias)))
        numbers = np.empty((len(queries), k), np.int32)
        scores = np.empty((len(queries), k), np.float32)
        for rows in by_rows(len(queries), rows_at_once):
            # Few rows are computed otherwise, which the last bit shows: a short rest is answered with some before it.
            some = slice(max(0, min(rows.start, len(queries) - _MANY_ROWS)), rows.stop)
            numbers[some], scores[some] = self._best(queries[some], excluded[some], k, subset)
        return numbers, scores

    def _encode(self, histories: Histories) -> NDArray[np.float32]:
        longest = max(1, int(histories.lengths[0]))  # an empty history needs a column all the same
        asked = {"history": histories.padded(longest).astype(np.int64)}
        queries: NDArray[np.float32] = self._encoder.run(["query"], asked)[0]
        return queries

    def _best(
        self, queries: NDArray[np.float32], excluded: Histories, k: int, subset: Subset | None
    ) -> tuple[Numbers, Scores]:
        is_soon_done = self.is_exact and len(queries) >= _MANY_ROWS and len(self.bias) <= _FEW_ITEMS
        if self._search is None or is_soon_done:
            return self._best_of_all(queries, excluded, k, subset)
        found = list(self._search.top(queries, excluded, k, subset))
        left = np.array([row for row, best in enumerate(found) if best is None], np.int64)
        numbers = np.empty((len(queries), k), np.int32)
        scores = np.empty((len(queries), k), np.float32)
        for row, best in enumerate(found):
            if best is not None:
                numbers[row], scores[row] = best
        if len(left):
            numbers[left], scores[left] = self._best_of_all(queries[left], excluded[left], k, subset)
        return numbers, scores

    def _best_of_all(
        self, queries: NDArray[np.float32], excluded: Histories, k: int, subset: Subset | None
    ) -> tuple[Numbers, Scores]:
        bias = self.bias if subset is None else subset.bias(self.bias)
        return self._head_top(queries, self.rows, bias, _places(excluded), k)

    def best_of(
        self,
        query: NDArray[np.float32],
        places: NDArray[np.int64],
        excluded: Numbers,
        k: int,
        subset: Subset | None,
    ) -> tuple[Numbers, Scores]:
        """The best of some items alone, which are given by their places in ascending order."""
        struck_out = np.flatnonzero(np.isin(places, excluded - 1))
        columns = np.stack([np.zeros_like(struck_out), struck_out], axis=1)
        rows, bias = self.rows.take(places, axis=0), self.bias.take(places)
        if subset is not None:
            bias[~subset.mask.take(places)] = -np.inf
        numbers, scores = self._head_top(query, rows, bias, columns, k)
        return places[numbers - 1].astype(np.int32) + np.int32(1), scores

    def _head_top(
        self,
        queries: NDArray[np.float32],
        rows: NDArray[np.float32],
        bias: NDArray[np.float32],
        excluded: NDArray[np.int64],
        k: int,
    ) -> tuple[Numbers, Scores]:
        asked = {"query": queries, "rows": rows, "bias": bias, "excluded": excluded, "k": np.array([k])}
        scores, places = self._head.run(["scores", "places"], asked)
        return places.astype(np.int32) + np.int32(1), scores

    def attention(self, history: Numbers) -> NDArray[np.float32] | None:
        if self._attention is None:
            return None
        asked = {"history": history[None].astype(np.int64)}
        weights: NDArray[np.float32] = self._attention.run(["attention"], asked)[0]
        return weights


def is_exact(engine: Engine) -> bool:
    """Whether it finds the best items for certain: not so with approximate search."""
    return not isinstance(engine, OnnxEngine) or engine.is_exact


def is_exported(folder: Path) -> bool:
    """Whether this is the folder of an exported model, rather than a run."""
    return (folder / MANIFEST).is_file()


def open_exported(
    folder: Path, *, threads: int, quantised: bool, approximate: bool
) -> tuple[OnnxEngine, Catalogue, dict[str, Any]]:
    """An exported model: what computes it, the items it knows, and what else a `Recommender` is told of it."""
    manifest = read_model(folder)
    engine = OnnxEngine(folder, manifest, threads=threads, quantised=quantised, approximate=approximate)
    untrained = np.flatnonzero(np.isneginf(engine.bias)) + 1
    facts = {
        "name": manifest["name"],
        "version": manifest["version"],
        "repeats": manifest.get("repeats", "exclude"),
        "trained": Trained(**manifest["trained"]) if "trained" in manifest else None,
    }
    return engine, replace(Catalogue.read(folder / "catalogue.json"), untrained=untrained), facts


def read_model(folder: Path) -> dict[str, Any]:
    """The manifest of an exported model, once every file is what was written."""
    manifest = read_facts(folder)
    verify_files(folder, manifest)
    return manifest


def read_facts(folder: Path) -> dict[str, Any]:
    """The manifest of an exported model, without a look into its files."""
    return read_manifest(folder, MANIFEST, kind="model", schema=SCHEMA, check=_check_facts)


def _check_facts(manifest: Manifest) -> None:
    """What every version wrote, of the type it was written in."""
    for fact, kind in (("name", str), ("version", str), ("max_history", int)):
        if not isinstance(manifest[fact], kind):
            raise TypeError(f"{fact} is {manifest[fact]!r}")
    if "trained" in manifest:
        Trained(**manifest["trained"])
    facts_of(manifest)


def _places(excluded: Histories) -> NDArray[np.int64]:
    """[E, 2]: row and column of every score that is struck out."""
    is_one = len(excluded) == 1  # a single request should not have to wait for what many need
    rows, items = (0, excluded.items[excluded.begin[0] : excluded.end[0]]) if is_one else excluded.flat()
    places = np.empty((len(items), 2), np.int64)
    places[:, 0], places[:, 1] = rows, items - 1
    return places


def _session(path: Path, threads: int) -> Any:
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # That kernel is slower than an addition and a normalisation one after the other: a fifth of the whole encoder.
    not_worth_it = ["SkipLayerNormFusion"]
    try:
        return runtime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"], disabled_optimizers=not_worth_it
        )
    except Exception as error:  # ONNX Runtime's own errors have no other class in common
        raise DataError(f"{path} cannot be read by ONNX Runtime: {error}. Export the model again.") from error


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError("Exported models require ONNX Runtime: pip install 'bert4rec[serve]'.") from error
    return onnxruntime
