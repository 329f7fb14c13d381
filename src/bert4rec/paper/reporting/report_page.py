"""The report as one HTML page that needs nothing else: light, dark, on a phone, on paper."""

from html import escape

from bert4rec.demo.demo_page import STYLE
from bert4rec.paper.reporting.layout import (
    DAGGER,
    DAGGER_RULE,
    INTERVALS,
    RULES,
    Cell,
    Measured,
    Statement,
    Table,
    percent,
)
from bert4rec.paper.reporting.report import NO_RESULTS, Report, Section, count

MORE_STYLE = """
:root { --good: #1d7f49; --bad: #b3362b; --open: #7a6a1c; --new: #2f62b8; --back: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --good: #5cc98c; --bad: #f0867b; --open: #d8c25a; --new: #86aef5; --back: #121212; }
}
body { max-width: 76rem; background: var(--back); }
table { width: auto; }
h3 { font-size: 1.08rem; margin: 1.8rem 0 .3rem; } h4 { font-size: .95rem; margin: 1.2rem 0 .3rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem .9rem; margin: 1rem 0 1.5rem; font-size: .92rem; }
a { color: var(--new); }
td, th { vertical-align: top; padding: .3rem .5rem; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; white-space: normal; }
th[scope=row], th[scope=rowgroup] { text-align: left; font-weight: 500; }
th[scope=row] { white-space: nowrap; }
th.words, td.words { text-align: left; white-space: normal; min-width: 9rem; }
td small { display: block; font-size: .74em; line-height: 1.3; } td .quiet { opacity: .75; }
td .spread { font-size: .85em; }
.wide { margin: .3rem 0 1rem; }
.wide th[scope=row] { position: sticky; left: 0; background: var(--back); }
.better, .reproduced { color: var(--good); } .not-reproduced, .contradiction { color: var(--bad); }
.undecided { color: var(--open); } .finding { color: var(--new); }
.word { font-weight: 600; white-space: nowrap; }
.beyond { font-style: italic; }
.box { border: 1px solid var(--line); border-left: 5px solid var(--bad); border-radius: 6px; }
.box { padding: .6rem 1rem; margin: 1rem 0; }
.box.warning { border-left-color: var(--open); } .box.rules { border-left-color: var(--line); }
.box h2 { margin: .2rem 0 .4rem; font-size: 1.15rem; }
ul { padding-left: 1.2rem; margin: .3rem 0 .8rem; } li { margin: .35rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem .9rem; margin: .4rem 0; }
dt { font-weight: 600; } dd { margin: 0; }
.legend { font-size: .9rem; opacity: .85; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; max-width: 44rem; opacity: .85; }
figure svg { display: block; max-width: 100%; height: auto; }
details { margin: .6rem 0; } summary { cursor: pointer; font-size: .92rem; }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; } figure svg { max-width: none; }
  th[scope=row] { white-space: normal; min-width: 5.5rem; } td, th { padding: .3rem .35rem; }
}
@media print {
  :root { --back: #fff; --line: #bbb; font-size: 11px; } body { max-width: none; font-size: 11px; padding: 0; }
  nav { display: none; } .wide { overflow: visible; } td, th { padding: .15rem .3rem; }
  th[scope=row] { white-space: normal; }
  tr, figure, .box { break-inside: avoid; } h2, h3, h4 { break-after: avoid; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
}
"""


def make_page(report: Report, pictures: dict[str, str], *, can_draw: bool) -> str:
    """`pictures` are SVG, by name."""
    codes = report.results.code_versions
    links = "".join(f'<a href="#{each.name}">{escape(each.title)}</a>' for each, _ in report.sections)
    sections = "".join(
        f'<section id="{experiment.name}"><h2>{escape(experiment.title)}</h2><p>{escape(experiment.about)}</p>'
        + "".join(_part(shown, pictures) for shown in parts)
        + "</section>"
        for experiment, parts in report.sections
    )
    warnings = "".join(
        f'<div class="box warning">{escape(each)}</div>' for each in report.warnings(can_draw=can_draw)
    )
    body = f"""
<h1>The paper's tables and figures, re-run</h1>
<p>Sun et al., <i>BERT4Rec</i>, CIKM 2019: every table and figure that could be run, ours beside the paper's.
Settings are chosen on the validation items, and models are refitted on all but the test items, on which no
choice depends.</p>
{warnings}{_surprises(report)}
<nav>{links}<a href="#absent">What could not be run</a></nav>
{_overview(report)}{_rules()}{sections}{_absent(report)}
<footer>Made by <code>bert4rec report {escape(report.results.folder.name)}</code> from results of
{count(len(codes), "version")} of the code{": " if codes else ""}{", ".join(codes)}.</footer>
"""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    style = f"<style>{STYLE}{MORE_STYLE}</style>"
    return f'<!doctype html><html lang="en">{head}<title>BERT4Rec, re-run</title>{style}{body}</html>\n'


def _surprises(report: Report) -> str:
    if not report.surprises:
        return ""
    items = "".join(
        f'<li>{_word(statement.verdict)} <a href="#{shown.experiment.name}">{escape(shown.title)}, '
        f"{escape(shown.experiment.short_title)}</a>: <b>{escape(statement.text)}</b> {escape(statement.told)}</li>"
        for shown, statement in report.surprises
    )
    daggers = _legend(any(statement.is_marked for _, statement in report.surprises))
    return (
        f'<div class="box"><h2>Where our numbers say otherwise, or more</h2><ul>{items}</ul>{daggers}</div>'
    )


def _overview(report: Report) -> str:
    rows = "".join(
        f"<tr>{_first(shown, parts)}"
        f'<td class="words">{escape(shown.title)}</td><td class="words">{escape(shown.in_short)}</td></tr>'
        for _, parts in report.sections
        for shown in parts
    )
    head = '<thead><tr><th></th><th class="words">data set</th><th class="words">verdicts</th></tr></thead>'
    return f'<h2>In short</h2><div class="wide"><table>{head}{rows}</table></div>' if rows else ""


def _first(shown: Section, parts: list[Section]) -> str:
    """The experiment's name, once for all its data sets."""
    if shown is not parts[0]:
        return ""
    link = f'<a href="#{shown.experiment.name}">{escape(shown.experiment.title)}</a>'
    return f'<th scope="rowgroup" rowspan="{len(parts)}">{link}</th>'


def _rules() -> str:
    rules = "".join(
        f'<dt class="{_class(word)}">{word}</dt><dd>{escape(rule)}.</dd>' for word, rule in RULES.items()
    )
    return (
        f'<div class="box rules"><h2>What the verdicts mean</h2><dl>{rules}</dl><p>{escape(INTERVALS)} '
        "Rows in <i>italics</i> are not in the paper.</p></div>"
    )


def _part(shown: Section, pictures: dict[str, str]) -> str:
    part = shown.part
    statements = "".join(map(_statement, part.statements))
    figures = "".join(
        f'<figure><div class="wide">{pictures[name]}</div><figcaption>{escape(figure.caption)}</figcaption></figure>'
        for figure in part.figures
        if (name := shown.file_name(figure)) in pictures
    )
    tables = "".join(map(_table, part.tables))
    runs = (
        f"<details><summary>Runs: seconds and device</summary>{_table(shown.runs)}</details>"
        if shown.runs.rows
        else ""
    )
    listed = f"<ul>{statements}</ul>" if statements else ""
    told = f"{listed}{figures}{tables}{_legend(part.has_daggers)}{_missing(shown)}{runs}"
    return f"<h3>{escape(shown.title)}</h3>{told}"


def _legend(has_daggers: bool) -> str:
    return f'<p class="legend">{escape(DAGGER_RULE)}</p>' if has_daggers else ""


def _statement(statement: Statement) -> str:
    return f"<li>{_word(statement.verdict)} <b>{escape(statement.text)}</b> {escape(statement.told)}</li>"


def _missing(shown: Section) -> str:
    told = [f"<p>Could not be run: {escape(failure)}</p>" for failure in shown.failures]
    if shown.missing:
        runs = count(len(shown.missing), "run")
        told.append(f"<p>{runs} missing. Make them with <code>{escape(shown.command)}</code>.</p>")
    if shown.is_empty:
        told.append(f"<p>Nothing is there yet. Make it with <code>{escape(shown.command)}</code>.</p>")
    return "".join(told)


def _absent(report: Report) -> str:
    items = "".join(
        f"<li><b>{escape(title)}</b>: {escape(NO_RESULTS)}: <code>{escape(command)}</code>.</li>"
        for title, command in report.absent.items()
    )
    scale = _table(report.scale) if report.scale.rows else ""
    listed = f"<ul>{items}</ul>" if items else "<p>All four data sets of the paper have results.</p>"
    return f'<section id="absent"><h2>What could not be run, and why</h2>{listed}{scale}</section>'


def _table(table: Table) -> str:
    title = f"<h4>{escape(table.title)}</h4>" if table.title else ""
    heads = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(
        f'<tr><th scope="row"{_beyond(row.beyond)}>{escape(row.label)}</th>{"".join(map(_cell, row.cells))}</tr>'
        for row in table.rows
    )
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    head = f"<thead><tr><th>{escape(table.corner)}</th>{heads}</tr></thead>"
    return f'{title}<div class="wide"><table>{head}{rows}</table></div>{note}'


def _beyond(beyond: bool) -> str:
    return ' class="beyond"' if beyond else ""


def _cell(cell: Cell) -> str:
    if cell is None:
        return "<td>–</td>"
    if isinstance(cell, str):
        return (
            f'<td class="{_class(cell)}">{escape(cell)}</td>' if cell in RULES else f"<td>{escape(cell)}</td>"
        )
    return f"<td>{_measured(cell)}</td>"


def _measured(cell: Measured) -> str:
    """Ours, its interval, and below it the paper's, the difference and the verdict."""
    half = (cell.high - cell.low) / 2 if cell.low is not None and cell.high is not None else None
    text = f"<b>{cell.value:.4f}</b>" + (
        f' <span class="spread">± {half:.4f}</span>' if half is not None else ""
    )
    if cell.at_last_step:
        text += f"&nbsp;{DAGGER}"
    if cell.difference is None or cell.verdict is None:
        return text
    return (
        f'{text}<small class="quiet">paper {cell.paper:.4f}, {percent(cell.difference)}</small>'
        f'<small class="{_class(cell.verdict)}">{cell.verdict}</small>'
    )


def _word(verdict: str) -> str:
    return f'<span class="word {_class(verdict)}">{verdict}:</span>'


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")
