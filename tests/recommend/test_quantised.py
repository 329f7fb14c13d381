"""Vectors of whole numbers find the candidates; what is recommended is what a plain search recommends, always."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bert4rec.data.histories import Histories
from bert4rec.errors import DataError, UsageError
from bert4rec.export import exporter
from bert4rec.export.exporter import export_model
from bert4rec.export.head import head_graph
from bert4rec.export.quantise import search_graph
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.recommend import onnx_engine
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.engine import Numbers, Scores
from bert4rec.recommend.onnx_engine import OnnxEngine
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.subset import Subset
from bert4rec.recommend.search.quantised import BLOCK, Places, QuantisedSearch
from bert4rec.settings.networks import ModelConfig

OPSET, IR_VERSION = 20, 10
NOTHING = Histories.from_lists([[]])
Floats = NDArray[np.floating[Any]]


class Pair:
    """The same rows and queries, searched plainly and by whole numbers first. History [n] asks query n."""

    def __init__(self, rows: Floats, bias: Floats, queries: Floats) -> None:
        table = np.pad(rows.astype(np.float32), ((1, 1), (0, 0)))
        with TemporaryDirectory() as scratch:
            folder = Path(scratch)
            np.save(folder / "items.npy", table)
            np.save(folder / "bias.npy", bias.astype(np.float32))
            search = search_graph(table[1:-1], bias.astype(np.float32), opset=OPSET, ir_version=IR_VERSION)
            graphs = {
                "encoder.onnx": encoder_of(queries.astype(np.float32)),
                "head.onnx": head_graph(opset=OPSET, ir_version=IR_VERSION),
                "search.onnx": search,
            }
            for name, graph in graphs.items():
                (folder / name).write_bytes(graph.SerializeToString())
            facts = {"max_history": 1, "files": graphs}
            self.plain = OnnxEngine(folder, facts, threads=1, quantised=False)
            self.quantised = OnnxEngine(folder, facts, threads=1)
        self.scored: list[int] = []
        """How many items each exact search was about."""
        assert self.quantised._search
        exact_top = self.quantised.best_of

        def counted(
            query: NDArray[np.float32], places: Places, excluded: Numbers, k: int, subset: Subset | None
        ) -> tuple[Numbers, Scores]:
            self.scored.append(len(places))
            return exact_top(query, places, excluded, k, subset)

        self.quantised._search._exact_top = counted

    def never_give_up(self) -> "Pair":
        """Search by bounds however many blocks they leave."""
        assert isinstance(self.quantised._search, QuantisedSearch)
        self.quantised._search._most_blocks = -(-len(self.quantised.bias) // BLOCK)
        return self

    def assert_same(self, excluded: list[list[int]], k: int) -> None:
        for number, each in enumerate(excluded):
            history, left_out = Histories.from_lists([[number]]), Histories.from_lists([each])
            expected, scores = self.plain.top(history, left_out, k)
            found, found_scores = self.quantised.top(history, left_out, k)
            np.testing.assert_array_equal(found_scores, scores)
            possible = scores > -np.inf
            np.testing.assert_array_equal(found[possible], expected[possible])


def encoder_of(queries: NDArray[np.float32]) -> Any:
    nodes = [helper.make_node("Gather", ["queries", "history"], ["nested"])]
    nodes.append(helper.make_node("ReduceMax", ["nested", "axis"], ["query"], keepdims=0))
    history = helper.make_tensor_value_info("history", TensorProto.INT64, ["B", "L"])
    query = helper.make_tensor_value_info("query", TensorProto.FLOAT, ["B", queries.shape[1]])
    constants = [numpy_helper.from_array(queries, "queries"), numpy_helper.from_array(np.array([1]), "axis")]
    graph = helper.make_graph(nodes, "encoder", [history], [query], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def vectors(kind: str, count: int, dim: int, rng: np.random.Generator) -> NDArray[np.float32]:
    rows = rng.standard_normal((count, dim))
    match kind:
        case "equal":
            rows[:] = rows[0]
        case "few":
            rows = rows[rng.integers(0, 3, count) % count]
        case "zero":
            rows[rng.random(count) < 0.7] = 0
        case "huge":
            rows *= 10 ** rng.uniform(-3, 18, (count, 1))
        case "tiny":
            rows *= 10 ** rng.uniform(-44, 0, (count, 1))
        case "outliers":
            rows[rng.random(rows.shape) < 0.02] *= 1000
        case "close":
            rows = rows[0] + 1e-6 * rows
    return rows.astype(np.float32)


KINDS = ["random", "equal", "few", "zero", "huge", "tiny", "outliers", "close"]


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(KINDS),
    count=st.integers(1, 500),
    dim=st.sampled_from([1, 3, 16, 33]),
    spread=st.sampled_from([0.0, 0.1, 100.0]),
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 30),
    num_excluded=st.integers(0, 40),
    never_gives_up=st.booleans(),
)
def test_answers_are_those_of_a_plain_search_whatever_the_vectors(
    kind: str, count: int, dim: int, spread: float, seed: int, k: int, num_excluded: int, never_gives_up: bool
) -> None:
    rng = np.random.default_rng(seed)
    queries = np.concatenate([vectors(kind, 3, dim, rng), np.zeros((1, dim)), rng.standard_normal((2, dim))])
    pair = Pair(vectors(kind, count, dim, rng), spread * rng.standard_normal(count), queries)
    if never_gives_up:
        pair.never_give_up()
    # The best items of each query are among the excluded ones: these matter.
    best = [
        pair.plain.top(Histories.from_lists([[row]]), NOTHING, count)[0][0] for row in range(len(queries))
    ]
    excluded = [each[: rng.integers(0, num_excluded + 1)].tolist() for each in best]
    pair.assert_same(excluded, min(k, count))
    hidden = np.concatenate([each[: rng.integers(0, num_excluded + 1)] for each in best])
    pair.plain, pair.quantised = pair.plain.without(hidden), pair.quantised.without(hidden)
    pair.assert_same(excluded, min(k, count))


def test_few_items_are_scored_exactly() -> None:
    rng = np.random.default_rng(1)
    pair = Pair(rng.standard_normal((40_000, 64)), rng.standard_normal(40_000), rng.standard_normal((20, 64)))
    pair.assert_same([[]] * 20, 10)
    assert len(pair.scored) == 2 * 20
    assert max(pair.scored) < 1000


def test_a_filter_or_hidden_items_do_not_make_the_search_give_up() -> None:
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((30, 64)).astype(np.float32)
    pair = Pair(rng.standard_normal((40_000, 64)), rng.standard_normal(40_000), queries)
    everybody = Histories.from_lists([[row] for row in range(30)])
    nothing = Histories.from_lists([[]] * 30)
    best, _ = pair.plain.top(everybody, nothing, 10)
    hidden, third = np.unique(best), Subset(lambda: np.arange(40_000) % 3 == 0)
    gave_up = []
    for numbers, subset in ((hidden[:0], third), (hidden, None), (hidden, third)):
        quantised, plain = pair.quantised.without(numbers), pair.plain.without(numbers)
        assert quantised._search
        found = list(quantised._search.top(queries, nothing, 10, subset))
        gave_up.append(sum(each is None for each in found))
        expected, _ = plain.top(everybody, nothing, 10, subset)
        for each, row in zip(found, expected.tolist(), strict=True):
            assert each is None or each[0].tolist() == row
    assert gave_up == [0, 0, 0]


def test_no_item_scores_higher_than_the_bound_of_its_block() -> None:
    rng = np.random.default_rng(1)
    for kind in KINDS:
        rows, bias = vectors(kind, 64 * BLOCK, 24, rng), rng.standard_normal(64 * BLOCK).astype(np.float32)
        queries = rng.standard_normal((8, 24)).astype(np.float32)
        search = Pair(rows, bias, queries).quantised._search
        assert isinstance(search, QuantisedSearch)
        bounds, _ = search._bounds(queries, 1)
        exact = queries.astype(np.float64) @ rows.astype(np.float64).T + bias
        assert np.all(exact.reshape(8, -1, BLOCK).max(axis=2) <= bounds), kind


@pytest.mark.parametrize("is_large", [True, False])
def test_many_queries_are_answered_as_each_alone(is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_engine, "_FEW_ITEMS", 4999 if is_large else 5000)
    rng = np.random.default_rng(1)
    pair = Pair(rng.standard_normal((5000, 16)), rng.standard_normal(5000), rng.standard_normal((20, 16)))
    everybody = Histories.from_lists([[number] for number in range(20)])
    # One of them excludes so much that all items are scored.
    excluded = Histories.from_lists([list(range(1, 4900)) if row == 9 else [row + 1] for row in range(20)])
    numbers, scores = pair.quantised.top(everybody, excluded, 5)
    assert bool(pair.scored) == is_large, "of fewer items all are scored"
    for row in range(20):
        alone = pair.plain.top(everybody[row : row + 1], excluded[row : row + 1], 5)
        np.testing.assert_array_equal(numbers[[row]], alone[0])
        np.testing.assert_allclose(scores[[row]], alone[1], rtol=1e-5)


def test_everything_excluded_leaves_nothing() -> None:
    rng = np.random.default_rng(1)
    pair = Pair(rng.standard_normal((200, 8)), np.zeros(200), rng.standard_normal((1, 8))).never_give_up()
    _, scores = pair.quantised.top(
        Histories.from_lists([[0]]), Histories.from_lists([list(range(1, 201))]), 10
    )
    assert np.all(scores == -np.inf)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model of few items, as if they were many; beside it, one of fewer."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exporter, "LARGE_CATALOGUE", 2000)
        for count, name in ((2000, "large"), (1999, "small")):
            ids = [f"item-{number}" for number in range(count)]
            network = BERT4Rec(count, ModelConfig(dim=16, max_length=8), torch.Generator().manual_seed(1))
            export_model(network, Catalogue(ids, None, np.arange(count, 0, -1)), folder / name, name=name)
    return folder / "large"


def test_only_large_catalogues_are_exported_with_whole_numbers(large: Path) -> None:
    assert (large / "search.onnx").is_file()
    assert not (large.with_name("small") / "search.onnx").exists()


def test_a_recommender_answers_the_same_without_whole_numbers(large: Path) -> None:
    quick, plain = Recommender.load(large), Recommender.load(large, quantised=False)
    for number in range(50):
        history = [f"item-{number * 7 + step}" for step in range(number % 9 + 1)]
        assert quick.recommend(history, k=5, deny=["item-3"]) == plain.recommend(
            history, k=5, deny=["item-3"]
        )


def test_a_model_that_has_diverged_is_refused(large: Path) -> None:
    engine = Recommender.load(large).ranker.engine
    engine.rows = np.full_like(engine.rows, np.nan)
    with pytest.raises(DataError, match="it has diverged"):
        Recommender(engine, Catalogue.read(large / "catalogue.json"), name="", version="").recommend(
            ["item-1"]
        )


def test_a_run_has_no_whole_numbers_to_switch_off(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="`quantised` applies to exported models only"):
        Recommender.load(tmp_path, quantised=False)
