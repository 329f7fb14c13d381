"""The report: every table and figure, ours beside the paper's, from a folder of results alone."""

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
from bert4rec.training.reporting.results import read_results

NO_RESULTS = "no results. Once its file is there, the same command works"


@dataclass(frozen=True)
class Section:
    """One experiment on one data set: what was found, and what is missing."""

    experiment: Experiment
    evidence: Evidence
    title: str
    """Of the data set."""

    @cached_property
    def findings(self) -> Findings:
        return self.experiment.lay_out(self.evidence)

    @cached_property
    def planned(self) -> list[PlannedRun]:
        return complete(self.experiment.cases(self.evidence.facts), self.evidence.facts)

    @property
    def cases(self) -> list[Case]:
        return [each.case for each in self.planned]

    @cached_property
    def missing(self) -> list[tuple[Case, int]]:
        """Runs that are missing, by case and seed."""
        return [
            (each.case, seed)
            for each in self.planned
            for seed in (self.experiment.seeds if each.case.task == "train" else (1,))
            if seed not in self._seeds(each)
        ]

    def file_name(self, figure: Figure) -> str:
        """Of a figure, without its suffix."""
        return f"{figure.name}-{re.sub(r'[^a-z0-9]+', '-', self.title.lower()).strip('-')}"

    @property
    def is_empty(self) -> bool:
        return not (self.findings.tables or self.missing)

    @property
    def command(self) -> str:
        """The command that makes the missing runs."""
        seeds = ",".join(str(seed) for seed in sorted({seed for _, seed in self.missing}))
        words = ["bert4rec", "reproduce", self.experiment.name, "--data", self.evidence.facts.name]
        words += ["--seeds", seeds] if seeds else []
        return shlex.join([*words, "--quick"] if self.evidence.quick else words)

    @cached_property
    def failures(self) -> list[str]:
        """The runs that failed, and why."""
        found = [(case, self.evidence.find(case, kind="failure")) for case in self.cases]
        return [f"{case.label}: {line['error']}" for case, failed in found if failed for line in failed.lines]

    @cached_property
    def runs(self) -> Table:
        """Seconds and device of every run. The whole time of a run that was resumed is unknown."""
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

    def _seeds(self, planned: PlannedRun) -> set[int]:
        """Seeds with everything that this experiment needs, or that failed."""
        case = planned.case
        found = [self.evidence.find(case, kind="speed" if case.task == "speed" else "result")]
        found += [
            self.evidence.find(case, **fields)
            for measure in planned.required
            for fields in case.measured_lines(measure)
        ]
        failed = self.evidence.find(case, kind="failure")
        return set.intersection(*map(_seeds_of, found)) | _seeds_of(failed)

    @property
    def in_short(self) -> str:
        """The verdicts, counted."""
        numbers = _count_words([cell.verdict for cell in self.findings.measured if cell.verdict])
        statements = _count_words([each.verdict for each in self.findings.statements])
        short = [cell.at_last_step for cell in self.findings.measured if cell.verdict == "not reproduced"]
        daggers = f" ({sum(short)} of them {DAGGER})" if any(short) else ""
        parts = [f"numbers: {numbers}{daggers}"] if numbers else []
        parts += [f"statements: {statements}"] if statements else []
        if self.missing:
            parts.append(f"missing runs: {len(self.missing)}")
        return "; ".join(parts) or ("nothing to compare" if self.findings.tables else "nothing to show")


@dataclass(frozen=True)
class Report:
    """All results, laid out."""

    results: Results
    sections: list[tuple[Experiment, list[Section]]]

    @property
    def surprises(self) -> list[tuple[Section, Statement]]:
        """What contradicts the paper, then what is not reproduced, then what the paper does not say."""
        order = ("contradiction", "not reproduced", "finding")
        found = [
            (section, statement)
            for _, sections in self.sections
            for section in sections
            for statement in section.findings.statements
            if statement.verdict in order
        ]
        return sorted(found, key=lambda each: order.index(each[1].verdict))

    def warnings(self, *, can_draw: bool) -> list[str]:
        """What a reader must know first."""
        found, warnings = self.results, []
        if found.quick:
            warnings.append(
                "Quick runs: a few training steps each, to see that everything works. The numbers mean nothing."
            )
        if found.left_out:
            warnings.append(
                f"{count(found.left_out, 'line')} of quick runs were found among the results and left out."
            )
        if found.without_ranks:
            warnings.append(
                f"The ranks of {count(found.without_ranks, 'result')} are missing. Differences that involve them are "
                "not paired user by user, so their intervals are wider and less can be decided."
            )
        if not can_draw:
            warnings.append(
                "There are no figures, because matplotlib is not installed: pip install 'bert4rec[report]'."
            )
        if not found.data:
            warnings.append("There are no results. To make some, see: bert4rec reproduce --help.")
        return warnings

    @property
    def has_figures(self) -> bool:
        return any(section.findings.figures for _, sections in self.sections for section in sections)

    @property
    def absent(self) -> dict[str, str]:
        """Data sets of the paper without results: title → the command that makes them."""
        there = {evidence.facts.name for evidence in self.results.data}
        return {
            title: f"bert4rec reproduce all --data {name}"
            for name, title in PAPER_NAMES.items()
            if name not in there
        }

    @property
    def scale(self) -> Table:
        """Speed and memory on synthetic data of the same shape, for data sets without results."""
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


@dataclass(frozen=True)
class ReportFiles:
    """What `report` has written."""

    page: Path
    """One HTML page that needs no other file."""
    text: Path
    """The same as Markdown."""
    figures: list[Path]
    """PNG and SVG files; empty without matplotlib."""
    warnings: list[str]
    """What a reader must know first."""


def report(results: str | Path = "results", output: str | Path = "report") -> ReportFiles:
    """Write a report of all results beside the paper's numbers: an HTML page, Markdown and figures.

    It needs neither the data nor a GPU. What is missing is listed, with the commands that make it.

    Parameters
    ----------
    results
        A folder that `reproduce` wrote to.
    output
        The folder to write to. An earlier report in it is replaced.
    """
    found = read_report(Path(results))
    if not found.results.data:
        raise NotFoundError(
            f"{results} has no results of tables or figures (*.jsonl). Make some first: "
            f'`bert4rec.paper.reproduce("table2", data="ml-1m", results="{results}")`.'
        )
    return write_report(found, Path(output))


def read_report(folder: Path) -> Report:
    """Everything in a folder of results, laid out, however much of it is there."""
    if not folder.is_dir():
        raise NotFoundError(f"{folder} not found; expected a folder of results.")
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
    """With a remark if others used it at the same time, so that seconds say little."""
    return str(line["device"]) + (", shared" if line.get("device_shared") else "")


def _seeds_of(found: SeedResults | None) -> set[int]:
    return {line["seed"] for line in found.lines} if found else set()


def _count_words(verdicts: list[Verdict]) -> str:
    """In the order of the rules, so that "not reproduced" is the last verdict on a number."""
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
    """With the split and the checksums if several data sets have the same name."""
    facts = evidence.facts
    if names[facts.title] == 1:
        return facts.title
    candidates = f", candidates {facts.candidates}" if facts.candidates else ""
    return f"{facts.title} ({facts.protocol}, data {facts.checksum}{candidates})"


def write_report(report: Report, folder: Path) -> ReportFiles:
    """Write the page, the Markdown and, if matplotlib is installed, the figures.

    Figures of an earlier report that are no longer needed are removed: those that its Markdown names, and no others.
    """
    from bert4rec.paper.reporting.report_figures import draw
    from bert4rec.paper.reporting.report_page import make_page
    from bert4rec.paper.reporting.report_text import make_text

    folder.mkdir(parents=True, exist_ok=True)
    page, text = folder / "report.html", folder / "report.md"
    earlier = text.read_text(encoding="utf-8", errors="replace") if text.is_file() else ""
    can_draw = not report.has_figures or _can_draw()
    pictures: dict[str, str] = {}
    written: list[Path] = []
    for _, sections in report.sections:
        for section in sections:
            for figure in section.findings.figures if can_draw else ():
                name = section.file_name(figure)
                paths, pictures[name] = draw(figure, folder / "figures" / name)
                written += paths
    for name in set(re.findall(r"\]\(figures/([^/)]+)\.png\)", earlier)) - pictures.keys():
        for ending in ("png", "svg"):
            (folder / "figures" / f"{name}.{ending}").unlink(missing_ok=True)
    page.write_text(make_page(report, pictures, can_draw=can_draw), encoding="utf-8")
    text.write_text(make_text(report, set(pictures), can_draw=can_draw), encoding="utf-8")
    return ReportFiles(page, text, written, report.warnings(can_draw=can_draw))


def _can_draw() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True
