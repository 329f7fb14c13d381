"""`bert4rec refresh`: the next model, every night."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bert4rec.cli.console import complain, print_json, say, this_command
from bert4rec.cli.prepare_command import Flag, Seed
from bert4rec.cli.process import StopSwitch
from bert4rec.cli.train_command import LiveLine
from bert4rec.data.dataset import Repeats
from bert4rec.production.refresh import CURRENT, refresh
from bert4rec.production.refresh_request import is_store
from bert4rec.store.upkeep import address_of

NOT_IN_SERVICE = 5
"""The exit code if the new model is worse than the one in service."""


def refresh_command(
    source: str,
    *,
    output: Annotated[Path, Parameter(alias="-o")],
    user_col: str | None = None,
    item_col: str | None = None,
    time_col: str | None = None,
    items: Path | None = None,
    since: str | None = None,
    min_user_actions: int = 5,
    min_item_actions: int | None = None,
    repeats: Repeats | None = None,
    model: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", consume_multiple=False)] = (),
    minutes: float | None = None,
    seed: Seed | None = None,
    device: str = "auto",
    keep: int = 3,
    force: Flag = False,
    json: Flag = False,
) -> None:
    """Train the next model on what users did until now, and put it into service unless it is worse.

    Takes the events of a store, prepares them, trains for production, compares the result with the model in service on
    what users did since that one was trained, exports it and switches the link OUTPUT/current, which
    `bert4rec serve OUTPUT/current --watch` follows. If it is interrupted, the same command goes on where it stopped.
    Exit code 5: the new model is worse, and the old one stays in service.

    Parameters
    ----------
    source
        A history store (history.db or postgresql://…), or a log as `bert4rec prepare` reads it.
    output
        Folder for models and what they are made from.
    user_col
        Column of the user, in a log. Columns are guessed from usual names.
    item_col
        Column of the item, in a log.
    time_col
        Column of the time, in a log.
    items
        A file with titles and other columns of items. A store knows ids only.
    since
        Leave out what is older: an age, such as 1y, 26w or 90d, or a date. [default: everything counts]
    min_user_actions
        Drop users with fewer actions.
    min_item_actions
        Drop items with fewer actions.
    repeats
        Whether items of a history may come again: keep or exclude. [default: by how many do]
    model
        As for `bert4rec train`, like the next six.
    preset
        Named settings to start from.
    config
        A TOML file of settings.
    settings
        Change one setting, such as model.dim=256. May be given several times.
    minutes
        How long the training may take.
    seed
        Of weights, batches, masks and dropout. [default: 1]
    device
        auto, cpu, cuda, cuda:1 or mps.
    keep
        How many models to keep, so that you can go back.
    force
        Put the new model into service even if it is worse or degenerate, or the one in service cannot be read. One that
        was just refused is not trained again. A degenerate one is served by `serve --force` only.
    json
        Print the outcome as JSON.
    """

    def last_words() -> str:
        return "Stopped. What is finished is kept: the same command goes on from here."

    with StopSwitch(last_words) as switch, LiveLine() as line:
        try:
            found = refresh(
                source,
                output,
                user=user_col,
                item=item_col,
                time=time_col,
                items=items,
                since=since,
                min_user_actions=min_user_actions,
                min_item_actions=min_item_actions,
                repeats=repeats,
                model=model,
                preset=preset,
                config=config,
                settings=settings,
                minutes=minutes,
                seed=seed,
                device=device,
                keep=keep,
                force=force,
                listener=line,
                should_stop=switch.is_on,
                say=line.say,
            )
        except KeyboardInterrupt:
            say(last_words())
            raise
    if json:
        print_json(found.as_dict())
    if found.model is None:
        complain("The new model was not put into service. To do so all the same, use --force.")
        sys.exit(NOT_IN_SERVICE)
    say(
        f"In service: {found.model}. Serve it with:\n  {this_command()} {shlex.join(_serving(source, output))}"
    )


def _serving(source: str, output: Path) -> list[str]:
    """The command that serves the model, beside the store that it was made from; an address may hold a password."""
    store = [] if "://" in source or not is_store(source) else ["--store", address_of(source)]
    return ["serve", str(output / CURRENT), "--watch", *store]
