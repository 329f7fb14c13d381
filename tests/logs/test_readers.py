"""Separators of any length, and tables with a list of items in each row."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import DataError, UsageError
from bert4rec.logs import readers
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints
from bert4rec.logs.items import read_items
from bert4rec.logs.log import read_log
from tests.logs.logs import rows_of


@pytest.mark.parametrize(
    ("separator", "said"),
    [
        ("::", None),
        ("||", "||"),
        ("^", "^"),
        ("§", "§"),
        (" - ", " - "),
        ("\t", "tab"),
        ("\t", r"\t"),
        (" ", "space"),
        (".", "."),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_any_separator_can_be_named_and_that_of_movielens_is_guessed(
    tmp_path: Path, separator: str, said: str | None, end: str
) -> None:
    lines = (("user", "item", "time"), ("ann", "tea", "1600000000"), ("bob", "jam", "1600000001"))
    text = "".join(separator.join(line) + end for line in lines)
    (tmp_path / "log.txt").write_bytes(text.encode())
    log = read_log([tmp_path / "log.txt"], hints=Hints(separator=said))
    assert rows_of(log) == [("ann", "tea", 1_600_000_000), ("bob", "jam", 1_600_000_001)]


field = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters=":"), min_size=1, max_size=6
)


@given(st.lists(st.tuples(field, field), min_size=1, max_size=20))
def test_any_fields_come_back_from_a_file_with_a_long_separator(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("logs") / "log.dat"
    path.write_text("user::item\n" + "".join(f"{user}::{item}\n" for user, item in pairs), encoding="utf-8")
    found = [(str(user), str(item)) for user, item in rows_of(read_log([path]))]
    assert found == pairs


def test_movielens_own_notation_has_no_header_and_may_be_compressed(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat.gz").write_bytes(gzip.compress(b"1::10::5::978300760\n\n1::20::3::978300761\n"))
    log = read_log([tmp_path / "ratings.dat.gz"], ColumnRequest(user="1", item="2", time="4"))
    assert rows_of(log) == [(1, 10, 978300760), (1, 20, 978300761)]


def test_latin_1_and_a_byte_order_mark_go_with_a_long_separator(tmp_path: Path) -> None:
    (tmp_path / "log.dat").write_bytes("user::item\nZoë::thé\n".encode("latin-1"))
    assert rows_of(read_log([tmp_path / "log.dat"], hints=Hints(encoding="latin-1"))) == [("Zoë", "thé")]
    (tmp_path / "log.dat").write_text("\ufeff7::tea\n", encoding="utf-8")
    assert rows_of(read_log([tmp_path / "log.dat"])) == [(7, "tea")]
    (tmp_path / "items.dat").write_text("item_id::title\n7::Tea, green\n", encoding="utf-8")
    assert read_items(tmp_path / "items.dat").rows() == [("7", "Tea, green")]


def test_only_the_first_line_has_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "log.dat").write_text("\ufeffuser::item\n\ufeffa::1\n", encoding="utf-8")
    (tmp_path / "log.txt").write_text("\ufeffa 1\n\ufeffa 2\n", encoding="utf-8")
    assert rows_of(read_log([tmp_path / "log.dat"])) == [("\ufeffa", 1)]
    assert rows_of(read_log([tmp_path / "log.txt"])) == [("a", 1), ("\ufeffa", 2)]


def test_an_empty_field_behind_a_long_separator_is_missing(tmp_path: Path) -> None:
    (tmp_path / "log.dat").write_text("user::item::time\na::::5\n::x::6\nb::y::\nc::z::7\n")
    log = read_log([tmp_path / "log.dat"])
    assert rows_of(log) == [("c", "z", 7)]
    assert [note[:12] for note in log.notes if "dropped" in note] == ["1 row withou"] * 3


def test_names_that_hold_colons_are_not_torn_apart(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("fe80::1,tea\nfe80::a::1,jam\n")
    log = read_log([tmp_path / "log.csv"], ColumnRequest(user="1", item="2"))
    assert rows_of(log) == [("fe80::1", "tea"), ("fe80::a::1", "jam")]


@pytest.mark.parametrize(
    ("content", "separator", "complaint"),
    [
        (
            "user::item::time\na::1::5\n\nb::2\n",
            None,
            r"log\.dat:4: expected 3 fields separated by '::', found 2",
        ),
        ("user::item\na::1\nb::2::3\n", None, r"log\.dat:3: expected 2 fields separated by '::', found 3"),
        ("user||item||t\na||1\n", "||", r"log\.dat:2: expected 3 fields separated by '\|\|', found 2"),
        ("user item\na 1\n", "^", r"log\.dat: `separator` '\^' not found in the first line, 'user item'"),
    ],
)
def test_rows_that_do_not_fit_the_separator_are_named(
    tmp_path: Path, content: str, separator: str | None, complaint: str
) -> None:
    (tmp_path / "log.dat").write_text(content)
    with pytest.raises(DataError, match=complaint):
        read_log([tmp_path / "log.dat"], hints=Hints(separator=separator))


def test_a_separator_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\na,1\n")
    for separator in ("", '"', "\n"):
        with pytest.raises(UsageError, match="cannot separate fields"):
            read_log([tmp_path / "log.csv"], hints=Hints(separator=separator))
    (tmp_path / "log.jsonl").write_text('{"user": 1, "item": 2}\n')
    with pytest.raises(
        UsageError, match=r"`separator` is for tables in text files, and .*log\.jsonl is JSON Lines"
    ):
        read_log([tmp_path / "log.jsonl"], hints=Hints(separator="^"))


def write_table(path: Path, columns: dict[str, Any]) -> Path:
    frame = pl.DataFrame(columns)
    write: dict[str, Callable[[Path], object]] = {
        ".parquet": frame.write_parquet,
        ".feather": frame.write_ipc,
        ".jsonl": frame.write_ndjson,
    }
    write[path.suffix](path)
    return path


every_table = pytest.mark.parametrize("ending", ["parquet", "feather", "jsonl"])


@every_table
def test_without_times_the_order_of_the_lists_counts(tmp_path: Path, ending: str) -> None:
    columns = {"user": ["ann", "bob", "eve"], "history": [[5, 6, None], [], [5]], "age": [30, 40, 50]}
    log = read_log([write_table(tmp_path / f"log.{ending}", columns)])
    assert rows_of(log) == [("ann", 5), ("ann", 6), ("eve", 5)]
    assert log.times is None
    assert "1 row without item was dropped." in log.notes


@every_table
def test_lists_of_times_go_along_item_by_item(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LISTS_PER_BATCH", 2)
    columns = {
        "user_id": [1, 2, 3],
        "item_ids": [["a", "b"], [], ["c"]],
        "timestamps": [["2020-01-02", "2020-01-01"], [], ["2020-01-03"]],
    }
    day = 24 * 3600
    log = read_log([write_table(tmp_path / f"log.{ending}", columns)])
    start = 1_577_836_800
    assert rows_of(log) == [(1, "a", start + day), (1, "b", start), (3, "c", start + 2 * day)]


@every_table
def test_a_single_time_holds_for_all_items_of_its_row(tmp_path: Path, ending: str) -> None:
    columns = {"session": [1, 2], "items": [["7", "8"], ["7"]], "time": [1_600_000_000, 1_500_000_000]}
    log = read_log([write_table(tmp_path / f"log.{ending}", columns)])
    assert rows_of(log) == [(1, "7", 1_600_000_000), (1, "8", 1_600_000_000), (2, "7", 1_500_000_000)]


@every_table
def test_rows_whose_lists_do_not_fit_are_named(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LISTS_PER_BATCH", 2)
    columns = {"user": [1, 2, 3], "items": [[1, 2], [], [3]], "times": [[1, 2], [], [3, 4]]}
    with pytest.raises(DataError, match=rf"log\.{ending}, row 3: 1 items, but 2 times"):
        read_log([write_table(tmp_path / f"log.{ending}", columns)])
    columns["times"] = [["2020-01-01", "2020-01-02"], [], ["yesterday"]]
    with pytest.raises(DataError, match=rf"'yesterday' \(.*log\.{ending}(, row |:)3\)"):
        read_log([write_table(tmp_path / f"log.{ending}", columns)])


def test_arrays_of_fixed_length_are_lists(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": [1], "items": [[7, 8]]}, schema_overrides={"items": pl.Array(pl.Int64, 2)})
    frame.write_parquet(tmp_path / "log.parquet")
    assert rows_of(read_log([tmp_path / "log.parquet"])) == [(1, 7), (1, 8)]


def test_a_list_of_times_without_a_list_of_items_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "log.parquet", {"user": [1], "item": [2], "time": [[3]]})
    with pytest.raises(DataError, match=r"^`time`: column 'time' of .* holds List\(Int64\)\. Expected dates"):
        read_log([path])


def test_lists_and_rows_are_one_log(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", {"user": [1], "items": [[7, 8]]})
    (tmp_path / "b.csv").write_text("user,item\n1,9\n")
    assert rows_of(read_log([tmp_path])) == [(1, 7), (1, 8), (1, 9)]
