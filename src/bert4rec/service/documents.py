"""The OpenAPI document, and a page that shows it to people.

The usual viewers fetch scripts from elsewhere; this page is plain HTML and fetches nothing.
"""

import json
import shlex
from collections.abc import Collection, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from bert4rec.service.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from fastapi import FastAPI

DESCRIPTION = (
    "What comes next, by what came before. Item and user ids are those of your own data: in requests texts or whole "
    "numbers, in answers always texts. Errors are RFC 9457 problem documents with a stable `code`. Every answer "
    "carries `X-Request-ID`."
)
PROBLEM_RESPONSE: dict[str, Any] = {
    "description": "What went wrong.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}"
    "summary{cursor:pointer;padding:.4rem 0}code,pre{font:14px/1.4 ui-monospace,monospace}"
    "pre{background:#f5f6f8;padding:1rem;white-space:pre-wrap;overflow-wrap:anywhere}"
)


def describe_keys(app: "FastAPI", *, open_paths: Collection[str]) -> None:
    """Say in the document that a key is needed, and where not."""
    document = app.openapi()  # made once and kept by the application
    document["components"]["securitySchemes"] = _KEYS
    document["security"] = [{name: []} for name in _KEYS]
    for path in set(open_paths) & set(document["paths"]):
        for operation in document["paths"][path].values():
            operation["security"] = []


def example_bodies(ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Bodies for each path that takes one, by what they show. With ids the model knows, they work as they are."""
    history, items, user = list(ids[:3]), list(ids[-3:]), "ann"
    bought = {
        "event_id": "order-1017-1",
        "user_id": user,
        "item_id": ids[0],
        "timestamp": "2026-01-31T12:00:00Z",
        "event_type": "purchase",
    }
    return {
        "/v1/recommend": {
            "by-history": {"history": history, "k": 5},
            "by-user": {"user_id": user, "k": 5},
            "choice": {"history": history, "k": 2, "candidates": items, "exclude_seen": False},
        },
        "/v1/recommend/batch": {"two": {"requests": [{"history": history}, {"user_id": user, "k": 3}]}},
        "/v1/rank": {"three": {"history": history, "items": items}},
        "/v1/explain": {"one": {"history": history, "item_id": ids[-1]}},
        "/v1/events": {"purchase": {"events": [bought]}},
    }


def with_examples(bodies: dict[str, Any]) -> dict[str, Any]:
    """What the document says of an operation beside what FastAPI makes of its types."""
    examples = {name: {"value": body} for name, body in bodies.items()}
    return {"requestBody": {"content": {"application/json": {"examples": examples}}}}


def docs_page(document: dict[str, Any], host: str) -> bytes:
    """The document as one HTML page; `host` is how the reader reached the service."""
    operations = [
        _operation(method, path, operation, host)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    shapes = [
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>{_json(shape)}</details>"
        for name, shape in sorted(document["components"]["schemas"].items())
    ]
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>",
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style>",
        f"<h1>{title}</h1><p>{escape(document['info']['description'])}</p>",
        "<p>For programs: <a href='/openapi.json'>openapi.json</a></p>",
        f"<h2>Requests</h2>{''.join(operations)}<h2>Shapes</h2>{''.join(shapes)}</html>",
    ]
    return "".join(parts).encode()


def _operation(method: str, path: str, operation: dict[str, Any], host: str) -> str:
    facts = {
        name: operation[name] for name in ("parameters", "requestBody", "responses") if name in operation
    }
    return (
        f"<details><summary><code><b>{method.upper()}</b> {escape(path)}</code> "
        f"{escape(operation.get('description', ''))}</summary>"
        f"{_commands(operation, host + path)}{_json(facts)}</details>"
    )


def _commands(operation: dict[str, Any], address: str) -> str:
    """The examples, to be pasted into a terminal."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    bodies = (
        json.dumps(example["value"], ensure_ascii=False) for example in content.get("examples", {}).values()
    )
    commands = "\n".join(f"curl --json {shlex.quote(body)} {shlex.quote(address)}" for body in bodies)
    return f"<pre>{escape(commands)}</pre>" if commands else ""


def _json(value: object) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"
