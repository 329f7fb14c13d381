"""The service does what its OpenAPI document says, whatever Schemathesis thinks of."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from tests.service.servers import RunningServer, running

OPERATIONS = [
    ("POST", "/v1/recommend"),
    ("POST", "/v1/recommend/batch"),
    ("POST", "/v1/rank"),
    ("POST", "/v1/explain"),
    ("GET", "/v1/items/{item_id}/similar"),
    ("GET", "/v1/items"),
    ("GET", "/v1/items/hidden"),
    ("PUT", "/v1/items/{item_id}/hidden"),
    ("DELETE", "/v1/items/{item_id}/hidden"),
    ("GET", "/v1/samples"),
    ("POST", "/v1/events"),
    ("DELETE", "/v1/events/{event_id}"),
    ("POST", "/v1/feedback"),
    ("GET", "/v1/users/{user_id}/history"),
    ("DELETE", "/v1/users/{user_id}/history"),
    ("DELETE", "/v1/users/{user_id}"),
    ("GET", "/v1/models"),
    ("POST", "/v1/models/rollback"),
    ("GET", "/v1/info"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
]


@pytest.fixture(scope="module")
def server(exported_model: Path) -> Iterator[RunningServer]:
    with running(exported_model) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return schemathesis.openapi.from_url(f"{server.address}/openapi.json")


def test_the_document_describes_every_operation(document: Any) -> None:
    described = {(each.ok().method.upper(), each.ok().path) for each in document.get_all_operations()}
    assert described == set(OPERATIONS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_service_keeps_to_its_document(
    document: Any, method: str, path: str, mode: GenerationMode
) -> None:
    """Requests that fit the document, and requests that do not."""
    operation = document[path][method]
    if mode == GenerationMode.NEGATIVE and not (operation.body or operation.query):
        return  # nothing to get wrong

    @settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def keeps_to_it(case: Any) -> None:
        if mode == GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("where", None)  # the document cannot tell which attributes the model has
            if "until" in case.body:
                case.body["until"] = None  # nor ask for a date that is later than another
        case.call_and_validate()

    keeps_to_it()
