"""The service as an application, in this process, and what its answers are checked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
from starlette.testclient import TestClient

from bert4rec.service.app import Settings

HEALTH = ("/health/live", "/livez", "/health/ready", "/readyz")


def settings_for(model: Path, folder: Path, **changes: Any) -> Settings:
    return Settings(model=model, store=f"sqlite:///{folder / 'history.db'}", **changes)


def assert_problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == response.headers["x-request-id"]
    assert document["detail"]
    return document


def event(
    event_id: str, user: str = "u1", item: str = "i1", at: str = "2026-01-01T00:00:00Z"
) -> dict[str, str]:
    return {"event_id": event_id, "user_id": user, "item_id": item, "timestamp": at}


def post_events(client: TestClient, *events: Mapping[str, object]) -> dict[str, Any]:
    response = client.post("/v1/events", json={"events": list(events)})
    assert response.status_code == 202, response.text
    answer: dict[str, Any] = response.json()
    return answer
