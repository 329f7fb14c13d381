"""Ids in and out, and finding an item by its title."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.errors import DataError
from bert4rec.recommend.catalogue import Catalogue


def catalogue(titles: list[str | None] | None, ids: list[str] | None = None) -> Catalogue:
    count = len(titles) if titles is not None else len(ids or [])
    return Catalogue(ids or [f"id-{n}" for n in range(1, count + 1)], titles, np.arange(count, 0, -1))


def test_known_ids_keep_their_order_and_unknown_ones_are_named_once() -> None:
    numbers, unknown = catalogue(None, ["a", "b", "c"]).numbers(["c", "x", "a", "c", "y", "x"])
    assert numbers.tolist() == [3, 1, 3]
    assert numbers.dtype == np.int32
    assert unknown == ["x", "y"]


def test_a_number_and_its_text_name_the_same_item() -> None:
    assert catalogue(None, ["10", "20"]).numbers([20, "20", np.int64(10)])[0].tolist() == [2, 2, 1]


def numbers_by_text(ids: pl.Series, shop: Catalogue) -> list[int]:
    """The plain way, for columns: every id becomes a text, which is looked for among all."""
    if ids.dtype.is_float():
        whole = ids.cast(pl.Int64, strict=False)
        ids = whole.set(whole != ids, None)
    text = ids.cast(pl.String).str.strip_chars()
    if shop.whole_numbers:
        text = text.str.replace(r"\.0+$", "")
    return [shop.ids.index(each) + 1 if each in shop.ids else 0 for each in text.to_list()]


BIGGEST = 2**63 - 1
WHOLE = st.one_of(
    st.integers(-9, 9), st.integers(-BIGGEST - 1, BIGGEST), st.sampled_from([-BIGGEST - 1, BIGGEST])
)
WORDS = st.text("a0.- \u00a0é", max_size=4)
SPELT = st.one_of(
    WORDS, st.builds("{}{}{}".format, st.sampled_from(["", " "]), WHOLE, st.sampled_from(["", ".0", " "]))
)
FRACTIONS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-9, 9).map(float)


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    """As `prepare` makes them: without blanks around ids, and whole numbers as integers are written."""
    whole_numbers = draw(st.booleans())
    around = draw(st.sampled_from([0, 10**12, BIGGEST - 9, 9 - BIGGEST - 1]))
    near = st.integers(-9, 9).map(lambda number: around + number)
    ids = (near if draw(st.booleans()) else WHOLE).map(str)
    chosen = draw(st.lists(ids if whole_numbers else ids | WORDS.map(str.strip), unique=True, max_size=8))
    return Catalogue(chosen, None, np.arange(len(chosen), 0, -1), whole_numbers=whole_numbers)


@given(shop=catalogues(), data=st.data())
def test_a_column_of_any_type_finds_the_items_that_its_texts_find(
    shop: Catalogue, data: st.DataObject
) -> None:
    kind, values = data.draw(
        st.sampled_from(
            [
                (pl.Int64, WHOLE),
                (pl.Int8, st.integers(-128, 127)),
                (pl.UInt64, st.integers(0, 2**64 - 1)),
                (pl.UInt32, st.integers(0, 9)),
                (pl.Float64, FRACTIONS),
                (pl.Float32, FRACTIONS),
                (pl.String, SPELT),
            ]
        )
    )
    theirs = [int(each) for each in shop.ids if re.fullmatch(r"-?[0-9]+", each)]
    if kind == pl.String:
        values = values | st.sampled_from([*shop.ids, ""]).map(" {} ".format)
    elif kind == pl.Int64 and theirs:
        values = values | st.sampled_from(theirs)
    column = pl.Series(data.draw(st.lists(st.none() | values, max_size=12)), dtype=kind, strict=False)
    found = shop.numbers_of_column(column)
    assert found.dtype == np.int32
    assert found.tolist() == numbers_by_text(column, shop)


FILMS = ["Alien", "Aliens: The Return", "The Third Man", "A Man for All Seasons", None, "Mañana, Man!"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("alien", [1, 2]),
        ("ALIENS", [2]),
        ("man", [3, 4, 6]),
        ("man th", [3]),
        ("th man", [3]),
        ("lien", []),
        ("mañana man", [6]),
        ("id-4", [4]),
        ("ID-", [1, 2, 3, 4, 5, 6]),
        ("", []),
        (" \n ", []),
        ("...", []),
    ],
)
def test_words_find_titles_whose_words_begin_with_them_popular_ones_first(
    text: str, numbers: list[int]
) -> None:
    assert catalogue(FILMS).search(text) == numbers


def test_titles_come_before_ids_and_the_very_id_before_longer_ones() -> None:
    shop = catalogue(["x", "y", "Apollo 13"], ["131", "13", "7"])
    assert shop.search("13") == [3, 2, 1]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SKU-0012", 1),  # upper and lower case
        (" sku-012", 1),  # a letter left out
        ("sku-00122", 1),  # one too many
        ("sku_0012", 1),
        ("sku-0029", 2),
        ("sku-0102", 1),  # two letters in the wrong order
        ("sku-0022", 1),  # both are one slip away; the first is more popular
        ("toy story", 3),
        ("Toy Story 2", 2),
        ("toy", 3),
        ("to", None),
        ("story", None),
        ("unheard-of", None),
        ("x" * 10_000, None),
        ("", None),
    ],
)
def test_an_unknown_id_leads_to_the_item_that_was_meant(text: str, number: int | None) -> None:
    titles = ["Heat (1995)", "Toy Story 2 (1999)", "Toy Story (1995)", None]
    shop = catalogue(titles, ["sku-0012", "sku-0020", "sku-9000", "other"])
    assert shop.near(text) == number
    assert catalogue(None, ["sku-0012", "sku-0020"]).near("toy story") is None


def test_no_more_is_found_than_was_asked_for() -> None:
    assert catalogue(["same"] * 50).search("same", limit=3) == [1, 2, 3]


def test_the_first_eight_words_of_a_search_count() -> None:
    shop = catalogue(["one two three four five six seven eight"])
    assert shop.search("one one two three four five six seven eight nine") == [1]
    assert shop.search("one two three four five six seven nine") == []


def test_without_titles_ids_can_be_searched() -> None:
    assert catalogue(None, ["red", "rose", "blue"]).search("R") == [1, 2]


def words_of(text: str) -> list[str]:
    return re.sub(r"[^\w]+", " ", text.casefold()).split()


@given(st.lists(st.text("ab _-\nÄß", max_size=8), min_size=1, max_size=12), st.text("ab _-\nÄß", max_size=5))
def test_search_finds_what_looking_at_every_title_finds(titles: list[str], text: str) -> None:
    wanted = words_of(text)
    expected = [
        number
        for number, title in enumerate(titles, start=1)
        if wanted and all(any(word.startswith(each) for word in words_of(title)) for each in wanted)
    ]
    ids = [f"%{number}" for number in range(len(titles))]
    assert catalogue(list(titles), ids).search(text) == expected


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    before = Catalogue(["ä", "b\n"], ["Tïtle", None], np.array([3, 1]), whole_numbers=False)
    before.write(tmp_path / "catalogue.json")
    after = Catalogue.read(tmp_path / "catalogue.json")
    assert (after.ids, after.titles, after.counts.tolist()) == (["ä", "b\n"], ["Tïtle", None], [3, 1])


@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", '{"ids": ["a"], "counts": "many"}'])
def test_a_damaged_catalogue_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "catalogue.json").write_text(content)
    with pytest.raises(DataError, match=r"catalogue\.json is damaged"):
        Catalogue.read(tmp_path / "catalogue.json")


def test_whole_numbers_of_the_log_are_remembered_as_such(tmp_path: Path) -> None:
    table = pl.DataFrame({"number": [1, 2], "id": [70, 8], "count": [5, 2], "title": ["x", None]})
    table.write_parquet(tmp_path / "items.parquet")
    read = Catalogue.read_table(tmp_path / "items.parquet")
    assert (list(read.ids), read.titles, read.whole_numbers) == (["70", "8"], ["x", None], True)
