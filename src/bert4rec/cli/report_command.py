"""`bert4rec report`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bert4rec.cli.console import count, say
from bert4rec.cli.needs import require_folder, require_torch
from bert4rec.errors import NotFoundError


def report_command(
    results: Path = Path("results"), *, output: Annotated[Path, Parameter(alias="-o")] = Path("report")
) -> None:
    """Show every table and figure of the paper that was run, ours beside the paper's: a page, Markdown and figures.

    Needs neither a GPU nor data. Says what is missing, and the command that makes it.

    Parameters
    ----------
    results
        The folder that `bert4rec reproduce` wrote to.
    output
        Folder to write to.
    """
    require_folder(results, "the folder that `reproduce --results` wrote")
    require_torch()
    from bert4rec.paper.reporting.report import read_report, write_report

    report = read_report(results)
    if not report.results.data:
        raise NotFoundError(
            f"{results} holds no results of tables or figures (*.jsonl). Make some with: bert4rec reproduce table2 "
            f"--data ml-1m --results {results}"
        )
    page, text, *figures = write_report(report, output)
    drawn = f" and {count(len(figures), 'file')} of figures" if figures else ""
    say(f"Wrote {page}, {text}{drawn}.")
    if report.has_figures and not figures:
        say("Figures need matplotlib: pip install 'bert4rec[report]'.")
