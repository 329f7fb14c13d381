"""The HTTP service, and the page that it shows.

launch       processes: an address, one or several workers
http/        HTTP/1.1: connections, sockets, workers
app          settings, the table of operations, start and end
application  the way of every request: names, keys, operation, response
admission/   who may ask, and by which name
service, recommending    what each request does
experiment, counting     several models side by side: who is answered by which, and what that led to
served_models, batcher    the model that answers, and its queue
hidden_items, hidden_table, change_mark    what is not to be recommended for now, known to every worker
event_reading             from the events of a request to those that are stored; they are kept by `bert4rec.store`
schemas, event_schemas    requests and responses
problems, documents    errors, descriptions
telemetry/   metrics, logs, traces
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bert4rec.errors import UsageError

if TYPE_CHECKING:
    from bert4rec.data.dataset import Dataset

REQUIRED = ("httptools", "uvloop", "prometheus_client", "onnxruntime")


def serve(
    model: str | PathLike[str] | Mapping[str, str | PathLike[str]],
    *,
    split: Sequence[int] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    unix_socket: str | PathLike[str] | None = None,
    tls_cert: str | PathLike[str] | None = None,
    tls_key: str | PathLike[str] | None = None,
    workers: int = 1,
    threads: int = 1,
    quantised: bool = True,
    approximate: bool = False,
    force: bool = False,
    store: str = "sqlite:///history.db",
    api_key_file: str | PathLike[str] | None = None,
    allow_host: Sequence[str] = (),
    insecure: bool = False,
    watch: bool = False,
    history: "Dataset | str | PathLike[str] | None" = None,
    drain: float = 3.0,
    log_format: Literal["text", "json"] = "text",
    log_requests: bool = False,
    log_user_ids: bool = False,
    otel: bool = False,
) -> None:
    """Answer requests for recommendations over HTTP, with a page to look at. Returns when it is told to stop.

    Errors in the parameters are raised before the port opens. On SIGTERM, `/health/ready` says no from then on, and
    connections are still accepted for `drain` seconds; then the accepted requests are finished. Ctrl-C does without
    these seconds. SIGHUP reads keys and certificate again and looks for a new model.

    Parameters
    ----------
    model
        The folder of an exported model, or a link to one. Or several side by side, to test which is better: a folder
        for each name, the first being the one that the others are compared with. `bert4rec.ab` tells the outcome.
    split
        With several models: a share for each, whole numbers in their order, as (90, 10). A user stays with one model.
    host
        Address to listen on. By default only this machine can reach the service; "0.0.0.0" opens it to all others, and
        requires `api_key_file`, or `insecure`.
    port
        Port to listen on; 0 takes a free one.
    unix_socket
        Listen on this unix socket instead, which only this machine can reach.
    tls_cert
        A certificate with its chain, as PEM: serve HTTPS.
    tls_key
        The key of the certificate, unless it is in the same file.
    workers
        Processes. Each loads the model.
    threads
        Processor cores that one answer may use. More workers are usually better than more threads.
    quantised
        Whether to search 100,000 items and more by vectors of whole numbers first. The answers are the same; False
        takes several times as long and a quarter less memory.
    approximate
        Search the index of a model that was exported with `approximate=True` instead of all items; so with models that
        `watch` finds. Scores are exact; now and then one of the best items is not found.
    force
        Serve a model even if it recommends the same to everybody; so with models that `watch` finds.
    store
        Where users' events are stored: "sqlite:///history.db" (in this folder), "sqlite:////var/lib/history.db"
        (absolute) or "postgresql://user:password@host/database".
    api_key_file
        Require a key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`. A file with one key a line, each of which may
        do everything; or one that ends in .toml, with a name, a role and a limit for each key.
    allow_host
        Names by which clients may call the service, besides addresses in numbers and "localhost". With keys, every name
        will do unless some are listed; "*" takes any.
    insecure
        Let others reach the service without keys.
    watch
        Switch to a new model as soon as the folder is replaced by renaming, or the link is changed. Never copy over
        the files of a model that is being served: they are mapped into memory, and the service would crash.
        `POST /v1/models/rollback` goes back to the model before until a restart; to go back for good, change the link.
    history
        A dataset, or its folder, whose histories are added to the store before the service begins; what the store has
        is not added again. For a first try: `bert4rec store import` does the same for large ones.
    drain
        Seconds from SIGTERM to closing the address, in which load balancers notice that the service is not ready.
    log_format
        "text" for people, or "json", one object a line.
    log_requests
        Log a line for each request.
    log_user_ids
        Name users in these lines.
    otel
        Send a trace of each request to a collector of OpenTelemetry, as its environment variables say. Needs
        the extra `otel`.
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
    if not 0 <= drain <= 3600:
        raise UsageError(f"`drain` must be from 0 to 3600 seconds; found {drain}.")
    if tls_key and not tls_cert:
        raise UsageError("`tls_key` needs `tls_cert`, the certificate it belongs to.")
    if log_format not in ("text", "json"):
        raise UsageError(f"`log_format` must be 'text' or 'json'; found {log_format!r}.")
    from bert4rec.service.experiment import Arm, arms_of

    if isinstance(model, Mapping):
        arms = arms_of(model, split)
    elif split is None:
        arms = (Arm("", Path(model), 1),)
    else:
        raise UsageError("`split` is for several models: give each a name, as in champion=model-a.")
    from bert4rec.service.app import Settings
    from bert4rec.service.http.listening import Address
    from bert4rec.service.running import Launch, run

    address = Address(
        host,
        port,
        unix_socket=None if unix_socket is None else Path(unix_socket),
        certificate=None if tls_cert is None else Path(tls_cert),
        private_key=None if tls_key is None else Path(tls_key),
    )
    if history is not None:
        from bert4rec.data.dataset import Dataset
        from bert4rec.store.transfer import import_into

        import_into(store, history if isinstance(history, Dataset) else Dataset.open(Path(history)))
    settings = Settings(
        arms[0].model,
        store,
        None if api_key_file is None else Path(api_key_file),
        allow_host=tuple(allow_host),
        any_host=unix_socket is not None,
        threads=threads,
        workers=workers,
        quantised=quantised,
        approximate=approximate,
        force=force,
        watch=watch,
        log_format=log_format,
        log_requests=log_requests,
        log_user_ids=log_user_ids,
        otel=otel,
        tested=arms if len(arms) > 1 else (),
    )
    run(settings, Launch(address, workers=workers, drain=drain, insecure=insecure))
