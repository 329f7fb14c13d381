"""Many histories in any form give the answers that each would get alone, as a sequence and as a table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.errors import Bert4RecError, UsageError
from bert4rec.recommend.recommender import Recommender
from tests.conftest import MakeDataset
from tests.recommend.tiny import highest_first

HISTORIES = {7: [10, 20], 3: [50], 5: [99, 30, 98], 8: [99]}
ACTIONS = pl.DataFrame(
    {
        "user_id": [user for user, items in HISTORIES.items() for _ in items],
        "item_id": [item for items in HISTORIES.values() for item in items],
        "timestamp": [1_700_000_000 + place for items in HISTORIES.values() for place in range(len(items))],
    }
)
LISTS = pl.DataFrame({"user_id": list(HISTORIES), "items": list(HISTORIES.values())})


@pytest.fixture
def shop() -> Recommender:
    titles = [f"Title {number}" for number in range(10, 70, 10)]
    return highest_first([str(number) for number in range(10, 70, 10)], titles, whole_numbers=True)


SOURCES: dict[str, Callable[[], Any]] = {
    "polars actions": lambda: ACTIONS,
    "lazy": ACTIONS.lazy,
    "pandas actions": lambda: pd.DataFrame(ACTIONS.to_dict(as_series=False)),
    "arrow actions": lambda: pa.table(ACTIONS.to_dict(as_series=False)),
    "polars lists": lambda: LISTS,
    "pandas lists": lambda: pd.DataFrame(LISTS.to_dict(as_series=False)),
    "dict": lambda: HISTORIES,
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_everybody_gets_what_they_would_get_alone(make: Callable[[], Any], shop: Recommender) -> None:
    found = shop.recommend_many(make(), k=2)
    assert found.users.to_list() == list(HISTORIES)
    assert list(found) == [shop.recommend(history, k=2) for history in HISTORIES.values()]
    table = found.to_polars()
    assert table.columns == ["user", "rank", "item", "title", "score", "fallback"]
    assert table["item"].dtype.is_integer()
    assert table.rows() == [
        (user, rank, item.item_id, item.title, item.score, answer.fallback)
        for user, answer in zip(HISTORIES, found, strict=True)
        for rank, item in enumerate(answer.items, start=1)
    ]


def test_the_table_goes_to_any_library(shop: Recommender) -> None:
    found = shop.recommend_many(ACTIONS, k=2)
    frame = found.to_pandas()
    assert frame["item"].tolist() == found.to_polars()["item"].to_list()
    assert frame["item"].dtype == "int64"
    assert pa.table(found).num_rows == len(frame)
    assert pl.DataFrame(found).equals(found.to_polars())


def test_columns_can_be_named_and_belong_to_frames(shop: Recommender) -> None:
    renamed = ACTIONS.rename({"user_id": "wer", "item_id": "was", "timestamp": "wann"})
    named = shop.recommend_many(renamed, k=2, user="wer", item="was", time="wann")
    assert list(named) == list(shop.recommend_many(ACTIONS, k=2))
    with pytest.raises(Bert4RecError, match="user") as caught:
        shop.recommend_many(renamed)
    assert "the frame" in str(caught.value)
    assert ".parquet" not in str(caught.value), "no file was passed"
    with pytest.raises(UsageError, match="columns of a frame"):
        shop.recommend_many([[10]], user="wer")


def test_time_not_the_order_of_the_rows_decides(shop: Recommender) -> None:
    shuffled = ACTIONS.sample(fraction=1, shuffle=True, seed=3)
    found = shop.recommend_many(shuffled, k=2)
    by_user = dict(zip(found.users.to_list(), found, strict=True))
    assert by_user == {user: shop.recommend(history, k=2) for user, history in HISTORIES.items()}


def test_a_dataset_gives_everybody_in_it(make_dataset: MakeDataset) -> None:
    dataset: Dataset = make_dataset([[0, 1, 2], [2, 2, 4], [4, 3, 0, 1]])
    shop = highest_first(["item-4", "item-2", "item-3", "another"])
    found = shop.recommend_many(dataset, k=2)
    assert found.users.to_list() == ["user-0", "user-1", "user-2"]
    assert found[0] == shop.recommend(["item-0", "item-1", "item-2"], k=2)
    assert found[0].unknown_items == ["item-0", "item-1"]


def test_a_file_gets_what_a_frame_gets(shop: Recommender, tmp_path: Path) -> None:
    ACTIONS.write_parquet(tmp_path / "actions.parquet")
    heard: list[int] = []
    tally = shop.recommend_file(
        tmp_path / "actions.parquet",
        tmp_path / "out.parquet",
        k=2,
        callback=lambda done, _total: heard.append(done),
    )
    assert (tally.users, tally.unknown, tally.fallbacks, heard[-1]) == (4, 3, 1, 4)
    expected = shop.recommend_many(ACTIONS, k=2).to_polars().drop("title")
    assert pl.read_parquet(tmp_path / "out.parquet").equals(expected)
    with pytest.raises(UsageError, match="`overwrite=True`"):
        shop.recommend_file(tmp_path / "actions.parquet", tmp_path / "out.parquet")


@pytest.mark.parametrize("options", [{"allow": [60, 20, 7]}, {"deny": [60]}, {"allow": [], "deny": [8]}])
def test_allow_and_deny_are_the_same_for_a_file(
    options: dict[str, Any], shop: Recommender, tmp_path: Path
) -> None:
    LISTS.write_parquet(tmp_path / "lists.parquet")
    tally = shop.recommend_file(tmp_path / "lists.parquet", tmp_path / "out.parquet", k=2, **options)
    found = shop.recommend_many(LISTS, k=2, **options)
    assert pl.read_parquet(tmp_path / "out.parquet").equals(found.to_polars().drop("title"))
    assert tally.unknown_options == tuple(found.unknown_options)
    assert found.unknown_options == [each for ids in options.values() for each in ids if each < 10]


def test_a_text_is_not_a_list_of_allowed_items(shop: Recommender, tmp_path: Path) -> None:
    LISTS.write_parquet(tmp_path / "lists.parquet")
    with pytest.raises(UsageError, match="`deny`: expected a list of item ids; found the text '60'"):
        shop.recommend_file(tmp_path / "lists.parquet", tmp_path / "out.parquet", deny="60")


def test_users_without_a_known_item_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    recommender = highest_first(["a", "b", "c"])
    recommender.recommend_many([["a"], ["nowhere"], []], k=1)
    assert [record.getMessage() for record in caplog.records] == [
        "No known item in the history of 2 of 3 users: they get the most popular items."
    ]


def test_one_recommendation_is_a_table_too() -> None:
    found = highest_first(["a", "b", "c"], ["A", "B", "C"])
    answer = found.recommend(["a"], k=2)
    assert answer.to_polars().rows() == [(1, "c", "C", 3.0), (2, "b", "B", 2.0)]
    assert repr(answer).startswith("Recommendation, shape: (2, 4)")


def test_columns_are_named_by_place_too() -> None:
    frame = pl.DataFrame({"who": ["u", "u"], "what": ["a", "b"]})
    found = highest_first(["a", "b", "c"]).recommend_many(frame, k=1, user=1, item=2)
    assert found.to_polars()["item"].to_list() == ["c"]
