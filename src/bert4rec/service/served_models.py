"""The model that answers, and the one before it.

A new model is loaded beside the old one, warmed, and put in its place between two requests. A request keeps the
model it began with, because item numbers mean something to that model only. The old one stays for going back.
"""

import asyncio
import json
import logging
import os
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert4rec.artefact import read_manifest
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.recommend import onnx_engine
from bert4rec.recommend.engine import Numbers, Scores
from bert4rec.recommend.recommender import Question, Recommender
from bert4rec.service.batcher import Batcher
from bert4rec.service.counters import Metrics

Found = tuple[Numbers, Scores]
MAX_BATCH = 64
MAX_WAITING = 512
"""At a few thousand questions a second, the last in the queue waits a fraction of a second."""
TIMEOUT = 5.0
WATCH_EVERY = 1.0
"""Seconds between looks at the model's folder."""
log = logging.getLogger("bert4rec.service")


class Sample(NamedTuple):
    user_id: str
    history: list[str]


def check_folder(path: Path) -> None:
    """Raise at once where no exported model is. A run does not do: it would need torch."""
    if (path / onnx_engine.MANIFEST).is_file():
        read_manifest(path, onnx_engine.MANIFEST, kind="model", schema=onnx_engine.SCHEMA)
        return
    if (path / "model" / onnx_engine.MANIFEST).is_file():
        command = shlex.join(["bert4rec", "serve", str(path / "model")])
        raise NotFoundError(f"{path} is not a model, but holds one. Serve it with: {command}")
    if (path / "run.json").is_file() or (path / "config.json").is_file():
        command = shlex.join(["bert4rec", "export", str(path), "-o", f"{path}-model"])
        raise UsageError(
            f"{path} is a training run; the service needs an exported model. Make one with: {command}"
        )
    found = "is not" if path.exists() else "does not exist; expected"
    raise NotFoundError(f"{path} {found} a model. Make one with: bert4rec export RUN -o MODEL")


def open_model(path: Path, threads: int) -> Recommender:
    """An exported model, warm."""
    check_folder(path)
    recommender = Recommender.load(path, threads=threads)
    warm(recommender)
    return recommender


def warm(recommender: Recommender) -> None:
    """Make the first request as fast as the thousandth: memory is allocated, tables are built."""
    some, longest = (np.ones(length, np.int32) for length in (1, recommender.max_history))
    nothing = np.empty(0, np.int32)
    recommender.catalogue.search("a")
    recommender.similar(recommender.catalogue.id_of(1), 1)
    for histories in ([some], [longest], [longest] * MAX_BATCH):
        recommender.top([Question(history, 10, nothing) for history in histories])


class Served:
    """A loaded model with the queue of questions for it."""

    def __init__(self, path: Path, *, threads: int, metrics: Metrics) -> None:
        folder = path.resolve()  # a link may be switched while files are read
        self.recommender = open_model(folder, threads)
        self.samples = read_samples(folder)
        self.loaded_at = datetime.now(UTC)
        self._metrics = metrics
        self.batcher: Batcher[Question, Found] = Batcher(
            self._answer, name="model", max_batch=MAX_BATCH, max_waiting=MAX_WAITING, timeout=TIMEOUT
        )

    @property
    def version(self) -> tuple[str, str]:
        """Name and version: what tells models apart."""
        return self.recommender.name, self.recommender.version

    def _answer(self, questions: list[Question]) -> Sequence[Found | Exception]:
        began = time.perf_counter()
        self._metrics.queue_depth.set(self.batcher.waiting)
        try:
            return self.recommender.top(questions)
        except Exception:
            # One of them is to blame; the others shall not suffer for it.
            return [self._answer_alone(question) for question in questions]
        finally:
            self._metrics.inference_seconds.observe(time.perf_counter() - began)
            self._metrics.batch_size.observe(len(questions))

    def _answer_alone(self, question: Question) -> Found | Exception:
        try:
            return self.recommender.top([question])[0]
        except Exception as error:
            return error


class Models:
    """Which model answers. Lives in the event loop; only loading happens elsewhere."""

    def __init__(self, path: Path, *, threads: int, metrics: Metrics) -> None:
        self._load = partial(Served, path, threads=threads, metrics=metrics)
        self._path, self._metrics = path, metrics
        self._seen = fingerprint(path)
        self.current = self._load()
        self.previous: Served | None = None
        self._note("loaded")

    async def stop(self) -> None:
        for served in (self.current, self.previous):
            if served:
                await served.batcher.stop()

    async def watch(self, every: float = WATCH_EVERY) -> None:
        """For ever: look whether the folder was replaced, and let what lies there now answer."""
        while True:
            await asyncio.sleep(every)
            found = await asyncio.to_thread(fingerprint, self._path)
            if found is None or found == self._seen:  # between two renames, there is no folder
                continue
            self._seen = found
            await self.take_over()

    async def take_over(self) -> None:
        """Load what lies in the folder and let it answer from now on. What cannot be loaded changes nothing."""
        try:
            new = await asyncio.to_thread(self._load)
        except Exception as error:  # whatever is wrong with a new model, the old one is sound
            self._metrics.model_loads.labels("failed").inc()
            log.error("The new model cannot be served, the old one goes on: %s", error)
            return
        if new.version == self.current.version:
            return
        if self.previous and new.version == self.previous.version:
            self.roll_back()
            return
        forgotten, self.previous, self.current = self.previous, self.current, new
        self._note("loaded")
        if forgotten:
            await forgotten.batcher.stop()

    def roll_back(self) -> None:
        """Let the model before this one answer again. Twice brings back the newer."""
        if self.previous is None:
            log.warning("There is no earlier model to go back to.")
            return
        self.previous, self.current = self.current, self.previous
        self._note("rolled_back")

    def _note(self, result: str) -> None:
        self._metrics.model_loads.labels(result).inc()
        if self.previous:
            self._metrics.model_info.labels(*self.previous.version).set(0)
        self._metrics.model_info.labels(*self.current.version).set(1)
        log.info("Model %s, version %s: %s.", *self.current.version, result.replace("_", " "))


def read_samples(folder: Path) -> list[Sample]:
    """Users to look at on the page, where whoever exported the model put some into samples.json."""
    path = folder / "samples.json"
    if not path.is_file():
        return []
    try:
        return [
            Sample(str(each["user_id"]), list(map(str, each["history"])))
            for each in json.loads(path.read_bytes())
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged and cannot be read ({error}). Export the model anew.") from error


def fingerprint(path: Path) -> tuple[object, ...] | None:
    """Changes whenever the folder, or what a link points to, is replaced; None where there is no folder."""
    try:
        with os.scandir(path) as entries:
            facts = {entry.name: entry.stat() for entry in entries if not entry.name.startswith(".")}
    except OSError:
        return None
    return tuple((name, each.st_ino, each.st_size, each.st_mtime_ns) for name, each in sorted(facts.items()))
