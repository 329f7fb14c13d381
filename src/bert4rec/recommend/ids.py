"""What may be given as an id and as a list of ids, and which id was probably meant.

6, 6.0, NumPy's 6 and "6" name the same item, and blanks around an id are not part of it.
"""

import re
from collections.abc import Iterator, Mapping
from operator import index
from reprlib import repr as shortened
from string import ascii_letters, digits
from uuid import UUID

import numpy as np

from bert4rec.errors import UsageError

PLAIN = frozenset({str, int})
"""Types that `str` makes an id of, as most ids are."""
_MISSING = {"None", "nan", "NaN", "NaT", "<NA>"}
_WHOLE_NUMBER = re.compile(r"(-?\d+)\.0+")
_LETTERS = ascii_letters + digits + "-_.:/ "
_SLIPS_OF = range(3, 65)
"""Lengths of text. A slip in a shorter one would change most of it; a longer one was not typed."""


def id_text(value: object, *where: object) -> str:
    """The text of an id. `where` says where it stands, for errors: a name, then indices."""
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    is_many = isinstance(value, bytes) or is_list(value)
    if is_many or isinstance(value, bool) or str(value) in _MISSING:
        if is_list(value) and where[:1] == ("history",):
            advice = " For many histories, use `recommend_many()`."
        else:
            advice = "" if is_many or isinstance(value, bool) else " Leave out missing values."
        noun = "a user id" if where[:1] == ("user",) else "an item id"
        raise UsageError(f"{_place(where)}: expected {noun}; found {shortened(value)}.{advice}")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def is_list(value: object) -> bool:
    """Whether this holds many values, rather than being one."""
    return not isinstance(value, str) and (hasattr(value, "__iter__") or hasattr(value, "to_list"))


def as_list(values: object, *where: object, ordered: bool = False) -> list[object]:
    """Any list-like value as a list; `ordered` if the order matters, so that a set is refused."""
    if type(values) is list:
        return values
    found, advice = f"a {type(values).__name__}", ""
    match values:
        case str():
            found, advice = f"the text {shortened(values)}", " Put ids into a list, as in ['a', 'b']."
        case bytes() | bytearray() | memoryview():
            found, advice = "bytes", " Decode them, and put the ids into a list."
        case Mapping():
            advice = " Put its ids into a list, oldest first." if ordered else " Put its ids into a list."
        case set() | frozenset() if ordered:
            advice = " A set has no order: put the ids into a list, oldest first."
        case _ if hasattr(type(values), "columns"):  # of any library
            advice = """ Pass one of its columns, as in frame["item_id"], or use `recommend_many()` for many users."""
        case _:
            listed = _listed(values)
            if listed is not None:
                return listed
            found = shortened(values)
    raise UsageError(f"{_place(where)}: expected a list of item ids; found {found}.{advice}")


def _listed(values: object) -> list[object] | None:
    # By its own method where there is one: to pandas, series[0] is not the first value but that of label 0.
    for name in ("to_list", "tolist"):
        if hasattr(values, name):
            listed = getattr(values, name)()
            return listed if isinstance(listed, list) else None  # one of NumPy's numbers gives itself
    try:
        return list(values)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return None


def _place(where: tuple[object, ...]) -> str:
    name, *indices = where or ("ids",)
    return f"`{name}{''.join(f'[{each!r}]' for each in indices)}`"


def as_given(value: object) -> str | int:
    """An id for an answer: integers stay integers, everything else is text."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return id_text(value).strip()


def user_id(key: object) -> str | int:
    """The id of a user that is a key of `histories`: text stays text, whole numbers are integers."""
    value = key.item() if isinstance(key, np.generic) else key
    is_number = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not (is_number or isinstance(value, str | UUID)):
        raise UsageError(
            f"`histories`: expected users that are text, whole numbers or UUIDs; found {shortened(value)}."
        )
    return value if isinstance(value, str) else as_given(value)


def spellings(text: str, *, whole_numbers: bool) -> list[str]:
    """How an id that was given as `text` may be written, the likeliest first."""
    stripped = text.strip()
    number = _WHOLE_NUMBER.fullmatch(stripped) if whole_numbers else None
    return [text, stripped, *([number[1]] if number else [])]


def slips(text: str) -> Iterator[str]:
    """All texts from which `text` may have come by one slip of the keyboard."""
    if len(text) not in _SLIPS_OF:
        return
    letters = dict.fromkeys(_LETTERS + text)
    for place in range(len(text) + 1):
        before, after = text[:place], text[place:]
        yield before + after[1:]
        yield before + after[1:2] + after[:1] + after[2:]
        for letter in letters:
            yield before + letter + after
            yield before + letter + after[1:]


def check_k(k: int) -> int:
    """`k` as an int, also if it was one of NumPy's."""
    try:
        if not isinstance(k, bool) and index(k) >= 1:
            return index(k)
    except TypeError:
        pass
    raise UsageError(f"`k`: expected a whole number of at least 1; found {k!r}.")
