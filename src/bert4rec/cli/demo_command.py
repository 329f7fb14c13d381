"""`bert4rec demo`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from bert4rec.cli.console import print_json, print_table, results, say, this_command
from bert4rec.cli.prepare_command import Flag, Seed
from bert4rec.cli.train_command import LiveLine
from bert4rec.extras import require_torch

if TYPE_CHECKING:
    from bert4rec.demo.demo import Demo, Example


def demo_command(
    *,
    output: Annotated[Path, Parameter(alias="-o")] = Path("demo"),
    seed: Seed = 1,
    overwrite: Flag = False,
    json: Flag = False,
) -> None:
    """Try everything in a minute or two: built-in data, ten models, the best possible ranking, a report.

    Parameters
    ----------
    output
        Folder for the dataset, the runs, the exported model and report.html.
    seed
        Of the built-in world and of training.
    overwrite
        Replace what an earlier demo left in the folder.
    json
        Print the metrics as JSON.
    """
    began = time.perf_counter()
    require_torch()
    from bert4rec.cli.process import StopSwitch
    from bert4rec.demo.demo import run_demo
    from bert4rec.extras import require_exporters

    require_exporters()

    def last_words() -> str:
        return f"Start again with: {this_command()} demo -o {output} --overwrite"

    with StopSwitch(last_words) as switch, DemoLine() as line:
        line.say("Making the built-in world: a shop, its visitors, and a log of their actions.")
        try:
            demo = run_demo(output, seed=seed, overwrite=overwrite, listener=line, should_stop=switch.is_on)
            if switch.is_on():  # Since the last model was trained.
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            say(last_words())
            raise
    if json:
        print_json({"metrics": demo.metrics, "share_of_best": demo.share_of_best})
        return
    _print(demo)
    say(f"{time.perf_counter() - began:.0f} seconds. The report is {demo.page}.")
    say(f"Try the model: {this_command()} serve {demo.model}\nThen open http://127.0.0.1:8000 in a browser.")


class DemoLine(LiveLine):
    """Without warnings: the demo trains for a short time on purpose."""

    def warn(self, text: str) -> None: ...


def _print(demo: "Demo") -> None:
    rows = [
        (
            name,
            *(
                f"{metrics[protocol][each]:.4f}"
                for protocol in ("full", "sampled")
                for each in ("HR@10", "NDCG@10")
            ),
        )
        for name, metrics in demo.metrics.items()
    ]
    print_table(["", "HR@10", "NDCG@10", "HR@10 of 101", "NDCG@10 of 101"], rows)
    results.print(f"BERT4Rec+ reaches {demo.share_of_best:.0%} of the best possible NDCG@10.\n")
    for example in demo.examples:
        _print_example(example)


def _print_example(example: "Example") -> None:
    """The history as a column, the recommendations beside it, the true next item marked."""
    recommended = example.recommended["BERT4Rec+"]
    marked = [f"[bold green]{title}[/] ✓" if title == example.next_item else title for title in recommended]
    table = Table(
        f"{example.user} did", "BERT4Rec+ recommends", box=None, pad_edge=False, header_style="bold"
    )
    for past, future in zip(example.history, marked, strict=True):
        table.add_row(past, future)
    table.add_row(f"[bold green]next: {example.next_item}[/]", "")
    results.print(table, "")
