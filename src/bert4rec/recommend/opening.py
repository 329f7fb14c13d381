"""A folder becomes a recommender: that of a run, or that of an exported model."""

from pathlib import Path

from bert4rec.artefact import wrong_folder
from bert4rec.errors import UsageError
from bert4rec.extras import require_torch
from bert4rec.recommend.onnx_engine import is_exported, open_exported
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.attributes import FILE as ATTRIBUTES
from bert4rec.recommend.rules.attributes import Attributes
from bert4rec.recommend.rules.degenerate import refuse_degenerate


def open_folder(
    path: Path,
    kind: type[Recommender] = Recommender,
    *,
    threads: int,
    device: str,
    quantised: bool,
    approximate: bool = False,
    force: bool,
) -> Recommender:
    """What `Recommender.load` does; an exported model becomes one of this kind."""
    if (path / "config.json").is_file():
        refuse_options_of_exported(threads=threads, quantised=quantised, approximate=approximate, force=force)
        require_torch()
        from bert4rec.recommend.run_engine import open_recommender

        return open_recommender(path, device)
    if not is_exported(path):
        raise wrong_folder(path, "run", "model")
    if device not in ("auto", "cpu"):
        raise UsageError(f"`device={device!r}`: an exported model runs on the CPU. Load the run instead.")
    engine, catalogue, facts = open_exported(
        path, threads=threads, quantised=quantised, approximate=approximate
    )
    recommender = kind(engine, catalogue, attributes=Attributes.read(path / ATTRIBUTES), **facts)
    if not force:
        refuse_degenerate(engine, catalogue.counts)
    return recommender


def refuse_options_of_exported(*, threads: int, quantised: bool, approximate: bool, force: bool) -> None:
    """Of a run, torch uses the processors as it is set, and always scores all items. Its evaluation tells if it
    recommends the same to everybody, and its export refuses it."""
    usual = {
        "threads": threads == 1,
        "quantised": quantised,
        "approximate": not approximate,
        "force": not force,
    }
    for name, is_usual in usual.items():
        if not is_usual:
            raise UsageError(f"`{name}` applies to exported models only.")
