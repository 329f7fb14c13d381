"""How BERT4Rec+ is asked is chosen on the validation items, kept with the weights, and the same ever after."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from bert4rec.artefact import write_manifest
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Part, leave_one_out
from bert4rec.evaluation.judge import judge
from bert4rec.models.bert4rec_plus import BERT4RecPlus
from bert4rec.models.history_batch import PaddedHistories
from bert4rec.models.model import make_scorer
from bert4rec.recommend.recommender import Recommender
from bert4rec.settings.networks import Ask
from bert4rec.training.checkpoint import load_tensors, save_tensors
from bert4rec.training.device import Placement
from bert4rec.training.loop import Interrupted
from bert4rec.training.run import MANIFEST, SCHEMA, Run, Weights
from tests.conftest import MakeDataset
from tests.training.tiny import CPU, Witness, random_histories, train_tiny

HERE = Placement(CPU, None)


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories(users=60))


@pytest.fixture
def run(dataset: Dataset, tmp_path: Path) -> Run:
    return train_tiny(dataset, tmp_path / "run", model="bert4rec+")


def test_the_way_that_is_best_on_the_validation_items_is_taken(run: Run, dataset: Dataset) -> None:
    model, criterion, found = run.load_model("selection", CPU), run.plan.criterion, {}
    chosen = model.way_to_ask
    for way in get_args(Ask):
        model.way_to_ask = way
        found[way] = criterion.judge(make_scorer(model), dataset, leave_one_out(dataset), "cpu")
    asked = run.result["lines"][0]["asked"]
    assert asked == found
    assert len(set(found.values())) == 3
    assert list(asked.values()) == sorted(found.values(), reverse=True)
    assert chosen == next(iter(asked))
    assert run.result["standing"]["value"] == asked[chosen]


@pytest.mark.parametrize("refit", [True, False])
def test_the_run_is_asked_as_it_was_evaluated(dataset: Dataset, tmp_path: Path, refit: bool) -> None:
    run = train_tiny(dataset, tmp_path / "run", model="bert4rec+", refit=refit)
    asked: list[tuple[Weights, Part]] = [("selection", "valid"), ("final", "test")]
    for weights, part in asked:
        again = judge(Run.open(run.path).scorer(weights, HERE), dataset, leave_one_out(dataset), part)
        np.testing.assert_array_equal(again.full, run.ranks(part).full)
        np.testing.assert_array_equal(again.sampled, run.ranks(part).sampled)


@pytest.mark.parametrize("way", get_args(Ask))
def test_recommendations_and_exports_ask_in_the_chosen_way(run: Run, tmp_path: Path, way: Ask) -> None:
    tensors, state = load_tensors(run.path / "model.safetensors")
    save_tensors(run.path / "model.safetensors", tensors, {**state, "asked": {way: 1.0}})
    write_manifest(run.path, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})
    run = Run.open(run.path)
    history = run.dataset.items()["id"][:3].to_list()
    model = run.load_model("final", CPU)
    assert model.way_to_ask == way
    run.export(tmp_path / "exported")
    by_run, by_export = (
        {each.item_id: each.score for each in Recommender.load(folder).recommend(history, k=5).items}
        for folder in (run.path, tmp_path / "exported")
    )
    numbers = dict(zip(*run.dataset.items().select("id", "number"), strict=True))
    with torch.inference_mode():
        query = model.queries(PaddedHistories(torch.tensor([[numbers[each] for each in history]])))
        scores = model.scores(query)[0]
    assert by_run == pytest.approx({id_: float(scores[numbers[id_]]) for id_ in by_run}, abs=1e-4)
    assert by_export == pytest.approx(by_run, abs=1e-4)


def test_a_way_that_is_set_is_not_chosen(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run", "model.ask=last", model="bert4rec+")
    assert run.result["lines"][0]["asked"] == {}
    model = run.load_model("final", CPU)
    assert model.way_to_ask is None
    assert isinstance(model, BERT4RecPlus)
    assert [question.causal for question in model.questions] == [True]


def test_what_was_found_is_said(dataset: Dataset, tmp_path: Path) -> None:
    witness = Witness()
    run = train_tiny(dataset, tmp_path / "run", model="bert4rec+", witness=witness)
    asked = run.result["lines"][0]["asked"]
    (said,) = [each for each in witness.said if "asked by" in each]
    assert said in run.notes
    assert said.startswith(
        f"The model is asked by {next(iter(asked))}, the best way on the validation items: "
    )
    assert all(f"{way} {value:.4f}" in said for way, value in list(asked.items())[1:])


def test_a_run_that_is_stopped_while_it_is_asked_chooses_the_same(
    dataset: Dataset, tmp_path: Path, run: Run
) -> None:
    steps = {"done": 0}

    class AsksTwice(Witness):
        def busy(self, what: str, seconds_left: float) -> None:
            steps["done"] += what == "asking by last"

    with pytest.raises(Interrupted):
        train_tiny(
            dataset,
            tmp_path / "other",
            model="bert4rec+",
            witness=AsksTwice(),
            should_stop=lambda: steps["done"] > 0,
        )
    assert not (tmp_path / "other" / "selection.safetensors").exists()
    again = train_tiny(dataset, tmp_path / "other", model="bert4rec+")
    assert again.result["lines"][1]["asked"] == run.result["lines"][1]["asked"]
    np.testing.assert_array_equal(again.ranks().full, run.ranks().full)
