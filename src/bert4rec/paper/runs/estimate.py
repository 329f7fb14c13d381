"""How long runs take that were never timed: a few small steps are tried on this machine.

All times are rough. Batches are smaller than the real ones, and time is assumed to grow evenly with them. For runs that
are not tried because there is no time left, it is assumed to grow with width, length and batch.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import leave_one_out
from bert4rec.models.model import make_scorer
from bert4rec.paper.experiments.index import VARIANTS
from bert4rec.paper.runs.jobs import Job
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import Placement
from bert4rec.training.loop import Loop
from bert4rec.training.reporting.forecast import Costs, Forecast, measure
from bert4rec.training.specs import MODELS
from bert4rec.world.shapes import named_shape, spread

LIKE_ANOTHER = {"ml-100k": ("ml-1m", 943, 1_682, 100_000)}
"""Data sets without a stored shape: whose histories they resemble, and their users, items and actions."""
USERS = 500
"""Users with made-up histories; the others count as users and have none."""
SECONDS = 30.0
"""For all trials together. Each model is tried at least once, however long that takes."""
SMALL_BATCH = 16
"""Of histories. Batches of pairs are so fast that they are tried in full size."""
PASSES = 2
JUDGED_USERS = 16
SECONDS_TO_START = 3.0
"""Of a run: opening the data, cutting it, writing results."""


def outline(name: str, path: Path) -> Dataset:
    """The size of a named data set that is not there yet: users, items, actions and lengths, but no real actions."""
    known = LIKE_ANOTHER.get(name)
    shape = named_shape(known[0] if known else name)
    users, items, actions = known[1:] if known else (shape.num_users, shape.num_items, shape.num_actions)
    lengths = spread(shape.length_quantiles, users)
    lengths = np.maximum(3, np.rint(lengths * actions / lengths.sum())).astype(np.int64)
    manifest = {
        "name": name,
        "checksum": "",
        "source": {"name": name},
        "counts": {"items": items},
        "split": {"kind": "leave-one-out"},
        "files": {},
    }
    offsets = np.concatenate([[0], lengths.cumsum()])
    return Dataset(path, manifest, np.broadcast_to(np.int32(1), (offsets[-1],)), offsets, None)


class _MadeUp(Dataset):
    """A few users with random histories, among as many as there really are."""

    def negatives(self, kind: str = "popularity") -> NDArray[np.int32]:  # noqa: ARG002
        row = np.arange(1, 101, dtype=np.int32) % self.num_items + 1
        return np.broadcast_to(row, (self.num_users, len(row)))


def _make_up(dataset: Dataset) -> Dataset:
    chosen = np.linspace(0, dataset.num_users - 1, min(USERS, dataset.num_users)).astype(np.int64)
    lengths = np.zeros(dataset.num_users, np.int64)
    lengths[chosen] = dataset.lengths[chosen]
    rng = np.random.default_rng(1)
    items = rng.integers(1, dataset.num_items, size=lengths.sum(), endpoint=True, dtype=np.int32)
    manifest = {
        **dataset.manifest,
        "repeats": "keep",
    }  # Random items repeat, and no user should be left out for that.
    return _MadeUp(dataset.path, manifest, items, np.concatenate([[0], lengths.cumsum()]), None)


@dataclass(frozen=True)
class _Trial:
    """What decides how long a step takes, as far as it is considered."""

    path: Path
    model: str
    width: int
    length: int
    batch: int
    rest: str
    """Of the settings."""

    @classmethod
    def of(cls, job: Job) -> "_Trial":
        config = job.case.config(job.facts.family, quick=job.quick)
        # Dropout and the number of steps do not matter; what a variant leaves out hardly does.
        kept = {
            section: {key: value for key, value in values.items() if "dropout" not in key}
            for section, values in config.as_dict().items()
            if section != "training"
        }
        batch = config.training.batch_size if config.training else 0
        sizes = config.model.width or 1, getattr(config.model, "max_length", 1)
        return cls(job.path, job.case.model, *sizes, batch, str(kept))

    @property
    def size(self) -> int:
        return self.width * self.length * self.batch


def estimate(jobs: Iterable[Job], datasets: Iterable[Dataset], placement: Placement) -> dict[str, float]:
    """Seconds by the mark of a job. Runs that need about the same time are tried once."""
    made_up = {dataset.folder.absolute(): (dataset, _make_up(dataset)) for dataset in datasets}
    jobs, deadline = list(jobs), time.monotonic() + SECONDS
    tried: dict[_Trial, Costs] = {}
    first_of_each = {(job.path, job.case.model): job for job in reversed(jobs)}
    for job in (*first_of_each.values(), *jobs):
        trial = _Trial.of(job)
        must_be_tried = job in first_of_each.values()
        if trial not in tried and (must_be_tried or time.monotonic() < deadline):
            tried[trial] = _try(job, *made_up[job.path], placement)
    return {job.mark: _seconds(job, made_up[job.path][0], _costs(_Trial.of(job), tried)) for job in jobs}


def _costs(trial: _Trial, tried: dict[_Trial, Costs]) -> Costs:
    """As tried, or scaled from the most similar trial."""
    if trial in tried:
        return tried[trial]
    alike = [each for each in tried if (each.path, each.model) == (trial.path, trial.model)]
    nearest = min(alike, key=lambda each: abs(np.log(trial.size / each.size)))
    found = tried[nearest]
    return replace(found, step=found.step * trial.size / nearest.size)


def _try(job: Job, dataset: Dataset, made_up: Dataset, placement: Placement) -> Costs:
    """From two small batches, one four times as large as the other, where the real one is larger."""
    config, users = job.case.config(job.facts.family, quick=job.quick), dataset.num_users
    training = config.training
    if training is None:
        return Costs(0.0, 0.0, 0.0)
    kind = VARIANTS[job.case.variant] if job.case.variant else MODELS[job.case.model]
    wanted = training.batch_size
    batch = wanted if kind.knows_users else min(SMALL_BATCH, wanted)
    split = leave_one_out(made_up)

    def loop_of(size: int) -> Loop:
        fewer = replace(training, batch_size=size)
        smaller = replace(config, training=fewer)
        end, device = split.training_end("valid"), placement.device
        ground = TaskInputs(made_up, end, smaller, seed=1, device=device, dtype=placement.dtype)
        return Loop(kind.make_task(ground), fewer, device=device, seed=1)

    loop = loop_of(batch)
    scorer = make_scorer(loop.task.model, placement.dtype)
    found = measure(loop, scorer, made_up, split.valid, passes=PASSES, users=JUDGED_USERS)
    step, all_users = found.step, users / min(USERS, users)
    if batch < wanted:
        grown = found.step - loop_of(batch // 4).time_step(PASSES)
        # A disturbed trial must not make time shrink with the batch, or grow faster than the batch.
        step += (wanted - batch) * min(max(0.0, grown / (batch - batch // 4)), found.step / batch)
    return Costs(step, found.validation * all_users, found.judging * all_users)


def _seconds(job: Job, dataset: Dataset, costs: Costs) -> float:
    """Of a whole run, or of measuring speed: a few steps to warm up, and then some seconds."""
    if job.case.task == "speed":
        return SECONDS_TO_START + max(3.0, 5 * costs.step) + 5 * costs.step
    plan = job.plan(dataset)
    if plan.config.training is None:
        return SECONDS_TO_START
    forecast = Forecast(plan)
    forecast.begin(costs)
    seconds = forecast.seconds_left("selection", 0, plan.config.training.steps)
    measured = [job.case.measured_lines(measure) for measure in job.case.measures]
    return SECONDS_TO_START + seconds + sum(map(len, measured)) * costs.judging
