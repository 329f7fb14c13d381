"""Table 1: the data sets."""

from bert4rec.paper.experiments.cases import Case, Experiment, Facts
from bert4rec.paper.report.evidence import Evidence
from bert4rec.paper.report.layout import Part, Row, Statement, Table
from bert4rec.paper.report.printed import printed

ROWS = {
    "users": ("users", ",d"),
    "items": ("items", ",d"),
    "actions": ("actions_as_printed", ",d"),
    "average_length": ("avg_length", ".1f"),
    "density": ("density", ".2%"),
}
"""Our statistic → the paper's name for it, and how ours is written."""


def no_cases(_facts: Facts) -> list[Case]:
    """Nothing is trained: every `reproduce` writes the statistics of its data sets down."""
    return []


def lay_out(evidence: Evidence) -> Part:
    found = evidence.statistics.get("statistics")
    if not found:
        return Part()
    theirs = printed("table1_datasets", evidence.facts.title)
    rows = [
        Row(name.replace("_", " "), [format(found[name], form), _as_printed(theirs[key]) if theirs else "–"])
        for name, (key, form) in ROWS.items()
    ]
    table = Table("", ["ours", "paper"], rows, note=f"Checksum of the data: {evidence.facts.checksum}.")
    if not theirs:
        return Part([table])
    same = all(found[name] == theirs[name] for name in ("users", "items"))
    statement = Statement(
        "Users and items are as many as in the paper's Table 1.",
        "reproduced" if same else "not reproduced",
        f"{found['users']:,} users and {found['items']:,} items; the paper has {theirs['users']:,} and "
        f"{theirs['items']:,}.",
    )
    return Part([table], [statement])


def _as_printed(value: int | float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


TABLE1 = Experiment(
    "table1",
    "Table 1: the data sets",
    "Counts after the paper's filters. The paper prints actions rounded.",
    no_cases,
    lay_out,
)
