"""The report as Markdown."""

from bert4rec.paper.reporting.layout import DAGGER_RULE, INTERVALS, RULES, Findings, Row, Table, text_of
from bert4rec.paper.reporting.report import NO_RESULTS, Report, Section


def make_text(report: Report, pictures: set[str], *, can_draw: bool) -> str:
    blocks = ["# The paper's tables and figures, re-run", *_head(report, can_draw=can_draw)]
    for experiment, parts in report.sections:
        blocks += [f"## {experiment.title}", experiment.about]
        for shown in parts:
            blocks += _part(shown, pictures)
    blocks += ["## What could not be run, and why", *_absent(report)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head(report: Report, *, can_draw: bool) -> list[str]:
    blocks = [f"**{warning}**" for warning in report.warnings(can_draw=can_draw)]
    rules = [f"- **{word}**: {rule}." for word, rule in RULES.items()]
    blocks += ["What the verdicts mean:", "\n".join(rules), INTERVALS]
    if report.surprises:
        blocks += ["## Where our numbers say otherwise, or more", surprise_list(report)]
    return [*blocks, "## In short", verdict_table(report)]


def surprise_list(report: Report) -> str:
    """What contradicts the paper, is not reproduced, or is new; and what its daggers mean."""
    lines = [
        f"- **{statement.verdict}** ({shown.title}, {shown.experiment.short_title}): {statement.text} {statement.told}"
        for shown, statement in report.surprises
    ]
    has_daggers = any(statement.is_marked for _, statement in report.surprises)
    return "\n".join([*lines, *(("", DAGGER_RULE) if has_daggers else ())])


def verdict_table(report: Report) -> str:
    """One row an experiment and data set: how many numbers and statements came out how."""
    rows = [
        Row(experiment.title, [shown.title, shown.in_short])
        for experiment, parts in report.sections
        for shown in parts
    ]
    return table_text(Table("", ["data set", "verdicts"], rows))


def part_text(part: Findings) -> str:
    """Statements and tables of one experiment on one data set."""
    statements = "\n".join(
        f"- **{statement.verdict}**: {statement.text} {statement.told}" for statement in part.statements
    )
    tables = [
        block
        for table in part.tables
        for block in (f"**{table.title}**" if table.title else "", table_text(table), table.note)
    ]
    return "\n\n".join(
        block for block in (statements, *tables, DAGGER_RULE if part.has_daggers else "") if block
    )


def _part(shown: Section, pictures: set[str]) -> list[str]:
    blocks = [f"### {shown.title}", part_text(shown.part)]
    for figure in shown.part.figures:
        name = shown.file_name(figure)
        if name in pictures:
            blocks.append(f"![{figure.caption}](figures/{name}.png)")
    blocks += _missing(shown)
    if shown.runs.rows:
        summary = "<summary>Runs: seconds and device</summary>"
        blocks.append(f"<details>{summary}\n\n{table_text(shown.runs)}\n\n</details>")
    return blocks


def _missing(shown: Section) -> list[str]:
    blocks = [f"Could not be run: {failure}" for failure in shown.failures]
    if shown.missing:
        blocks.append(f"Missing runs: {len(shown.missing)}. Make them with `{shown.command}`.")
    if shown.is_empty:
        blocks.append(f"Nothing is there yet. Make it with `{shown.command}`.")
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
