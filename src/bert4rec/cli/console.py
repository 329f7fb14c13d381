"""Where the commands write: results to stdout, everything else to stderr."""

import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from bert4rec.cli.options import as_options
from bert4rec.machine import local_ranks, num_ranks, rank
from bert4rec.progress import Report, progress_bar

results = Console(highlight=False, emoji=False)
messages = Console(stderr=True, highlight=False, emoji=False)
for _console in (results, messages):
    # Sentences break between words on a terminal and not at all in a file.
    _console.soft_wrap = not _console.is_terminal


def this_command() -> str:
    """How to call `bert4rec` here: by name if the shell finds it, otherwise as it was called."""
    if num_ranks() > 1:
        alone = "--standalone " if num_ranks() == local_ranks() else ""
        return f"torchrun {alone}--nproc-per-node {local_ranks()} -m bert4rec"
    if shutil.which("bert4rec"):
        return "bert4rec"
    return "python -m bert4rec" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]


def count(number: int, noun: str) -> str:
    """1 run, 2,000 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say(text: str) -> None:
    """Print a message of the library, its parameters as options."""
    if not rank():  # Of several processes, the first one speaks.
        messages.print(escape(as_options(text)))


def warn(text: str) -> None:
    """Print a warning of the library, its parameters as options."""
    messages.print(f"[yellow]Warning:[/] {escape(as_options(text))}")


def complain(text: str) -> None:
    """Print an error of the library, its parameters as options."""
    messages.print(f"[bold red]Error:[/] {escape(as_options(text))}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    results.out(json.dumps(value, indent=2, ensure_ascii=False), highlight=False)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    words: Sequence[int] = (0,),
) -> None:
    """A table on stdout: columns of words to the left, the others, which are numbers, to the right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        # Words may break; numbers must not.
        is_words = i in words
        table.add_column(
            column, justify="left" if is_words else "right", no_wrap=not is_words, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(escape, row))
    results.print(table)


def progress(label: str, unit: str) -> AbstractContextManager[Report]:
    """A live bar on a terminal; nothing if stderr is a file."""
    return progress_bar(label, unit, show=messages.is_terminal)
