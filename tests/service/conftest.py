"""A service around the shared model, and databases to keep events in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bert4rec.service.app import create_app
from tests.service.application import TestClient, settings_for
from tests.service.postgres import Postgres, find_programs


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
