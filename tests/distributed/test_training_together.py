"""Whoever trains together ends where one process ends, whatever happens on the way."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.evaluation.judge import ROWS_PER_BATCH
from bert4rec.training.run import Run
from tests.conftest import log_of
from tests.distributed.jobs import FEW_USERS, work
from tests.distributed.processes import train_together
from tests.training.tiny import random_histories

MODELS = ("bert4rec", "bert4rec+", "sasrec")
NO_DROPOUT = {f"model.{part}_dropout": 0.0 for part in ("embedding", "hidden", "attention")}
CLIPPED = {**NO_DROPOUT, "training.clip_norm": 0.01}
"""Shorter than gradients are."""
SOFTMAXES: dict[str, dict[str, Any]] = {"exact": CLIPPED, "sampled": {**CLIPPED, "objective.negatives": 3}}
"""With so few negatives there are ranks that have none, and rows that a step does not use."""
INTERRUPTED: list[dict[str, Any]] = [
    {"name": f"resumed-{softmax}", "model": "bert4rec", "settings": settings}
    for softmax, settings in SOFTMAXES.items()
]
"""By four processes until step 3, by two until step 6, by one to the end."""
DIVERGING: list[dict[str, Any]] = [
    {"name": f"diverged-{seed}", "model": "sasrec", "settings": NO_DROPOUT, "seed": seed, "diverge": ranks}
    for seed, ranks in ((2, [0]), (3, [1]), (4, [0, 1]))
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    folder = tmp_path_factory.mktemp("data") / "dataset"
    # 37 items and two tokens more are no multiple of anything that they are divided by.
    return prepare(log_of(random_histories(users=60, items=37)), folder, name="tiny", recipe=recipe)


@pytest.fixture(scope="module")
def folder(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all models by one, two and four processes in float64, and one that went from hand to hand."""
    folder = tmp_path_factory.mktemp("runs")
    assert dataset.path

    def trainings(ranks: int) -> list[dict[str, Any]]:
        return [
            {"name": f"{model}-{softmax}-{ranks}", "model": model, "settings": settings}
            for model in MODELS
            for softmax, settings in SOFTMAXES.items()
        ]

    for ranks, stop_at in ((4, 3), (2, 6)):
        others = [{**job, "stop_at": stop_at} for job in INTERRUPTED] + (DIVERGING if ranks == 2 else [])
        train_together(ranks, folder, dataset.path, *trainings(ranks), *others, dtype="float64")
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(ROWS_PER_BATCH, "cpu", FEW_USERS)
            for job in (*trainings(1), *INTERRUPTED):
                work(dataset, folder, None, **job)
    finally:
        torch.set_default_dtype(torch.float32)
    return folder


def assert_same(one: Path, other: Path) -> None:
    """The losses to 1e-5, the value of every validation, the rank of every target, and the weights."""
    for mine, theirs in zip(*(marks_of(folder) for folder in (one, other)), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert mine.get("value") == theirs.get("value")
    for ranks in (*one.glob("ranks-*.npy"), *other.glob("ranks-*.npy")):
        np.testing.assert_array_equal(np.load(one / ranks.name), np.load(other / ranks.name))
    for name in ("selection.safetensors", "model.safetensors"):
        torch.testing.assert_close(load_file(one / name), load_file(other / name), rtol=0, atol=1e-9)


def marks_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_several_processes_reach_the_losses_and_ranks_of_one(
    folder: Path, model: str, softmax: str, ranks: int
) -> None:
    assert_same(folder / f"{model}-{softmax}-1", folder / f"{model}-{softmax}-{ranks}")


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_a_checkpoint_of_four_resumes_on_two_and_on_one(folder: Path, softmax: str) -> None:
    assert_same(folder / f"bert4rec-{softmax}-1", folder / f"resumed-{softmax}")


@pytest.mark.parametrize("job", DIVERGING, ids=lambda job: f"of ranks {job['diverge']}")
def test_scores_that_are_no_numbers_halve_the_learning_rate_whoever_finds_them(
    folder: Path, job: dict[str, Any]
) -> None:
    (restart,) = Run.open(folder / job["name"]).result["lines"][0]["restarts"]
    assert (restart["step"], restart["learning_rate"]) == (3, 5e-3)
    assert restart["reason"] == "the model's scores are no longer numbers"


def test_the_folder_in_the_end_is_the_ordinary_one(folder: Path, dataset: Dataset) -> None:
    alone, together = (Run.open(folder / f"bert4rec+-exact-{ranks}") for ranks in (1, 4))
    together.verify()
    names = [sorted(path.name for path in run.path.iterdir()) for run in (alone, together)]
    assert names[0] == names[1]
    found = together.evaluate(dataset=dataset, split="test")
    assert found.metrics == {
        protocol: pytest.approx(values) for protocol, values in together.result["lines"][1]["metrics"].items()
    }


@pytest.mark.parametrize("precision", ["float32"])
def test_processes_that_are_killed_go_on_from_their_checkpoint_to_the_same_weights(
    dataset: Dataset, tmp_path: Path, precision: str
) -> None:
    """Another than the first in the selection, then the first one in the refit; with dropout."""
    assert dataset.path
    job: dict[str, Any] = {"name": "run", "model": "bert4rec+", "settings": {}}
    killed = {**job, "kill": [["selection", 6, 1], ["refit", 6, 0]]}
    train_together(2, tmp_path / "undisturbed", dataset.path, job, dtype=precision)
    train_together(2, tmp_path / "killed", dataset.path, killed, dtype=precision, restarts=2)
    undisturbed, killed_run = (tmp_path / name / "run" for name in ("undisturbed", "killed"))
    Run.open(killed_run).verify()
    assert Run.open(killed_run).result["lines"][0]["resumed"]
    for name in ("selection.safetensors", "model.safetensors"):
        assert (killed_run / name).read_bytes() == (undisturbed / name).read_bytes()
