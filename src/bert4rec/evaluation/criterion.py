"""The number by which the best weights are chosen on the validation items."""

from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.splits import Split
from bert4rec.errors import UsageError
from bert4rec.evaluation.judge import Metrics, judge, judge_among_negatives, metrics_of
from bert4rec.evaluation.metrics import metric_per_user, parse_metric
from bert4rec.evaluation.protocol import ONE_PROCESS, PROTOCOLS, Party, Ranks, Scores
from bert4rec.evaluation.protocol import Protocol as RankingProtocol

USUAL = "NDCG@10"
"""Under the paper's protocol: it is what the paper reports, and noise is lower than in full ranking."""
Under = Literal["sampled", "full", "both"]
CANDIDATES = 101
"""The target and its negatives."""
ALWAYS_HIT = ("HR", "Recall", "Precision")
"""Metrics that cannot miss once k places hold all candidates."""


class AnyScorer(Protocol):
    """A `Scorer` that is a `CandidateScorer` where it is given items."""

    def __call__(
        self, users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
    ) -> Scores: ...


@dataclass(frozen=True)
class Criterion:
    """A metric under one protocol, or the geometric mean of its values under both."""

    metric: str
    """As in the keys of `Metrics`."""
    under: Under = "sampled"

    @classmethod
    def parse(cls, text: str) -> "Criterion":
        """From a metric or metric:protocol, such as ndcg@10:full, in upper or lower case."""
        name, _, under = str(text).partition(":")
        found = next((known for known in get_args(Under) if known == (under.lower() or "sampled")), None)
        try:
            metric = parse_metric(name)
        except UsageError:
            found = None
        if found is None:
            raise UsageError(
                "`select_by` must be HR@k, NDCG@k, Recall@k, Precision@k or MRR, alone or followed by :sampled, :full "
                f"or :both, such as ndcg@10:full; found {text!r}."
            )
        if found != "full" and metric.kind in ALWAYS_HIT and (metric.k or 0) >= CANDIDATES:
            raise UsageError(
                f"`select_by`: {metric} is the same for every model among {CANDIDATES} sampled candidates. Use a "
                f"smaller k, or {metric}:full."
            )
        return cls(str(metric), found)

    def __str__(self) -> str:
        """In its usual spelling: NDCG@10, NDCG@10:full."""
        return self.metric if self.under == "sampled" else f"{self.metric}:{self.under}"

    @property
    def protocols(self) -> tuple[RankingProtocol, ...]:
        """What is looked at."""
        return tuple(PROTOCOLS) if self.under == "both" else (self.under,)

    def of(self, metrics: Metrics) -> float:
        """Its value, given that of the metric under each of its protocols."""
        return prod(metrics[each][self.metric] for each in self.protocols) ** (1 / len(self.protocols))

    def per_user(self, ranks: Ranks) -> NDArray[np.float64]:
        """A number for each user whose mean is the value, for intervals and tests.

        A geometric mean is none of users, but near its value it changes as the mean of their relative values does.
        """
        values = [metric_per_user(getattr(ranks, each), self.metric) for each in self.protocols]
        if len(values) == 1:
            return values[0]
        means = [each.mean() for each in values]
        if not all(means):
            return np.zeros_like(values[0])
        relative = np.mean([each / mean for each, mean in zip(values, means, strict=True)], axis=0)
        return np.asarray(prod(means) ** (1 / len(means)) * relative)

    def judge(
        self,
        scorer: AnyScorer,
        dataset: Dataset,
        split: Split,
        device_type: str,
        party: Party = ONE_PROCESS,
    ) -> float:
        """Its value on the validation items. Where sampled candidates are enough, only they are scored."""
        asked = scorer, dataset, split, "valid", device_type
        if self.under == "sampled":
            return self.of({"sampled": judge_among_negatives(*asked, [self.metric], party=party)})
        return self.of(metrics_of(judge(*asked, party=party), [self.metric]))
