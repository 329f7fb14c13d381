"""`bert4rec auto`."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bert4rec.automatic.auto import auto
from bert4rec.cli.console import print_json, print_table, results, say, this_command
from bert4rec.cli.options import as_options
from bert4rec.cli.prepare_command import ColumnOptions, Flag, Seed
from bert4rec.cli.process import StopSwitch
from bert4rec.cli.train_command import LiveLine

if TYPE_CHECKING:
    from bert4rec.automatic.auto import AutoResult


def auto_command(
    *source: str,
    output: Annotated[Path, Parameter(alias="-o")],
    minutes: float = 10,
    from_path: Annotated[Path | None, Parameter(name="--from")] = None,
    columns: ColumnOptions = ColumnOptions(),
    min_user_actions: int | None = None,
    samples: Flag = False,
    seed: Seed | None = None,
    device: str = "auto",
    overwrite: Flag = False,
    json: Flag = False,
) -> None:
    """Do everything with a log: prepare, train BERT4Rec+ beside SASRec and POP, compare, export the best, write a page.

    The best on the validation items is trained once more on everything and exported. If it is interrupted, the same
    command goes on where it stopped.

    Parameters
    ----------
    source
        What `bert4rec prepare` takes, such as events.csv, or a dataset folder that it wrote.
    output
        Folder for the dataset, the runs, the exported model and report.html.
    minutes
        How long all of it may take. The trainings are planned for that time on this machine.
    from_path
        A local copy of the named data set, instead of downloading it.
    min_user_actions
        Drop users with fewer actions. [default: 5]
    samples
        Export the histories of a few users too, so that the service's page can show them. Everybody who may use the
        service will see them.
    seed
        Of the trainings. [default: 1]
    device
        auto, cpu, cuda, cuda:1 or mps.
    overwrite
        Start again in a folder that an earlier command has filled.
    json
        Print what was found as JSON.
    """
    began = time.perf_counter()
    again = f"{this_command()} {shlex.join(word for word in sys.argv[1:] if word != '--overwrite')}"

    def last_words() -> str:
        return f"Go on with: {again}"

    named = {name.removesuffix("_col"): value for name, value in vars(columns).items()}
    with StopSwitch(last_words) as switch, AutoLine() as line:
        try:
            found = auto(
                source[0] if len(source) == 1 else source,
                output,
                minutes,
                **named,
                local_copy=from_path,
                min_user_actions=min_user_actions,
                samples=samples,
                seed=seed,
                device=device,
                overwrite=overwrite,
                listener=line,
                should_stop=switch.is_on,
                wording=as_options,
            )
        except KeyboardInterrupt:
            say(last_words())
            raise
    if json:
        print_json(found.as_dict())
    else:
        _print(found)
    say(f"{time.perf_counter() - began:.0f} seconds. The report is {found.page}.")
    serve = shlex.join(["serve", str(found.model)])
    say(f"Try the model: {this_command()} {serve}\nThen open http://127.0.0.1:8000 in a browser.")


class AutoLine(LiveLine):
    """Without a line for each validation, which the page shows as curves; and what all trainings say, once."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def mark(self, text: str) -> None: ...

    def say(self, text: str) -> None:
        if self._is_new(text):
            super().say(text)

    def warn(self, text: str) -> None:
        if self._is_new(text):
            super().warn(text)

    def _is_new(self, text: str) -> bool:
        is_new = text not in self._told
        self._told.add(text)
        return is_new


def _print(found: "AutoResult") -> None:
    protocols = ("full", "sampled")
    rows = []
    for run in found.runs.values():
        metrics = run.metrics["test"]
        values = (metrics[protocol][name] for protocol in protocols for name in ("HR@10", "NDCG@10"))
        rows.append((run.model, *(f"{value:.4f}" for value in values)))
    print_table(["test items", "HR@10", "NDCG@10", "HR@10 of 101", "NDCG@10 of 101"], rows)
    for sentence in (found.sentence, *found.comparison.sentences):
        results.print(sentence, markup=False)
