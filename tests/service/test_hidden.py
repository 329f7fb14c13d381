"""Items that are hidden: recommended by nothing from the next request on, in every worker, also after a crash."""

import asyncio
import json
import os
import signal
from collections.abc import Collection
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from bert4rec.service.app import Settings, create_app
from bert4rec.service.change_mark import ChangeMark
from bert4rec.service.hidden_items import HiddenItems
from bert4rec.service.served_models import ModelVersions, ServedModel
from bert4rec.service.stored_events import StoredEvents
from bert4rec.service.telemetry.counters import Metrics
from bert4rec.store.events import open_store
from bert4rec.store.hiding import Hiding
from tests.service.application import TestClient, assert_problem, event, post_events, settings_for
from tests.service.postgres import Postgres
from tests.service.servers import running, variant
from tests.service.test_workers import clients_of_each, until

EVERYTHING = {"history": ["i4"], "k": 60}
PAST, FUTURE = "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z"


def recommended(client: httpx2.Client, **request: Any) -> list[Any]:
    answer = client.post("/v1/recommend", json={**EVERYTHING, **request})
    assert answer.status_code == 200, answer.text
    return [item["item_id"] for item in answer.json()["items"]]


def hide(client: httpx2.Client, item: str, **period: str) -> dict[str, Any]:
    answer = (
        client.put(f"/v1/items/{item}/hidden", json=period)
        if period
        else client.put(f"/v1/items/{item}/hidden")
    )
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def show(client: httpx2.Client, item: str) -> dict[str, Any]:
    answer = client.delete(f"/v1/items/{item}/hidden")
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def hidden(client: httpx2.Client, **parameters: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get("/v1/items/hidden", params=parameters).json()["items"]
    return items


# What it means


def test_a_hidden_item_is_recommended_by_nothing_until_it_is_shown_again(client: TestClient) -> None:
    post_events(client, event("e1", "ann", "i4"))
    best = recommended(client, k=1)[0]

    def everywhere() -> list[list[str]]:
        batch = client.post(
            "/v1/recommend/batch",
            json={"requests": [EVERYTHING, {"user_id": "ann", "k": 60}, {"history": [], "k": 60}]},
        ).json()["results"]
        similar = client.get("/v1/items/i4/similar", params={"k": 59}).json()["items"]
        lists = [[item["item_id"] for item in each] for each in (*(each["items"] for each in batch), similar)]
        return [
            *lists,
            recommended(client),
            recommended(client, history=[]),
            recommended(client, candidates=[best, "i9"]),
        ]

    assert all(best in each for each in everywhere())
    hide(client, best)
    without = everywhere()
    assert not any(best in each for each in without)
    assert [len(each) for each in without] == [58, 58, 59, 58, 58, 59, 1]
    assert show(client, best) == {"item_id": best, "title": f"Film {int(best[1:]):03}", "was_listed": True}
    assert all(best in each for each in everywhere())
    assert show(client, best)["was_listed"] is False


def test_hidden_items_are_ranked_explained_found_and_part_of_histories_because_they_are_named(
    client: TestClient,
) -> None:
    def answers() -> list[Any]:
        bodies = {
            "/v1/rank": {"history": ["i4"], "items": ["i1", "i2", "i3"]},
            "/v1/explain": {"history": ["i1", "i2"], "item_id": "i1"},
            "/v1/recommend": {"history": ["i1"], "k": 5, "candidates": ["i8", "i9"]},
        }
        found = [client.post(path, json=body).json() for path, body in bodies.items()]
        found += [client.get("/v1/items", params={"query": "Film 001"}).json()]
        return [{**each, "took_ms": 0, "recommendation_id": ""} for each in found]

    before = answers()
    hide(client, "i1")
    assert answers() == before
    similar = client.get("/v1/items/i1/similar", params={"k": 60}).json()["items"]
    assert len(similar) == 59


def test_ranks_and_recommendations_in_one_batch_do_not_disturb_each_other(client: TestClient) -> None:
    hide(client, "i1")

    async def ask() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(base_url=client.base_url, timeout=60) as each:
            bodies = [
                ("/v1/rank", {"history": ["i4"], "items": ["i1", "i2"]}),
                ("/v1/recommend", EVERYTHING),
            ] * 40
            return await asyncio.gather(*(each.post(path, json=body) for path, body in bodies))

    for ranked, found in zip(*[iter(asyncio.run(ask()))] * 2, strict=True):
        assert {item["item_id"] for item in ranked.json()["items"]} == {"i1", "i2"}
        assert len(found.json()["items"]) == 58


def test_what_is_hidden_is_listed_with_titles_and_dates_the_latest_first(client: TestClient) -> None:
    hide(client, "i2", **{"from": "2025-12-31T23:00:00-01:00", "until": "2026-01-02T00:00:00.5Z"})
    hide(client, "tomorrow's item", until=FUTURE)
    answer = hide(client, "i3", **{"from": FUTURE})
    assert answer == {
        "item_id": "i3",
        "title": "Film 003",
        "from": FUTURE,
        "until": None,
        "hidden_now": False,
    }
    listed = hidden(client)
    assert listed[0] == answer
    assert listed[1]["from"] < listed[1]["until"] == FUTURE
    assert (listed[1]["item_id"], listed[1]["title"], listed[1]["hidden_now"]) == (
        "tomorrow's item",
        None,
        True,
    )
    assert listed[2] == {
        "item_id": "i2",
        "title": "Film 002",
        "from": "2026-01-01T00:00:00Z",
        "until": "2026-01-02T00:00:00.500000Z",
        "hidden_now": False,
    }
    assert len(recommended(client)) == 59  # all but the one that the history ends with
    assert hidden(client, limit=1) == listed[:1]
    assert client.get("/v1/items/hidden", params={"limit": 1}).json()["total"] == 3


def test_a_second_request_replaces_what_the_first_one_said(client: TestClient) -> None:
    hide(client, "i2", **{"from": PAST, "until": FUTURE})
    hide(client, "i2", **{"from": FUTURE})
    assert "i2" in recommended(client)
    hide(client, "i2")
    assert "i2" not in recommended(client)
    assert [each["until"] for each in hidden(client)] == [None]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"until": PAST}, "until: must lie ahead, as from is missing"),
        ({"from": FUTURE, "until": FUTURE}, "until: must be later than from"),
        ({"from": "tomorrow"}, "from: must be a time with its time zone, as in 2026-01-31T12:00:00Z"),
        ({"from": 1767225600}, "from: must be a time with its time zone, as in 2026-01-31T12:00:00Z"),
        ({"to": FUTURE}, "to: unknown field"),
        ([], "body: Input should be an object"),
    ],
)
def test_mistakes_are_named_and_hide_nothing(client: TestClient, body: object, message: str) -> None:
    problem = assert_problem(client.put("/v1/items/i1/hidden", json=body), 422, "invalid_request")
    assert problem["detail"] == message
    assert hidden(client) == []


@pytest.mark.parametrize("blank", [" ", " \u2003\xa0"])
def test_a_blank_id_is_refused_wherever_it_would_be_stored(client: TestClient, blank: str) -> None:
    answer = client.post("/v1/recommend", json=EVERYTHING).json()["recommendation_id"]
    refused = {
        "item_id": client.put(f"/v1/items/{quote(blank)}/hidden"),
        "events.1.item_id": client.post("/v1/events", json={"events": [event("1"), event("2", item=blank)]}),
        "feedback.0.item_id": client.post(
            "/v1/feedback", json={"feedback": [{"recommendation_id": answer, "item_id": blank}]}
        ),
    }
    for field, response in refused.items():
        problem = assert_problem(response, 422, "invalid_request")
        assert problem["detail"].startswith(f"{field}: must ")
        assert problem["detail"].endswith("not be blank" if field == "item_id" else "; not blank")
    assert hidden(client) == []
    assert client.get("/v1/users/u1/history").json()["events"] == []
    assert show(client, quote(blank))["was_listed"] is False


def test_a_body_must_be_json_and_say_so(client: TestClient) -> None:
    assert_problem(client.put("/v1/items/i1/hidden", content=b"{}"), 415, "unsupported_media_type")
    headers = {"content-type": "application/json"}
    assert_problem(client.put("/v1/items/i1/hidden", content=b"{", headers=headers), 400, "invalid_json")
    assert_problem(client.put("/v1/items//hidden"), 422, "invalid_request")


@pytest.mark.parametrize("item", ["a/b", "hidden", "a/hidden", "%", "i1/similar", "ünï ?#"])
def test_ids_of_any_kind_can_be_hidden(client: TestClient, item: str) -> None:
    assert hide(client, quote(item, safe=""))["item_id"] == item
    assert [each["item_id"] for each in hidden(client)] == [item]
    assert show(client, quote(item, safe=""))["was_listed"]
    assert hidden(client) == []


def test_ids_that_are_numbers_are_hidden_however_they_are_written(
    exported_model: Path, tmp_path: Path
) -> None:
    model = variant(exported_model, tmp_path / "model", "numbers", whole_numbers=True)
    with TestClient(create_app(settings_for(model, tmp_path))) as client:
        assert hide(client, "7.0")["item_id"] == 7
        assert 7 not in recommended(client, history=[4])
        assert show(client, "7")["was_listed"]
        assert 7 in recommended(client, history=[4])


def test_an_item_that_is_listed_by_another_spelling_is_the_same_item(
    exported_model: Path, tmp_path: Path
) -> None:
    model = variant(exported_model, tmp_path / "model", "numbers", whole_numbers=True)
    settings = settings_for(model, tmp_path)
    store = open_store(settings.store)
    store.hide([Hiding("42.0", 1), Hiding("42.00", 2), Hiding("43.0", 3), Hiding("44", 4)])
    with TestClient(create_app(settings)) as client:
        assert 42 not in recommended(client, history=[4])
        hide(client, "42", **{"from": FUTURE})
        assert 42 in recommended(client, history=[4])
        assert [each["item_id"] for each in hidden(client)] == [42, 44, 43]
        assert show(client, "43") == {"item_id": 43, "title": "Film 043", "was_listed": True}
        assert 43 in recommended(client, history=[4])
        assert [each["item_id"] for each in hidden(client)] == [42, 44]
    store.close()


def test_other_methods_are_refused_by_the_list_of_those_that_are_allowed(client: TestClient) -> None:
    problem = client.post("/v1/items/i1/hidden", json={})
    assert_problem(problem, 405, "method_not_allowed")
    assert problem.headers["allow"] == "DELETE, PUT"
    assert client.put("/v1/items/hidden").headers["allow"] == "GET, HEAD"


def test_to_hide_needs_a_key_that_may_write(exported_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("".join(f'[{role}]\nkey = "{role * 4}"\nrole = "{role}"\n' for role in ("read", "write")))
    with TestClient(create_app(settings_for(exported_model, tmp_path, api_key_file=keys))) as client:
        assert_problem(client.get("/v1/items/hidden"), 401, "unauthorized")
        client.headers["X-API-Key"] = "read" * 4
        assert hidden(client) == []
        assert_problem(client.put("/v1/items/i1/hidden"), 403, "forbidden")
        assert_problem(client.delete("/v1/items/i1/hidden"), 403, "forbidden")
        client.headers["X-API-Key"] = "write" * 4
        assert hide(client, "i1")["hidden_now"]


# When it begins to hold


class Clock:
    def __init__(self) -> None:
        self.moment = 100

    def __call__(self) -> int:
        return self.moment


def test_dates_take_effect_by_themselves_when_their_moment_comes(
    exported_model: Path, tmp_path: Path
) -> None:
    async def run() -> None:
        store, clock = open_store(f"sqlite:///{tmp_path / 'history.db'}"), Clock()
        store.hide(
            [Hiding("i1", 110, 120), Hiding("i2", 50, 115), Hiding("i3", 200), Hiding("unknown", 0, 105)]
        )
        metrics = Metrics()
        versions = ModelVersions(exported_model, partial(ServedModel, threads=1, metrics=metrics), metrics)
        events = StoredEvents(store, versions, Metrics())
        items = HiddenItems(events, versions, ChangeMark(), clock)
        found = []
        for moment in (100, 109, 110, 114, 115, 119, 120, 199, 200):
            clock.moment = moment
            model = await items.obeyed_by(versions.current)
            found.append("".join(str(each.item_id) for each in model.visible.recommend([], 3).items))
        assert found == [
            "i1i3i4", "i1i3i4", "i3i4i5", "i3i4i5", "i2i3i4", "i2i3i4", "i1i2i3", "i1i2i3", "i1i2i4",
        ]  # fmt: skip
        await events.stop()
        await versions.stop()
        store.close()

    asyncio.run(run())


def test_the_next_request_to_any_worker_obeys_and_so_does_a_service_that_was_killed(
    exported_model: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'history.db'}"

    def tell_all(clients: Collection[Client], expected: set[str]) -> None:
        for client in clients:
            assert set(map(str, client.recommended())) == {f"i{n}" for n in range(1, 61)} - {"i4"} - expected

    with running(exported_model, "--workers", "2", store=store) as server:
        with clients_of_each(server) as workers, server.client() as changing:
            clients = [Client(each.connection) for each in workers.values()]
            names = []
            for number in range(5, 25):
                hide(changing, f"i{number}")
                names.append(f"i{number}")
                tell_all(clients, set(names))
            show(changing, "i5")
            tell_all(clients, set(names[1:]))
            victim = next(iter(workers))
            os.kill(victim, signal.SIGKILL)
            server.wait_for_line(f"Worker {victim} ended")
        with clients_of_each(server) as workers, server.client() as changing:
            clients = [Client(each.connection) for each in workers.values()]
            tell_all(clients, set(names[1:]))
            hide(changing, "i5")
            tell_all(clients, set(names))
            hide(changing, "i30")
            server.kill()
    with running(exported_model, "--workers", "2", store=store) as server, clients_of_each(server) as workers:
        tell_all([Client(each.connection) for each in workers.values()], {*names, "i30"})


class Client:
    """Asks over a connection that leads to one worker."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def recommended(self) -> list[str]:
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v1/recommend", json.dumps(EVERYTHING), headers)
        return [item["item_id"] for item in json.loads(self._connection.getresponse().read())["items"]]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_others_change_in_the_store_is_noticed(
    exported_model: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path / 'history.db'}"
    if kind == "postgres":
        store = request.getfixturevalue("postgres").new_store()
    with TestClient(create_app(Settings(exported_model, store))) as client:
        assert "i2" in recommended(client)
        other = open_store(store)
        other.hide([Hiding("i2", 0)])
        until(lambda: "i2" not in recommended(client))
        other.unhide(["i2"])
        until(lambda: "i2" in recommended(client))
        other.close()


def test_a_new_model_obeys_from_its_first_request_on(exported_model: Path, tmp_path: Path) -> None:
    model = variant(exported_model, tmp_path / "model", "one")
    with running(model, "--watch") as server, server.client() as client:
        hide(client, "i7")
        variant(exported_model, tmp_path / "next", "two", favourite=7).rename(tmp_path / "two")
        model.rename(tmp_path / "one")
        (tmp_path / "two").rename(model)

        def version() -> str:
            answer = client.post("/v1/recommend", json=EVERYTHING).json()
            assert "i7" not in [item["item_id"] for item in answer["items"]]
            found: str = answer["model"]["version"]
            return found

        until(lambda: version() == "two")
        show(client, "i7")
        assert recommended(client)[0] == "i7"


def test_while_the_store_is_away_the_known_list_stays_in_force(
    exported_model: Path, postgres: Postgres
) -> None:
    with running(exported_model, store=postgres.new_store()) as server, server.client() as client:
        hide(client, "i2")
        assert "i2" not in recommended(client)
        postgres.stop()
        try:
            server.wait_for_line("What is hidden cannot be read; the known list stays in force")
            assert "i2" not in recommended(client)
            assert [each["item_id"] for each in hidden(client)] == ["i2"]
            assert_problem(client.put("/v1/items/i3/hidden"), 503, "store_unavailable")
            assert "i3" in recommended(client)
        finally:
            postgres.start()
        server.wait_for_line("What is hidden can be read again")
        until(lambda: client.put("/v1/items/i3/hidden").status_code == 200)
        assert "i3" not in recommended(client)


# Users


def test_a_user_is_forgotten_and_never_another_one(client: TestClient) -> None:
    users = ("ann", "ann/history", "history", "ann/history/history")
    post_events(client, *(event(user, user, "i1") for user in users))

    def left() -> list[str]:
        paths = {user: f"/v1/users/{quote(user, safe='')}/history" for user in users}
        return [user for user, path in paths.items() if client.get(path).json()["events"]]

    def forget(path: str) -> int:
        answer = client.delete(f"/v1/users/{path}")
        assert answer.status_code == 200
        deleted: int = answer.json()["deleted"]
        return deleted

    assert forget("ann%2Fhistory") == 1
    assert left() == ["ann", "history", "ann/history/history"]
    assert forget("ann%2fhistory%2fhistory") == 1
    assert left() == ["ann", "history"]
    assert forget("history/history") == 1
    assert left() == ["ann"]
    assert forget("ann") == 1
    assert forget("ann") == 0
    assert_problem(client.delete("/v1/users/"), 422, "invalid_request")
    assert client.get("/v1/users/ann").headers["allow"] == "DELETE"
