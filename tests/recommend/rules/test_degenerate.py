"""Models that have collapsed are refused, unless somebody insists."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bert4rec.api.runs import load
from bert4rec.artefact import write_manifest
from bert4rec.data.histories import Histories
from bert4rec.data.trained import Trained
from bert4rec.errors import DataError, UsageError
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.degenerate import HISTORIES, refuse_degenerate, sample_histories
from bert4rec.training.checkpoint import load_tensors, save_tensors
from bert4rec.training.run import MANIFEST, SCHEMA, Run
from tests.conftest import NUM_ITEMS, MakeDataset
from tests.recommend.tiny import HighestFirst, untrained_run
from tests.training.tiny import random_histories

COUNTS = np.arange(100, 0, -1)
Damage = Callable[[Path], None]


class Turning(HighestFirst):
    """A model whose best items follow from the newest one; `alike` of the histories get the same all the same."""

    def __init__(self, num_items: int, alike: int = 0) -> None:
        super().__init__(num_items)
        self.alike = alike

    def queries(self, histories: Histories) -> NDArray[np.float32]:
        return histories.items[histories.end - 1][:, None].astype(np.float32)

    def top(self, histories: Histories, excluded: Histories, k: int, subset: Any = None) -> Any:
        first = histories.items[histories.end - 1].copy()
        first[: self.alike] = 1
        numbers = (first[:, None] + np.arange(k)) % len(self.bias) + 1
        return numbers.astype(np.int32), np.broadcast_to(-np.arange(k, dtype=np.float32), numbers.shape)


def test_histories_are_as_popular_as_real_ones_and_always_the_same() -> None:
    histories = sample_histories(COUNTS)
    assert histories.items.tolist() == sample_histories(COUNTS).items.tolist()
    assert len(histories) == HISTORIES
    assert len({tuple(histories[row : row + 1].flat()[1].tolist()) for row in range(HISTORIES)}) == HISTORIES
    assert 1 <= histories.items.min() <= histories.items.max() <= 100
    mean = (np.arange(1, 101) * COUNTS).sum() / COUNTS.sum()
    assert histories.items.mean() == pytest.approx(mean, rel=0.05)


def test_one_order_for_nearly_everybody_is_refused_and_less_is_not() -> None:
    refuse_degenerate(Turning(100), COUNTS)
    refuse_degenerate(Turning(100, alike=HISTORIES // 2), COUNTS)
    with pytest.raises(DataError, match=rf"same 10 items in the same order after {HISTORIES} of {HISTORIES}"):
        refuse_degenerate(Turning(100, alike=HISTORIES), COUNTS)
    with pytest.raises(DataError, match=r"what users did\. Train it again, or use `force=True`"):
        refuse_degenerate(Turning(100, alike=HISTORIES - 1), COUNTS)


def test_a_model_that_looks_at_no_history_is_meant_to_answer_everybody_alike() -> None:
    pop = Turning(100, alike=HISTORIES)
    pop.max_history = 0
    refuse_degenerate(pop, COUNTS)


def test_of_a_few_items_one_order_may_be_right() -> None:
    refuse_degenerate(Turning(6, alike=HISTORIES), np.arange(6, 0, -1))


def rewrite(folder: Path) -> None:
    manifest = json.loads((folder / "model.json").read_text())
    write_manifest(folder, "model.json", {**manifest, "version": "damaged"})


def one_order(folder: Path) -> None:
    """The bias alone decides."""
    np.save(folder / "bias.npy", np.linspace(0, 1e4, NUM_ITEMS, dtype=np.float32))


def not_numbers(folder: Path) -> None:
    np.save(folder / "bias.npy", np.full(NUM_ITEMS, np.nan, np.float32))


def all_equal(folder: Path) -> None:
    """Beside so large a bias, no difference of scores can be told."""
    np.save(folder / "bias.npy", np.full(NUM_ITEMS, 1e12, np.float32))


@pytest.mark.parametrize(
    ("damage", "reason"), [(one_order, "same order"), (not_numbers, "diverged"), (all_equal, "same score")]
)
def test_an_exported_model_that_has_collapsed_is_loaded_by_force_alone(
    exported_model: Path, tmp_path: Path, damage: Damage, reason: str
) -> None:
    folder = Path(shutil.copytree(exported_model, tmp_path / "model"))
    damage(folder)
    rewrite(folder)
    for opened in (load, Recommender.load):
        with pytest.raises(DataError, match=reason):
            opened(folder)
    assert load(folder, force=True).version == "damaged"


@pytest.fixture
def collapsed_run(make_dataset: MakeDataset, tmp_path: Path) -> Run:
    """A run whose queries are the same for everybody: nothing of the encoder gets through its last projection."""
    run = untrained_run(make_dataset(random_histories()), tmp_path / "run", "sasrec")
    weights, _ = load_tensors(run.path / "model.safetensors")
    for name, tensor in weights.items():
        if tensor.ndim == 1 and "norm" in name and name.endswith("weight"):
            tensor.zero_()
    save_tensors(run.path / "model.safetensors", weights)
    return reopened(run)


def reopened(run: Run) -> Run:
    """After its files were changed."""
    write_manifest(run.path, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})
    return Run.open(run.path)


def test_a_collapsed_run_is_exported_by_force_alone(collapsed_run: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="same order"):
        collapsed_run.export(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    collapsed_run.export(tmp_path / "model", force=True)
    with pytest.raises(DataError, match="same order"):
        load(tmp_path / "model")


def test_items_that_a_run_was_never_trained_on_are_not_judged(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    """They would be the best for everybody; but nobody gets them, and so export and load see nothing wrong."""
    run = untrained_run(make_dataset(random_histories(items=40)), tmp_path / "run")
    never_trained = list(range(31, 41))
    weights, _ = load_tensors(run.path / "model.safetensors")
    weights["item_bias"][-10:] += torch.linspace(1e4, 2e4, 10)
    save_tensors(run.path / "model.safetensors", weights)
    with pytest.raises(DataError, match="same order"):
        reopened(run).export(tmp_path / "refused")
    trained = Trained("bert4rec", "refit", until=None, actions=300, users=30, items=30, metrics={})
    result = {"seen": {"trained": asdict(trained), "untrained": never_trained}}
    (run.path / "result.json").write_text(json.dumps(result))
    assert load(reopened(run).export(tmp_path / "model")).recommend(["item-1"]).items


def test_a_run_can_be_looked_at_and_is_not_forced(collapsed_run: Run) -> None:
    assert load(collapsed_run.path).recommend(["item-1"]).items
    for run in (collapsed_run, collapsed_run.path):
        with pytest.raises(UsageError, match="`force` applies to exported models only"):
            load(run, force=True)
