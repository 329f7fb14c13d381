import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from bert4rec.errors import DataError
from bert4rec.logs import readers
from bert4rec.sources.publishers import (
    read_amazon_items,
    read_amazon_ratings,
    read_amazon_reviews,
    read_ml_1m,
    read_ml_1m_items,
    read_ml_20m,
    read_ml_20m_items,
    read_ml_100k,
    read_ml_100k_items,
    read_pairs,
    read_steam,
    read_steam_items,
)

Read = Callable[[Path], Iterator[pl.DataFrame]]
SECOND = 1_000_000

RATINGS: dict[str, tuple[Read, str]] = {
    "tabs": (read_ml_100k, "196\t242\t3\t881250949\n186\t302\t3\t891717742\n"),
    "colons": (read_ml_1m, "196::242::3::881250949\n186::302::3::891717742\n"),
    "csv": (read_ml_20m, "userId,movieId,rating,timestamp\n196,242,3.5,881250949\n186,302,3.0,891717742\n"),
    "amazon": (read_amazon_ratings, "196,242,5.0,881250949\n186,302,3.0,891717742\n"),
    "amazon with header": (
        read_amazon_ratings,
        "UserId,ProductId,Rating,Timestamp\n196,242,5.0,881250949\n186,302,3.0,891717742\n",
    ),
}
EXPECTED = [("196", "242", 881250949 * SECOND), ("186", "302", 891717742 * SECOND)]
STEAM_LINE = "{u'username': u'Ann', u'product_id': u'10', u'date': u'2018-01-05', u'text': u'good'}\n"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(read: Read, path: Path) -> list[tuple[object, ...]]:
    return pl.concat(read(path)).rows()


@pytest.mark.parametrize("name", RATINGS)
def test_ratings_give_users_items_and_times_in_the_order_of_the_file(name: str, tmp_path: Path) -> None:
    read, content = RATINGS[name]
    (frame,) = read(write(tmp_path / "ratings", content))
    assert frame.schema == {"user": pl.String, "item": pl.String, "time": pl.Int64}
    assert frame.rows() == EXPECTED


@pytest.mark.parametrize("name", RATINGS)
def test_line_ends_blank_lines_and_a_byte_order_mark_change_nothing(name: str, tmp_path: Path) -> None:
    read, content = RATINGS[name]
    odd = "\ufeff" + content.replace("\n", "\r\n\r\n").rstrip()
    assert rows(read, write(tmp_path / "ratings", odd)) == EXPECTED


@pytest.mark.parametrize("name", RATINGS)
def test_compressed_ratings_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    read, content = RATINGS[name]
    assert rows(read, write(tmp_path / "ratings.gz", gzip.compress(content.encode()))) == EXPECTED


def test_ids_keep_their_leading_zeros(tmp_path: Path) -> None:
    path = write(tmp_path / "ratings_Beauty.csv", "A1,0205616461,5.0,1369699200\n")
    assert rows(read_amazon_ratings, path) == [("A1", "0205616461", 1369699200 * SECOND)]


def test_batches_follow_each_other_without_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "ROWS_PER_BATCH", 100)
    lines = [f"{i}::{i * 7}::5::{i}" for i in range(1000)]
    frames = list(read_ml_1m(write(tmp_path / "ratings.dat", "\n".join(lines))))
    assert len(frames) > 1
    assert pl.concat(frames).rows() == [(str(i), str(i * 7), i * SECOND) for i in range(1000)]


@pytest.mark.parametrize("bad", ["1::2::3", "1::2::3::4::5", "1::2::3::soon", "1 2 3 4", "1::2::3::"])
def test_a_line_that_does_not_fit_is_named(bad: str, tmp_path: Path) -> None:
    path = write(tmp_path / "ratings.dat", f"1::2::3::4\n\n{bad}\n1::2::3::4\n")
    with pytest.raises(DataError) as error:
        list(read_ml_1m(path))
    assert str(error.value).startswith(f"{path}:3: expected 4 fields separated by '::'")
    assert repr(bad) in str(error.value)


def test_a_bad_line_is_named_in_a_later_batch_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "ROWS_PER_BATCH", 100)
    lines = [f"{i}\t1\t5\t1" for i in range(1000)]
    lines[777] = "777\t1"
    with pytest.raises(DataError, match=r"u\.data:778: expected 4 fields"):
        list(read_ml_100k(write(tmp_path / "u.data", "\n".join(lines))))


def test_a_header_is_only_allowed_where_publishers_write_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=":1: expected 4 fields"):
        list(read_ml_1m(write(tmp_path / "ratings.dat", "user::item::rating::time\n1::2::3::4\n")))


@pytest.mark.parametrize(
    "read", [read_ml_100k, read_ml_1m, read_ml_20m, read_amazon_reviews, read_steam, read_pairs]
)
@pytest.mark.parametrize(
    "content", [b"", b"\n\n", gzip.compress(b"")], ids=["nothing", "blank lines", "gzip"]
)
def test_an_empty_file_is_said_to_be_empty(read: Read, content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        list(read(write(tmp_path / "file", content)))


def test_a_gzip_that_was_cut_off_is_said_to_be(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f"{i}::{i * i}::5::{i}\n" for i in range(5000)).encode())
    with pytest.raises(DataError, match="ends too early"):
        list(read_ml_1m(write(tmp_path / "ratings.dat.gz", packed[: len(packed) // 2])))


def test_a_wrong_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "ratings.csv", b"userId,movieId,rating,timestamp\n1,2,3,4\ncaf\xe9,2,3,4\n")
    with pytest.raises(DataError, match=r"ratings\.csv:3 is not UTF-8"):
        list(read_ml_20m(path))


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_the_authors_files_have_users_and_items_but_no_times(separator: str, tmp_path: Path) -> None:
    path = write(tmp_path / "ml-1m.txt", f"1{separator}10 \n1{separator}007\n2{separator}10\n")
    (frame,) = read_pairs(path)
    assert frame.schema == {"user": pl.String, "item": pl.String}
    assert frame.rows() == [("1", "10"), ("1", "007"), ("2", "10")]


@pytest.mark.parametrize("bad", ["1", "1 2 3"])
def test_a_pair_needs_two_words(bad: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"beauty\.txt:2: expected two words"):
        list(read_pairs(write(tmp_path / "beauty.txt", f"1 2\n{bad}\n1 3\n")))


def test_steam_reviews_are_read_however_their_text_looks(tmp_path: Path) -> None:
    lines = (
        "{u'hours': 0.5, u'username': u'Ann', u'product_id': u'10', u'date': u'2018-01-05', u'text': u'good'}\n"
        "{u'date': u'2017-12-31', u'text': u\"'s u'username': u''\", u'product_id': u'20', u'username': u'caf\\xe9'}\n"
        "{u'username': u'\\ud83d\\ude00', u'product_id': 30, u'date': u'1970-01-02', u'text': u'\\N{BLACK STAR}'}\n"
    )
    (frame,) = read_steam(write(tmp_path / "steam_reviews.json.gz", gzip.compress(lines.encode())))
    assert frame.schema == {"user": pl.String, "item": pl.String, "time": pl.Int64}
    assert frame.rows() == [
        ("Ann", "10", 1515110400 * SECOND),
        ("café", "20", 1514678400 * SECOND),
        ("😀", "30", 86400 * SECOND),
    ]


def test_what_a_steam_review_lacks_is_missing(tmp_path: Path) -> None:
    lines = "{u'username': u'Ann', u'product_id': None}\n{u'date': u'1970-01-01', u'x': u'\u2605'}\n"
    assert rows(read_steam, write(tmp_path / "s", lines)) == [("Ann", None, None), (None, None, 0)]


@pytest.mark.parametrize(
    "bad", ["{u'username': u'Ann'", "['Ann']", "{u'username': u'Ann', u'x': open('y')}", "user 1"]
)
def test_a_steam_line_that_is_no_dictionary_is_named(bad: str, tmp_path: Path) -> None:
    path = write(tmp_path / "steam_reviews.json", STEAM_LINE + bad + "\n")
    with pytest.raises(DataError, match=r"steam_reviews\.json:2: expected a dictionary as Python writes it"):
        list(read_steam(path))


def test_a_day_that_is_none_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "steam_reviews.json", STEAM_LINE + STEAM_LINE.replace("01-05", "13-05"))
    with pytest.raises(DataError, match=r"json:2: expected 'date' to be a day such as 2018-01-05"):
        list(read_steam(path))


REVIEW = {
    "reviewerID": "A1",
    "asin": "0205616461",
    "helpful": [0, 1],
    "reviewText": 'so "good" ★',
    "overall": 5.0,
}


@pytest.mark.parametrize(
    "write_line", [json.dumps, repr, lambda review: json.dumps(review, ensure_ascii=False)]
)
def test_amazon_reviews_are_json_or_python(write_line: Callable[[object], str], tmp_path: Path) -> None:
    lines = "".join(
        write_line({**REVIEW, "unixReviewTime": time}) + "\n" for time in (1369699200, 1355443200)
    )
    assert rows(read_amazon_reviews, write(tmp_path / "reviews_Beauty.json", lines)) == [
        ("A1", "0205616461", 1369699200 * SECOND),
        ("A1", "0205616461", 1355443200 * SECOND),
    ]


def test_an_amazon_review_cut_in_the_middle_is_named(tmp_path: Path) -> None:
    line = json.dumps({**REVIEW, "unixReviewTime": 1369699200})
    path = write(tmp_path / "reviews_Beauty.json", f"{line}\n{line[:40]}\n")
    with pytest.raises(DataError, match=r"json:2: expected a dictionary as JSON writes it"):
        list(read_amazon_reviews(path))


def test_the_films_of_ml_100k_have_titles_and_genres(tmp_path: Path) -> None:
    flags = "|".join("0001110000000000000")
    lines = (
        f"1|Misérables, Les (1995)|01-Jan-1995||http://x|{flags}\n2|Unknown||||{'|'.join('1' + '0' * 18)}\n"
    )
    assert read_ml_100k_items(write(tmp_path / "u.item", lines.encode("latin-1"))).to_dicts() == [
        {"id": "1", "title": "Misérables, Les (1995)", "genres": "Animation|Children's|Comedy"},
        {"id": "2", "title": "Unknown", "genres": "unknown"},
    ]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "utf-8-sig"])
def test_the_films_of_ml_1m_are_read_in_either_encoding(encoding: str, tmp_path: Path) -> None:
    path = write(tmp_path / "movies.dat", "73::Misérables, Les (1995)::Drama|Musical\r\n".encode(encoding))
    assert read_ml_1m_items(path).rows() == [("73", "Misérables, Les (1995)", "Drama|Musical")]


def test_the_films_of_ml_20m_may_have_commas_in_their_titles(tmp_path: Path) -> None:
    lines = 'movieId,title,genres\n11,"American President, The",Comedy|Drama\n12,"Say ""Hi""",(no genres listed)\n'
    assert read_ml_20m_items(write(tmp_path / "movies.csv", lines)).to_dicts() == [
        {"id": "11", "title": "American President, The", "genres": "Comedy|Drama"},
        {"id": "12", "title": 'Say "Hi"', "genres": "(no genres listed)"},
    ]


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_ml_100k_items, "1|Toy Story|01-Jan-1995\n"),
        (read_ml_1m_items, "1::Toy Story\n"),
        (read_ml_20m_items, "movieId,title,genres\n1,Toy Story\n"),
    ],
)
def test_an_item_line_with_too_few_fields_is_named(
    read: Callable[[Path], pl.DataFrame], content: str, tmp_path: Path
) -> None:
    number = content.count("\n")
    with pytest.raises(DataError, match=rf"items:{number}: expected \d+ fields"):
        read(write(tmp_path / "items", content))


def test_an_item_file_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress(b"1::Toy Story::Comedy\n" * 100)
    with pytest.raises(DataError, match="cannot be read"):
        read_ml_1m_items(write(tmp_path / "movies.dat.gz", packed[:-20]))


def test_amazon_products_have_titles_brands_and_categories(tmp_path: Path) -> None:
    lines = (
        "{'asin': '0205616461', 'title': \"Bio-Active\", 'brand': 'X', 'categories': [['Beauty', 'Skin Care']], "
        "'related': {'also_bought': ['B1', 'B2']}, 'salesRank': {'Beauty': 461765}}\n"
        "{'asin': '0558925278', 'categories': [['Beauty']]}\n"
        "{'asin': '0558925278', 'title': 'the same again'}\n"
    )
    path = write(tmp_path / "meta_Beauty.json.gz", gzip.compress(lines.encode()))
    assert read_amazon_items(path).to_dicts() == [
        {"id": "0205616461", "title": "Bio-Active", "brand": "X", "categories": "Beauty|Skin Care"},
        {"id": "0558925278", "title": None, "brand": None, "categories": "Beauty"},
    ]


def test_steam_games_without_a_title_go_by_their_app_name(tmp_path: Path) -> None:
    lines = (
        "{u'id': u'761140', u'title': u'Lost Kitty', u'app_name': u'Kitty', u'genres': [u'Action', u'Indie']}\n"
        "{u'app_name': u'Log Challenge', u'price': None, u'id': u'773570'}\n"
        "{u'url': u'http://store.steampowered.com'}\n"
    )
    assert read_steam_items(write(tmp_path / "steam_games.json", lines)).to_dicts() == [
        {"id": "761140", "title": "Lost Kitty", "genres": "Action|Indie"},
        {"id": "773570", "title": "Log Challenge", "genres": None},
    ]
