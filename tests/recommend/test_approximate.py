"""An index finds the candidates, exact scores decide, and nothing that rules leave out comes back by it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bert4rec import extras
from bert4rec.artefact import write_manifest
from bert4rec.cli import app
from bert4rec.data.histories import Histories
from bert4rec.errors import DataError, UsageError
from bert4rec.export import build_index, exporter
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.onnx_engine import MANIFEST, OnnxEngine, read_model
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.attributes import Attributes, Column
from bert4rec.recommend.rules.degenerate import sample_histories
from bert4rec.recommend.rules.hidden import without
from bert4rec.recommend.search.approximate import OTHERS, IndexFacts, facts_of
from bert4rec.settings.networks import ModelConfig
from tests.conftest import MakeDataset
from tests.recommend.tiny import untrained_run
from tests.service.servers import running
from tests.training.tiny import random_histories

ITEMS, DIM, COLOURS = 6000, 16, 5
UNTRAINED = list(range(3, ITEMS, 50))
IDS = [f"item-{number}" for number in range(1, ITEMS + 1)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of few items, as if they were many: vectors of different lengths around common centres, and biases."""
    generator, rng = torch.Generator().manual_seed(1), np.random.default_rng(1)
    network = BERT4Rec(ITEMS, ModelConfig(dim=DIM, layers=1, heads=2, max_length=12), generator)
    centres = rng.standard_normal((60, DIM))
    vectors = centres[rng.integers(0, 60, ITEMS + 2)] + 0.7 * rng.standard_normal((ITEMS + 2, DIM))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
        network.item_table.weight.copy_(torch.from_numpy(vectors * rng.gamma(9, 1 / 9, (ITEMS + 2, 1))))
        network.item_bias.copy_(torch.from_numpy(rng.standard_normal(ITEMS)))
    colours = Column(
        [f"colour {each}" for each in range(COLOURS)], (np.arange(ITEMS) % COLOURS).astype(np.int8)
    )
    folder = tmp_path_factory.mktemp("approximate") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "LARGE_CATALOGUE", 2000)
        exporter.export_model(
            network,
            Catalogue(IDS, None, np.arange(ITEMS, 0, -1)),
            folder,
            name="many",
            attributes=Attributes({"colour": "text"}, lambda _: colours),
            untrained=UNTRAINED,
            approximate=True,
        )
    return folder


@pytest.fixture(scope="module")
def quick(model: Path) -> Recommender:
    return Recommender.load(model, approximate=True)


@pytest.fixture(scope="module")
def exact(model: Path) -> Recommender:
    return Recommender.load(model, quantised=False)


@pytest.fixture(scope="module")
def facts(model: Path) -> IndexFacts:
    found = facts_of(read_model(model))
    assert found is not None
    return found


def asked() -> list[list[str]]:
    rng = np.random.default_rng(2)
    return [[IDS[place] for place in rng.integers(0, ITEMS, rng.integers(1, 15))] for _ in range(40)]


def recall_of(quick: Recommender, exact: Recommender) -> float:
    """On the histories of the export, in its order."""
    trained = exact.catalogue.counts.copy()
    trained[np.array(UNTRAINED) - 1] = 0
    histories = sample_histories(trained, build_index.HISTORIES)
    nothing = Histories.from_lists([[]] * len(histories))
    found, best = (each.ranker.engine.top(histories, nothing, 10)[0] for each in (quick, exact))
    return float(np.mean([len({*ours} & {*theirs}) for ours, theirs in zip(found, best, strict=True)])) / 10


def test_the_recall_of_the_manifest_is_what_a_recount_gives(
    quick: Recommender, exact: Recommender, facts: IndexFacts
) -> None:
    assert facts.recall == pytest.approx(recall_of(quick, exact), abs=1e-9)
    assert 0.98 <= facts.recall < 1
    assert facts.histories == 1000
    assert facts.library.startswith("faiss ")


def test_no_fewer_lists_are_read_than_the_recall_needs(
    model: Path, exact: Recommender, facts: IndexFacts
) -> None:
    assert 1 < facts.probes < facts.lists
    narrower = Recommender.load(model, approximate=True)
    engine = narrower.ranker.engine
    assert isinstance(engine, OnnxEngine)
    assert engine._search is not None
    engine._search.probes = facts.probes // 2  # type: ignore[union-attr]
    assert recall_of(narrower, exact) < 0.98


def test_scores_are_the_exact_ones_and_items_come_in_their_order(
    quick: Recommender, exact: Recommender
) -> None:
    for history in asked():
        scores = {item.item_id: item.score for item in exact.recommend(history, k=ITEMS).items}
        found = quick.recommend(history, k=20).items
        assert [item.score for item in found] == [scores[item.item_id] for item in found]
        assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
        assert len({item.item_id for item in found}) == 20


def test_many_histories_at_once_get_the_answers_of_each_alone(quick: Recommender) -> None:
    together = quick.recommend_many(asked(), k=7)
    for history, found in zip(asked(), together, strict=True):
        assert [item.item_id for item in found.items] == [
            item.item_id for item in quick.recommend(history, k=7).items
        ]


def test_untrained_denied_and_seen_items_and_those_of_other_colours_are_never_found(
    quick: Recommender, exact: Recommender
) -> None:
    never = {IDS[number - 1] for number in UNTRAINED}
    shared = 0
    for history in asked():
        best = [item.item_id for item in quick.recommend(history, k=50).items]
        rules = {"deny": best[:40], "where": {"colour": ["colour 1", "colour 3"]}}
        found = {item.item_id for item in quick.recommend(history, k=10, **rules).items}  # type: ignore[arg-type]
        assert len(found) == 10
        assert not found & {*best[:40], *history, *never}
        assert {IDS.index(str(each)) % COLOURS for each in found} <= {1, 3}
        shared += len(found & {item.item_id for item in exact.recommend(history, k=10, **rules).items})  # type: ignore[arg-type]
    assert shared >= 0.95 * 10 * len(asked())


@pytest.mark.parametrize("k", [10, 3000, ITEMS])
def test_where_too_few_candidates_remain_all_items_are_searched(
    quick: Recommender, exact: Recommender, k: int
) -> None:
    """All but 30 items are hidden, so an index that knows nothing of it finds next to none of them."""
    left = np.arange(100, ITEMS, 200)
    hidden = np.setdiff1d(np.arange(1, ITEMS + 1), left).astype(np.int32)
    ours, theirs = without(quick, hidden), without(exact, hidden)
    for history in asked()[:10]:
        found = ours.recommend(history, k=k).items
        assert len(found) >= min(k, len(left) - len(history))
        assert found == theirs.recommend(history, k=k).items


def test_more_items_than_there_are_candidates_are_found_as_by_exact_search(
    quick: Recommender, exact: Recommender
) -> None:
    (history, *_) = asked()
    assert quick.recommend(history, k=ITEMS) == exact.recommend(history, k=ITEMS)
    some = IDS[::100]
    allowed = quick.recommend(history, k=5, allow=some)
    assert allowed == exact.recommend(history, k=5, allow=some)


def test_a_model_without_an_index_a_run_and_few_items_are_refused(
    exported_model: Path, make_dataset: MakeDataset, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"has no index for approximate search.*`approximate=True`"):
        Recommender.load(exported_model, approximate=True)
    run = untrained_run(make_dataset(random_histories()), tmp_path / "run")
    with pytest.raises(UsageError, match="`approximate` applies to exported models only"):
        Recommender.load(run.path, approximate=True)
    with pytest.raises(UsageError, match="500,000 items and more; the model has"):
        run.export(tmp_path / "model", approximate=True)
    assert not (tmp_path / "model").exists()


def test_without_faiss_it_is_said_what_to_install(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'bert4rec\[ann\]'"):
        Recommender.load(model, approximate=True)


def test_a_damaged_index_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    content = (folder / OTHERS).read_bytes()
    (folder / OTHERS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=f"{OTHERS} has changed"):
        Recommender.load(folder, approximate=True)
    (folder / OTHERS).write_bytes(b"something else")
    write_manifest(folder, MANIFEST, json.loads((model / MANIFEST).read_text()))
    with pytest.raises(DataError, match=f"{OTHERS} cannot be read by faiss"):
        Recommender.load(folder, approximate=True)


def test_the_command_builds_an_index_and_tells_its_recall(
    make_dataset: MakeDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(build_index, "MANY_ITEMS", 10)
    run = untrained_run(make_dataset(random_histories()), tmp_path / "run")
    command = ["export", str(run.path), "-o", str(tmp_path / "model"), "--approximate", "--force"]
    app(command, result_action="return_value")
    told = capsys.readouterr()
    assert "of the 10 best items after 1,000 histories that were made up" in told.out + told.err
    assert f"serve {tmp_path / 'model'} --approximate" in told.out + told.err
    app(
        ["recommend", str(tmp_path / "model"), "--approximate", "--force", "--history", "item-1", "--json"],
        result_action="return_value",
    )
    assert len(json.loads(capsys.readouterr().out)["items"]) > 0


def test_workers_answer_by_the_index_as_the_library_does(model: Path, quick: Recommender) -> None:
    with running(model, "--approximate", "--workers", "2") as server, server.client() as client:
        for history in asked()[:5]:
            found = client.post("/v1/recommend", json={"history": history, "k": 5}).json()["items"]
            expected = quick.recommend(history, k=5).items
            assert [item["item_id"] for item in found] == [item.item_id for item in expected]
            assert [item["score"] for item in found] == pytest.approx([item.score for item in expected])
        (searched,) = client.get("/v1/items", params={"query": "ITEM-5999"}).json()["items"]
        assert searched["item_id"] == "item-5999"
        hidden = expected[0].item_id
        client.put(f"/v1/items/{hidden}/hidden", json={}).raise_for_status()
        found = client.post("/v1/recommend", json={"history": history, "k": 5}).json()["items"]
        assert hidden not in [item["item_id"] for item in found]
        assert len(found) == 5
        assert server.stop() == 0
