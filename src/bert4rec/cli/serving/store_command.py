"""`bert4rec store`: what the service keeps of users, as its operator meets it."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bert4rec.cli.console import count, say
from bert4rec.cli.prepare_command import Flag

app = App(name="store", help_format="markdown", help="Check and copy what the service has stored.")


@app.command
def check(store: str) -> None:
    """Tell whether a store is sound and what it holds. The service may go on meanwhile.

    Parameters
    ----------
    store
        The file of a store, such as history.db, or an address as for `bert4rec serve --store`.
    """
    from bert4rec.logs.times import format_moment
    from bert4rec.store.upkeep import check_store

    found = check_store(store)
    span = ""
    if found.first is not None and found.last is not None:
        span = f", from {format_moment(found.first)} to {format_moment(found.last)}"
    say(f"Sound: {count(found.events, 'event')} of {count(found.users, 'user')}{span}.")


@app.command
def backup(store: str, *, output: Annotated[Path, Parameter(alias="-o")], overwrite: Flag = False) -> None:
    """Copy a store to one file, complete and checked. The service may go on meanwhile.

    To restore it, stop the service, move history.db, history.db-wal and history.db-shm out of the folder, and copy the
    file to history.db. A copy also holds users who are forgotten later: keep copies no longer than you may.

    Parameters
    ----------
    store
        The file of a store, such as history.db, or its address.
    output
        The file to write. Only its owner can read it.
    overwrite
        Replace the file if it exists.
    """
    from bert4rec.store.upkeep import back_up

    size = back_up(store, output, overwrite=overwrite)
    say(f"Wrote {output}: {size / 2**20:,.1f} MiB.")
