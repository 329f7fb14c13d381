"""Times of runs that nobody has timed: rough, but of the right kind."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.paper.experiments.cases import DatasetFacts
from bert4rec.paper.runs import estimate as estimate_module
from bert4rec.paper.runs.estimate import estimate, outline
from bert4rec.paper.runs.jobs import Job
from bert4rec.training.device import Placement
from bert4rec.training.reporting.forecast import Costs
from tests.conftest import MakeDataset
from tests.paper.tiny import tiny_case, tiny_job
from tests.training.tiny import CPU, random_histories

HERE = Placement(CPU, None)


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


@pytest.mark.parametrize(
    ("name", "users", "items", "actions", "family"),
    [("ml-1m", 6_040, 3_416, 999_611, "ml-1m"), ("ml-100k", 943, 1_682, 100_000, "ml-1m")],
)
def test_an_outline_has_the_size_of_the_data_set(
    name: str, users: int, items: int, actions: int, family: str
) -> None:
    found = outline(name, Path("data") / name)
    assert (found.num_users, found.num_items) == (users, items)
    assert found.num_actions == pytest.approx(actions, rel=0.01)
    assert (DatasetFacts.of(found).name, DatasetFacts.of(found).family) == (name, family)


def job_with(dataset: Dataset, label: str, *settings: str, model: str = "bert4rec") -> Job:
    return tiny_job(dataset, tiny_case(label, model, *settings))


def test_time_grows_with_steps_and_every_run_has_one(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def pretend(job: Job, *_: object) -> Costs:
        tried.append(job.case.label)
        return Costs(step=2.0, validation=1.0, judging=1.0)

    monkeypatch.setattr(estimate_module, "_try", pretend)
    jobs = [
        job_with(dataset, "short"),
        job_with(dataset, "long", "training.steps=80"),
        job_with(dataset, "calm", "model.hidden_dropout=0.4"),
        job_with(dataset, "other", "model.layers=1"),
    ]
    times = estimate(jobs, [dataset], HERE)
    short, long, calm, other = (times[job.mark] for job in jobs)
    assert long - short == 2 * (80 - 8) * 2.0 + (20 - 2) * 1.0, "selection, refit, validations"
    assert calm == short == other
    assert tried == ["short", "other"], (
        "neither dropout nor the number of steps decides how long a step takes"
    )


def test_where_there_is_no_time_to_try_it_is_taken_to_grow_with_the_width(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate_module, "_try", lambda *_: Costs(step=3.0, validation=0.0, judging=0.0))
    monkeypatch.setattr(estimate_module, "SECONDS", 0.0)
    jobs = [job_with(dataset, "narrow"), job_with(dataset, "wide", "model.dim=64")]
    times = estimate(jobs, [dataset], HERE)
    narrow, wide = (times[job.mark] - estimate_module.SECONDS_TO_START for job in jobs)
    assert wide == pytest.approx(4 * narrow)


@pytest.mark.parametrize("model", ["bert4rec", "sasrec", "bpr-mf"])
def test_steps_are_really_tried(dataset: Dataset, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that advances with every look at it, so that nothing depends on the machine."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    settings = ("training.batch_size=64",) if model != "bpr-mf" else ()
    case = tiny_case("tried", model, *settings)
    if model == "bpr-mf":
        kept = [each for each in case.settings if "heads" not in each and "max_length" not in each]
        case = replace(case, settings=tuple(kept))
    (seconds,) = estimate([tiny_job(dataset, case)], [dataset], HERE).values()
    # Every trial takes one tick: a pass and an update are two, and a ranking of 3 of 30 users is one.
    assert seconds == estimate_module.SECONDS_TO_START + 16 * 2 + (2 + 2) * 1 * 10
