"""What a catalogue says of items arrives with its type, whatever it is written in."""

from datetime import date
from pathlib import Path

import polars as pl
import pytest

from bert4rec.logs.items import read_items
from bert4rec.logs.readers import LogFrame

WRITTEN = """item_id,title,category,price,stock,vegan,released,code,mixed,empty
a,1984,tea,3.5,1,true,2020-01-31,007,1,
b,2001,,-4e2,-20,False,2021-12-01,12,two,
c,,coffee,,,,,,,
"""
TYPES = {
    "id": pl.String,
    "title": pl.String,
    "category": pl.String,
    "price": pl.Float64,
    "stock": pl.Int64,
    "vegan": pl.Boolean,
    "released": pl.Date,
    "code": pl.String,
    "mixed": pl.String,
    "empty": pl.String,
}


def test_a_text_file_has_numbers_dates_and_booleans_where_all_values_are(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text(WRITTEN)
    table = read_items(tmp_path / "items.csv")
    assert dict(table.schema) == TYPES
    assert table["price"].to_list() == [3.5, -400.0, None]
    assert table["vegan"].to_list() == [True, False, None]
    assert table["released"].to_list() == [date(2020, 1, 31), date(2021, 12, 1), None]
    assert table["code"].to_list() == ["007", "12", None]


@pytest.mark.parametrize("value", ["2021-02-30", "2021-2-3", "1,5", "+3", "0x1", "inf", "nan", "1 000"])
def test_what_only_resembles_a_number_or_a_date_stays_text(tmp_path: Path, value: str) -> None:
    pl.DataFrame({"item_id": ["a"], "value": [value]}).write_csv(tmp_path / "items.csv")
    assert read_items(tmp_path / "items.csv")["value"].to_list() == [value]


def test_parquet_and_frames_keep_their_types(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "item_id": ["a", "b"],
            "genres": [["drama", "war"], None],
            "released": [date(2020, 1, 31), None],
            "code": ["12", "13"],
        }
    )
    table.write_parquet(tmp_path / "items.parquet")
    for source in (
        tmp_path / "items.parquet",
        LogFrame.of(table, "items"),
        LogFrame.of(table.to_arrow(), "items"),
    ):
        found = read_items(source)
        assert [str(each) for each in found.dtypes] == ["String", "List(String)", "Date", "String"]
        assert found["genres"].to_list() == [["drama", "war"], None]
