"""Command lines of `bert4rec serve` that stand in files, as the command itself reads them."""

from collections.abc import Sequence
from typing import Any

from bert4rec.cli import app

NOT_YET = ("--allow-host", "--drain", "--log-format")
"""Options that are about to be added. Where `serve` does not know them yet, they are left out."""


def read_options(words: Sequence[str]) -> dict[str, Any]:
    """What `bert4rec` with these words would call `serve` with; raises if it would refuse them."""
    help_text = app.generate_docs()
    missing = [option for option in NOT_YET if option not in help_text]
    known = [word for word in words if word.partition("=")[0] not in missing]
    command, bound, _ = app.parse_args(known, print_error=False, exit_on_error=False)
    assert command.__name__ == "serve_command"
    return bound.arguments


def value_of(words: Sequence[str], option: str) -> str:
    """Of an option that stands there once, as --option=value."""
    [value] = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return value
