"""The demo's report: one HTML file that needs nothing else, readable on a phone, in the dark and on paper."""

from html import escape
from pathlib import Path

from bert4rec.demo.demo import BEST, Demo, Example

METRICS = ("NDCG@10", "HR@10", "HR@1", "MRR")
PROTOCOLS = {
    "full": ("Full ranking", "Every item of the catalogue that the user has not had is a candidate."),
    "sampled": ("The paper's protocol", "The item that came next, among 100 others drawn by popularity."),
}
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --good: #2a9d5c; --bar: #4c78d0; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; }
p { margin: .4rem 0 1rem; max-width: 44rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .35rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.bar { display: inline-block; height: .7em; background: var(--bar); border-radius: 2px; vertical-align: middle; }
.users { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1rem; }
.user { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; break-inside: avoid; }
.user h3 { font-size: 1rem; margin: 0 0 .4rem; } .user h4 { font-size: .85rem; margin: .8rem 0 .2rem; }
ol { margin: 0; padding-left: 1.4rem; font-size: .92rem; }
.hit { color: var(--good); font-weight: 600; } li.hit::after { content: " ✓"; }
footer { margin-top: 3rem; font-size: .9rem; border-top: 1px solid var(--line); padding-top: 1rem; }
code { background: var(--soft); padding: .1em .3em; border-radius: 4px; }
"""


def write_page(demo: Demo, path: Path, *, next_command: str) -> None:
    """Write the report; `next_command` is what the reader is told to try next."""
    dataset = demo.dataset
    body = f"""
<h1>What comes next?</h1>
<p>A made-up shop with {dataset.num_users:,} visitors, {dataset.num_items:,} items and {dataset.num_actions:,} actions.
Each model sees what a visitor did and ranks what may come next; the visitor's true next item is hidden.
Since the shop is made up, the <b>best possible</b> ranking is known: no model can beat it.</p>
<p>BERT4Rec is shown beside the baselines of its paper. POP offers everybody the most popular items; BPR-MF and NCF
know who asks, but not in what order things happened; the others look at the order too. HR@10 is the share of
visitors whose next item is among the first ten; NDCG@10 and MRR also reward a place near the top.</p>
<p>BERT4Rec reaches <b>{demo.share_of_best:.0%}</b> of the best possible NDCG@10.</p>
{"".join(_table(demo, protocol) for protocol in PROTOCOLS)}
<h2>Three visitors</h2>
<p>The item that really came next is <span class="hit">marked</span> where a model found it.</p>
<div class="users">{"".join(map(_example, demo.examples))}</div>
<footer>Next: <code>{escape(next_command)}</code></footer>
"""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    page = f'<!doctype html><html lang="en">{head}<title>bert4rec demo</title><style>{STYLE}</style>{body}</html>\n'
    path.write_text(page, encoding="utf-8")


def _table(demo: Demo, protocol: str) -> str:
    title, text = PROTOCOLS[protocol]
    best = demo.metrics[BEST][protocol]["NDCG@10"]
    rows = []
    for name, by_protocol in demo.metrics.items():
        metrics = by_protocol[protocol]
        cells = "".join(f"<td>{metrics[metric]:.3f}</td>" for metric in METRICS)
        share = metrics["NDCG@10"] / best
        bar = f'<td style="text-align:left"><span class="bar" style="width:{6 * share:.2f}rem"></span> {share:.0%}</td>'
        rows.append(f"<tr><td>{name}</td>{bar}{cells}</tr>")
    heads = "".join(f"<th>{metric}</th>" for metric in METRICS)
    head = f'<tr><th></th><th style="text-align:left">share of the best</th>{heads}</tr>'
    return f'<h2>{title}</h2><p>{text}</p><div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _example(example: Example) -> str:
    def listed(titles: list[str]) -> str:
        marked = (
            f'<li class="hit">{escape(t)}</li>' if t == example.next_item else f"<li>{escape(t)}</li>"
            for t in titles
        )
        return f"<ol>{''.join(marked)}</ol>"

    history = "".join(f"<li>{escape(title)}</li>" for title in example.history)
    lists = "".join(f"<h4>{name}</h4>{listed(titles)}" for name, titles in example.recommended.items())
    return (
        f'<div class="user"><h3>{escape(example.user)}</h3><h4>Latest actions, oldest first</h4><ol>{history}</ol>'
        f"<h4>Came next</h4><div>{escape(example.next_item)}</div>{lists}</div>"
    )
