"""Several models side by side, on real servers: who is answered by which, what is counted, what survives."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bert4rec.errors import UsageError
from bert4rec.service.experiment import arms_of, draw
from bert4rec.store.events import open_store
from bert4rec.store.feedback import new_id, subject_of
from tests.service.application import TestClient, assert_problem
from tests.service.servers import RunningServer, running, variant
from tests.service.test_workers import Client, clients_of_each, until
from tests.store.test_sqlite_files import traces_of

USERS = [f"user-{number}" for number in range(40)]
SHARES = {"champion": 60, "challenger": 40}


@pytest.fixture(scope="session")
def models(exported_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models that can be told by what they recommend."""
    folder = tmp_path_factory.mktemp("arms")
    return {
        "champion": variant(exported_model, folder / "a", "one", favourite=7),
        "challenger": variant(exported_model, folder / "b", "two", favourite=9),
    }


@contextmanager
def serving(models: dict[str, Path], store: str, *options: str) -> Iterator[RunningServer]:
    first, *others = (f"{name}={folder}" for name, folder in models.items())
    split = ":".join(str(SHARES[name]) for name in models)
    with running(Path(first), *others, "--split", split, *options, store=store) as server:
        yield server


def ask(client: httpx2.Client, **request: Any) -> dict[str, Any]:
    response = client.post("/v1/recommend", json={"k": 1, **request})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def ask_at(client: Client, **request: Any) -> dict[str, Any]:
    """By a connection to a certain worker."""
    headers = {"Content-Type": "application/json"}
    client.connection.request("POST", "/v1/recommend", json.dumps({"k": 1, **request}), headers)
    answer: dict[str, Any] = json.loads(client.connection.getresponse().read())
    return answer


def expected_arm(user: str, shares: dict[str, int] = SHARES) -> str:
    return min(shares, key=lambda name: draw(name, shares[name], user))


def counted(
    store_url: str, table: str = "exposures", what: str = "*", more: str = ""
) -> list[tuple[Any, ...]]:
    store = open_store(store_url)
    try:
        return store.query(f"SELECT {what} FROM bert4rec_{table} {more}")
    finally:
        store.close()


# Who is answered by which


def test_ten_thousand_users_are_split_by_the_shares() -> None:
    found = Counter(expected_arm(f"{number}", {"champion": 90, "challenger": 10}) for number in range(10_000))
    assert abs(found["challenger"] - 1000) < 4 * 30, "four standard deviations"


def test_who_is_in_an_arm_stays_so_in_every_version() -> None:
    """Written down: another hash would put users of a test that goes on into another arm."""
    shares = {"champion": 90, "challenger": 10}
    members = [number for number in range(60) if expected_arm(str(number), shares) == "challenger"]
    assert members == [11, 30, 42]


def moves(before: dict[str, int], after: dict[str, int]) -> Counter[tuple[str, str]]:
    """How many of a thousand users go from which arm to which."""
    pairs = ((expected_arm(str(user), before), expected_arm(str(user), after)) for user in range(1000))
    return Counter((one, other) for one, other in pairs if one != other)


def test_a_change_of_shares_moves_hardly_anybody_but_those_who_must_move() -> None:
    assert moves({"a": 90, "b": 10}, {"a": 80, "b": 20}).keys() == {("a", "b")}
    assert moves({"a": 90, "b": 10}, {"b": 1, "a": 9}) == Counter()
    three = {"a": 80, "b": 10, "c": 10}
    assert moves(three, {"a": 60, "b": 20, "c": 20}).keys() == {("a", "b"), ("a", "c")}
    assert {after for _, after in moves(three, {**three, "d": 5})} == {"d"}
    assert moves(three, {"a": 70, "b": 20, "c": 10}).total() < 130


def test_users_stay_in_their_group_over_requests_workers_and_restarts(
    models: dict[str, Path], tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'history.db'}"
    favourites = {"champion": "i7", "challenger": "i9"}

    def check(clients: Iterable[Client]) -> None:
        for user in USERS:
            for client in clients:
                by_user = ask_at(client, user_id=user)
                by_subject = ask_at(client, history=["i1"], subject=user)
                assert by_user["model"]["arm"] == by_subject["model"]["arm"] == expected_arm(user)
                assert by_subject["items"][0]["item_id"] == favourites[expected_arm(user)]

    with serving(models, store) as server:
        with closing(Client(server)) as client:
            check([client])
        assert server.stop() == 0
    with serving(models, store, "--workers", "2") as server:
        with clients_of_each(server) as clients:
            check(clients.values())
        assert server.stop() == 0
    given = counted(store, what="subject, sum(recommendations)", more="GROUP BY subject")
    assert dict(given) == dict.fromkeys(map(subject_of, USERS), 6), "twice by each of three processes"


def test_a_batch_is_answered_entry_by_entry(models: dict[str, Path], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'history.db'}"
    with serving(models, store) as server, server.client() as client:
        requests = [
            *({"user_id": user, "k": 1} for user in USERS),
            {"history": ["i1"], "subject": 17},
            {"history": ["i1"]},
            {"wrong": 1},
        ]
        results = client.post("/v1/recommend/batch", json={"requests": requests}).json()["results"]
        arms = [each["model"]["arm"] for each in results[:-1]]
        assert arms == [*map(expected_arm, USERS), expected_arm("17"), "champion"]
        assert len(set(arms)) == 2
        assert results[-1]["error"]["code"] == "invalid_request"
        assert server.stop() == 0
    assert len(counted(store)) == len(USERS) + 1, "who does not say who it is does not count"


def test_whoever_asks_for_nobody_is_answered_by_the_first_model(
    models: dict[str, Path], tmp_path: Path
) -> None:
    with serving(models, f"sqlite:///{tmp_path / 'history.db'}") as server, server.client() as client:
        assert ask(client, history=["i1"])["model"] == {
            "name": "films",
            "version": "one",
            "arm": "champion",
        }
        assert client.get("/v1/items/i1/similar").json()["model"]["arm"] == "champion"
        ranked = {
            client.post("/v1/rank", json={"history": [], "items": ["i1"], "subject": user}).json()["model"][
                "arm"
            ]
            for user in USERS
        }
        assert ranked == {"champion", "challenger"}


def test_each_arm_has_versions_of_its_own(
    models: dict[str, Path], exported_model: Path, tmp_path: Path
) -> None:
    """A new challenger is taken over, and rolled back in all workers, while the champion stays."""
    link = tmp_path / "current"
    link.symlink_to(models["challenger"])
    third = variant(exported_model, tmp_path / "c", "three")
    served = {"champion": models["champion"], "challenger": link}
    store = f"sqlite:///{tmp_path / 'history.db'}"
    with serving(served, store, "--watch", "--workers", "2") as server, server.client() as client:

        def versions() -> set[tuple[str, str, str, int]]:
            with server.client() as any_worker:
                found = any_worker.get("/v1/models").json()["models"]
            return {(each["arm"], each["version"], each["state"], each["share"]) for each in found}

        def all_say(expected: set[tuple[str, str, str, int]]) -> bool:
            return all(versions() == expected for _ in range(4))

        until(lambda: all_say({("champion", "one", "current", 60), ("challenger", "two", "current", 40)}))
        (tmp_path / "next").symlink_to(third)
        (tmp_path / "next").rename(link)
        switched = {
            ("champion", "one", "current", 60),
            ("challenger", "three", "current", 40),
            ("challenger", "two", "previous", 40),
        }
        until(lambda: all_say(switched))
        assert_problem(client.post("/v1/models/rollback"), 422, "unknown_arm")
        assert_problem(client.post("/v1/models/rollback?arm=nobody"), 404, "unknown_arm")
        assert_problem(client.post("/v1/models/rollback?arm=champion"), 409, "no_previous_model")
        assert client.post("/v1/models/rollback?arm=challenger").status_code == 200
        back = {
            ("champion", "one", "current", 60),
            ("challenger", "two", "current", 40),
            ("challenger", "three", "previous", 40),
        }
        until(lambda: all_say(back))


def test_one_model_is_served_as_before(client: TestClient) -> None:
    answer = ask(client, history=["i1"], subject="ann")
    assert answer["model"].keys() == {"name", "version"}
    (model,) = client.get("/v1/models").json()["models"]
    assert not {"arm", "share"} & model.keys()
    assert_problem(client.post("/v1/models/rollback?arm=champion"), 404, "unknown_arm")
    assert_problem(client.post("/v1/models/rollback"), 409, "no_previous_model")


@pytest.mark.parametrize(
    ("names", "split", "message"),
    [
        (["a"], [1], "two models or more"),
        (["a", "b"], None, "2 models need `split`"),
        (["a", "b"], [90], "2 whole numbers from 1 on"),
        (["a", "b"], [90, 0], "2 whole numbers from 1 on"),
        (["a", "b:c"], [90, 10], "'b:c' is no name"),
        (["a", ""], [90, 10], "'' is no name"),
    ],
)
def test_wrong_arms_are_refused(names: list[str], split: list[int] | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arms_of(dict.fromkeys(names, "model"), split)


# Feedback


def feedback(client: httpx2.Client, *entries: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/v1/feedback", json={"feedback": list(entries)})
    assert response.status_code == 202, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_feedback_survives_a_kill_and_counts_once(models: dict[str, Path], store_url: str) -> None:
    with serving(models, store_url, "--workers", "2") as server, server.client() as client:
        answer = ask(client, user_id="ann")
        clicked = {"recommendation_id": answer["recommendation_id"], "item_id": "i7"}
        assert feedback(client, clicked) == {"accepted": 1, "duplicates": 0, "rejected": []}
        server.kill()
    assert counted(store_url, "feedback", "subject, item_id, kind") == [(subject_of("ann"), "i7", "click")]
    with serving(models, store_url) as server, server.client() as client:
        bought = {**clicked, "kind": "purchase"}
        assert feedback(client, clicked, bought, bought) == {"accepted": 1, "duplicates": 2, "rejected": []}
    assert len(counted(store_url, "feedback")) == 2


def test_what_was_given_is_on_disk_soon_and_at_the_latest_when_the_service_ends(
    models: dict[str, Path], store_url: str
) -> None:
    with serving(models, store_url) as server, server.client() as client:
        ask(client, user_id="ann")
        until(lambda: counted(store_url, what="subject, recommendations") == [(subject_of("ann"), 1)])
        ask(client, user_id="ann")
        ask(client, history=[], subject="ben")
        assert server.stop() == 0
    found = dict(counted(store_url, what="subject, recommendations"))
    assert found == {subject_of("ann"): 2, subject_of("ben"): 1}
    arms = {(arm, version) for _, _, arm, version, _ in counted(store_url, "served")}
    versions = {"champion": "one", "challenger": "two"}
    assert arms == {(expected_arm(user), versions[expected_arm(user)]) for user in ("ann", "ben")}


def test_feedback_that_cannot_be_is_refused_and_the_rest_is_kept(client: TestClient) -> None:
    mine = ask(client, history=["i1"])["recommendation_id"]
    future = "f" * 12 + mine[12:]
    answer = feedback(
        client,
        {"recommendation_id": "nonsense", "item_id": "i1"},
        {"recommendation_id": future, "item_id": "i1"},
        {"recommendation_id": mine, "item_id": "i1", "timestamp": "9999-01-01T00:00:00Z"},
        {"recommendation_id": mine, "item_id": "i1", "timestamp": "2026-01-31T12:00:00Z"},
        {"recommendation_id": new_id("0123ab", None), "item_id": "never seen"},
    )
    assert answer["accepted"] == 2
    assert answer["rejected"] == [
        {"index": 0, "code": "malformed_recommendation_id"},
        {"index": 1, "code": "future_recommendation_id"},
        {"index": 2, "code": "future_timestamp"},
    ]
    for wrong in (
        {"feedback": [{"item_id": "i1"}]},
        {"feedback": [{"recommendation_id": mine, "item_id": "i1", "kind": "x" * 65}]},
        {"feedback": [{"recommendation_id": mine, "item_id": "i1"}] * 1001},
        {},
    ):
        assert_problem(client.post("/v1/feedback", json=wrong), 422, "invalid_request")


def test_metrics_tell_the_arms_apart(models: dict[str, Path], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'history.db'}"
    with serving(models, store, "--workers", "2") as server, server.client() as client:
        answers = [ask(client, user_id=user) for user in USERS]
        clicks = [{"recommendation_id": each["recommendation_id"], "item_id": "i7"} for each in answers]
        feedback(client, *clicks, {"recommendation_id": new_id("0123ab", None), "item_id": "i1"})
        lines = client.get("/metrics").text.splitlines()
    given = Counter(map(expected_arm, USERS))
    for arm, version in (("champion", "one"), ("challenger", "two")):
        assert f'bert4rec_recommendations_total{{arm="{arm}",version="{version}"}} {given[arm]}.0' in lines
        assert f'bert4rec_feedback_total{{arm="{arm}",result="accepted"}} {given[arm]}.0' in lines
    assert 'bert4rec_feedback_total{arm="other",result="accepted"} 1.0' in lines


def test_of_a_forgotten_user_nothing_is_left_and_nothing_comes_back(
    models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    store = f"sqlite:///{tmp_path / 'store' / 'history.db'}"
    with serving(models, store) as server, server.client() as client:
        for user in USERS:
            answer = ask(client, user_id=user)
            feedback(client, {"recommendation_id": answer["recommendation_id"], "item_id": "i7"})
        until(lambda: len(counted(store)) == len(USERS))
        ask(client, user_id=USERS[0])  # not written yet
        assert client.delete(f"/v1/users/{USERS[0]}/history").json()["traces"] is None
        assert traces_of(tmp_path / "store", subject_of(USERS[0])) == []
        assert server.stop() == 0
    assert traces_of(tmp_path / "store", subject_of(USERS[0])) == []
    assert traces_of(tmp_path / "store", subject_of(USERS[1])) != []


def test_recommendations_wait_for_a_store_that_is_locked(models: dict[str, Path], tmp_path: Path) -> None:
    """Requests that carry their history are answered meanwhile, and counted afterwards."""
    path = tmp_path / "history.db"
    with serving(models, f"sqlite:///{path}") as server, server.client() as client:
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            ask(client, history=["i1"], subject="ann")
            server.wait_for_line("Requests that write stored events fail")
            other.execute("ROLLBACK")
        other.close()
        until(lambda: counted(f"sqlite:///{path}", what="subject, recommendations"))
        assert server.stop() == 0
    assert counted(f"sqlite:///{path}", what="recommendations") == [(1,)]
