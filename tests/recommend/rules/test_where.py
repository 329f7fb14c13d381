"""Filters on attributes: what they find, what they refuse, and that they are kept."""

from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import DataError, UsageError
from bert4rec.recommend.rules.attributes import Attributes
from bert4rec.recommend.rules.rules import RuleError
from bert4rec.recommend.rules.where import Filters, read_where
from tests.recommend.rules.goods import NUM_GOODS, ROWS, attributes_of_goods, numbers_where

Row = dict[str, Any]


@pytest.fixture(scope="module", params=["table", "file"])
def goods(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Attributes:
    """As a run has them, and as an exported model has them."""
    folder = tmp_path_factory.mktemp("goods")
    attributes = attributes_of_goods(folder)
    if request.param == "table":
        return attributes
    attributes.write(folder / "attributes.npz")
    return Attributes.read(folder / "attributes.npz")


def found(attributes: Attributes, where: object) -> list[int]:
    subset = Filters(attributes, NUM_GOODS).subset(where)
    assert subset is not None
    assert subset.count == len(subset.numbers)
    numbers: list[int] = subset.numbers.tolist()
    return numbers


def test_every_column_but_those_that_mean_something_else_is_an_attribute(goods: Attributes) -> None:
    assert goods.kinds == {
        "category": "text",
        "price": "number",
        "stock": "number",
        "vegan": "bool",
        "tags": "text",
        "sizes": "number",
        "released": "time",
        "seen": "time",
    }


@pytest.mark.parametrize(
    ("where", "fulfils"),
    [
        ({"category": "tea"}, lambda row: row["category"] == "tea"),
        ({"category": ["tea", "Zoë's"]}, lambda row: row["category"] in ("tea", "Zoë's")),
        ({"category": []}, lambda row: False),
        ({"category": "milk"}, lambda row: False),
        ({"category": {"<": "d"}}, lambda row: row["category"] == "coffee" or row["category"] == "Zoë's"),
        ({"price": {"<": 5}}, lambda row: row["price"] is not None and row["price"] < 5),
        (
            {"price": {">=": 2, "<=": 3.25}},
            lambda row: row["price"] is not None and 2 <= row["price"] <= 3.25,
        ),
        ({"price": {">": 10**400}}, lambda row: False),
        ({"stock": 3.0}, lambda row: row["stock"] == 3),
        ({"stock": {"not": [0, 1]}}, lambda row: row["stock"] > 1),
        ({"vegan": True}, lambda row: row["vegan"] is True),
        ({"vegan": False, "stock": 2}, lambda row: row["vegan"] is False and row["stock"] == 2),
        ({"released": "2022-01-31"}, lambda row: row["released"].year == 2022),
        ({"released": {">": date(2023, 1, 31)}}, lambda row: row["released"].year == 2024),
        ({"seen": {">=": "2024-01-01T20:00:00Z"}}, lambda row: row["seen"].hour >= 20),
        ({"seen": {">=": "2024-01-01T21:00:00+01:00"}}, lambda row: row["seen"].hour >= 20),
        (
            {"seen": datetime(2024, 1, 1, 5, tzinfo=timezone(timedelta(hours=2)))},
            lambda row: row["seen"].hour == 3,
        ),
        ({"seen": np.datetime64("2024-01-01T07", "h")}, lambda row: row["seen"].hour == 7),
    ],
)
def test_a_filter_finds_what_fulfils_all_its_conditions(
    goods: Attributes, where: Row, fulfils: Callable[[Row], bool]
) -> None:
    assert found(goods, where) == numbers_where(fulfils)


def test_an_item_without_a_value_fulfils_not_and_nothing_else(goods: Attributes) -> None:
    assert found(goods, {"category": {"not": "tea"}}) == numbers_where(lambda row: row["category"] != "tea")
    assert found(goods, {"price": {"not": []}}) == list(range(1, NUM_GOODS + 1))
    for asked in ({">": -1e9}, {"<": 1e9}):
        assert found(goods, {"price": asked}) == numbers_where(lambda row: row["price"] is not None)


def test_of_a_list_one_value_is_enough_and_with_not_none_may_be_there(goods: Attributes) -> None:
    assert found(goods, {"tags": "old"}) == numbers_where(lambda row: "old" in (row["tags"] or []))
    assert found(goods, {"tags": {"not": ["old"]}}) == numbers_where(
        lambda row: "old" not in (row["tags"] or [])
    )
    assert found(goods, {"sizes": {">": 1}}) == numbers_where(
        lambda row: any(size > 1 for size in row["sizes"])
    )


values = st.sampled_from([*sorted({row["price"] for row in ROWS if row["price"] is not None}), -1.0, 99.0])


@given(low=values, high=values, listed=st.lists(values, max_size=4), category=st.none() | st.just("tea"))
def test_any_comparisons_are_as_if_each_item_were_looked_at(
    goods: Attributes, low: float, high: float, listed: list[float], category: str | None
) -> None:
    where: Row = {"price": {">": low, "<=": high, "not": listed}}
    if category:
        where["category"] = category
    assert found(goods, where) == numbers_where(
        lambda row: (
            row["price"] is not None
            and low < row["price"] <= high
            and row["price"] not in listed
            and (category is None or row["category"] == category)
        )
    )


@pytest.mark.parametrize(
    ("where", "field", "message"),
    [
        ({"colour": "red"}, "where.colour", "unknown attribute 'colour'. Known: category, price, stock"),
        ({"price": "cheap"}, "where.price", "price holds numbers; found 'cheap'"),
        ({"price": {"<": True}}, "where.price", "price holds numbers; found True"),
        ({"price": {"<": [1, 2]}}, "where.price", "price holds numbers"),
        ({"price": float("nan")}, "where.price", "price holds numbers"),
        ({"price": {"<<": 2}}, "where.price", "expected one of <, <=, >, >= and not; found '<<'"),
        ({"price": {}}, "where.price", "expected a value"),
        ({"category": 3}, "where.category", "category holds texts; found 3"),
        ({"category": ["tea", None]}, "where.category", "category holds texts; found None"),
        ({"vegan": {"<": True}}, "where.vegan", "no order"),
        ({"released": "31.1.2024"}, "where.released", "released holds dates or times, as in"),
        (["category"], "where", "expected conditions by attribute"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(
    goods: Attributes, where: object, field: str, message: str
) -> None:
    with pytest.raises(RuleError) as caught:
        Filters(goods, NUM_GOODS).subset(where)
    assert caught.value.field == field
    assert message in str(caught.value)


def test_without_attributes_the_error_says_where_they_come_from(tmp_path: Path) -> None:
    none = Attributes.read(tmp_path / "attributes.npz")
    with pytest.raises(
        UsageError, match=r"the model has none. They come from `items` of `prepare\(\)` and `refresh\(\)`"
    ):
        Filters(none, NUM_GOODS).subset({"price": 1})
    none.write(tmp_path / "attributes.npz")
    assert not (tmp_path / "attributes.npz").exists()


def test_equal_filters_are_looked_up_once(goods: Attributes) -> None:
    filters = Filters(goods, NUM_GOODS)
    asked = filters.subset({"stock": 1, "price": {"<": 5}})
    assert filters.subset({"price": {"<": 5.0}, "stock": [1]}) is asked
    assert filters.subset({"price": {"<": 6}, "stock": 1}) is not asked
    assert filters.subset({}) is None is filters.subset(None)


def test_a_thousand_filters_are_kept_and_none_that_is_long(goods: Attributes) -> None:
    filters = Filters(goods, NUM_GOODS)

    def is_kept(where: dict[str, object]) -> bool:
        return filters.subset(where) is filters.subset(where)

    assert is_kept({"stock": list(range(31)), "price": {"<": 5}})
    assert not is_kept({"stock": list(range(32)), "price": {"<": 5}})
    assert is_kept({"category": "t" * 2000})
    assert not is_kept({"category": ["t" * 2000, "c" * 2000]})
    first = filters.subset({"price": {"<": -1}})
    for price in range(1023):
        filters.subset({"price": {"<": price}})
    assert filters.subset({"price": {"<": -1}}) is first
    for price in range(1024):
        filters.subset({"price": {"<": price}})
    assert filters.subset({"price": {"<": -1}}) is not first


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    attributes_of_goods(tmp_path).write(tmp_path / "attributes.npz")
    whole = (tmp_path / "attributes.npz").read_bytes()
    (tmp_path / "attributes.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="Export the model again"):
        Attributes.read(tmp_path / "attributes.npz")


@pytest.mark.parametrize(
    ("written", "where"),
    [
        (["category=tea, coffee"], {"category": ["tea", "coffee"]}),
        (['category="Zoë\'s, and more"'], {"category": ["Zoë's, and more"]}),
        (["category!=tea"], {"category": {"not": ["tea"]}}),
        (["price<20", "price >= 2.5", "stock=3"], {"price": {"<": 20, ">=": 2.5}, "stock": [3]}),
        (["vegan=True"], {"vegan": [True]}),
        (["seen>2024-01-01T20:00:00Z"], {"seen": {">": "2024-01-01T20:00:00Z"}}),
        ([], {}),
    ],
)
def test_conditions_can_be_typed(goods: Attributes, written: list[str], where: Row) -> None:
    assert read_where(written, goods) == where


@pytest.mark.parametrize("written", [["price"], ["<20"], ["stock=1", "stock=2"]])
def test_what_is_no_condition_is_refused(goods: Attributes, written: list[str]) -> None:
    with pytest.raises(UsageError, match="`where`: "):
        read_where(written, goods)


def test_a_combination_of_equality_and_comparison_can_be_typed(goods: Attributes) -> None:
    where = read_where(["price=1,5,9", "price<9"], goods)
    assert found(goods, where) == numbers_where(lambda row: row["price"] in (1, 5))
