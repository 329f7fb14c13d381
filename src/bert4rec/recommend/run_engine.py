"""A run as a recommender: computed by torch, by queries where the model has them, or user by user."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert4rec.data.histories import Histories
from bert4rec.models.model import make_scorer
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.engine import Engine
from bert4rec.recommend.known_users import UserScorer
from bert4rec.recommend.recommender import Recommender
from bert4rec.recommend.torch_engine import TorchEngine
from bert4rec.training.device import Placement, place
from bert4rec.training.run import Run
from bert4rec.training.specs import MODELS


def open_recommender(path: Path, device: str) -> Recommender:
    """The final model of the run in a folder."""
    return recommender_of(Run.open(path), device)


def recommender_of(run: Run, device: str) -> Recommender:
    """The final model of a run."""
    run.verify()
    return Recommender(
        _engine(run, place(device)),
        replace(
            Catalogue.read_table(run.path / "items.parquet"), untrained=np.array(run.untrained, np.int32)
        ),
        name=run.plan.dataset_name,
        version=str(run.manifest["files"][run.file_of("final")]["sha256"])[:8],
        repeats=run.plan.repeats,
        find_dataset=run.dataset_for,
        trained=run.trained,
    )


def _engine(run: Run, placement: Placement) -> Engine | UserScorer:
    spec = MODELS[run.plan.model]
    model, untrained = run.load_model("final", placement.device), run.untrained
    if not spec.knows_users:
        return TorchEngine(model, placement, untrained)
    scorer = make_scorer(model, placement.dtype)

    def scores(users: NDArray[np.int64], histories: Histories) -> NDArray[np.float64]:
        found = scorer(users, histories).cpu().double().numpy()
        found[:, untrained] = -np.inf
        return found

    return UserScorer(spec.title, run.plan.num_items, model.max_history, scores)
