"""The paper's tables and figures: re-run them, and show the results beside the paper's numbers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert4rec.paper.reporting.report import report
    from bert4rec.paper.runs.reproduce import reproduce

__all__ = ["report", "reproduce"]
_PLACES = {"report": "bert4rec.paper.reporting.report", "reproduce": "bert4rec.paper.runs.reproduce"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
