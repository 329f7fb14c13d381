"""How good a model is on one part of a dataset: ranks, metrics, slices, and where ranks are kept."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset, Repeats
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import PARTS, Part, Split, TargetKind
from bert4rec.errors import DataError, NotFoundError, one_of
from bert4rec.evaluation.metrics import METRICS, summarise
from bert4rec.evaluation.protocol import (
    ONE_PROCESS,
    PROTOCOLS,
    CandidateScorer,
    Party,
    Ranks,
    Scorer,
    rank_among_negatives,
    rank_targets,
)
from bert4rec.evaluation.slices import slice_by_activity, slice_by_popularity
from bert4rec.frames import Tabular

if TYPE_CHECKING:
    import polars as pl

ROWS_PER_BATCH = {"cuda": 1024, "mps": 256, "cpu": 128}
"""Users whose scores are held at once, by kind of device, unless the catalogue is very large. More do not fit into a
processor's cache."""
SCORES_PER_BATCH = {"cuda": 2**29, "mps": 2**26, "cpu": 2**26}
"""Scores that are held at once, by kind of device: 2 GiB on a GPU, 256 MiB elsewhere."""

Metrics = dict[str, dict[str, float]]
"""Protocol → metric → value."""
Slices = dict[str, dict[str, list[dict[str, Any]]]]
"""Protocol → "activity" or "popularity" → slices, each with its label, users and metrics."""


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
    """How good a run is on one part of its dataset, beside POP and a Markov chain.

    As a table, it has a row for each model and protocol and a column for each metric.
    """

    dataset: str
    """Name of the dataset."""
    model: str
    stage: str
    """Which weights were evaluated: those of the selection or those of the refit."""
    split: Part | Literal["later"]
    """Which items were asked for: "valid" or "test"; "later" in a backtest."""
    targets: TargetKind
    """What users were asked for: the next item, or all items of the part."""
    repeats: Repeats
    users: int
    """How many users were evaluated."""
    left_out: int
    """Users who were left out because all that is asked for is in their history already."""
    metrics: Metrics
    """Protocol → metric → value, such as `metrics["full"]["NDCG@10"]`. All items are asked for in full ranking only."""
    lists: dict[str, float]
    """What is recommended as a whole: `Coverage@k`, `Popularity@k` and `SameList@k`, of the k best of all items."""
    slices: Slices
    """Protocol → "activity" or "popularity" → the metrics of groups of users or items."""
    pop: Metrics
    """The metrics of recommending the most popular items to everybody."""
    pop_lists: dict[str, float]
    """The same as `lists`, of recommending the most popular items."""
    markov: Metrics
    """The metrics of recommending what most often came right after the last item, a Markov chain of first order."""
    warnings: list[str] = field(default_factory=list)
    """Why these numbers say little, if they do."""

    def as_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        values = asdict(self)
        del values["warnings"]
        return values

    def to_polars(self) -> "pl.DataFrame":
        """A row for each model and protocol: `model`, `split`, `protocol`, `users` and the metrics.

        Those of lists are in the rows of full ranking.
        """
        import polars as pl

        unknown = dict.fromkeys(self.lists)
        models = (
            (self.model, self.metrics, self.lists),
            ("POP", self.pop, self.pop_lists),
            ("Markov", self.markov, unknown),
        )
        return pl.DataFrame(
            [
                {
                    "model": model,
                    "split": self.split,
                    "protocol": protocol,
                    "users": self.users,
                    **found,
                    **(lists if protocol == "full" else unknown),
                }
                for model, metrics, lists in models
                for protocol, found in metrics.items()
            ],
            infer_schema_length=None,
        )


@dataclass(frozen=True, repr=False, eq=False)
class UserRanks(Tabular):
    """The rank of every user's target; 0 is best."""

    users: "pl.Series | None"
    """Original ids of the users, or None if the dataset is not available."""
    sampled: NDArray[np.int32]
    """Among the sampled negatives."""
    full: NDArray[np.int32]
    """Among all items."""

    def __len__(self) -> int:
        return len(self.full)

    def to_polars(self) -> "pl.DataFrame":
        """`user` (if the dataset is available), `sampled` and `full`."""
        import polars as pl

        columns = {} if self.users is None else {"user": self.users}
        return pl.DataFrame({**columns, "sampled": self.sampled, "full": self.full})


def rows_per_batch(num_items: int, device_type: str) -> int:
    """How many users to score at once, so that memory is bounded whatever the size of the catalogue."""
    bound = SCORES_PER_BATCH[device_type] // (num_items + 1)
    return max(1, min(ROWS_PER_BATCH[device_type], bound))


def judge(
    scorer: Scorer,
    dataset: Dataset,
    split: Split,
    part: Part,
    device_type: str = "cpu",
    candidates: NegativeKind = "popularity",
    party: Party = ONE_PROCESS,
) -> Ranks:
    """The rank of every target of `part`, under both protocols."""
    return rank_targets(
        scorer,
        dataset,
        split.targets(part),
        negatives=dataset.negatives(candidates),
        batch_size=rows_per_batch(dataset.num_items, device_type),
        party=party,
    )


def judge_among_negatives(
    scorer: CandidateScorer,
    dataset: Dataset,
    split: Split,
    part: Part,
    device_type: str,
    metrics: Sequence[str] = METRICS,
    party: Party = ONE_PROCESS,
) -> dict[str, float]:
    """Metrics under the paper's protocol alone, which is what validation uses while a model learns."""
    ranks = rank_among_negatives(
        scorer,
        dataset,
        split.targets(part),
        negatives=dataset.negatives("popularity"),
        batch_size=ROWS_PER_BATCH[device_type],
        party=party,
    )
    return summarise(ranks, metrics)


def metrics_of(ranks: Ranks, metrics: Sequence[str] = METRICS) -> Metrics:
    """The mean of each metric over all users, under both protocols."""
    return {protocol: summarise(found, metrics) for protocol, found in vars(ranks).items()}


def slices_of(
    ranks: Ranks, dataset: Dataset, split: Split, part: Part, metrics: Sequence[str] = METRICS
) -> Slices:
    """By user activity and by item popularity, under both protocols."""
    targets, end = split.targets(part), split.training_end(part)
    return {
        protocol: {
            "activity": [asdict(each) for each in slice_by_activity(found, dataset, targets, metrics)],
            "popularity": [
                asdict(each) for each in slice_by_popularity(found, dataset, targets, end, metrics)
            ],
        }
        for protocol, found in vars(ranks).items()
    }


def save_ranks(folder: Path, part: Part, ranks: Ranks) -> None:
    """Write the ranks of a part into a run's folder; each file is always complete or absent."""
    for protocol, found in vars(ranks).items():
        path = _ranks_path(folder, part, protocol)
        unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
        with unfinished.open("wb") as file:
            np.save(file, found)
        unfinished.replace(path)


def has_ranks(folder: Path, part: Part) -> bool:
    """Whether the ranks of a part are in a run's folder."""
    return all(_ranks_path(folder, part, protocol).exists() for protocol in PROTOCOLS)


def load_ranks(folder: Path, part: Part) -> Ranks:
    """The ranks of a part that are in a run's folder."""
    one_of("split", part, PARTS)
    paths = [_ranks_path(folder, part, protocol) for protocol in PROTOCOLS]
    for path in paths:
        if not path.is_file():
            choosing = ', or use `split="valid"` while you are still choosing' if part == "test" else ""
            raise NotFoundError(
                f"{path} not found: the run was never evaluated on the {part} items. "
                f'Call `run.evaluate(split="{part}")`{choosing}.'
            )
    return Ranks(*map(_load, paths))


def _load(path: Path) -> NDArray[np.int32]:
    try:
        found: NDArray[np.int32] = np.load(path)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is truncated or was not written by bert4rec ({error}).") from error
    return found


def _ranks_path(folder: Path, part: Part, protocol: str) -> Path:
    return folder / f"ranks-{part}-{protocol}.npy"
