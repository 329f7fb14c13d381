"""What the trained models show, side by side: everything that the page tells.

Metrics and slices come from the ranks that each run kept when it looked at the test items; nothing is ranked again.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bert4rec.api.comparison import LIKELY, SURE, Comparison, SystemDifference, compare_runs
from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import histories_before
from bert4rec.data.splits import Split, make_split
from bert4rec.evaluation.criterion import Criterion
from bert4rec.evaluation.exam import Exam
from bert4rec.evaluation.judge import Metrics, Slices, load_ranks, slices_of
from bert4rec.evaluation.lists import TopLists
from bert4rec.evaluation.significance import Difference
from bert4rec.training.device import Placement
from bert4rec.training.reporting.progress_log import ProgressLog
from bert4rec.training.run import Run

SHOWN_USERS, SHOWN_ITEMS = 4, 6
"""Users, and the newest items of each history and the best of each recommendation."""
METRIC = "NDCG@10"


@dataclass(frozen=True)
class Example:
    """A user: what was done last, what came next, and what each model recommends."""

    user: str
    history: list[int]
    """Item numbers, oldest first."""
    next_item: int
    recommended: dict[str, list[int]]
    """Title of the model → item numbers, best first."""


@dataclass(frozen=True)
class Findings:
    """Several models on one dataset, and which of them is served."""

    dataset: Dataset
    runs: dict[str, Run]
    """Title → run; the last is POP."""
    served: str
    """Title of the model that is exported."""
    criterion: Criterion
    """By what it was chosen."""
    placement: Placement
    seed: int

    @cached_property
    def split(self) -> Split:
        return make_split(self.dataset)

    @property
    def popular(self) -> str:
        """The title of recommending the most popular items."""
        return next(reversed(self.runs))

    @cached_property
    def comparison(self) -> Comparison:
        """All models on the test items, among all items, as differences from POP."""
        systems = {title: self.runs[title] for title in reversed(self.runs)}
        return compare_runs([systems], metric=METRIC, protocol="full")

    def difference(self, title: str) -> SystemDifference | None:
        """From POP; None of POP itself."""
        return next((each for each in self.comparison.differences if each.name == title), None)

    def metrics(self, title: str) -> Metrics:
        """On the test items: protocol → metric → value."""
        return self.runs[title].metrics["test"]

    @cached_property
    def markov(self) -> Metrics:
        """Of counting what follows the last item, on the test items."""
        return Exam(self.dataset, self.split, "test", "next", "popularity", (1, 5, 10)).judge_markov()

    def validation(self, title: str) -> float:
        """What the model was chosen by."""
        return self.criterion.of(self.runs[title].metrics["valid"])

    @property
    def standing(self) -> dict[str, float]:
        """What counting reaches on the validation items: `popular` and `following`."""
        known = self.runs[self.served].result["standing"]
        return {name: float(known[name]) for name in ("popular", "following")}

    def curve(self, title: str) -> list[tuple[float, float]]:
        """Steps and validation values of a training; none of a model that only counts."""
        marks = ProgressLog(self.runs[title].path).read("selection")
        return [(mark["step"], mark["value"]) for mark in marks]

    def slices(self, title: str) -> Slices:
        """On the test items: protocol → "activity" or "popularity" → slices."""
        ranks = load_ranks(self.runs[title].path, "test")
        return slices_of(ranks, self.dataset, self.split, "test", ["HR@10", METRIC])

    @cached_property
    def examples(self) -> list[Example]:
        """Users at random, of those with the longer half of histories, so that there is something to see."""
        targets = self.split.test
        lengths = targets.positions - self.dataset.offsets[targets.users]
        longer = np.flatnonzero(lengths >= min(SHOWN_ITEMS, int(np.median(lengths))))
        count = min(SHOWN_USERS, len(longer))
        chosen = np.sort(np.random.default_rng(self.seed).choice(longer, count, replace=False))
        users, positions = targets.users[chosen], targets.positions[chosen]
        shown = histories_before(self.dataset, users, positions).newest(SHOWN_ITEMS)
        best = {title: self._best(run, users, positions) for title, run in self.runs.items()}
        ids = self.dataset.users()["id"].gather(users).to_list()
        return [
            Example(
                user=str(ids[row]),
                history=shown[slice(row, row + 1)].flat()[1].tolist(),
                next_item=int(self.dataset.sequences[position]),
                recommended={title: [item for item in lists[row] if item] for title, lists in best.items()},
            )
            for row, position in enumerate(positions)
        ]

    def _best(self, run: Run, users: NDArray[np.int64], positions: NDArray[np.int64]) -> list[list[int]]:
        histories = histories_before(self.dataset, users, positions)
        top = TopLists(self.dataset, SHOWN_ITEMS)
        top.note(run.scorer("tested", self.placement)(users, histories), histories)
        return [[int(item) for item in row] for row in top.lists()]

    @cached_property
    def names(self) -> list[str]:
        """What items are called, by number: the title, or the id where there is none."""
        table = self.dataset.items()
        ids = map(str, table["id"].to_list())
        titles = table["title"].to_list() if "title" in table.columns else [None] * len(table)
        return ["", *(str(title) if title else each for title, each in zip(titles, ids, strict=True))]

    @property
    def is_behind_counting(self) -> bool:
        """Whether counting what follows the last item reaches more on the test items than the model that is served."""
        return self.markov["full"][METRIC] > self.metrics(self.served)["full"][METRIC]

    @property
    def is_better(self) -> bool:
        """Whether the model that is served is better than what counting reaches, beyond chance than POP."""
        return not self.is_behind_counting and self._lead.difference > 0 and self._lead.p_value < LIKELY

    @property
    def _lead(self) -> Difference:
        difference = self.difference(self.served)
        assert difference, "POP is never served"
        return difference.total

    @cached_property
    def sentence(self) -> str:
        """What was found: which model, how much better than counting, and how sure that is."""
        found, pop = self.metrics(self.served)["full"], self.metrics(self.popular)["full"]
        p_value = self._lead.p_value
        told = (
            f"the next item is among the first ten for {found['HR@10']:.1%} of the users, where the most popular items "
            f"have it for {pop['HR@10']:.1%}"
        )
        if self.is_behind_counting:
            return (
                f"Counting what follows the last item reaches {self.markov['full'][METRIC]:.4f} ({METRIC}), more than "
                f"{self.served}, the best of the trained models ({found[METRIC]:.4f}). More minutes may change that. "
                f"With {self.served}, {told}."
            )
        if not self.is_better:
            return (
                f"{self.served}, the best on the validation items, is not clearly better than recommending the most "
                f"popular items to everybody: {told} (p = {p_value:.2f})."
            )
        sure = "is not" if p_value < SURE else "is probably not"
        p = "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.4f}"
        times = f", {found[METRIC] / pop[METRIC]:.1f} times as much" if pop[METRIC] else ""
        return (
            f"{self.served}, the best on the validation items, is worth serving: {told}. {METRIC} is "
            f"{found[METRIC]:.4f} instead of {pop[METRIC]:.4f}{times}; that {sure} by chance ({p})."
        )
