"""Times in logs: numbers since 1970 in some unit, ISO dates, or dates in a format that the user names.

Here they become microseconds since 1970, UTC.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bert4rec.errors import DataError, UsageError

if TYPE_CHECKING:
    import polars as pl

MICROSECONDS_PER = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1, "nanoseconds": 0.001}
_SMALLEST = {"nanoseconds": 1e17, "microseconds": 1e14, "milliseconds": 1e11, "seconds": 0.0}
"""A typical value this large or larger is read in that unit: each bound lies after the year 5000 in the
coarser unit and before 1974 in the finer one."""
EARLIEST, LATEST = -2_208_988_800_000_000, 7_258_118_400_000_000
"""1900 and 2200: a time outside is in another unit than the rest, or a mistake."""
EPOCH_RANGES = {
    unit: (round(_SMALLEST[unit]), round(LATEST / factor)) for unit, factor in MICROSECONDS_PER.items()
}
"""Unit → the smallest and the largest number that, alone, is read as a time since 1970 in it."""
_ISO_DATE = r"^\s*\d{4}[-/]\d{1,2}[-/]\d{1,2}"
MOST_EXAMPLES = 3
"""How many values that are not times are shown."""


_NUMERIC_DATE = re.compile(
    r"(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4}|\d{2})"
    r"(?P<gap>[ T]?)(?P<clock>\d{1,2}:\d{2}(?P<seconds>:\d{2}(?P<fraction>\.\d+)?)?)?(?P<half> ?[AaPp][Mm])?"
)


class TimeReader:
    """Turns the time column of a log into microseconds, batch by batch.

    How times are written is decided from the first batch that has any, and holds for the whole log, unless the
    user named a `form`, such as %d/%m/%Y: then all must be written so.
    """

    def __init__(self, column: str, form: str | None = None) -> None:
        self.column = column
        self._form = None if form is None else check_time_format(form)
        self.unit: str | None = form
        """`dates`, `iso`, `yyyymmdd`, a unit, or the user's format; None before the first value is seen."""
        self.count = 0
        """How many values were read, without the missing ones."""
        self.bad = 0
        """How many of them are not times."""
        self._examples: list[str] = []
        self._advice = ""

    def describe(self) -> str:
        """How times are written, for messages."""
        spellings = {"dates": "stored as dates", "iso": "ISO dates", "yyyymmdd": "dates written yyyymmdd"}
        usual = spellings.get(self.unit or "", f"{self.unit} since 1970")
        return f"dates written {self.unit}" if self._form else usual

    def read(
        self,
        values: "pl.Series",
        *,
        where: str,
        rows: "Sequence[int] | pl.Series",
        place: Callable[[int], str],
    ) -> "tuple[pl.Series, pl.Series]":
        """Int64 microseconds, where missing stays missing, and which values are not times, which are counted.

        `rows` are the rows of the source that the values come from; `place` says for people where a row stands.
        """
        self.check_type(values.dtype, where)
        values = without_blanks(values)
        present = values.drop_nulls()
        self.learn(present)
        micros, is_bad = self.convert(values, where)
        self.count += len(present)
        self.bad += int(is_bad.sum())
        for index in is_bad.arg_true()[: MOST_EXAMPLES - len(self._examples)]:
            self.add_example(values[index], micros[index], place(rows[index]))
        return micros, is_bad

    def add_example(self, value: object, micros: int | None, place: str) -> None:
        """Remember a value that is not a time, or one (`micros`) that is out of range."""
        self._advice = self._advice or self._advise(value, micros)
        self._examples.append(f"{value!r} ({place})")

    def check_type(self, kind: "pl.DataType", where: str) -> None:
        """Refuse a column of this type if it cannot hold times."""
        import polars as pl

        if kind.is_nested() or (kind.is_temporal() and not isinstance(kind, pl.Date | pl.Datetime)):
            raise DataError(
                f"`time`: column {self.column!r} of {where} holds {kind}. Expected dates or numbers since 1970."
            )

    def learn(self, present: "pl.Series") -> None:
        """Decide how times are written, if that is not decided, from values of which none is missing."""
        if self.unit is None and len(present):
            self.unit = _guess_unit(present)

    def convert(self, values: "pl.Series", where: str) -> "tuple[pl.Series, pl.Series]":
        """Int64 microseconds, where missing stays missing, and which values (without blanks) are not times."""
        import polars as pl

        if values.null_count() == len(values):
            return pl.Series([None] * len(values), dtype=pl.Int64), values.is_not_null()
        micros = self._parse(values, where)
        return micros, values.is_not_null() & ~micros.is_between(EARLIEST, LATEST).fill_null(value=False)

    def describe_bad(self) -> str:
        """The first values that are not times, and where they stand."""
        rest = self.bad - len(self._examples)
        return ", ".join(self._examples) + (f" and {rest:,} more" if rest else "")

    def settle(self, *, drop_bad_rows: bool) -> list[str]:
        """When all is read: what to know about the times, one sentence each. Bad ones are refused or dropped."""
        # If no time at all can be read, it is not the rows that are bad.
        if self.bad and (not drop_bad_rows or self.bad == self.count):
            raise self.refusal()
        notes = [f"Times are {self.describe()}."] if self.unit else []
        if self.bad:
            notes.append(
                f"`drop_bad_rows=True` dropped {self.bad:,} of {self.count:,} actions, whose time cannot be read: "
                f"{self.describe_bad()}."
            )
        return notes

    def refusal(self) -> DataError:
        """What is wrong with the values that are not times, and what to do."""
        drop = " `prepare(log, drop_bad_rows=True)` leaves such rows out." if self.bad < self.count else ""
        return DataError(
            f"{self.bad:,} of {self.count:,} times in column {self.column!r} cannot be read: {self.describe_bad()}. "
            f"Expected {self.describe()}. {self._advice}{drop}"
        )

    def _parse(self, values: "pl.Series", where: str) -> "pl.Series":
        if self._form is None:
            return _to_microseconds(values, self.unit)
        if values.dtype.is_temporal():
            raise UsageError(
                f"`time_format` is for text; column {self.column!r} of {where} already holds dates. Leave it out."
            )
        return _parse_format(values, self._form)

    def _advise(self, value: object, micros: int | None) -> str:
        """What may be wrong with a value that is not a time, or with a time (`micros`) that is out of range."""
        import polars as pl

        if self._form:
            return "Correct the row, or pass another `time_format`."
        looks = _guess_unit(pl.Series([value]))
        began = f"the log began with {self.describe()}. Write all times in the same way."
        if looks in MICROSECONDS_PER and self.unit not in (looks, "yyyymmdd"):
            outside = "after 2200" if float(str(value)) > 0 else "before 1900"
            read_as = f"read as {self.unit} is {outside}; it " if self.unit in MICROSECONDS_PER else ""
            return f"{value} {read_as}looks like {looks} since 1970, while {began}"
        if micros is not None:
            outside = "after 2200" if micros > LATEST else "before 1900"
            return f"{value} is {outside}."
        if self.unit not in ("dates", "iso"):
            return "Write all times in the same way."
        return _suggest_format(str(value))


def without_blanks(values: "pl.Series") -> "pl.Series":
    """Text without blanks around it; what is empty, and what is not a number, is missing."""
    import polars as pl

    if values.dtype == pl.String:
        values = values.str.strip_chars()
        return values.set(values == "", None)
    return values.fill_nan(None) if values.dtype.is_float() else values


def _suggest_format(value: str) -> str:
    if re.search(rf"{_ISO_DATE}.*[A-Za-z]{{3}}$", value):
        return "Names of time zones cannot be read, except UTC and GMT. Write an offset, as in +01:00."
    if re.match(_ISO_DATE, value):
        return f"{value} begins like a date but is none."
    written = _NUMERIC_DATE.fullmatch(value)
    if written is None:
        return (
            "Dates must begin with the year, as in 2024-01-31; others require a format, as in "
            '`time_format="%d/%m/%Y"`.'
        )
    day_first, month_first = (f'`time_format="{form}"`' for form in _formats_of(written))
    if int(written["first"]) > 12:
        return f"The day comes first: pass {day_first}."
    if int(written["second"]) > 12:
        return f"The month comes first: pass {month_first}."
    return f"If the day comes first, pass {day_first}; if the month does, {month_first}."


def check_time_format(form: str) -> str:
    """The format as polars expects it; one that does not describe a date is refused."""
    import polars as pl

    if "%Z" in form:
        raise UsageError(
            f"`time_format`: names of time zones (%Z) cannot be read, found {form!r}. If all times are UTC, write the "
            "name itself, as in '%d/%m/%Y %H:%M UTC'; an offset such as +0200 is %z."
        )
    # Python's %f is a fraction after a point; polars has another name for it.
    ours = form.replace(".%f", "%.f")
    example = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    try:
        parsed = _parse_format(pl.Series([example.strftime(form)]), ours)[0]
    except (pl.exceptions.PolarsError, ValueError):
        parsed = None
    if parsed is None or datetime.fromtimestamp(parsed / 1e6, tz=UTC).year != example.year:
        raise UsageError(
            f"`time_format`: {form!r} does not describe a date. Write it like %d/%m/%Y, %m/%d/%Y %H:%M:%S "
            "or %d.%m.%Y %H:%M %z (the time zone as in +0200)."
        )
    return ours


def parse_moment(text: str) -> int:
    """A date given by the user, as microseconds since 1970: ISO date (UTC without a zone) or epoch seconds."""
    if re.fullmatch(r"\d{4}", text):
        text += "-01-01"
    if re.fullmatch(r"-?\d{9,10}(\.\d*)?", text):
        return round(float(text) * 1_000_000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a date. Write 2024, 2024-01-31, 2024-01-31T12:00:00 or epoch seconds."
        ) from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def read_epoch(number: float) -> int | None:
    """A single number since 1970 as microseconds, its unit found from its size; None if it is not such a time."""
    for unit, (smallest, largest) in EPOCH_RANGES.items():
        if smallest <= number <= largest:
            # Nanoseconds have more digits than a float.
            return int(number) // 1000 if unit == "nanoseconds" else round(number * MICROSECONDS_PER[unit])
    return None


def format_moment(micros: int) -> str:
    """The day, or the day and second if it is not midnight."""
    moment = datetime.fromtimestamp(micros / 1_000_000, tz=UTC)
    midnight = (moment.hour, moment.minute, moment.second) == (0, 0, 0)
    return moment.strftime("%Y-%m-%d" if midnight else "%Y-%m-%d %H:%M:%S")


def _guess_unit(present: "pl.Series") -> str:
    import polars as pl

    if present.dtype.is_temporal():
        return "dates"
    numbers = present.cast(pl.Float64, strict=False).drop_nulls()
    numbers = numbers.filter(numbers.is_finite())
    # A stray number among dates, or a stray date among numbers, must not decide.
    if not len(numbers) or present.cast(pl.String).str.contains(_ISO_DATE).sum() > len(numbers):
        return "iso"
    typical = numbers.abs().median()
    assert isinstance(typical, float)
    if 19_000_101 <= typical <= 22_001_231 and not _parse_compact(present).has_nulls():
        return "yyyymmdd"
    return next(unit for unit, smallest in _SMALLEST.items() if typical >= smallest)


def _to_microseconds(values: "pl.Series", unit: str | None) -> "pl.Series":
    import polars as pl

    if values.dtype.is_temporal():
        return values.cast(pl.Datetime("us")).cast(pl.Int64)
    if unit in ("dates", "iso"):
        return _parse_iso(values)
    if unit == "yyyymmdd":
        return _parse_compact(values)
    assert unit is not None
    factor = MICROSECONDS_PER[unit]
    whole = values.cast(pl.Int64, strict=False)
    exact = (whole * factor).cast(pl.Int64, strict=False) if factor >= 1 else whole // round(1 / factor)
    if values.dtype.is_float():
        whole = exact = pl.Series([None] * len(values), dtype=pl.Int64)
    if whole.null_count() == values.null_count():
        return exact
    fractional = values.cast(pl.Float64, strict=False)
    rounded = (
        pl.select(pl.when(fractional.is_finite()).then((fractional * factor).round()))
        .to_series()
        .cast(pl.Int64, strict=False)
    )
    # Each by itself: what is read of one time must not depend on how others are written.
    return pl.select(pl.when(whole.is_null()).then(rounded).otherwise(exact)).to_series()


def _parse_iso(values: "pl.Series") -> "pl.Series":
    """Parse dates that may be written in several ISO forms: each pass takes the form of the first one left."""
    import polars as pl

    if values.dtype != pl.String:
        return pl.Series([None] * len(values), dtype=pl.Int64)
    for zone in (" UTC", " GMT"):  # as BigQuery writes it
        values = values.str.strip_suffix(zone)
    left = pl.select(pl.when(values.str.contains(_ISO_DATE)).then(values)).to_series()
    micros = pl.Series([None] * len(values), dtype=pl.Int64)
    while left.null_count() < len(left):
        first = left.drop_nulls()[0]
        parsed = _parse_like(left, _valid_date_like(first))
        micros = micros.fill_null(parsed)
        left = pl.select(pl.when(parsed.is_null()).then(left)).to_series()
        # What is written like the first and still left is no date, such as February 30.
        same_form = "^" + re.sub(r"\d", r"\\d", re.escape(first)) + "$"
        left = pl.select(pl.when(~left.str.contains(same_form)).then(left)).to_series()
    return micros


def _valid_date_like(written: str) -> str:
    """A date that exists in the form of one that may not: polars learns forms from examples that it can read."""
    date = re.match(r"(\s*)\d{4}([-/])(\d{1,2})([-/])(\d{1,2})", written)
    assert date
    blanks, mark, month, other_mark, day = date.groups()
    valid = f"{blanks}2000{mark}{'1'.zfill(len(month))}{other_mark}{'1'.zfill(len(day))}"
    return valid + re.sub(r"\d", "0", written[date.end() :])


def _parse_compact(values: "pl.Series") -> "pl.Series":
    import polars as pl

    days = values.cast(pl.String).str.to_date("%Y%m%d", strict=False)
    return days.cast(pl.Datetime("us")).cast(pl.Int64)


def _parse_format(values: "pl.Series", form: str) -> "pl.Series":
    import polars as pl

    text = values.cast(pl.String)
    has_hours, has_minutes = (re.search(f"%[-_0]?{letter}", form) for letter in ("[HI]", "M"))
    if has_hours and not has_minutes:  # polars does not read hours alone
        text, form = text + " 00", form + " %M"
    # For polars a fraction without a point has a fixed number of digits.
    forms = [form.replace("%f", f"%{digits}f") for digits in (3, 6, 9)] if "%f" in form else [form]
    micros = pl.Series([None] * len(text), dtype=pl.Int64)
    for one in forms:
        if micros.null_count() > text.null_count():
            parsed = text.str.to_datetime(one, time_unit="us", time_zone="UTC", strict=False)
            micros = micros.fill_null(parsed.cast(pl.Int64))
    return micros


def _formats_of(written: "re.Match[str]") -> tuple[str, str]:
    """The formats of a date such as 3/4/2013 10:30 PM: day first, and month first."""
    year = "%Y" if len(written["year"]) == 4 else "%y"
    clock = ""
    if written["clock"]:
        seconds = ":%S" if written["seconds"] else ""
        fraction = ".%f" if written["fraction"] else ""
        half = written["half"].replace(written["half"].strip(), "%p") if written["half"] else ""
        clock = f"{written['gap']}{'%I' if half else '%H'}:%M{seconds}{fraction}{half}"
    day_first, month_first = (
        written["mark"].join((*order, year)) + clock for order in (("%d", "%m"), ("%m", "%d"))
    )
    return day_first, month_first


def _parse_like(values: "pl.Series", example: str) -> "pl.Series":
    """Parse all values that are written like `example`; the rest come back missing."""
    import polars as pl

    try:
        return (
            pl.Series([example])
            .append(values)
            .str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
            .slice(1)
            .cast(pl.Int64)
        )
    except pl.exceptions.ComputeError:
        return pl.Series([None] * len(values), dtype=pl.Int64)
