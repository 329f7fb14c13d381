"""Any reasonable value is an id, a history or a list of histories; what is none is refused by its place."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.errors import UsageError
from bert4rec.recommend.catalogue import Id
from bert4rec.recommend.recommender import Recommendation, Recommender
from tests.recommend.tiny import highest_first


def ids_of(found: Recommendation) -> list[Id]:
    return [item.item_id for item in found.items]


@pytest.fixture
def shop() -> Recommender:
    return highest_first(list("abcdef"))


MAKERS: dict[str, Callable[[list[int]], Any]] = {
    "tuple": tuple,
    "range": lambda ids: range(ids[0], ids[1] + 1, ids[1] - ids[0]),
    "generator": lambda ids: (each for each in ids),
    "array": np.array,
    "array of floats": lambda ids: np.array(ids, np.float32),
    "array of text": lambda ids: np.array(ids).astype(str),
    "NumPy's numbers": lambda ids: [np.int16(each) for each in ids],
    "polars": pl.Series,
    "pandas, with labels": lambda ids: pd.Series(ids, index=[7, 8]),
    "pandas, with missing ones dropped": lambda ids: pd.Series([None, *ids]).dropna(),
    "pandas' own integers": lambda ids: pd.Series(ids, dtype="Int64"),
    "pandas' categories": lambda ids: pd.Series(ids).astype(str).astype("category"),
    "pandas' index": pd.Index,
    "floats": lambda ids: [float(each) for each in ids],
    "text with blanks": lambda ids: [f" {each}\t" for each in ids],
    "text of floats": lambda ids: [f"{each}.0" for each in ids],
    "deque": deque,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_whatever_can_be_gone_through_in_order_is_a_history(make: Callable[[list[int]], Any]) -> None:
    shop = highest_first(["10", "20", "30", "40"], whole_numbers=True)
    plain = shop.recommend(["10", "20"], allow=["30", "40"], deny=["20", "40"])
    assert ids_of(plain) == [30]
    assert shop.recommend(make([10, 20]), allow=make([30, 40]), deny=make([20, 40])) == plain
    histories = [[10, 20], [30, 40]]
    answers = list(shop.recommend_many([["10", "20"], ["30", "40"]]))
    assert list(shop.recommend_many([make(each) for each in histories])) == answers
    assert list(shop.recommend_many(make(each) for each in histories)) == answers
    assert list(shop.recommend_many({"ann": make(histories[0]), "bob": make(histories[1])})) == answers
    assert shop.rank(make([10, 20]), make([30, 40])) == shop.rank(["10", "20"], ["30", "40"])
    one = next(iter(getattr(made := make([30, 40]), "to_list", lambda: made)()))
    assert ids_of(shop.similar(one)) == ids_of(shop.similar("30"))
    explained = shop.explain(make([10, 20]), one)
    assert (explained.item.item_id, len(explained.contributions)) == (30, 2)


@pytest.mark.parametrize("make", [np.array, pl.Series])
def test_a_table_of_numbers_is_many_histories(make: Callable[[list[list[int]]], Any]) -> None:
    shop = highest_first(["10", "20", "30"])
    found = shop.recommend_many(make([[10, 20], [30, 10]]))
    assert list(found) == list(shop.recommend_many([["10", "20"], ["30", "10"]]))
    with pytest.raises(UsageError, match=r"^`history\[0\]`: expected an item id.* use `recommend_many\(\)`"):
        shop.recommend(make([[10, 20], [30, 10]]))


def test_ids_may_be_uuids() -> None:
    ids = [UUID(int=number) for number in range(1, 4)]
    shop = highest_first([str(each) for each in ids])
    assert ids_of(shop.recommend(ids[:1])) == [str(ids[2]), str(ids[1])]
    assert ids_of(shop.similar(ids[0], k=1)) == ids_of(shop.similar(str(ids[0]), k=1))


def test_a_text_of_a_float_is_an_id_of_its_own_where_the_ids_are_text() -> None:
    shop = highest_first(["6", "6.0", "b"])
    assert ids_of(shop.recommend(["6.0"])) == ["b", "6"]
    assert shop.recommend([" 7.0 "]).unknown_items == ["7.0"]


@pytest.mark.parametrize(
    ("history", "complaint"),
    [
        (pl.DataFrame({"item_id": ["a"]}), r'found a DataFrame\. Pass one of its columns.*\["item_id"\]'),
        (pl.LazyFrame({"item_id": ["a"]}), "found a LazyFrame. Pass one of its columns"),
        ({"item_id": "a"}, "^`history`: expected a list of item ids; found a dict. Put its ids into a list"),
        ({"a", "b"}, "found a set. A set has no order"),
        (pd.DataFrame({"item": ["a"]}), "found a DataFrame. Pass one of its columns"),
        (pd.Series(["a", None]), r"^`history\[1\]`: expected an item id"),
        (b"abc", "found bytes. Decode them"),
        (7, "^`history`: expected a list of item ids; found 7."),
        (np.array(7), "^`history`: expected a list of item ids"),
        (["a", None], r"^`history\[1\]`: expected an item id; found None. Leave out missing values"),
        (np.array([1.0, np.nan]), r"^`history\[1\]`: expected an item id; found nan."),
        (
            [["a"]],
            r"^`history\[0\]`: expected an item id; found \['a'\]. For many histories, use `recommend_many\(\)`",
        ),
        (["a", ["b"]], r"^`history\[1\]`: expected an item id; found \['b'\]."),
        (["a", True], r"^`history\[1\]`: expected an item id; found True."),
        (["a", b"b"], r"^`history\[1\]`: expected an item id; found b'b'."),
    ],
)
def test_what_is_no_history_is_refused_by_where_it_stands_and_what_to_pass_instead(
    history: Any, complaint: str, shop: Recommender
) -> None:
    with pytest.raises(UsageError, match=complaint):
        shop.recommend(history)


@pytest.mark.parametrize(
    ("histories", "complaint"),
    [
        ([["a"], ["b", float("nan")]], r"^`histories\[1\]\[1\]`: expected an item id; found nan."),
        ([["a"], "b"], r"^`histories\[1\]`: expected a list of item ids; found the text 'b'"),
        ([["a"], 7], r"^`histories\[1\]`: expected a list of item ids; found 7."),
        (["a", "b"], r"^`histories\[0\]`: expected a list of item ids; found the text 'a'"),
        (
            {"ann": ["a"], "bob": "b"},
            r"^`histories\['bob'\]`: expected a list of item ids; found the text 'b'",
        ),
        ("log.csv", r"^`histories`: expected lists.* found 'log.csv'. For a file, use `recommend_file\(\)`"),
        (Path("log.csv"), r"found 'log.csv'. For a file, use `recommend_file\(\)`"),
        ({("ann", 1): ["a"]}, r"^`histories`: expected users that are .*; found \('ann', 1\)"),
        ({None: ["a"]}, "^`histories`: expected users that are .*; found None"),
        ({True: ["a"]}, "found True"),
        ({1.5: ["a"]}, "found 1.5"),
        ({np.datetime64("2024-01-01"): ["a"]}, "found datetime.date"),
    ],
)
def test_what_is_not_a_list_of_histories_is_refused_by_where_it_stands(
    histories: Any, complaint: str, shop: Recommender
) -> None:
    with pytest.raises(UsageError, match=complaint):
        shop.recommend_many(histories)


NOBODY: dict[str, tuple[Any, Any]] = {
    "a list": ([], pl.Int64),
    "a dict": ({}, pl.Int64),
    "lists": (pl.DataFrame(schema={"user": pl.String, "items": pl.List(pl.String)}), pl.String),
    "actions": (pl.DataFrame(schema={"user": pl.Int32, "item": pl.String}), None),
}


@pytest.mark.parametrize(("histories", "kind"), NOBODY.values(), ids=NOBODY)
def test_no_histories_get_no_answers_but_the_same_columns(
    histories: Any, kind: Any, shop: Recommender
) -> None:
    found, table = shop.recommend_many(histories), shop.recommend_many([["a"]]).to_polars()
    assert (len(found), list(found), found.to_polars().height) == (0, [], 0)
    expected = {**table.schema, "user": kind or found.users.dtype}
    assert found.to_polars().schema == expected
    assert found.users.dtype != pl.Null


def test_keys_are_users_and_uuids_become_text(shop: Recommender) -> None:
    uuid = UUID(int=7)
    keys: list[tuple[list[Any], list[object]]] = [
        ([uuid], [str(uuid)]),
        ([np.int64(7), 8.0], [7, 8]),
        ([7, " b"], ["7", " b"]),
    ]
    for given, users in keys:
        assert shop.recommend_many({key: ["a"] for key in given}).users.to_list() == users


def test_the_index_of_a_pandas_series_holds_the_users(shop: Recommender) -> None:
    actions = pd.DataFrame({"user": ["eve", "ann", "eve"], "item": ["a", "b", "c"]})
    grouped = actions.groupby("user")["item"].apply(list)
    for series in (grouped, grouped.rename_axis(None)):
        found = shop.recommend_many(series)
        assert found.users.to_list() == ["ann", "eve"]
        assert list(found) == [shop.recommend(["b"]), shop.recommend(["a", "c"])]
    numbered = shop.recommend_many(pd.Series([["a"], ["b"]], index=[30, 20]))
    assert numbered.users.to_list() == [30, 20]
    assert numbered.users.dtype == pl.Int64


def test_a_user_is_called_a_user(shop: Recommender) -> None:
    dataset = Dataset.from_sequences(np.array([1, 2], np.int32), np.array([0, 2]))
    with pytest.raises(UsageError, match=r"^`user`: expected a user id; found None"):
        shop.recommend_user(None, dataset=dataset)  # type: ignore[arg-type]


def test_lists_whose_order_means_nothing_may_be_sets(shop: Recommender) -> None:
    assert ids_of(shop.recommend(["a"], allow={"b", "c"}, deny=frozenset({"c"}))) == ["b"]
    assert ids_of(shop.rank(["a"], {"b", "c"})) == ["c", "b"]
    with pytest.raises(UsageError, match=r"^`deny\[0\]`: expected an item id; found None"):
        shop.recommend(["a"], deny=[None])  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"^`item`: expected an item id; found None"):
        shop.similar(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [2.0, "2", True, None, 0, -1])
def test_a_k_that_is_no_whole_number_is_refused(k: Any, shop: Recommender) -> None:
    for ask in (shop.recommend, lambda asked, k: shop.similar(asked[0], k)):
        with pytest.raises(UsageError, match="`k`: expected a whole number of at least 1"):
            ask(["a"], k)
    assert len(shop.recommend(["a"], np.int64(2)).items) == 2  # type: ignore[arg-type]
