"""The paper's numbers, and what it says they show."""

import json
from functools import cache
from importlib import resources
from typing import Any

METRICS_OF_FIGURES = ("NDCG@10", "HR@10")


@cache
def paper() -> dict[str, Any]:
    """Every number of the paper's tables and figures, by table and data set, as the paper names them."""
    text = (resources.files("bert4rec.paper.reporting") / "paper.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def printed(*path: Any) -> Any:
    """What stands at a place of `paper()`, or None where the paper has nothing there."""
    found: Any = paper()
    for step in path:
        if isinstance(found, list):
            found = found[step] if isinstance(step, int) and step < len(found) else None
        elif isinstance(found, dict):
            found = found.get(step)
        else:
            return None
    return found
