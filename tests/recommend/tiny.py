"""Runs that were never trained, and a model whose scores are known: most of what tests of serving need."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bert4rec.artefact import write_manifest
from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.engine import Numbers, Scores
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.rules.subset import Subset
from bert4rec.settings.config import make_config
from bert4rec.training.checkpoint import save_tensors
from bert4rec.training.run import MANIFEST, SCHEMA, Plan, Run
from bert4rec.training.specs import MODELS

SETTINGS = {"dim": 16, "layers": 2, "heads": 2, "max_length": 8}


def untrained_run(dataset: Dataset, folder: Path, model: str = "bert4rec", **settings: Any) -> Run:
    """Random weights, large enough for scores that are far apart. The selected model differs from the final one."""
    config = make_config(model, {"model": settings or SETTINGS})
    plan = Plan.for_dataset(dataset, model, config, preset=None, seed=1, split=None)
    folder.mkdir(parents=True)
    plan.save(folder)
    for name, seed in (("selection", 1), ("model", 2)):
        generator = torch.Generator().manual_seed(seed)
        network = MODELS[model].build(dataset.num_users, dataset.num_items, config.model, generator)
        network.count(dataset, dataset.offsets[1:] - 1)
        weights = network.state_dict()
        for tensor in weights.values():
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.3)
        save_tensors(folder / f"{name}.safetensors", weights)
    shutil.copyfile(dataset.folder / "items.parquet", folder / "items.parquet")
    (folder / "result.json").write_text("{}")
    write_manifest(folder, MANIFEST, {"format": "bert4rec run", "schema": SCHEMA})
    return Run.open(folder)


class HighestFirst:
    """An engine that likes items the better the higher their number, and the more so the longer the history.

    The score of item n after a history of h items is n * h. It remembers how many histories it was asked at a time.
    """

    max_history = 3

    def __init__(self, num_items: int) -> None:
        self.rows = np.arange(1, num_items + 1, dtype=np.float32)[:, None]
        self.bias = np.zeros(num_items, np.float32)
        self.asked: list[int] = []

    def queries(self, histories: Histories) -> NDArray[np.float32]:
        return histories.lengths[:, None].astype(np.float32)

    def top(
        self, histories: Histories, excluded: Histories, k: int, subset: Subset | None = None
    ) -> tuple[Numbers, Scores]:
        self.asked.append(len(histories))
        scores = self.queries(histories) @ self.rows.T + (subset.bias(self.bias) if subset else self.bias)
        rows, items = excluded.flat()
        scores[rows, items - 1] = -np.inf
        best = np.argsort(-scores, axis=1)[:, :k]
        return (best + 1).astype(np.int32), np.take_along_axis(scores, best, axis=1)

    def attention(self, history: Numbers) -> NDArray[np.float32] | None:
        return None


def highest_first(ids: Sequence[str], titles: Sequence[str] | None = None, **facts: Any) -> Recommender:
    """A recommender with that engine; the first item is the most popular, with as many actions as there are items."""
    catalogue = Catalogue(ids, titles, np.arange(len(ids), 0, -1), **facts)
    return Recommender(HighestFirst(len(ids)), catalogue, name="highest first", version="1")
