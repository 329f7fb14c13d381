"""The report as Markdown."""

from bert4rec.paper.reporting.layout import DAGGER_RULE, INTERVALS, RULES, Findings, Row, Table, text_of
from bert4rec.paper.reporting.report import NO_RESULTS, Report, Section


def make_text(report: Report, pictures: set[str], *, can_draw: bool) -> str:
    blocks = ["# The paper's tables and figures, reproduced", *_head(report, can_draw=can_draw)]
    for experiment, sections in report.sections:
        blocks += [f"## {experiment.title}", experiment.about]
        for section in sections:
            blocks += _section(section, pictures)
    blocks += ["## Data sets without results", *_absent(report)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head(report: Report, *, can_draw: bool) -> list[str]:
    blocks = [f"**{warning}**" for warning in report.warnings(can_draw=can_draw)]
    rules = [f"- **{word}**: {rule}." for word, rule in RULES.items()]
    blocks += ["What the verdicts mean:", "\n".join(rules), INTERVALS]
    if report.surprises:
        blocks += ["## Where our results differ from the paper, or add to it", surprise_list(report)]
    return [*blocks, "## In short", verdict_table(report)]


def surprise_list(report: Report) -> str:
    """What contradicts the paper, is not reproduced, or is new; and what the daggers mean."""
    lines = [
        f"- **{statement.verdict}** ({section.title}, {section.experiment.short_title}): "
        f"{statement.text} {statement.marked_evidence}"
        for section, statement in report.surprises
    ]
    has_daggers = any(statement.is_marked for _, statement in report.surprises)
    return "\n".join([*lines, *(("", DAGGER_RULE) if has_daggers else ())])


def verdict_table(report: Report) -> str:
    """A row for each experiment and data set: how many numbers and statements have which verdict."""
    rows = [
        Row(experiment.title, [section.title, section.in_short])
        for experiment, sections in report.sections
        for section in sections
    ]
    return table_text(Table("", ["data set", "verdicts"], rows))


def findings_text(findings: Findings) -> str:
    """Statements and tables of one experiment on one data set."""
    statements = "\n".join(
        f"- **{statement.verdict}**: {statement.text} {statement.marked_evidence}"
        for statement in findings.statements
    )
    tables = [
        block
        for table in findings.tables
        for block in (f"**{table.title}**" if table.title else "", table_text(table), table.note)
    ]
    return "\n\n".join(
        block for block in (statements, *tables, DAGGER_RULE if findings.has_daggers else "") if block
    )


def _section(section: Section, pictures: set[str]) -> list[str]:
    blocks = [f"### {section.title}", findings_text(section.findings)]
    for figure in section.findings.figures:
        name = section.file_name(figure)
        if name in pictures:
            blocks.append(f"![{figure.caption}](figures/{name}.png)")
    blocks += _missing(section)
    if section.runs.rows:
        summary = "<summary>Runs: seconds and device</summary>"
        blocks.append(f"<details>{summary}\n\n{table_text(section.runs)}\n\n</details>")
    return blocks


def _missing(section: Section) -> list[str]:
    blocks = [f"Failed: {failure}" for failure in section.failures]
    if section.missing:
        blocks.append(f"Missing runs: {len(section.missing)}. Make them with `{section.command}`.")
    if section.is_empty:
        blocks.append(f"There are no results yet. Make them with `{section.command}`.")
    return blocks


def _absent(report: Report) -> list[str]:
    blocks = [f"- **{title}**: {NO_RESULTS}: `{command}`." for title, command in report.absent.items()]
    if report.scale.rows:
        blocks += [f"**{report.scale.title}**", table_text(report.scale)]
    return blocks


def table_text(table: Table) -> str:
    rows = [
        f"| {' | '.join([table.corner, *table.columns])} |",
        "|" + "---|" * (len(table.columns) + 1),
        *(f"| {' | '.join([_label(row), *map(text_of, row.cells)])} |" for row in table.rows),
    ]
    return "\n".join(rows)


def _label(row: Row) -> str:
    return f"*{row.label}*" if row.beyond else row.label
