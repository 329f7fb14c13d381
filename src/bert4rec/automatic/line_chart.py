"""Curves as SVG inside a page: in the page's colours, light or dark, at any width, without a library."""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 30, 12, 40
"""Margins, for the numbers at the axes."""


def line_chart(
    curves: Mapping[str, Points], levels: Mapping[str, float], *, x_label: str, y_label: str
) -> str:
    """A figure of curves, of levels as dashed lines across it, and a legend; `curves` have a point at least."""
    known = [point for points in curves.values() for point in points]
    x_ticks = _ticks(0, max(x for x, _ in known))
    values = [*(y for _, y in known), *levels.values()]
    y_ticks = _ticks(min(0.0, *values), max(values))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in y_ticks:
        x, y = place(x_ticks[0], value)
        parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in x_ticks:
        x, y = place(value, y_ticks[0])
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{value:,.9g}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    legend = []
    for number, (name, points) in enumerate(curves.items()):
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
        best = max(points, key=lambda point: point[1])
        x, y = place(*best)
        parts.append(f'<polyline class="curve line-{number}" points="{path}"/>')
        parts.append(
            f'<circle class="line-{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>best: {best[1]:.4f}</title></circle>'
        )
        legend.append(f'<span class="key line-{number}"></span>{escape(name)}')
    for number, (name, value) in enumerate(levels.items(), len(curves)):
        y = place(0, value)[1]
        parts.append(f'<path class="level line-{number}" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        legend.append(f'<span class="key level line-{number}"></span>{escape(name)}')
    drawn = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)}">{"".join(parts)}</svg>'
    keys = "".join(f"<span>{each}</span>" for each in legend)
    return f'<figure><figcaption>{escape(y_label)}<span class="legend">{keys}</span></figcaption>{drawn}</figure>'


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from below `low` to above `high`."""
    wide = (high - low) or 1.0
    unit = 10 ** math.floor(math.log10(wide / about))
    step = min((unit * each for each in (1, 2, 5, 10)), key=lambda size: abs(wide / size - about))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * each, 12) for each in range(first, max(last, first + 1) + 1)]


STYLE = """
figure { margin: .8rem 0; } figcaption { font-size: .9rem; }
svg { width: 100%; height: auto; max-width: 48rem; display: block; font-size: 12px; }
svg text { fill: currentColor; opacity: .75; } svg .grid { stroke: var(--line); }
svg .curve { fill: none; stroke-width: 2; } svg .level { stroke-width: 1.5; stroke-dasharray: 6 5; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
.key { display: inline-block; width: 1.4em; border-top: 3px solid; margin-right: .4em; vertical-align: middle; }
.key.level { border-top-style: dashed; }
.line-0 { stroke: var(--bar); border-color: var(--bar); } circle.line-0 { fill: var(--bar); }
.line-1 { stroke: #d9822b; border-color: #d9822b; } circle.line-1 { fill: #d9822b; }
@media (max-width: 30rem) { svg { font-size: 18px; } }
.line-2 { stroke: var(--good); border-color: var(--good); } .line-3 { stroke: #8888; border-color: #8888; }
"""
"""Of up to two curves and two levels."""
