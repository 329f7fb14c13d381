"""Times come in many spellings and leave as microseconds."""

from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import DataError, UsageError
from bert4rec.logs.times import TimeReader, format_moment, parse_moment

NEW_YEAR = 1_577_836_800


def read_batch(reader: TimeReader, *values: object) -> list[int | None]:
    """Times in microseconds; None for what is missing, and for what is not a time."""
    rows = range(1, len(values) + 1)
    series = pl.Series(values, strict=False)
    micros, is_bad = reader.read(series, where="log.csv", rows=rows, place=lambda row: f"log.csv:{row}")
    return micros.set(is_bad, None).to_list()


def read(values: list[object], form: str | None = None) -> list[int | None]:
    """Times in microseconds; what is not a time is an error."""
    reader = TimeReader("time", form)
    found = read_batch(reader, *values)
    if reader.bad:
        raise reader.refusal()
    return found


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
        "2020-01-01 00:00:00 UTC",
        "2020-01-01 00:00:00.000 GMT",
        "2020-01-01T00:00:00.000000",
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime(2020, 1, 1, tzinfo=UTC).date(),
    ],
)
def test_every_spelling_of_new_year_2020_is_the_same_moment(value: object) -> None:
    assert read([value, None]) == [NEW_YEAR * 1_000_000, None]


def test_spellings_of_dates_may_mix_in_one_column() -> None:
    assert (
        read(
            [
                "2020-01-01",
                "2020-01-01T00:00:00Z",
                "2020/01/01",
                "2020-01-01 00:00",
                "2020-01-01 00:00:00 UTC",
            ]
        )
        == [NEW_YEAR * 1_000_000] * 5
    )


def test_fractions_of_seconds_are_kept() -> None:
    assert read(["978300019.5"]) == [978_300_019_500_000]
    assert read(["2020-01-01T00:00:00.123456"]) == [NEW_YEAR * 1_000_000 + 123_456]


@given(st.lists(st.integers(200_000_000, 4_000_000_000), min_size=1))
def test_any_epoch_seconds_are_read_exactly(seconds: list[int]) -> None:
    assert read([str(second) for second in seconds]) == [second * 1_000_000 for second in seconds]


def test_the_unit_found_in_the_first_batch_holds_for_the_next() -> None:
    reader = TimeReader("time")
    read_batch(reader, "1577836800000")
    assert read_batch(reader, "5") == [5_000]
    assert reader.describe() == "milliseconds since 1970"


@pytest.mark.parametrize("value", ["yesterday", "01.02.2020", "2020-13-01", "nan", "Posted July 3"])
def test_what_is_no_time_is_an_error_with_place_and_value(value: str) -> None:
    with pytest.raises(
        DataError,
        match=rf"1 of 1 times in column 'time' cannot be read: '{value}' \(log\.csv:1\)\. Expected ",
    ):
        read([value])


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("01/01/2020", "%d/%m/%Y"),
        ("1.1.20", "%d.%m.%y"),
        (" Jan 01, 2020 ", "%b %d, %Y"),
        ("12/31/2019 11:30 PM -0030", "%m/%d/%Y %I:%M %p %z"),
        ("01/01/2020 02:00:00+02:00", "%d/%m/%Y %H:%M:%S%z"),
        ("01/01/2020 00:00", "%d/%m/%Y %H:%M"),
        ("01/01/2020 00", "%d/%m/%Y %H"),
        ("12 AM 01/01/2020", "%I %p %d/%m/%Y"),
        ("01/01/2020 0:0", "%d/%m/%Y %-H:%-M"),
        ("01/01/2020 00:00 UTC", "%d/%m/%Y %H:%M UTC"),
        (20200101, "%Y%m%d"),
    ],
)
def test_dates_in_a_named_format_are_utc_unless_they_say_otherwise(value: object, form: str) -> None:
    assert read([value, None], form) == [NEW_YEAR * 1_000_000, None]


def test_fractions_of_seconds_in_a_named_format_are_kept() -> None:
    assert read(["01/01/2020 00:00:00.25"], "%d/%m/%Y %H:%M:%S.%f") == [NEW_YEAR * 1_000_000 + 250_000]


@pytest.mark.filterwarnings("error")
def test_fractions_behind_another_mark_have_three_six_or_nine_digits() -> None:
    form = "%Y-%m-%d %H:%M:%S,%f"
    written = ["2020-01-01 00:00:00,123", "2020-01-01 00:00:00,123456", None, "2020-01-01 00:00:00,123456789"]
    whole = NEW_YEAR * 1_000_000
    assert read([*written], form) == [whole + 123_000, whole + 123_456, None, whole + 123_456]
    with pytest.raises(DataError, match=r"cannot be read: '2020-01-01 00:00:00,12' \(log\.csv:2\)"):
        read([written[0], "2020-01-01 00:00:00,12"], form)


def test_a_name_of_a_zone_in_a_format_is_answered_with_what_can_be_read() -> None:
    with pytest.raises(UsageError, match=r"\(%Z\) cannot be read.*'%d/%m/%Y %H:%M UTC'.* \+0200 is %z"):
        TimeReader("time", "%d/%m/%Y %H:%M %Z")


def test_a_value_that_does_not_fit_the_named_format_is_an_error_with_its_row() -> None:
    for value in ("31/02/2020", "2020-01-01", "01/01/2020 10:00"):
        with pytest.raises(DataError, match=rf"'{value}' \(log\.csv:2\)\. Expected dates written %d/%m/%Y"):
            read(["01/01/2020", value], "%d/%m/%Y")


@pytest.mark.parametrize("form", ["day", "", "%%", "%H:%M", "%d %b", "%Q"])
def test_a_format_that_says_no_date_is_refused(form: str) -> None:
    with pytest.raises(UsageError, match=r"does not describe a date\. Write it like %d/%m/%Y"):
        TimeReader("time", form)


def test_a_format_for_a_column_of_dates_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^`time_format` is for text; column .* already holds dates\. Leave it out"
    ):
        read([datetime(2020, 1, 1, tzinfo=UTC)], "%d/%m/%Y")


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("16/10/2013", 'The day comes first: pass `time_format="%d/%m/%Y"`.'),
        ("10/16/2013", 'The month comes first: pass `time_format="%m/%d/%Y"`.'),
        (
            "3.4.2013",
            'If the day comes first, pass `time_format="%d.%m.%Y"`; if the month does, `time_format="%m.%d.%Y"`.',
        ),
        ("16-10-13 10:30", '`time_format="%d-%m-%y %H:%M"`.'),
        ("10/16/2013 10:30:15.5 PM", '`time_format="%m/%d/%Y %I:%M:%S.%f %p"`.'),
        ("Oct 16, 2013", 'others require a format, as in `time_format="%d/%m/%Y"`.'),
    ],
)
def test_a_date_that_does_not_begin_with_the_year_is_answered_with_its_format(
    value: str, advice: str
) -> None:
    with pytest.raises(DataError) as raised:
        read([value])
    assert str(raised.value).endswith(advice)
    form = advice.split('"')[1]
    assert value.startswith("Oct") or read([value], form)[0] is not None


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (
            [NEW_YEAR, NEW_YEAR, f"{NEW_YEAR}000"],
            f"{NEW_YEAR}000 read as seconds is after 2200; it looks like milliseconds since 1970, while the log "
            "began with seconds since 1970. Write all times in the same way.",
        ),
        ([NEW_YEAR, NEW_YEAR, "-9999999999"], "-9999999999 is before 1900."),
        (
            [NEW_YEAR, NEW_YEAR, "2020-01-01"],
            "Expected seconds since 1970. Write all times in the same way.",
        ),
        (
            ["2020-01-01", "2020-01-02", "yesterday"],
            "Dates must begin with the year, as in 2024-01-31; others require a format",
        ),
        (["2020-01-01", "2020-01-02", "9999-12-31"], "9999-12-31 is after 2200."),
        (
            ["2020-01-01 10:00:00 CET"],
            "Names of time zones cannot be read, except UTC and GMT. Write an offset",
        ),
        (["2020-01-01", "0001-01-01"], "0001-01-01 is before 1900."),
        (["2020-01-01", "2020-02-30"], "2020-02-30 begins like a date but is none."),
    ],
)
def test_a_value_of_another_kind_or_out_of_range_is_told_so(values: list[object], advice: str) -> None:
    with pytest.raises(DataError) as raised:
        read([str(value) for value in values])
    assert advice in str(raised.value)


def test_numbers_among_dates_are_told_by_their_unit() -> None:
    reader = TimeReader("time")
    read_batch(reader, "2020-01-01")
    assert read_batch(reader, f"{NEW_YEAR}000") == [None]
    assert "looks like milliseconds since 1970, while the log began with ISO dates" in str(reader.refusal())


def test_dates_of_a_file_are_called_so_and_go_with_iso_dates() -> None:
    reader = TimeReader("time")
    read_batch(reader, datetime(2020, 1, 1, tzinfo=UTC))
    assert reader.describe() == "stored as dates"
    assert read_batch(reader, "2020-01-01") == [NEW_YEAR * 1_000_000]


def test_all_values_that_are_no_times_are_counted_and_the_first_three_are_shown() -> None:
    reader = TimeReader("time")
    read_batch(reader, "2020-02-30", "2020-01-01", None, "n/a")
    read_batch(reader, "2020-01-01", "soon", "later", "2020-01-01")
    assert (reader.bad, reader.count) == (4, 7)
    found = "'2020-02-30' (log.csv:1), 'n/a' (log.csv:4), 'soon' (log.csv:2) and 1 more"
    assert str(reader.refusal()) == (
        f"4 of 7 times in column 'time' cannot be read: {found}. Expected ISO dates. 2020-02-30 begins like a date but "
        "is none. `prepare(log, drop_bad_rows=True)` leaves such rows out."
    )


def test_dates_that_do_not_exist_keep_no_other_from_being_read() -> None:
    written = [
        "2020-02-30",
        "2020-01-01T00:00:00Z",
        "2020-13-01 00:00:00",
        "2020-01-01",
        "2020-01-01 00:00:00",
    ]
    assert read_batch(TimeReader("time"), *written) == [
        time and time * 1_000_000 for time in (None, NEW_YEAR, None, NEW_YEAR, NEW_YEAR)
    ]


def test_a_stray_number_among_dates_does_not_make_them_numbers() -> None:
    reader = TimeReader("time")
    assert read_batch(reader, "7", "2020-01-01", "2020-01-01") == [None, *[NEW_YEAR * 1_000_000] * 2]
    assert reader.unit == "iso"


def test_nan_in_a_column_of_floats_is_missing() -> None:
    assert read([float(NEW_YEAR), float("nan")]) == [NEW_YEAR * 1_000_000, None]


def test_blank_times_are_missing() -> None:
    assert read(["2020-01-01", "", "  "]) == [NEW_YEAR * 1_000_000, None, None]


def test_moments_on_the_command_line() -> None:
    assert parse_moment("2020-01-01") == parse_moment(str(NEW_YEAR)) == NEW_YEAR * 1_000_000
    assert parse_moment("2020") == parse_moment("20200101") == NEW_YEAR * 1_000_000
    assert format_moment(parse_moment("2020-01-01T10:00:01")) == "2020-01-01 10:00:01"
    assert format_moment(parse_moment("2020-01-01")) == "2020-01-01"
    for text in ("tomorrow", "inf", "7"):
        with pytest.raises(UsageError, match="not a date"):
            parse_moment(text)


def test_what_is_read_of_a_time_does_not_depend_on_how_others_are_written() -> None:
    """Nanoseconds have more digits than a float, through which only fractions must go."""
    alone, beside = TimeReader("time", None), TimeReader("time", None)
    written = f"{NEW_YEAR}123456789"
    assert read_batch(alone, written) == [NEW_YEAR * 1_000_000 + 123_456]
    assert read_batch(beside, written, "n/a", written)[0] == NEW_YEAR * 1_000_000 + 123_456
