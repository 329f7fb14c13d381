"""The paper's numbers."""

import json
from functools import cache
from importlib import resources
from typing import Any

METRICS_OF_FIGURES = ("NDCG@10", "HR@10")


@cache
def paper() -> dict[str, Any]:
    """Every number of the paper's tables and figures, by table and data set, with the paper's names."""
    text = (resources.files("bert4rec.paper.reporting") / "paper.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def printed(*path: Any) -> Any:
    """The value at a path of `paper()`, or None if the paper has no such value."""
    found: Any = paper()
    for step in path:
        if isinstance(found, list):
            found = found[step] if isinstance(step, int) and step < len(found) else None
        elif isinstance(found, dict):
            found = found.get(step)
        else:
            return None
    return found
