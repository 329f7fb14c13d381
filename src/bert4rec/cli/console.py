"""Where the commands write: results to stdout, everything else to stderr."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape

results = Console(highlight=False, emoji=False)
messages = Console(stderr=True, highlight=False, emoji=False)
for _console in (results, messages):
    # Sentences break between words on a terminal and not at all in a file.
    _console.soft_wrap = not _console.is_terminal


class Report(Protocol):
    """Hears how far some work has come; `total` is None while nobody knows."""

    def __call__(self, done: int, total: int | None = None) -> None: ...


def this_command() -> str:
    """How to call `bert4rec` here: by name where the shell finds it, by its path otherwise."""
    return "bert4rec" if shutil.which("bert4rec") else sys.argv[0]


def count(number: int, noun: str) -> str:
    """1 run, 2,000 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say(text: str) -> None:
    messages.print(escape(text))


def warn(text: str) -> None:
    messages.print(f"[yellow]Warning:[/] {escape(text)}")


def print_json(value: Any) -> None:
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


@contextmanager
def progress(label: str, unit: str) -> Iterator[Report]:
    """A live bar on a terminal; nothing where stderr is a file."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} " + unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal) as bar:
        task = bar.add_task(label, total=None)

        def report(done: int, total: int | None = None) -> None:
            bar.update(task, completed=done, total=total)

        yield report
