"""How good a model is on one part of a dataset: ranks, metrics, slices."""

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.negatives import NegativeKind
from bert4rec.data.splits import Part, Split
from bert4rec.errors import DataError, NotFoundError
from bert4rec.evaluation.metrics import summarise
from bert4rec.evaluation.protocol import (
    CandidateScorer,
    Ranks,
    Scorer,
    rank_among_negatives,
    rank_targets,
)
from bert4rec.evaluation.slices import slice_by_activity, slice_by_popularity

ROWS_PER_BATCH = {"cuda": 1024, "cpu": 256}
"""Users whose scores are held at once, by kind of device."""


def judge(
    scorer: Scorer,
    dataset: Dataset,
    split: Split,
    part: Part,
    device_type: str = "cpu",
    candidates: NegativeKind = "popularity",
) -> Ranks:
    """The rank of every target of `part`, under both protocols."""
    return rank_targets(
        scorer,
        dataset,
        split.targets(part),
        negatives=dataset.negatives(candidates),
        batch_size=ROWS_PER_BATCH[device_type],
    )


def judge_among_negatives(
    scorer: CandidateScorer, dataset: Dataset, split: Split, part: Part, device_type: str
) -> dict[str, float]:
    """Metrics under the paper's protocol alone: what is asked again and again while a model learns."""
    ranks = rank_among_negatives(
        scorer,
        dataset,
        split.targets(part),
        negatives=dataset.negatives("popularity"),
        batch_size=ROWS_PER_BATCH[device_type],
    )
    return summarise(ranks)


def metrics_of(ranks: Ranks) -> dict[str, dict[str, float]]:
    return {"sampled": summarise(ranks.sampled), "full": summarise(ranks.full)}


def slices_of(
    ranks: Ranks, dataset: Dataset, split: Split, part: Part
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By user activity and by item popularity, under both protocols."""
    targets, end = split.targets(part), split.training_end(part)
    return {
        protocol: {
            "activity": [asdict(each) for each in slice_by_activity(found, dataset, targets)],
            "popularity": [asdict(each) for each in slice_by_popularity(found, dataset, targets, end)],
        }
        for protocol, found in vars(ranks).items()
    }


def save_ranks(folder: Path, part: Part, ranks: Ranks) -> None:
    """So that each file is always whole or absent."""
    for protocol, found in vars(ranks).items():
        path = _ranks_path(folder, part, protocol)
        unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
        with unfinished.open("wb") as file:
            np.save(file, found)
        unfinished.replace(path)


def has_ranks(folder: Path, part: Part) -> bool:
    return all(_ranks_path(folder, part, protocol).exists() for protocol in ("sampled", "full"))


def load_ranks(folder: Path, part: Part) -> Ranks:
    paths = [_ranks_path(folder, part, protocol) for protocol in ("sampled", "full")]
    for path in paths:
        if not path.is_file():
            raise NotFoundError(
                f"{path} does not exist: the run was never judged on the {part} items. "
                f"Do so with: {shlex.join(['bert4rec', 'evaluate', str(folder), '--split', part])}"
                f"{', or compare with --split valid while you are choosing' if part == 'test' else ''}"
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
