"""Frames of any library go in, and results come out as frames of any library."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import DataError, UsageError
from bert4rec.frames import Frame, Tabular, is_frame, to_lazy

NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)


@dataclass(frozen=True, repr=False)
class Table(Tabular):
    frame: pl.DataFrame

    def to_polars(self) -> pl.DataFrame:
        return self.frame


class OneBatch:
    """What gives a single batch, such as a pyarrow RecordBatch, and nothing else."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.batch = frame.to_arrow().to_batches()[0]

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return self.batch.__arrow_c_array__(requested_schema)


def from_pandas(values: Any, dtype: Any = None) -> pl.Series:
    return to_lazy(pd.DataFrame({"x": pd.Series(values, dtype=dtype)}), "source").collect()["x"]


LIBRARIES: dict[str, Callable[[pl.DataFrame], Frame]] = {
    "polars": lambda frame: frame,
    "polars lazy": lambda frame: frame.lazy(),
    "pyarrow": lambda frame: frame.to_arrow(),
    "pandas": lambda frame: Table(frame).to_pandas(),
    "a stream": Table,
    "a batch": OneBatch,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_gives_the_same_table(library: str) -> None:
    table = pl.DataFrame(
        {
            "integer": [1, 2, 3],
            "missing": [1, None, 3],
            "text": ["007", "b", None],
            "float": [0.5, None, 2.0],
            "when": [NOON, None, NOON],
            "list": [["a", "b"], [], ["c"]],
        },
        schema_overrides={"when": pl.Datetime("us", "UTC")},
    )
    frame = LIBRARIES[library](table)
    assert is_frame(frame)
    assert to_lazy(frame, "source").collect().equals(table)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], np.int32, [1, 2]),
        ([1, None], "Int64", [1, None]),
        ([1, None], "UInt8", [1, None]),
        ([1.0, None, 2.0], None, [1.0, None, 2.0]),
        ([1.5, None], "Float64", [1.5, None]),
        ([True, None], "boolean", [True, None]),
        (["a", None], None, ["a", None]),
        (["a", None], object, ["a", None]),
        (["a", pd.NA], "string", ["a", None]),
        (["a", None, "a"], "category", ["a", None, "a"]),
        ([7, None, 7], "category", [7, None, 7]),
        ([1, 2, None], object, [1, 2, None]),
        ([1, 2.5, np.nan], object, [1.0, 2.5, None]),
        ([1, "b", None, 2.0], object, ["1", "b", None, "2.0"]),
        ([1, 2**70], object, ["1", str(2**70)]),
        ([date(2024, 1, 31), None], object, [date(2024, 1, 31), None]),
        ([[1, 2], None, []], object, [[1, 2], None, []]),
        ([("a", None), np.array(["b"], object)], object, [["a", None], ["b"]]),
        ([None, None], object, [None, None]),
    ],
)
def test_a_pandas_column_keeps_its_values(values: list[Any], dtype: Any, expected: list[Any]) -> None:
    assert from_pandas(values, dtype).to_list() == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_pandas_times_of_every_unit_and_zone_are_the_same_moments(unit: str, zone: str | None) -> None:
    times = pd.Series(pd.to_datetime(["2024-01-31 12:00", None])).astype(f"datetime64[{unit}]")
    in_zone = times.dt.tz_localize("UTC").dt.tz_convert(zone) if zone else times
    moments = from_pandas(in_zone, in_zone.dtype)
    assert moments.cast(pl.Datetime("us")).to_list() == [NOON.replace(tzinfo=None), None]


def test_arrow_columns_of_pandas_are_read() -> None:
    assert from_pandas([1, None], pd.ArrowDtype(pa.int64())).to_list() == [1, None]


def test_converting_does_not_change_the_frame() -> None:
    frame = pd.DataFrame({"x": pd.Series(["a", None, np.nan], dtype=object)})
    before = frame.copy(deep=True)
    to_lazy(frame, "source")
    pd.testing.assert_frame_equal(frame, before)


def test_an_index_with_a_name_is_a_column() -> None:
    log = pd.DataFrame({"user": ["a", "a", "b"], "item": [1, 2, 3]})
    lists = log.groupby("user").agg(list)
    assert to_lazy(lists, "source").collect().rows() == [("a", [1, 2]), ("b", [3])]
    unnamed = log[log["item"] > 1]
    assert to_lazy(unnamed, "source").collect().columns == ["user", "item"]


def test_two_columns_of_one_name_are_refused() -> None:
    frame = pd.DataFrame([[1, 2]], columns=["user", "user"])
    with pytest.raises(DataError, match="`source`: the frame has two columns called 'user'"):
        to_lazy(frame, "source")


@pytest.mark.parametrize("value", [{"user": [1]}, [1, 2], "log.csv", None, np.zeros(3)])
def test_other_things_are_not_frames(value: object) -> None:
    assert not is_frame(value)


cells = st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=8)
texts = st.lists(st.none() | st.text(max_size=3), max_size=8)


@given(cells, texts)
def test_pandas_and_back_is_the_same(integers: list[int | None], words: list[str | None]) -> None:
    height = min(len(integers), len(words))
    schema = {"integers": pl.Int64, "words": pl.String}
    frame = pl.DataFrame({"integers": integers[:height], "words": words[:height]}, schema=schema)
    assert to_lazy(Table(frame).to_pandas(), "x").collect().rows() == frame.rows()


def test_a_result_becomes_a_frame_of_every_library() -> None:
    table = Table(
        pl.DataFrame(
            {
                "user": ["ann", None],
                "rank": [1, 2],
                "item": [7, None],
                "ok": [True, None],
                "when": [NOON, None],
            },
            schema_overrides={"when": pl.Datetime("us", "UTC")},
        )
    )
    frame = table.to_pandas()
    assert [str(kind) for kind in frame.dtypes[1:]] == ["int64", "Int64", "boolean", "datetime64[us, UTC]"]
    assert frame["user"][0] == "ann"
    assert frame.isna().iloc[1].tolist() == [True, False, True, True, True]
    assert table.to_arrow().equals(pa.table(table.to_arrow()))
    assert table.to_arrow().to_pylist()[0] == {"user": "ann", "rank": 1, "item": 7, "ok": True, "when": NOON}
    assert pl.DataFrame(table).equals(table.frame)


def test_a_result_shows_itself_as_a_table() -> None:
    table = Table(pl.DataFrame({"item": ["tea"], "score": [0.5]}))
    assert repr(table).startswith("Table, shape: (1, 2)")
    assert "tea" in repr(table)
    assert "<td>&quot;tea&quot;</td>" in (table._repr_html_() or "")


PROGRAM = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
import polars as pl
from bert4rec.errors import UsageError
from bert4rec.frames import Tabular, to_lazy
class Table(Tabular):
    def to_polars(self):
        when = pl.Series([1, 2]).cast(pl.Datetime("us", "UTC"))
        return pl.DataFrame({{"user": ["ann", "bob"], "item": [7, None], "when": when}})
{body}
"""


def run_without(hidden: list[str], body: str) -> str:
    program = PROGRAM.format(hidden=hidden, body=body)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_pandas_goes_in_and_out_without_pyarrow() -> None:
    body = """
import pandas as pd
frame = Table().to_pandas()
frame["kind"] = pd.Categorical(["x", None])
frame["note"] = pd.array(["x", None], dtype="string")
frame["time"] = pd.to_datetime(["2024-01-31", None])
print(to_lazy(frame, "source").collect().rows()[1][:2], [str(kind) for kind in frame.dtypes[:2]])
try:
    Table().to_arrow()
except UsageError as error:
    print(error)
"""
    assert run_without(["pyarrow"], body).splitlines() == [
        "('bob', None) ['str', 'Int64']",
        "`to_arrow()` requires pyarrow: pip install pyarrow.",
    ]


def test_without_pandas_everything_else_works() -> None:
    body = """
print(to_lazy(Table(), "source").collect().rows()[1][:2])
try:
    Table().to_pandas()
except UsageError as error:
    print(error)
"""
    assert run_without(["pandas", "pyarrow"], body).splitlines() == [
        "('bob', None)",
        "`to_pandas()` requires pandas: pip install pandas.",
    ]


def test_what_cannot_be_read_as_a_table_names_the_parameter() -> None:
    class Broken:
        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            raise ValueError("no rows today")

    with pytest.raises(UsageError, match="`items`: this Broken cannot be read as a table: no rows today"):
        to_lazy(Broken(), "items")
