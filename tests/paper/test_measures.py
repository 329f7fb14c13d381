"""What is measured on trained runs beside their metrics."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.evaluation.judge import metrics_of
from bert4rec.paper.experiments import compare_protocols as protocols
from bert4rec.paper.experiments import figure2
from bert4rec.training.device import Placement
from tests.conftest import MakeDataset
from tests.training.tiny import CPU, random_histories, train_tiny

HERE = Placement(CPU, None)


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


@pytest.mark.parametrize("model", ["pop", "fpmc", "sasrec", "bert4rec"])
def test_the_selection_model_is_judged_as_if_there_had_been_no_refit(
    dataset: Dataset, tmp_path: Path, model: str
) -> None:
    whole = train_tiny(dataset, tmp_path / "whole", model=model)
    without = train_tiny(dataset, tmp_path / "without", model=model, refit=False)
    found = protocols.measure(whole, dataset, HERE)
    line = without.result["lines"][1]
    assert metrics_of(found["ranks"]) == line["metrics"]
    assert (found["stage"], found["steps"]) == ("selection", line["steps"])
    assert metrics_of(found["ranks"]) != whole.result["lines"][1]["metrics"] or model == "pop"


def test_attention_is_averaged_over_users_who_have_so_many_items(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run", "model.max_length=20")
    found = figure2.measure(run, dataset, HERE)
    targets = make_split(dataset).test
    lengths = targets.positions - dataset.offsets[targets.users]
    assert 0 < found["users"] == (lengths >= 9).sum() < len(lengths)
    model = run.load_model("final", CPU)
    maps = []
    for user, position in zip(targets.users, targets.positions, strict=True):
        history = dataset.sequences[dataset.offsets[user] : position].tolist()
        if len(history) >= 9:
            with torch.inference_mode():
                own = model.attention_maps(torch.tensor([[*history, dataset.mask_number]]))  # type: ignore[operator]
            maps.append(own[0, :, :, -10:, -10:].numpy())
    np.testing.assert_allclose(found["maps"], np.mean(maps, axis=0), atol=1e-4)
    assert np.sum(found["maps"], axis=-1).max() <= 1.001


def test_examples_are_users_with_popular_items_and_their_own_maps(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run", "model.max_length=20")
    examples = figure2.measure(run, dataset, HERE)["examples"]
    assert len(examples) == 3
    means = [np.mean(example["items"]) for example in examples]
    assert means == sorted(means)
    assert figure2.wanted_titles([{"examples": examples}]) == {i for e in examples for i in e["items"]}
    with torch.inference_mode():
        tokens = torch.tensor([[*examples[0]["items"], dataset.mask_number]])
        # Only where the history is no longer than what is shown do the two agree to the last digit.
        own = run.load_model("final", CPU).attention_maps(tokens)  # type: ignore[operator]
    assert np.shape(examples[0]["maps"]) == tuple(own[0].shape)


def test_where_nobody_has_so_many_items_there_is_nothing_to_average(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    short = make_dataset([[1, 2, 3, 4, 5]] * 6 + [[2, 3, 4, 5, 6]] * 6)
    found = figure2.measure(train_tiny(short, tmp_path / "run"), short, HERE)
    assert (found["users"], found["examples"]) == (0, [])
