"""What the settings are worth that follow from the data, by the lines that `benchmarks.defaults` writes."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from bert4rec.evaluation.criterion import Criterion
from bert4rec.paper.reporting.evidence import Line
from bert4rec.paper.reporting.layout import Row, Table
from bert4rec.settings.sections import DEFAULT_MODEL

RULE = "the rule"
CRITERION = Criterion("NDCG@10", "both")
COLUMNS = (
    "the rule",
    "best of all trials",
    "share of it",
    "chosen on the others",
    "which gives",
    "best other model",
)
Values = dict[str, dict[str, float]]
"""Data set → name of a trial, or of a model → what it reached, on average over seeds."""


def read_trials(folder: Path) -> list[Line]:
    path = folder / "tuning" / "defaults.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def defaults_table(lines: Sequence[Line]) -> Table:
    """One data set a row, all of the validation items.

    "Chosen on the others" is the rule or the one change of it that is the best, relative to the rule and on average, on
    all other data sets: what one would have taken without having seen this one.
    """
    ours = _means({**line, "key": _name(line)} for line in lines if line["model"] == DEFAULT_MODEL)
    models = _means({**line, "key": line["model"]} for line in lines if line["model"] != DEFAULT_MODEL)
    rows = []
    for dataset, found in sorted(ours.items()):
        if RULE in found:
            best, chosen = max(found.values()), _chosen_without(dataset, ours)
            others = sorted(models.get(dataset, {}).items(), key=lambda each: -each[1])
            cells = [
                f"{found[RULE]:.4f}",
                f"{best:.4f} of {len(found)}",
                f"{found[RULE] / best:.0%}",
                chosen,
                f"{found[chosen]:.4f}" if chosen in found else "–",
                "{} {:.4f}".format(*others[0]) if others else "–",
            ]
            rows.append(Row(dataset, cells))
    return Table("", list(COLUMNS), rows, corner=str(CRITERION))


def _name(line: Line) -> str:
    """What tells one trial from another: its change of the rule, or all of its settings where it has no name."""
    return json.dumps(line["config"]) if line["trial"] == "search" else str(line["trial"])


def _means(lines: Iterable[Line]) -> Values:
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        values[line["dataset"]][line["key"]].append(CRITERION.of(line["metrics"]))
    return {
        dataset: {key: statistics.mean(each) for key, each in found.items()}
        for dataset, found in values.items()
    }


def _chosen_without(dataset: str, means: Values) -> str:
    """What is best on the other data sets, if it was tried on more than half of them."""
    others = [found for name, found in means.items() if name != dataset and RULE in found]
    gains: dict[str, list[float]] = defaultdict(list)
    for found in others:
        for name, value in found.items():
            gains[name].append(math.log(value / found[RULE]))
    common = {name: each for name, each in gains.items() if len(each) > len(others) / 2}
    return max(common, key=lambda name: statistics.mean(common[name]), default=RULE)
