"""What a service counts and knows while something fails that nobody thought of, and that all of it ends."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bert4rec.service import counting as counting_module
from bert4rec.service import hidden_items as hidden_module
from bert4rec.service.app import Settings, create_app
from bert4rec.service.change_mark import ChangeMark
from bert4rec.service.experiment import Arm, ServedArms
from bert4rec.service.served_models import ModelVersions
from bert4rec.service.service import Service
from bert4rec.service.telemetry.counters import Metrics
from bert4rec.store.events import StoreError, open_store
from bert4rec.store.feedback import subject_of
from bert4rec.store.sqlite_store import SQLiteHistory
from tests.service.application import TestClient, settings_for
from tests.service.test_experiment import ask, counted
from tests.service.test_hidden import hide, recommended
from tests.service.test_workers import until


@pytest.fixture
def tested(exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A test of a model against itself, whose recommendations are written without much delay."""
    monkeypatch.setattr(counting_module, "WRITE_EVERY", 0.05)
    arms = tuple(Arm(name, exported_model, 50) for name in ("champion", "challenger"))
    return settings_for(exported_model, tmp_path, tested=arms)


class Failing:
    """A method that fails until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
        self.calls, self.is_mended = 0, False
        whole: Callable[..., object] = getattr(SQLiteHistory, name)

        def method(*arguments: object) -> object:
            if self.is_mended:
                return whole(*arguments)
            self.calls += 1
            raise error

        monkeypatch.setattr(SQLiteHistory, name, method)


@pytest.mark.parametrize("error", [ValueError("nobody thought of it"), StoreError("away")])
def test_recommendations_are_counted_after_whatever_failure(
    tested: Settings, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing(monkeypatch, "change", error)
    with TestClient(create_app(tested)) as client:
        ask(client, history=["i1"], subject="ann")
        until(lambda: failing.calls >= 3)
        ask(client, history=["i1"], subject="ann")
        failing.is_mended = True
        until(lambda: counted(tested.store, what="subject, recommendations") == [(subject_of("ann"), 2)])
    assert caplog.text.count("Recommendations cannot be counted") == isinstance(error, ValueError)
    assert ("Traceback" in caplog.text) == isinstance(error, ValueError)


def test_no_more_users_wait_for_a_store_that_fails_than_there_may(
    tested: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(counting_module, "MOST_COUNTED", 2)
    failing = Failing(monkeypatch, "change", StoreError("away"))
    with TestClient(create_app(tested)) as client:
        for user in ("ann", "ben", "cat", "dan", "ann"):
            ask(client, history=["i1"], subject=user)
            calls = failing.calls
            until(lambda calls=calls: failing.calls > calls + 1)  # type: ignore[misc]
        failing.is_mended = True
        until(lambda: counted(tested.store))
        ask(client, history=["i1"], subject="eve")
    found = dict(counted(tested.store, what="subject, recommendations"))
    assert found == {subject_of("ann"): 2, subject_of("ben"): 1, subject_of("eve"): 1}
    assert caplog.text.count("of others none are counted") == 1


def test_what_is_hidden_is_looked_for_after_whatever_failure(
    exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing(monkeypatch, "hidden", ValueError("nobody thought of it"))
    monkeypatch.setattr(hidden_module.HiddenItems.watch, "__defaults__", (0.02,))
    with TestClient(create_app(settings_for(exported_model, tmp_path))) as client:
        hide(client, "i2")
        until(lambda: failing.calls >= 3)
        assert "i2" in recommended(client), "nobody can know"
        failing.is_mended = True
        until(lambda: "i2" not in recommended(client))
    assert caplog.text.count("ValueError: nobody thought of it") == 1


def test_a_part_that_fails_to_stop_keeps_no_other_from_it(
    exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    store = open_store(f"sqlite:///{tmp_path / 'history.db'}")

    async def run() -> None:
        versions = ModelVersions(exported_model, threads=1, metrics=Metrics())
        arms = ServedArms([(Arm("", exported_model, 1), versions)])
        service = Service(arms, store, Metrics(), ChangeMark())
        stop = service.events.stop

        async def fail() -> None:
            await stop()
            raise ValueError("nobody thought of it")

        monkeypatch.setattr(service.events, "stop", fail)
        await service.start()
        with pytest.raises(ValueError, match="nobody thought of it"):
            await service.stop()

    asyncio.run(run())
    with pytest.raises(StoreError, match="closed"):
        store.newest("ann", 1)
    assert not {each.name for each in set(threading.enumerate()) - threads} & {
        "model",
        "side",
        "store-eraser",
    }
