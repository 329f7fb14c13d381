"""HTML pages that need no other file and suit phones, dark mode and paper."""

from html import escape

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --good: #2a9d5c; --bar: #4c78d0; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; }
p { margin: .4rem 0 1rem; max-width: 44rem; }
/* A shadow at the edge behind which there is more; at the very end, what scrolls along covers it. */
.wide { overflow-x: auto; background: linear-gradient(to right, Canvas 40%, transparent) left / 2.5rem 100% local,
  linear-gradient(to left, Canvas 40%, transparent) right / 2.5rem 100% local,
  linear-gradient(to right, #8889, transparent) left / 1rem 100% scroll,
  linear-gradient(to left, #8889, transparent) right / 1rem 100% scroll; background-repeat: no-repeat; }
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


def html_page(title: str, body: str, style: str = "") -> str:
    """A whole page around `body`, which is HTML. `style` is added to the common style."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{STYLE}{style}</style>"
    return f'<!doctype html><html lang="en">{head}{body}</html>\n'
