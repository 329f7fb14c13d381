"""`bert4rec store`: what the service keeps of users, as its operator meets it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bert4rec.cli.console import count, progress, say, warn
from bert4rec.cli.prepare_command import Flag

if TYPE_CHECKING:
    from bert4rec.store.events import Forgotten

app = App(
    name="store", help_format="markdown", help="Import, export, check and copy what the service stores."
)

for _name, _summary in (
    ("hide", "Never recommend some items: from now on and for good, unless told otherwise."),
    ("unhide", "Let items be recommended again."),
    ("hidden", "List what is hidden."),
):
    app.command(f"bert4rec.cli.production.hidden_command:{_name}_command", name=_name, help=_summary)


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


@app.command(name="import")
def import_(store: str, dataset: Path) -> None:
    """Add the histories of a dataset to a store, so that the service knows its users. It may go on meanwhile.

    What the store has already, the same user, item and moment, is not added again: interrupted, or with a log that has
    grown, the same command goes on.

    Parameters
    ----------
    store
        The file of a store, such as history.db, which is created if there is none, or its address.
    dataset
        A folder that `bert4rec prepare` wrote.
    """
    from bert4rec.data.dataset import Dataset
    from bert4rec.store.transfer import import_into
    from bert4rec.store.upkeep import address_of

    opened = Dataset.open(dataset)
    with progress("Importing", "actions") as report:
        added, found = import_into(address_of(store), opened, report)
    known = f"; {count(found - added, 'action')} were there already" if added < found else ""
    say(f"Added {count(added, 'action')}{known}.")
    filters = opened.manifest.get("filters", {})
    if (fewest := max(filters.get("min_user_actions", 0), filters.get("k_core", 0))) > 1:
        warn(
            f"Users with fewer than {fewest} actions are not in this dataset, so the service will not know them. To "
            "import everybody, prepare the log with --min-user-actions 1."
        )


@app.command
def export(store: str, *, output: Annotated[Path, Parameter(alias="-o")], overwrite: Flag = False) -> None:
    """Write all events of a store as a log, which `bert4rec prepare` reads. The service may go on meanwhile.

    Parameters
    ----------
    store
        The file of a store, such as history.db, or its address.
    output
        The file to write: .parquet, .csv or .jsonl.
    overwrite
        Replace the file if it exists.
    """
    from bert4rec.store.transfer import export_events, opened
    from bert4rec.store.upkeep import address_of, sqlite_file

    sqlite_file(store)
    with opened(address_of(store)) as history, progress("Exporting", "events") as report:
        written = export_events(history, output, overwrite=overwrite, progress=report)
    say(f"Wrote {output}: {count(written, 'event')}.")


@app.command
def prune(store: str, *, older_than: str) -> None:
    """Delete all events that are older than an age or a date.

    Parameters
    ----------
    store
        The file of a store, such as history.db, or its address.
    older_than
        An age, such as 90d, 12w or 2y, or a date, such as 2025-01-31.
    """
    from bert4rec.store.transfer import opened
    from bert4rec.store.upkeep import address_of, moment_before, sqlite_file

    sqlite_file(store)
    moment = moment_before(older_than)
    with opened(address_of(store)) as history:
        _tell(history.prune(moment))


@app.command
def forget(store: str, user: str) -> None:
    """Delete everything that is stored of a user.

    Parameters
    ----------
    store
        The file of a store, such as history.db, or its address.
    user
        Id of the user.
    """
    from bert4rec.store.transfer import opened
    from bert4rec.store.upkeep import address_of, sqlite_file

    sqlite_file(store)
    with opened(address_of(store)) as history:
        _tell(history.forget(user))


def _tell(forgotten: "Forgotten") -> None:
    say(f"Deleted {count(forgotten.deleted, 'event')}.")
    if forgotten.traces:
        warn(forgotten.traces)
