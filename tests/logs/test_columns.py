"""Usual names are understood, unusual ones asked about."""

import pytest

from bert4rec.errors import DataError, UsageError
from bert4rec.logs.columns import ColumnChoice, ColumnRequest, choose_columns


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
        DataError, match=r"^No column of log looks like the item\. Columns: user, x\. Name it with `item`\.$"
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
    with pytest.raises(DataError, match=r"^`title`: column 'name' of log does not hold lists"):
        choose_columns(names, ColumnRequest(title="name"), where="log", lists=["history"])


def test_of_several_lists_one_must_be_named() -> None:
    names = ["user", "liked", "seen", "times"]
    with pytest.raises(DataError, match=r"found liked, seen\. Name it with `item`"):
        choose_columns(names, ColumnRequest(), where="log", lists=names[1:])
    choice = choose_columns(names, ColumnRequest(item="3", time="none"), where="log", lists=names[1:])
    assert choice == ColumnChoice("user", "seen", lists=frozenset({"item"}))


@pytest.mark.parametrize(
    "name",
    [
        *("order_date", "Order Date", "InvoiceDate", "INVOICEDATE", "purchase_date", "invoicedate", "t_dat"),
        *("played_at", "playedAt", "viewed_at", "event_ts", "ts_utc", "event_ts_utc", "EventTimestampMs"),
        *("click_time", "clicktime", "visit_datetime", "order_date:float"),
    ],
)
def test_a_column_that_ends_like_a_time_is_the_time_where_no_usual_name_is_there(name: str) -> None:
    names = ["user", "item", name, "price"]
    assert choose_columns(names, ColumnRequest(), where="log") == ColumnChoice("user", "item", name)
    assert choose_columns([*names, "timestamp"], ColumnRequest(), where="log").time == "timestamp"
    assert choose_columns(names, ColumnRequest(time="none"), where="log").time is None


@pytest.mark.parametrize(
    "name",
    [
        *("release_date", "birthdate", "date_of_birth", "published_at", "launch_date", "expiry_date", "updated_at"),
        *("last_update", "modified_at", "join_date", "signup_date", "registered_at", "candidate", "watch_time"),
        *("lifetime", "playtime", "category", "cat", "hats", "parts"),
    ],
)  # fmt: skip
def test_what_is_no_time_of_the_action_is_not_taken_for_it(name: str) -> None:
    assert choose_columns(["user", "item", name], ColumnRequest(), where="log").time is None


def test_of_several_columns_that_end_like_a_time_one_must_be_named() -> None:
    names = ["user", "item", "order_date", "ship_date", "release_date"]
    with pytest.raises(
        DataError,
        match=r"may be the time: order_date, ship_date\. .*`time=\"order_date\"`, .*`time=\"none\"`",
    ):
        choose_columns(names, ColumnRequest(), where="log")
    assert choose_columns(names, ColumnRequest(time="ship_date"), where="log").time == "ship_date"
    assert choose_columns(names, ColumnRequest(item="ship_date"), where="log").time == "order_date"


def test_the_time_cannot_be_the_user_or_the_item() -> None:
    for time, role in (("u", "user"), ("i", "item"), ("2", "item")):
        with pytest.raises(UsageError, match=f"`{role}` and `time` cannot both be column"):
            choose_columns(["u", "i"], ColumnRequest(time=time), where="log")
    assert choose_columns(["u", "date"], ColumnRequest(item="date"), where="log") == ColumnChoice("u", "date")


def test_a_column_of_dates_is_the_time_whatever_its_name() -> None:
    names = ["user", "item", "wann?", "birthday"]
    choice = choose_columns(names, ColumnRequest(), where="log", dates=["wann?", "birthday"])
    assert choice.time == "wann?", "a birthday is not the time of an action"
    with pytest.raises(DataError, match=r"several columns that may be the time: quando, wann\?"):
        choose_columns(
            ["user", "item", "quando", "wann?"], ColumnRequest(), where="log", dates=["quando", "wann?"]
        )
    assert choose_columns(names, ColumnRequest(time="none"), where="log", dates=["wann?"]).time is None
