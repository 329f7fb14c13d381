import ast
import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.sources.notations import JSON, PYTHON, Notation, as_text

KEYS = ("username", "product_id", "date")

# Rich in what could lead a regular expression astray.
TRAPS = [
    "u'username': u'x'",
    "'date': 1",
    '"username": "x"',
    "', u'",
    '"}',
    "\\",
    "'",
    '"',
    ", ",
    "{",
    "\n",
    "\\'",
]
texts = st.lists(st.sampled_from(TRAPS) | st.text(max_size=3), max_size=4).map("".join)
ascii_texts = texts.map(lambda text: text.encode("ascii", "ignore").decode())
scalars = texts | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
values = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(ascii_texts, st.lists(scalars, max_size=2), max_size=2)
)
records = st.dictionaries(st.sampled_from([*KEYS, "text", "hours", "it's"]), values, max_size=6)


def as_python_2_writes_it(value: Any) -> str:
    """`repr` as of Python 2 for what json.loads returns: ASCII only, text with a u in front."""
    if isinstance(value, str):
        return "u" + ascii(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(as_python_2_writes_it, value)) + "]"
    if isinstance(value, dict):
        pairs = (
            f"{as_python_2_writes_it(key)}: {as_python_2_writes_it(item)}" for key, item in value.items()
        )
        return "{" + ", ".join(pairs) + "}"
    return repr(value)


def read(
    notation: Notation, lines: list[str], keys: tuple[str, ...] = KEYS
) -> list[dict[str, str | None] | None]:
    """Per line the values under `keys`, or None where the line is left to the slow parser."""
    frame = pl.LazyFrame(
        {"number": range(1, len(lines) + 1), "line": lines}, schema={"number": pl.UInt32, "line": pl.String}
    )
    split = notation.split(frame, keys).collect()
    decoded = split.with_columns(notation.decode(split[key]) for key in keys)
    return [
        None if row["unusual"] is not None else {key: row[key] for key in keys}
        for row in decoded.iter_rows(named=True)
    ]


def read_slowly(notation: Notation, line: str) -> dict[str, str | None] | None:
    """The answer that counts; None where the line is no dictionary."""
    record = notation.parse(line)
    return {key: as_text(record.get(key)) for key in KEYS} if isinstance(record, dict) else None


@settings(max_examples=150, deadline=None)
@given(st.lists(records, min_size=1, max_size=8), st.sampled_from([as_python_2_writes_it, repr]))
def test_what_is_read_fast_from_python_is_what_literal_eval_reads(
    rows: list[dict[str, Any]], write: Any
) -> None:
    lines = [write(row) for row in rows]
    for line, fast in zip(lines, read(PYTHON, lines), strict=True):
        assert ast.literal_eval(line) is not None
        assert fast is None or fast == read_slowly(PYTHON, line)


@settings(max_examples=150, deadline=None)
@given(st.lists(records, min_size=1, max_size=8), st.booleans())
def test_what_is_read_fast_from_json_is_what_json_loads_reads(
    rows: list[dict[str, Any]], to_ascii: bool
) -> None:
    lines = [json.dumps(row, ensure_ascii=to_ascii) for row in rows]
    for line, fast in zip(lines, read(JSON, lines), strict=True):
        assert fast is None or fast == read_slowly(JSON, line)


@settings(max_examples=200, deadline=None)
@given(st.lists(records, min_size=1, max_size=8), st.data())
def test_a_damaged_line_is_never_read_fast_to_another_answer(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    lines = []
    for row in rows:
        line = as_python_2_writes_it(row)
        at = data.draw(st.integers(0, len(line)))
        lines.append(
            line[:at] + data.draw(st.sampled_from(["", "'", '"', "\\", "u", ",", "}"])) + line[at + 1 :]
        )
    for line, fast in zip(lines, read(PYTHON, lines), strict=True):
        assert fast is None or fast == read_slowly(PYTHON, line)


def test_the_usual_lines_are_indeed_read_fast() -> None:
    lines = [
        "{u'hours': 1.5, u'username': u'Ann', u'product_id': u'10', u'date': u'2018-01-05', u'text': u\"don't\"}",
        "{'date': '2018-01-05', 'username': 'caf\\xe9 \\u2605', 'product_id': 10, 'a': [0, 1], 'b': {'c': ['d']}}",
        "{u'text': u'says u\\'username\\': u\\'Eve\\' \\n', u'username': u\"u'username': u'Bob'\", u'early': False}",
    ]
    assert read(PYTHON, lines) == [
        {"username": "Ann", "product_id": "10", "date": "2018-01-05"},
        {"username": "café ★", "product_id": "10", "date": "2018-01-05"},
        {"username": "u'username': u'Bob'", "product_id": None, "date": None},
    ]
    compact = '{"username":"Ann","product_id":10,"date":null,"text":"a \\"b\\" \\u2605"}'
    assert read(JSON, [compact]) == [{"username": "Ann", "product_id": "10", "date": None}]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "None",
        "[1]",
        "{'username': 'a' 'b'}",
        "{'username': 'caf\u00e9'}",
        "{'username': '\\N{BLACK STAR}'}",
        "{'username': 'a\\d'}",
        "{'username': 0x10}",
        "{'username': 01}",
        "{'username': 1" + "0" * 5000 + "}",
        "{'username': 'a'} ",
        "{'username': 'a',}",
        "{'username': '\\ud83'}",
        "{'username': '\\U00110000'}",
        "{'username': ['a', ('b',)]}",
        "{'username': 'a'}}",
        "__import__('os')",
    ],
)
def test_everything_else_is_left_to_the_slow_parser(line: str) -> None:
    assert read(PYTHON, [line]) == [None]


def test_of_a_key_that_is_there_twice_the_last_counts() -> None:
    assert read(PYTHON, ["{'date': '1', 'date': '2'}"], ("date",)) == [{"date": "2"}]
    assert read(JSON, ['{"date": "1", "date": "2"}'], ("date",)) == [{"date": "2"}]


def test_characters_that_were_escaped_in_halves_become_whole() -> None:
    assert as_text("\ud83d\ude00") == "😀"
    assert read(JSON, ['{"username": "\\ud83d\\ude00"}'], ("username",)) == [{"username": "😀"}]


def test_half_a_character_can_be_stored_and_stays_different_from_others() -> None:
    halves = [as_text("a\ud83d"), as_text("a\ud83e")]
    assert len(set(halves)) == 2
    assert pl.Series(halves).to_list() == halves


def test_lists_become_one_cell() -> None:
    assert as_text([["Beauty", "Hair"], [None, 3]]) == "Beauty|Hair|3"
