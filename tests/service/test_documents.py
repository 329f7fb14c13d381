"""What the service says of itself, for people and for programs."""

import html
import json

from tests.service.application import TestClient


def test_the_documents_fetch_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/recommend" in page.text
    assert "http://" not in page.text.replace("https://", "http://").replace("http://www.w3.org", "")
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_every_example_of_the_document_works_as_it_is(client: TestClient) -> None:
    operations = [
        (method, path, operation)
        for path, methods in client.get("/openapi.json").json()["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert len(operations) == 7
    page = html.unescape(client.get("/docs").text)
    for method, pattern, operation in operations:
        path = pattern.replace("{item_id}", "item_id")
        verb = "" if method == "post" else f" -X {method.upper()}"
        examples = operation["requestBody"]["content"]["application/json"]["examples"].values()
        assert examples, path
        for body in (example["value"] for example in examples):
            answer = client.request(method, path, json=body)
            assert answer.is_success, answer.text
            assert "unknown_item" not in answer.text.replace('"unknown_items":[]', "")
            assert f"curl{verb} --json '{json.dumps(body)}' {client.base_url.netloc.decode()}{path}" in page
