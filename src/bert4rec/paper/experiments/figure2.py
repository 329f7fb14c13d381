"""Figure 2: what a trained model attends to: average attention of the last ten positions of the test users."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import histories_before
from bert4rec.data.splits import make_split
from bert4rec.paper.experiments.cases import BERT4REC, Case, DatasetFacts, Experiment
from bert4rec.paper.reporting.evidence import Evidence
from bert4rec.paper.reporting.layout import (
    Figure,
    Findings,
    HeatMap,
    HeatMaps,
    Row,
    Statement,
    Table,
    Verdict,
    percent,
)
from bert4rec.training.device import Placement
from bert4rec.training.run import Run

POSITIONS = 10
"""As in the paper: nine items and [mask]."""
USERS_AT_ONCE = 64
EXAMPLES = 3
"""Users whose own maps are kept: those with the most popular items, whose titles are known most often."""
LONGEST_LABEL = 34
BOTH_SIDES = 0.1
"""An item looks both ways if at least this share of its attention goes to each side."""
Maps = NDArray[np.float64]
"""[layers, heads, query, key]"""


def cases(_facts: DatasetFacts) -> list[Case]:
    return [replace(BERT4REC, measures=("attention",))]


def measure(run: Run, dataset: Dataset, placement: Placement) -> dict[str, Any]:
    """Average attention maps of the final model over all test users with nine items or more, and of three users."""
    targets = make_split(dataset, run.plan.split).test
    histories = histories_before(dataset, targets.users, targets.positions)
    long_enough = np.flatnonzero(histories.lengths >= POSITIONS - 1)
    recent = histories[long_enough].newest(POSITIONS - 1).padded(POSITIONS - 1)
    shown = np.argsort(recent.mean(axis=1), kind="stable")[:EXAMPLES]
    model: Any = run.load_model("final", placement.device)
    inputs = histories[long_enough].newest(model.config.max_length - 1).padded(model.config.max_length - 1)
    total: Any = 0.0
    for first in range(0, len(inputs), USERS_AT_ONCE):
        total = total + _maps(model, inputs[first : first + USERS_AT_ONCE], placement).sum(axis=0)
    return {
        "kind": "attention",
        "users": len(long_enough),
        "maps": np.round(total / max(1, len(inputs)), 4).tolist(),
        "examples": [
            {"items": recent[row].tolist(), "maps": np.round(own, 3).tolist()}
            for row, own in zip(shown, _maps(model, inputs[shown], placement), strict=True)
        ],
    }


@torch.inference_mode()
def _maps(model: Any, histories_BL: NDArray[np.int32], placement: Placement) -> Maps:
    """[users, layers, heads, POSITIONS, POSITIONS], cut from the maps of whole histories."""
    with_mask = np.pad(histories_BL, ((0, 0), (0, 1)), constant_values=model.mask_number)
    maps = model.attention_maps(torch.as_tensor(with_mask, device=placement.device).long())
    cut: Maps = maps[..., -POSITIONS:, -POSITIONS:].cpu().double().numpy()
    return cut


def wanted_titles(lines: Sequence[Mapping[str, Any]]) -> set[int]:
    """The items whose titles a report would show."""
    return {item for line in lines for example in line["examples"] for item in example["items"]}


def lay_out(evidence: Evidence) -> Findings:
    found = evidence.find(BERT4REC, kind="attention")
    if found is None or not found.lines[0]["users"]:
        return Findings()
    line = found.lines[0]
    maps = np.array(line["maps"])
    named = [
        (f"layer {layer + 1}, head {head + 1}", maps[layer, head])
        for layer, head in np.ndindex(maps.shape[:2])
    ]
    places = [*map(str, range(POSITIONS - 1)), "[mask]"]
    about = f"{evidence.facts.title}, seed {line['seed']}, layer"
    rule = (
        f": average attention of {line['users']:,} test users. Rows attend to columns; the newest position is [mask], "
        "or m. The rest of a row up to 1 goes to older items."
    )
    figures = []
    for number, layer in enumerate(maps, start=1):
        heads = [
            HeatMap(f"layer {number}, head {head}", each.tolist()) for head, each in enumerate(layer, start=1)
        ]
        caption = f"{about} {number}{rule if number == 1 else ', read in the same way.'}"
        figures.append(Figure(f"figure2-layer{number}", caption, HeatMaps(heads, places)))
    by_seed = {each["seed"]: np.array(each["maps"]) for each in found.lines}
    return Findings([_table(named)], _statements(by_seed), [*figures, *_example(evidence, line)])


def _sides(attention: Maps) -> tuple[float, float, float]:
    """The average shares of the items' attention to the left, to items on the right, and to [mask]."""
    items = attention[:-1]
    left, right = np.tril(items, -1), np.triu(items[:, :-1], 1)
    count = len(items)
    return float(left.sum()) / count, float(right.sum()) / count, float(items[:, -1].sum()) / count


def _place(attention: Maps) -> float:
    """The mean position that is looked at, in the window."""
    return float((attention * np.arange(POSITIONS)).sum() / attention.sum())


def _table(named: list[tuple[str, Maps]]) -> Table:
    rows = [
        Row(name, [*(f"{share:.0%}" for share in _sides(each)), f"{_place(each):.1f}"])
        for name, each in named
    ]
    columns = ["to the left", "to items on the right", "to [mask]", "mean position looked at"]
    return Table("Where items look", columns, rows)


def _statements(by_seed: Mapping[int, Maps]) -> list[Statement]:
    leans = {seed: [_lean(head) for head in maps[0]] for seed, maps in by_seed.items()}
    places = {
        seed: [float(np.mean([*map(_place, layer)])) for layer in maps] for seed, maps in by_seed.items()
    }
    sides = {
        seed: np.mean([_sides(head) for layer in maps for head in layer], axis=0)
        for seed, maps in by_seed.items()
    }
    return [
        Statement(
            "Heads differ: in layer 1, one looks to the left and another to the right.",
            _agreed(min(each) < 0 < max(each) for each in leans.values()),
            f"Right less left, head by head: {_told(leans, percent)}.",
        ),
        Statement(
            "The last layer looks at more recent items than the first.",
            _agreed(each[-1] > each[0] for each in places.values()),
            f"Mean position looked at, of 0 to 9, layer by layer: {_told(places, '{:.1f}'.format)}.",
        ),
        Statement(
            "Items look both ways.",
            _agreed(min(left, right + mask) >= BOTH_SIDES for left, right, mask in sides.values()),
            "Shares of attention to the left, to items on the right and to [mask]: "
            f"{_told(sides, '{:.0%}'.format)}.",
        ),
    ]


def _lean(attention: Maps) -> float:
    """How much more goes to the right than to the left."""
    left, right, mask = _sides(attention)
    return right + mask - left


def _agreed(answers: Iterable[bool]) -> Verdict:
    """What all seeds say; undecided if they disagree."""
    said = set(map(bool, answers))
    if len(said) > 1:
        return "undecided"
    return "reproduced" if said == {True} else "not reproduced"


def _told(by_seed: Mapping[int, Iterable[float]], write: Callable[[float], str]) -> str:
    return "; ".join(f"{', '.join(map(write, values))} (seed {seed})" for seed, values in by_seed.items())


def _example(evidence: Evidence, line: Mapping[str, Any]) -> list[Figure]:
    """The user with the most known titles, averaged over heads; empty if no titles are known."""

    def known(example: Mapping[str, Any]) -> int:
        return sum(str(item) in evidence.titles for item in example["items"])

    best = max(line["examples"], key=known)
    if not known(best):
        return []
    titles = [evidence.titles.get(str(item), f"item {item}") for item in best["items"]]
    maps = [
        HeatMap(f"layer {number}, mean over heads", np.mean(layer, axis=0).tolist())
        for number, layer in enumerate(best["maps"], start=1)
    ]
    labels = [*map(_shorten, titles), "[mask]"]
    caption = f"{evidence.facts.title}: one user's last nine items, and where each of them looks."
    return [Figure("figure2-user", caption, HeatMaps(maps, labels))]


def _shorten(title: str) -> str:
    return title if len(title) <= LONGEST_LABEL else title[: LONGEST_LABEL - 1].rstrip() + "…"


FIGURE2 = Experiment(
    "figure2",
    "Figure 2: attention",
    "The BERT4Rec of Table 2. The model sees whole histories; the last ten positions are shown, for users with at "
    "least that many. The paper shows four maps of Beauty and no numbers, so only its statements can be compared. "
    "Maps and table are from the first seed; a statement is decided only if all seeds agree.",
    cases,
    lay_out,
)
