"""What goes into the reader comes out, in order; what cannot be read is named."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import DataError, NotFoundError
from bert4rec.logs import log as log_reading
from bert4rec.logs.columns import ColumnRequest
from bert4rec.logs.files import Hints
from bert4rec.logs.items import read_items
from bert4rec.logs.log import read_log
from tests.logs.logs import rows_of

Rows = list[tuple[object, object, int]]
SIMPLE: Rows = [("ann", "tea", 30), ("bob", "jam", 10), ("ann", "jam", 20), ("ann", "tea", 20)]


def as_csv(rows: Rows, separator: str = ",") -> bytes:
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    return frame.write_csv(separator=separator, quote_style="necessary").encode()


def as_jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps({"user": u, "item": i, "time": t}) + "\n" for u, i, t in rows).encode()


def as_parquet(rows: Rows, path: Path) -> Path:
    pl.DataFrame(rows, schema=["user", "item", "ts"], orient="row").write_parquet(path)
    return path


@pytest.mark.parametrize(
    "pack", [lambda data: data, gzip.compress, zstandard.compress], ids=["plain", "gz", "zst"]
)
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_every_text_format_reads_the_same_plain_and_packed(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    data = as_jsonl(SIMPLE) if ending == "jsonl" else as_csv(SIMPLE, "\t" if ending == "tsv" else ",")
    packed = {gzip.compress: ".gz", zstandard.compress: ".zst"}.get(pack, "")
    path = tmp_path / f"log.{ending}{packed}"
    path.write_bytes(pack(data))
    assert rows_of(read_log([path])) == SIMPLE


def test_parquet_reads_the_same(tmp_path: Path) -> None:
    assert rows_of(read_log([as_parquet(SIMPLE, tmp_path / "log.parquet")])) == SIMPLE


def test_pairs_and_histories_in_text_lines_read_the_same(tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("7 tea\n7 jam\n8 tea\n")
    (tmp_path / "histories.txt").write_text("7 tea  jam\n\n8\ttea\n")
    pairs, histories = read_log([tmp_path / "pairs.txt"]), read_log([tmp_path / "histories.txt"])
    assert rows_of(pairs) == rows_of(histories) == [(7, "tea"), (7, "jam"), (8, "tea")]
    assert pairs.times is None


def test_several_files_a_folder_and_a_glob_are_one_log_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(as_csv(SIMPLE[:2]))
    (tmp_path / "b.csv").write_bytes(as_csv(SIMPLE[2:]))
    (tmp_path / "notes.md").write_text("not a log")
    for sources in ([tmp_path], [tmp_path / "*.csv"], [tmp_path / "a.csv", tmp_path / "b.csv"]):
        assert rows_of(read_log(sources)) == SIMPLE


ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(
    lambda text: text == text.strip()
)


# Smaller numbers may be dates written yyyymmdd.
@given(st.lists(st.tuples(ids, ids, st.integers(100_000_000, 2_000_000_000)), min_size=1, max_size=30))
def test_any_text_ids_come_back_exactly_from_csv_jsonl_and_parquet(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "log.csv").write_bytes(as_csv(rows))
    (folder / "log.jsonl").write_bytes(as_jsonl(rows))
    wanted = [(str(user), str(item), time) for user, item, time in rows]
    for path in (folder / "log.csv", folder / "log.jsonl", as_parquet(rows, folder / "log.parquet")):
        found = [(str(user), str(item), time) for user, item, time in rows_of(read_log([path]))]
        assert found == wanted


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 50)), min_size=1, max_size=30))
def test_integer_ids_come_back_as_integers(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "log.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in pairs))
    (folder / "log.jsonl").write_text("".join(json.dumps({"user": u, "item": i}) + "\n" for u, i in pairs))
    (folder / "log.txt").write_text("".join(f"{u} {i}\n" for u, i in pairs))
    for path in sorted(folder.iterdir()):
        assert rows_of(read_log([path])) == pairs, path.name


def test_leading_zeros_keep_ids_text(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n007,1\n7,2\n")
    assert rows_of(read_log([tmp_path / "log.csv"])) == [("007", 1), ("7", 2)]


def test_numbers_that_json_and_parquet_call_text_stay_text(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"user": "1", "item": 5}\n{"user": "2", "item": 6}\n')
    assert rows_of(read_log([tmp_path / "log.jsonl"])) == [("1", 5), ("2", 6)]
    pl.DataFrame({"user": ["1"], "item": [5]}).write_parquet(tmp_path / "log.parquet")
    assert rows_of(read_log([tmp_path / "log.parquet"])) == [("1", 5)]


def test_whole_numbers_that_a_table_stored_as_floats_lose_their_point(tmp_path: Path) -> None:
    pl.DataFrame({"user": [1.0, None, 2.0], "item": [3, 4, 5]}).write_parquet(tmp_path / "log.parquet")
    log = read_log([tmp_path / "log.parquet"])
    assert rows_of(log) == [(1, 3), (2, 5)]
    assert "1 row without user was dropped." in log.notes


def test_blanks_around_ids_are_no_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user, item, time\n ann, 7, 10\nann,7 ,11\nbob,\u00a08,12\nbob,  ,13\n")
    log = read_log([tmp_path / "log.csv"])
    assert rows_of(log) == [("ann", 7, 10), ("ann", 7, 11), ("bob", 8, 12)]
    assert "1 row without item was dropped." in log.notes
    (tmp_path / "log.jsonl").write_text('{"user": " ann", "item": "7 "}\n')
    pl.DataFrame({"user": ["ann "], "item": [" 7"]}).write_parquet(tmp_path / "log.parquet")
    for name in ("log.jsonl", "log.parquet"):
        assert rows_of(read_log([tmp_path / name])) == [("ann", "7")]


def test_floats_that_are_whole_are_the_integers_they_mean(tmp_path: Path) -> None:
    pl.DataFrame({"user": [6.0, None, 7.0], "item": [1, 2, 3]}).write_parquet(tmp_path / "log.parquet")
    pl.read_parquet(tmp_path / "log.parquet").write_csv(tmp_path / "log.csv")
    (tmp_path / "log.jsonl").write_text('{"user": 6.0, "item": 1}\n{"user": 7, "item": 3.0}\n')
    assert (tmp_path / "log.csv").read_text().splitlines()[1] == "6.0,1"
    for name in ("log.csv", "log.parquet", "log.jsonl"):
        assert rows_of(read_log([tmp_path / name])) == [(6, 1), (7, 3)], name


def test_an_integer_and_the_same_as_a_float_are_one_id(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,title\n8,6.0,Tea\n7.00,6,Tea again\n")
    (tmp_path / "b.csv").write_text("user,item,title\n7,5,Jam\n8.0,6.0,Tea\n")
    log = read_log([tmp_path])
    assert rows_of(log) == [(8, 6), (7, 6), (7, 5), (8, 6)]
    assert log.user_ids.to_list() == [8, 7], "in the order of first appearance"
    assert log.item_columns is not None
    assert log.item_columns.rows() == [("6", "Tea"), ("5", "Jam")]


def test_a_catalogue_writes_its_ids_as_the_log_does(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id,title\n6.0,Tea\n 7,Jam\n")
    assert read_items(tmp_path / "items.csv").rows() == [("6", "Tea"), ("7", "Jam")]
    pl.DataFrame({"id": [6.0, 7.0], "title": ["Tea", "Jam"]}).write_parquet(tmp_path / "items.parquet")
    assert read_items(tmp_path / "items.parquet").rows() == [("6", "Tea"), ("7", "Jam")]
    (tmp_path / "versions.csv").write_text("item_id,title\n1.0,Tea\n1.10,Jam\n")
    assert read_items(tmp_path / "versions.csv").rows() == [("1.0", "Tea"), ("1.10", "Jam")]


@pytest.mark.parametrize("other", ["1.10", "x", "007", "007.0", "-0", "1e3", str(2**63)])
def test_one_id_that_is_no_integer_keeps_all_as_they_are_written(tmp_path: Path, other: str) -> None:
    (tmp_path / "log.csv").write_text(f"user,item\na,1.0\na,1\na,{other}\n")
    assert rows_of(read_log([tmp_path / "log.csv"])) == [("a", "1.0"), ("a", "1"), ("a", other)]


def test_floats_that_parquet_and_json_call_text_stay_text(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"user": "6.0", "item": 1}\n{"user": "6", "item": 2}\n')
    assert rows_of(read_log([tmp_path / "log.jsonl"])) == [("6.0", 1), ("6", 2)]
    users = pl.Series("user", ["1", "2"], dtype=pl.Categorical)
    pl.DataFrame([users, pl.Series("item", ["1.0", "1"])]).write_parquet(tmp_path / "log.parquet")
    assert rows_of(read_log([tmp_path / "log.parquet"])) == [("1", "1.0"), ("2", "1")]


def test_missing_users_items_and_times_are_dropped_and_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,time\na,1,10\n,2,10\nb,,10\nb,,11\nc,3,\n\nd,4,12\n")
    log = read_log([tmp_path / "log.csv"])
    assert rows_of(log) == [("a", 1, 10), ("d", 4, 12)]
    dropped = [note for note in log.notes if "dropped" in note]
    assert dropped == [
        "1 row without user was dropped.",
        "2 rows without item were dropped.",
        "1 row without time was dropped.",
    ]


def test_a_file_without_header_takes_columns_by_place(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("196\t242\t3\t881250949\n186\t302\t3\t891717742\n")
    log = read_log([tmp_path / "u.data"], ColumnRequest(user="1", item="2", time="4"))
    assert rows_of(log) == [(196, 242, 881250949), (186, 302, 891717742)]


def test_quotes_in_a_tab_separated_file_are_characters_unless_they_surround_a_field(tmp_path: Path) -> None:
    (tmp_path / "plain.tsv").write_text('user\titem\na\t"Toy Knife" Dagger\nb\t12" Single\n')
    assert rows_of(read_log([tmp_path / "plain.tsv"])) == [("a", '"Toy Knife" Dagger'), ("b", '12" Single')]
    (tmp_path / "quoted.tsv").write_text('"user"\t"item"\n"a"\t"tea\tgreen"\n')
    assert rows_of(read_log([tmp_path / "quoted.tsv"])) == [("a", "tea\tgreen")]


def test_a_tab_within_the_only_quotes_is_no_separator(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text('user\titem\na\t"tea\tgreen"\nb\tjam\n')
    assert rows_of(read_log([tmp_path / "log.tsv"])) == [("a", "tea\tgreen"), ("b", "jam")]


def test_columns_by_place_mean_that_the_first_line_is_data_unless_it_names_columns(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("ann,tea\nbob,jam\n")
    assert rows_of(read_log([tmp_path / "plain.csv"], ColumnRequest("1", "2"))) == [
        ("ann", "tea"),
        ("bob", "jam"),
    ]
    (tmp_path / "named.csv").write_text("user,item\nann,tea\n")
    assert rows_of(read_log([tmp_path / "named.csv"], ColumnRequest("1", "2"))) == [("ann", "tea")]


@pytest.mark.parametrize(
    "content",
    [
        "user,,,item,timestamp\n1,7,8,2,1577836800\n",
        ",,user,item,timestamp\n0,0,1,2,1577836800\n",
        "user;item;;;time\n1;2;9;9;1577836800\n",
        "user,item,time,,\n1,2,1577836800,,\n",
    ],
)
def test_columns_without_a_name_do_not_shift_the_others(tmp_path: Path, content: str) -> None:
    (tmp_path / "log.csv").write_text(content)
    assert rows_of(read_log([tmp_path / "log.csv"])) == [(1, 2, 1_577_836_800)]


def test_a_column_without_a_name_is_named_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,,,time\n1,7,8,1577836800\n")
    with pytest.raises(DataError, match=r"Columns: user, column 2, column 3, time\."):
        read_log([tmp_path / "log.csv"])
    log = read_log([tmp_path / "log.csv"], ColumnRequest(item="3"))
    assert rows_of(log) == [(1, 8, 1_577_836_800)]


def test_a_first_row_that_repeats_a_text_can_be_read_by_place(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,a,2020-01-01\nb,a,2020-01-02\n")
    log = read_log([tmp_path / "log.csv"], ColumnRequest("1", "2", "3"))
    assert rows_of(log) == [("a", "a", 1_577_836_800), ("b", "a", 1_577_923_200)]


@pytest.mark.parametrize("end", ["", ",2020-01-01"])
@pytest.mark.parametrize("header", ["kunde,artikel", "käufer,käufer-nr"])
def test_text_above_numbers_or_dates_is_a_header_though_columns_are_named_by_place(
    tmp_path: Path, header: str, end: str
) -> None:
    time = ",datum" if end else ""
    (tmp_path / "log.csv").write_text(f"{header}{time}\n7,tea{end}\n8,jam{end}\n")
    log = read_log([tmp_path / "log.csv"], ColumnRequest("1", "2", "3" if end else None))
    assert [row[:2] for row in rows_of(log)] == [(7, "tea"), (8, "jam")]
    assert log.notes[0].startswith(f"Columns: user = {header.partition(',')[0]}, item = ")


def test_nothing_above_numbers_is_a_missing_value_and_no_header(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("ann,tea,\nbob,jam,7\n")
    log = read_log([tmp_path / "log.csv"], ColumnRequest("1", "2"))
    assert rows_of(log) == [("ann", "tea"), ("bob", "jam")]


def test_without_usual_names_a_last_column_of_epoch_times_is_the_time(tmp_path: Path) -> None:
    for first_line in ("", "kunde,artikel,sterne,zeit\n"):
        (tmp_path / "log.csv").write_text(f"{first_line}1,10,5,978300761\n1,20,3,978300760\n")
        log = read_log([tmp_path / "log.csv"], ColumnRequest("1", "2"))
        assert rows_of(log) == [(1, 10, 978300761), (1, 20, 978300760)]
        assert log.notes[0].endswith("time = zeit." if first_line else "time = column 4.")
        assert read_log([tmp_path / "log.csv"], ColumnRequest("1", "2", "none")).times is None


def test_large_ids_in_the_last_column_are_no_times(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("1,978300761\n1,978300760\n")
    assert rows_of(read_log([tmp_path / "log.csv"])) == [(1, 978300761), (1, 978300760)]
    (tmp_path / "log.csv").write_text("1,5,978300761\n1,3,978300760\n")
    log = read_log([tmp_path / "log.csv"], ColumnRequest("1", "3"))
    assert rows_of(log) == [(1, 978300761), (1, 978300760)]


def test_a_date_with_an_unusual_name_sorts_the_history(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,purchase_date\nann,jam,2020-01-02\nann,tea,2020-01-01\n")
    log = read_log([tmp_path / "log.csv"])
    assert rows_of(log) == [("ann", "jam", 1_577_923_200), ("ann", "tea", 1_577_836_800)]
    assert log.notes[0] == "Columns: user = user, item = item, time = purchase_date."


def test_brackets_in_a_name_do_not_read_another_file(tmp_path: Path) -> None:
    (tmp_path / "log[1].jsonl").write_text('{"user": "a", "item": 1}\n')
    (tmp_path / "log1.jsonl").write_text('{"user": "b", "item": 2}\n')
    assert rows_of(read_log([tmp_path / "log[1].jsonl"])) == [("a", 1)]


def test_a_byte_order_mark_is_no_part_of_the_first_user(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("\ufeff7 tea\n7 jam\n")
    assert rows_of(read_log([tmp_path / "log.txt"])) == [(7, "tea"), (7, "jam")]


def test_rows_of_user_item_and_time_between_blanks_are_a_table(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("1 10 978300760\n1 20 978300761\n")
    log = read_log([tmp_path / "log.txt"], ColumnRequest(user="1", item="2", time="3"))
    assert rows_of(log) == [(1, 10, 978300760), (1, 20, 978300761)]
    with pytest.raises(DataError, match="Name it with `user`"):
        read_log([tmp_path / "log.txt"])


def test_a_time_column_can_be_left_aside(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,date\na,1,12/31/2020\n")
    assert rows_of(read_log([tmp_path / "log.csv"], ColumnRequest(time="none"))) == [("a", 1)]


@pytest.mark.parametrize("most_held", [log_reading.MOST_TITLES, 1])
def test_titles_in_the_log_are_kept_once_per_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_held: int
) -> None:
    """The first one, however many files and titles there are."""
    monkeypatch.setattr(log_reading, "MOST_TITLES", most_held)
    (tmp_path / "log-1.csv").write_text('user,item,title\na,1,"Tea, green"\nb,1,Tea\nb,2,Jam\n')
    (tmp_path / "log-2.csv").write_text("user,item,title\na,3,Milk\nb,1,Coffee\n")
    columns = read_log([tmp_path / "log-1.csv", tmp_path / "log-2.csv"]).item_columns
    assert columns is not None
    assert columns.rows() == [("1", "Tea, green"), ("2", "Jam"), ("3", "Milk")]


def test_blanks_around_titles_are_no_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,title\na,1,  \na,1, Tea \n")
    columns = read_log([tmp_path / "log.csv"]).item_columns
    assert columns is not None
    assert columns.rows() == [("1", "Tea")]
    assert read_items(tmp_path / "log.csv")["title"].to_list() == [None]
    (tmp_path / "log.csv").write_text("user,item,title\na,1, Tea \n")
    assert read_items(tmp_path / "log.csv")["title"].to_list() == ["Tea"]


def test_another_encoding_is_read_when_named(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes("user,item\nZoë,thé\n".encode("latin-1"))
    assert rows_of(read_log([tmp_path / "log.csv"], hints=Hints(encoding="latin-1"))) == [("Zoë", "thé")]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\n\n\n", "only blank lines"),
        ("a.csv", b"customer_name,thing\na,b\n", "Columns: customer_name, thing"),
        ("a.csv", b"user,item,time\na,1,5\nb,2\n", r"a\.csv:3: expected 3 fields separated by ',', found 2"),
        ("a.csv", b"user,item\na,1\nb,2,3\n", r"a\.csv:3: expected 2 fields .* found 3"),
        ("a.csv", b'user,item,note\na,1,"x\ny"\nb,2\n', r"a\.csv:4: expected 3 fields .* found 2"),
        ("a.csv", b"user,item\na,\xe9\n", r"a\.csv:2 is not UTF-8 text.*`encoding=\"latin-1\"`"),
        (
            "a.csv",
            b"user,item,time\na,1,2024-01-01\nb,2,yesterday\n",
            r"1 of 2 times in column 'time' cannot be read: 'yesterday' \(.*a\.csv:3\)\. Expected ISO dates",
        ),
        (
            "a.csv.gz",
            gzip.compress(b"user,item\n" + b"a,1\n" * 5000, mtime=0)[:-30],
            "the file is incomplete",
        ),
        ("a.csv.zst", zstandard.compress(b"user,item\n" + b"a,1\n" * 5000)[:-5], "the file is incomplete"),
        ("a.jsonl", b'{"user": 1, "item": 2}\n{"user": 1 "item": 2}\n', r"a\.jsonl:2: not valid JSON"),
        ("a.jsonl", b'{"user": 1, "item": 2}\n[1, 2]\n', r"a\.jsonl:2: expected one JSON object"),
        ("a.parquet", b"PAR1 is not enough", "cannot be read|is incomplete"),
        ("a.csv", b"user,user,item\na,b,1\n", "two columns called 'user'"),
        (
            "a.csv",
            b"user,item,time\na,1,1600000000\na,2,1600000001\nb,2,1600000000000\n",
            r"'1600000000000' \(.*a\.csv:4\).*it looks like milliseconds since 1970, "
            "while the log began with seconds",
        ),
        (
            "a.jsonl",
            b'{"user": {"id": 1}, "item": 2}\n',
            r"^`user`: column 'user' of .*a\.jsonl holds Struct.* Expected single ids",
        ),
        ("a.txt", b"1 2\n3\n", r"a\.txt:2: found a user without items"),
    ],
)
def test_bad_files_get_an_error_that_says_where(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read_log([tmp_path / name])


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.csv", 'user,item,title,time\n\na,1,"two\nlines",5\n,,,\na,2,,soon\n', "a.csv:6"),
        ("a.tsv", "a\t1\t1600000000\na\t2\tsoon\n", "a.tsv:2"),
        (
            "a.jsonl",
            '\n{"user": 1, "item": "\\"", "time": 5}\n{"user": 1, "item": 2, "time": "soon"}\n',
            "a.jsonl:3",
        ),
    ],
)
def test_a_bad_time_in_a_text_file_is_named_by_its_line(
    tmp_path: Path, name: str, content: str, place: str
) -> None:
    (tmp_path / name).write_text(content)
    columns = ColumnRequest("1", "2", "3") if name == "a.tsv" else ColumnRequest()
    with pytest.raises(DataError, match=rf"'soon' \({re.escape(str(tmp_path / place))}\)"):
        read_log([tmp_path / name], columns)


def test_rows_whose_time_cannot_be_read_are_dropped_on_request_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user,item,time\na,1,soon\na,2,5\n,3,later\na,4,\nb,5,6\n")
    log = read_log([path], drop_bad_rows=True)
    assert rows_of(log) == [("a", 2, 5), ("b", 5, 6)]
    shown = f"'soon' ({path}:2), 'later' ({path}:4)"
    assert f"`drop_bad_rows=True` dropped 2 of 4 actions, whose time cannot be read: {shown}." in log.notes
    assert "1 row without time was dropped." in log.notes


def test_if_no_time_can_be_read_at_all_the_rows_are_not_to_blame(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,time\na,1,31/12/2020\na,2,30/12/2020\n")
    with pytest.raises(
        DataError, match=r"2 of 2 times .* The day comes first: pass `time_format=\"%d/%m/%Y\"`\.$"
    ):
        read_log([tmp_path / "a.csv"], drop_bad_rows=True)


def test_a_large_file_that_is_cut_off_is_named_though_it_begins_well(tmp_path: Path) -> None:
    rows = "".join(f"user-{i * 7919 % 100_003},{i * 104_729 % 1_000_003}\n" for i in range(200_000))
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(b"user,item\n" + rows.encode())[:-100])
    with pytest.raises(DataError, match=r"log\.csv\.gz ends too early"):
        read_log([tmp_path / "log.csv.gz"])


def test_a_log_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no file matches"):
        read_log([tmp_path / "nothing*.csv"])
    with pytest.raises(NotFoundError, match="has no CSV"):
        read_log([tmp_path])


def test_files_with_and_without_times_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,time\na,1,5\n")
    (tmp_path / "b.csv").write_text("user,item\na,1\n")
    with pytest.raises(
        DataError, match=r"Some files have a time column and some have none.*a\.csv and .*b\.csv"
    ):
        read_log([tmp_path])
