"""The model that answers, and the one before it.

A new model is loaded beside the old one, warmed, and put in its place between two requests. A request keeps the
model it began with, because item numbers have a meaning to that model only. The old one is kept for a rollback.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert4rec.artefact import read_manifest, wrong_folder
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.recommend import onnx_engine
from bert4rec.recommend.catalogue import Id
from bert4rec.recommend.engine import Numbers, Scores
from bert4rec.recommend.ids import as_given
from bert4rec.recommend.recommender import Question, Recommender
from bert4rec.service.batcher import Batcher
from bert4rec.service.telemetry.counters import Metrics
from bert4rec.store.feedback import Served

TopItems = tuple[Numbers, Scores]
"""The best items for a question, best first."""
MAX_BATCH = 64
MAX_WAITING = 2048
"""Single questions. Far fewer wait as a rule: what has waited for MAX_WAIT is turned away."""
MAX_WAITING_IN_GROUPS = 1024
MAX_WAIT = 0.5
"""Seconds. Under overload, those who are answered have waited as long, and those who are not are told by then."""
TIMEOUT = 5.0
WATCH_EVERY = 1.0
"""Seconds between looks at the model's folder."""
log = logging.getLogger("bert4rec.service")


class SampleUser(NamedTuple):
    """A user whose history the page offers. Ids are as in the log; older models have them all as text."""

    user_id: Id
    history: list[Id]


def check_folder(path: Path) -> None:
    """Refuse a folder that is not an exported model, such as a run, which would need torch."""
    if (path / onnx_engine.MANIFEST).is_file():
        read_manifest(path, onnx_engine.MANIFEST, kind="model", schema=onnx_engine.SCHEMA)
    elif inside := [name for name in ("model", "current") if (path / name / onnx_engine.MANIFEST).is_file()]:
        raise NotFoundError(f"{path} is not an exported model, but {path / inside[0]} is: pass that folder.")
    elif (path / "run.json").is_file() or (path / "config.json").is_file():
        raise UsageError(
            f"{path} is a training run; the service requires an exported model. Create one with `run.export()`."
        )
    else:
        raise wrong_folder(path, "model")


def open_model(
    path: Path, threads: int, *, quantised: bool = True, approximate: bool = False, force: bool = False
) -> Recommender:
    """An exported model, warm; a degenerate one only by `force`."""
    check_folder(path)
    recommender = Recommender.load(
        path, threads=threads, quantised=quantised, approximate=approximate, force=force
    )
    warm(recommender)
    return recommender


def warm(recommender: Recommender) -> None:
    """Make the first request as fast as the thousandth: memory is allocated, tables are built."""
    some, longest = (np.ones(length, np.int32) for length in (1, recommender.max_history))
    nothing = np.empty(0, np.int32)
    recommender.catalogue.search("a")
    if onnx_engine.is_exact(
        recommender.ranker.engine
    ):  # of millions of items, all vectors would be read, and stay in memory
        recommender.similar(recommender.catalogue.known_id, 1)
    for histories in ([some], [longest], [longest] * MAX_BATCH):
        recommender.top([Question(history, 10, nothing) for history in histories])


class ServedModel:
    """A loaded model. Questions that wait for it are answered together."""

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        metrics: Metrics,
        quantised: bool = True,
        approximate: bool = False,
        force: bool = False,
        arm: str = "",
        test: str = "",
    ) -> None:
        folder = path.resolve()  # a link may be switched while files are read
        self.recommender = open_model(
            folder, threads, quantised=quantised, approximate=approximate, force=force
        )
        self.served = Served.of(test, arm, self.recommender.version)
        self.recommendations = metrics.recommendations.labels(arm, self.recommender.version)
        self.samples = read_samples(folder)
        self.loaded_at = datetime.now(UTC)
        self.serving_since: datetime | None = None
        """When it took over; None if it does not serve."""
        self.visible = self.recommender
        """The same model without what is hidden,"""
        self.hides: object = None
        """as `HiddenItems` applied it last."""
        self._metrics = metrics
        self.batcher: Batcher[Question, TopItems] = Batcher(
            self._top,
            name="model",
            max_batch=MAX_BATCH,
            max_waiting=MAX_WAITING,
            max_waiting_in_groups=MAX_WAITING_IN_GROUPS,
            max_wait=MAX_WAIT,
            timeout=TIMEOUT,
            on_start=metrics.queue_seconds.observe,
        )

    @property
    def version(self) -> tuple[str, str]:
        """Name and version, which identify a model."""
        return self.recommender.name, self.recommender.version

    def _top(self, questions: list[Question]) -> Sequence[TopItems | Exception]:
        began = time.perf_counter()
        try:
            return self._find(questions)
        except Exception:
            # One of them is to blame; the others must not suffer for it.
            return [self._top_alone(question) for question in questions]
        finally:
            self._metrics.inference_seconds.observe(time.perf_counter() - began)
            self._metrics.batch_size.observe(len(questions))

    def _find(self, questions: list[Question]) -> list[TopItems]:
        """Hidden items are found where they are named, and nowhere else."""
        visible = self.visible
        if visible is self.recommender:
            return visible.top(questions)
        named = [question for question in questions if question.even_hidden]
        if not named:
            return visible.top(questions)
        among_all = iter(self.recommender.top(named))
        among_visible = iter(visible.top([each for each in questions if not each.even_hidden]))
        return [next(among_all if each.even_hidden else among_visible) for each in questions]

    def _top_alone(self, question: Question) -> TopItems | Exception:
        try:
            return self._find([question])[0]
        except Exception as error:
            return error


class ModelVersions:
    """Which model answers. Lives in the event loop; only loading happens elsewhere."""

    def __init__(
        self, path: Path, load: Callable[[Path], ServedModel], metrics: Metrics, arm: str = ""
    ) -> None:
        """`arm` is the name of what is served here, if it is an arm of a test."""
        self._load = partial(load, path)
        self._path, self._metrics, self._arm = path, metrics, arm
        self._seen = fingerprint(path)
        self._looking = asyncio.Lock()
        self.current = self._load()
        self.previous: ServedModel | None = None
        self._note("loaded")

    async def stop(self) -> None:
        for model in (self.current, self.previous):
            if model:
                await model.batcher.stop()

    async def watch(self, every: float = WATCH_EVERY) -> None:
        """Forever: look whether the folder was replaced, and switch to the model that is there now."""
        while True:
            await asyncio.sleep(every)
            await self.look()

    async def look(self) -> None:
        """Switch to the model in the folder, if it was replaced."""
        async with self._looking:
            found = await asyncio.to_thread(fingerprint, self._path)
            if found is None or found == self._seen:  # between two renames, there is no folder
                return
            self._seen = found
            await self.reload()

    async def reload(self) -> None:
        """Load the model in the folder and switch to it. One that cannot be loaded changes nothing."""
        try:
            new = await asyncio.to_thread(self._load)
        except Exception as error:  # whatever is wrong with a new model, the old one is sound
            self._metrics.model_loads.labels("failed").inc()
            log.error("The new model cannot be loaded; the current one stays in service: %s", error)
            return
        if new.version == self.current.version:
            await new.batcher.stop()
            return
        if self.previous and new.version == self.previous.version:
            self.roll_back()
            await new.batcher.stop()
            return
        dropped, self.previous, self.current = self.previous, self.current, new
        self._note("loaded")
        if dropped:
            await dropped.batcher.stop()

    def roll_back(self) -> bool:
        """Switch to the previous model, if there is one. Twice brings back the newer."""
        if self.previous is None:
            return False
        self.previous, self.current = self.current, self.previous
        self._note("rolled_back")
        return True

    def _note(self, result: str) -> None:
        self._metrics.model_loads.labels(result).inc()
        if self.previous:
            self.previous.serving_since = None
        self.current.serving_since = datetime.now(UTC)
        self._metrics.note_version(self.current.version, self._arm)
        self._metrics.note_model(self.current.loaded_at, self.current.recommender.trained, self._arm)
        as_arm = f" as {self._arm}" if self._arm else ""
        log.info("Model %s, version %s: %s%s.", *self.current.version, result.replace("_", " "), as_arm)


def read_samples(folder: Path) -> list[SampleUser]:
    """Histories for the page, if the model was exported with some: samples.json."""
    path = folder / "samples.json"
    if not path.is_file():
        return []
    try:
        return [
            SampleUser(as_given(each["user_id"]), list(map(as_given, each["history"])))
            for each in json.loads(path.read_bytes())
        ]
    except (ValueError, KeyError, TypeError, UsageError) as error:
        raise DataError(f"{path} is damaged and cannot be read ({error}). Export the model again.") from error


def fingerprint(path: Path) -> tuple[object, ...] | None:
    """Changes whenever the folder, or what a link points to, is replaced; None if there is no folder."""
    try:
        with os.scandir(path) as entries:
            facts = {entry.name: entry.stat() for entry in entries if not entry.name.startswith(".")}
    except OSError:
        return None
    return tuple((name, each.st_ino, each.st_size, each.st_mtime_ns) for name, each in sorted(facts.items()))
