"""The HTTP service, and the page that it shows.

server     processes, sockets, signals
app        settings, and the table of operations
asgi       the way of every HTTP request
service    what each request does
served_models, batcher    the model that answers, and its queue
event_reading             from the events of a request to those that are stored; they are kept by `bert4rec.store`
schemas, event_schemas    requests and responses
problems, documents, counters    errors, descriptions, metrics
"""

from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.errors import UsageError

if TYPE_CHECKING:
    from bert4rec.data.dataset import Dataset

REQUIRED = ("uvicorn", "httptools", "prometheus_client", "onnxruntime")


def serve(
    model: str | PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    threads: int = 1,
    quantised: bool = True,
    store: str = "sqlite:///history.db",
    api_key_file: str | PathLike[str] | None = None,
    watch: bool = False,
    history: "Dataset | str | PathLike[str] | None" = None,
) -> None:
    """Answer requests for recommendations over HTTP, with a page to look at. Returns when it is told to stop.

    SIGTERM and Ctrl-C finish the accepted requests first. Errors in the parameters are raised before the port opens.

    Parameters
    ----------
    model
        The folder of an exported model, or a link to one.
    host
        Address to listen on. By default only this machine can reach the service; "0.0.0.0" opens it to all others.
    port
        Port to listen on; 0 takes a free one.
    workers
        Processes. Each loads the model.
    threads
        Processor cores that one answer may use. More workers are usually better than more threads.
    quantised
        Whether to search 100,000 items and more by vectors of whole numbers first. The answers are the same; False
        takes several times as long and a quarter less memory.
    store
        Where users' events are stored: "sqlite:///history.db" (in this folder), "sqlite:////var/lib/history.db"
        (absolute) or "postgresql://user:password@host/database".
    api_key_file
        Require a key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`. The file has one key a line; lines that
        begin with # are comments.
    watch
        Switch to a new model as soon as the folder is replaced by renaming, or the link is changed. Never copy over
        the files of a model that is being served: they are mapped into memory, and the service would crash. SIGHUP
        rolls back to the previous model until a restart; to roll back for good, change the link back.
    history
        A dataset, or its folder, whose histories are added to the store before the service begins; what the store has
        is not added again. For a first try: `bert4rec store import` does the same for large ones.
    """
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"The service requires {', '.join(missing)}, not installed: pip install 'bert4rec[serve]'."
        )
    for name, value in (("workers", workers), ("threads", threads)):
        if value < 1:
            raise UsageError(f"`{name}` must be at least 1; found {value}.")
    if port not in range(2**16):
        raise UsageError(f"`port` must be from 0 to 65535; found {port}.")
    from bert4rec.service.app import Settings
    from bert4rec.service.server import run

    if history is not None:
        from bert4rec.data.dataset import Dataset
        from bert4rec.store.transfer import import_into

        import_into(store, history if isinstance(history, Dataset) else Dataset.open(Path(history)))
    keys = None if api_key_file is None else Path(api_key_file)
    settings = Settings(Path(model), store, keys, threads=threads, quantised=quantised, watch=watch)
    run(settings, host=host, port=port, workers=workers)
