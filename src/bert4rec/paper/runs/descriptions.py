"""What a report shows of a data set itself, written beside the results so that it needs no data: counts and titles."""

from typing import Any

from bert4rec.data.dataset import Dataset
from bert4rec.data.stats import statistics
from bert4rec.paper.experiments.cases import DatasetFacts
from bert4rec.paper.experiments.figure2 import wanted_titles
from bert4rec.paper.runs.ledger import Ledger

ANY_CODE = {"versions": {"code": ""}}
"""The code that trains has no say in these lines."""


def describe(dataset: Dataset, ledger: Ledger) -> None:
    """Write down what is not there yet: statistics, and titles of the items whose attention was measured.

    Titles need polars. Where it is missing they are left for a machine that has it.
    """
    facts = DatasetFacts.of(dataset)
    head = {**facts.identity, **ANY_CODE}
    lines: list[dict[str, Any]] = [
        {
            **head,
            "kind": "statistics",
            "family": facts.family,
            "statistics": statistics(dataset),
        }
    ]
    measured = [
        line
        for line in ledger.lines()
        if line.get("kind") == "attention" and line["data_checksum"] == facts.checksum
    ]
    wanted = sorted(wanted_titles(measured))
    titles = _titles(dataset, wanted)
    if titles:
        # The items stand where other lines have their settings: other items are another line.
        lines.append({**head, "kind": "titles", "config": {"items": wanted}, "titles": titles})
    ledger.add(lines)


def _titles(dataset: Dataset, items: list[int]) -> dict[str, str]:
    if not items or not (dataset.path / "items.parquet").is_file():
        return {}
    try:
        table = dataset.items()
    except ImportError:
        return {}
    if "title" not in table.columns:
        return {}
    titles = table["title"].to_list()
    return {str(item): titles[item - 1] for item in items if titles[item - 1]}
