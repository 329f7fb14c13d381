"""What a service counts and knows while something fails that nobody thought of, and that all of it ends."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bert4rec.service import counting as counting_module
from bert4rec.service import hidden_items as hidden_module
from bert4rec.service.app import Settings, create_app
from bert4rec.service.change_mark import ChangeMark
from bert4rec.service.experiment import Arm, ServedArms
from bert4rec.service.served_models import ModelVersions, ServedModel
from bert4rec.service.service import Service
from bert4rec.service.telemetry.counters import Metrics
from bert4rec.store.events import Forgotten, StoreError, open_store
from bert4rec.store.feedback import Exposure, Served, add_exposures, subject_of
from bert4rec.store.sqlite_store import SQLiteHistory
from tests.service.application import TestClient, settings_for
from tests.service.servers import PATIENCE
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


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_another_worker_writes_of_a_forgotten_user_is_deleted(
    tested: Settings, is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker is this test, which writes at the last moment."""
    store = open_store(tested.store)
    served = Served.of("a=1:b=1", "a", "one")
    began, moments = time.monotonic(), []
    whole = SQLiteHistory.forget_counts

    def write_before(self: SQLiteHistory, subjects: list[str]) -> Forgotten:
        moments.append(time.monotonic() - began)
        exposures = [Exposure(subject_of(user), served.mark, 0, 1) for user in ("ann", "ben")]
        add_exposures(store, [served], exposures)
        return whole(self, subjects)

    monkeypatch.setattr(SQLiteHistory, "forget_counts", write_before)
    with TestClient(create_app(tested)) as client:
        assert client.delete("/v1/users/ann").status_code == 200
        if not is_stopped:
            until(lambda: counted(tested.store, what="subject") == [(subject_of("ben"),)])
    assert counted(tested.store, what="subject, recommendations") == [(subject_of("ben"), 1)]
    assert len(moments) == 1
    assert moments[0] >= 2 * counting_module.WRITE_EVERY, "others have had the time to write"
    store.close()


def test_a_write_that_fails_brings_no_forgotten_user_back(
    tested: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, forgotten = threading.Event(), threading.Event()
    whole = SQLiteHistory.change

    def fail_once(*arguments: Any) -> list[bool]:
        if forgotten.is_set():
            return whole(*arguments)
        writing.set()
        assert forgotten.wait(PATIENCE)
        raise StoreError("away")

    monkeypatch.setattr(SQLiteHistory, "change", fail_once)
    # Without the second deletion, which comes too late where a store fails for long.
    monkeypatch.setattr(SQLiteHistory, "forget_counts", lambda *_: Forgotten(0, None))
    with TestClient(create_app(tested)) as client, ThreadPoolExecutor(1) as pool:
        for user in ("ann", "ben"):
            ask(client, history=["i1"], subject=user)
        assert writing.wait(PATIENCE)
        forgetting = pool.submit(client.delete, "/v1/users/ann")
        until(lambda: "bert4rec_requests_in_flight 2.0" in client.get("/metrics").text)
        forgotten.set()
        assert forgetting.result().status_code == 200
        until(lambda: counted(tested.store, what="subject") == [(subject_of("ben"),)])
    assert counted(tested.store, what="subject") == [(subject_of("ben"),)]


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
        metrics = Metrics()
        versions = ModelVersions(exported_model, partial(ServedModel, threads=1, metrics=metrics), metrics)
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
    with pytest.raises(StoreError):
        store.newest("ann", 1)
    assert not {each.name for each in set(threading.enumerate()) - threads} & {
        "model",
        "side",
        "store-eraser",
    }
