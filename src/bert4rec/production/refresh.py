"""The next model, from what users did until now: log, dataset, training, verdict, export, and the switch.

FOLDER/
  current          a link to the model in service, for `bert4rec serve FOLDER/current --watch`
  models/WHEN/     exported models: the newest few
  work/WHEN/       what one refresh makes: log, dataset, run, verdict
  history.jsonl    a line for each finished refresh

Every step leaves something that is whole or absent, so a refresh that was killed goes on with the first step whose
result is missing. The link is exchanged last, in one rename.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.api.datasets import prepare
from bert4rec.api.runs import train
from bert4rec.artefact import held, write_text
from bert4rec.data.dataset import MANIFEST as DATASET
from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.errors import UsageError
from bert4rec.extras import require_exporters, require_torch
from bert4rec.logs.times import format_moment
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.onnx_engine import MANIFEST as MODEL
from bert4rec.store.transfer import export_events, opened
from bert4rec.store.upkeep import address_of, moment_before

if TYPE_CHECKING:
    from bert4rec.production.successor import Verdict
    from bert4rec.training.reporting.watch import Listener
    from bert4rec.training.run import Run

CURRENT = "current"
STALE = 12 * 3600.0
"""Seconds after which an interrupted refresh is not gone on with: its log misses too much by then."""
SQLITE = b"SQLite format 3\0"
"""The beginning of every SQLite file."""


@dataclass(frozen=True)
class Request:
    """What the next model is made of, and how. The parameters of `refresh`."""

    source: str
    items: str | None
    since: str | None
    min_user_actions: int
    min_item_actions: int | None
    repeats: Repeats | None
    training: dict[str, Any]
    """Parameters of `train`."""

    @property
    def digest(self) -> str:
        """Tells requests apart; the source may hold a password, which must not be written down."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Refreshed:
    """What a refresh led to."""

    when: str
    """The name of its folders: when it began, in UTC."""
    run: Path
    model: Path | None
    """The exported model, now in service; None if it was refused."""
    verdict: "Verdict"


def refresh(
    source: str | Path,
    folder: str | Path,
    *,
    items: str | Path | None = None,
    since: str | None = None,
    min_user_actions: int = 5,
    min_item_actions: int | None = None,
    repeats: Repeats | None = None,
    model: str | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, object] | Iterable[str] = (),
    minutes: float | None = None,
    seed: int | None = None,
    device: str = "auto",
    keep: int = 3,
    force: bool = False,
    listener: "Listener | None" = None,
    should_stop: Callable[[], bool] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Refreshed:
    """Train the next model on what users did until now, and put it into service unless it is worse.

    If it is interrupted, the same call goes on where it stopped. Serve `folder/current` with `watch=True`: the service
    takes over a new model without failing a request.

    Parameters
    ----------
    source
        A history store (a file, or postgresql://…), or a log as `prepare` reads it.
    folder
        Where models and what they are made from are kept.
    items
        A file with the titles and other columns of items, as in `prepare`. A store knows ids only.
    since
        Leave out what is older: an age, such as 1y, 26w or 90d, or a date. By default everything counts.
    min_user_actions, min_item_actions, repeats
        As in `prepare`.
    model, preset, config, settings, minutes, seed, device
        As in `train`.
    keep
        How many models to keep, so that you can go back.
    force
        Put the new model into service even if it is worse or degenerate.
    listener, should_stop
        As in `train`.
    say
        Hears each step in a sentence.
    """
    if keep < 1:
        raise UsageError(f"`keep` must be at least 1; found {keep}.")
    require_torch()
    require_exporters()
    given = dict(settings) if isinstance(settings, Mapping) else tuple(settings)
    training: dict[str, Any] = {"model": model, "preset": preset, "settings": given}
    training |= {"config": None if config is None else str(config), "minutes": minutes, "seed": seed}
    request = Request(
        str(source),
        None if items is None else str(items),
        since,
        min_user_actions,
        min_item_actions,
        repeats,
        training,
    )
    target = Path(folder)
    link = target / CURRENT
    if link.exists() and not link.is_symlink():
        raise UsageError(f"{link} is not a link. Move it away: the model in service is a link to it.")
    with held(target, wait=False, busy=f"Another refresh is going on in {target}."):
        work = _unfinished(target, request) or _begin(target, request)
        steps = _Steps(target, work, request, say)
        run = steps.train(steps.prepare(), device=device, listener=listener, should_stop=should_stop)
        verdict = steps.judge(run, force=force)
        exported = steps.put_into_service(run, force=force) if verdict.accepted else None
        steps.finish(run, verdict, exported)
        _clear_away(target, work, keep)
    return Refreshed(work.name, run.path, exported, verdict)


def _begin(folder: Path, request: Request) -> Path:
    work = folder / "work" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    work.mkdir(parents=True)
    write_text(work / "request.json", json.dumps({"digest": request.digest, "began": time.time()}))
    return work


def _unfinished(folder: Path, request: Request) -> Path | None:
    """The newest refresh, if it was interrupted, not long ago, and asked for the same."""
    for work in sorted((folder / "work").glob("*/"), reverse=True)[:1]:
        if (work / "refresh.json").exists() or not (work / "request.json").exists():
            continue
        begun = json.loads((work / "request.json").read_text(encoding="utf-8"))
        if begun["digest"] == request.digest and time.time() - begun["began"] < STALE:
            return work
    return None


@dataclass(frozen=True)
class _Steps:
    """One refresh. Each step is done once; after an interruption, what is there is taken as it is."""

    folder: Path
    work: Path
    request: Request
    say: Callable[[str], None] = field(repr=False)

    def prepare(self) -> Dataset:
        target, request = self.work / "dataset", self.request
        if (target / DATASET).is_file():
            return Dataset.open(target)
        log, after = self._log(), None
        if request.since is not None:
            after = format_moment(moment_before(request.since))
        dataset = prepare(
            log,
            target,
            items=request.items,
            name=Path(request.source).stem if "://" not in request.source else "history",
            after=after,
            min_user_actions=request.min_user_actions,
            min_item_actions=request.min_item_actions,
            repeats=request.repeats,
            progress=False,
        )
        self.say(
            f"Prepared {dataset.num_users:,} users, {dataset.num_items:,} items, {dataset.num_actions:,} actions."
        )
        has_titles = "title" in dataset.items().columns
        if not has_titles and self._in_service and Catalogue.read(self._in_service / "catalogue.json").titles:
            self.say(
                "The model in service has titles, the next one has none. They come from a file of items."
            )
        return dataset

    def _log(self) -> Path:
        source = self.request.source
        if not _is_store(source):
            return Path(source)
        log = self.work / "events.parquet"
        if not log.exists():
            with opened(address_of(source)) as store:
                self.say(f"Took {export_events(store, log):,} events from the store.")
        return log

    def train(self, dataset: Dataset, **around: Any) -> "Run":
        return train(dataset, self.work / "run", refit="all", resume=True, **self.request.training, **around)

    def judge(self, run: "Run", *, force: bool) -> "Verdict":
        """Once: after the switch, the model in service would be the new one."""
        from bert4rec.production.successor import Verdict, judge_successor

        kept = self.work / "verdict.json"
        if kept.exists():
            return Verdict(**json.loads(kept.read_text(encoding="utf-8")))
        verdict = judge_successor(run, run.dataset, self._in_service)
        if force and not verdict.accepted:
            verdict = Verdict(**{**asdict(verdict), "accepted": True, "reason": f"Forced. {verdict.reason}"})
        write_text(kept, json.dumps(asdict(verdict), indent=2))
        self.say(verdict.reason)
        return verdict

    def put_into_service(self, run: "Run", *, force: bool) -> Path:
        target = self._exported
        if not (target / MODEL).is_file():
            target.parent.mkdir(exist_ok=True)
            run.export(target, force=force)
        link, next_link = self.folder / CURRENT, self.folder / f".{CURRENT}.next"
        next_link.unlink(missing_ok=True)
        next_link.symlink_to(target.relative_to(self.folder))
        next_link.replace(link)
        return target

    @property
    def _in_service(self) -> Path | None:
        """The model that the link leads to, if there is one."""
        link = self.folder / CURRENT
        return link.resolve() if link.exists() else None

    @property
    def _exported(self) -> Path:
        return self.folder / "models" / self.work.name

    def finish(self, run: "Run", verdict: "Verdict", exported: Path | None) -> None:
        """Write down what was done. The log goes: everything in it is in the dataset."""
        (self.work / "events.parquet").unlink(missing_ok=True)
        line = {
            "when": self.work.name,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": exported and json.loads((exported / MODEL).read_text(encoding="utf-8"))["version"],
            "users": run.plan.num_users,
            "items": run.plan.num_items,
            "metrics": run.metrics["test"],
            "verdict": asdict(verdict),
        }
        text = json.dumps(line, ensure_ascii=False)
        history = self.folder / "history.jsonl"
        before = history.read_text(encoding="utf-8") if history.exists() else ""
        if f'{{"when": "{self.work.name}"' not in before:
            write_text(history, before + text)
        write_text(self.work / "refresh.json", text)


def _is_store(source: str) -> bool:
    if "://" in source:
        return True
    path = Path(source)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def _clear_away(folder: Path, work: Path, keep: int) -> None:
    """Old models, and what older refreshes were made from: it holds users who have been forgotten since."""
    for old in (folder / "work").iterdir():
        if old != work:
            shutil.rmtree(old)
    models = sorted((folder / "models").glob("*/"), reverse=True)
    in_service = (folder / CURRENT).resolve()
    for old in models[keep:]:
        if old.resolve() != in_service:
            shutil.rmtree(old)
