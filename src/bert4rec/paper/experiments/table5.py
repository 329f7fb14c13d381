"""Table 5: what happens to BERT4Rec when a part is taken out, or when it is deeper or has more heads.

Parts of a model that was built as usual are replaced here. The model's own code has no option for it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert4rec.evaluation.significance import Difference
from bert4rec.kernels.activate import activated
from bert4rec.models.attention import Layout
from bert4rec.models.bert4rec import BERT4Rec, Layer
from bert4rec.paper.experiments.cases import SMALL_DEFAULT, Case, DatasetFacts, Experiment, small_case
from bert4rec.paper.reporting.evidence import Evidence, SeedResults, compare
from bert4rec.paper.reporting.layout import TOLERANCE, Findings, Row, Statement, Table, Verdict, percent
from bert4rec.paper.reporting.printed import printed
from bert4rec.settings.networks import ModelConfig
from bert4rec.training.specs import MODELS, ModelSpec

METRIC = "NDCG@10"
CASES = (
    SMALL_DEFAULT,
    small_case("w/o PE", variant="without positions"),
    small_case("w/o PFFN", variant="without feed-forward"),
    small_case("w/o LN", variant="without norm"),
    small_case("w/o RC", variant="without residual"),
    small_case("w/o Dropout", *(f"model.{part}_dropout=0" for part in ("embedding", "hidden", "attention"))),
    *(small_case(f"L={layers}", f"model.layers={layers}") for layers in (1, 3, 4)),
    *(small_case(f"h={heads}", f"model.heads={heads}") for heads in (1, 4, 8)),
)
LARGE_DROP = -0.1
"""What the paper marks with an arrow."""
ANSWERS: dict[Verdict, str] = {"not reproduced": "no", "undecided": "unclear", "reproduced": "yes"}
"""Whether a change has the same direction as in the paper. The worst comes first."""


def cases(_facts: DatasetFacts) -> list[Case]:
    return list(CASES)


class NoPositions(nn.Module):
    """Stands in for the table of positions: all of them are zero, and nothing is learned about them."""

    weight: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(shape), persistent=False)


class NoChange(nn.Module):
    """Stands in for a removed sub-layer: its output is zero, so adding it to the input changes nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class LayerWithoutResidual(Layer):
    """A sub-layer's output replaces its input instead of being added to it."""

    def forward(self, x: Tensor, layout: Layout, *, wanted_only: bool = False) -> Tensor:
        to_query, to_key_value = self.query_key_value.split(self.config.dim, 2 * self.config.dim)
        query, _ = to_query(layout.wanted(x) if wanted_only else x)
        projected = (query, *to_key_value(x)[0].chunk(2, dim=-1))
        by_head = [tensor.unflatten(-1, (self.config.heads, -1)) for tensor in projected]
        dropout = self.config.attention_dropout if self.training else 0.0
        attended = layout.attend(*by_head, dropout=dropout, wanted_only=wanted_only).flatten(-2)
        x = self.attention_norm(self._dropped(self.attention_output(attended)))
        wide, _ = activated(x, self.widen, has_gate=False)
        output: Tensor = self.output_norm(self._dropped(self.narrow(wide)))
        return output

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.hidden_dropout, self.training)


def without_positions(model: Any) -> None:
    """Nothing is added to the item vectors, so their order is lost."""
    model.position_table = NoPositions(*model.position_table.weight.shape)


def without_feed_forward(model: Any) -> None:
    """A layer ends after attention and its norm."""
    for layer in model.layers:
        layer.widen, layer.narrow, layer.output_norm = nn.Identity(), NoChange(), nn.Identity()


def without_norm(model: Any) -> None:
    """No LayerNorm on the input or in the layers. The one of the output head, which is not in the paper, stays."""
    model.input_norm = nn.Identity()
    for layer in model.layers:
        layer.attention_norm, layer.output_norm = nn.Identity(), nn.Identity()


def without_residual(model: Any) -> None:
    for number, layer in enumerate(model.layers):
        swapped = LayerWithoutResidual(layer.config)
        swapped.load_state_dict(layer.state_dict())
        model.layers[number] = swapped


VARIANTS: dict[str, Callable[[Any], None]] = {
    "without positions": without_positions,
    "without feed-forward": without_feed_forward,
    "without norm": without_norm,
    "without residual": without_residual,
}


def variant_spec(variant: str) -> ModelSpec:
    """BERT4Rec with parts replaced, as `train` takes it."""

    class Variant(BERT4Rec):
        def __init__(
            self, num_items: int, config: ModelConfig, generator: torch.Generator | None = None
        ) -> None:
            super().__init__(num_items, config, generator)
            VARIANTS[variant](self)

    return replace(MODELS["bert4rec"], network=Variant)


def lay_out(evidence: Evidence) -> Findings:
    default = evidence.find(SMALL_DEFAULT)
    base = printed("table5_ablation_ndcg10_d64", SMALL_DEFAULT.label, evidence.facts.title)
    rows: list[Row] = []
    changes: dict[str, tuple[SeedResults, Difference, float]] = {}
    for case in CASES:
        run = evidence.find(case)
        theirs = printed("table5_ablation_ndcg10_d64", case.label, evidence.facts.title)
        paper_share = theirs / base - 1 if theirs and case is not SMALL_DEFAULT else None
        change = compare(run, default, METRIC) if run and default and case is not SMALL_DEFAULT else None
        number = evidence.measured(case, METRIC, paper=theirs)
        rows.append(Row(case.label, [number, *_change(change, paper_share)]))
        if run and change and paper_share is not None:
            changes[case.label] = run, change, paper_share
    columns = [METRIC, "against the default", "interval", "paper: against the default", "same direction"]
    statements = [_directions(changes)] if changes else []
    statements += [_positions(*changes["w/o PE"])] if "w/o PE" in changes else []
    return Findings([Table("d = 64, the paper's protocol", columns, rows)], statements)


def _change(change: Difference | None, paper_share: float | None) -> list[str]:
    theirs = "" if paper_share is None else percent(paper_share)
    if change is None:
        return ["", "", theirs, ""]
    answer = "" if paper_share is None else ANSWERS[same_direction(change, paper_share)]
    return [percent(change.share), " to ".join(map(percent, change.shares)), theirs, answer]


def same_direction(change: Difference, paper_share: float) -> Verdict:
    """Whether a change has the same effect: up, down, or within the tolerance in both."""
    if abs(paper_share) <= TOLERANCE and abs(change.share) <= TOLERANCE:
        return "reproduced"
    if change.direction == 0:
        return "undecided"
    return "reproduced" if change.direction == (1 if paper_share > 0 else -1) else "not reproduced"


def _directions(changes: dict[str, tuple[SeedResults, Difference, float]]) -> Statement:
    """The last column of the table as one statement."""
    labels: dict[Verdict, list[str]] = {verdict: [] for verdict in ANSWERS}
    for label, (_, change, paper_share) in changes.items():
        labels[same_direction(change, paper_share)].append(label)
    verdict = next(each for each, found in labels.items() if found)
    if verdict == "reproduced" and len(changes) < len(CASES) - 1:
        verdict = "undecided"
    evidence = f"{len(labels['reproduced'])} of {len(changes)} do"
    evidence += f"; clearly not {', '.join(labels['not reproduced'])}" if labels["not reproduced"] else ""
    evidence += f"; unclear: {', '.join(labels['undecided'])}" if labels["undecided"] else ""
    return Statement(
        f"Every change moves {METRIC} in the direction that it has in the paper.", verdict, f"{evidence}."
    )


def _positions(run: SeedResults, change: Difference, paper_share: float) -> Statement:
    """The paper's strongest statement: without positions, the order of long histories is lost."""
    low, high = change.shares
    is_large, is_small = high < LARGE_DROP, low > LARGE_DROP and high < 0
    expected = paper_share < LARGE_DROP
    verdict: Verdict = "undecided"
    if is_large or is_small:
        verdict = "reproduced" if is_large == expected else "not reproduced"
    return Statement(
        f"Without positions {METRIC} falls by {'more' if expected else 'less'} than 10%.",
        verdict,
        f"It changes by {percent(change.share)} ({percent(low)} to {percent(high)}) to {run.mean(METRIC):.4f}; in the "
        f"paper by {percent(paper_share)}.",
        run.at_last_step and is_large,  # More steps only make the fall smaller.
    )


TABLE5 = Experiment(
    "table5",
    "Table 5: ablation",
    "One thing at a time is changed from the default (the preset with d = 64, two layers and two heads). "
    "Two changes of less than 2% count as the same direction.",
    cases,
    lay_out,
)
