"""Table 4: how long a history the model should see, and what that costs."""

from dataclasses import replace

from bert4rec.paper.experiments.cases import Case, DatasetFacts, Experiment, small_case
from bert4rec.paper.experiments.sweeps import best_setting, steadiness
from bert4rec.paper.reporting.evidence import Evidence, SeedResults
from bert4rec.paper.reporting.layout import Cell, Findings, Row, Statement, Table
from bert4rec.paper.reporting.printed import METRICS_OF_FIGURES, printed

LENGTHS = {"Beauty": (10, 20, 30, 40, 50), "ML-1m": (10, 50, 100, 200, 400)}
"""The paper's N."""
LIKE = {"beauty": "Beauty", "steam": "Beauty", "ml-1m": "ML-1m", "ml-20m": "ML-1m"}
"""Which of the two lists a family of data sets uses."""


def length_cases(facts: DatasetFacts) -> dict[float, Case]:
    """N → the case. If N is that of the preset, it is the same run as in other sweeps."""
    return {
        length: small_case(f"N={length}", f"model.max_length={length}")
        for length in LENGTHS[LIKE[facts.family]]
    }


def speed_case(case: Case) -> Case:
    return replace(case, task="speed")


def cases(facts: DatasetFacts) -> list[Case]:
    trained = list(length_cases(facts).values())
    return [*trained, *map(speed_case, trained)]


def lay_out(evidence: Evidence) -> Findings:
    by_length = length_cases(evidence.facts)
    found = {length: run for length, case in by_length.items() if (run := evidence.find(case))}
    rows = []
    for place, case in enumerate(by_length.values()):
        cells: list[Cell] = [
            evidence.measured(case, metric, paper=_printed(evidence, metric, place))
            for metric in METRICS_OF_FIGURES
        ]
        rows.append(Row(case.label, [*cells, *_speed(evidence, speed_case(case), place)]))
    columns = [*METRICS_OF_FIGURES, "samples/s", "paper, GTX 1080 Ti", "times the paper", "device"]
    table = Table("d = 64, the paper's protocol", columns, rows)
    return Findings([table], _statements(evidence, found))


def _printed(evidence: Evidence, name: str, place: int) -> float | None:
    value: float | None = printed("table4_max_length_d64", evidence.facts.title, name, place)
    return value


def _speed(evidence: Evidence, case: Case, place: int) -> list[str]:
    found = evidence.find(case, kind="speed")
    theirs = _printed(evidence, "samples_per_second_gtx1080ti", place)
    printed_speed = f"{theirs:,.0f}" if theirs else "–"
    if found is None:
        return ["–", printed_speed, "–", "–"]
    line = found.lines[-1]
    speed = line["samples_per_second"]
    factor = f"{speed / theirs:,.0f}" if theirs else "–"
    shared = ", shared" if line.get("device_shared") else ""
    return [f"{speed:,.0f}", printed_speed, factor, line["device"] + shared]


def _statements(evidence: Evidence, found: dict[float, SeedResults]) -> list[Statement]:
    theirs = printed("table4_max_length_d64", evidence.facts.title)
    if not theirs or len(found) < 2:
        return []
    best = dict(zip(theirs["NDCG@10"], theirs["N"], strict=True))[max(theirs["NDCG@10"])]
    return [best_setting("N", found, best), steadiness("N", found)]


TABLE4 = Experiment(
    "table4",
    "Table 4: maximum length",
    "The preset with d = 64, two layers and two heads. Speed is the training speed on the real data, measured after "
    "compilation, with the device to itself; a sample is a window of a history.",
    cases,
    lay_out,
)
