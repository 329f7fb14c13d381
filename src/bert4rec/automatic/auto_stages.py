"""The stages of `auto`, one after the other. Each is skipped if it is done, and a training resumes where it stopped."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert4rec.api.datasets import prepare
from bert4rec.artefact import kind_of, write_text
from bert4rec.automatic.auto_folder import AutoFolder
from bert4rec.automatic.auto_page import make_page
from bert4rec.automatic.findings import Findings
from bert4rec.budget.time_plan import plan_minutes
from bert4rec.data.dataset import Dataset
from bert4rec.data.leakage import why_nobody
from bert4rec.data.splits import make_split
from bert4rec.errors import DataError, UsageError
from bert4rec.frames import is_frame
from bert4rec.settings.config import GivenSettings
from bert4rec.settings.defaults import DataFacts
from bert4rec.settings.sections import DEFAULT_MODEL
from bert4rec.training.device import place
from bert4rec.training.launch import launch
from bert4rec.training.plan import MANIFEST, Plan, flat, is_begun, select_by_of
from bert4rec.training.reporting.forecast import in_words
from bert4rec.training.reporting.watch import Listener
from bert4rec.training.run import Run
from bert4rec.training.specs import MODELS

BASELINE, POPULAR = "sasrec", "pop"
"""The strongest of the paper's baselines, and the one that costs nothing."""
EXPORTED = (DEFAULT_MODEL, BASELINE)
"""One of these is served."""
SHARES = {DEFAULT_MODEL: 0.48, BASELINE: 0.28, "production": 0.24}
"""How the time is divided among what is still to be trained. Training on everything takes at most half as long as
choosing the number of steps and training again for that many."""
CLOSING = 15.0
"""Seconds for the export and the page, which hardly depend on the data."""
PLANNED = {DEFAULT_MODEL: "BERT4Rec+", BASELINE: "SASRec", "production": "the better of both on everything"}
"""What the plan says of them."""
REMEDY = "More `minutes` may help."
"""What to try where a model is worth too little: nothing else can be chosen here."""
FEWEST_USERS = 2
"""Of whom something can be said, and how sure it is."""
log = logging.getLogger("bert4rec")


@dataclass
class AutoStages:
    """What is to be done in a folder, and how much of the time is left."""

    folder: AutoFolder
    seconds: float
    """For all stages, over all calls."""
    seed: int
    device: str
    listener: Listener | None
    should_stop: Callable[[], bool]
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._spent = sum(self.folder.seconds.values())
        self._say: Callable[[str], None] = self.listener.say if self.listener else log.info

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Note how long a stage takes, unless it was done before."""
        if self.should_stop():
            raise KeyboardInterrupt
        began = time.perf_counter()
        yield
        self.folder.seconds.setdefault(name, round(time.perf_counter() - began, 2))
        self.folder.save()

    def _left(self) -> float:
        """Seconds that are left of all."""
        return max(0.0, self.seconds - self._spent - (time.perf_counter() - self.began))

    def _share(self, stage: str) -> float:
        """Seconds for a stage: its part of what is left for it and for all that comes after it."""
        stages = list(SHARES)
        to_come = sum(SHARES[each] for each in stages[stages.index(stage) :])
        return self._to_train() * SHARES[stage] / to_come

    def _to_train(self) -> float:
        return max(0.0, self._left() - CLOSING)

    def prepare(self, source: Any, reading: dict[str, Any]) -> Dataset:
        """The dataset of a log, or the one that was passed; refused if nothing can be compared on it."""
        is_resumed = bool(self.folder.seconds)
        with self._stage("prepare"):
            place(self.device)  # A device that is not there is refused before anything is removed.
            is_folder = isinstance(source, str | Path) and kind_of(Path(source)) == "dataset"
            if is_folder or isinstance(source, Dataset):
                dataset = self._take(source, reading)
            else:
                dataset = self._read(source, reading)
            _refuse_too_little(dataset)
            if self.folder.is_new:
                self.folder.start()
            if not dataset.path:
                dataset = dataset.save(self.folder.dataset, overwrite=True)
        self._say(
            f"{dataset.num_users:,} users, {dataset.num_items:,} items, {dataset.num_actions:,} actions."
        )
        if is_resumed:
            self._say(f"Going on. Done already: {', '.join(self.folder.seconds)}.")
        else:
            times = (
                f"{name} {in_words(self._to_train() * SHARES[stage])}" for stage, name in PLANNED.items()
            )
            self._say(f"The plan: {', '.join(times)}.")
        return dataset

    def _take(self, source: Dataset | str | Path, reading: dict[str, Any]) -> Dataset:
        for name in reading:
            raise UsageError(f"`{name}` is for logs, and {source} is a dataset. Leave it out.")
        return source if isinstance(source, Dataset) else Dataset.open(source)

    def _read(self, source: Any, reading: dict[str, Any]) -> Dataset:
        """If the dataset is there already, only a frame is read again, to see whether it is the same."""

        def stop_if_asked(_done: int, _total: int | None) -> None:
            if self.should_stop():
                raise KeyboardInterrupt

        path = self.folder.dataset
        if path.exists() and not self.folder.is_new:
            dataset = Dataset.open(path)
            if is_frame(source) and prepare(source, **reading).checksum != dataset.checksum:
                raise UsageError(
                    f"{path} was made of another frame. Choose another `folder`, or start again with `overwrite=True`."
                )
            return dataset
        dataset = prepare(source, **reading, callback=stop_if_asked)
        for note in dataset.notes:
            self._say(note)
        return dataset

    def train(self, model: str, dataset: Dataset) -> Run:
        """Choose the number of steps, refit, look at the test items once."""
        folder = self.folder.run(model)
        if (folder / MANIFEST).is_file():
            run = Run.open(folder)
            run.plan.check_dataset(dataset)
            return run
        with self._stage(model):
            if is_begun(folder):
                plan, told = replace(Plan.load(folder), dataset=str(dataset.folder.absolute())), ""
                plan.check_dataset(dataset)
            else:
                plan, told = self._plan(model, dataset)
            return self._launch(folder, plan, dataset, told=told)

    def _plan(self, model: str, dataset: Dataset) -> tuple[Plan, str]:
        """Settings that fit into the share of the model, chosen by what the default model goes by.

        Batches and the length of histories are those of the default model, which follow from the data: in a short time,
        the small batches of a small log teach the baseline far more than its usual ones.
        """
        facts, same = DataFacts.of(dataset), {}
        if model == BASELINE:
            usual = flat(GivenSettings.read(DEFAULT_MODEL).complete(facts).as_dict())
            same = {key: usual[key] for key in ("model.max_length", "training.batch_size")}
        given = GivenSettings.read(model, settings=same)
        plan = Plan.for_dataset(
            dataset,
            model,
            given.complete(facts),
            preset=None,
            seed=self.seed,
            split=None,
            select_by=select_by_of(DEFAULT_MODEL),
        )
        if plan.config.training is None:
            return plan, ""
        return plan_minutes(
            max(0.1, round(self._share(model) / 60, 1)),
            plan,
            given,
            dataset,
            place(self.device),
            compile_step=True,
            began=time.perf_counter(),
            is_asked=False,  # Where nothing fits, the least is better than nothing.
        )

    def _launch(
        self, folder: Path, plan: Plan, dataset: Dataset, *, told: str = "", begun_by: Run | None = None
    ) -> Run:
        left = f", with {in_words(self._left())} left" if self._left() else ""
        self._say(f"{MODELS[plan.model].title}{left}:")
        return launch(
            dataset,
            folder,
            plan,
            device=self.device,
            resume=True,
            listener=self.listener,
            should_stop=self.should_stop,
            told=told,
            begun_by=begun_by,
            remedy=REMEDY,
        )

    def find(self, dataset: Dataset, runs: dict[str, Run]) -> Findings:
        """The models side by side, and the one that is served.

        That goes by the validation items: the test items tell what the choice is worth. The best is taken even if its
        lead may be chance, for it is the better guess, and nothing is lost if the two are equally good. POP cannot be
        exported; the page says if nothing beats it.
        """
        criterion = runs[DEFAULT_MODEL].plan.criterion
        best = max(EXPORTED, key=lambda model: criterion.of(runs[model].metrics["valid"]))
        titled = {MODELS[model].title: runs[model] for model in (*EXPORTED, POPULAR)}
        return Findings(dataset, titled, MODELS[best].title, criterion, place(self.device), self.seed)

    def train_for_production(self, found: Findings) -> Run:
        """Train the chosen model on everything, for as many steps an action."""
        chosen, folder = found.runs[found.served], self.folder.production
        if (folder / MANIFEST).is_file():
            return Run.open(folder)
        with self._stage("production"):
            is_resumed = (folder / "config.json").is_file()
            if not is_resumed:  # Somebody may have been killed while copying what the chosen run has.
                shutil.rmtree(folder, ignore_errors=True)
            plan = replace(chosen.plan, dataset=str(found.dataset.folder.absolute()), refit="all")
            return self._launch(folder, plan, found.dataset, begun_by=None if is_resumed else chosen)

    def export(self, run: Run, *, samples: bool) -> None:
        """Write the model that is served."""
        with self._stage("export"):
            if kind_of(self.folder.model) is None:
                run.export(self.folder.model, samples=samples)

    def write_page(self, found: Findings, wording: Callable[[str], str]) -> None:
        """Write report.html."""
        with self._stage("page"):
            write_text(self.folder.page, make_page(found, self.folder, wording))


def _refuse_too_little(dataset: Dataset) -> None:
    """Refuse a log on which nothing can be compared, before anything is trained."""
    split = make_split(dataset)
    if not len(split.valid) or not len(split.test):
        raise DataError(f"The log leaves no users to validate or to test on: {why_nobody(split)}")
    fewest = min(len(split.valid), len(split.test))
    if fewest < FEWEST_USERS:
        raise DataError(f"The log has {fewest} user to test on; at least {FEWEST_USERS} are required.")
