"""Command lines of `bert4rec` that stand in files, as the command itself reads them."""

from collections.abc import Sequence
from typing import Any

from bert4rec.cli import app


def read_options(words: Sequence[str], of: str = "serve") -> dict[str, Any]:
    """What `bert4rec` with these words would call a command with; raises if it would refuse them."""
    command, bound, _ = app.parse_args(list(words), print_error=False, exit_on_error=False)
    assert command.__name__ == f"{of}_command"
    return bound.arguments


def value_of(words: Sequence[str], option: str) -> str:
    """Of an option that stands there once, as --option=value."""
    [value] = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return value
