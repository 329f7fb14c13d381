from pathlib import Path

import pytest

from bert4rec.paper.experiments.cases import BERT4REC, overall_cases
from bert4rec.paper.experiments.table2 import lay_out
from bert4rec.paper.reporting.evidence import gather
from bert4rec.paper.runs.ledger import Ledger
from tests.paper.fake import add_result, facts_of, statistics_line


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(0.35, "reproduced"), (0.3, "not reproduced"), (0.25, "not reproduced")],
    ids=["far above", "a tie", "below"],
)
def test_a_tie_is_not_the_lead_that_the_paper_has(tmp_path: Path, ours: float, verdict: str) -> None:
    """On Beauty it is 5% to 14%."""
    ledger, facts = Ledger.open(tmp_path, quick=False), facts_of("beauty")
    ledger.add([statistics_line(facts)])
    for case in overall_cases(facts):
        add_result(ledger, facts, case, 1, ours if case == BERT4REC else 0.3)
    (evidence,) = gather(tmp_path, ledger.lines()).data
    assert lay_out(evidence).statements[0].verdict == verdict
