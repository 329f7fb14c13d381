"""Usual names are understood, unusual ones asked about."""

import pytest

from bert4rec.data.columns import ColumnChoice, ColumnRequest, choose_columns
from bert4rec.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("names", "choice"),
    [
        (["userId", "movieId", "rating", "timestamp"], ColumnChoice("userId", "movieId", "timestamp")),
        (["reviewerID", "asin", "unixReviewTime"], ColumnChoice("reviewerID", "asin", "unixReviewTime")),
        (
            ["user_id:token", "item_id:token", "timestamp:float"],
            ColumnChoice("user_id:token", "item_id:token", "timestamp:float"),
        ),
        (
            ["event_time", "User ID", "Product ID", "name"],
            ColumnChoice("User ID", "Product ID", "event_time", "name"),
        ),
        (["column 1", "column 2"], ColumnChoice("column 1", "column 2")),
    ],
)
def test_usual_names_are_guessed(names: list[str], choice: ColumnChoice) -> None:
    assert choose_columns(names, ColumnRequest(), where="log") == choice


def test_the_more_usual_name_wins() -> None:
    choice = choose_columns(["author", "user_id", "book", "item_id"], ColumnRequest(), where="log")
    assert (choice.user, choice.item) == ("user_id", "item_id")


def test_named_columns_win_by_name_or_place() -> None:
    names = ["user", "item", "who", "what"]
    choice = choose_columns(names, ColumnRequest(user="who", item="4"), where="log")
    assert (choice.user, choice.item) == ("who", "what")


def test_a_missing_column_names_those_there_are_and_the_nearest() -> None:
    with pytest.raises(
        DataError, match=r"no column that looks like the item.*Columns found: user, x\..*--item-col"
    ):
        choose_columns(["user", "x"], ColumnRequest(), where="log")
    with pytest.raises(DataError, match="Did you mean 'user_name'"):
        choose_columns(["user_name", "item"], ColumnRequest(user="usr_name"), where="log")


def test_one_column_cannot_be_both() -> None:
    with pytest.raises(UsageError, match="cannot both"):
        choose_columns(["a", "b"], ColumnRequest(user="a", item="a"), where="log")


def test_a_column_of_lists_is_that_of_the_items_whatever_it_is_called() -> None:
    choice = choose_columns(["user", "history", "age"], ColumnRequest(), where="log", lists=["history"])
    assert choice == ColumnChoice("user", "history", lists=frozenset({"item"}))
    assert choice.describe() == "user = user, item = the lists of history, time = none, order of the lists"


def test_names_of_lists_may_be_plurals() -> None:
    names = ["user_id", "tags", "timestamps", "item_ids"]
    choice = choose_columns(names, ColumnRequest(), where="log", lists=names[1:])
    assert choice == ColumnChoice("user_id", "item_ids", "timestamps", lists=frozenset({"item", "time"}))


def test_lists_beside_a_column_of_items_are_something_else() -> None:
    names = ["user", "item", "genres"]
    assert choose_columns(names, ColumnRequest(), where="log", lists=["genres"]) == ColumnChoice(
        "user", "item"
    )


def test_with_lists_a_single_title_is_not_that_of_the_items() -> None:
    names = ["user", "name", "history"]
    assert choose_columns(names, ColumnRequest(), where="log", lists=["history"]).title is None
    with pytest.raises(DataError, match="'name' is no list"):
        choose_columns(names, ColumnRequest(title="name"), where="log", lists=["history"])


def test_of_several_lists_one_must_be_named() -> None:
    names = ["user", "liked", "seen", "times"]
    with pytest.raises(DataError, match=r"found liked, seen\. Name it with --item-col"):
        choose_columns(names, ColumnRequest(), where="log", lists=names[1:])
    choice = choose_columns(names, ColumnRequest(item="3", time="none"), where="log", lists=names[1:])
    assert choice == ColumnChoice("user", "seen", lists=frozenset({"item"}))
