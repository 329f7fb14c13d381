"""Our own model beside its parts, and asked in other ways than its own."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import leave_one_out
from bert4rec.evaluation.judge import judge
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.models.bert4rec_plus import BERT4RecPlus
from bert4rec.models.history_batch import PaddedHistories
from bert4rec.models.model import make_scorer
from bert4rec.paper.experiments import beyond
from bert4rec.paper.experiments.beyond import JOINT, JOINT_SPEC, PAPERS_ENCODER, encoder_case, lay_out
from bert4rec.paper.experiments.cases import BERT4REC, PLUS, SOFTMAX
from bert4rec.paper.experiments.index import VARIANTS
from bert4rec.paper.reporting.evidence import gather
from bert4rec.paper.runs.ledger import Ledger
from bert4rec.settings.networks import Ask, PlusConfig
from bert4rec.training.checkpoint import load_tensors
from bert4rec.training.device import Placement
from bert4rec.training.loop import Interrupted
from bert4rec.training.run import Plan, Run
from bert4rec.training.train import RunContext, train
from tests.conftest import MakeDataset
from tests.paper.fake import add_result, facts_of, statistics_line
from tests.training.tiny import CPU, Witness, after, random_histories, tiny_config, train_tiny

HERE = Placement(CPU, None)


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


@pytest.mark.parametrize("own", get_args(Ask))
def test_the_final_weights_are_asked_in_every_way(dataset: Dataset, tmp_path: Path, own: Ask) -> None:
    run = train_tiny(dataset, tmp_path / "run", f"model.ask={own}", model="bert4rec+")
    found = beyond.measure(run, dataset, HERE)
    assert found.keys() == set(get_args(Ask))
    assert isinstance(run.plan.config.model, PlusConfig)
    for way, ranks in found.items():
        model = BERT4RecPlus(dataset.num_items, replace(run.plan.config.model, ask=way))
        model.load_state_dict(load_tensors(run.path / "model.safetensors")[0])
        wanted = judge(make_scorer(model.eval()), dataset, leave_one_out(dataset), "test")
        np.testing.assert_array_equal(ranks.full, wanted.full)
        np.testing.assert_array_equal(ranks.sampled, wanted.sampled)
    assert [way for way, ranks in found.items() if (ranks.full == run.ranks().full).all()] == [own]


@pytest.mark.parametrize("ask", get_args(Ask))
def test_joint_training_alone_has_the_papers_encoder_and_the_questions_of_bert4rec_plus(ask: Ask) -> None:
    config = tiny_config(f"model.ask={ask}", model="bert4rec+").model
    assert isinstance(config, PlusConfig)
    joint, plus = JOINT_SPEC.build(0, 20, config), BERT4RecPlus(20, config)
    paper = BERT4Rec(20, config)
    assert isinstance(joint, BERT4Rec)
    assert joint.questions == plus.questions
    assert joint.state_dict().keys() == paper.state_dict().keys()
    paper.load_state_dict(joint.state_dict())
    history = PaddedHistories(torch.tensor([[3, 1, 4, 1, 5]]))
    with torch.inference_mode():
        is_papers = torch.equal(joint.eval().queries(history), paper.eval().queries(history))
    assert is_papers == (ask == "mask")


def test_joint_training_alone_that_is_interrupted_ends_with_the_same_weights(
    dataset: Dataset, tmp_path: Path
) -> None:
    config = tiny_config(model="bert4rec+")
    plan = Plan.for_dataset(
        dataset, JOINT.model, config, preset=None, seed=1, split=None, variant=JOINT.variant
    )

    def run(folder: Path, calls: int) -> Run:
        around = RunContext(HERE, Witness(), should_stop=after(calls))
        return train(dataset, folder, plan, around, VARIANTS[PAPERS_ENCODER])

    whole = run(tmp_path / "whole", 10_000)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", 7)
    cut = run(tmp_path / "cut", 10_000)
    for name in ("selection.safetensors", "model.safetensors"):
        assert (whole.path / name).read_bytes() == (cut.path / name).read_bytes()


@pytest.mark.parametrize("family", ["ml-1m", "beauty", "steam", "ml-20m"])
def test_the_encoder_alone_is_trained_as_bert4rec_is(family: str) -> None:
    alone, paper = encoder_case(family).config(family), BERT4REC.config(family)
    assert alone.training
    assert paper.training
    assert (alone.training.steps, alone.training.learning_rate) == (
        paper.training.steps,
        paper.training.learning_rate,
    )
    quick = encoder_case(family).config(family, quick=True)
    assert quick.training
    assert quick.training.steps < 100


def statements(folder: Path, **qualities: float) -> dict[str, str]:
    """What is said of Beauty, and how sure it is."""
    ledger, facts = Ledger.open(folder, quick=False), facts_of("beauty")
    ledger.add([statistics_line(facts)])
    cases = {
        "bert4rec": BERT4REC,
        "sasrec": SOFTMAX[1],
        "encoder": encoder_case("beauty"),
        "joint": JOINT,
        "plus": replace(PLUS, measures=("asked",)),
    }
    for name, quality in qualities.items():
        add_result(ledger, facts, cases[name], 1, quality)
    (evidence,) = gather(folder, ledger.lines()).data
    return {each.text: each.verdict for each in lay_out(evidence).statements}


def test_each_part_is_compared_with_what_it_is_a_part_of(tmp_path: Path) -> None:
    found = statements(tmp_path, bert4rec=0.3, sasrec=0.45, encoder=0.3, joint=0.4, plus=0.5)
    assert found == {
        "The encoder alone is neither above nor below BERT4Rec.": "undecided",
        "Joint training alone is above BERT4Rec.": "finding",
        "BERT4Rec+ is above the encoder alone.": "finding",
        "BERT4Rec+ is above joint training alone.": "finding",
        "BERT4Rec+ is above SASRec (softmax).": "finding",
        "BERT4Rec+ is best asked by both.": "finding",
    }


def test_what_has_no_results_is_not_spoken_of(tmp_path: Path) -> None:
    assert statements(tmp_path, bert4rec=0.3, joint=0.2) == {
        "Joint training alone is below BERT4Rec.": "finding"
    }
