"""`bert4rec serve`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bert4rec.cli.prepare_command import Flag
from bert4rec.errors import UsageError


def serve_command(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000,
    workers: int = 1,
    threads: int = 1,
    store: str = "sqlite:///history.db",
    api_key_file: Path | None = None,
    watch: Flag = False,
) -> None:
    """Answer requests for recommendations over HTTP, with a page to look at.

    Parameters
    ----------
    model
        A folder that `bert4rec export` wrote, or a link to one.
    host
        Address to listen on. Other machines can reach the service only if you say so: 0.0.0.0 means all of them.
    port
        Port to listen on; 0 takes a free one.
    workers
        Processes. Each holds the model.
    threads
        Processors that one answer may use. More workers are usually better than more threads.
    store
        Where users' events are kept: sqlite:///history.db (in this folder), sqlite:////var/lib/history.db
        (absolute) or postgresql://user:password@host/database.
    api_key_file
        Ask for a key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`. One key a line; lines that begin with #
        do not count.
    watch
        Serve a new model as soon as the folder is replaced by renaming or the link switched. Never copy over the
        files of a model that is served: they are mapped into memory, and the service would die. `kill -HUP` goes
        back to the model before until a restart; to go back for good, switch the link back.
    """
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "onnxruntime")):
        raise UsageError("This command needs the service's libraries: pip install 'bert4rec[serve]'.")
    if workers < 1 or threads < 1:
        raise UsageError("--workers and --threads are at least 1.")
    from bert4rec.service.app import Settings
    from bert4rec.service.server import serve

    settings = Settings(model, store, api_key_file, threads=threads, watch=watch)
    serve(settings, host=host, port=port, workers=workers)
