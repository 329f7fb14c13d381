"""The report as one HTML page that needs no other file and suits phones, dark mode and paper."""

from html import escape

from bert4rec.pages import html_page
from bert4rec.paper.reporting.layout import (
    DAGGER,
    DAGGER_RULE,
    INTERVALS,
    RULES,
    Cell,
    Measured,
    Row,
    Statement,
    Table,
    percent,
)
from bert4rec.paper.reporting.report import NO_RESULTS, Report, Section, count

STYLE = """
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
.beyond { font-style: italic; } tr.line > * { border-top: 2px solid var(--line); }
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
    """The page; `pictures` are SVG texts by name."""
    codes = report.results.code_versions
    links = "".join(f'<a href="#{each.name}">{escape(each.title)}</a>' for each, _ in report.sections)
    sections = "".join(
        f'<section id="{experiment.name}"><h2>{escape(experiment.title)}</h2><p>{escape(experiment.about)}</p>'
        + "".join(_section(section, pictures) for section in sections)
        + "</section>"
        for experiment, sections in report.sections
    )
    warnings = "".join(
        f'<div class="box warning">{escape(each)}</div>' for each in report.warnings(can_draw=can_draw)
    )
    body = f"""
<h1>The paper's tables and figures, reproduced</h1>
<p>Sun et al., <i>BERT4Rec</i>, CIKM 2019: every table and figure, ours beside the paper's.
Settings are chosen on the validation items. Models are then refitted on all but the test items and tested once.</p>
{warnings}{_surprises(report)}
<nav>{links}<a href="#absent">Data sets without results</a></nav>
{_overview(report)}{_rules()}{sections}{_absent(report)}
<footer>Made by <code>bert4rec report {escape(report.results.folder.name)}</code> from results of
{count(len(codes), "version")} of the code{": " if codes else ""}{", ".join(codes)}.</footer>
"""
    return html_page("BERT4Rec, reproduced", body, STYLE)


def _surprises(report: Report) -> str:
    if not report.surprises:
        return ""
    items = "".join(
        f'<li>{_word(statement.verdict)} <a href="#{section.experiment.name}">{escape(section.title)}, '
        f"{escape(section.experiment.short_title)}</a>: <b>{escape(statement.text)}</b> "
        f"{escape(statement.marked_evidence)}</li>"
        for section, statement in report.surprises
    )
    daggers = _legend(any(statement.is_marked for _, statement in report.surprises))
    title = "<h2>Where our results differ from the paper, or add to it</h2>"
    return f'<div class="box">{title}<ul>{items}</ul>{daggers}</div>'


def _overview(report: Report) -> str:
    rows = "".join(
        f"<tr>{_first(section, sections)}"
        f'<td class="words">{escape(section.title)}</td><td class="words">{escape(section.in_short)}</td></tr>'
        for _, sections in report.sections
        for section in sections
    )
    head = '<thead><tr><th></th><th class="words">data set</th><th class="words">verdicts</th></tr></thead>'
    return f'<h2>In short</h2><div class="wide"><table>{head}{rows}</table></div>' if rows else ""


def _first(section: Section, sections: list[Section]) -> str:
    """The experiment's name, once for all its data sets."""
    if section is not sections[0]:
        return ""
    link = f'<a href="#{section.experiment.name}">{escape(section.experiment.title)}</a>'
    return f'<th scope="rowgroup" rowspan="{len(sections)}">{link}</th>'


def _rules() -> str:
    rules = "".join(
        f'<dt class="{_class(word)}">{word}</dt><dd>{escape(rule)}.</dd>' for word, rule in RULES.items()
    )
    return (
        f'<div class="box rules"><h2>What the verdicts mean</h2><dl>{rules}</dl><p>{escape(INTERVALS)} '
        "Rows in <i>italics</i> are not in the paper.</p></div>"
    )


def _section(section: Section, pictures: dict[str, str]) -> str:
    findings = section.findings
    statements = "".join(map(_statement, findings.statements))
    figures = "".join(
        f'<figure><div class="wide">{pictures[name]}</div><figcaption>{escape(figure.caption)}</figcaption></figure>'
        for figure in findings.figures
        if (name := section.file_name(figure)) in pictures
    )
    tables = "".join(map(_table, findings.tables))
    runs = (
        f"<details><summary>Runs: seconds and device</summary>{_table(section.runs)}</details>"
        if section.runs.rows
        else ""
    )
    listed = f"<ul>{statements}</ul>" if statements else ""
    content = f"{listed}{figures}{tables}{_legend(findings.has_daggers)}{_missing(section)}{runs}"
    return f"<h3>{escape(section.title)}</h3>{content}"


def _legend(has_daggers: bool) -> str:
    return f'<p class="legend">{escape(DAGGER_RULE)}</p>' if has_daggers else ""


def _statement(statement: Statement) -> str:
    return f"<li>{_word(statement.verdict)} <b>{escape(statement.text)}</b> {escape(statement.marked_evidence)}</li>"


def _missing(section: Section) -> str:
    blocks = [f"<p>Failed: {escape(failure)}</p>" for failure in section.failures]
    if section.missing:
        runs = count(len(section.missing), "run")
        blocks.append(f"<p>{runs} missing. Make them with <code>{escape(section.command)}</code>.</p>")
    if section.is_empty:
        blocks.append(
            f"<p>There are no results yet. Make them with <code>{escape(section.command)}</code>.</p>"
        )
    return "".join(blocks)


def _absent(report: Report) -> str:
    items = "".join(
        f"<li><b>{escape(title)}</b>: {escape(NO_RESULTS)}: <code>{escape(command)}</code>.</li>"
        for title, command in report.absent.items()
    )
    scale = _table(report.scale) if report.scale.rows else ""
    listed = f"<ul>{items}</ul>" if items else "<p>All four data sets of the paper have results.</p>"
    return f'<section id="absent"><h2>Data sets without results</h2>{listed}{scale}</section>'


def _table(table: Table) -> str:
    title = f"<h4>{escape(table.title)}</h4>" if table.title else ""
    heads = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    line = _first_below(table)
    rows = "".join(
        f'<tr{_class_if(row is line, "line")}><th scope="row"{_class_if(row.beyond, "beyond")}>{escape(row.label)}</th>'
        f"{''.join(map(_cell, row.cells))}</tr>"
        for row in table.rows
    )
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    head = f"<thead><tr><th>{escape(table.corner)}</th>{heads}</tr></thead>"
    return f'{title}<div class="wide"><table>{head}{rows}</table></div>{note}'


def _first_below(table: Table) -> Row | None:
    """Where the paper's rows end, if all that are not in the paper stand below them."""
    count = sum(row.beyond for row in table.rows)
    below = table.rows[len(table.rows) - count :]
    return below[0] if 0 < count < len(table.rows) and all(row.beyond for row in below) else None


def _class_if(condition: bool, name: str) -> str:
    return f' class="{name}"' if condition else ""


def _cell(cell: Cell) -> str:
    if cell is None:
        return "<td>–</td>"
    if isinstance(cell, str):
        return (
            f'<td class="{_class(cell)}">{escape(cell)}</td>' if cell in RULES else f"<td>{escape(cell)}</td>"
        )
    return f"<td>{_measured(cell)}</td>"


def _measured(cell: Measured) -> str:
    """Our number with its interval, and below it the paper's, the difference and the verdict."""
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
