"""The service as an application, in this process: answers, limits, metrics."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert4rec.artefact import write_manifest
from bert4rec.errors import DataError
from bert4rec.recommend.recommender import Recommender
from bert4rec.service.app import create_app
from bert4rec.service.served_models import open_model, read_samples
from tests.conftest import NUM_ITEMS
from tests.service.application import HEALTH, TestClient, assert_problem, event, post_events, settings_for
from tests.service.servers import LARGE_ID, TRAINED, variant

# What is answered


def test_an_answer_has_the_documented_shape(client: TestClient, recommender: Recommender) -> None:
    response = client.post("/v1/recommend", json={"history": ["i3", "nobody", "i5"], "k": 2})
    answer = response.json()
    expected = recommender.recommend(["i3", "nobody", "i5"], 2)
    assert answer.pop("recommendation_id").isalnum()
    assert answer.pop("took_ms") > 0
    assert answer == {
        "model": {"name": recommender.name, "version": recommender.version},
        "items": [asdict(item) for item in expected.items],
        "context": {"source": "request", "used": 2, "unknown_items": ["nobody"]},
        "fallback": None,
    }


ids = st.integers(1, NUM_ITEMS).map("i{}".format) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    history=st.lists(ids, max_size=40),
    k=st.integers(1, 80),
    exclude_seen=st.booleans(),
    deny=st.lists(ids, max_size=5),
    allow=st.none() | st.lists(ids, max_size=10),
)
def test_http_and_python_give_the_same_answer(
    client: TestClient,
    recommender: Recommender,
    history: list[str],
    k: int,
    exclude_seen: bool,
    deny: list[str],
    allow: list[str] | None,
) -> None:
    request = {
        "history": history,
        "k": k,
        "exclude_seen": exclude_seen,
        "exclude_items": deny,
        "candidates": allow,
    }
    answer = client.post("/v1/recommend", json=request).json()
    expected = recommender.recommend(history, k, exclude_seen=exclude_seen, allow=allow, deny=deny)
    assert answer["items"] == [asdict(item) for item in expected.items]
    assert answer["context"]["used"] == expected.used
    assert set(answer["context"]["unknown_items"]) == set(expected.unknown_items)
    assert answer["fallback"] == expected.fallback


def test_a_users_stored_events_answer_like_the_same_history(client: TestClient) -> None:
    post_events(client, event("e2", item="i7", at="2026-01-02T00:00:00Z"), event("e1", item="i4"))
    by_user = client.post("/v1/recommend", json={"user_id": "u1"}).json()
    by_history = client.post("/v1/recommend", json={"history": ["i4", "i7"]}).json()
    assert by_user["context"] == {"source": "store", "used": 2, "unknown_items": []}
    assert by_user["items"] == by_history["items"]


@pytest.mark.parametrize("request_", [{"user_id": "nobody"}, {"history": []}, {"history": ["unheard-of"]}])
def test_without_a_known_item_the_popular_ones_answer_and_it_says_so(
    client: TestClient, request_: dict[str, Any]
) -> None:
    answer = client.post("/v1/recommend", json={**request_, "k": 3}).json()
    assert answer["fallback"] == "popular"
    assert [item["item_id"] for item in answer["items"]] == ["i1", "i2", "i3"]


def test_a_wrong_entry_of_a_batch_does_not_spoil_the_others(client: TestClient) -> None:
    entries: list[Any] = [{"history": ["i1"], "k": 2}, {"history": ["i1"], "k": 0}, {"user_id": "u"}, 7]
    response = client.post("/v1/recommend/batch", json={"requests": entries})
    first, second, third, fourth = response.json()["results"]
    assert response.status_code == 200
    assert first["items"] == client.post("/v1/recommend", json=entries[0]).json()["items"]
    assert second["error"]["code"] == fourth["error"]["code"] == "invalid_request"
    assert second["error"]["errors"][0]["field"] == "k"
    assert second["error"]["request_id"] == response.headers["x-request-id"]
    assert third["fallback"] == "popular"


def test_ranking_orders_the_named_items_alone(client: TestClient, recommender: Recommender) -> None:
    answer = client.post(
        "/v1/rank", json={"history": ["i1", "i2"], "items": ["i9", "i2", "unheard-of", "i30"]}
    ).json()
    expected = recommender.rank(["i1", "i2"], ["i9", "i2", "unheard-of", "i30"])
    assert {item["item_id"] for item in answer["items"]} == {"i9", "i2", "i30"}
    assert answer["items"] == [asdict(item) for item in expected.items]
    assert answer["context"]["unknown_items"] == ["unheard-of"]


def test_similar_items_and_explanations_are_those_of_the_model(
    client: TestClient, recommender: Recommender
) -> None:
    similar = client.get("/v1/items/i4/similar", params={"k": 3}).json()
    assert similar["items"] == [asdict(item) for item in recommender.similar("i4", 3).items]
    explained = client.post("/v1/explain", json={"history": ["i1", "who", "i2"], "item_id": "i9"}).json()
    expected = recommender.explain(["i1", "who", "i2"], "i9")
    assert (explained["unknown_items"], explained["fallback"]) == (["who"], None)
    assert explained["item"] == asdict(expected.item)
    assert explained["contributions"] == [asdict(each) for each in expected.contributions]
    assert expected.attention is not None
    assert np.allclose(explained["attention"], expected.attention)


def test_an_item_nobody_knows_is_a_404_where_everything_hangs_on_it(client: TestClient) -> None:
    assert_problem(client.get("/v1/items/unheard-of/similar"), 404, "unknown_item")
    assert_problem(
        client.post("/v1/explain", json={"history": ["i1"], "item_id": "unheard-of"}), 404, "unknown_item"
    )


def test_the_catalogue_is_searched_by_title(client: TestClient) -> None:
    found = client.get("/v1/items", params={"query": "film 01", "limit": 3}).json()
    assert found == {
        "items": [{"item_id": f"i{number}", "title": f"Film {number:03}"} for number in (10, 11, 12)]
    }


def test_sample_users_come_with_the_model(exported_model: Path, tmp_path: Path) -> None:
    model = variant(exported_model, tmp_path / "model", "samples")
    content = [{"user_id": "anna", "history": ["i3", "gone", "i1"]}, {"user_id": 7, "history": ["i2"]}]
    (model / "samples.json").write_text(json.dumps(content))
    with TestClient(create_app(settings_for(model, tmp_path))) as client:
        samples = client.get("/v1/samples").json()["samples"]
    assert [sample["user_id"] for sample in samples] == ["anna", 7]
    assert [[item["item_id"] for item in sample["history"]] for sample in samples] == [["i3", "i1"], ["i2"]]
    (model / "samples.json").write_text(json.dumps([{"user_id": None, "history": []}]))
    with pytest.raises(DataError, match=r"samples\.json is damaged"):
        read_samples(model)


# What is kept


def test_events_are_accepted_once_and_those_on_unknown_items_too(client: TestClient) -> None:
    new = event("e2", item="unheard-of", at="2026-01-02T00:00:00Z")
    answer = post_events(client, event("e1"), event("e1"), new, {**new, "event_id": "e3", "item_id": 17})
    assert answer == {"accepted": 3, "duplicates": 1, "rejected": [], "unknown_items": ["unheard-of", 17]}
    assert post_events(client, new)["duplicates"] == 1
    events = client.get("/v1/users/u1/history").json()["events"]
    assert [each["item_id"] for each in events] == ["i1", "unheard-of", "17"]
    context = client.post("/v1/recommend", json={"user_id": "u1"}).json()["context"]
    assert context == {"source": "store", "used": 1, "unknown_items": ["unheard-of", "17"]}


def test_an_item_counts_as_soon_as_a_model_knows_it(exported_model: Path, tmp_path: Path) -> None:
    """Both ways of writing 61, which the first model does not know, and the second does."""
    first = variant(exported_model, tmp_path / "first", "1", whole_numbers=True)
    with TestClient(create_app(settings_for(first, tmp_path))) as client:
        sent = [event("e1", item="61"), event("e2", item=" 61.0 ")]
        assert post_events(client, *sent)["unknown_items"] == ["61"]
    second = variant(first, tmp_path / "second", "2")
    catalogue = json.loads((second / "catalogue.json").read_text())
    catalogue["ids"][4] = "61"
    (second / "catalogue.json").write_text(json.dumps(catalogue))
    write_manifest(second, "model.json", json.loads((second / "model.json").read_text()))
    with TestClient(create_app(settings_for(second, tmp_path))) as client:
        answer = client.post("/v1/recommend", json={"user_id": "u1"}).json()
        assert answer["context"] == {"source": "store", "used": 2, "unknown_items": []}
        assert post_events(client, *sent)["duplicates"] == 2


def test_another_event_with_a_used_id_is_a_conflict_that_keeps_nothing(client: TestClient) -> None:
    post_events(client, event("e1"))
    body = {"events": [event("e2"), event("far", at="9999-01-01T00:00:00Z"), event("e1", item="i2")]}
    problem = assert_problem(client.post("/v1/events", json=body), 409, "event_conflict")
    assert [each["field"] for each in problem["errors"]] == ["events.2.event_id"]
    assert len(client.get("/v1/users/u1/history").json()["events"]) == 1
    assert post_events(client, event("e2"), event("e1"))["accepted"] == 1


def test_one_event_can_be_deleted(client: TestClient) -> None:
    post_events(client, event("a/b"), event("e2"))
    assert client.delete("/v1/events/a%2Fb").json() == {"deleted": 1, "traces": None}
    assert client.delete("/v1/events/a%2Fb").json() == {"deleted": 0, "traces": None}
    (kept,) = client.get("/v1/users/u1/history").json()["events"]
    assert kept["event_id"] == "e2"


def test_a_history_comes_back_in_order_and_can_be_deleted(client: TestClient) -> None:
    more = {"event_type": "view", "recommendation_id": "r1"}
    post_events(client, {**event("e2", at="2026-01-02T01:30:00.5+01:00"), **more}, event("e1"))
    assert client.get("/v1/users/u1/history").json() == {
        "events": [
            {**event("e1"), "event_type": None, "recommendation_id": None},
            {**event("e2", at="2026-01-02T00:30:00.500000Z"), **more},
        ]
    }
    assert [each["event_id"] for each in client.get("/v1/users/u1/history?limit=1").json()["events"]] == [
        "e2"
    ]
    assert client.delete("/v1/users/u1/history").json() == {"deleted": 2, "traces": None}
    assert client.get("/v1/users/u1/history").json() == {"events": []}


@pytest.mark.parametrize(
    ("number", "unit", "moment"),
    [
        (1767225600, "seconds", "2026-01-01T00:00:00Z"),
        (1767225600.5, "seconds", "2026-01-01T00:00:00.500000Z"),
        (1767225600123, "milliseconds", "2026-01-01T00:00:00.123000Z"),
        (1767225600123456, "microseconds", "2026-01-01T00:00:00.123456Z"),
        (1767225600123456789, "nanoseconds", "2026-01-01T00:00:00.123456Z"),
        (17, "seconds", "1970-01-01T00:00:17Z"),
        (17, "milliseconds", "1970-01-01T00:00:00.017000Z"),
        (-86400, "seconds", "1969-12-31T00:00:00Z"),
        ("2026-01-31T12:00:00+02:00", "seconds", "2026-01-31T10:00:00Z"),
    ],
)
def test_a_moment_may_be_a_number_since_1970_in_the_unit_that_the_request_names(
    client: TestClient, number: float | str, unit: str, moment: str
) -> None:
    body = {"time_unit": unit, "events": [{**event("e1"), "timestamp": number}]}
    assert client.post("/v1/events", json=body).json()["accepted"] == 1
    (kept,) = client.get("/v1/users/u1/history").json()["events"]
    assert kept["timestamp"] == moment


def test_what_lies_more_than_a_day_ahead_and_what_is_no_time_is_rejected_one_by_one(
    client: TestClient,
) -> None:
    def ahead(**by: float) -> float:
        return (datetime.now(UTC) + timedelta(**by)).timestamp()

    times = [ahead(hours=23), ahead(hours=25), 1e300, -1e300, ahead(days=365), "2026-01-31T12:00:00Z", 10**15]
    events = [{**event(f"e{place}"), "timestamp": each} for place, each in enumerate(times)]
    answer = client.post("/v1/events", json={"time_unit": "seconds", "events": events}).json()
    assert answer["accepted"] == 2
    assert [(each["index"], each["code"]) for each in answer["rejected"]] == [
        (1, "future_timestamp"),
        (2, "invalid_timestamp"),
        (3, "invalid_timestamp"),
        (4, "future_timestamp"),
        (6, "invalid_timestamp"),
    ]
    later = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    assert post_events(client, event("e9", at=later))["rejected"] == [
        {"index": 0, "code": "future_timestamp"}
    ]


@pytest.mark.parametrize("six", [6, 6.0, "6", " 6 ", "6.0"])
def test_ids_may_be_numbers_wherever_they_stand(exported_model: Path, tmp_path: Path, six: object) -> None:
    """As a log has them, and as tools write them that know whole numbers only as floats."""
    model = variant(exported_model, tmp_path / "model", "numbers", whole_numbers=True)
    number = (
        6 if isinstance(six, str) else six
    )  # of users and events nothing is known that would tell "6.0" is 6
    sent = {
        "event_id": number,
        "user_id": number,
        "item_id": six,
        "timestamp": "2026-01-01T00:00:00Z",
        "event_type": number,
    }
    with TestClient(create_app(settings_for(model, tmp_path))) as client:

        def ask(path: str, body: object) -> dict[str, Any]:
            answer: dict[str, Any] = client.post(path, json=body).json()
            return {name: answer[name] for name in answer if name not in ("recommendation_id", "took_ms")}

        def by(item: object) -> list[tuple[str, object]]:
            return [
                ("/v1/recommend", {"history": [item], "candidates": [item, "7"], "exclude_seen": False}),
                ("/v1/recommend", {"history": ["1"], "candidates": ["6", "7"], "exclude_items": [item]}),
                ("/v1/rank", {"history": [item], "items": [item, "9"]}),
                ("/v1/explain", {"history": [item], "item_id": item}),
            ]

        for (path, body), (_, plain) in zip(by(six), by("6"), strict=True):
            assert ask(path, body) == ask(path, plain)
        assert client.post("/v1/events", json={"events": [sent]}).json()["accepted"] == 1
        (kept,) = client.get("/v1/users/6/history").json()["events"]
        assert [kept[name] for name in ("event_id", "user_id", "event_type")] == ["6"] * 3
        assert kept["item_id"] == Recommender.load(model).catalogue.id_of(6)
        assert ask("/v1/recommend", {"user_id": number}) == ask("/v1/recommend", {"user_id": "6"})
        assert client.post("/v1/recommend", json={"user_id": number}).json()["context"]["used"] == 1
        batch = client.post("/v1/recommend/batch", json={"requests": [{"history": [six]}]}).json()
        assert batch["results"][0]["context"] == {"source": "request", "used": 1, "unknown_items": []}


def test_item_ids_keep_the_type_they_have_in_the_data(exported_model: Path, tmp_path: Path) -> None:
    """Whatever type a request has for them. Ids of users and events are text."""
    model = variant(exported_model, tmp_path / "model", "numbers", whole_numbers=True)
    catalogue = Recommender.load(model).catalogue
    six, nine, large = (catalogue.id_of(number) for number in (6, 9, NUM_ITEMS))
    with TestClient(create_app(settings_for(model, tmp_path))) as client:
        for sent in (["6", "9", str(LARGE_ID)], [6, 9, LARGE_ID]):
            ranked = client.post("/v1/rank", json={"history": sent[:2], "items": sent}).json()["items"]
            assert {item["item_id"] for item in ranked} == {six, nine, large}
            explained = client.post("/v1/explain", json={"history": sent[:2], "item_id": sent[2]}).json()
            assert explained["item"]["item_id"] == large
            assert [each["item_id"] for each in explained["contributions"]] == [six, nine]
        (found,) = client.get("/v1/items", params={"query": str(LARGE_ID)}).json()["items"]
        assert found["item_id"] == large
        similar = client.get(f"/v1/items/{LARGE_ID}/similar", params={"k": NUM_ITEMS}).json()["items"]
        assert {item["item_id"] for item in similar} == {catalogue.id_of(n) for n in range(1, NUM_ITEMS)}
        post_events(client, {**event("e1"), "user_id": 7, "item_id": 6}, event("e2", user="7", item="9"))
        events = client.get("/v1/users/7/history").json()["events"]
        assert [each["item_id"] for each in events] == [six, nine]
        assert {each["user_id"] for each in events} == {"7"}


def test_unknown_ids_come_back_as_the_model_reports_them(
    client: TestClient, recommender: Recommender
) -> None:
    history: list[str | int] = ["i1", 999, "998", "nobody", 999]
    answer = client.post("/v1/recommend", json={"history": history, "exclude_items": [7.0]}).json()
    expected = recommender.recommend(history, deny=[7])
    assert answer["context"]["unknown_items"] == expected.unknown_items
    assert list(map(str, expected.unknown_items)) == ["999", "998", "nobody", "7"]


def test_moments_at_the_edge_of_the_calendar_come_back_or_are_rejected(client: TestClient) -> None:
    first, last = event("e1", at="0001-01-01T00:00:00+14:00"), event("e2", at="9999-12-31T23:59:59-12:00")
    assert post_events(client, first, last)["rejected"] == [{"index": 1, "code": "future_timestamp"}]
    (kept,) = client.get("/v1/users/u1/history").json()["events"]
    assert kept["timestamp"][:4] == "0001"


# What is refused

LONG = "x" * 257


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/recommend", {"history": ["i1"], "k": 501}, "k"),
        ("/v1/recommend", {"history": ["i1"], "k": 0}, "k"),
        ("/v1/recommend", {"history": ["i1"], "k": "10"}, "k"),
        ("/v1/recommend", {"history": ["i1"] * 1001}, "history"),
        ("/v1/recommend", {"history": ["i1", LONG]}, "history.1"),
        ("/v1/recommend", {"history": [""]}, "history.0"),
        ("/v1/recommend", {"history": ["i1", True]}, "history.1"),
        ("/v1/recommend", {"history": [1.5]}, "history.0"),
        ("/v1/recommend", {"history": [1e300]}, "history.0"),
        ("/v1/recommend", {"history": [None]}, "history.0"),
        ("/v1/recommend", {"history": [["i1"]]}, "history.0"),
        ("/v1/recommend", {"user_id": False}, "user_id"),
        ("/v1/recommend", {"history": ["a\0"]}, "history.0"),
        ("/v1/recommend", {"user_id": "a\nb"}, "user_id"),
        ("/v1/events", {"events": [event("e", user="a\x7f")]}, "events.0.user_id"),
        ("/v1/recommend", {"history": ["i1"], "user_id": "u"}, "history"),
        ("/v1/recommend", {"history": ["i1"], "kk": 1}, "kk"),
        ("/v1/recommend", {"k": 1}, "history"),
        ("/v1/recommend", ["i1"], "body"),
        ("/v1/recommend/batch", {"requests": [{}] * 257}, "requests"),
        ("/v1/rank", {"history": ["i1"], "items": []}, "items"),
        ("/v1/explain", {"history": ["i1"]}, "item_id"),
        ("/v1/events", {"events": [event("e")] * 1001}, "events"),
        ("/v1/events", {"events": [event("e", at="2026-01-01T00:00:00")]}, "events.0.timestamp"),
        *(
            ("/v1/events", {"events": [{**event("e"), "timestamp": moment}]}, "events.0.timestamp")
            for moment in (1767225600, "1767225600", "-17", "1767225600.5", "2026", "20260131", True, None)
        ),
        *(
            (
                "/v1/events",
                {"time_unit": "seconds", "events": [{**event("e"), "timestamp": moment}]},
                "events.0.timestamp",
            )
            for moment in ("1767225600", "2026-01-01T00:00:00", True, None)
        ),
        ("/v1/events", {"time_unit": "hours", "events": []}, "time_unit"),
        ("/v1/events", {"events": [event(LONG)]}, "events.0.event_id"),
    ],
)
def test_what_breaks_a_limit_is_refused_and_the_field_is_named(
    client: TestClient, path: str, body: object, field: str
) -> None:
    document = assert_problem(client.post(path, json=body), 422, "invalid_request")
    assert field in [each["field"] for each in document["errors"]]
    assert field in document["detail"]


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        (
            "/v1/recommend",
            {"histroy": ["i1"]},
            "history: missing (send either history or user_id); histroy: unknown field",
        ),
        ("/v1/recommend", {}, "history: missing (send either history or user_id)"),
        (
            "/v1/recommend",
            {"history": ["i1"], "user_id": "u"},
            "history: send either history or user_id, not both",
        ),
        (
            "/v1/recommend",
            {"history": [11.93]},
            "history.0: must be a string of 1 to 256 characters without control characters, or an integer",
        ),
        ("/v1/rank", {"items": ["i1"], "user_id": "u"}, "history: missing; user_id: unknown field"),
        ("/v1/events", {"events": [{**event("e"), "tpye": "buy"}]}, "events.0.tpye: unknown field"),
    ],
)
def test_a_body_with_wrong_fields_is_answered_by_which_to_send(
    client: TestClient, path: str, body: object, detail: str
) -> None:
    assert assert_problem(client.post(path, json=body), 422, "invalid_request")["detail"] == detail


@pytest.mark.parametrize(
    "path",
    [
        "/v1/items?limit=5",
        "/v1/items?query=a&limit=0",
        "/v1/items?query=a&limit=%201",
        "/v1/users/u/history?limit=1001",
        "/v1/items/i1/similar?k=501",
        "/v1/items/i1/similar?k=x",
    ],
)
def test_wrong_parameters_are_refused(client: TestClient, path: str) -> None:
    assert_problem(client.get(path), 422, "invalid_request")


@pytest.mark.parametrize("body", [b"", b"{", b'{"history": ["\\ud800"]}', b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_refused(client: TestClient, body: bytes) -> None:
    response = client.post("/v1/recommend", content=body, headers={"Content-Type": "application/json"})
    assert_problem(response, 400, "invalid_json")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_read(client: TestClient, media_type: str) -> None:
    response = client.post("/v1/recommend", content=b'{"history": []}', headers={"Content-Type": media_type})
    assert_problem(response, 415, "unsupported_media_type")


def test_unknown_paths_and_methods_are_problems_too(client: TestClient) -> None:
    assert_problem(client.get("/v1/nothing"), 404, "not_found")
    assert_problem(client.get("/v1/info/"), 404, "not_found")
    for method, path, allowed in (
        ("GET", "/v1/recommend", "POST"),
        ("PUT", "/v1/users/u/history", "DELETE, GET, HEAD"),
        ("OPTIONS", "/", "GET, HEAD"),
    ):
        response = client.request(method, path)
        assert_problem(response, 405, "method_not_allowed")
        assert response.headers["allow"] == allowed


def test_parameters_that_mean_nothing_here_are_ignored(client: TestClient) -> None:
    plain = client.get("/v1/items", params={"query": "film 01", "limit": 3}).json()
    assert client.get("/v1/items?query=x&query=film+01&limit=3&_=17&item_id=i1").json() == plain
    similar = client.get("/v1/items/i4/similar?item_id=i5").json()["items"]
    assert similar == client.get("/v1/items/i4/similar").json()["items"]


@pytest.mark.parametrize("path", ["/v1/recommend%0A", "/v1/users/a%0Ab/history", "/%00", "/v1/info%7F"])
def test_paths_with_control_characters_lead_nowhere(client: TestClient, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert_problem(client.request(method, path, json={"history": []}), 404, "not_found")


def test_of_very_many_mistakes_only_the_number_is_told(client: TestClient) -> None:
    wrong = {"history": ["i1"], **{f"x{number}": 1 for number in range(1000)}}
    for document in (
        assert_problem(client.post("/v1/recommend", json=wrong), 422, "invalid_request"),
        client.post("/v1/recommend/batch", json={"requests": [wrong]}).json()["results"][0]["error"],
    ):
        assert document["detail"].startswith("1,000 errors")
        assert "errors" not in document


def large_body() -> Iterator[bytes]:
    yield b'{"history": ["'
    for _ in range(20):
        yield b"x" * 2**16
    yield b'"]}'


@pytest.mark.parametrize("content", [b"x" * (2**20 + 1), "chunked"])
def test_a_large_body_is_refused_before_it_is_parsed(client: TestClient, content: bytes | str) -> None:
    body = large_body() if content == "chunked" else content
    response = client.post("/v1/recommend", content=body, headers={"Content-Type": "application/json"})
    assert_problem(response, 413, "body_too_large")


def test_a_request_id_is_kept_where_it_is_plain_and_made_where_it_is_not(client: TestClient) -> None:
    def answered(given: str | None) -> str:
        headers = {"X-Request-ID": given} if given is not None else {}
        answer: str = client.get("/health/live", headers=headers).headers["x-request-id"]
        return answer

    assert answered("abc-123_X.y:z") == "abc-123_X.y:z"
    made = [answered(given) for given in (None, "", "a b", "x" * 129, '"<script>')]
    assert len(set(made)) == len(made)
    assert all(len(each) == 16 and each.isalnum() for each in made)


# What can be seen


def test_the_metrics_count_what_happened(client: TestClient) -> None:
    client.post("/v1/recommend", json={"history": ["i1", "who"]})
    client.post("/v1/recommend", json={"history": []})
    client.post("/v1/recommend", json={"history": ["who"]})
    client.post("/v1/recommend", json={})
    client.post("/v1/rank", json={"history": [], "items": ["i1"]})
    client.get("/v1/items/who/similar")
    client.get("/nowhere")
    post_events(client, event("e1"), event("e1"), event("e2", at="9999-01-01T00:00:00Z"))
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "__" not in response.text
    numbers = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    expected = {
        'bert4rec_requests_total{code="200",route="/v1/recommend"}': 3,
        'bert4rec_requests_total{code="422",route="/v1/recommend"}': 1,
        'bert4rec_requests_total{code="404",route="/v1/items/{item_id}/similar"}': 1,
        'bert4rec_requests_total{code="404",route="other"}': 1,
        'bert4rec_requests_total{code="202",route="/v1/events"}': 1,
        'bert4rec_request_duration_seconds_count{route="/v1/recommend"}': 4,
        "bert4rec_inference_duration_seconds_count": 4,
        "bert4rec_batch_size_sum": 4,
        "bert4rec_queue_depth": 0,
        'bert4rec_fallbacks_total{reason="empty_history"}': 1,
        'bert4rec_fallbacks_total{reason="unknown_items"}': 1,
        "bert4rec_unknown_items_total": 2,
        'bert4rec_events_total{result="accepted"}': 1,
        'bert4rec_events_total{result="duplicates"}': 1,
        'bert4rec_events_total{result="rejected"}': 1,
        'bert4rec_model_loads_total{result="loaded"}': 1,
    }
    assert {name: float(numbers[name]) for name in expected} == expected
    assert any(name.startswith('bert4rec_model_info{name="films"') for name in numbers)


def test_a_model_is_warm_before_it_is_asked(exported_model: Path) -> None:
    """What is made once and takes long for many items is there already."""
    opened = open_model(exported_model, threads=1)
    assert {"_numbers", "_titles_text", "_ids_text"} <= set(vars(opened.catalogue._names))
    assert "_norms" in vars(opened.ranker)


def test_info_models_and_health(client: TestClient, recommender: Recommender) -> None:
    assert client.get("/v1/info").json()["limits"]["k"] == 500
    (model,) = client.get("/v1/models").json()["models"]
    assert (model["state"], model["num_items"], model["max_history"]) == (
        "current",
        NUM_ITEMS,
        recommender.max_history,
    )
    assert model["serving_since"] >= model["loaded_at"]
    assert (model["trained_until"], model["trained"]) == (None, None)
    for path in HEALTH:
        assert client.get(path).status_code == 200


def test_a_model_tells_what_it_was_trained_on_and_how_good_it_was(
    exported_model: Path, tmp_path: Path
) -> None:
    model = variant(exported_model, tmp_path / "model", "one", trained=TRAINED)
    with TestClient(create_app(settings_for(model, tmp_path))) as client:
        (shown,) = client.get("/v1/models").json()["models"]
    assert shown["trained_until"] == TRAINED["until"]
    assert {"until": shown["trained_until"], **shown["trained"]} == TRAINED


def test_a_service_that_is_about_to_stop_says_so_and_still_answers(
    exported_model: Path, tmp_path: Path
) -> None:
    app = create_app(settings_for(exported_model, tmp_path))
    with TestClient(app) as client:
        app.life.drain()
        assert client.get("/health/live").status_code == 200
        assert_problem(client.get("/readyz"), 503, "not_ready")
        assert client.post("/v1/recommend", json={"history": ["i1"]}).status_code == 200
