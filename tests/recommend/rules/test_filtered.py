"""Recommendations under a filter are those without it, less what it leaves out: by every engine, in every way."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.artefact import write_manifest
from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.histories import Histories
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.errors import UsageError
from bert4rec.recommend.recommender import Recommendation, Recommender
from bert4rec.recommend.rules.attributes import Attributes
from bert4rec.recommend.rules.rules import Rules
from bert4rec.recommend.rules.subset import Subset
from tests.conftest import log_of
from tests.recommend.rules.goods import GOODS, NUM_GOODS
from tests.recommend.test_quantised import Pair, vectors
from tests.recommend.tiny import untrained_run

HISTORIES = [[(user * 7 + place * 11) % NUM_GOODS for place in range(12)] for user in range(40)]
FILTERS: list[dict[str, Any]] = [
    {"category": ["tea", "coffee"]},
    {"price": {"<": 12}},
    {"tags": {"not": "cold"}},
    {"stock": 1, "category": "tea"},
    {"category": "milk"},
]
"""Wide ones, one that leaves three items, and one that leaves none."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose items have attributes; runs of BERT4Rec and of a model that knows only its users."""
    folder = tmp_path_factory.mktemp("filtered")
    log = log_of(HISTORIES)
    described = GOODS.drop("number", "count", "title", "parts").with_columns(id=log.item_ids)
    log = replace(log, item_columns=described)
    dataset = prepare(
        log,
        folder / "data",
        name="goods",
        recipe=Recipe(filters=Filters(min_user_actions=1), num_negatives=5),
    )
    run = untrained_run(dataset, folder / "run")
    untrained_run(dataset, folder / "bpr-mf", "bpr-mf", dim=8)
    run.export(folder / "model")
    return folder


@pytest.fixture(scope="module", params=["run", "model"])
def recommender(folder: Path, request: pytest.FixtureRequest) -> Recommender:
    return Recommender.load(folder / request.param)


def ids_of(found: Recommendation) -> list[object]:
    return [item.item_id for item in found.items]


def fitting(folder: Path, where: dict[str, Any]) -> set[str]:
    """By polars, independently."""
    table = pl.read_parquet(folder / "data" / "items.parquet")
    tests: dict[str, pl.Expr] = {
        str(FILTERS[0]): pl.col("category").is_in(["tea", "coffee"]),
        str(FILTERS[1]): pl.col("price") < 12,
        str(FILTERS[2]): ~pl.col("tags").list.contains("cold").fill_null(value=False),
        str(FILTERS[3]): (pl.col("stock") == 1) & (pl.col("category") == "tea"),
        str(FILTERS[4]): pl.lit(value=False),
    }
    return set(table.filter(tests[str(where)])["id"].to_list())


def assert_filtered(found: Recommendation, everything: Recommendation, fit: set[str], k: int) -> None:
    expected = [item for item in everything.items if item.item_id in fit][:k]
    assert ids_of(found) == [item.item_id for item in expected]
    np.testing.assert_allclose(
        [item.score for item in found.items], [item.score for item in expected], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_a_filter_leaves_the_order_and_the_scores_of_what_fits(
    folder: Path, recommender: Recommender, where: dict[str, Any]
) -> None:
    fit = fitting(folder, where)
    for history in (
        [],
        ["item-3"],
        ["item-5", "item-9", "item-14"],
        [f"item-{number}" for number in range(30)],
    ):
        everything = recommender.recommend(history, NUM_GOODS)
        for k in (1, 4, NUM_GOODS):
            assert_filtered(recommender.recommend(history, k, where=where), everything, fit, k)


def test_other_rules_hold_beside_a_filter(folder: Path, recommender: Recommender) -> None:
    history, where = ["item-5", "item-9"], FILTERS[0]
    allow, deny = [f"item-{number}" for number in range(0, 60, 2)], ["item-8", "item-12"]
    found = recommender.recommend(history, 60, where=where, allow=allow, deny=deny, exclude_seen=False)
    assert set(ids_of(found)) == fitting(folder, where) & set(allow) - set(deny)
    diverse = recommender.recommend(history, 60, where=where, deny=deny, diversity=0.5)
    assert set(ids_of(diverse)) == fitting(folder, where) - set(deny) - set(history)


def test_questions_with_different_filters_are_answered_together_as_each_alone(
    recommender: Recommender,
) -> None:
    rules = [
        *(Rules(5, where=where) for where in FILTERS),
        Rules(5),
        Rules(5, where=FILTERS[0], diversity=0.5),
    ]
    histories = [[], ["item-3"], ["item-5", "item-9"], ["item-1", "item-2", "item-3"]]
    asked = [
        recommender.question(history, rules[(place + shift) % len(rules)])[0]
        for shift in range(len(rules))
        for place, history in enumerate(histories)
    ]
    for question, (numbers, scores) in zip(asked, recommender.top(asked), strict=True):
        ((alone, alone_scores),) = recommender.top([question])
        assert numbers.tolist() == alone.tolist()
        np.testing.assert_allclose(scores, alone_scores, atol=1e-5)


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_in_bulk_and_from_file_to_file_the_filter_holds_too(
    folder: Path, recommender: Recommender, where: dict[str, Any], tmp_path: Path
) -> None:
    histories = {"ann": ["item-3"], "bob": ["item-5", "item-9"], "new": []}
    many = recommender.recommend_many(histories, 4, where=where)
    expected = [ids_of(recommender.recommend(history, 4, where=where)) for history in histories.values()]
    assert [ids_of(each) for each in many] == expected
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pl.DataFrame({"user": list(histories), "items": list(histories.values())}).write_parquet(source)
    recommender.recommend_file(source, target, 4, where=where)
    found = pl.read_parquet(target).group_by("user", maintain_order=True).agg("item")
    assert dict(found.iter_rows()) == {
        user: ids for user, ids in zip(histories, expected, strict=True) if ids
    }


def test_models_that_know_only_their_users_obey_filters(folder: Path) -> None:
    recommender, dataset = Recommender.load(folder / "bpr-mf"), Dataset.open(folder / "data")
    for where in FILTERS:
        fit = fitting(folder, where)
        everything = recommender.recommend_user("user-3", NUM_GOODS, dataset=dataset)
        assert_filtered(
            recommender.recommend_user("user-3", 5, dataset=dataset, where=where), everything, fit, 5
        )
        many = recommender.recommend_many(dataset, 5, where=where)
        assert ids_of(many[3]) == ids_of(
            recommender.recommend_user("user-3", 5, dataset=dataset, where=where)
        )


def test_similar_items_obey_rules(folder: Path, recommender: Recommender) -> None:
    everything = recommender.similar("item-5", NUM_GOODS)
    where, deny = FILTERS[0], ["item-8", "nobody"]
    found = recommender.similar("item-5", 7, where=where, deny=deny)
    assert_filtered(found, everything, fitting(folder, where) - set(deny), 7)
    assert found.unknown_items == ["nobody"]
    assert ids_of(recommender.similar("item-5", allow=["item-9", "item-5", "item-2"])) == [
        item.item_id for item in everything.items if item.item_id in ("item-9", "item-2")
    ]
    assert recommender.similar("item-5", where=FILTERS[4]).items == []


def test_an_older_model_without_attributes_recommends_and_says_that_it_has_none(
    folder: Path, tmp_path: Path
) -> None:
    older = Path(shutil.copytree(folder / "model", tmp_path / "older"))
    (older / "attributes.npz").unlink()
    facts = json.loads((older / "model.json").read_text())
    write_manifest(older, "model.json", {**facts, "version": "older"})
    recommender = Recommender.load(older)
    assert (
        recommender.recommend(["item-3"]).items
        == Recommender.load(folder / "model").recommend(["item-3"]).items
    )
    with pytest.raises(UsageError, match="has to be exported again"):
        recommender.recommend(["item-3"], where={"category": "tea"})


def test_an_export_keeps_the_attributes_of_the_run(folder: Path) -> None:
    exported = Attributes.read(folder / "model" / "attributes.npz")
    original = Attributes.of_table(folder / "data" / "items.parquet")
    assert exported.kinds == original.kinds
    for name in exported.kinds:
        found, expected = exported.column(name), original.column(name)
        assert np.array_equal(found.values, expected.values)
        assert found.codes.tolist() == expected.codes.tolist()


# Large catalogues are searched by whole numbers first


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["random", "equal", "few", "zero", "outliers", "close"]),
    count=st.integers(1, 500),
    share=st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]),
    k=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
def test_whole_numbers_find_what_a_plain_search_finds_under_a_filter(
    kind: str, count: int, share: float, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pair = Pair(vectors(kind, count, 5, rng), rng.standard_normal(count), rng.standard_normal((2, 5)))
    mask = rng.random(count) < share
    excluded: list[list[int]] = [(rng.choice(count, min(count, 3), replace=False) + 1).tolist(), []]
    for engines in (pair, pair.never_give_up()):
        for number, left_out in enumerate(excluded):
            asked = Histories.from_lists([[number]]), Histories.from_lists([left_out])
            plain, scores = engines.plain.top(*asked, min(k, count), Subset(lambda: mask))
            found, found_scores = engines.quantised.top(*asked, min(k, count), Subset(lambda: mask))
            np.testing.assert_array_equal(found_scores, scores)
            possible = scores > -np.inf
            np.testing.assert_array_equal(found[possible], plain[possible])
            assert mask[found[possible] - 1].all()


def test_a_wide_filter_does_not_make_whole_numbers_score_everything() -> None:
    rng = np.random.default_rng(1)
    pair = Pair(rng.standard_normal((20_000, 16)), np.zeros(20_000), rng.standard_normal((1, 16)))
    mask = rng.random(20_000) < 0.3
    asked = Histories.from_lists([[0]]), Histories.from_lists([[]])
    pair.quantised.top(*asked, 10, Subset(lambda: mask))
    assert sum(pair.scored) < 2_000
