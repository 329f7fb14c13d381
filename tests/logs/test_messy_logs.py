"""Real messes, from the file to the dataset: what each user did, in order, with the ids of the file, and when."""

import bz2
import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.errors import DataError
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints
from bert4rec.logs.log import read_log
from tests.logs.logs import zipped

EVERYTHING = Recipe(filters=Filters(min_user_actions=0), num_negatives=1)
NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)
SECONDS = int(NOON.timestamp())


def prepared(
    path: Path, content: bytes | str | None = None, columns: ColumnRequest = ColumnRequest(), **hints: str
) -> Dataset:
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    log = read_log([path], columns, Hints(**hints))
    return prepare(log, path.parent / "dataset", name="messy", recipe=EVERYTHING)


def told(dataset: Dataset) -> dict[Any, list[tuple[Any, int | None]]]:
    """User → items with their seconds after noon, or None where there are no times."""
    items = [None, *dataset.items()["id"]]
    found = {}
    for number, user in enumerate(dataset.users()["id"]):
        begin, end = dataset.offsets[number], dataset.offsets[number + 1]
        times = None if dataset.times is None else dataset.times[begin:end] // 1_000_000 - SECONDS
        after = [None] * (end - begin) if times is None else times.tolist()
        found[user] = list(zip((items[item] for item in dataset.history(number)), after, strict=True))
    return found


def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    rows = f"\ufeffuser_id,item_id,timestamp\r\nann,tea,{SECONDS + 1}\r\nann,jam,{SECONDS}\r\n"
    assert told(prepared(tmp_path / "log.csv", rows)) == {"ann": [("jam", 0), ("tea", 1)]}


def test_semicolons_beside_decimal_commas(tmp_path: Path) -> None:
    rows = f"user;item;rating;time\n7;10;3,5;{SECONDS}\n7;11;4,0;{SECONDS + 5}\n8;10;1,5;{SECONDS + 2}\n"
    assert told(prepared(tmp_path / "log.csv", rows)) == {7: [(10, 0), (11, 5)], 8: [(10, 2)]}


def test_movielens_own_notation(tmp_path: Path) -> None:
    rows = f"1::1193::5::{SECONDS + 9}\n1::661::3::{SECONDS + 3}\n2::1193::4::{SECONDS}\n"
    dataset = prepared(tmp_path / "ratings.dat", rows, ColumnRequest("1", "2", "4"))
    assert told(dataset) == {1: [(661, 3), (1193, 9)], 2: [(1193, 0)]}


def test_titles_with_commas_in_quotes(tmp_path: Path) -> None:
    rows = f'user,item,title,time\nann,1,"Postman, The (1997)",{SECONDS}\nann,2,"Say ""Yes""",{SECONDS + 1}\n'
    dataset = prepared(tmp_path / "log.csv", rows)
    assert told(dataset) == {"ann": [(1, 0), (2, 1)]}
    assert dict(dataset.items().select("id", "title").rows()) == {1: "Postman, The (1997)", 2: 'Say "Yes"'}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_quotes_behind_blanks(tmp_path: Path, separator: str, pack: Callable[[bytes], bytes]) -> None:
    lines = (
        ("\ufeffuser", ' "item"', " title", " time"),
        ("ann", ' "1"', f'  "Tea{separator} ""green"""', f" {SECONDS}"),
        ("",),
        ("ann", " 2", " Jam ", f" {SECONDS + 1}"),
        ("ann", " 3", ' "two\nlines"', f" {SECONDS + 2}"),
    )
    text = "".join(separator.join(line) + "\r\n" for line in lines)
    dataset = prepared(tmp_path / "log.csv", pack(text.encode()))
    assert told(dataset) == {"ann": [(1, 0), (2, 1), (3, 2)]}
    assert dataset.items()["title"].to_list() == [f'Tea{separator} "green"', "Jam", "two\nlines"]


def test_errors_behind_quotes_behind_blanks_name_the_users_line(tmp_path: Path) -> None:
    start = b'user, item\nann, "tea, green"\n\n'
    with pytest.raises(DataError, match=r"/log\.csv:4: expected 2 fields separated by ',', found 3"):
        prepared(tmp_path / "log.csv", start + b"bob, jam, 7\n")
    with pytest.raises(DataError, match=r"/log\.csv:4 is not UTF-8 text"):
        prepared(tmp_path / "log.csv", start + b"bob, th\xe9\n")
    (tmp_path / "log.csv.zst").write_bytes(zstandard.compress(start))
    with pytest.raises(DataError, match=r"log\.csv\.zst has blanks before quotes\. Unpack it first"):
        prepared(tmp_path / "log.csv.zst")


def test_blanks_before_quotes_within_quotes_are_no_matter(tmp_path: Path) -> None:
    rows = zstandard.compress(b'user,item\nann,"tea, ""green"""\n')
    assert told(prepared(tmp_path / "log.csv.zst", rows)) == {"ann": [('tea, "green"', None)]}


def test_times_of_different_zones_are_sorted_in_utc(tmp_path: Path) -> None:
    rows = """user,item,date
ann,third,2024-01-31T12:00:02Z
ann,first,2024-01-31T14:00:00+02:00
ann,fourth,2024-01-31T07:00:03-05:00
ann,second,2024-01-31 12:00:01
"""
    assert told(prepared(tmp_path / "log.csv", rows)) == {
        "ann": [("first", 0), ("second", 1), ("third", 2), ("fourth", 3)]
    }


def test_times_in_milliseconds(tmp_path: Path) -> None:
    rows = f"user,item,ts\nann,b,{SECONDS + 1}500\nann,a,{SECONDS + 1}250\n"
    dataset = prepared(tmp_path / "log.csv", rows)
    assert told(dataset) == {"ann": [("a", 1), ("b", 1)]}
    assert dataset.times is not None
    assert dataset.times.tolist() == [(SECONDS + 1) * 1_000_000 + part for part in (250_000, 500_000)]


def test_dates_that_begin_with_the_day(tmp_path: Path) -> None:
    rows = "user,item,date\nann,b,31/01/2024 13:00 +0100\nann,a,31/01/2024 11:59 +0000\n"
    dataset = prepared(tmp_path / "log.csv", rows, time_format="%d/%m/%Y %H:%M %z")
    assert told(dataset) == {"ann": [("a", -60), ("b", 0)]}


def test_rows_that_are_there_twice(tmp_path: Path) -> None:
    rows = f"user,item,time\nann,tea,{SECONDS}\nann,tea,{SECONDS}\nann,jam,{SECONDS + 1}\n"
    assert told(prepared(tmp_path / "log.csv", rows)) == {"ann": [("tea", 0), ("tea", 0), ("jam", 1)]}


def test_a_list_of_items_and_one_of_times_for_each_user(tmp_path: Path) -> None:
    moments = [[NOON.replace(second=5), NOON], [NOON.replace(second=3)], []]
    table = {"customer_id": ["ann", "bob", "eve"], "item_ids": [[7, 8], [7], []], "times": moments}
    pl.DataFrame(table).write_parquet(tmp_path / "log.parquet")
    assert told(prepared(tmp_path / "log.parquet")) == {"ann": [(8, 0), (7, 5)], "bob": [(7, 3)]}


def test_a_list_of_items_alone(tmp_path: Path) -> None:
    rows = '{"user": "ann", "history": ["tea", "jam"]}\n{"user": "bob", "history": ["jam"]}\n'
    assert told(prepared(tmp_path / "log.jsonl", rows)) == {
        "ann": [("tea", None), ("jam", None)],
        "bob": [("jam", None)],
    }


def test_ids_that_a_missing_value_made_floats(tmp_path: Path) -> None:
    rows = f"user,item,time\n6.0,10.0,{SECONDS}\n,11.0,{SECONDS}\n6, 10,{SECONDS + 1}\n7.0,11.0,{SECONDS}\n"
    dataset = prepared(tmp_path / "log.csv", rows)
    assert told(dataset) == {6: [(10, 0), (10, 1)], 7: [(11, 0)]}
    assert "1 row without user was dropped." in dataset.manifest["notes"]


def test_an_archive_with_a_file_for_each_day(tmp_path: Path) -> None:
    days = {
        "export/monday.csv": f"user,item,time\nann,tea,{SECONDS + 1}\n".encode(),
        "export/sunday.csv.bz2": bz2.compress(f"user,item,time\nann,jam,{SECONDS}\n".encode()),
        "export/about.md": b"Our sales.",
    }
    assert told(prepared(tmp_path / "sales.zip", zipped(days))) == {"ann": [("jam", 0), ("tea", 1)]}


def test_a_file_packed_with_bzip2_in_latin_1(tmp_path: Path) -> None:
    rows = f"user|item|time\nZoë|thé|{SECONDS}\n".encode("latin-1")
    dataset = prepared(tmp_path / "log.txt.bz2", bz2.compress(rows), encoding="latin-1")
    assert told(dataset) == {"Zoë": [("thé", 0)]}
