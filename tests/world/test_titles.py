"""Titles of the built-in catalogue."""

import re

import numpy as np

from bert4rec.world.titles import DEPARTMENTS, invent_titles


def test_every_department_names_things_as_a_shop_does() -> None:
    titles = invent_titles([40] * len(DEPARTMENTS), np.random.default_rng(0))
    for title in titles:
        assert re.fullmatch(r"[A-Z][A-Za-z'-]*( [A-Z][A-Za-z-]*|-in-the-| and)*, [A-Z0-9][\w +-]*", title), (
            title
        )


def test_titles_come_department_by_department() -> None:
    clothing, kitchen = DEPARTMENTS[:2]
    titles = invent_titles([3, 2], np.random.default_rng(0))
    assert all(title.split(",")[0].split(" ")[0] in clothing.qualities.split(",") for title in titles[:3])
    assert all(title.split(", ")[1] in kitchen.variants.split(",") for title in titles[3:])


def test_no_title_is_used_twice_even_when_words_and_brands_run_out() -> None:
    titles = invent_titles([70_000], np.random.default_rng(0))
    assert len(set(titles)) == 70_000
    assert any(title.endswith(", No. 2") for title in titles)


def test_a_small_catalogue_needs_no_brands() -> None:
    assert all(
        title.count(" ") <= 6 and "No." not in title
        for title in invent_titles([60, 60], np.random.default_rng(0))
    )


def test_no_department_knows_a_word_twice() -> None:
    for department in DEPARTMENTS:
        for words in (department.qualities, department.things, department.variants):
            assert len(set(words.split(","))) == len(words.split(",")), department.name
    assert len({department.name for department in DEPARTMENTS}) == len(DEPARTMENTS)
