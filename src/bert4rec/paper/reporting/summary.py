"""The parts of documents that are made from results: `python -m bert4rec.paper.reporting.summary results README.md …`.

A document marks where a part goes, and where it ends:

    <!-- quality: written by a command, do not edit -->
    <!-- end -->
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bert4rec.errors import DataError
from bert4rec.evaluation.metrics import METRICS
from bert4rec.evaluation.protocol import PROTOCOLS
from bert4rec.paper.experiments.cases import BERT4REC, BEYOND, overall_cases
from bert4rec.paper.reporting.evidence import Evidence, Line, SeedResults
from bert4rec.paper.reporting.layout import Row, Table
from bert4rec.paper.reporting.printed import printed
from bert4rec.paper.reporting.report import read_report
from bert4rec.paper.reporting.report_text import surprise_list, table_text, verdict_table
from bert4rec.paper.reporting.summary_defaults import defaults_table, read_trials
from bert4rec.paper.reporting.summary_scale import larger_table, projection_table
from bert4rec.paper.reporting.summary_speed import (
    GOAL,
    OURS,
    cpu_table,
    paper_quality_time,
    production_table,
    recommending_table,
    runs_table,
    serving_sentence,
    serving_table,
    speed_beside_paper,
    times_table,
    training_table,
)
from bert4rec.paper.reporting.summary_steps import first_step_table, joint_table, profile_table

MARK = re.compile(r"<!-- ([\w-]+): written by a command, do not edit -->")
END = "<!-- end -->"
PAPER_LABELS = {**PROTOCOLS, "sampled": "100 popularity negatives"}
"""How the paper's protocol is called beside its own numbers."""
SHOWN = ("HR@10", "NDCG@10", "MRR")


def make_parts(folder: Path) -> dict[str, str]:
    """Name of a part, as in its mark → its Markdown."""
    report = read_report(folder)
    data, benches_with = report.results.data, report.results.benches_with
    of_steps = {
        "profile": profile_table(benches_with("profile")),
        "joint": joint_table(benches_with("joint")),
        "first-step": first_step_table(benches_with("first_step")),
    }
    return {
        **{name: table_text(table) for name, table in of_steps.items() if table.rows},
        "headline": table_text(headline_table(data, benches_with("shape"))),
        "quality": table_text(quality_table(data)),
        "baselines": "\n\n".join(table_text(baselines_table(each)) for each in data),
        "defaults": table_text(defaults_table(read_trials(folder))),
        "verdicts": verdict_table(report),
        "surprises": surprise_list(report),
        "times": table_text(times_table(data)),
        "runs": table_text(runs_table(data)),
        "speed": table_text(training_table(benches_with("shape"))),
        "recommending": table_text(recommending_table(benches_with("recommend"))),
        "serving": table_text(serving_table(benches_with("serve"))),
        "cpu": table_text(cpu_table(benches_with("cpu"))),
        "production": table_text(production_table(benches_with("production"))),
        "service": serving_sentence(benches_with("serve")),
        "scale": table_text(report.scale),
        "larger": table_text(larger_table(benches_with("scale"))),
        "projection": table_text(projection_table(benches_with("shape"))),
    }


def update(folder: Path, documents: Sequence[Path]) -> None:
    """Rewrite every marked part of the documents, from the results in the folder."""
    parts = make_parts(folder)
    for document in documents:
        document.write_text(fill(document.read_text(encoding="utf-8"), parts), encoding="utf-8")


def fill(text: str, parts: dict[str, str]) -> str:
    """The text with all marked parts replaced. An unknown mark, or one without its end, is an error."""
    pieces = MARK.split(text)
    filled = [pieces[0]]
    for name, rest in zip(pieces[1::2], pieces[2::2], strict=True):
        if name not in parts or END not in rest:
            raise DataError(
                f"The part {name!r} is unknown, or its {END} is missing. Known parts: {', '.join(parts)}."
            )
        mark = f"<!-- {name}: written by a command, do not edit -->"
        filled.append(f"{mark}\n{parts[name]}\n{END}{rest.partition(END)[2]}")
    return "".join(filled)


def headline_table(data: Sequence[Evidence], benches: Sequence[Line]) -> Table:
    """BERT4Rec and BERT4Rec+: quality beside the paper's, and how fast it is reached. The device is told once."""
    found = [
        (evidence, case, run, theirs)
        for evidence in data
        if (theirs := printed("table2_overall", evidence.facts.title, GOAL, BERT4REC.label))
        for case in OURS
        if (run := evidence.find(case))
    ]
    devices = [str(run.lines[0]["device"]) for _, _, run, _ in found]
    usual = max(devices, key=devices.count, default="")
    rows = []
    for evidence, case, run, theirs in found:
        title, is_papers = evidence.facts.title, case == BERT4REC
        cells = [
            f"{theirs:.4f}" if is_papers else "–",
            *(_spread(run, GOAL, protocol) for protocol in PROTOCOLS),
            paper_quality_time(evidence, case),
            speed_beside_paper(title, benches) if is_papers else "–",
        ]
        rows.append(Row(f"{title}, {case.label}", [cell.removesuffix(f" ({usual})") for cell in cells]))
    columns = [f"{GOAL}, paper", "ours", "ours, all items", "the paper's level after", "training speed"]
    return Table("", columns, rows, corner=usual)


def quality_table(data: Sequence[Evidence]) -> Table:
    """BERT4Rec and BERT4Rec+ with their tuned presets: mean and 95% interval, beside the paper's numbers."""
    rows = []
    for evidence in data:
        title, found = evidence.facts.title, [(case, evidence.find(case)) for case in OURS]
        theirs = [printed("table2_overall", title, metric, BERT4REC.label) for metric in SHOWN]
        if None not in theirs and any(run for _, run in found):
            numbers = [f"{value:.4f}" for value in theirs]
            rows.append(
                Row(f"{title}, {BERT4REC.label}", [f"paper, {PAPER_LABELS['sampled']}", *numbers, "", ""])
            )
        rows += [
            Row(
                f"{title}, {case.label}",
                [
                    f"ours, {name}",
                    *(_spread(run, metric, protocol) for metric in SHOWN),
                    str(len(run.lines)),
                    str(run.lines[0]["device"]),
                ],
            )
            for case, run in found
            if run
            for protocol, name in PAPER_LABELS.items()
        ]
    return Table("", ["protocol", *SHOWN, "seeds", "device"], rows)


def baselines_table(evidence: Evidence) -> Table:
    """All models of Table 2: NDCG@10 and HR@10 under the paper's protocol and in full ranking."""
    rows = []
    for case in overall_cases(evidence.facts):
        run = evidence.find(case)
        theirs = [
            printed("table2_overall", evidence.facts.title, name, case.label) for name in METRICS[2:5:2]
        ]
        cells = [
            *(
                _spread(run, metric, protocol) if run else "–"
                for protocol in PROTOCOLS
                for metric in METRICS[2:5:2]
            ),
            *(f"{value:.4f}" if value is not None else "–" for value in theirs),
        ]
        rows.append(
            Row(case.label, [cells[0], cells[4], cells[1], cells[5], *cells[2:4]], beyond=case in BEYOND)
        )
    columns = ["HR@10", "paper", "NDCG@10", "paper", "HR@10, full", "NDCG@10, full"]
    return Table("", columns, rows, corner=evidence.facts.title)


def _spread(run: SeedResults, metric: str, protocol: str) -> str:
    found = run.measured(metric, protocol)
    half = (
        f" ± {(found.high - found.low) / 2:.4f}" if found.high is not None and found.low is not None else ""
    )
    return f"**{found.value:.4f}**{half}"


if __name__ == "__main__":
    results, *paths = map(Path, sys.argv[1:])
    update(results, paths)
