"""Datasets, runs and models of earlier versions: the committed ones of `older/`, and some made to look even older."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert4rec.api.backtest import backtest
from bert4rec.api.runs import load
from bert4rec.artefact import write_manifest
from bert4rec.cli.evaluate_command import compare_command, evaluate_command
from bert4rec.cli.prepare_command import stats_command
from bert4rec.data.dataset import Dataset
from bert4rec.errors import UsageError
from bert4rec.evaluation.judge import load_ranks, save_ranks
from bert4rec.export.exporter import export_run
from bert4rec.recommend.recommender import Recommendation, Recommender
from bert4rec.training.checkpoint import load_tensors
from bert4rec.training.loop import Interrupted
from bert4rec.training.run import MANIFEST, SCHEMA, Run
from tests.conftest import MakeDataset
from tests.recommend.tiny import untrained_run
from tests.training.tiny import after, random_histories, train_tiny

OLDER = Path(__file__).parent / "older"
"""Written by version 0.1.0 before it could be imported as a library; `recorded.json` has what it answered.

Its model has seen little, and recommends the same to everybody: now it is loaded and exported by force."""
RECORDED: dict[str, Any] = json.loads((OLDER / "recorded.json").read_text())


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A copy: evaluating may add to a run's folder."""
    return Path(shutil.copytree(OLDER, tmp_path / "older"))


def answers(found: Recommendation) -> list[tuple[str, float]]:
    return [(str(item.item_id), item.score) for item in found.items]


def expected(name: str, kind: str = "recommend") -> list[Any]:
    return [(item_id, pytest.approx(score, abs=1e-4)) for item_id, score in RECORDED[kind][name]]


def test_an_older_dataset_opens_unchanged(older: Path) -> None:
    dataset = Dataset.open(older / "dataset")
    dataset.verify()
    assert (dataset.num_users, dataset.num_items, dataset.num_actions) == (40, 25, 337)
    assert dataset.users()["id"].dtype.is_integer()


def test_an_older_run_is_evaluated_with_the_numbers_that_were_recorded(older: Path) -> None:
    run = Run.open(older / "bert4rec")
    found = run.evaluate(dataset=older / "dataset", device="cpu").as_dict()
    for name, value in RECORDED["evaluate"].items():
        assert found[name] == (value if isinstance(value, int) else _approx(value))
    assert run.metrics["test"] == _approx(RECORDED["evaluate"]["metrics"])
    assert run.history.to_polars()["step"].to_list() == [20, 40, 60, 20]


def _approx(metrics: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {protocol: pytest.approx(values) for protocol, values in metrics.items()}


def test_older_runs_and_models_recommend_what_they_did(older: Path) -> None:
    history = RECORDED["recommend"]["history"]
    for name in ("bert4rec", "model"):
        found = load(older / name, force=name == "model").recommend(history, k=5)
        assert answers(found) == expected(name)
    user = RECORDED["recommend_user"]["user"]
    found = load(older / "bpr-mf").recommend_user(user, k=5, dataset=older / "dataset")
    assert answers(found) == expected("bpr-mf", "recommend_user")
    assert all(isinstance(item.item_id, int) for item in found.items)


def test_an_older_model_answers_many_requests_at_once_as_each_alone(older: Path) -> None:
    model, history = load(older / "model", force=True), RECORDED["recommend"]["history"]
    histories = [history, *(history[:length] for length in range(1, len(history) + 1)), *[history] * 20]
    together = list(model.recommend_many(histories, k=5))
    assert answers(together[0]) == expected("model")
    for asked, found in zip(histories, together, strict=True):
        alone = model.recommend(asked, k=5)
        assert [item.item_id for item in found.items] == [item.item_id for item in alone.items]


def test_older_runs_are_compared_with_the_recorded_difference(
    older: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_command(older / "bert4rec", older / "bpr-mf", json=True)
    found = json.loads(capsys.readouterr().out)
    assert {each["name"]: each["metrics"] for each in found["systems"]} == _approx(RECORDED["means"])
    assert found["differences"][0]["users"]["difference"] == pytest.approx(RECORDED["difference"])


def test_an_older_run_is_exported_and_gives_the_same_answers(older: Path, tmp_path: Path) -> None:
    model = Run.open(older / "bert4rec").export(tmp_path / "model", force=True)
    assert answers(load(model, force=True).recommend(RECORDED["recommend"]["history"], k=5)) == expected(
        "model"
    )


def without(path: Path, *names: str) -> None:
    """Take what older versions did not write out of a JSON file."""
    content = json.loads(path.read_text())
    for name in names:
        content.pop(name)
    content.pop("sha256", None)
    content.get("counts", {}).pop("duplicates", None)
    path.write_text(json.dumps(content))


@pytest.fixture
def old_dataset(make_dataset: MakeDataset) -> Dataset:
    path = make_dataset(random_histories(), repeats="exclude").folder
    without(path / "dataset.json", "repeats")
    return Dataset.open(path)


@pytest.fixture
def old_run(old_dataset: Dataset, tmp_path: Path) -> Run:
    run = train_tiny(old_dataset, tmp_path / "old", "model.layers=1")
    without(run.path / "config.json", "repeats", "select_by")
    write_manifest(run.path, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})
    return Run.open(run.path)


def test_they_exclude_repeats(old_dataset: Dataset, old_run: Run, tmp_path: Path) -> None:
    export_run(old_run, tmp_path / "model", force=True)
    without(tmp_path / "model" / "model.json", "repeats")
    assert old_dataset.repeats == old_run.plan.repeats == "exclude"
    assert Recommender.load(old_run.path).exclude_seen
    assert Recommender.load(tmp_path / "model", force=True).exclude_seen
    stats_command(old_dataset.folder)


def test_a_run_that_was_begun_before_goes_on_as_if_nothing_had_happened(
    old_dataset: Dataset, tmp_path: Path
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train_tiny(old_dataset, whole)
    with pytest.raises(Interrupted):
        train_tiny(old_dataset, resumed, should_stop=after(7))
    without(resumed / "config.json", "repeats", "select_by")
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
        dataset = make_dataset(random_histories(), repeats=repeats)
        run = untrained_run(dataset, tmp_path / repeats, dim=8, layers=1, heads=2, max_length=4)
        export_run(run, tmp_path / f"model-{repeats}")
        versions.append(Recommender.load(tmp_path / f"model-{repeats}").version)
    assert versions[0] != versions[1]


def test_older_runs_and_models_do_not_say_what_they_were_trained_on_and_know_all_items(older: Path) -> None:
    run = Run.open(older / "bert4rec")
    assert (run.trained, run.untrained, run.final_stage) == (None, [], "refit")
    for name in ("bert4rec", "model"):
        recommender = load(older / name, force=name == "model")
        assert recommender.trained is None
        assert len(recommender.catalogue.known_numbers) == 25
        with pytest.raises(UsageError, match="does not tell when its data ended"):
            backtest(recommender, older / "dataset")


def test_an_older_run_is_trained_on_everything(older: Path, tmp_path: Path) -> None:
    run = Run.open(older / "bert4rec").refit(
        tmp_path / "run", all=True, dataset=older / "dataset", device="cpu"
    )
    assert run.metrics["test"] == _approx(RECORDED["evaluate"]["metrics"])
    assert run.trained
    assert (run.trained.stage, run.trained.actions, run.untrained) == ("production", 337, [])
