"""Times come in many spellings and leave as microseconds."""

from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.data.times import TimeReader, format_moment, parse_moment
from bert4rec.errors import DataError, UsageError

NEW_YEAR = 1_577_836_800


def read(values: list[object]) -> list[int | None]:
    return TimeReader("time").read(pl.Series(values, strict=False), where="log.csv").to_list()


@pytest.mark.parametrize(
    "value",
    [
        str(NEW_YEAR),
        f"{NEW_YEAR}000",
        f"{NEW_YEAR}000000",
        f"{NEW_YEAR}000000000",
        NEW_YEAR,
        float(NEW_YEAR),
        "2020-01-01",
        "20200101",
        20200101,
        " 2020-01-01 ",
        "2020/01/01",
        "2020-01-01 00:00:00",
        "2020-01-01T00:00:00Z",
        "2020-01-01T01:00:00+01:00",
        "2020-01-01T00:00:00.000000",
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime(2020, 1, 1, tzinfo=UTC).date(),
    ],
)
def test_every_spelling_of_new_year_2020_is_the_same_moment(value: object) -> None:
    assert read([value, None]) == [NEW_YEAR * 1_000_000, None]


def test_spellings_of_dates_may_mix_in_one_column() -> None:
    assert (
        read(["2020-01-01", "2020-01-01T00:00:00Z", "2020/01/01", "2020-01-01 00:00"])
        == [NEW_YEAR * 1_000_000] * 4
    )


def test_fractions_of_seconds_are_kept() -> None:
    assert read(["978300019.5"]) == [978_300_019_500_000]
    assert read(["2020-01-01T00:00:00.123456"]) == [NEW_YEAR * 1_000_000 + 123_456]


@given(st.lists(st.integers(200_000_000, 4_000_000_000), min_size=1))
def test_any_epoch_seconds_are_read_exactly(seconds: list[int]) -> None:
    assert read([str(second) for second in seconds]) == [second * 1_000_000 for second in seconds]


def test_the_unit_found_in_the_first_batch_holds_for_the_next() -> None:
    reader = TimeReader("time")
    reader.read(pl.Series(["1577836800000"]), where="log.csv")
    assert reader.read(pl.Series(["5"]), where="log.csv").to_list() == [5_000]
    assert reader.describe() == "milliseconds since 1970"


@pytest.mark.parametrize("value", ["yesterday", "01.02.2020", "2020-13-01", "nan", "Posted July 3"])
def test_what_is_no_time_is_an_error_with_row_and_value(value: str) -> None:
    with pytest.raises(
        DataError,
        match=rf"log\.csv, row 1 \(not counting a header\): '{value}' in column 'time' is not a time",
    ):
        read([value])


def test_moments_on_the_command_line() -> None:
    assert parse_moment("2020-01-01") == parse_moment(str(NEW_YEAR)) == NEW_YEAR * 1_000_000
    assert parse_moment("2020") == parse_moment("20200101") == NEW_YEAR * 1_000_000
    assert format_moment(parse_moment("2020-01-01T10:00:01")) == "2020-01-01 10:00:01"
    assert format_moment(parse_moment("2020-01-01")) == "2020-01-01"
    for text in ("tomorrow", "inf", "7"):
        with pytest.raises(UsageError, match="not a date"):
            parse_moment(text)
