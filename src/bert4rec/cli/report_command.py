"""`bert4rec report`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bert4rec.cli.console import count, say, warn
from bert4rec.cli.needs import require_folder, require_torch


def report_command(
    results: Path = Path("results"), *, output: Annotated[Path, Parameter(alias="-o")] = Path("report")
) -> None:
    """Show every table and figure of the paper that was run, ours beside the paper's: a page, Markdown and figures.

    Needs neither a GPU nor data. Says which runs are missing, and the command that makes them.

    Parameters
    ----------
    results
        The folder that `bert4rec reproduce` wrote to.
    output
        Folder to write to.
    """
    require_folder(results, "the results of `bert4rec reproduce`")
    require_torch()
    from bert4rec.paper.reporting.report import report

    written = report(results, output)
    for warning in written.warnings:
        warn(warning)
    figures = f" and {count(len(written.figures), 'file')} of figures" if written.figures else ""
    say(f"Wrote {written.page}, {written.text}{figures}.")
