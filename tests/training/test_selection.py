"""By which metric the best weights are chosen is the user's choice: it decides, is recorded, and stays."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bert4rec.api.comparison import group_runs
from bert4rec.api.runs import train
from bert4rec.data.dataset import Dataset
from bert4rec.errors import UsageError
from bert4rec.settings.sections import SECTIONS
from bert4rec.training.loop import Interrupted
from bert4rec.training.plan import Plan
from bert4rec.training.reporting.forecast import Costs, Forecast
from bert4rec.training.reporting.results import key_of
from bert4rec.training.reporting.watch import TrainingStatus
from bert4rec.training.run import Run
from tests.conftest import MakeDataset
from tests.training.tiny import SETTINGS, random_histories, tiny_config

FLAT_SETTINGS = {
    f"{section}.{key}": value for section, keys in SETTINGS["bert4rec"].items() for key, value in keys.items()
}


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


def train_by(dataset: Dataset, folder: Path, select_by: str | None, **options: object) -> Run:
    return train(
        dataset,
        folder,
        model="bert4rec",
        settings=FLAT_SETTINGS,
        select_by=select_by,
        device="cpu",
        test=False,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("select_by", ["HR@3", "mrr:full", "ndcg@10:both"])
def test_the_best_weights_are_those_with_the_best_value_of_the_metric(
    dataset: Dataset, tmp_path: Path, select_by: str
) -> None:
    seen: list[TrainingStatus] = []
    run = train_by(dataset, tmp_path / "run", select_by, callback=seen.append)
    (line,) = run.result["lines"]
    best = max(line["validations"], key=lambda each: each["value"])
    metric, _, protocol = run.plan.select_by.partition(":")
    ranks = run.evaluate("valid", k=[3, 10], device="cpu")
    sampled, full = (ranks.metrics[each][metric] for each in ("sampled", "full"))
    expected = {"": sampled, "full": full, "both": (sampled * full) ** 0.5}[protocol]
    assert best["value"] == pytest.approx(expected, abs=1e-12)
    assert line["steps"] == best["step"]
    assert run.notes[-1].startswith(f"{run.plan.select_by} on the validation items: {expected:.4f}. ")
    assert any(f"{run.plan.select_by} {best['value']:.4f}" in str(status) for status in seen)


def test_it_is_in_the_plan_and_in_the_result_in_its_usual_spelling(dataset: Dataset, tmp_path: Path) -> None:
    run = train_by(dataset, tmp_path / "run", "Mrr:Full")
    assert json.loads((run.path / "config.json").read_text())["select_by"] == "MRR:full"
    assert Plan.load(run.path) == run.plan
    assert [line["select_by"] for line in run.result["lines"]] == ["MRR:full"]


def test_without_one_it_is_that_of_the_model(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train_by(dataset, tmp_path / "usual", None).plan.select_by == "NDCG@10"
    own = replace(SECTIONS["bert4rec"], select_by="ndcg@10:both")
    monkeypatch.setitem(SECTIONS, "bert4rec", own)
    assert train_by(dataset, tmp_path / "own", None).plan.select_by == "NDCG@10:both"


def test_a_mistake_in_it_is_refused_before_anything_is_written(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`select_by` must be"):
        train_by(dataset, tmp_path / "run", "accuracy")
    assert not (tmp_path / "run").exists()


def test_resuming_takes_the_same_metric_however_it_is_spelled_and_refuses_others(
    dataset: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train_by(dataset, tmp_path / "run", "mrr:full", should_stop=lambda: True)
    with pytest.raises(UsageError, match=r"has `select_by='MRR:full'`; found `select_by='MRR'`"):
        train_by(dataset, tmp_path / "run", "mrr", resume=True)
    assert train_by(dataset, tmp_path / "run", "MRR:full", resume=True).plan.select_by == "MRR:full"


def plan_of(dataset: Dataset, select_by: str | None = None) -> Plan:
    return Plan.for_dataset(
        dataset, "bert4rec", tiny_config(), preset=None, seed=1, split=None, select_by=select_by
    )


def test_the_usual_metric_changes_nothing_in_what_identifies_weights(dataset: Dataset) -> None:
    """Checkpoints and selections from before there was a choice are still those of the same run."""
    usual = plan_of(dataset)
    decisive = replace(usual, dataset="", preset=None).as_dict()
    del decisive["repeats"], decisive["select_by"]
    assert decisive["config"]["objective"].pop("negatives") == 0, (
        "the exact softmax, as before there was another"
    )
    before = hashlib.sha256(json.dumps(["selection", decisive], sort_keys=True).encode()).hexdigest()
    assert usual.tag("selection") == before
    assert plan_of(dataset, "ndcg@10:full").tag("selection") != before


def test_a_run_chosen_by_another_metric_is_another_result_and_another_system(
    dataset: Dataset, tmp_path: Path
) -> None:
    runs = [train_by(dataset, tmp_path / str(number), each) for number, each in enumerate(["mrr", None])]
    other, usual = (run.result["lines"][0] for run in runs)
    older = {name: value for name, value in usual.items() if name != "select_by"}
    assert key_of(usual) == key_of(older) != key_of(other)
    assert len(group_runs(runs, "valid")) == 2


def test_the_forecast_knows_what_full_ranking_costs(dataset: Dataset) -> None:
    costs = Costs(step=0.5, validation=10.0, judging=30.0)
    seconds = {}
    for select_by in ("ndcg@10", "ndcg@10:full"):
        forecast = Forecast(plan_of(dataset, select_by))
        forecast.begin(costs)
        seconds[select_by] = forecast.seconds_left("selection", 0, 12)
    assert seconds["ndcg@10:full"] - seconds["ndcg@10"] == 4 * (30.0 - 10.0)
