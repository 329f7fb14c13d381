"""Ablations take out what they say, and train and resume like any other model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bert4rec.data.dataset import Dataset
from bert4rec.evaluation.significance import Difference
from bert4rec.models.bert4rec import Norm
from bert4rec.models.history_batch import PaddedHistories
from bert4rec.paper.experiments.table5 import CASES, VARIANTS, lay_out, same_direction, variant_spec
from bert4rec.paper.reporting.evidence import gather
from bert4rec.paper.runs.ledger import Ledger
from bert4rec.training.device import Placement
from bert4rec.training.loop import Interrupted
from bert4rec.training.run import Plan, Run
from bert4rec.training.train import RunContext, train
from tests.conftest import MakeDataset
from tests.paper.fake import add_result, facts_of, statistics_line, wanted
from tests.training.tiny import CPU, Witness, after, random_histories, tiny_config

ITEMS = 20


def build(variant: str = "") -> Any:
    """A model whose weights are large enough for everything to matter."""
    config = tiny_config().model
    model = variant_spec(variant).build(0, ITEMS, config) if variant else _plain(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _plain(config: Any) -> nn.Module:
    from bert4rec.training.specs import MODELS

    return MODELS["bert4rec"].build(0, ITEMS, config)


def scores(model: Any, *history: int) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.scores(model.queries(PaddedHistories(torch.tensor([history]))))[:, 1:]
    return found


def test_without_positions_order_is_lost() -> None:
    model = build("without positions")
    torch.testing.assert_close(scores(model, 1, 2, 3), scores(model, 3, 1, 2))
    assert not torch.allclose(scores(build(), 1, 2, 3), scores(build(), 3, 1, 2))


def test_without_feed_forward_a_layer_ends_after_attention() -> None:
    model = build("without feed-forward")
    assert not [name for name, _ in model.named_parameters() if "widen" in name or "narrow" in name]
    ended: list[torch.Tensor] = []
    for layer in model.layers:
        layer.attention_norm.register_forward_hook(lambda _module, _x, found: ended.append(found))
        layer.register_forward_hook(lambda _module, _x, found: ended.append(found))
    scores(model, 1, 2, 3)
    torch.testing.assert_close(ended[0], ended[1])
    torch.testing.assert_close(ended[2], ended[3])


def test_without_norm_only_that_of_the_output_head_is_left() -> None:
    model = build("without norm")
    assert [name for name, module in model.named_modules() if isinstance(module, Norm)] == ["projection_norm"]
    assert sum(isinstance(module, Norm) for module in build().modules()) == 6


def test_without_residuals_what_a_sub_layer_forgets_is_gone() -> None:
    """Attention that answers nothing leaves nothing of the history; with residuals the items are still there."""
    for variant, remembers in (("without residual", False), ("", True)):
        model = build(variant)
        with torch.no_grad():
            for layer in model.layers:
                layer.attention_output.weight.zero_()
        tokens = torch.tensor([[1, 2, 3]])
        hidden: list[torch.Tensor] = []
        model.layers[0].register_forward_hook(lambda _module, _x, found, kept=hidden: kept.append(found))
        with torch.inference_mode():
            model.queries(PaddedHistories(tokens))
        first, *others = hidden[0][0]
        assert all(torch.allclose(first, other) for other in others) != remembers


def test_the_layer_without_residual_is_the_layer_less_its_residuals() -> None:
    """Where the input is zero, adding it changes nothing."""
    usual, changed = build().layers[0], build("without residual").layers[0]
    changed.load_state_dict(usual.state_dict())
    with torch.no_grad():
        usual.attention_norm.weight.zero_()
        usual.attention_norm.bias.zero_()
        changed.load_state_dict(usual.state_dict())
    from bert4rec.models.attention import PaddedLayout

    layout = PaddedLayout(torch.ones(2, 5, dtype=torch.bool))
    x = torch.zeros(2, 5, usual.config.dim)
    for wanted_only in (False, True):
        torch.testing.assert_close(
            usual(x, layout, wanted_only=wanted_only), changed(x, layout, wanted_only=wanted_only)
        )


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories(items=ITEMS))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_that_is_interrupted_ends_with_the_same_weights(
    dataset: Dataset, tmp_path: Path, variant: str
) -> None:
    plan = Plan.for_dataset(
        dataset, "bert4rec", tiny_config(), preset=None, seed=1, split=None, variant=variant
    )

    def run(folder: Path, calls: int) -> Run:
        around = RunContext(Placement(CPU, None), Witness(), should_stop=after(calls))
        return train(dataset, folder, plan, around, variant_spec(variant))

    whole = run(tmp_path / "whole", 10_000)
    for _ in range(2):
        with pytest.raises(Interrupted):
            run(tmp_path / "cut", 7)
    cut = run(tmp_path / "cut", 10_000)
    for name in ("selection.safetensors", "model.safetensors"):
        assert (whole.path / name).read_bytes() == (cut.path / name).read_bytes()
    assert whole.result["lines"][1]["variant"] == variant


@pytest.mark.parametrize(
    ("share", "low", "high", "paper", "verdict"),
    [
        (-0.10, -0.12, -0.08, -0.30, "reproduced"),
        (0.10, 0.08, 0.12, -0.30, "not reproduced"),
        (-0.10, -0.30, 0.10, -0.30, "undecided"),
        (0.01, 0.005, 0.015, -0.01, "reproduced"),  # both as good as nothing
        (0.05, 0.03, 0.07, 0.01, "reproduced"),
    ],
)
def test_the_direction_of_a_change_is_compared(
    share: float, low: float, high: float, paper: float, verdict: str
) -> None:
    assert same_direction(Difference(share, low, high, 0.0, 1.0), paper) == verdict


@pytest.mark.parametrize(
    ("label", "factor", "verdict", "told"),
    [
        ("", 1.0, "reproduced", "11 of 11 do."),
        ("w/o Dropout", 1.5, "not reproduced", "10 of 11 do; clearly not w/o Dropout."),
        ("w/o Dropout", 1.105, "undecided", "10 of 11 do; unclear: w/o Dropout."),
    ],
    ids=["as in the paper", "the opposite", "no sure change"],
)
def test_the_directions_of_all_changes_are_one_statement(
    tmp_path: Path, label: str, factor: float, verdict: str, told: str
) -> None:
    ledger, facts = Ledger.open(tmp_path, quick=False), facts_of("beauty")
    ledger.add([statistics_line(facts)])
    for case in CASES:
        quality = wanted(facts, case) * (factor if case.label == label else 1)
        add_result(ledger, facts, case, 1, quality)
    (evidence,) = gather(tmp_path, ledger.lines()).data
    statement, positions = lay_out(evidence).statements
    assert (statement.verdict, statement.evidence) == (verdict, told)
    assert positions.verdict == "reproduced"
