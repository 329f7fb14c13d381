"""A catalogue in files answers as one in memory does, whatever ids and titles are like."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert4rec.errors import DataError, NotFoundError
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.names import mapped_names
from bert4rec.recommend.names.texts import Texts

FILE = "catalogue.json"
LETTERS = "aAbB 0.-\n ßÄéİ🍵"
TEXTS = st.text(LETTERS, max_size=6)
AWKWARD = [" 7 ", "7", "-7", "7.0", "a", "A", "ß", "SS", "ss", "a\nb", "b", "", "🍵", "é", "e\u0301"]
TITLES = [
    "Green Tea",
    None,
    "",
    "green (tea) bag",
    "a\nb",
    "Tea!",
    "GREEN",
    "ß tea",
    "!?",
    "🍵 tea",
    None,
    " x",
    "x",
    "İ",
    "-",
]


def written(shop: Catalogue, folder: Path) -> Catalogue:
    shop.write(folder / FILE, in_files=True)
    return replace(Catalogue.read(folder / FILE), untrained=shop.untrained)


@st.composite
def shops(draw: st.DrawFn) -> Catalogue:
    whole = draw(st.booleans())
    ids = draw(
        st.lists(st.integers(-99, 99).map(str) if whole else TEXTS, min_size=1, max_size=30, unique=True)
    )
    titles = st.lists(st.none() | TEXTS, min_size=len(ids), max_size=len(ids))
    untrained = draw(st.sets(st.integers(1, len(ids)), max_size=len(ids) - 1))
    return Catalogue(
        ids,
        draw(st.none() | titles),
        np.arange(len(ids), 0, -1),
        whole_numbers=whole,
        untrained=np.array(sorted(untrained), np.int32),
    )


def assert_alike(ours: Catalogue, theirs: Catalogue, text: str) -> None:
    assert ours.number_of(text) == theirs.number_of(text)
    assert ours.search(text) == theirs.search(text)
    assert ours.search(text, limit=2) == theirs.search(text, limit=2)
    assert ours.near(text) == theirs.near(text)
    for ids in ([text], [text, *theirs.ids], [f" {each} " for each in theirs.ids]):
        (found, unknown), (expected, strange) = ours.numbers(ids), theirs.numbers(ids)
        assert (found.tolist(), unknown) == (expected.tolist(), strange)


@settings(deadline=None)
@given(shop=shops(), text=TEXTS)
@example(Catalogue(AWKWARD, TITLES, np.arange(15)), "tea")
@example(Catalogue(AWKWARD, TITLES, np.arange(15)), "green (")
@example(Catalogue(AWKWARD, TITLES, np.arange(15), untrained=np.array([5, 11])), "A")
def test_items_are_found_in_files_as_they_are_in_memory(shop: Catalogue, text: str) -> None:
    with TemporaryDirectory() as folder:
        ours = written(shop, Path(folder))
        for wanted in (
            text,
            text.upper(),
            *shop.ids[:5],
            *(title or "" for title in (shop.titles or ())[:5]),
        ):
            assert_alike(ours, shop, wanted)
        numbers = range(1, len(shop) + 1)
        assert [ours.id_of(each) for each in numbers] == [shop.id_of(each) for each in numbers]
        assert [ours.title_of(each) for each in numbers] == [shop.title_of(each) for each in numbers]
        assert (ours.num_known, ours.known_id) == (shop.num_known, shop.known_id)
        assert ours.known_numbers.tolist() == shop.known_numbers.tolist()
        assert ours.counts.tolist() == shop.counts.tolist()
        assert ours.id_column.to_list() == shop.id_column.to_list()
        assert ours.title_column.to_list() == shop.title_column.to_list()
        column = pl.Series([*shop.ids, text])
        assert ours.numbers_of_column(column).tolist() == shop.numbers_of_column(column).tolist()


def test_long_lists_and_many_pieces_of_text_are_searched_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_names, "_LINES_AT_ONCE", 16)
    ids = [f"item-{number}" for number in range(500)]
    titles = [f"{'rare ' * (number % 97 == 0)}word {number}" for number in range(500)]
    shop = Catalogue(ids, titles, np.arange(500, 0, -1))
    ours = written(shop, tmp_path)
    for text in ("rare", "rare 9", "word", "ITEM-4", "item", "item-499x", "word 49", "rare word 0", "none"):
        assert_alike(ours, shop, text)
    assert ours.search("item", limit=300) == shop.search("item", limit=300)


def test_ids_with_the_same_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_names, "crc32", len)
    ours = written(Catalogue(["aa", "b", "cc", "dd"], None, np.arange(4)), tmp_path)
    assert ours.numbers(["dd", "aa", "ee", "b", "fff"])[0].tolist() == [4, 1, 2]


def test_half_a_letter_is_unknown_rather_than_an_error(tmp_path: Path) -> None:
    """JSON can name one; UTF-8 cannot write it."""
    ours = written(Catalogue(["a"], ["b"], np.ones(1, np.int64)), tmp_path)
    assert ours.number_of("\ud83c") is None
    assert ours.search("\ud83c") == []
    with pytest.raises(NotFoundError, match="Unknown item"):
        ours.known("\ud83c and more")


@given(st.lists(st.none() | TEXTS, max_size=20))
def test_texts_are_what_arrow_takes_them_for(texts: list[str | None]) -> None:
    ours = Texts.of(texts)
    buffers = [
        None if each is None else pa.py_buffer(each) for each in (ours.valid, ours.offsets, ours.content)
    ]
    arrow = pa.Array.from_buffers(pa.large_utf8(), len(ours), buffers)
    arrow.validate(full=True)
    assert arrow.to_pylist() == list(ours) == ours[:] == [ours[place] for place in range(len(ours))] == texts


@pytest.mark.parametrize(
    "name", ["ids", "ids-offsets", "ids-by-hash", "ids-by-text", "titles", "titles-valid", "words", "counts"]
)
def test_a_file_that_does_not_fit_the_others_is_damage(name: str, tmp_path: Path) -> None:
    shop = Catalogue(["a", "b", "c"] * 4, ["x", None, "z"] * 4, np.arange(12))
    written(shop, tmp_path)
    path = tmp_path / f"catalogue-{name}.npy"
    np.save(path, np.load(path)[..., :-1])
    with pytest.raises(DataError, match=r"catalogue\.json is damaged"):
        Catalogue.read(tmp_path / FILE)
    path.unlink()
    if name != "titles-valid":
        with pytest.raises(DataError, match=r"catalogue\.json is damaged"):
            Catalogue.read(tmp_path / FILE)


def test_what_says_how_many_items_there_are_must_be_right(tmp_path: Path) -> None:
    written(Catalogue(["a", "b"], None, np.arange(2)), tmp_path)
    facts = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**facts, "items": 3}))
    with pytest.raises(DataError, match="other lengths"):
        Catalogue.read(tmp_path / FILE)
