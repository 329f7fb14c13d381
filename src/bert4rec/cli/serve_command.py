"""`bert4rec serve`."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bert4rec.cli.prepare_command import Flag
from bert4rec.errors import UsageError
from bert4rec.service import serve


def serve_command(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000,
    workers: int = 1,
    threads: int = 1,
    quantised: bool = True,
    store: str = "sqlite:///history.db",
    api_key_file: Path | None = None,
    watch: Flag = False,
    history: Path | None = None,
) -> None:
    """Answer requests for recommendations over HTTP, with a page to look at.

    Parameters
    ----------
    model
        A folder that `bert4rec export` wrote, or a link to one.
    host
        Address to listen on. By default only this machine can reach the service; 0.0.0.0 opens it to all others.
    port
        Port to listen on; 0 takes a free one.
    workers
        Processes. Each loads the model.
    threads
        Processor cores that one answer may use. More workers are usually better than more threads.
    quantised
        Search 100,000 items and more by vectors of whole numbers first. The answers are the same; --no-quantised takes
        several times as long and a quarter less memory.
    store
        Where users' events are stored: sqlite:///history.db (in this folder), sqlite:////var/lib/history.db
        (absolute) or postgresql://user:password@host/database.
    api_key_file
        Require a key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`. The file has one key a line; lines that
        begin with # are comments.
    watch
        Switch to a new model as soon as the folder is replaced by renaming, or the link is changed. Never copy over
        the files of a model that is being served: they are mapped into memory, and the service would crash.
        `kill -HUP` rolls back to the previous model until a restart; to roll back for good, change the link back.
    history
        A dataset whose histories are added to the store first, so that its users are known. For large ones, use
        `bert4rec store import`.
    """
    try:
        serve(
            model,
            host=host,
            port=port,
            workers=workers,
            threads=threads,
            quantised=quantised,
            store=store,
            api_key_file=api_key_file,
            watch=watch,
            history=history,
        )
    except UsageError as error:
        export = shlex.join(["bert4rec", "export", str(model), "-o", f"{model}-model"])
        raise UsageError(
            str(error).replace("Create one with `run.export()`", f"Create one with {export}")
        ) from error
