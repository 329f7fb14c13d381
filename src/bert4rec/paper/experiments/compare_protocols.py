"""How the evaluation protocol affects results: sampled or full ranking, with or without the validation item."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.evaluation.judge import judge
from bert4rec.paper.experiments.cases import BEYOND, Case, DatasetFacts, Experiment, overall_cases
from bert4rec.paper.reporting.evidence import Evidence, SeedResults, compare
from bert4rec.paper.reporting.layout import Cell, Figure, Findings, Row, Slopes, Statement, Table, percent
from bert4rec.training.device import Placement
from bert4rec.training.run import Run

METRICS = ("HR@10", "NDCG@10", "MRR")
METRIC = "NDCG@10"
LABELS_BEYOND = {case.label for case in BEYOND}


def cases(facts: DatasetFacts) -> list[Case]:
    return [replace(case, measures=("selection",)) for case in overall_cases(facts)]


def measure(run: Run, dataset: Dataset, placement: Placement) -> dict[str, Any]:
    """The model of the selection stage on the test items: trained without the validation items."""
    split = make_split(dataset, run.plan.split)
    ranks = judge(run.scorer("selection", placement), dataset, split, "test", placement.device.type)
    selection = run.result["lines"][0]
    kept = {name: selection[name] for name in ("stage", "steps", "train_seconds")}
    return {**kept, "ranks": ranks}


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Agreement of two orders: 1 is the same, -1 reversed. Pairs that tie in either count as neither."""
    pairs = list(combinations(range(len(first)), 2))
    signs = [(first[i] - first[j]) * (second[i] - second[j]) for i, j in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / max(1, len(pairs))


def lay_out(evidence: Evidence) -> Findings:
    found = {case.label: run for case in overall_cases(evidence.facts) if (run := evidence.find(case))}
    without = {
        case.label: run
        for case in overall_cases(evidence.facts)
        if (run := evidence.find(case, stage="selection"))
    }
    tables, statements, figures = [], [], []
    if len(found) > 1:
        tables.append(_orders(found))
        statements.append(_order_statement(found))
        places = _places(found, "sampled"), _places(found, "full")
        caption = (
            f"{evidence.facts.title}: place of each model by {METRIC}. Green rises, red falls, grey stays."
        )
        rows = [(label, float(places[0][label]), float(places[1][label])) for label in found]
        figures.append(Figure("protocols", caption, Slopes("100 negatives", "full ranking", rows)))
    both = [label for label in found if label in without]
    if both:
        tables.append(_validation_item(found, without, both))
        statements += _validation_statement(found, without, both)
    return Findings(tables, statements, figures)


def _places(found: dict[str, SeedResults], protocol: str) -> dict[str, int]:
    order = sorted(found, key=lambda label: -found[label].mean(METRIC, protocol))
    return {label: place for place, label in enumerate(order, start=1)}


def _orders(found: dict[str, SeedResults]) -> Table:
    sampled, full = _places(found, "sampled"), _places(found, "full")
    rows = [
        Row(
            label,
            [
                found[label].measured(METRIC, "sampled"),
                str(sampled[label]),
                found[label].measured(METRIC, "full"),
                str(full[label]),
            ],
            beyond=label in LABELS_BEYOND,
        )
        for label in sorted(found, key=lambda label: sampled[label])
    ]
    agreement = [
        kendall_tau(
            *([run.mean(metric, protocol) for run in found.values()] for protocol in ("sampled", "full"))
        )
        for metric in METRICS
    ]
    taus = ", ".join(f"{metric} {tau:.2f}" for metric, tau in zip(METRICS, agreement, strict=True))
    columns = [f"{METRIC}, 100 negatives", "place", f"{METRIC}, full ranking", "place"]
    return Table(f"Order of the models under both protocols. Kendall's tau: {taus}", columns, rows)


def _order_statement(found: dict[str, SeedResults]) -> Statement:
    places = _places(found, "sampled"), _places(found, "full")
    swapped = [
        (one, other)
        for one, other in combinations(found, 2)
        if (places[0][one] < places[0][other]) != (places[1][one] < places[1][other])
    ]
    if not swapped:
        return Statement(
            "The order of the models is the same under both protocols.", "finding", "No pair swaps places."
        )
    significant = [f"{one} and {other}" for one, other in swapped if _both_sure(found[one], found[other])]
    count = f"{len(swapped)} of {len(found) * (len(found) - 1) // 2} pairs"
    return Statement(
        f"The order of the models depends on the protocol: {count} swap places.",
        "finding",
        f"Significant under both protocols: {'; '.join(significant) or 'none'}.",
    )


def _both_sure(one: SeedResults, other: SeedResults) -> bool:
    gaps = [compare(one, other, METRIC, protocol) for protocol in ("sampled", "full")]
    return all(gap is not None and gap.direction for gap in gaps)


def _validation_item(
    found: dict[str, SeedResults], without: dict[str, SeedResults], labels: list[str]
) -> Table:
    rows = []
    for label in labels:
        cells = [
            each[label].measured(METRIC, protocol)
            for protocol in ("sampled", "full")
            for each in (without, found)
        ]
        shares = [
            percent(late.value / early.value - 1) if early.value else "–"
            for early, late in (cells[:2], cells[2:])
        ]
        numbers: list[Cell] = [cells[0], cells[1], shares[0], cells[2], cells[3], shares[1]]
        rows.append(Row(label, numbers, beyond=label in LABELS_BEYOND))
    columns = ["without", "with", "change", "full ranking: without", "with", "change"]
    title = f"{METRIC} on the test items, trained without and with the validation items"
    return Table(title, columns, rows)


def _validation_statement(
    found: dict[str, SeedResults], without: dict[str, SeedResults], labels: list[str]
) -> list[Statement]:
    if "BERT4Rec" not in labels:
        return []
    late, early = (each["BERT4Rec"].mean(METRIC) for each in (found, without))
    return [
        Statement(
            f"Training on the validation items too changes BERT4Rec's {METRIC} by {percent(late / early - 1)}.",
            "finding",
            f"{early:.4f} without, {late:.4f} with. The paper's authors trained with them, so training without them is "
            "a different experiment.",
        )
    ]


PROTOCOL_COMPARISON = Experiment(
    "protocols",
    "Protocols: how the evaluation affects results",
    "Not in the paper. The models of Table 2 with 100 sampled negatives and with full ranking, and before and after "
    "the refit, which adds the validation items to the training data.",
    cases,
    lay_out,
    seeds=(1, 2, 3),
)
