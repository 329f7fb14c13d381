"""What the service says of itself: the OpenAPI document for programs, and two pages for people.

The usual viewers of such documents fetch scripts from elsewhere; ours is plain HTML and fetches nothing.
"""

import json
import mimetypes
import re
import shlex
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from bert4rec import __version__
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.service.application import Operation
from bert4rec.service.contract.schemas import Problem
from bert4rec.service.http.messages import Response
from bert4rec.service.problems import MEDIA_TYPE

JSON = dict[str, Any]
DESCRIPTION = (
    "What comes next, given what came before. Item and user ids are those of your own data. Requests take strings or "
    "integers. In responses, item ids are integers where those of the data are, and all other ids are strings. Errors "
    "are RFC 9457 problem documents with a stable `code`. Every response carries `X-Request-ID`."
)
SOME_ID = "019c13f2a5ff3f9c21be9d08140703d7"
"""Of a recommendation."""
_SCHEMAS = "#/components/schemas/"
_PROBLEM = {
    "description": "What went wrong.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": f"{_SCHEMAS}Problem"}}},
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
_SAFE = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
# The page fetches from here and from nowhere else, and nobody may frame it.
_PAGE_HEADERS = {
    **_SAFE,
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
}
_DOCS_HEADERS = {**_SAFE, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def describe(operations: Sequence[Operation], examples: dict[str, JSON], *, has_keys: bool) -> JSON:
    """The OpenAPI document of all operations that have a response model.

    `examples` has bodies for each path that takes one, by what they show.
    """
    models = {each: each.response for each in operations if each.response}
    schemas, definitions = TypeAdapter.json_schemas(
        [
            *((each, "validation", each.body) for each in models if each.body),
            *((each, "serialization", TypeAdapter(model)) for each, model in models.items()),
            ("problem", "serialization", TypeAdapter(Problem)),
        ],
        ref_template=_SCHEMAS + "{model}",
    )
    paths: JSON = {}
    for operation in models:
        entry = _response(operation, schemas[operation, "serialization"])
        if operation.body:
            bodies = {name: {"value": body} for name, body in examples[operation.path].items()}
            content = {"schema": schemas[operation, "validation"], "examples": bodies}
            is_required = operation.method == "POST"
            entry["requestBody"] = {"required": is_required, "content": {"application/json": content}}
        if operation.argument and operation.method != "POST":
            entry["parameters"] = _parameters(operation)
        if has_keys and operation.role is None:
            entry["security"] = []
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    document: JSON = {
        "openapi": "3.1.0",
        "info": {"title": "bert4rec", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": definitions["$defs"]},
    }
    if has_keys:
        document["components"]["securitySchemes"] = _KEYS
        document["security"] = [{name: []} for name in _KEYS]
    return document


def _response(operation: Operation, schema: JSON) -> JSON:
    """What the document says of every operation."""
    name = operation.call.__name__
    content = {"application/json": {"schema": schema}}
    return {
        "summary": name.replace("_", " ").title(),
        "description": operation.call.__doc__,
        "operationId": re.sub(r"\W", "_", f"{name}{operation.path}_{operation.method.lower()}"),
        "responses": {
            str(operation.status): {"description": "Successful response.", "content": content},
            "default": _PROBLEM,
        },
    }


def _parameters(operation: Operation) -> list[JSON]:
    schema = operation.adapter.json_schema()
    return [
        {
            "name": name,
            "in": "path" if f"{{{name}}}" in operation.path else "query",
            "required": name in schema.get("required", ()),
            "schema": field,
        }
        for name, field in schema["properties"].items()
        if name != "body"
    ]


def example_bodies(catalogue: Catalogue | None) -> dict[str, JSON]:
    """Bodies for each path that takes one, by what they show. The model knows their items, so they work as they are;
    without a catalogue they are made up, for readers who may not know what is in it."""
    history: list[str | int] = ["item-1", "item-2", "item-3"]
    items: list[str | int] = ["item-4", "item-5", "item-6"]
    if catalogue:
        known = catalogue.known_numbers
        first, last = known[:3].tolist(), known[-3:].tolist()
        history, items = ([catalogue.id_of(number) for number in numbers] for numbers in (first, last))
    user = "ann"
    bought = {
        "event_id": "order-1017-1",
        "user_id": user,
        "item_id": history[0],
        "timestamp": "2026-01-31T12:00:00Z",
        "event_type": "purchase",
    }
    return {
        "/v1/recommend": {
            "by-history": {"history": history, "k": 5},
            "by-user": {"user_id": user, "k": 5},
            "choice": {"history": history, "k": 2, "allow": items, "exclude_seen": False},
            "diverse": {"history": history, "k": 5, "deny": items[:1], "diversity": 0.3},
        },
        "/v1/recommend/batch": {"two": {"requests": [{"history": history}, {"user_id": user, "k": 3}]}},
        "/v1/rank": {"three": {"history": history, "items": items}},
        "/v1/explain": {"one": {"history": history, "item_id": items[-1]}},
        "/v1/events": {"purchase": {"events": [bought]}},
        "/v1/feedback": {"click": {"feedback": [{"recommendation_id": SOME_ID, "item_id": items[0]}]}},
        "/v1/items/{item_id}/hidden": {
            "for good": {},
            "for a while": {"from": "2026-12-24T00:00:00Z", "until": "2027-01-02T00:00:00Z"},
        },
    }


def docs_page(document: JSON, host: str) -> Response:
    """The document as one HTML page; `host` is how the reader reached the service."""
    operations = [
        _operation(method, path, operation, host, has_keys="security" in document)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>"
        for name, schema in sorted(document["components"]["schemas"].items())
    ]
    title = f"{escape(document['info']['title'])} {escape(document['info']['version'])}"
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>",
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style>",
        f"<h1>{title}</h1><p>{escape(document['info']['description'])}</p>",
        "<p>For programs: <a href='/openapi.json'>openapi.json</a></p>",
        f"<h2>Requests</h2>{''.join(operations)}<h2>Schemas</h2>{''.join(schemas)}</html>",
    ]
    return Response("".join(parts).encode(), "text/html; charset=utf-8", headers=_DOCS_HEADERS)


def _operation(method: str, path: str, operation: JSON, host: str, *, has_keys: bool) -> str:
    facts = {
        name: operation[name] for name in ("parameters", "requestBody", "responses") if name in operation
    }
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    bodies = (
        json.dumps(example["value"], ensure_ascii=False) for example in content.get("examples", {}).values()
    )
    # To be pasted into a terminal.
    key = " -H 'X-API-Key: KEY'" if has_keys else ""
    verb = "" if method == "post" else f" -X {method.upper()}"
    address = shlex.quote(host + re.sub(r"{(\w+)}", r"\1", path))  # curl has a meaning of its own for braces
    commands = "\n".join(f"curl{key}{verb} --json {shlex.quote(body)} {address}" for body in bodies)
    return (
        f"<details><summary><code><b>{method.upper()}</b> {escape(path)}</code> "
        f"{escape(operation['description'])}</summary>"
        f"{f'<pre>{escape(commands)}</pre>' if commands else ''}{_json(facts)}</details>"
    )


def _json(value: object) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def page_files() -> dict[str, Response]:
    """The files of the page by their path: page/app.js is at /app.js, and page/index.html at / as well.

    A fixed list, made once: nothing else can be requested, whatever a path says.
    """
    folder = files("bert4rec.service") / "page"
    if not folder.is_dir():
        return {}
    found = {}
    for file in folder.iterdir():
        media_type = mimetypes.guess_type(file.name)[0]
        if file.is_file() and media_type and not file.name.startswith((".", "_")):
            charset = "; charset=utf-8" if media_type.startswith("text/") else ""
            found[f"/{file.name}"] = Response(file.read_bytes(), media_type + charset, headers=_PAGE_HEADERS)
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found
