"""Training for production: a third stage on everything, and numbers that stay those of the stage before."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bert4rec
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.errors import UsageError
from bert4rec.models.pop import Pop
from bert4rec.training.checkpoint import load_tensors
from bert4rec.training.loop import Interrupted
from bert4rec.training.plan import Plan, Stage
from bert4rec.training.reporting.forecast import Costs, Forecast
from bert4rec.training.run import Run
from bert4rec.training.stages import growth, training_end
from tests.conftest import MakeDataset
from tests.training.tiny import CPU, Witness, after, random_histories, tiny_config, train_tiny


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


def same_weights(one: Path, other: Path) -> bool:
    (mine, _), (theirs, _) = load_tensors(one), load_tensors(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def interrupt(dataset: Dataset, folder: Path, stage: Stage) -> None:
    """Stop at the third step of a stage."""
    witness, is_third = Witness(), after(2)

    def should_stop() -> bool:
        return bool(witness.stages) and witness.stages[-1][0] == stage and is_third()

    with pytest.raises(Interrupted):
        train_tiny(dataset, folder, refit="all", witness=witness, should_stop=should_stop)


def metrics_of_lines(run: Run) -> list[object]:
    return [(line["stage"], line["split"], line["steps"], line["metrics"]) for line in run.result["lines"]]


def test_growth_is_what_the_selection_did_not_see(make_dataset: MakeDataset) -> None:
    """Users of 4 and 6 actions, of which it saw 2 and 4; one of 2 actions, who is never asked, it saw whole."""
    dataset = make_dataset([[0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1]])
    split = make_split(dataset)
    assert growth(dataset, split) == 12 / 8
    seen = training_end(dataset, split, "production") - dataset.offsets[:-1]
    assert seen.tolist() == dataset.lengths.tolist()


def test_a_third_stage_takes_as_many_steps_an_action_and_leaves_the_others_as_they_are(
    dataset: Dataset, tmp_path: Path
) -> None:
    usual, witness = train_tiny(dataset, tmp_path / "usual"), Witness()
    run = train_tiny(dataset, tmp_path / "run", refit="all", witness=witness)
    steps = run.result["lines"][0]["steps"]
    expected = round(steps * dataset.num_actions / (dataset.num_actions - 2 * dataset.num_users))
    assert witness.stages == [("selection", 12), ("refit", steps), ("production", expected)]
    assert expected > steps
    assert metrics_of_lines(run) == metrics_of_lines(usual)
    for name in ("selection.safetensors", "model.safetensors"):
        assert same_weights(run.path / name, usual.path / name)
    assert not same_weights(run.path / "production.safetensors", run.path / "model.safetensors")
    assert not list(run.path.glob("resume-*"))
    assert [*dict.fromkeys(each["stage"] for each in run.history.entries)] == [
        "selection",
        "refit",
        "production",
    ]


def test_pop_for_production_has_counted_everything(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run", model="pop", refit="all")
    counts = load_tensors(run.path / "production.safetensors")[0]["counts"]
    assert torch.equal(counts, Pop.fit(dataset, dataset.offsets[1:]).counts)


@pytest.mark.parametrize("stage", ["selection", "refit", "production"])
def test_a_run_interrupted_in_any_stage_ends_with_the_same_weights(
    dataset: Dataset, tmp_path: Path, stage: Stage
) -> None:
    undisturbed = train_tiny(dataset, tmp_path / "undisturbed", refit="all")
    interrupt(dataset, tmp_path / "run", stage)
    run = train_tiny(dataset, tmp_path / "run", refit="all")
    for name in ("selection", "model", "production"):
        assert same_weights(run.path / f"{name}.safetensors", undisturbed.path / f"{name}.safetensors")
    assert metrics_of_lines(run) == metrics_of_lines(undisturbed)
    assert run.notes == undisturbed.notes


def test_the_test_items_are_not_looked_at_again_when_production_is_resumed(
    dataset: Dataset, tmp_path: Path
) -> None:
    interrupt(dataset, tmp_path / "run", "production")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("ranks-*")}
    again = Witness()
    run = train_tiny(dataset, tmp_path / "run", refit="all", witness=again)
    assert [stage for stage, _ in again.stages] == ["production"]
    assert {path.name: path.stat().st_mtime_ns for path in run.path.glob("ranks-*")} == before


def test_a_finished_run_is_trained_on_everything_without_a_second_look(
    dataset: Dataset, tmp_path: Path
) -> None:
    usual, whole = (
        train_tiny(dataset, tmp_path / "usual"),
        train_tiny(dataset, tmp_path / "whole", refit="all"),
    )
    witness = Witness()
    run = usual.refit(tmp_path / "run", all=True, listener=witness, device="cpu")
    assert [stage for stage, _ in witness.stages] == ["production"]
    assert same_weights(run.path / "production.safetensors", whole.path / "production.safetensors")
    assert run.result["lines"] == usual.result["lines"]
    assert run.result["seen"] == whole.result["seen"]
    with pytest.raises(UsageError, match="trained on everything already"):
        run.refit(tmp_path / "again", all=True)
    with pytest.raises(UsageError, match=r"To train on everything, use `run.refit\(all=True\)`"):
        usual.refit(tmp_path / "again")


def test_a_run_that_was_not_tested_is_refitted_tested_and_trained_on_everything(
    dataset: Dataset, tmp_path: Path
) -> None:
    chosen, whole = (
        train_tiny(dataset, tmp_path / "chosen", test=False),
        train_tiny(dataset, tmp_path / "whole", refit="all"),
    )
    run = chosen.refit(tmp_path / "run", all=True, listener=Witness(), device="cpu")
    assert metrics_of_lines(run) == metrics_of_lines(whole)
    assert same_weights(run.path / "production.safetensors", whole.path / "production.safetensors")


def test_test_items_are_evaluated_by_the_weights_that_never_saw_them(
    dataset: Dataset, tmp_path: Path
) -> None:
    run = train_tiny(dataset, tmp_path / "run", refit="all")
    found = run.evaluate(dataset=dataset, device="cpu")
    assert found.stage == "refit"
    assert found.metrics == run.metrics["test"]
    assert run.final_stage == "production"


def test_the_production_weights_recommend(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run", refit="all")
    recommender = bert4rec.load(run, device="cpu")
    biases = [run.load_model(each, CPU).item_vectors()[1] for each in ("final", "tested")]
    found = [torch.equal(torch.from_numpy(recommender.ranker.engine.bias), bias) for bias in biases]
    assert found == [True, False]
    usual = train_tiny(dataset, tmp_path / "usual")
    assert recommender.version != bert4rec.load(usual, device="cpu").version


def test_what_cannot_be_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="requires the test"):
        bert4rec.train(dataset, tmp_path / "run", refit="all", test=False)
    with pytest.raises(UsageError, match="`refit` must be True, False or \"all\"; found 'everything'"):
        bert4rec.train(dataset, tmp_path / "run", refit="everything")  # type: ignore[arg-type]
    train_tiny(dataset, tmp_path / "run", refit="all")
    with pytest.raises(UsageError, match="which has `refit='all'`; found `refit=True`"):
        bert4rec.train(dataset, tmp_path / "run", refit=True, resume=True)


def test_a_run_of_before_is_known_by_the_same_tag(dataset: Dataset) -> None:
    """It was taken before there was a third stage: whoever changes it leaves begun runs behind."""
    plan = Plan.for_dataset(dataset, "bert4rec", tiny_config(), preset=None, seed=1, split=None)
    fixed = replace(plan, data_checksum="data", candidates_checksum="candidates")
    assert [fixed.tag(stage)[:16] for stage in ("selection", "refit")] == TAGS


TAGS = ["07e20d089ad9d1d2", "d8271eda9d42eb5a"]


def test_the_forecast_knows_what_comes_after_the_test(dataset: Dataset) -> None:
    config = tiny_config("training.steps=800", "training.validate_every=40")
    plan = Plan.for_dataset(dataset, "bert4rec", config, preset=None, seed=1, split=None, refit="all")
    forecast = Forecast(plan, growth=1.5)
    forecast.begin(Costs(step=0.5, validation=10.0, judging=20.0))
    assert forecast.seconds_left("selection", 0, 800) == (800 + 800 + 1200) * 0.5 + 20 * 10 + 2 * 20
    assert forecast.seconds_from_judging("valid", 400) == 2 * 20 + (400 + 600) * 0.5
    assert forecast.seconds_left("refit", 100, 400) == (300 + 600) * 0.5 + 20
    assert forecast.seconds_from_judging("test", 400) == 20 + 600 * 0.5
    assert forecast.seconds_left("production", 100, 600) == 500 * 0.5
    assert forecast.told("selection", 0, 800).endswith("then a refit and a training on everything.")
