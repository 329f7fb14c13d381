"""The service as an application, in this process: who may ask."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert4rec.service.app import create_app
from bert4rec.service.contract.documents import page_files
from tests.service.application import HEALTH, TestClient, assert_problem, settings_for


@pytest.fixture
def guarded(exported_model: Path, tmp_path: Path) -> Iterator[TestClient]:
    keys = tmp_path / "keys"
    keys.write_text("# for the shop\nfirst-secret\n\n  second-secret  \n")
    with TestClient(create_app(settings_for(exported_model, tmp_path, api_key_file=keys))) as client:
        yield client


def test_everything_but_health_and_the_pages_needs_a_key(guarded: TestClient) -> None:
    paths = guarded.get("/openapi.json").json()["paths"]
    operations = [(method, path) for path, methods in paths.items() for method in methods]
    assert len(operations) >= 15
    for method, path in [*operations, *(("get", path) for path in ("/metrics", "/v1/nothing", "/livez"))]:
        response = guarded.request(method, path)
        if path in HEALTH:
            assert response.status_code == 200
        else:
            assert_problem(response, 401, "unauthorized")
            assert response.headers["www-authenticate"] == "Bearer"


def test_the_documentation_is_open_and_says_nothing_of_the_data(guarded: TestClient) -> None:
    for path in ("/docs", "/openapi.json"):
        text = guarded.get(path).text
        assert "item-1" in text
        assert '"i1"' not in text
    assert "curl -H &#x27;X-API-Key: KEY&#x27; --json" in guarded.get("/docs").text


def test_the_page_is_open_for_it_holds_no_data_and_fetches_from_here_alone(guarded: TestClient) -> None:
    assert {"/", "/index.html"} <= set(page_files())
    for path in page_files():
        response = guarded.get(path)
        assert response.status_code == 200
        assert response.headers["content-security-policy"].startswith("default-src 'self'")


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-secret"},
        {"Authorization": "bearer second-secret"},
        {"X-API-Key": "second-secret"},
    ],
)
def test_a_known_key_opens(guarded: TestClient, headers: dict[str, str]) -> None:
    assert guarded.get("/v1/info", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic first-secret"},
        {"Authorization": "first-secret"},
        {"X-API-Key": ""},
        {"X-API-Key": "first-secret second-secret"},
        {"X-API-Key": "# for the shop"},
    ],
)
def test_anything_else_does_not_and_no_key_is_ever_logged(
    guarded: TestClient, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert_problem(guarded.get("/v1/info", headers=headers), 401, "unauthorized")
        guarded.post("/v1/recommend", json={"history": ["i1"]}, headers={"X-API-Key": "first-secret"})
    assert "secret" not in caplog.text


def test_a_document_says_where_keys_are_needed(guarded: TestClient) -> None:
    document = guarded.get("/openapi.json", headers={"X-API-Key": "first-secret"}).json()
    assert document["security"] == [{"bearer": []}, {"header": []}]
    assert document["paths"]["/health/live"]["get"]["security"] == []
