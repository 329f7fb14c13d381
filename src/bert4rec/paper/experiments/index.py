"""The list of experiments, and the runs that they need together."""

from dataclasses import dataclass, replace

from bert4rec.paper.experiments import table5
from bert4rec.paper.experiments.beyond import BEYOND_THE_PAPER, JOINT_SPEC, PAPERS_ENCODER
from bert4rec.paper.experiments.cases import Case, DatasetFacts, Experiment, Measure
from bert4rec.paper.experiments.compare_protocols import PROTOCOL_COMPARISON
from bert4rec.paper.experiments.figure2 import FIGURE2
from bert4rec.paper.experiments.figure3 import FIGURE3
from bert4rec.paper.experiments.figure4 import FIGURE4
from bert4rec.paper.experiments.table1 import TABLE1
from bert4rec.paper.experiments.table2 import TABLE2
from bert4rec.paper.experiments.table3 import TABLE3
from bert4rec.paper.experiments.table4 import TABLE4
from bert4rec.training.specs import ModelSpec

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        TABLE1,
        TABLE2,
        PROTOCOL_COMPARISON,
        TABLE3,
        FIGURE2,
        FIGURE3,
        FIGURE4,
        TABLE4,
        table5.TABLE5,
        BEYOND_THE_PAPER,
    )
}
"""In the order of a report: the paper's, with protocols after the table it is about, then our own."""
VARIANTS: dict[str, ModelSpec] = {
    **{variant: table5.variant_spec(variant) for variant in table5.VARIANTS},
    PAPERS_ENCODER: JOINT_SPEC,
}
"""Name of a variant → what is trained for it."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that an experiment needs."""

    case: Case
    """With everything that any experiment measures on it, so that no other experiment has to train it again."""
    required: tuple[Measure, ...]
    """What the selected experiments need to be measured."""


def complete(cases: list[Case], facts: DatasetFacts) -> list[PlannedRun]:
    """Each different run once, even if several experiments need it."""
    everything = _by_run([case for each in EXPERIMENTS.values() for case in each.cases(facts)], facts)
    return [
        PlannedRun(replace(same[0], measures=_measures(everything.get(run, same))), _measures(same))
        for run, same in _by_run(cases, facts).items()
    ]


def _by_run(cases: list[Case], facts: DatasetFacts) -> dict[tuple[object, ...], list[Case]]:
    grouped: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        grouped.setdefault(_run_of(case, facts), []).append(case)
    return grouped


def _measures(cases: list[Case]) -> tuple[Measure, ...]:
    return tuple(sorted({measure for case in cases for measure in case.measures}))


def _run_of(case: Case, facts: DatasetFacts) -> tuple[object, ...]:
    return case.task, case.model, case.variant, case.config(facts.family)
