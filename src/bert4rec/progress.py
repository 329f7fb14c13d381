"""Progress bars for long work: live in notebooks and on interactive terminals, quiet in scripts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

ProgressCallback = Callable[[int, int | None], object]
"""Called with how much is done (rows, or bytes of a download) and the total, or None while it is unknown."""


class Report(Protocol):
    """Tells how far some work has come; `total` is None while it is unknown."""

    def __call__(self, done: int, total: int | None = None) -> None: ...


def is_notebook() -> bool:
    """Whether the code runs in a notebook, where a bar can be redrawn in the output of a cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and shell.has_trait("kernel")


def is_shown(show: bool | None) -> bool:
    """Whether progress is drawn: as requested, or with None in notebooks and in interactive sessions on a terminal."""
    if show is not None:
        return show
    return is_notebook() or (hasattr(sys, "ps1") and sys.stderr.isatty())


@contextmanager
def progress_bar(
    label: str, unit: str, show: bool | None = None, callback: ProgressCallback | None = None
) -> Iterator[Report]:
    """Yield a function that reports progress to a live bar and to `callback`.

    Parameters
    ----------
    label
        What is done, such as "Reading".
    unit
        What is counted, such as "rows".
    show
        Whether to draw the bar; None draws it in notebooks and interactive sessions only.
    callback
        Called with the amount done and the total (None while it is unknown) at every report.
    """

    def tell(done: int, total: int | None = None) -> None:
        if callback:
            callback(done, total)

    if not is_shown(show):
        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} " + unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # stdout belongs to results; a notebook has no terminal, and rich finds its output itself.
    with Progress(*columns, console=Console(stderr=not is_notebook()), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def report(done: int, total: int | None = None) -> None:
            bar.update(task, completed=done, total=total)
            tell(done, total)

        yield report
