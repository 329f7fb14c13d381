"""The table of models."""

import pytest
import torch

from bert4rec.models.model import SequenceEncoder, SequentialModel
from bert4rec.training.specs import MODELS
from tests.evaluation.tiny import dataset_of
from tests.training.tiny import make_task, random_histories, tiny_config


def test_the_models_are_those_of_the_papers_table_in_its_order_and_our_own() -> None:
    assert {name: kind.title for name, kind in MODELS.items()} == {
        "pop": "POP",
        "bpr-mf": "BPR-MF",
        "ncf": "NCF",
        "fpmc": "FPMC",
        "gru4rec": "GRU4Rec",
        "gru4rec+": "GRU4Rec+",
        "caser": "Caser",
        "sasrec": "SASRec",
        "bert4rec": "BERT4Rec",
        "bert4rec+": "BERT4Rec+",
    }


@pytest.mark.parametrize("name", MODELS)
def test_no_model_inherits_from_another_over_more_than_one_step(name: str) -> None:
    contract = {SequentialModel, SequenceEncoder}
    ours = [each for each in MODELS[name].network.__mro__ if each.__module__.startswith("bert4rec.")]
    assert len(set(ours) - contract) <= 2


@pytest.mark.parametrize("name", [name for name in MODELS if name != "pop"])
def test_the_seed_decides_the_first_weights_and_the_batches(name: str) -> None:
    dataset = dataset_of([[1 + item for item in history] for history in random_histories()], num_items=20)
    tasks = [make_task(dataset, tiny_config(model=name), name, seed=seed) for seed in (1, 1, 2)]
    weights = [torch.cat([weight.flatten() for weight in task.model.parameters()]) for task in tasks]
    blocks = [task.block(100)[1] for task in tasks]
    for first, same, other in (weights, blocks):
        assert torch.equal(first, same)
        assert not torch.equal(first, other)
