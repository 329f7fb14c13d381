"""Draws the charts of a report: PNG and SVG files, and the SVG for the page."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert4rec.paper.reporting.layout import Dumbbells, Figure, HeatMaps, Lines, Measured, Series, Slopes
from bert4rec.plotting import new_figure, save_figure

INK = "#123456"
"""A placeholder for the colour of text: replaced by the page's colour in the page and by black in files."""
COLOURS = ("#3d78d8", "#e0822b", "#2a9d5c", "#a35bd1", "#d1495b")
QUIET = "#8c8c8c"


def draw(figure: Figure, path: Path) -> tuple[list[Path], str]:
    """Write `path`.png and `path`.svg. Returns them, and the SVG as text in the page's colour."""
    import matplotlib as mpl

    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    with mpl.rc_context(_look("black", path.name)):
        save_figure(_paint(figure), png)
    with mpl.rc_context(_look(INK, path.name)):
        drawn = _paint(figure)
        for patch in (drawn.patch, *(axis.patch for axis in drawn.axes)):
            patch.set_alpha(0)
        save_figure(drawn, svg)
    text = svg.read_text(encoding="utf-8")
    svg.write_text(text.replace(INK, "#000000"), encoding="utf-8")
    bare = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return [png, svg], bare.replace(INK, "currentColor")


def _look(ink: str, name: str) -> Any:
    """Settings of matplotlib: text stays text, and `name` makes ids unique within a page."""
    inked = (
        "text.color",
        "axes.edgecolor",
        "axes.labelcolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
    )
    return {
        **dict.fromkeys(inked, ink),
        "grid.color": QUIET,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "legend.frameon": False,
    }


def _paint(figure: Figure) -> Any:
    match figure.chart:
        case Lines():
            return _lines(figure.chart)
        case Dumbbells():
            return _dumbbells(figure.chart)
        case Slopes():
            return _slopes(figure.chart)
        case HeatMaps():
            return _heat_maps(figure.chart)


def _lines(chart: Lines) -> Any:
    """Ours solid with its interval as a band, the paper's dashed in the same colour."""
    figure, axes = new_figure(len(chart.panels))
    for axis, (metric, panel) in zip(axes, chart.panels.items(), strict=True):
        for series, colour in zip(panel, COLOURS, strict=False):
            _plot_series(axis, series, colour)
        axis.set(xlabel=chart.x_label, title=metric)
        if chart.doubling:
            axis.set_xscale("log", base=2)
        axis.set_xticks(list(panel[0].x), [f"{x:g}" for x in panel[0].x], minor=False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)))
    return figure


def _plot_series(axis: Any, series: Series, colour: str) -> None:
    there = [(x, point) for x, point in zip(series.x, series.ours, strict=True) if point]
    if not there:
        return
    xs, points = [x for x, _ in there], [point for _, point in there]
    axis.plot(xs, [point.value for point in points], "-o", color=colour, label=series.name, markersize=4)
    if all(point.low is not None for point in points):
        axis.fill_between(
            xs, [point.low for point in points], [point.high for point in points], color=colour, alpha=0.15
        )
    printed = [(x, point.paper) for x, point in there if point.paper is not None]
    label = f"{series.name}, paper" if printed else None
    axis.plot([x for x, _ in printed], [y for _, y in printed], "--", color=colour, label=label, alpha=0.8)


def _dumbbells(chart: Dumbbells) -> Any:
    figure, axes = new_figure(len(chart.panels))
    for number, (axis, (x_label, rows)) in enumerate(zip(_as_list(axes), chart.panels.items(), strict=True)):
        for place, (_, point) in enumerate(rows):
            _dumbbell(axis, point, place)
        axis.set_yticks(range(len(rows)), [label if number == 0 else "" for label, _ in rows])
        axis.invert_yaxis()
        axis.set(xlabel=x_label)
        axis.set_xlim(left=max(0, axis.get_xlim()[0]))
        axis.locator_params(axis="x", nbins=5 if len(chart.panels) > 1 else "auto")
        axis.grid(visible=False, axis="y")
        figure.set_size_inches(6.4 if len(chart.panels) == 1 else 9.0, 0.34 * len(rows) + 1.3)
    first = _as_list(axes)[0]
    handles, labels = first.get_legend_handles_labels()
    if "paper" in labels:
        by_label = dict(zip(labels, handles, strict=True))
        first.legend(by_label.values(), by_label, loc="upper right")
    return figure


def _dumbbell(axis: Any, point: Measured, place: int) -> None:
    """Ours with its interval and, if there is one, the paper's."""
    if point.paper is not None:
        axis.plot([point.paper, point.value], [place, place], color=QUIET, linewidth=1.5, zorder=1)
        axis.plot(point.paper, place, "o", color=COLOURS[1], fillstyle="none", label="paper")
    if point.low is not None and point.high is not None:
        axis.plot(
            [point.low, point.high], [place, place], color=COLOURS[0], linewidth=3, alpha=0.35, zorder=2
        )
    axis.plot(point.value, place, "o", color=COLOURS[0], zorder=3, label="ours")


def _slopes(chart: Slopes) -> Any:
    figure, axis = new_figure()
    figure.set_size_inches(6.4, 0.3 * len(chart.rows) + 1.0)
    for label, left, right in chart.rows:
        colour = QUIET if left == right else COLOURS[2] if right < left else COLOURS[4]
        axis.plot([0, 1], [left, right], "-o", color=colour, markersize=4)
        axis.annotate(
            f"{label}  {left:g}", (0, left), (-8, 0), textcoords="offset points", ha="right", va="center"
        )
        axis.annotate(f"{right:g}  {label}", (1, right), (8, 0), textcoords="offset points", va="center")
    axis.set_xlim(-1.1, 2.1)
    axis.invert_yaxis()
    axis.set_xticks([0, 1], [chart.left, chart.right])
    axis.set_yticks([])
    axis.grid(visible=False)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.tick_params(length=0)
    return figure


def _heat_maps(chart: HeatMaps) -> Any:
    """One scale for all maps, from dark to bright; names of positions only beside the first."""
    has_names = any(len(label) > 6 for label in chart.labels)
    figure, axes = new_figure(len(chart.maps))
    figure.set_size_inches(3.1 * len(chart.maps) + (2.9 if has_names else 0.4), 3.5)
    # Room at the edge: the page may use a wider font than the one that was measured here.
    figure.set_layout_engine("constrained", w_pad=0.25 if has_names else 0.04, h_pad=0.08)
    highest = max(weight for each in chart.maps for row in each.weights for weight in row)
    image = None
    for number, (axis, each) in enumerate(zip(_as_list(axes), chart.maps, strict=True)):
        image = axis.imshow(each.weights, cmap="viridis", vmin=0, vmax=highest)
        axis.set_title(each.title, fontsize=10)
        axis.grid(visible=False)
        places = range(len(chart.labels))
        short = [*map(str, range(len(chart.labels) - 1)), "m"]
        axis.set_xticks(places, short, fontsize=8)
        axis.set_xlabel("attended to", fontsize=8)
        axis.set_yticks(places, chart.labels if number == 0 else [""] * len(chart.labels), fontsize=8)
    _as_list(axes)[0].set_ylabel("attends", fontsize=8)
    figure.colorbar(image, ax=_as_list(axes), shrink=0.85, label="attention")
    return figure


def _as_list(axes: Any) -> Sequence[Any]:
    return list(axes) if hasattr(axes, "__len__") else [axes]
