"""Datasets, runs and models that were written before it was recorded whether repeats are kept."""

import json
from pathlib import Path

import pytest

from bert4rec.artefact import write_manifest
from bert4rec.cli.evaluate_command import compare_command, evaluate_command
from bert4rec.cli.prepare_command import stats_command
from bert4rec.data.dataset import Dataset
from bert4rec.evaluation.judge import load_ranks, save_ranks
from bert4rec.export.exporter import export_run
from bert4rec.recommend.recommender import Recommender
from bert4rec.training.checkpoint import load_tensors
from bert4rec.training.loop import Interrupted
from bert4rec.training.run import MANIFEST, SCHEMA, Run
from tests.conftest import MakeDataset
from tests.training.tiny import after, random_histories, train_tiny


def without(path: Path, *names: str) -> None:
    """Take what older versions did not write out of a JSON file."""
    content = json.loads(path.read_text())
    for name in names:
        content.pop(name)
    content.get("counts", {}).pop("duplicates", None)
    path.write_text(json.dumps(content))


@pytest.fixture
def old_dataset(make_dataset: MakeDataset) -> Dataset:
    path = make_dataset(random_histories(), repeats="exclude").folder
    without(path / "dataset.json", "repeats")
    return Dataset.open(path)


@pytest.fixture
def old_run(old_dataset: Dataset, tmp_path: Path) -> Run:
    run = train_tiny(old_dataset, tmp_path / "old")
    without(run.path / "config.json", "repeats")
    write_manifest(run.path, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})
    return Run.open(run.path)


def test_they_exclude_repeats(old_dataset: Dataset, old_run: Run, tmp_path: Path) -> None:
    export_run(old_run, tmp_path / "model")
    without(tmp_path / "model" / "model.json", "repeats")
    assert old_dataset.repeats == old_run.plan.repeats == "exclude"
    assert Recommender.load(old_run.path).exclude_seen
    assert Recommender.load(tmp_path / "model").exclude_seen
    stats_command(old_dataset.folder)


def test_a_run_that_was_begun_before_goes_on_as_if_nothing_had_happened(
    old_dataset: Dataset, tmp_path: Path
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train_tiny(old_dataset, whole)
    with pytest.raises(Interrupted):
        train_tiny(old_dataset, resumed, should_stop=after(7))
    without(resumed / "config.json", "repeats")
    train_tiny(old_dataset, resumed)
    ours, theirs = (load_tensors(folder / "model.safetensors")[0] for folder in (whole, resumed))
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())


def test_ranks_of_other_targets_are_made_anew_by_evaluate_and_then_compared(
    old_dataset: Dataset, old_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Targets that repeat an item of their history were asked about then."""
    today = load_ranks(old_run.path, "test")
    longer = type(today)(*(each.repeat(2) for each in (today.sampled, today.full)))
    save_ranks(old_run.path, "test", longer)
    write_manifest(old_run.path, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})
    evaluate_command(old_run.path)
    assert load_ranks(old_run.path, "test").full.tolist() == today.full.tolist()
    other = train_tiny(old_dataset, tmp_path / "other", "model.dim=32")
    compare_command(old_run.path, other.path)
    assert "Full ranking:" in capsys.readouterr().out


def test_the_version_of_an_exported_model_tells_what_it_recommends(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    """The same weights recommend other items where repeats are kept: whoever watches for a new version must see it."""
    versions = []
    for repeats in ("keep", "exclude"):
        run = train_tiny(make_dataset(random_histories(), repeats=repeats), tmp_path / repeats)
        export_run(run, tmp_path / f"model-{repeats}")
        versions.append(Recommender.load(tmp_path / f"model-{repeats}").version)
    assert versions[0] != versions[1]
