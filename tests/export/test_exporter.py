"""An exported model says what the run says, needs no torch, and is refused when it is not what was written."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.artefact import write_manifest
from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.errors import DataError, UsageError
from bert4rec.export import exporter as export
from bert4rec.export.exporter import export_model, export_run, sample_users
from bert4rec.export.table_file import TableFile
from bert4rec.models.gru4rec import GRU4Rec
from bert4rec.recommend.onnx_engine import MANIFEST
from bert4rec.recommend.recommender import Item, Recommender
from bert4rec.recommend.rules.rules import Rules
from bert4rec.settings.networks import GRUConfig
from bert4rec.training.run import Run
from tests.conftest import MakeDataset, log_of
from tests.recommend.tiny import SETTINGS, untrained_run
from tests.training.tiny import random_histories

NUM_ITEMS, MAX_LENGTH = 40, 8


@dataclass(frozen=True)
class Pair:
    """The same model twice."""

    run: Run
    folder: Path
    torch: Recommender
    onnx: Recommender


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    scratch = tmp_path_factory.mktemp("export")
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    histories = random_histories(items=NUM_ITEMS, users=60)
    dataset = prepare(log_of(histories), scratch / "dataset", name="ring", recipe=recipe)
    assert dataset.num_items == NUM_ITEMS
    run = untrained_run(dataset, scratch / "run")
    export_run(run, scratch / "model")
    return Pair(run, scratch / "model", Recommender.load(run.path), Recommender.load(scratch / "model"))


@pytest.fixture
def copy(pair: Pair, tmp_path: Path) -> Path:
    """A model folder that may be spoilt."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in pair.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def scores_of(items: list[Item]) -> dict[str | int, float]:
    return {item.item_id: item.score for item in items}


def assert_same(ours: list[Item], theirs: list[Item]) -> None:
    assert scores_of(ours) == pytest.approx(scores_of(theirs), abs=1e-4)


def every_length() -> Iterator[list[str]]:
    rng = np.random.default_rng(1)
    for length in range(1, MAX_LENGTH + 4):
        yield [f"item-{item}" for item in rng.integers(0, NUM_ITEMS, length)]
        yield [f"item-{rng.integers(0, NUM_ITEMS)}"] * length


ITEMS = st.integers(0, NUM_ITEMS + 2).map(lambda number: f"item-{number}")  # some are unknown
HISTORIES = st.lists(st.lists(ITEMS, max_size=2 * MAX_LENGTH), min_size=1, max_size=12)


def test_histories_of_every_length_get_the_same_answer(pair: Pair) -> None:
    histories = list(every_length())
    answers = (each.recommend_many(histories) for each in (pair.torch, pair.onnx))
    for ours, theirs in zip(*answers, strict=True):
        assert_same(ours.items, theirs.items)
    for history in histories:
        alone = pair.onnx.recommend(history, k=NUM_ITEMS)
        assert_same(alone.items, pair.torch.recommend(history, k=NUM_ITEMS).items)


def test_questions_of_all_kinds_are_answered_together_as_each_alone(pair: Pair) -> None:
    everything = [f"item-{number}" for number in range(NUM_ITEMS)]
    kinds = [
        {"k": 1},
        {"k": 10 * NUM_ITEMS, "exclude_seen": False},
        {"k": 3, "deny": everything[5:]},
        {"k": 3, "deny": everything},
        {"k": 5, "allow": everything[::7]},
    ]
    histories = [[], *every_length()]
    asked = [
        pair.onnx.question(history, Rules(**kinds[place % len(kinds)]))  # type: ignore[arg-type]
        for place, history in enumerate(histories)
    ]
    together = pair.onnx.top([question for question, _ in asked])
    for (question, _), (numbers, scores) in zip(asked, together, strict=True):
        ((alone, alone_scores),) = pair.onnx.top([question])
        np.testing.assert_array_equal(numbers, alone)
        np.testing.assert_allclose(scores, alone_scores, atol=1e-5)


@settings(deadline=None)
@given(histories=HISTORIES)
def test_any_histories_get_the_same_answers(histories: list[list[str]], pair: Pair) -> None:
    answers = (each.recommend_many(histories, k=NUM_ITEMS) for each in (pair.torch, pair.onnx))
    for ours, theirs in zip(*answers, strict=True):
        assert_same(ours.items, theirs.items)
        assert (ours.used, ours.unknown_items, ours.fallback) == (
            theirs.used,
            theirs.unknown_items,
            theirs.fallback,
        )


@settings(deadline=None)
@given(history=st.lists(ITEMS, max_size=2 * MAX_LENGTH), items=st.lists(ITEMS, max_size=10))
def test_any_items_are_ranked_the_same(history: list[str], items: list[str], pair: Pair) -> None:
    assert_same(pair.torch.rank(history, items).items, pair.onnx.rank(history, items).items)


def test_explanations_are_the_same(pair: Pair) -> None:
    for history in every_length():
        ours, theirs = pair.torch.explain(history, "item-3"), pair.onnx.explain(history, "item-3")
        assert_same([ours.item], [theirs.item])
        effects = ([each.effect for each in side.contributions] for side in (ours, theirs))
        assert next(effects) == pytest.approx(next(effects), abs=1e-4)
        assert ours.attention is not None
        assert theirs.attention is not None
        np.testing.assert_allclose(ours.attention, theirs.attention, atol=1e-5)


def test_similar_items_are_the_same(pair: Pair) -> None:
    for item in ("item-0", "item-7"):
        assert_same(pair.torch.similar(item, k=NUM_ITEMS).items, pair.onnx.similar(item, k=NUM_ITEMS).items)


def test_an_exported_model_answers_without_torch_and_polars(pair: Pair) -> None:
    program = f"""
import sys
from bert4rec.recommend.rules.rules import Rules
from bert4rec.recommend.recommender import Recommender
recommender = Recommender.load({str(pair.folder)!r})
recommender.recommend(["item-1"])
recommender.explain(["item-1"], "item-2")
recommender.similar("item-1")
recommender.catalogue.search("item")
print(sorted({{"torch", "polars", "onnx"}} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_the_table_of_items_is_stored_once_and_no_graph_speaks_of_our_machine(pair: Pair) -> None:
    for path in pair.folder.glob("*.onnx"):
        graph = onnx.load(path, load_external_data=False).graph
        inside = [tensor for tensor in graph.initializer if list(tensor.dims) == [NUM_ITEMS + 2, 16]]
        assert [tensor.external_data[0].value for tensor in inside] == ["items.npy"] * len(inside)
        assert len(inside) == (path.name != "head.onnx")
        assert b".py" not in path.read_bytes()


def test_no_graph_ever_holds_the_table_so_that_it_may_be_larger_than_a_graph_can_be(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableFile, "take_out", lambda *_: None)  # what would find a copy
    export_run(pair.run, tmp_path / "model")
    for path in ("encoder.onnx", "attention.onnx"):
        graph = onnx.load(tmp_path / "model" / path, load_external_data=False).graph
        (inside,) = (tensor for tensor in graph.initializer if list(tensor.dims) == [NUM_ITEMS + 2, 16])
        assert not inside.raw_data
        assert {each.key: each.value for each in inside.external_data}["location"] == "items.npy"
    monkeypatch.setattr(export, "_LARGEST_GRAPH", 1)
    with pytest.raises(UsageError, match="`int8=True` takes at most 2 GiB"):
        export_run(pair.run, tmp_path / "small", int8=True)
    with pytest.raises(UsageError, match="bytes besides the table of items; ONNX takes at most 2 GiB"):
        export_run(pair.run, tmp_path / "small")
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize(
    "name", ["encoder.onnx", "head.onnx", "attention.onnx", "items.npy", "bias.npy", "catalogue.json"]
)
def test_a_file_that_is_cut_off_changed_or_missing_is_named(name: str, copy: Path) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=f"{name} has changed"):
        Recommender.load(copy)
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=f"{name} has .* bytes where"):
        Recommender.load(copy)
    (copy / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        Recommender.load(copy)


def test_a_manifest_that_is_not_ours_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, "schema": 99}))
    with pytest.raises(DataError, match="schema version 99"):
        Recommender.load(copy)
    (copy / MANIFEST).write_text("not JSON")
    with pytest.raises(DataError, match=r"model\.json is damaged"):
        Recommender.load(copy)


def test_a_graph_that_is_not_one_is_refused_though_its_checksum_is_right(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / "encoder.onnx").write_bytes(b"something else")
    write_manifest(copy, MANIFEST, manifest)
    with pytest.raises(DataError, match=r"encoder\.onnx cannot be read by ONNX Runtime"):
        Recommender.load(copy)


def test_arrays_of_another_shape_are_refused(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    np.save(copy / "bias.npy", np.zeros(NUM_ITEMS - 1, np.float32))
    write_manifest(copy, MANIFEST, manifest)
    with pytest.raises(DataError, match="39 items, its catalogue 40"):
        Recommender.load(copy)


def test_an_export_that_fails_leaves_what_was_there(
    pair: Pair, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(export, "_trace", fail)
    with pytest.raises(OSError, match="full"):
        export_run(pair.run, copy, overwrite=True)
    assert [path.name for path in copy.parent.iterdir()] == ["model"]
    assert Recommender.load(copy).version == pair.onnx.version


def test_an_export_replaces_a_model_only_when_told_and_never_a_run(pair: Pair) -> None:
    with pytest.raises(UsageError, match="`overwrite=True`"):
        export_run(pair.run, pair.folder)
    with pytest.raises(UsageError, match="will not be overwritten"):
        export_run(pair.run, pair.run.path, overwrite=True)


def test_a_model_that_cannot_be_exported_is_named(pair: Pair, tmp_path: Path) -> None:
    model = GRU4Rec(NUM_ITEMS, GRUConfig(dim=8, max_length=5))
    with pytest.raises(UsageError, match="GRU4Rec cannot be exported"):
        export_model(model, pair.onnx.catalogue, tmp_path / "model", name="")


def test_whole_numbers_are_nearly_as_good_and_smaller(pair: Pair, tmp_path: Path) -> None:
    export_run(pair.run, tmp_path / "small", int8=True)
    small = Recommender.load(tmp_path / "small")
    assert (tmp_path / "small" / "encoder.onnx").stat().st_size < (
        pair.folder / "encoder.onnx"
    ).stat().st_size
    assert small.version != pair.onnx.version
    for history in every_length():
        ours, theirs = (
            scores_of(each.rank(history, each.catalogue.ids).items) for each in (small, pair.onnx)
        )
        assert ours != theirs
        assert ours == pytest.approx(theirs, abs=0.5)


@pytest.mark.parametrize("max_length", [2, 3])
def test_a_model_that_looks_at_one_or_two_items_is_exported_too(
    max_length: int, pair: Pair, tmp_path: Path
) -> None:
    dataset = Dataset.open(pair.run.plan.dataset)
    run = untrained_run(dataset, tmp_path / "run", dim=8, layers=1, heads=2, max_length=max_length)
    export_run(run, tmp_path / "model")
    ours, theirs = Recommender.load(run.path), Recommender.load(tmp_path / "model")
    assert theirs.max_history == max_length - 1
    for history in every_length():
        assert_same(ours.recommend(history, k=NUM_ITEMS).items, theirs.recommend(history, k=NUM_ITEMS).items)
        attention = theirs.explain(history, "item-3").attention
        assert attention is not None
        assert attention.shape == (1, 2, min(len(history), max_length - 1) + 1)


def test_samples_are_the_newest_actions_of_users_from_all_over_the_dataset(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]])
    assert sample_users(dataset, count=2, longest=2) == [
        {"user_id": "user-0", "history": ["item-1", "item-2"]},
        {"user_id": "user-3", "history": ["item-2", "item-1"]},
    ]
    assert len(sample_users(dataset)) == 4


def test_ids_of_samples_keep_their_type() -> None:
    dataset = Dataset.from_sequences(np.array([3, 1, 2, 2, 3], np.int32), np.array([0, 3, 5]))
    assert sample_users(dataset) == [{"user_id": 0, "history": [3, 1, 2]}, {"user_id": 1, "history": [2, 3]}]


@pytest.mark.parametrize(
    ("model", "int8"), [("bert4rec", False), ("bert4rec+", False), ("sasrec", False), ("bert4rec+", True)]
)
def test_matrices_of_the_shape_of_the_table_are_not_taken_for_it(
    model: str, int8: bool, tmp_path: Path
) -> None:
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    histories = random_histories(items=30, users=60)
    dataset = prepare(log_of(histories), tmp_path / "dataset", name="ring", recipe=recipe)
    dim = 8
    assert dataset.num_items + 2 == 4 * dim, "as tall as the inner layer of a block is wide"
    run = untrained_run(dataset, tmp_path / "run", model, dim=dim, layers=1, heads=2, max_length=MAX_LENGTH)
    export_run(run, tmp_path / "model", int8=int8)
    ours, theirs = Recommender.load(run.path), Recommender.load(tmp_path / "model")
    scores = [scores_of(each.rank(["item-1", "item-2"], ours.catalogue.ids).items) for each in (ours, theirs)]
    assert scores[0] == pytest.approx(scores[1], abs=0.5 if int8 else 1e-4)


def test_a_transposed_copy_of_the_table_in_a_graph_is_an_error(tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "items.npy", table)
    copy = onnx.numpy_helper.from_array(np.ascontiguousarray(table.T), "copy")
    graph = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], [], [copy]))
    with pytest.raises(RuntimeError, match=r"changed copy of the table of items: copy\."):
        TableFile(table, tmp_path / "items.npy").take_out(graph)


def test_sasrec_is_exported_too_without_attention(pair: Pair, tmp_path: Path) -> None:
    run = untrained_run(Dataset.open(pair.run.plan.dataset), tmp_path / "run", "sasrec")
    export_run(run, tmp_path / "model")
    ours, theirs = Recommender.load(run.path), Recommender.load(tmp_path / "model")
    assert theirs.max_history == MAX_LENGTH
    for history in every_length():
        assert_same(ours.recommend(history, k=NUM_ITEMS).items, theirs.recommend(history, k=NUM_ITEMS).items)
    assert theirs.explain(["item-1", "item-2"], "item-3").attention is None
    # Without its only action, a history has nothing to look at.
    effects = [each.explain(["item-1"], "item-3").contributions[0].effect for each in (ours, theirs)]
    assert effects[0] == pytest.approx(effects[1], abs=1e-4)


@pytest.mark.parametrize(("ask", "layers"), [("mask", 1), ("last", 1), ("both", 2)])
def test_an_exported_model_asks_as_its_run_does(pair: Pair, tmp_path: Path, ask: str, layers: int) -> None:
    dataset = Dataset.open(pair.run.plan.dataset)
    run = untrained_run(dataset, tmp_path / "run", "bert4rec+", **{**SETTINGS, "layers": layers, "ask": ask})
    export_run(run, tmp_path / "model")
    ours, theirs = Recommender.load(run.path), Recommender.load(tmp_path / "model")
    assert ours.max_history == theirs.max_history == MAX_LENGTH - 1
    for history in every_length():
        assert_same(ours.recommend(history, k=NUM_ITEMS).items, theirs.recommend(history, k=NUM_ITEMS).items)
        mine, its = (each.explain(history, "item-3").attention for each in (ours, theirs))
        assert mine is not None
        assert its is not None
        np.testing.assert_allclose(mine, its, atol=1e-5)


def test_the_encoder_adds_biases_while_it_multiplies_and_looks_for_no_gaps_in_attention(pair: Pair) -> None:
    graph = onnx.load(pair.folder / "encoder.onnx", load_external_data=False).graph
    kinds = Counter(node.op_type for node in graph.node)
    assert (kinds["IsNaN"], kinds["Softmax"]) == (0, 2)
    assert kinds["MatMul"] == 2 * kinds["Softmax"]  # of attention; all others are Gemm
