"""`bert4rec.auto`: from a log to a model that can be served, and a page about it, in a given time."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.artefact import held, kind_of, write_text
from bert4rec.automatic.auto_folder import AutoFolder
from bert4rec.data.dataset import Dataset
from bert4rec.errors import DataError, UsageError
from bert4rec.extras import require_exporters, require_torch
from bert4rec.frames import Frame, is_frame
from bert4rec.settings.checks import checked_minutes, checked_seed
from bert4rec.settings.sections import DEFAULT_MODEL

if TYPE_CHECKING:
    from bert4rec.api.comparison import Comparison
    from bert4rec.automatic.findings import Findings
    from bert4rec.training.plan import Plan
    from bert4rec.training.reporting.watch import Listener
    from bert4rec.training.run import Run

BASELINE, POPULAR = "sasrec", "pop"
"""The strongest of the paper's baselines, and the one that costs nothing."""
SHARES = {DEFAULT_MODEL: 50, BASELINE: 20, "production": 25, "export": 5}
"""How the time is divided among what is still to be done. Training on everything takes half as long as choosing the
number of steps and training again for that many."""
FEWEST_USERS = 2
"""Of whom something can be said, and how sure it is."""
log = logging.getLogger("bert4rec")


@dataclass(frozen=True)
class AutoResult:
    """What `auto` has made and found."""

    folder: Path
    dataset: Dataset
    runs: "dict[str, Run]"
    """Name of the model → its run, in which the test items were held out."""
    served: str
    """Name of the model that was the best on the validation items."""
    comparison: "Comparison"
    """All models on the test items, among all items, as differences from POP."""
    sentence: str
    """What was found: which model, how much better than popularity, and how sure that is."""
    seconds: dict[str, float]
    """Stage → how long it took."""

    def as_dict(self) -> dict[str, Any]:
        """What was found as plain values, ready for JSON."""
        return {
            "served": self.served,
            "sentence": self.sentence,
            "metrics": {model: run.metrics for model, run in self.runs.items()},
            "comparison": self.comparison.as_dict(),
            "seconds": self.seconds,
        }

    @property
    def page(self) -> Path:
        """The report, an HTML file."""
        return self.folder / "report.html"

    @property
    def model(self) -> Path:
        """The exported model, for `load` and `serve`."""
        return self.folder / "model"


def auto(
    source: Dataset | Frame | str | Path | Sequence[str | Path],
    folder: str | Path,
    minutes: float = 10,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    title: str | int | None = None,
    items: Frame | str | Path | None = None,
    time_format: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    local_copy: str | Path | None = None,
    min_user_actions: int | None = None,
    samples: bool = False,
    seed: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    listener: "Listener | None" = None,
    should_stop: Callable[[], bool] | None = None,
    wording: Callable[[str], str] = str,
) -> AutoResult:
    """Do everything with a log: prepare, train BERT4Rec+ beside SASRec and POP, compare, export, write a page.

    The best on the validation items is trained once more on everything and exported. If the call is interrupted, the
    same call goes on where it stopped.

    Parameters
    ----------
    source
        As in `prepare`, or a dataset or its folder.
    folder
        Folder for the dataset, the runs, the exported model and report.html.
    minutes
        How long all of it may take. The trainings are planned for that time on this machine.
    user, item, time, title, items, time_format, separator, encoding, local_copy, min_user_actions
        As in `prepare`.
    samples
        Export the histories of a few users too, so that the service's page can show them. Everybody who may use the
        service will see them.
    seed
        Of the trainings; 1 by default.
    device
        "auto", "cpu", "cuda", "cuda:1" or "mps".
    overwrite
        Start again in a folder that an earlier call has filled.
    listener
        Hears messages and how training is going; by default messages go to the logger.
    should_stop
        Asked before every step; True stops as Ctrl-C does.
    wording
        Applied to what the library says on the page; the command line writes parameters as options.
    """
    require_torch()
    require_exporters()
    reading = {
        "user": user,
        "item": item,
        "time": time,
        "title": title,
        "items": items,
        "time_format": time_format,
        "separator": separator,
        "encoding": encoding,
        "local_copy": local_copy,
        "min_user_actions": min_user_actions,
    }
    reading = {name: value for name, value in reading.items() if value is not None}
    limit, start = checked_minutes(minutes), checked_seed(seed)
    asked = {"source": source, **reading, "minutes": limit, "samples": samples, "seed": start}
    target = Path(folder)
    with held(target, wait=False):
        begun = AutoFolder.begin(
            target, {key: _plain(value) for key, value in asked.items()}, overwrite=overwrite
        )
        try:
            work = _Auto(begun, 60 * limit, start, device, listener, should_stop or (lambda: False), wording)
            return work.run(source, reading, samples=samples)
        finally:
            if not begun.is_begun:  # Nothing was done, so nothing is left.
                begun.clear()


def _plain(value: Any) -> Any:
    """A parameter as auto.json keeps it. What frames hold is compared when they have been read."""
    if is_frame(value) or isinstance(value, Dataset):
        return f"a {type(value).__name__}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(each) for each in value]
    return str(value) if isinstance(value, Path) else value


class _Auto:
    """The stages, one after the other; each is skipped if it is done."""

    def __init__(
        self,
        folder: AutoFolder,
        seconds: float,
        seed: int,
        device: str,
        listener: "Listener | None",
        should_stop: Callable[[], bool],
        wording: Callable[[str], str],
    ) -> None:
        self._folder, self._seconds, self._seed, self._device = folder, seconds, seed, device
        self._listener, self._should_stop, self._wording = listener, should_stop, wording
        self._say = listener.say if listener else log.info
        self._began, self._spent = time.perf_counter(), sum(folder.seconds.values())

    def run(self, source: Any, reading: dict[str, Any], *, samples: bool) -> AutoResult:
        with self._stage("prepare"):
            dataset = self._prepare(source, reading)
        self._tell_plan(dataset)
        runs = {model: self._train(model, dataset) for model in (POPULAR, DEFAULT_MODEL, BASELINE)}
        found = self._find(dataset, runs)
        final = self._train_for_production(found)
        with self._stage("export"):
            if kind_of(self._folder.model) is None:
                final.export(self._folder.model, samples=samples)
        with self._stage("page"):
            self._write_page(found)
        result = AutoResult(
            folder=self._folder.path,
            dataset=dataset,
            runs=runs,
            served=final.model,
            comparison=found.comparison,
            sentence=found.sentence,
            seconds=self._folder.seconds,
        )
        self._folder.save(result.as_dict())
        return result

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Note how long a stage takes. If it was done before, that stays."""
        if self._should_stop():
            raise KeyboardInterrupt
        began = time.perf_counter()
        yield
        self._folder.seconds.setdefault(name, round(time.perf_counter() - began, 2))
        self._folder.save()

    def _left(self) -> float:
        """Seconds of the time that was given, over all calls."""
        return self._seconds - self._spent - (time.perf_counter() - self._began)

    def _share(self, stage: str) -> float:
        """Seconds for a stage: its part of what is left for it and for all that comes after it."""
        stages = list(SHARES)
        return max(
            1.0, self._left() * SHARES[stage] / sum(SHARES[each] for each in stages[stages.index(stage) :])
        )

    def _prepare(self, source: Any, reading: dict[str, Any]) -> Dataset:
        if isinstance(source, Dataset) or (
            isinstance(source, str | Path) and kind_of(Path(source)) == "dataset"
        ):
            dataset = self._take(source, reading)
        else:
            dataset = self._read(source, reading)
        try:
            _refuse_too_little(dataset)
        except DataError:
            if not (self._folder.path / "runs").exists():
                self._folder.clear()
            raise
        return dataset

    def _take(self, source: Dataset | str | Path, reading: dict[str, Any]) -> Dataset:
        """A dataset that somebody has prepared."""
        for name in reading:
            raise UsageError(f"`{name}` is for logs, and {source} is a dataset. Leave it out.")
        dataset = source if isinstance(source, Dataset) else Dataset.open(source)
        return dataset if dataset.path else dataset.save(self._folder.dataset, overwrite=True)

    def _read(self, source: Any, reading: dict[str, Any]) -> Dataset:
        """The dataset of a log; if it is there already, only a frame is read again, to see whether it is the same."""
        from bert4rec.api.datasets import prepare

        def stop_if_asked(_done: int, _total: int | None) -> None:
            if self._should_stop():
                raise KeyboardInterrupt

        path = self._folder.dataset
        if not path.exists():
            dataset = prepare(source, path, **reading, callback=stop_if_asked)
            for note in dataset.notes:
                self._say(note)
            return dataset
        dataset = Dataset.open(path)
        if is_frame(source) and prepare(source, **reading).checksum != dataset.checksum:
            raise UsageError(
                f"{path} was made of another frame. Choose another `folder`, or start again with `overwrite=True`."
            )
        return dataset

    def _tell_plan(self, dataset: Dataset) -> None:
        from bert4rec.training.reporting.forecast import in_words

        size = f"{dataset.num_users:,} users, {dataset.num_items:,} items, {dataset.num_actions:,} actions"
        self._say(f"{size}. The best of POP, SASRec and BERT4Rec+ is to be served.")
        if DEFAULT_MODEL not in self._folder.seconds:
            whole = sum(SHARES.values())
            shares = {stage: in_words(self._left() * share / whole) for stage, share in SHARES.items()}
            self._say(
                f"At most {shares[DEFAULT_MODEL]} for BERT4Rec+, {shares[BASELINE]} for SASRec, "
                f"{shares['production']} to train the best on everything."
            )

    def _train(self, model: str, dataset: Dataset) -> "Run":
        """Choose the number of steps, refit, look at the test items once."""
        from bert4rec.training.plan import Plan, is_begun
        from bert4rec.training.run import MANIFEST, Run

        folder = self._folder.run(model)
        if (folder / MANIFEST).is_file():
            return Run.open(folder)
        with self._stage(model):
            if is_begun(folder):
                plan, told = replace(Plan.load(folder), dataset=str(dataset.folder.absolute())), ""
            else:
                plan, told = self._plan(model, dataset)
            return self._launch(folder, plan, dataset, told=told)

    def _plan(self, model: str, dataset: Dataset) -> "tuple[Plan, str]":
        """Settings that fit into the share of the model. All are chosen by what the default model goes by."""
        from bert4rec.budget.time_plan import plan_minutes
        from bert4rec.settings.config import GivenSettings
        from bert4rec.settings.defaults import DataFacts
        from bert4rec.training.device import place
        from bert4rec.training.plan import Plan, select_by_of

        given = GivenSettings.read(model)
        plan = Plan.for_dataset(
            dataset,
            model,
            given.complete(DataFacts.of(dataset)),
            preset=None,
            seed=self._seed,
            split=None,
            select_by=select_by_of(DEFAULT_MODEL),
        )
        if plan.config.training is None:
            return plan, ""
        return plan_minutes(
            round(self._share(model) / 60, 1) or 0.1,
            plan,
            given,
            dataset,
            place(self._device),
            compile_step=True,
            began=time.perf_counter(),
            is_asked=False,  # Where nothing fits, the least is better than nothing.
        )

    def _launch(
        self, folder: Path, plan: "Plan", dataset: Dataset, *, told: str = "", begun_by: "Run | None" = None
    ) -> "Run":
        from bert4rec.training.launch import launch
        from bert4rec.training.specs import MODELS

        left = f", {self._left() / 60:.1f} minutes left" if plan.config.training else ""
        self._say(f"{MODELS[plan.model].title}{left}:")
        return launch(
            dataset,
            folder,
            plan,
            device=self._device,
            resume=True,
            listener=self._listener,
            should_stop=self._should_stop,
            told=told,
            begun_by=begun_by,
        )

    def _find(self, dataset: Dataset, runs: "dict[str, Run]") -> "Findings":
        """The models side by side, and the one that is served."""
        from bert4rec.automatic.findings import Findings
        from bert4rec.training.device import place
        from bert4rec.training.specs import MODELS

        criterion = runs[DEFAULT_MODEL].plan.criterion
        # By the validation items: the test items tell what the choice is worth. The best is taken even if its lead may
        # be chance, for it is the better guess, and nothing is lost if the two are equally good. POP is not among them:
        # it cannot be exported, and the page says if nothing beats it.
        exported = (DEFAULT_MODEL, BASELINE)
        best = max(exported, key=lambda model: criterion.of(runs[model].metrics["valid"]))
        titled = {MODELS[model].title: runs[model] for model in (*exported, POPULAR)}
        return Findings(dataset, titled, MODELS[best].title, criterion, place(self._device), self._seed)

    def _train_for_production(self, found: "Findings") -> "Run":
        """Train the chosen model on everything, for as many steps an action."""
        from bert4rec.training.run import MANIFEST, Run

        chosen, folder = found.runs[found.served], self._folder.production
        if (folder / MANIFEST).is_file():
            return Run.open(folder)
        with self._stage("production"):
            is_begun = (folder / "config.json").is_file()
            if not is_begun:  # Perhaps somebody was killed while copying what the chosen run has.
                shutil.rmtree(folder, ignore_errors=True)
            plan = replace(chosen.plan, dataset=str(found.dataset.folder.absolute()), refit="all")
            return self._launch(folder, plan, found.dataset, begun_by=None if is_begun else chosen)

    def _write_page(self, found: "Findings") -> None:
        from bert4rec.automatic.auto_page import make_page

        write_text(self._folder.page, make_page(found, self._folder, self._wording))


def _refuse_too_little(dataset: Dataset) -> None:
    """Refuse a log on which nothing can be compared, before anything is trained."""
    from bert4rec.data.leakage import why_nobody
    from bert4rec.data.splits import make_split

    split = make_split(dataset)
    if not len(split.valid) or not len(split.test):
        raise DataError(f"The log leaves no users to validate or to test on: {why_nobody(split)}")
    fewest = min(len(split.valid), len(split.test))
    if fewest < FEWEST_USERS:
        raise DataError(f"The log has {fewest} user to test on; at least {FEWEST_USERS} are required.")
