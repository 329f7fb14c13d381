"""The report: every table and figure, ours beside the paper's, from a folder of results and nothing else."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bert4rec.errors import NotFoundError
from bert4rec.paper.experiments.cases import PAPER_NAMES, Case, Experiment
from bert4rec.paper.experiments.index import EXPERIMENTS, PlannedRun, complete
from bert4rec.paper.reporting.evidence import Evidence, Line, Results, SeedResults, gather
from bert4rec.paper.reporting.layout import (
    DAGGER,
    RULES,
    Figure,
    Findings,
    Row,
    Statement,
    Table,
    Verdict,
)
from bert4rec.paper.runs.run_times import is_whole
from bert4rec.training.results import read_results

NO_RESULTS = (
    "There are no results of it here, so the quality of no model is measured on it. The same commands work once its "
    "file is there"
)


@dataclass(frozen=True)
class Section:
    """One experiment on one data set: what there is, and what is missing."""

    experiment: Experiment
    evidence: Evidence
    title: str
    """Of the data set."""

    @cached_property
    def part(self) -> Findings:
        return self.experiment.lay_out(self.evidence)

    @cached_property
    def asked(self) -> list[PlannedRun]:
        return complete(self.experiment.cases(self.evidence.facts), self.evidence.facts)

    @property
    def cases(self) -> list[Case]:
        return [each.case for each in self.asked]

    @cached_property
    def missing(self) -> list[tuple[Case, int]]:
        """Runs that nobody has made, by case and seed."""
        return [
            (each.case, seed)
            for each in self.asked
            for seed in (self.experiment.seeds if each.case.task == "train" else (1,))
            if seed not in self._seeds(each)
        ]

    def file_name(self, figure: Figure) -> str:
        """Of a picture, without its ending."""
        return f"{figure.name}-{re.sub(r'[^a-z0-9]+', '-', self.title.lower()).strip('-')}"

    @property
    def is_empty(self) -> bool:
        return not (self.part.tables or self.missing)

    @property
    def command(self) -> str:
        """That makes what is missing."""
        seeds = ",".join(str(seed) for seed in sorted({seed for _, seed in self.missing}))
        words = ["bert4rec", "reproduce", self.experiment.name, "--data", self.evidence.facts.name]
        words += ["--seeds", seeds] if seeds else []
        return shlex.join([*words, "--quick"] if self.evidence.quick else words)

    @cached_property
    def failures(self) -> list[str]:
        """What was tried and could not be done, and why."""
        found = [(case, self.evidence.find(case, kind="failure")) for case in self.cases]
        return [f"{case.label}: {line['error']}" for case, failed in found if failed for line in failed.lines]

    @cached_property
    def runs(self) -> Table:
        """Seconds and device of every run. How long a run took that was interrupted and went on, nobody knows."""
        rows = []
        for case in self.cases:
            for selection, line in self.evidence.stages(case) if case.task == "train" else ():
                cells = [
                    f"{line['steps']:,}",
                    f"{selection['train_seconds']:.1f}" if selection else "–",
                    f"{line['train_seconds']:.1f}",
                    f"{line['command_seconds']:.0f}" if is_whole(line, selection) else "resumed",
                    _device(line),
                    line["versions"]["code"],
                ]
                rows.append(Row(f"{case.label}, seed {line['seed']}", cells))
        columns = ["steps", "selection, s", "refit, s", "whole run, s", "device", "code"]
        return Table("", columns, rows)

    def _seeds(self, asked: PlannedRun) -> set[int]:
        """Seeds that were run with all that this experiment wants, or that were tried in vain."""
        case = asked.case
        found = [self.evidence.find(case, kind="speed" if case.task == "speed" else "result")]
        if "selection" in asked.required:
            found.append(self.evidence.find(case, stage="selection"))
        if "attention" in asked.required:
            found.append(self.evidence.find(case, kind="attention"))
        failed = self.evidence.find(case, kind="failure")
        return set.intersection(*map(_seeds_of, found)) | _seeds_of(failed)

    @property
    def in_short(self) -> str:
        """The verdicts, counted."""
        numbers = _count_words([cell.verdict for cell in self.part.measured if cell.verdict])
        statements = _count_words([each.verdict for each in self.part.statements])
        short = [cell.at_last_step for cell in self.part.measured if cell.verdict == "not reproduced"]
        daggers = f" ({sum(short)} of them {DAGGER})" if any(short) else ""
        told = [f"numbers: {numbers}{daggers}"] if numbers else []
        told += [f"statements: {statements}"] if statements else []
        if self.missing:
            told.append(f"missing runs: {len(self.missing)}")
        return "; ".join(told) or ("nothing to compare" if self.part.tables else "nothing to show")


@dataclass(frozen=True)
class Report:
    """All there is to show."""

    results: Results
    sections: list[tuple[Experiment, list[Section]]]

    @property
    def surprises(self) -> list[tuple[Section, Statement]]:
        """What contradicts the paper, then what of it is not reproduced, then what it does not say."""
        order = ("contradiction", "not reproduced", "finding")
        told = [
            (shown, statement)
            for _, parts in self.sections
            for shown in parts
            for statement in shown.part.statements
            if statement.verdict in order
        ]
        return sorted(told, key=lambda each: order.index(each[1].verdict))

    def warnings(self, *, can_draw: bool) -> list[str]:
        """What a reader must know before all else."""
        found, told = self.results, []
        if found.quick:
            told.append(
                "Quick runs: a few training steps each, to see that everything runs. The numbers mean nothing."
            )
        if found.left_out:
            told.append(
                f"{count(found.left_out, 'line')} of quick runs lay among the results and were left out."
            )
        if found.without_ranks:
            told.append(
                f"The ranks of {count(found.without_ranks, 'result')} are not there. With those, differences between "
                "two models are not paired user by user, so that their intervals are wider and less is decided."
            )
        if not can_draw:
            told.append("Figures are left out: matplotlib is not installed (pip install 'bert4rec[report]').")
        if not found.data:
            told.append("There are no results of any experiment here. Make some: bert4rec reproduce --help.")
        return told

    @property
    def has_figures(self) -> bool:
        return any(shown.part.figures for _, parts in self.sections for shown in parts)

    @property
    def absent(self) -> dict[str, str]:
        """Data sets of the paper without results: title → the command that would make them."""
        there = {evidence.facts.name for evidence in self.results.data}
        return {
            title: f"bert4rec reproduce all --data {name}"
            for name, title in PAPER_NAMES.items()
            if name not in there
        }

    @property
    def scale(self) -> Table:
        """Speed and memory where there are no results: on synthetic data of the same shape."""
        rows = [
            Row(
                f"{PAPER_NAMES[line['shape']]}'s shape, d={line['dim']}",
                [
                    f"{line['items']:,}",
                    str(line["max_length"]),
                    str(line["batch_size"]),
                    f"{line['samples_per_second']:,.0f}",
                    f"{line['peak_memory_gib']:.2f}",
                    _device(line),
                ],
            )
            for line in self.results.benches_with("shape")
            if PAPER_NAMES.get(line["shape"]) in self.absent
        ]
        columns = ["items", "N", "batch", "samples/s", "peak memory, GiB", "device"]
        return Table("Training on synthetic data of the shape of a data set", columns, rows)


def read_report(folder: Path) -> Report:
    """Everything in a folder of results, laid out. Works with whatever is there."""
    if not folder.is_dir():
        raise NotFoundError(f"{folder} does not exist; expected the folder that `reproduce --results` wrote.")
    results = gather(folder, read_results(folder))
    names = Counter(evidence.facts.title for evidence in results.data)
    sections = [
        (
            experiment,
            [Section(experiment, evidence, _title(evidence, names)) for evidence in results.data],
        )
        for experiment in EXPERIMENTS.values()
    ]
    return Report(results, sections)


def _device(line: Line) -> str:
    """With a warning where others used it at the same time, so that seconds say little."""
    return str(line["device"]) + (", shared" if line.get("device_shared") else "")


def _seeds_of(found: SeedResults | None) -> set[int]:
    return {line["seed"] for line in found.lines} if found else set()


def _count_words(verdicts: list[Verdict]) -> str:
    """In the order of the rules, so that "not reproduced" is the last that a number can be."""
    counts = Counter(verdicts)
    nouns = ("contradiction", "finding")
    return ", ".join(
        f"{counts[word]} {word}{'s' if word in nouns and counts[word] > 1 else ''}"
        for word in RULES
        if counts[word]
    )


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _title(evidence: Evidence, names: Counter[str]) -> str:
    """The split and the checksums tell data of the same name apart."""
    facts = evidence.facts
    if names[facts.title] == 1:
        return facts.title
    candidates = f", candidates {facts.candidates}" if facts.candidates else ""
    return f"{facts.title} ({facts.protocol}, data {facts.checksum}{candidates})"


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the page, the Markdown and, where matplotlib is installed, the figures. Returns what was written.

    Figures of an earlier report that no longer belong to it are removed: those that its Markdown names, and no others.
    """
    from bert4rec.paper.reporting.report_figures import draw
    from bert4rec.paper.reporting.report_page import make_page
    from bert4rec.paper.reporting.report_text import make_text

    folder.mkdir(parents=True, exist_ok=True)
    page, text = folder / "report.html", folder / "report.md"
    earlier = text.read_text(encoding="utf-8", errors="replace") if text.is_file() else ""
    can_draw = not report.has_figures or _can_draw()
    pictures: dict[str, str] = {}
    written = []
    for _, parts in report.sections:
        for shown in parts:
            for figure in shown.part.figures if can_draw else ():
                name = shown.file_name(figure)
                paths, pictures[name] = draw(figure, folder / "figures" / name)
                written += paths
    for name in set(re.findall(r"\]\(figures/([^/)]+)\.png\)", earlier)) - pictures.keys():
        for ending in ("png", "svg"):
            (folder / "figures" / f"{name}.{ending}").unlink(missing_ok=True)
    page.write_text(make_page(report, pictures, can_draw=can_draw), encoding="utf-8")
    text.write_text(make_text(report, set(pictures), can_draw=can_draw), encoding="utf-8")
    return [page, text, *written]


def _can_draw() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True
