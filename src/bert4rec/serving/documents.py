"""The OpenAPI document, and a page that shows it to people.

The usual viewers fetch scripts from elsewhere; this page is plain HTML and fetches nothing.
"""

import json
from collections.abc import Collection
from html import escape
from typing import TYPE_CHECKING, Any

from bert4rec.serving.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from fastapi import FastAPI

DESCRIPTION = (
    "What comes next, by what came before. Item and user ids are those of your own data. Errors are RFC 9457 "
    "problem documents with a stable `code`. Every answer carries `X-Request-ID`."
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
    "pre{background:#f5f6f8;padding:1rem;overflow:auto}"
)


def describe_keys(app: "FastAPI", *, open_paths: Collection[str]) -> None:
    """Say in the document that a key is needed, and where not."""
    document = app.openapi()  # made once and kept by the application
    document["components"]["securitySchemes"] = _KEYS
    document["security"] = [{name: []} for name in _KEYS]
    for path in set(open_paths) & set(document["paths"]):
        for operation in document["paths"][path].values():
            operation["security"] = []


def docs_page(document: dict[str, Any]) -> bytes:
    """The document as one HTML page."""
    operations = [
        _operation(method, path, operation)
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


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    facts = {
        name: operation[name] for name in ("parameters", "requestBody", "responses") if name in operation
    }
    return (
        f"<details><summary><code><b>{method.upper()}</b> {escape(path)}</code> "
        f"{escape(operation.get('description', ''))}</summary>{_json(facts)}</details>"
    )


def _json(value: object) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"
