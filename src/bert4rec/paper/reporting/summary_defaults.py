"""What the settings are worth that follow from the data, by the lines that `benchmarks.defaults` writes."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from bert4rec.evaluation.criterion import Criterion
from bert4rec.paper.reporting.evidence import Line
from bert4rec.paper.reporting.layout import Row, Table
from bert4rec.settings.sections import DEFAULT_MODEL

RULE = "the rule"
CRITERION = Criterion("NDCG@10", "both")
COLUMNS = (
    "the rule",
    "the best of all trials",
    "share",
    "without these data one would choose",
    "and get",
    "the best other model",
)


def defaults_table(lines: Sequence[Line]) -> Table:
    """One data set a row. Numbers are means over seeds, of the validation items.

    A change of the rule is chosen without a data set if it is the best on the others, on average and relative to the
    rule.
    """
    values: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        values[line["dataset"]][line["model"], line["trial"]].append(CRITERION.of(line["metrics"]))
    means = {
        dataset: {trial: statistics.mean(found) for trial, found in trials.items()}
        for dataset, trials in values.items()
    }
    rows = []
    for dataset, found in sorted(means.items()):
        ours = {name: value for (model, name), value in found.items() if model == DEFAULT_MODEL}
        others = {model: value for (model, _), value in found.items() if model != DEFAULT_MODEL}
        if RULE not in ours:
            continue
        rule, best = ours[RULE], max(ours.values())
        chosen = _chosen_without(dataset, means)
        model = max(others, key=lambda name: others[name], default=None)
        cells = [
            f"{rule:.4f}",
            f"{best:.4f} of {len(ours)}",
            f"{rule / best:.0%}",
            chosen,
            f"{ours[chosen]:.4f}" if chosen in ours else "–",
            f"{model} {others[model]:.4f}" if model else "–",
        ]
        rows.append(Row(dataset, cells))
    return Table("", list(COLUMNS), rows, corner=str(CRITERION))


def _chosen_without(dataset: str, means: dict[str, dict[tuple[str, str], float]]) -> str:
    """The rule, or the change of it that is better on the other data sets, where it was tried on most of them."""
    gains: dict[str, list[float]] = defaultdict(list)
    others = {name: found for name, found in means.items() if name != dataset}
    for found in others.values():
        for (model, name), value in found.items():
            if model == DEFAULT_MODEL and (rule := found.get((model, RULE))):
                gains[name].append(math.log(value / rule))
    common = {name: found for name, found in gains.items() if len(found) > len(others) / 2}
    return max(common, key=lambda name: statistics.mean(common[name]), default=RULE)
