"""`bert4rec serve`."""

import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bert4rec.cli.prepare_command import Flag
from bert4rec.errors import UsageError
from bert4rec.service import serve


def serve_command(
    model: Annotated[list[str], Parameter(negative=())],
    *,
    split: str | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8000,
    unix_socket: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    workers: int = 1,
    threads: int = 1,
    quantised: bool = True,
    approximate: Flag = False,
    force: Flag = False,
    store: str = "sqlite:///history.db",
    api_key_file: Path | None = None,
    allow_host: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    insecure: Flag = False,
    watch: Flag = False,
    history: Path | None = None,
    drain: float = 3.0,
    log_format: Literal["text", "json"] = "text",
    log_requests: Flag = False,
    log_user_ids: Flag = False,
    otel: Flag = False,
) -> None:
    """Answer requests for recommendations over HTTP, with a page to look at.

    Parameters
    ----------
    model
        A folder that `bert4rec export` wrote, or a link to one. Or several side by side, to test which is better, each
        with a name: champion=model-a challenger=model-b. The first is the one that others are compared with, and
        `bert4rec ab` tells the outcome.
    split
        With several models, a share for each, in their order: 90:10. A user stays with one model.
    host
        Address to listen on. By default only this machine can reach the service; 0.0.0.0 opens it to all others, and
        requires --api-key-file, or --insecure.
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
        Search 100,000 items and more by vectors of whole numbers first. The answers are the same; --no-quantised takes
        several times as long and a quarter less memory.
    approximate
        Search the index of a model that was exported with --approximate instead of all items; so with models that
        --watch finds. Scores are exact; now and then one of the best items is not found.
    force
        Serve a model even if it recommends the same to everybody; so with models that --watch finds.
    store
        Where users' events are stored: sqlite:///history.db (in this folder), sqlite:////var/lib/history.db
        (absolute) or postgresql://user:password@host/database.
    api_key_file
        Require a key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`. A file with one key a line, each of which may
        do everything; or one that ends in .toml, with a name, a role and a limit for each key.
    allow_host
        A name by which clients may call the service, besides addresses in numbers and localhost; can be repeated. With
        keys, every name will do unless some are listed; * takes any.
    insecure
        Let others reach the service without keys.
    watch
        Switch to a new model as soon as the folder is replaced by renaming, or the link is changed. Never copy over
        the files of a model that is being served: they are mapped into memory, and the service would crash.
        `POST /v1/models/rollback` goes back to the model before until a restart; to go back for good, change the link.
        Without --watch, `kill -HUP` looks for a new model, and reads keys and certificate again.
    history
        A dataset whose histories are added to the store first, so that its users are known. For large ones, use
        `bert4rec store import`.
    drain
        Seconds from SIGTERM to closing the address. Meanwhile /health/ready says no, so that load balancers notice.
    log_format
        text for people, or json, one object a line.
    log_requests
        Log a line for each request.
    log_user_ids
        Name users in these lines.
    otel
        Send a trace of each request to a collector of OpenTelemetry, as its environment variables say. Needs
        the extra `otel`.
    """
    models = _read_models(model)
    try:
        serve(
            models,
            split=None if split is None else _read_split(split),
            host=host,
            port=port,
            unix_socket=unix_socket,
            tls_cert=tls_cert,
            tls_key=tls_key,
            workers=workers,
            threads=threads,
            quantised=quantised,
            approximate=approximate,
            force=force,
            store=store,
            api_key_file=api_key_file,
            allow_host=allow_host,
            insecure=insecure,
            watch=watch,
            history=history,
            drain=drain,
            log_format=log_format,
            log_requests=log_requests,
            log_user_ids=log_user_ids,
            otel=otel,
        )
    except UsageError as error:
        run = str(error).partition(" is a training run")[0]
        export = shlex.join(["bert4rec", "export", run, "-o", f"{run}-model"])
        raise UsageError(
            str(error).replace("Create one with `run.export()`", f"Create one with {export}")
        ) from error


def _read_models(given: list[str]) -> str | dict[str, str]:
    """One folder, or several by their names."""
    if len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        return given[0]
    models: dict[str, str] = {}
    for each in given:
        name, separator, folder = each.partition("=")
        if not separator or not folder:
            raise UsageError(f"{each}: give each of several models a name, as in champion={each}.")
        if name in models:
            raise UsageError(f"Two models have the name {name}. Give each a name of its own.")
        models[name] = folder
    return models


def _read_split(given: str) -> list[int]:
    if not re.fullmatch(r"\d+(:\d+)*", given):
        raise UsageError(
            f"`split`: expected whole numbers with colons between them, as in 90:10; found {given}."
        )
    return [int(share) for share in given.split(":")]
