"""A small exported model, made once for all tests, and databases to keep events in."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from bert4rec.serving.app import create_app
from bert4rec.serving.catalogue import Catalogue
from bert4rec.serving.recommender import Recommender
from tests.serving.application import settings_for
from tests.serving.postgres import Postgres, find_programs

NUM_ITEMS = 60


@pytest.fixture(scope="session")
def exported_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights; items i1 to i60, the first being the most popular. Exporting takes seconds, so all share one."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "exported-model"
    with (shared / "exported-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _export(folder)
    return folder


def _export(folder: Path) -> None:
    import torch

    from bert4rec.models.bert4rec import BERT4Rec
    from bert4rec.models.settings import ModelConfig
    from bert4rec.serving.export import export_model

    generator = torch.Generator().manual_seed(1)
    model = BERT4Rec(NUM_ITEMS, ModelConfig(dim=16, layers=1, heads=2, max_length=20), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    numbers = range(1, NUM_ITEMS + 1)
    catalogue = Catalogue(
        ids=[f"i{number}" for number in numbers],
        titles=[f"Film {number:03}" for number in numbers],
        counts=np.arange(NUM_ITEMS, 0, -1, dtype=np.int64),
    )
    export_model(model, catalogue, folder, name="films")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real server of our own."""
    if find_programs() is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed")
    with Postgres.running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty history store, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'history.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_store()


@pytest.fixture
def client(exported_model: Path, tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(create_app(settings_for(exported_model, tmp_path))) as client:
        yield client


@pytest.fixture(scope="session")
def recommender(exported_model: Path) -> Recommender:
    return Recommender.load(exported_model)
