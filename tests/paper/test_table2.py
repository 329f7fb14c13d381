from pathlib import Path

import pytest

from bert4rec.paper.experiments.cases import BERT4REC, PLUS, SOFTMAX, Case, overall_cases
from bert4rec.paper.experiments.table2 import lay_out
from bert4rec.paper.reporting.evidence import gather
from bert4rec.paper.reporting.layout import Statement
from bert4rec.paper.runs.ledger import Ledger
from tests.paper.fake import add_result, facts_of, statistics_line


def statements(folder: Path, qualities: dict[Case, float]) -> list[Statement]:
    """Of Beauty, if all other models have an NDCG@10 of 0.3."""
    ledger, facts = Ledger.open(folder, quick=False), facts_of("beauty")
    ledger.add([statistics_line(facts)])
    for case in overall_cases(facts):
        add_result(ledger, facts, case, 1, qualities.get(case, 0.3))
    (evidence,) = gather(folder, ledger.lines()).data
    return lay_out(evidence).statements


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(0.35, "reproduced"), (0.3, "not reproduced"), (0.25, "not reproduced")],
    ids=["far above", "a tie", "below"],
)
def test_a_tie_is_not_the_lead_that_the_paper_has(tmp_path: Path, ours: float, verdict: str) -> None:
    """On Beauty it is 5% to 14%."""
    assert statements(tmp_path, {BERT4REC: ours})[0].verdict == verdict


def test_bert4rec_plus_is_no_baseline_and_has_a_statement_of_its_own(tmp_path: Path) -> None:
    best_of_nine, plus = statements(tmp_path, {BERT4REC: 0.35, PLUS: 0.6})
    assert best_of_nine.verdict == "reproduced"
    assert "BERT4Rec+" not in best_of_nine.evidence
    assert best_of_nine.evidence.endswith("8 baselines.")
    assert plus.text == "BERT4Rec+ is above every other model by NDCG@10 under both protocols."
    assert plus.verdict == "finding"
    assert "against BERT4Rec under the paper's protocol" in plus.evidence


def test_it_is_told_what_bert4rec_plus_is_not_above(tmp_path: Path) -> None:
    *_, plus = statements(tmp_path, {SOFTMAX[1]: 0.6, PLUS: 0.6})
    assert plus.text == "BERT4Rec+ is not above every other model by NDCG@10 under both protocols."
    assert plus.evidence.endswith("Not surely above: SASRec (softmax).")
