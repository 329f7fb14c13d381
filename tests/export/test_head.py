"""The graph that takes the best of all items: those of a plain sort, ties in the order of the items."""

from functools import cache
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert4rec.export.head import _BLOCK, _MANY, head_graph


@cache
def session() -> Any:
    graph = head_graph(opset=20, ir_version=10)
    return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])


def best(
    queries: NDArray[np.float32],
    rows: NDArray[np.float32],
    bias: NDArray[np.float32],
    excluded: NDArray[np.int64],
    k: int,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    asked = {"query": queries, "rows": rows, "bias": bias, "excluded": excluded, "k": np.array([k])}
    scores, places = session().run(["scores", "places"], asked)
    return scores, places


@settings(deadline=None, max_examples=200)
@given(
    num_queries=st.sampled_from([1, 2, _MANY - 1, _MANY, _MANY + 1, 32, 40]),
    num_items=st.integers(1, 5 * _BLOCK),
    k=st.integers(1, 5 * _BLOCK),
    excluded_share=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    spread=st.sampled_from([0, 1, 100]),
    seed=st.integers(0, 2**32 - 1),
)
@example(num_queries=_MANY, num_items=1, k=1, excluded_share=0.0, spread=1, seed=1)
@example(num_queries=_MANY, num_items=3 * _BLOCK + 1, k=1000, excluded_share=0.0, spread=0, seed=1)
@example(num_queries=_MANY, num_items=3 * _BLOCK + 1, k=3, excluded_share=1.0, spread=1, seed=1)
def test_the_best_are_those_of_a_stable_sort(
    num_queries: int, num_items: int, k: int, excluded_share: float, spread: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    k = min(k, num_items)
    # Small whole numbers: sums are exact in any order, and many scores are equal.
    queries, rows = (
        rng.integers(-spread, spread + 1, (count, 3)).astype(np.float32) for count in (num_queries, num_items)
    )
    bias = rng.integers(-1, 2, num_items).astype(np.float32)
    is_excluded = rng.random((num_queries, num_items)) < excluded_share
    scores = np.where(is_excluded, -np.inf, queries @ rows.T + bias)
    # An item may be excluded more than once, as by a history and by a list.
    excluded = np.repeat(np.argwhere(is_excluded), 2, axis=0)
    found, places = best(queries, rows, bias, excluded, k)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found, np.take_along_axis(scores, expected, axis=1))
    np.testing.assert_array_equal(places[found > -np.inf], expected[found > -np.inf])
    assert places.max() < num_items


@pytest.mark.parametrize("num_items", [1000, 1001, 1015])
def test_many_queries_are_answered_as_few_are(num_items: int) -> None:
    rng = np.random.default_rng(1)
    queries, rows = (rng.standard_normal((count, 48)).astype(np.float32) for count in (33, num_items))
    bias = rng.standard_normal(num_items).astype(np.float32)
    nothing = np.empty((0, 2), np.int64)
    scores, places = best(queries, rows, bias, nothing, 10)
    for first in range(0, 33, 3):
        some = slice(first, first + 3)
        few_scores, few_places = best(queries[some], rows, bias, nothing, 10)
        np.testing.assert_array_equal(places[some], few_places)
        np.testing.assert_allclose(scores[some], few_scores, rtol=1e-5)
