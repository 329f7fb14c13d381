"""Rules over HTTP: the names are those of Python, and so are the answers."""

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert4rec.errors import DataError
from bert4rec.recommend.recommender import Recommender
from bert4rec.service.app import create_app
from tests.conftest import NUM_ITEMS
from tests.recommend.rules.goods import attributes_of_goods
from tests.service.application import TestClient, assert_problem, settings_for
from tests.service.servers import running, variant
from tests.service.test_service import refused, swap_folder


@pytest.fixture(scope="module")
def goods(exported_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared model, with attributes."""
    scratch = tmp_path_factory.mktemp("goods")
    attributed = Path(shutil.copytree(exported_model, scratch / "attributed"))
    attributes_of_goods(scratch).write(attributed / "attributes.npz")
    return variant(attributed, scratch / "model", "attributed")


@pytest.fixture(scope="module")
def client(goods: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(create_app(settings_for(goods, tmp_path_factory.mktemp("store")))) as client:
        yield client


@pytest.fixture(scope="module")
def in_python(goods: Path) -> Recommender:
    return Recommender.load(goods)


RULES: list[dict[str, Any]] = [
    {"k": 4, "where": {"category": ["tea", "coffee"], "price": {"<": 12}}},
    {"where": {"vegan": True}},
    {"where": {"stock": 1, "category": "tea"}},
    {"where": {"released": {">=": "2023-01-01"}, "tags": {"not": ["cold"]}}},
    {"where": {"category": "milk"}},
    {"where": {}},
    {"where": None, "diversity": 0.5},
    {"k": 7, "where": {"sizes": {">": 1}}, "deny": ["i1", "i2"], "diversity": 1},
    {"allow": ["i3", "i4", "i9", "i20"], "where": {"stock": [2, 3]}, "exclude_seen": False},
]


@pytest.mark.parametrize("history", [["i3", "i5"], []])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_http_gives_the_answer_of_python(
    client: TestClient, in_python: Recommender, rules: dict[str, Any], history: list[str]
) -> None:
    answer = client.post("/v1/recommend", json={"history": history, **rules})
    assert answer.status_code == 200, answer.text
    assert answer.json()["items"] == [asdict(item) for item in in_python.recommend(history, **rules).items]


def test_a_batch_has_rules_for_each_entry(client: TestClient) -> None:
    entries = [{"history": ["i3", "i5"], **rules} for rules in RULES]
    wrong = {"history": ["i3"], "where": {"colour": "red"}}
    *found, error = client.post("/v1/recommend/batch", json={"requests": [*entries, wrong]}).json()["results"]
    for entry, result in zip(entries, found, strict=True):
        alone = client.post("/v1/recommend", json=entry).json()["items"]
        assert [item["item_id"] for item in result["items"]] == [item["item_id"] for item in alone]
    assert error["error"]["errors"][0]["field"] == "where.colour"


@pytest.mark.parametrize(
    ("rules", "field", "message"),
    [
        ({"where": {"colour": "red"}}, "where.colour", "unknown attribute 'colour'. Known: category, price"),
        ({"where": {"price": "cheap"}}, "where.price", "price holds numbers"),
        ({"where": {"price": {"<<": 1}}}, "where.price", "expected one of <"),
        ({"where": ["price"]}, "where", "should be an object"),
        ({"where": {"price": {"<": {"<": 3}}}}, "where.price", "price holds numbers"),
        ({"where": {"stock": list(range(1001))}}, "where", "at most 1,000 values"),
        ({"diversity": 1.5}, "diversity", "less than or equal to 1"),
        ({"diversity": "0.5"}, "diversity", "number"),
        ({"allow": ["i1"], "candidates": ["i1"]}, "body", "candidates is its old name"),
        ({"deny": [], "exclude_items": ["i1"]}, "body", "exclude_items is its old name"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_named(
    client: TestClient, rules: dict[str, Any], field: str, message: str
) -> None:
    problem = assert_problem(
        client.post("/v1/recommend", json={"history": ["i1"], **rules}), 422, "invalid_request"
    )
    assert problem["errors"][0]["field"] == field
    assert message in problem["errors"][0]["message"]


def test_the_old_names_still_work_and_are_marked_as_old(client: TestClient) -> None:
    request = {"history": ["i3"], "k": 3}
    for new, old in (("allow", "candidates"), ("deny", "exclude_items")):
        asked = [{**request, name: ["i5", "i6", "i7"]} for name in (new, old)]
        one, other = (client.post("/v1/recommend", json=each).json()["items"] for each in asked)
        assert one == other
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    properties = schemas["ByHistory"]["properties"]
    assert {name for name, facts in properties.items() if facts.get("deprecated")} == {
        "candidates",
        "exclude_items",
    }


def collapsed(model: Path, target: Path) -> Path:
    """The same model, but that its bias alone decides."""
    scratch = Path(shutil.copytree(model, target.with_name(f"{target.name}-scratch")))
    np.save(scratch / "bias.npy", np.linspace(0, 1e4, NUM_ITEMS, dtype=np.float32))
    return variant(scratch, target, "collapsed")


def test_a_degenerate_model_is_served_by_force_alone(exported_model: Path, tmp_path: Path) -> None:
    model = collapsed(exported_model, tmp_path / "model")
    with pytest.raises(DataError, match="same order"):
        create_app(settings_for(model, tmp_path))
    code, said = refused(str(model))
    assert code == 3
    assert "Train it again, or use --force." in said
    with TestClient(create_app(settings_for(model, tmp_path, force=True))) as client:
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200


def test_a_degenerate_model_that_is_found_is_not_put_into_service(
    exported_model: Path, tmp_path: Path
) -> None:
    current = variant(exported_model, tmp_path / "model", "first")
    new = collapsed(exported_model, tmp_path / "new")
    with running(current, "--watch") as server, server.client() as client:
        swap_folder(new, current)
        server.wait_for_line("The new model cannot be loaded; the current one stays in service: .*same order")
        assert client.get("/v1/info").json()["model"]["version"] == "first"
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
