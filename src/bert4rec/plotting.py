"""One look for every figure; matplotlib is loaded only when something is drawn."""

from pathlib import Path
from typing import Any

from bert4rec.errors import UsageError


def new_figure(columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes, drawn without a display."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("Drawing requires matplotlib: pip install 'bert4rec[report]'.") from error
    figure = Figure(figsize=(4.6 * columns, 3.6), layout="constrained")
    axes = figure.subplots(1, columns)
    for axis in axes if columns > 1 else [axes]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(visible=True, alpha=0.3)
    return figure, axes


def save_figure(figure: Any, path: Path) -> None:
    """Write PNG, SVG or PDF, depending on the ending."""
    if path.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise UsageError(f"{path} must end in .png, .svg or .pdf.")
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            _write_numbers_out(axis)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _write_numbers_out(axis: Any) -> None:
    """Write 1,000 and neither 10³ nor 1000. Ticks that were chosen by hand stay as they are."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, ScalarFormatter, StrMethodFormatter

    low, high = axis.get_view_interval()
    if isinstance(axis.get_major_formatter(), LogFormatterSciNotation):
        if high < 1000 * low:  # Powers of ten alone would be too few.
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:,.9g}"))
        axis.set_minor_formatter("")
    elif isinstance(axis.get_major_formatter(), ScalarFormatter) and high >= 1000:
        axis.set_major_formatter(StrMethodFormatter("{x:,.9g}"))
