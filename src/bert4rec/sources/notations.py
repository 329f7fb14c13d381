"""Files with one dictionary per line, written as JSON or as Python literals.

`ast.literal_eval` reads Python literals exactly but takes 40 µs a line, and millions of lines are minutes. So
a regular expression describes the usual lines: printable ASCII, strings with known escapes, numbers, and lists
and dictionaries of these. It tells string from not-string without doubt, since no quote can occur inside a
string of its own kind unless it is escaped. Of a line that it describes *from end to end*, the pairs found one
after the other are therefore the dictionary's own pairs, never something that a review's text says. Every
other line is *unusual* and goes to the slow parser, whose answer is what counts.
"""

import ast
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_WHOLE = r"(?:0|[1-9][0-9]{0,18})"  # longer ones are unusual: Python refuses the very long
_NUMBER = rf"-?{_WHOLE}(?:\.[0-9]{{1,30}})?(?:[eE][+-]?[0-9]{{1,3}})?"
_HEX = "[0-9a-fA-F]"
_SIMPLE_STRING = r"""^u?(?:'[^'\\]*'|"[^"\\]*")$"""
"""One without escapes, so that what stands between the quotes is what is meant."""
_DEPTH = 2
"""How deep lists and dictionaries may nest inside the line's own dictionary in a usual line."""


@dataclass(frozen=True)
class Notation:
    """How a dictionary is written on one line."""

    name: str
    key: str
    """A key that is a word, as a regular expression; `NAME` stands for the word."""
    string: str
    constants: str
    loads: Callable[[str], object]
    """The exact parser; raises what it likes."""

    def parse(self, text: str) -> object:
        """What `text` stands for, or None if it is not in this notation."""
        try:
            return self.loads(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None

    def split(self, lines: "pl.LazyFrame", keys: tuple[str, ...]) -> "pl.LazyFrame":
        """Columns `number`, the values under `keys` as they are written, and `unusual`.

        A value is missing if the line lacks its key. `unusual` holds the lines that must be parsed slowly, and is
        missing elsewhere. If a key is there twice the last counts, as in both parsers.
        """
        import polars as pl

        pair = rf"{self.key.replace('NAME', '[A-Za-z_]+')}: ?{self._value()}"
        usual = pl.col("line").str.contains(rf"^\{{{pair}(?:, ?{pair})*\}}$")
        split = lines.with_columns(
            pl.when(~usual).then(pl.col("line")).alias("unusual"),
            pl.when(usual).then(pl.col("line")).str.extract_all(pair).alias("pairs"),
        )
        return split.select("number", *(self._written(key) for key in keys), "unusual")

    def decode(self, written: "pl.Series") -> "pl.Series":
        """Values as text, given as they are written. Missing and None are both missing."""
        import polars as pl

        simple = written.str.contains(_SIMPLE_STRING)
        inside = written.str.strip_prefix("u").str.head(-1).str.tail(-1)
        whole = written.str.contains(rf"^{_WHOLE}$")
        text = pl.select(pl.when(simple).then(inside).when(whole).then(written)).to_series()
        odd = (~(simple | whole)).arg_true()
        if len(odd):
            # Escapes, fractions and lists: few different ones, so each is parsed once.
            different = written.gather(odd).unique()
            meaning = {value: as_text(self.parse(value)) for value in different}
            text = text.scatter(odd, written.gather(odd).replace_strict(meaning, return_dtype=pl.String))
        return text.alias(written.name)

    def _written(self, key: str) -> "pl.Expr":
        import polars as pl

        prefix = rf"^{self.key.replace('NAME', re.escape(key))}: ?"
        matching = pl.element().filter(pl.element().str.contains(prefix))
        return pl.col("pairs").list.eval(matching).list.last().str.replace(prefix, "").alias(key)

    def _value(self) -> str:
        scalar = f"{self.string}|{_NUMBER}|{self.constants}"
        value = f"(?:{scalar})"
        for _ in range(_DEPTH):
            pair = f"{self.string}: ?{value}"
            value = rf"(?:{scalar}|\[(?:{value}(?:, ?{value})*)?\]|\{{(?:{pair}(?:, ?{pair})*)?\}})"
        return value


def as_text(value: object) -> str | None:
    """A value as one cell of a table: a list becomes its entries with | between."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return "|".join(text for entry in value if (text := as_text(entry)) is not None)
    return _storable(value) if isinstance(value, str) else str(value)


def _storable(text: str) -> str:
    r"""Join the halves of characters that were escaped in two (`\ud83d\ude00`); half a character keeps its escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "backslashreplace")
    return text


def _parse_python(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of an unknown escape such as \d, and keeps it
        return ast.literal_eval(text)


def _string(quote: str, escapes: str) -> str:
    """Printable ASCII between quotes; the quote itself and the backslash only as escapes."""
    characters = r" -&(-\[\]-~" if quote == "'" else r" !#-\[\]-~"
    return rf"{quote}(?:[{characters}]|\\(?:{escapes}))*{quote}"


_PYTHON_ESCAPES = rf"""[abfnrtv'"\\]|x{_HEX}{{2}}|u{_HEX}{{4}}|U000{_HEX}{{5}}|U0010{_HEX}{{4}}"""
_JSON_ESCAPES = rf"""["\\/bfnrt]|u{_HEX}{{4}}"""

PYTHON = Notation(
    name="Python",
    key="u?'NAME'",
    string=f"u?(?:{_string(chr(39), _PYTHON_ESCAPES)}|{_string(chr(34), _PYTHON_ESCAPES)})",
    constants="True|False|None",
    loads=_parse_python,
)
JSON = Notation(
    name="JSON",
    key='"NAME"',
    string=_string(chr(34), _JSON_ESCAPES),
    constants="true|false|null",
    loads=json.loads,
)
