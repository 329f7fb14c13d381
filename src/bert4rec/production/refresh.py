"""The next model, from what users did until now: log, dataset, training, verdict, export, and the switch.

FOLDER/
  current          a link to the model in service, which a service that watches it follows
  models/WHEN/     exported models: the newest few
  work/WHEN/       what the newest refresh made: dataset, run, verdict
  history.jsonl    a line for each finished refresh

Every step leaves something that is whole or absent, so a refresh that was killed goes on with the first step whose
result is missing. The link is exchanged last, in one rename.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.api.datasets import prepare
from bert4rec.api.runs import train
from bert4rec.artefact import NAMES, held, kind_of, write_text
from bert4rec.data.dataset import MANIFEST as DATASET
from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.errors import Bert4RecError, UsageError
from bert4rec.extras import require_exporters, require_torch
from bert4rec.production.refresh_request import Request, begin, clear_models, unfinished
from bert4rec.production.successor import Verdict, judge_successor
from bert4rec.recommend.onnx_engine import MANIFEST as MODEL
from bert4rec.recommend.recommender import Recommender
from bert4rec.store.transfer import export_events, opened

if TYPE_CHECKING:
    from bert4rec.training.reporting.watch import Listener
    from bert4rec.training.run import Run

CURRENT = "current"


@dataclass(frozen=True)
class Refreshed:
    """What a refresh led to."""

    when: str
    """The name of its folders: when it began, in UTC."""
    run: Path
    model: Path | None
    """The exported model, now in service; None if it was refused."""
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "run": str(self.run), "model": self.model and str(self.model)}


def refresh(
    source: str | Path,
    folder: str | Path,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
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
    user, item, time
        Columns of a log. They are guessed from usual names.
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
        Put the new model into service even if it is worse or degenerate, or the one in service cannot be read. A model
        that was just refused is not trained again. A degenerate one is served with `force=True` only.
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
    request = Request(
        source=str(source),
        columns={"user": user, "item": item, "time": time},
        items=None if items is None else str(items),
        since=since,
        filters={"min_user_actions": min_user_actions, "min_item_actions": min_item_actions},
        repeats=repeats,
        training={"model": model, "preset": preset, "settings": given, "minutes": minutes, "seed": seed},
        config=None if config is None else str(config),
    )
    target = Path(folder)
    if (kind := kind_of(target)) is not None:
        raise UsageError(f"{target} is {NAMES[kind]}; `folder` must be a folder for refreshes alone.")
    link = target / CURRENT
    if link.exists() and not link.is_symlink():
        raise UsageError(f"{link} is not a link. Move it away: the model in service is a link to it.")
    request.check()
    with held(target, wait=False, busy=f"Another refresh is going on in {target}."):
        served = _in_service(link, force=force, say=say)
        work = unfinished(target, request, is_forced=force) or begin(target, request)
        steps = _Steps(target, work, request, served, say)
        try:
            dataset = steps.prepare()
            run = steps.train(dataset, device=device, listener=listener, should_stop=should_stop)
        except Bert4RecError:
            # What is wrong will be mended elsewhere; then it must not go on with the log of today.
            if not (work / "run" / "config.json").exists():
                shutil.rmtree(work)
            raise
        verdict = steps.judge(run, force=force)
        exported = steps.put_into_service(run, force=force) if verdict.accepted else None
        steps.finish(run, verdict, exported)
        clear_models(target, link, keep)
    return Refreshed(work.name, run.path, exported, verdict)


def _in_service(link: Path, *, force: bool, say: Callable[[str], None]) -> Recommender | None:
    """The model that the link leads to. If it cannot be read, that is said before anything is trained."""
    if not link.is_symlink():
        return None
    try:
        return Recommender.load(link.resolve(), force=True)
    except Bert4RecError as error:
        if not force:
            raise type(error)(
                f"The model in service cannot be read, so nothing can be compared with it: {error} "
                "To replace it all the same, use `force=True`."
            ) from error
        say(f"The model in service cannot be read, and is replaced: {error}")
        return None


@dataclass(frozen=True)
class _Steps:
    """One refresh. Each step is done once; after an interruption, what is there is taken as it is."""

    folder: Path
    work: Path
    request: Request
    served: Recommender | None
    say: Callable[[str], None] = field(repr=False)

    def prepare(self) -> Dataset:
        target, request = self.work / "dataset", self.request
        if (target / DATASET).is_file():
            return Dataset.open(target)
        log, before = Path(request.source), None
        if request.address:
            log = self.work / "events.parquet"
            # An import may have brought dates far ahead, which the service would have refused.
            before = str(datetime.now(UTC).date() + timedelta(days=2))
            with opened(request.address) as store:
                count = export_events(store, log, overwrite=True)
            self.say(f"Took {count:,} events from the store.")
        try:
            dataset = prepare(
                log,
                target,
                **request.columns,
                items=request.items,
                name=request.name,
                after=request.after,
                before=before,
                **request.filters,
                repeats=request.repeats,
                progress=False,
            )
        except Bert4RecError as error:
            raise type(error)(str(error).replace("`after`", "`since`")) from error
        (self.work / "events.parquet").unlink(missing_ok=True)  # Everything in it is in the dataset.
        self.say(
            f"Prepared {dataset.num_users:,} users, {dataset.num_items:,} items, {dataset.num_actions:,} actions."
        )
        self._warn_of_losses(dataset)
        return dataset

    def _warn_of_losses(self, dataset: Dataset) -> None:
        """Titles and attributes come from a file of items, which may have been forgotten."""
        if self.served is None:
            return
        columns = set(dataset.items().columns)
        lost = sorted(set(self.served.filters.attributes.kinds) - columns)
        if self.served.catalogue.titles and "title" not in columns:
            lost = ["title", *lost]
        if lost:
            self.say(
                f"Warning: the model in service knows {', '.join(lost)} of items, the next one will not: no `items`."
            )

    def train(self, dataset: Dataset, **around: Any) -> "Run":
        chosen = {**self.request.training, "config": self.request.config}
        return train(dataset, self.work / "run", refit="all", resume=True, **chosen, **around)

    def judge(self, run: "Run", *, force: bool) -> Verdict:
        """Once: after the switch, the model in service would be the new one."""
        kept = self.work / "verdict.json"
        if kept.exists():
            verdict = Verdict(**json.loads(kept.read_text(encoding="utf-8")))
        else:
            verdict = judge_successor(run, run.dataset, self.served)
            self.say(verdict.reason)
        if force and not verdict.accepted:
            verdict = replace(verdict, accepted=True, reason=f"Forced. {verdict.reason}")
        write_text(kept, json.dumps(asdict(verdict), indent=2))
        return verdict

    def put_into_service(self, run: "Run", *, force: bool) -> Path:
        target = self.folder / "models" / self.work.name
        if not (target / MODEL).is_file():
            target.parent.mkdir(exist_ok=True)
            run.export(target, force=force)
        next_link = self.folder / f".{CURRENT}.next"
        next_link.unlink(missing_ok=True)
        next_link.symlink_to(target.relative_to(self.folder))
        next_link.replace(self.folder / CURRENT)
        return target

    def finish(self, run: "Run", verdict: Verdict, exported: Path | None) -> None:
        """Write down what was done; of a model that was refused first and forced then, the latter."""
        line = {
            "when": self.work.name,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": exported and json.loads((exported / MODEL).read_text(encoding="utf-8"))["version"],
            "users": run.plan.num_users,
            "items": run.plan.num_items,
            "metrics": run.metrics["test"],
            "verdict": asdict(verdict),
        }
        text, history = json.dumps(line, ensure_ascii=False), self.folder / "history.jsonl"
        before = history.read_text(encoding="utf-8").splitlines() if history.exists() else []
        others = [each for each in before if json.loads(each)["when"] != self.work.name]
        write_text(history, "\n".join([*others, text]))
        write_text(self.work / "refresh.json", text)
