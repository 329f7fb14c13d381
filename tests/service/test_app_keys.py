"""The service as an application, in this process: who may ask."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from bert4rec.service.app import create_app
from bert4rec.service.asgi import Application
from bert4rec.service.documents import page_files
from tests.service.application import HEALTH, assert_problem, settings_for


@pytest.fixture
def guarded(exported_model: Path, tmp_path: Path) -> Iterator[TestClient]:
    keys = tmp_path / "keys"
    keys.write_text("# for the shop\nfirst-secret\n\n  second-secret  \n")
    with TestClient(create_app(settings_for(exported_model, tmp_path, api_key_file=keys))) as client:
        yield client


def every_operation(app: Application) -> list[tuple[str, str]]:
    async def call() -> dict[str, Any]:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            document: dict[str, Any] = (await client.get("/openapi.json")).json()
            return document

    paths = asyncio.run(call())["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def test_everything_but_health_and_the_page_needs_a_key(
    guarded: TestClient, exported_model: Path, tmp_path: Path
) -> None:
    operations = every_operation(create_app(settings_for(exported_model, tmp_path)))
    assert len(operations) >= 14
    others = [
        ("get", path) for path in ("/metrics", "/docs", "/openapi.json", "/v1/nothing", "/livez", "/readyz")
    ]
    for method, path in [*operations, *others]:
        response = guarded.request(method, path)
        if path in HEALTH:
            assert response.status_code == 200
        else:
            assert_problem(response, 401, "unauthorized")
            assert response.headers["www-authenticate"] == "Bearer"


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
