"""Table 3: do the gains come from looking both ways, or from masking many items at once?"""

from dataclasses import replace

from bert4rec.paper.experiments.cases import Case, DatasetFacts, Experiment
from bert4rec.paper.reporting.evidence import Evidence, compare, judge_direction
from bert4rec.paper.reporting.layout import Findings, Measured, Row, Statement, Table, Verdict, percent
from bert4rec.paper.reporting.printed import printed

METRICS = ("HR@10", "NDCG@10", "MRR")
WIDE = ("model.dim=256",)
ONE_MASK = "objective.mask_probability=0.0001"
"""So small a share of any history rounds to zero items, and at least one item is always masked: exactly one."""

SASREC = Case("SASRec", "sasrec", WIDE)
SOFTMAX = Case("SASRec (softmax)", "sasrec", (*WIDE, "model.heads=4"), preset="-softmax")
ONE = Case("BERT4Rec (1 mask)", "bert4rec", (*WIDE, "model.heads=4", ONE_MASK))
CLOZE = Case("BERT4Rec", "bert4rec", (*WIDE, "model.heads=4"))
CLAIMS = (
    (ONE, SASREC, "Looking both ways pays: BERT4Rec with one mask is better than SASRec."),
    (CLOZE, ONE, "The Cloze task pays: masking many items at once is better than masking one."),
)
"""The better case, the worse case, and what that shows."""

AT_EQUAL_LOSS: dict[Verdict, tuple[str, Verdict]] = {
    "reproduced": ("One mask is better than SASRec also with the same loss, the exact softmax.", "finding"),
    "not reproduced": (
        "With the same loss, the exact softmax, SASRec is better than one mask. It learns from every position at once.",
        "contradiction",
    ),
    "undecided": (
        "With the same loss, the exact softmax, there is no clear difference between one mask and SASRec.",
        "finding",
    ),
}
"""What the comparison with the softmax version of SASRec shows."""


def cases(_facts: DatasetFacts) -> list[Case]:
    return [SASREC, SOFTMAX, ONE, CLOZE]


def lay_out(evidence: Evidence) -> Findings:
    def cell(case: Case, metric: str) -> Measured | None:
        theirs = printed("table3_bidirection_and_cloze_d256", evidence.facts.title, case.label, metric)
        return evidence.measured(case, metric, paper=theirs)

    rows = [
        Row(case.label, [cell(case, metric) for metric in METRICS], beyond=case is SOFTMAX)
        for case in cases(evidence.facts)
    ]
    table = Table("d = 256, the paper's protocol", METRICS, rows)
    statements = [_statement(evidence, *claim) for claim in CLAIMS] + [_at_equal_loss(evidence)]
    return Findings([table], [each for each in statements if each])


def _statement(evidence: Evidence, better: Case, worse: Case, text: str) -> Statement | None:
    one, other = evidence.find(better), evidence.find(worse)
    if one is None or other is None:
        return None
    gains = {metric: compare(one, other, metric) for metric in METRICS}
    shares = ", ".join(f"{metric} {percent(gain.share)}" for metric, gain in gains.items() if gain)
    verdict = judge_direction(gains.values())
    loser = other if verdict == "reproduced" else one
    at_last_step = loser.at_last_step and verdict != "undecided"
    return Statement(text, verdict, f"{better.label} against {worse.label}: {shares}.", at_last_step)


def _at_equal_loss(evidence: Evidence) -> Statement | None:
    """Not in the paper, whose SASRec differs from BERT4Rec in its loss as well as in its direction."""
    found = _statement(evidence, ONE, SOFTMAX, "")
    if found is None:
        return None
    text, verdict = AT_EQUAL_LOSS[found.verdict]
    return replace(found, text=text, verdict=verdict)


TABLE3 = Experiment(
    "table3",
    "Table 3: bidirection and Cloze",
    "All have d = 256 and otherwise their tuned presets; SASRec has one head, the others four. The paper's SASRec also "
    "has another loss, so a row is added in which SASRec has the same loss as BERT4Rec.",
    cases,
    lay_out,
)
