"""What a report consists of: tables, statements and charts; and when a number counts as reproduced.

Nothing here draws or formats HTML. Experiments fill these in; `report_page`, `report_text` and `report_figures` show
them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

TOLERANCE = 0.02
"""Numbers that differ from the paper's by less than this share count as equal."""

Verdict = Literal["reproduced", "better", "not reproduced", "undecided", "contradiction", "finding"]
RULES: dict[Verdict, str] = {
    "reproduced": f"for a number: the paper's lies inside our 95% interval, or within {TOLERANCE:.0%} of ours; "
    "for a statement: our numbers agree, and the 95% interval of the difference excludes zero",
    "better": "our number is higher than the paper's by more than that",
    "not reproduced": "for a number: ours is lower than the paper's by more than that; for a statement: our numbers "
    "say the opposite, and the 95% interval of the difference excludes zero, or the paper's lead is larger than the "
    "upper end of our interval on every metric",
    "undecided": "for a statement: the interval contains zero, or runs are missing",
    "contradiction": "something that the paper did not try, and that contradicts its conclusions",
    "finding": "something that the paper does not say",
}
INTERVALS = (
    "Intervals are 95% intervals over test users and seeds together, as in `bert4rec compare`. Differences between two "
    "models are paired user by user. A model with one seed borrows the variance between seeds that is usual for the "
    "models with several seeds on the same data set, variants of experiments excepted, since some are unstable; if "
    "there are none, seeds are left out."
)
DAGGER = "†"
DAGGER_RULE = (
    f"{DAGGER} With every seed the last validation was the best, so more training steps might have given a better "
    "result. This is not certain: the learning rate falls to zero at the last step, so the last validation is often "
    "the best."
)
HOW_TO_READ = "Solid lines are ours, with their 95% intervals as bands; dashed lines are the paper's."
"""For charts with lines."""


@dataclass(frozen=True)
class Measured:
    """One of our numbers beside the paper's."""

    value: float
    low: float | None = None
    high: float | None = None
    paper: float | None = None
    at_last_step: bool = False
    """Whether the last validation was the best."""

    @property
    def difference(self) -> float | None:
        """Relative to the paper's number."""
        return self.value / self.paper - 1 if self.paper else None

    @property
    def verdict(self) -> Verdict | None:
        """None if the paper has no such number."""
        if self.paper is None or self.difference is None:
            return None
        inside = self.low is not None and self.high is not None and self.low <= self.paper <= self.high
        if inside or abs(self.difference) <= TOLERANCE:
            return "reproduced"
        return "better" if self.difference > 0 else "not reproduced"


Cell = str | Measured | None
"""None stands for a missing run."""


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    label: str
    cells: Sequence[Cell]
    beyond: bool = False
    """Not in the paper."""


@dataclass(frozen=True)
class Table:
    """A table with a column of labels."""

    title: str
    columns: Sequence[str]
    """Without the column of labels."""
    rows: Sequence[Row]
    note: str = ""
    corner: str = ""
    """The text above the labels."""

    @property
    def measured(self) -> list[Measured]:
        return [cell for row in self.rows for cell in row.cells if isinstance(cell, Measured)]


@dataclass(frozen=True)
class Statement:
    """Something that the paper says or that we found, and what our numbers say about it."""

    text: str
    verdict: Verdict
    evidence: str
    at_last_step: bool = False
    """Whether more training steps might have made the worse of the two better."""

    @property
    def is_marked(self) -> bool:
        return self.at_last_step and self.verdict != "undecided"

    @property
    def marked_evidence(self) -> str:
        """The evidence, with a dagger where more training might change it."""
        return f"{self.evidence} {DAGGER}" if self.is_marked else self.evidence


@dataclass(frozen=True)
class Series:
    """One line of a chart: ours with its interval, the paper's beside it."""

    name: str
    x: Sequence[float]
    ours: Sequence[Measured | None]


@dataclass(frozen=True)
class Lines:
    """Panels side by side, one for each metric."""

    x_label: str
    panels: dict[str, list[Series]]
    doubling: bool = False
    """Whether x doubles from one point to the next."""


@dataclass(frozen=True)
class Dumbbells:
    """Ours and the paper's, connected, one row for each model. Panels side by side have the same models."""

    panels: dict[str, list[tuple[str, Measured]]]
    """What is measured → its rows."""


@dataclass(frozen=True)
class Slopes:
    """Places on the left and on the right, connected, one line for each model."""

    left: str
    right: str
    rows: list[tuple[str, float, float]]


@dataclass(frozen=True)
class HeatMap:
    """One attention map."""

    title: str
    weights: list[list[float]]


@dataclass(frozen=True)
class HeatMaps:
    """Attention maps side by side: query down, key across."""

    maps: list[HeatMap]
    labels: list[str]
    """Of the positions."""


@dataclass(frozen=True)
class Figure:
    """A chart with its caption."""

    name: str
    """Of the file."""
    caption: str
    chart: Lines | Dumbbells | Slopes | HeatMaps


@dataclass(frozen=True)
class Findings:
    """What an experiment shows for one data set."""

    tables: list[Table] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def measured(self) -> list[Measured]:
        return [cell for table in self.tables for cell in table.measured]

    @property
    def has_daggers(self) -> bool:
        return any(cell.at_last_step for cell in self.measured) or any(
            statement.is_marked for statement in self.statements
        )


def text_of(cell: Cell) -> str:
    """A cell as one line of plain text."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    text = f"{cell.value:.4f}"
    if cell.low is not None and cell.high is not None:
        text += f" ± {(cell.high - cell.low) / 2:.4f}"
    if cell.at_last_step:
        text += f" {DAGGER}"
    if cell.difference is not None:
        text += f" (paper {cell.paper:.4f}: {percent(cell.difference)}, {cell.verdict})"
    return text


def percent(share: float) -> str:
    """A change, with its sign; the minus is a proper one."""
    return f"{share:+.1%}".replace("-", "−")


def signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
