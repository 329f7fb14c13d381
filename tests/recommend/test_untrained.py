"""Items that the final weights were never trained on are unknown: in runs, exported models, files and the service."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from bert4rec.api.runs import load
from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.errors import NotFoundError
from bert4rec.export import exporter
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.recommender import Recommender
from bert4rec.service.app import create_app
from bert4rec.settings.networks import ModelConfig
from bert4rec.training.run import Run
from tests.conftest import log_of
from tests.service.application import TestClient, settings_for
from tests.training.tiny import random_histories, train_tiny

ITEMS = 16
RARE = ["item-16", "item-17"]
"""Nobody chose them but two users, last of all."""


@dataclass(frozen=True)
class Trained:
    dataset: Dataset
    run: Run
    exported: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, histories = tmp_path_factory.mktemp("untrained"), random_histories(items=ITEMS)
    histories[0][-1], histories[7][-1] = ITEMS, ITEMS + 1
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    dataset = prepare(log_of(histories), folder / "dataset", name="tiny", recipe=recipe)
    run = train_tiny(dataset, folder / "run")
    return Trained(dataset, run, run.export(folder / "model"))


@pytest.fixture(params=["run", "exported"])
def recommender(trained: Trained, request: pytest.FixtureRequest) -> Recommender:
    return load(trained.run.path if request.param == "run" else trained.exported)


def test_a_finished_run_names_them_and_records_what_it_was_trained_on(trained: Trained) -> None:
    dataset, run = trained.dataset, trained.run
    ids = dataset.items()["id"].to_list()
    assert sorted(ids[number - 1] for number in run.untrained) == RARE
    assert run.notes[0].startswith("2 items of the log never occurred in what the final weights were trained")
    assert all(each in run.notes[0] for each in RARE)
    assert run.trained
    assert (run.trained.stage, run.trained.until, run.trained.model) == ("refit", None, "bert4rec")
    assert run.trained.actions == dataset.num_actions - dataset.num_users
    assert (run.trained.users, run.trained.items) == (dataset.num_users, ITEMS)
    assert run.trained.metrics == {
        protocol: found["NDCG@10"] for protocol, found in run.metrics["test"].items()
    }


def test_a_model_trained_on_everything_knows_them(trained: Trained, tmp_path: Path) -> None:
    run = trained.run.refit(tmp_path / "run", all=True, dataset=trained.dataset, device="cpu")
    assert run.untrained == []
    assert run.notes == trained.run.notes[1:]
    assert load(run, device="cpu").recommend(RARE).unknown_items == []


def test_the_exported_model_says_what_the_run_says(trained: Trained) -> None:
    assert load(trained.exported).trained == load(trained.run).trained == trained.run.trained


def test_they_are_neither_understood_nor_recommended(recommender: Recommender) -> None:
    found = recommender.recommend(["item-3", RARE[0]], k=100)
    assert found.unknown_items == [RARE[0]]
    assert found.items == recommender.recommend(["item-3"], k=100).items
    every_known = {f"item-{number}" for number in range(ITEMS)}
    assert {item.item_id for item in found.items} == every_known - {"item-3"}
    assert {item.item_id for item in recommender.recommend([], k=100).items} == every_known
    assert recommender.recommend(["item-3"], allow=RARE).items == []
    ranked = recommender.rank(["item-3"], ["item-4", *RARE])
    assert ([item.item_id for item in ranked.items], ranked.unknown_items) == (["item-4"], RARE)


def test_they_have_no_neighbours_and_are_nobodys(recommender: Recommender) -> None:
    with pytest.raises(NotFoundError, match=f"Unknown item '{RARE[0]}'"):
        recommender.similar(RARE[0])
    with pytest.raises(NotFoundError, match=f"Unknown item '{RARE[1]}'"):
        recommender.explain(["item-3"], RARE[1])
    assert len(recommender.similar("item-3", k=100).items) == ITEMS - 1


def test_tables_and_files_of_users_skip_them(recommender: Recommender, tmp_path: Path) -> None:
    histories = pl.DataFrame(
        {"user": ["ann", "bob"], "items": [["item-3", RARE[0]], [RARE[1]]]},
        schema_overrides={"items": pl.List(pl.String)},
    )
    found = recommender.recommend_many(histories, k=100)
    histories.write_parquet(tmp_path / "users.parquet")
    tally = recommender.recommend_file(tmp_path / "users.parquet", tmp_path / "answers.parquet", k=100)
    assert (tally.unknown, tally.fallbacks) == (2, 1)
    for table in (found.to_polars(), pl.read_parquet(tmp_path / "answers.parquet")):
        assert not set(table["item"]) & set(RARE)
        assert table["user"].to_list() == ["ann"] * (ITEMS - 1) + ["bob"] * ITEMS


def test_the_service_does_not_know_them(trained: Trained, tmp_path: Path) -> None:
    with TestClient(create_app(settings_for(trained.exported, tmp_path))) as client:
        answer = client.post("/v1/recommend", json={"history": [RARE[0], "item-3"], "k": 100}).json()
        assert answer["context"]["unknown_items"] == [RARE[0]]
        assert len(answer["items"]) == ITEMS - 1
        assert client.get(f"/v1/items/{RARE[0]}/similar").status_code == 404
        assert client.get("/v1/items", params={"query": RARE[0]}).json()["items"] == []
        assert client.get("/v1/models").json()["models"][0]["num_items"] == ITEMS


def test_a_model_of_known_users_does_not_recommend_them(trained: Trained, tmp_path: Path) -> None:
    run = train_tiny(trained.dataset, tmp_path / "run", model="bpr-mf")
    found = load(run, device="cpu").recommend_user(
        "user-3", k=100, dataset=trained.dataset, exclude_seen=False
    )
    assert {item.item_id for item in found.items} == {f"item-{number}" for number in range(ITEMS)}


@pytest.mark.parametrize("ids", [["7", "30", "8", "9"], ["a", "b7", "c", "d"]])
def test_a_catalogue_finds_them_by_no_road(ids: list[str]) -> None:
    whole = ids[0].isdigit()
    titles = ["Green tea", "Black tea", "Green cup", "Black cup"]
    counts = np.array([4, 3, 2, 1])
    catalogue = Catalogue(ids, titles, counts, whole_numbers=whole, untrained=np.array([2, 3]))
    assert catalogue.number_of(ids[1]) is None
    assert catalogue.numbers(ids)[0].tolist() == [1, 4]
    for column in (pl.Series(ids), pl.Series(ids).cast(pl.Int64 if whole else pl.Categorical)):
        assert catalogue.numbers_of_column(column).tolist() == [1, 0, 0, 4]
    assert catalogue.search("tea") == [1]
    assert catalogue.search(ids[1]) == []
    assert catalogue.near(ids[1].upper() + "x") is None
    assert catalogue.near("green c") is None
    assert catalogue.known_numbers.tolist() == [1, 4]
    with pytest.raises(NotFoundError):
        catalogue.known(ids[2])


def test_a_large_catalogue_is_searched_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whole numbers, which bound the scores of all items, and plainly: with the same answers."""
    monkeypatch.setattr(exporter, "LARGE_CATALOGUE", 2000)
    ids = [f"item-{number}" for number in range(2000)]
    network = BERT4Rec(2000, ModelConfig(dim=16, max_length=8), torch.Generator().manual_seed(1))
    untrained = list(range(1, 2000, 3))
    catalogue = Catalogue(ids, None, np.arange(2000, 0, -1))
    exporter.export_model(network, catalogue, tmp_path / "model", name="large", untrained=untrained)
    quick, plain = (Recommender.load(tmp_path / "model", quantised=each) for each in (True, False))
    never = {ids[number - 1] for number in untrained}
    for number in range(1, 40, 3):
        found = quick.recommend([f"item-{number}"], k=20)
        assert found == plain.recommend([f"item-{number}"], k=20)
        assert len(found.items) == 20
        assert not {item.item_id for item in found.items} & never
    assert len(plain.recommend(["item-1"], k=2000).items) == 2000 - len(untrained) - 1
