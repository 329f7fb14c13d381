"""Tables about the steps of a training on a GPU: what they consist of, and how soon the first one is done."""

from collections.abc import Sequence

from bert4rec.paper.experiments.cases import PAPER_NAMES
from bert4rec.paper.reporting.evidence import Line
from bert4rec.paper.reporting.layout import Row, Table


def profile_table(lines: Sequence[Line]) -> Table:
    """Where the time of a recorded step goes, beside what the card cannot be faster than; of `benchmarks.profile_step`.

    A part has the limit of what it is bound by. `bound by` is what takes longest.
    """
    parts = list(dict.fromkeys(part for line in lines for part in line["milliseconds"]))
    rows = []
    for line in lines:
        spent, limits = line["milliseconds"], line["limits"]
        cells = [f"{sum(spent.values()):.3f}", *(_part(spent.get(part), limits.get(part)) for part in parts)]
        title = f"{_title(line['profile'])}, d={line['dim']}, {line['items']:,} items"
        rows.append(Row(title, [*cells, max(spent, key=spent.__getitem__), line["device"]]))
    columns = ["all", *parts, "bound by", "device"]
    return Table("", columns, rows, corner="ms a step (at least)")


def _part(spent: float | None, limit: float | None) -> str:
    if spent is None:
        return ""
    return f"{spent:.3f}" if limit is None else f"{spent:.3f} ({limit:.3f})"


def joint_table(lines: Sequence[Line]) -> Table:
    """A joint step beside its halves; lines of `benchmarks.joint_step`."""
    rows = [
        Row(
            _title(line["joint"]),
            [
                *(f"{spent:.3f} ms" for spent in line["milliseconds"].values()),
                f"{line['share_of_sum']:.2f}",
                line["device"],
            ],
        )
        for line in lines
    ]
    kinds = [f"a step of {kind}" for kind in lines[0]["milliseconds"]] if lines else []
    return Table("", [*kinds, "both, of the sum", "device"], rows, corner="shape")


def first_step_table(lines: Sequence[Line]) -> Table:
    """Seconds from the start of a process to the end of the first step, and to a validation as good as the paper's
    test; lines of `benchmarks.first_step`."""
    kinds = "cold", "warm"
    rows = [
        Row(
            f"{_title(line['first_step'])}, {line['model']}",
            [
                *(_seconds(line["seconds"][kind]) for kind in kinds),
                *(_seconds(line["seconds_to_level"][kind]) for kind in kinds),
                line["device"],
            ],
        )
        for line in lines
    ]
    columns = [
        f"{what}{when}" for what in ("first step", "the paper's level") for when in ("", ", compiled before")
    ]
    return Table("", [*columns, "device"], rows, corner="after")


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"


def _title(shape: str) -> str:
    return PAPER_NAMES.get(shape, shape)
