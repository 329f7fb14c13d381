"""The service as an application, in this process: what goes wrong inside, and who is harmed by it."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bert4rec.recommend.recommender import Recommender
from bert4rec.service import served_models as models_module
from bert4rec.service import service as service_module
from bert4rec.service.app import Settings, create_app
from bert4rec.service.served_models import TopItems
from bert4rec.store import sqlite_store
from tests.service.application import TestClient, assert_problem, event, post_events, settings_for
from tests.service.postgres import Postgres
from tests.store.test_sqlite_files import reader

JSON = {"Content-Type": "application/json"}


class Poisoned(Recommender):
    """Fails whenever item 13 is in a history; a history of three holds it up; remembers what it was asked."""

    hold = threading.Event()
    begun = threading.Event()
    asked: ClassVar[list[list[int]]] = []

    def top(self, questions: Any) -> list[TopItems]:
        self.asked.extend(question.history.tolist() for question in questions)
        if any(13 in question.history for question in questions):
            raise RuntimeError("poison")
        if any(len(question.history) == 3 for question in questions):
            self.begun.set()
            assert self.hold.wait(30)
        return super().top(questions)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> type[Poisoned]:
    monkeypatch.setattr(models_module, "Recommender", Poisoned)
    Poisoned.hold.clear()
    Poisoned.begun.clear()
    return Poisoned


def test_a_poisoned_request_harms_nobody_else(
    poisoned: type[Poisoned], exported_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are in one batch: all wait behind a request that is held up."""
    with (
        TestClient(create_app(settings_for(exported_model, tmp_path))) as client,
        ThreadPoolExecutor(12) as pool,
    ):
        first = pool.submit(client.post, "/v1/recommend", json={"history": ["i1", "i2", "i3"]})
        assert poisoned.begun.wait(30)
        histories = [["i13"] if number == 4 else [f"i{number + 20}"] for number in range(9)]
        others = [
            pool.submit(client.post, "/v1/recommend", json={"history": history}) for history in histories
        ]
        poisoned.hold.set()
        assert first.result().status_code == 200
        statuses = [other.result().status_code for other in others]
        assert statuses == [200] * 4 + [500] + [200] * 4
        problem = assert_problem(others[4].result(), 500, "internal_error")
        assert "poison" not in problem["detail"]
    assert problem["request_id"] in caplog.text


def test_past_the_queues_bound_requests_are_turned_away_and_told_when_to_come_back(
    poisoned: type[Poisoned], exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_module, "MAX_WAITING", 2)
    app = create_app(settings_for(exported_model, tmp_path))
    with TestClient(app) as client, ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client.post, "/v1/recommend", json={"history": ["i1", "i2", "i3"]})]
        assert poisoned.begun.wait(30)
        waiting += [pool.submit(client.post, "/v1/recommend", json={"history": ["i1"]}) for _ in range(2)]
        while not app.is_overloaded():
            client.get("/health/live")
        for path in ("/v1/recommend", "/v1/rank"):
            response = client.post(path, json={"history": []})
            assert_problem(response, 503, "overloaded")
            assert int(response.headers["retry-after"]) >= 1
        assert client.get("/health/ready").status_code == 200
        poisoned.hold.set()
        assert [each.result().status_code for each in waiting] == [200] * 3
        assert client.post("/v1/recommend", json={"history": []}).status_code == 200


def test_a_batch_is_taken_up_whole_or_not_at_all_and_single_requests_go_before_it(
    poisoned: type[Poisoned], exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_module, "MAX_WAITING_IN_GROUPS", 100)
    monkeypatch.setattr(models_module, "MAX_BATCH", 4)
    with (
        TestClient(create_app(settings_for(exported_model, tmp_path))) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        poisoned.asked.clear()
        first = pool.submit(client.post, "/v1/recommend", json={"history": ["i1", "i2", "i3"]})
        assert poisoned.begun.wait(30)
        body = {"requests": [{"history": ["i4"]}] * 100}
        batch = pool.submit(client.post, "/v1/recommend/batch", json=body)
        while not queue_depth(client) >= 100:
            pass
        assert_problem(client.post("/v1/recommend/batch", json=body), 503, "overloaded")
        single = pool.submit(client.post, "/v1/recommend", json={"history": ["i5"]})
        while not queue_depth(client) > 100:
            pass
        poisoned.hold.set()
        assert first.result().status_code == single.result().status_code == 200
        assert {len(each["items"]) for each in batch.result().json()["results"]} == {10}
    assert poisoned.asked[1] == [5]


def queue_depth(client: TestClient) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("bert4rec_queue_depth "))


def test_answers_of_batches_that_nobody_reads_do_not_pile_up(
    exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for one. Whoever hangs up makes room again."""
    monkeypatch.setattr(service_module, "MAX_ITEMS_IN_BATCHES", 256 * 60)
    body = json.dumps({"requests": [{"history": ["i1"], "k": 60, "exclude_seen": False}] * 256}).encode()
    head = b"POST /v1/recommend/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with TestClient(create_app(settings_for(exported_model, tmp_path))) as client:
        address = (client.base_url.host, client.base_url.port)
        with socket.create_connection(address) as never_reads:
            never_reads.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            never_reads.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            while client.post("/v1/recommend/batch", content=body, headers=JSON).status_code == 200:
                pass
            assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
        while (response := client.post("/v1/recommend/batch", content=body, headers=JSON)).status_code != 200:
            assert_problem(response, 503, "overloaded")
        assert len(response.json()["results"]) == 256


def test_no_answer_in_time_is_a_problem_and_the_service_goes_on(
    poisoned: type[Poisoned], exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_module, "TIMEOUT", 0.05)
    with TestClient(create_app(settings_for(exported_model, tmp_path))) as client:
        response = client.post("/v1/recommend", json={"history": ["i1", "i2", "i3"]})
        assert_problem(response, 503, "deadline_exceeded")
        poisoned.hold.set()


def test_a_client_that_hangs_up_while_it_waits_costs_nothing(
    poisoned: type[Poisoned], exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_module, "MAX_WAITING", 2)
    app = create_app(settings_for(exported_model, tmp_path))
    poisoned.asked.clear()

    with TestClient(app) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post, "/v1/recommend", json={"history": ["i1", "i2", "i3"]})
        assert poisoned.begun.wait(30)
        patient = pool.submit(client.post, "/v1/recommend", json={"history": ["i4"]})
        while queue_depth(client) < 1:
            pass
        with socket.create_connection((client.base_url.host, client.base_url.port)) as hasty:
            body = b'{"history": ["i5"]}'
            head = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            hasty.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            while not app.is_overloaded():  # until both wait
                pass
        while 'code="499",route="/v1/recommend"} 1.0' not in client.get("/metrics").text:
            pass
        poisoned.hold.set()
        assert [each.result().status_code for each in (first, patient)] == [200, 200]
    assert poisoned.asked == [[1, 2, 3], [4]]


def test_without_its_store_the_service_still_answers_what_needs_none(
    exported_model: Path, tmp_path: Path
) -> None:
    settings = Settings(model=exported_model, store=f"postgresql://postgres@/nowhere?host={tmp_path}")
    with TestClient(create_app(settings)) as client:
        for response in (
            client.post("/v1/events", json={"events": [event("e1")]}),
            client.post("/v1/recommend", json={"user_id": "u1"}),
            client.get("/v1/users/u1/history"),
            client.delete("/v1/users/u1/history"),
        ):
            assert_problem(response, 503, "store_unavailable")
            assert "retry-after" in response.headers
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
        assert client.get("/health/ready").status_code == 200


def test_a_store_that_hangs_is_logged_and_keeps_nobody_from_stopping(
    exported_model: Path,
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(service_module, "TIMEOUT", 1.0)
    app = create_app(Settings(exported_model, postgres.new_store()))
    with ExitStack() as until_stopped, TestClient(app) as client:
        post_events(client, event("e1"))
        until_stopped.enter_context(postgres.frozen())
        assert_problem(client.get("/v1/users/u1/history"), 503, "deadline_exceeded")
        assert "fail: the history store does not respond in time" in caplog.text
    assert "requests that wait for it are abandoned" in caplog.text


def test_reads_do_not_wait_for_somebody_who_is_being_forgotten(
    exported_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which waits in turn for another process that reads the store as it was."""
    monkeypatch.setattr(sqlite_store, "WAIT_FOR_ERASURE", 4.0)
    with (
        TestClient(create_app(settings_for(exported_model, tmp_path))) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        post_events(client, event("e1"), event("e2", user="u2"))
        with reader(tmp_path / "history.db"):
            forgetting = pool.submit(client.delete, "/v1/users/u1/history")
            while client.get("/v1/users/u1/history").json()["events"]:
                pass
            assert len(client.get("/v1/users/u2/history").json()["events"]) == 1
            assert post_events(client, event("e3"))["accepted"] == 1
            assert not forgetting.done()
        answer = forgetting.result().json()
        assert (answer["deleted"], answer["traces"]) == (1, None), "the reader has left in time"


def test_a_conflict_concerns_the_request_that_has_it_and_no_other(
    exported_model: Path, tmp_path: Path
) -> None:
    """Also where many requests share a commit."""
    with (
        TestClient(create_app(settings_for(exported_model, tmp_path))) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        post_events(client, event("used"))

        def post(number: int) -> int:
            events = [event(f"e{number}"), event("used", item="i2" if number % 4 == 0 else "i1")]
            return client.post("/v1/events", json={"events": events}).status_code

        statuses = list(pool.map(post, range(200)))
        assert statuses == [409 if number % 4 == 0 else 202 for number in range(200)]
        assert len(client.get("/v1/users/u1/history").json()["events"]) == 151
