"""An evaluation as every model meets it: users are asked about once, and all that is told comes from that."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories, training_histories
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import Part, Split, TargetKind, Targets, TargetSets, all_targets
from bert4rec.errors import UsageError
from bert4rec.evaluation.judge import Metrics, Slices, judge, metrics_of, rows_per_batch, slices_of
from bert4rec.evaluation.lists import TopLists, list_metrics
from bert4rec.evaluation.metrics import metrics_at, summarise
from bert4rec.evaluation.protocol import (
    ONE_PROCESS,
    PROTOCOLS,
    Party,
    Ranks,
    Scorer,
    Scores,
    rank_target_sets,
)
from bert4rec.evaluation.slices import slice_by_activity
from bert4rec.evaluation.yardsticks import CountingRanker
from bert4rec.progress import Report


@dataclass(frozen=True)
class Judged:
    """How one model did."""

    metrics: Metrics
    slices: Slices
    lists: dict[str, float]
    """What it recommends as a whole: see `list_metrics`."""
    ranks: Ranks | None
    """Of the next items; None if all items of a user were asked for."""


@dataclass(frozen=True)
class Exam:
    """What models are asked, and at which cut-offs they are judged."""

    dataset: Dataset
    split: Split
    part: Part
    targets: TargetKind
    candidates: NegativeKind
    cutoffs: Sequence[int]
    """Sorted."""

    def __post_init__(self) -> None:
        if self.targets == "all" and self.candidates != "popularity":
            raise UsageError(
                '`targets="all"` ranks all items; `negatives` applies to sampled ones. Leave it out.'
            )

    @cached_property
    def sets(self) -> TargetSets | None:
        """All items of each user, if they are asked for."""
        return all_targets(self.dataset, self.split, self.part) if self.targets == "all" else None

    @property
    def asked(self) -> Targets:
        """The users, and where their histories end."""
        return self.sets.asked if self.sets else self.split.targets(self.part)

    def judge(
        self,
        scorer: Scorer,
        device_type: str = "cpu",
        report: Report | None = None,
        party: Party = ONE_PROCESS,
    ) -> Judged:
        """Ask a model, which computes on a device of this type, about every user; `report` hears how many are done.

        A `party` of several processes divides the questions about next items.
        """
        top = TopLists(self.dataset, self.cutoffs[-1])

        def watched(users: NDArray[np.int64], histories: Histories) -> Scores:
            scores = scorer(users, histories)
            top.note(scores, histories)
            if report:
                report(len(top), len(self.asked))
            return scores

        if self.sets:
            metrics, slices = self._judge_sets(watched, self.sets, device_type)
            ranks = None
        else:
            names = metrics_at(self.cutoffs)
            ranks = judge(watched, self.dataset, self.split, self.part, device_type, self.candidates, party)
            metrics = metrics_of(ranks, names)
            slices = slices_of(ranks, self.dataset, self.split, self.part, names)
        lists = list_metrics(party.join_lists(top.lists()), self.cutoffs, self._item_counts)
        return Judged(metrics, slices, lists, ranks)

    def judge_markov(self) -> Metrics:
        """How counting what follows the last item did. Next items are ranked without a score of every item."""
        ranker = CountingRanker(self.dataset, self.split.training_end(self.part), pairs=True)
        if self.sets:
            return self._judge_sets(ranker.score_all, self.sets, "cpu")[0]
        ranks = (ranker.ranks(self.asked, protocol, self.candidates) for protocol in PROTOCOLS)
        return metrics_of(Ranks(*ranks), metrics_at(self.cutoffs))

    def _judge_sets(self, scorer: Scorer, sets: TargetSets, device_type: str) -> tuple[Metrics, Slices]:
        """In full ranking, and by activity alone: the items of one user are of different popularity."""
        names, counts = metrics_at(self.cutoffs, several=True), sets.items.lengths
        batch_size = rows_per_batch(self.dataset.num_items, device_type)
        ranks = rank_target_sets(scorer, self.dataset, sets, batch_size=batch_size)
        metrics: Metrics = {"full": summarise(ranks, names, counts)}
        slices = slice_by_activity(ranks, self.dataset, sets.asked, names, counts)
        return metrics, {"full": {"activity": [asdict(each) for each in slices]}}

    @cached_property
    def _item_counts(self) -> NDArray[np.int64]:
        training = training_histories(self.dataset, self.split.training_end(self.part))
        return training.item_counts(self.dataset.num_items)
