from pathlib import Path

from bert4rec.paper.experiments.figure3 import lay_out, width_case
from bert4rec.paper.reporting.evidence import Evidence, gather
from bert4rec.paper.runs.ledger import Ledger
from tests.paper.fake import add_result, facts_of, statistics_line

WIDTHS = (16, 32)


def evidence_with_bert4rec_behind(folder: Path, best_steps: tuple[int, int]) -> Evidence:
    """At two widths, and its best step at each."""
    ledger, facts = Ledger.open(folder, quick=False), facts_of("beauty")
    ledger.add([statistics_line(facts)])
    for width, steps in zip(WIDTHS, best_steps, strict=True):
        add_result(ledger, facts, width_case("caser", width, "beauty"), 1, 0.3)
        add_result(ledger, facts, width_case("bert4rec", width, "beauty"), 1, 0.2, steps)
    (evidence,) = gather(folder, ledger.lines()).data
    return evidence


def test_more_steps_might_help_only_where_all_widths_that_fall_short_used_up_theirs(tmp_path: Path) -> None:
    last = width_case("bert4rec", WIDTHS[0], "beauty").config("beauty").training.steps
    for name, best_steps, might_help in (("all", (last, last), True), ("one", (last, last - 1000), False)):
        (statement,) = lay_out(evidence_with_bert4rec_behind(tmp_path / name, best_steps)).statements
        assert statement.verdict == "not reproduced"
        assert statement.is_marked == might_help
