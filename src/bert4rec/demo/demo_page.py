"""The demo's report as one HTML page."""

from html import escape
from typing import TYPE_CHECKING

from bert4rec.pages import html_page

if TYPE_CHECKING:
    from bert4rec.demo.demo import Demo, Example

METRICS = ("NDCG@10", "HR@10", "HR@1", "MRR")
TABLES = {
    "full": ("Full ranking", "All items that are not in the visitor's history are candidates."),
    "sampled": (
        "The paper's protocol",
        "The true next item is ranked among 100 others, drawn by popularity.",
    ),
}
"""Protocol → title and explanation of its table."""


def make_page(demo: "Demo") -> str:
    """The whole page."""
    dataset = demo.dataset
    body = f"""
<h1>What comes next?</h1>
<p>A made-up shop with {dataset.num_users:,} visitors, {dataset.num_items:,} items and {dataset.num_actions:,} actions.
Each model sees a visitor's history and ranks all items by how likely they come next; the true next item is hidden.
Since the shop is made up, the <b>best possible</b> ranking is known: no model can beat it.</p>
<p>BERT4Rec+, which learns masked items and next items at once, is shown beside BERT4Rec and the baselines of its
paper. POP recommends the most popular items to everybody. BPR-MF and
NCF know the visitor, but not the order of the actions; the others use the order too. HR@10 is the share of visitors
whose next item is among the first ten; NDCG@10 and MRR also reward a place near the top.</p>
<p>BERT4Rec+ reaches <b>{demo.share_of_best:.0%}</b> of the best possible NDCG@10.</p>
{"".join(_table(demo, protocol) for protocol in TABLES)}
<h2>Three visitors</h2>
<p>The true next item is <span class="hit">marked</span> if a model found it.</p>
<div class="users">{"".join(map(_example, demo.examples))}</div>
<footer>Next: <code>bert4rec serve {escape(str(demo.model))}</code></footer>
"""
    return html_page("bert4rec demo", body)


def _table(demo: "Demo", protocol: str) -> str:
    title, text = TABLES[protocol]
    best = demo.best[protocol]["NDCG@10"]
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


def _example(example: "Example") -> str:
    def listed(titles: list[str]) -> str:
        marked = (
            f'<li class="hit">{escape(t)}</li>' if t == example.next_item else f"<li>{escape(t)}</li>"
            for t in titles
        )
        return f"<ol>{''.join(marked)}</ol>"

    history = "".join(f"<li>{escape(title)}</li>" for title in example.history)
    lists = "".join(f"<h4>{name}</h4>{listed(titles)}" for name, titles in example.recommended.items())
    return (
        f'<div class="user"><h3>{escape(example.user)}</h3><h4>Last actions, oldest first</h4><ol>{history}</ol>'
        f"<h4>True next item</h4><div>{escape(example.next_item)}</div>{lists}</div>"
    )
