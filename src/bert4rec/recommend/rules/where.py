"""Filters on the attributes of items: what `where` may say, and which items fulfil it.

    {"category": ["tea", "coffee"], "price": {"<": 20}, "vegan": True, "brand": {"not": "Acme"}}

All conditions must hold. A value is equality, a list any of its values; comparisons and "not" stand in a dict. An item
without a value fulfils no condition but "not". Of an item with a list of values, one of them must fulfil a condition;
with "not", none may be excluded. Dates and times are written as in ISO 8601: a date is its midnight, times are UTC
unless they say otherwise.
"""

import csv
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from reprlib import repr as shortened
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert4rec.errors import UsageError
from bert4rec.recommend.ids import is_list
from bert4rec.recommend.rules.attributes import Attributes, Kind
from bert4rec.recommend.rules.rules import RuleError
from bert4rec.recommend.rules.subset import Subset

ANY_OF, NOT = "any of", "not"
ORDERED = ("<", "<=", ">", ">=")
_HOLDS: dict[Kind, str] = {
    "text": "texts",
    "number": "numbers",
    "bool": "true or false",
    "time": "dates or times, as in '2026-01-31' or '2026-01-31T12:00:00Z'",
}
_WRITTEN = re.compile(r"\s*(.+?)\s*(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
_LARGEST = 2**1023
"""As a float."""
_FEWEST_KEPT, _MOST_KEPT, _ITEMS_KEPT = 16, 2**10, 2**23
"""Filters that are kept: between so few and so many, by how often the items go into the last number. An item takes 5
bytes of each: about 40 MB in all, 80 MB for a million items."""
_MOST_VALUES, _MOST_LETTERS = 32, 2**11
"""Of a filter that is kept, so that what was asked takes less memory than what was found: at most 10 MB in all."""


class Condition(NamedTuple):
    """One thing that an item must fulfil."""

    attribute: str
    operator: str
    values: tuple[Any, ...]
    """One value, where the operator is a comparison."""


class Filters:
    """From what `where` says to the items that fulfil it. A short filter gives the same object for a while."""

    def __init__(self, attributes: Attributes, num_items: int) -> None:
        self.attributes = attributes
        size = min(max(_FEWEST_KEPT, _ITEMS_KEPT // max(1, num_items)), _MOST_KEPT)
        self._kept_subset = lru_cache(size)(self._new_subset)

    def subset(self, where: object) -> Subset | None:
        """None if nothing is asked for."""
        if where is None:
            return None
        conditions = conditions_of(where, self.attributes.kinds)
        if not conditions:
            return None
        return self._kept_subset(conditions) if _is_short(conditions) else self._new_subset(conditions)

    def _new_subset(self, conditions: tuple[Condition, ...]) -> Subset:
        return Subset(lambda: fulfilling(conditions, self.attributes))


def _is_short(conditions: Sequence[Condition]) -> bool:
    values = [value for condition in conditions for value in condition.values]
    letters = sum(len(value) for value in values if isinstance(value, str))
    return len(values) <= _MOST_VALUES and letters <= _MOST_LETTERS


def conditions_of(where: object, kinds: Mapping[str, Kind]) -> tuple[Condition, ...]:
    """What `where` asks for, checked; equal filters give equal conditions."""
    if not isinstance(where, Mapping):
        raise RuleError(
            "where", f"expected conditions by attribute, as in {{'price': {{'<': 20}}}}; found {where!r}."
        )
    found = []
    for name in sorted(where, key=str):
        if name not in kinds:
            raise RuleError(f"where.{str(name)[:64]}", _unknown(name, kinds))
        asked = where[name]
        named = asked if isinstance(asked, Mapping) else {ANY_OF: asked}
        if not named:
            raise RuleError(
                f"where.{name}", f"expected a value, a list of values or comparisons; found {asked!r}."
            )
        found += [_condition(name, operator, value, kinds[name]) for operator, value in named.items()]
    return tuple(found)


def _unknown(name: object, kinds: Mapping[str, Kind]) -> str:
    if not kinds:
        return (
            f"unknown attribute {shortened(name)}: the model has none. They come from `items` of `prepare()` and "
            "`refresh()`; a model of an earlier version has to be exported again."
        )
    return f"unknown attribute {shortened(name)}. Known: {', '.join(kinds)}."


def _condition(name: str, operator: str, value: object, kind: Kind) -> Condition:
    def refuse(expected: str, found: object) -> RuleError:
        return RuleError(f"where.{name}", f"{expected}; found {shortened(found)}.")

    if operator in ORDERED:
        if kind == "bool":
            raise RuleError(f"where.{name}", f"{name} is {_HOLDS[kind]}, which has no order: {operator!r}.")
        values: Sequence[object] = [value]
    elif operator in (ANY_OF, NOT):
        values = list(value) if is_list(value) and not isinstance(value, Mapping) else [value]  # type: ignore[call-overload]
    else:
        raise refuse(f"expected one of {', '.join(ORDERED)} and {NOT}", operator)
    read = tuple(_value(each, kind) for each in values)
    for given, each in zip(values, read, strict=True):
        if each is None:
            raise refuse(f"{name} holds {_HOLDS[kind]}", given)
    return Condition(name, operator, read)


def _value(value: object, kind: Kind) -> Any:
    """A value as the column has it; None if it is of another kind."""
    value = value.item() if isinstance(value, np.generic) and not isinstance(value, np.datetime64) else value
    match kind:
        case "text":
            return value if isinstance(value, str) else None
        case "bool":
            return value if isinstance(value, bool) else None
        case "number":
            return _number(value)
        case "time":
            return _moment(value)


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 (NaN)
        return None
    if isinstance(value, int) and abs(value) >= 2**63:  # more than a column of whole numbers can hold
        return float(min(max(value, -_LARGEST), _LARGEST))
    return value


def _moment(value: object) -> np.datetime64 | None:
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else value.astype("datetime64[us]")
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if isinstance(value, datetime):
        return np.datetime64(value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value, "us")
    return np.datetime64(value, "us") if isinstance(value, date) else None


def fulfilling(conditions: Sequence[Condition], attributes: Attributes) -> NDArray[np.bool_]:
    """Which items fulfil all conditions, [V]."""
    masks = []
    for name, operator, values in conditions:
        column = attributes.column(name)
        mask = column.having(_wanted(column.values, operator, values))
        masks.append(~mask if operator == NOT else mask)
    found: NDArray[np.bool_] = np.logical_and.reduce(masks)
    return found


def _wanted(known: Any, operator: str, values: tuple[Any, ...]) -> list[range]:
    """The places of the values that a condition names, among those that items have; they ascend."""
    if operator in (ANY_OF, NOT):
        return [range(bisect_left(known, value), bisect_right(known, value)) for value in values]
    (value,) = values
    place = (bisect_left if operator in ("<", ">=") else bisect_right)(known, value)
    return [range(place) if operator in ("<", "<=") else range(place, len(known))]


def read_where(written: Sequence[str], attributes: Attributes) -> dict[str, object]:
    """`where` from conditions as they are typed: category=tea,coffee or price<20."""
    where: dict[str, dict[str, object]] = {}
    for text in written:
        parts = _WRITTEN.fullmatch(text)
        if parts is None:
            raise UsageError(
                f"`where`: expected a condition such as category=tea,coffee or 'price<20'; found {text!r}."
            )
        name, sign, rest = parts.groups()
        operator = {"=": ANY_OF, "!=": NOT}.get(sign, sign)
        if operator in where.setdefault(name, {}):
            raise UsageError(f"`where`: two conditions {name}{sign}. Write several values as {name}=a,b.")
        kind = attributes.kinds.get(name, "text")
        values = [_typed(each, kind) for each in next(csv.reader([rest], skipinitialspace=True), [])]
        where[name][operator] = values if operator in (ANY_OF, NOT) else rest and _typed(rest, kind)
    return {name: asked.get(ANY_OF) if set(asked) == {ANY_OF} else asked for name, asked in where.items()}


def _typed(text: str, kind: Kind) -> object:
    """A value as it is typed; a text that is not of the kind stays a text, to be refused."""
    stripped = text.strip()
    match kind:
        case "bool":
            return {"true": True, "false": False}.get(stripped.lower(), stripped)
        case "number":
            for number in (int, float):
                try:
                    return number(stripped)
                except ValueError:
                    continue
    return stripped
