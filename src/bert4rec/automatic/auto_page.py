"""The page about one's own log: what is in it, how the models learned, which is the best, what it recommends."""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from html import escape

from bert4rec import __version__
from bert4rec.automatic.auto_folder import AutoFolder
from bert4rec.automatic.findings import METRIC, Example, Findings
from bert4rec.automatic.line_chart import STYLE as CHART_STYLE
from bert4rec.automatic.line_chart import line_chart
from bert4rec.pages import html_page
from bert4rec.training.reporting.advice import Standing, tell_of_restart

MARKOV = "Markov chain"
_HIT = ' class="hit"'
STYLE = (
    CHART_STYLE
    + """
.answer { font-size: 1.15rem; border-left: 4px solid var(--line); padding-left: .8rem; max-width: 50rem; }
.answer.good { border-color: var(--good); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem; margin: 0 0 1rem; }
.facts div { border: 1px solid var(--line); border-radius: 8px; padding: .5rem .8rem; }
.facts dt { font-size: .85rem; opacity: .75; } .facts dd { margin: 0; font-size: 1.15rem; }
.wide + .wide { margin-top: 1.2rem; } .few { width: auto; } .few :last-child { text-align: left; }
.few .bar { width: calc(min(10rem, 25vw) * var(--share)); }
th { white-space: normal; vertical-align: bottom; }
.notes { padding-left: 1.2rem; max-width: 50rem; font-size: .92rem; }
tr.served td { font-weight: 600; }
pre { background: var(--soft); padding: .6rem .8rem; border-radius: 8px; margin: .3rem 0 1rem; white-space: pre-wrap; }
pre code { background: none; padding: 0; overflow-wrap: anywhere; }
.users { grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
.lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(7rem, 1fr)); gap: 0 1rem; }
h1, .user { overflow-wrap: anywhere; }
@media (max-width: 30rem) { th, td { padding: .35rem .4rem; } }
"""
)


def make_page(found: Findings, folder: AutoFolder, wording: Callable[[str], str]) -> str:
    """The whole page. Whatever comes from the log is escaped."""
    name = found.dataset.name
    body = f"""
<h1>What comes next in {escape(name)}?</h1>
<p class="{"answer good" if found.is_better else "answer"}">{escape(found.sentence)}</p>
{_data(found, wording)}
{_training(found, wording)}
{_comparison(found)}
{_slices(found)}
{_users(found)}
{_next(found, folder)}
<footer>Written by bert4rec {escape(__version__)} after {_minutes(sum(folder.seconds.values()))}. The page shows what
some users of the log did: give it to nobody who may not see that.</footer>
"""
    return html_page(f"{name}: what comes next", body, STYLE)


def _data(found: Findings, wording: Callable[[str], str]) -> str:
    known = found.dataset.statistics()
    facts = {
        "users": f"{known['users']:,}",
        "items": f"{known['items']:,}",
        "actions": f"{known['actions']:,}",
        "actions of a user": f"{known['shortest_length']:,} to {known['longest_length']:,}, "
        f"half have at most {known['median_length']:g}",
        "repeats": f"{known['repeats']:,} ({'kept' if known['repeat_rule'] == 'keep' else 'excluded'})",
    }
    if known["first_day"]:
        facts["from, to"] = f"{known['first_day']}, {known['last_day']}"
    boxes = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in facts.items())
    rows = [
        [f"top {share}", f'<span class="bar" style="--share: {part:.3f}"></span> {part:.1%}']
        for share, part in known["popularity"].items()
        if share != "100.0%"
    ]
    notes = [_code(wording(note)) for note in found.dataset.notes]
    notes += [f"<b>Warning:</b> {_code(wording(each))}" for each in found.dataset.warnings()]
    popular = _table(["most popular items", "their share of all actions"], rows, few=True)
    return f'<h2>The data</h2><dl class="facts">{boxes}</dl>{popular}{_list(notes)}'


def _training(found: Findings, wording: Callable[[str], str]) -> str:
    curves = {title: curve for title in found.runs if (curve := found.curve(title))}
    levels, chosen, notes = found.standing, [], []
    for title, curve in curves.items():
        run = found.runs[title]
        steps, width = run.result["lines"][0]["steps"], run.plan.config.model.width
        best, asked = max(value for _, value in curve), run.result["lines"][0]["asked"]
        # The curve was drawn before the best way of asking was looked for.
        final = f", {found.validation(title):.4f} asked by {next(iter(asked))}, the best way" if asked else ""
        chosen.append(f"{title} (width {width}): {best:.4f} after {steps:,} steps, as in the chart{final}")
        told = [tell_of_restart(each) for each in run.result["lines"][-1]["restarts"]]
        standing = Standing(**run.result["standing"])
        told += [str(standing)] if standing.hint else []
        notes += [f"{escape(title)}: {_code(wording(each))}" for each in told]
    metric, _, protocol = str(found.criterion).partition(":")
    mean = (
        f", the geometric mean of {metric} among 101 candidates and among all items"
        if protocol == "both"
        else ""
    )
    chart = line_chart(
        curves,
        {MARKOV: levels["following"], found.popular: levels["popular"]},
        x_label="steps",
        y_label=f"{found.criterion} on the validation items",
    )
    return (
        "<h2>How the models learned</h2><p>The number of steps and the model to serve are chosen on the validation "
        f"items, by {found.criterion}{mean}. {escape('; '.join(chosen))}.</p>{chart}{_list(notes)}"
    )


def _comparison(found: Findings) -> str:
    rows = [_metric_cells(title, found.metrics(title), _interval(found, title)) for title in found.runs]
    rows.insert(-1, _metric_cells(MARKOV, found.markov, "–"))
    heads = ["", "HR@10", METRIC, f"above {found.popular}, 95% interval", "HR@10 of 101", f"{METRIC} of 101"]
    served = None if found.is_behind_counting else list(found.runs).index(found.served)
    sentences = _list(escape(each) for each in found.comparison.sentences)
    return (
        "<h2>Which model is the best?</h2><p>On the test items, which were looked at once. HR@10 is the share of users "
        f"whose next item is among the first ten of all items; {METRIC} also rewards a place near the top. “Of 101”: "
        f"ranked among up to 100 others, drawn by popularity, as in the paper. {found.popular} recommends the most "
        f"popular items to everybody, the {MARKOV} what most often followed the last item.</p>"
        f"{_table(heads, rows, marked=served)}{sentences}<p>What was exported is {escape(found.served)}, trained once "
        "more on everything, the test items included, so that it knows the newest actions.</p>"
    )


def _metric_cells(title: str, metrics: dict[str, dict[str, float]], interval: str) -> list[str]:
    full, sampled = metrics["full"], metrics["sampled"]
    of_all, of_some = ([f"{each[name]:.4f}" for name in ("HR@10", METRIC)] for each in (full, sampled))
    return [escape(title), *of_all, interval, *of_some]


def _interval(found: Findings, title: str) -> str:
    each = found.difference(title)
    return f"{each.total.difference:+.4f} [{each.total.low:+.4f}, {each.total.high:+.4f}]" if each else "–"


def _slices(found: Findings) -> str:
    """One metric, so that models stand side by side."""
    by_model = {title: found.slices(title)["full"] for title in found.runs}
    parts = []
    for kind, label in (
        ("activity", "By the length of the history"),
        ("popularity", "By how often the next item was seen"),
    ):
        rows = []
        for same in zip(*(each[kind] for each in by_model.values()), strict=True):
            values = [each["metrics"]["HR@10"] for each in same]
            rows.append(
                [escape(same[0]["label"]), f"{same[0]['users']:,}", *(f"{value:.1%}" for value in values)]
            )
        parts.append(_table([label, "users", *by_model], rows))
    return (
        "<h2>For whom, and for which items?</h2><p>The share of users whose next item is among the first ten of all "
        f"items (HR@10).</p>{''.join(parts)}"
    )


def _users(found: Findings) -> str:
    cards = "".join(_user(each, found.names) for each in found.examples)
    return (
        "<h2>A few users</h2><p>Drawn at random. The true next item, which no model had seen, is "
        f'<span class="hit">marked</span> where a model recommends it.</p><div class="users">{cards}</div>'
    )


def _user(example: Example, names: Sequence[str]) -> str:
    def listed(numbers: Iterable[int], sought: int | None = None) -> str:
        items = (f"<li{_HIT if number == sought else ''}>{escape(names[number])}</li>" for number in numbers)
        return f"<ol>{''.join(items)}</ol>"

    lists = "".join(
        f"<div><h4>{escape(title)}</h4>{listed(numbers, example.next_item)}</div>"
        for title, numbers in example.recommended.items()
    )
    return (
        f'<div class="user"><h3>User {escape(example.user)}</h3><h4>Last actions, oldest first</h4>'
        f"{listed(example.history)}<h4>True next item</h4><div>{escape(names[example.next_item])}</div>"
        f'<div class="lists">{lists}</div></div>'
    )


def _next(found: Findings, folder: AutoFolder) -> str:
    model, dataset, run = folder.model, found.dataset.folder, found.runs[found.served]
    store = folder.path / "history.db"
    commands = {
        "Serve the model, and look at it at http://127.0.0.1:8000": ["serve", model],
        "Serve it so that it knows the users of the log": ["serve", model, "--history", dataset],
        "Recommend to all users of the log": [
            "recommend",
            model,
            "--input",
            dataset,
            "-o",
            folder.path / "recommendations.parquet",
        ],
        "Look for better settings, for an hour": [
            "tune",
            dataset,
            "-o",
            folder.path / "tuned",
            "--model",
            run.model,
            "--minutes",
            "60",
        ],
        "See more of what the numbers say": ["evaluate", run.path],
        "Begin a store with what the users of the log did, for the service to add to": [
            "store",
            "import",
            store,
            dataset,
        ],
        "Train the next model on what the store holds by then, every night": [
            "refresh",
            store,
            "-o",
            folder.path / "next",
        ],
    }
    told = "".join(
        f"<p>{label}:</p><pre><code>{escape(shlex.join(map(str, ['bert4rec', *words])))}</code></pre>"
        for label, words in commands.items()
    )
    return f"<h2>What to do next</h2>{told}<p>The guide “In production” goes round the whole circle.</p>"


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, marked: int | None = None, few: bool = False
) -> str:
    """`heads` and `rows` are HTML; one row may be marked, and one with `few` columns is as narrow as they are."""
    head = "".join(f"<th>{each}</th>" for each in heads)
    classes = (' class="served"' if number == marked else "" for number in range(len(rows)))
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    lines = (f"<tr{each}>{row}</tr>" for each, row in zip(classes, cells, strict=True))
    narrow = ' class="few"' if few else ""
    return f'<div class="wide"><table{narrow}><tr>{head}</tr>{"".join(lines)}</table></div>'


def _list(entries: Iterable[str]) -> str:
    items = "".join(f"<li>{each}</li>" for each in entries)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _code(text: str) -> str:
    """Escaped, with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
