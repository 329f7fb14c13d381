"""Beyond the paper: what BERT4Rec+ owes to its encoder, to joint training, and to the way it is asked."""

from collections.abc import Mapping
from dataclasses import replace

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.evaluation.judge import judge
from bert4rec.evaluation.protocol import Ranks
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.models.bert4rec_plus import BERT4RecPlus
from bert4rec.models.model import make_scorer
from bert4rec.paper.experiments.cases import (
    BERT4REC,
    PLUS,
    SOFTMAX,
    Case,
    DatasetFacts,
    Experiment,
    asked_by,
)
from bert4rec.paper.reporting.evidence import UNDER, Evidence, SeedResults, Standing
from bert4rec.paper.reporting.layout import Dumbbells, Figure, Findings, Row, Statement, Table
from bert4rec.settings.networks import Ask, PlusConfig
from bert4rec.settings.presets import load_preset
from bert4rec.training.device import Placement
from bert4rec.training.run import Run
from bert4rec.training.specs import MODELS

COLUMNS = {
    "HR@10": ("HR@10", "sampled"),
    "NDCG@10": ("NDCG@10", "sampled"),
    "HR@10, full": ("HR@10", "full"),
    "NDCG@10, full": ("NDCG@10", "full"),
}
"""Metric and protocol."""
WAYS: dict[Ask, str] = {"mask": "by [mask]", "last": "by the last item", "both": "by both"}
PAPERS_ENCODER = "paper's encoder"
SASREC = SOFTMAX[1]
ENCODER = "the encoder alone"
JOINT = Case("joint training alone", "bert4rec+", variant=PAPERS_ENCODER)
PAIRS = (
    (ENCODER, BERT4REC.label),
    (JOINT.label, BERT4REC.label),
    (PLUS.label, ENCODER),
    (PLUS.label, JOINT.label),
    (PLUS.label, SASREC.label),
)
"""What is compared with what."""


class JointBERT4Rec(BERT4Rec):
    """The paper's encoder, asked in the ways of BERT4Rec+."""

    config: PlusConfig
    ways_to_ask = BERT4RecPlus.ways_to_ask
    questions = BERT4RecPlus.questions


JOINT_SPEC = replace(MODELS["bert4rec+"], network=JointBERT4Rec)


def encoder_case(family: str) -> Case:
    """The encoder of BERT4Rec+ learns masked items only, and as long as BERT4Rec does: they alone teach slowly."""
    training = load_preset("bert4rec", family)["training"]
    as_bert4rec = [f"training.{name}={value}" for name, value in training.items()]
    return Case(ENCODER, "bert4rec+", ("model.ask=mask", "objective.next_item_weight=0", *as_bert4rec))


def cases(facts: DatasetFacts) -> list[Case]:
    return [BERT4REC, SASREC, encoder_case(facts.family), JOINT, replace(PLUS, measures=("asked",))]


def measure(run: Run, dataset: Dataset, placement: Placement) -> dict[Ask, Ranks]:
    """The final weights on the test items, asked in every way."""
    split, model = make_split(dataset, run.plan.split), run.load_model("final", placement.device)
    found: dict[Ask, Ranks] = {}
    for way in WAYS:
        model.way_to_ask = way
        scorer = make_scorer(model, placement.dtype)
        found[way] = judge(scorer, dataset, split, "test", placement.device.type)
    return found


def lay_out(evidence: Evidence) -> Findings:
    asked = {way: evidence.find(PLUS, variant=asked_by(way)) for way in WAYS}
    runs = {case.label: evidence.find(case) for case in cases(evidence.facts)}
    runs |= {f"{PLUS.label} {WAYS[way]}": run for way, run in asked.items()}
    found = {label: run for label, run in runs.items() if run}
    rows = [
        Row(
            label,
            [run.measured(*column) if run else None for column in COLUMNS.values()],
            beyond=label != BERT4REC.label,
        )
        for label, run in runs.items()
    ]
    table = Table("Each part alone, both together, and other ways of asking", list(COLUMNS), rows)
    statements = [_standing(found, *pair) for pair in PAIRS if found.keys() >= set(pair)]
    ways = {way: run for way, run in asked.items() if run}
    if len(ways) == len(WAYS):
        statements.append(_best_way(ways))
    return Findings([table], statements, _figures(evidence, found))


def _standing(found: Mapping[str, SeedResults], label: str, other: str) -> Statement:
    standing = Standing.of(found[label], found[other])
    loser = found[label if standing.word == "below" else other]
    return Statement(
        f"{label[0].upper()}{label[1:]} is {standing.word} {other}.",
        "undecided" if standing.word == "neither above nor below" else "finding",
        f"Compared with {other}: {standing}.",
        loser.at_last_step,
    )


def _best_way(ways: Mapping[Ask, SeedResults]) -> Statement:
    """Which way of asking is the best under both protocols together, and whether that is sure."""
    best, *others = sorted(
        ways, key=lambda way: -ways[way].mean("NDCG@10") * ways[way].mean("NDCG@10", "full")
    )
    standings = {way: Standing.of(ways[best], ways[way]) for way in others}
    is_sure = all(standing.word == "above" for standing in standings.values())
    compared = "; ".join(f"against {WAYS[way]}: {standing}" for way, standing in standings.items())
    return Statement(
        f"BERT4Rec+ is best asked {WAYS[best]}."
        if is_sure
        else "No way of asking BERT4Rec+ is surely the best.",
        "finding" if is_sure else "undecided",
        f"Asking {WAYS[best]}, {compared}.",
    )


def _figures(evidence: Evidence, found: Mapping[str, SeedResults]) -> list[Figure]:
    panels = {
        f"NDCG@10 {name}": [(label, run.measured("NDCG@10", protocol)) for label, run in found.items()]
        for protocol, name in UNDER.items()
    }
    caption = f"{evidence.facts.title}: NDCG@10 with 95% intervals."
    return [Figure("beyond", caption, Dumbbells(panels))] if found else []


BEYOND_THE_PAPER = Experiment(
    "beyond",
    "Beyond the paper: BERT4Rec+ and its parts",
    "Not in the paper. BERT4Rec+ has another encoder (rotary positions, a gate, no output projection) and learns "
    "masked items and next items in the same step. It can be asked what comes next by [mask], by the last item, or by "
    "both. The encoder alone learns masked items only, with the training settings of BERT4Rec but without its samples "
    "of prefixes. Joint training alone has the paper's encoder and the settings of BERT4Rec+. Other ways of asking are "
    "tried on the same weights; seeds are counted as if they were others, so the intervals of these differences are "
    "wide.",
    cases,
    lay_out,
    seeds=(1, 2, 3),
)
