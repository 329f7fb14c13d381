"""Table 1: the data sets."""

from bert4rec.paper.experiments.cases import Case, DatasetFacts, Experiment
from bert4rec.paper.reporting.evidence import Evidence
from bert4rec.paper.reporting.layout import Findings, Row, Statement, Table
from bert4rec.paper.reporting.printed import printed

ROWS = {
    "users": ("users", ",d"),
    "items": ("items", ",d"),
    "actions": ("actions_as_printed", ",d"),
    "average_length": ("avg_length", ".1f"),
    "density": ("density", ".2%"),
}
"""Our statistic → the paper's name for it, and the format of ours."""


def no_cases(_facts: DatasetFacts) -> list[Case]:
    """Nothing is trained: every `reproduce` records the statistics of its data sets."""
    return []


def lay_out(evidence: Evidence) -> Findings:
    found = evidence.statistics.get("statistics")
    if not found:
        return Findings()
    theirs = printed("table1_datasets", evidence.facts.title)
    rows = [
        Row(name.replace("_", " "), [format(found[name], form), _as_printed(theirs[key]) if theirs else "–"])
        for name, (key, form) in ROWS.items()
    ]
    table = Table("", ["ours", "paper"], rows, note=f"Checksum of the data: {evidence.facts.checksum}.")
    if not theirs:
        return Findings([table])
    same = all(found[name] == theirs[name] for name in ("users", "items"))
    statement = Statement(
        "The numbers of users and items are those of the paper's Table 1.",
        "reproduced" if same else "not reproduced",
        f"{found['users']:,} users and {found['items']:,} items; the paper has {theirs['users']:,} and "
        f"{theirs['items']:,}.",
    )
    return Findings([table], [statement])


def _as_printed(value: int | float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


TABLE1 = Experiment(
    "table1",
    "Table 1: the data sets",
    "Counts after the paper's filters. The paper prints actions rounded.",
    no_cases,
    lay_out,
)
