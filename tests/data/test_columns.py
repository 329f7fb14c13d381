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
