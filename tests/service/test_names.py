"""By which names the service may be called, and what pages of others can do with a service without keys."""

import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from bert4rec.errors import UsageError
from bert4rec.service.admission.names import Names
from bert4rec.service.app import create_app
from bert4rec.service.http.messages import Head
from bert4rec.service.problems import ProblemError
from tests.service.application import TestClient, assert_problem, event, settings_for
from tests.service.servers import PATIENCE, RunningServer, running


def status_of(names: Names, host: str, *, method: str = "GET", origin: str | None = None) -> int:
    """200 where nothing is raised."""
    headers = {b"host": host.encode("latin-1")}
    if origin is not None:
        headers[b"origin"] = origin.encode("latin-1")
    try:
        names.check(Head(method, "/v1/users/u1/history", b"", headers))
    except ProblemError as problem:
        return problem.status
    return 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8000",
        "127.0.0.1",
        "127.0.0.1.",
        "[::1]:8000",
        "[::1]",
        "10.1.2.3",
        "[2001:db8::1]:443",
        "localhost",
        "LocalHost:8000",
        "localhost.",
        "sub.localhost",
        "sub.localhost.:8000",
    ],
)
def test_addresses_and_localhost_are_answered_without_keys(host: str) -> None:
    assert status_of(Names(), host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8000",
        ".",
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "evil.example#127.0.0.1",
        "127.0.0.1#evil.example",
        "127.0.0.1/evil.example",
        "127.0.0.1?evil.example",
        "127.0.0.1\\evil.example",
        "127.0.0.1 evil.example",
        "127.0.0.1,evil.example",
        "evil.example 127.0.0.1",
        "evil.example\t.localhost",
        "127.0.0.1:8000:evil.example",
        "127.0.0.1:port",
        "[::1",
        "::1",
        "[::1]evil.example",
        "[evil.example]",
        "xn--lcalhost-n4a",
        "l\xf6calhost",
        "localhos\xfe",
        # Addresses in notations that only some programs take for addresses.
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "127.0.0.01",
        "%31%32%37.0.0.1",
    ],
)
def test_no_other_name_is_answered_without_keys(host: str) -> None:
    assert status_of(Names(), host) == 421


def test_listed_names_are_answered_in_any_case_and_as_they_are_alone() -> None:
    names = Names(["Shop.Example", "api.example."])
    for host in (
        "shop.example",
        "SHOP.example:8000",
        "shop.example.",
        "api.example",
        "127.0.0.1",
        "localhost",
    ):
        assert status_of(names, host) == 200
    for host in ("www.shop.example", "shop.example.evil.example", "example", "evil.example", ""):
        assert status_of(names, host) == 421


def test_every_name_will_do_with_keys_unless_some_are_listed() -> None:
    for names in (Names(any_by_default=True), Names(["*"]), Names(["*", "shop.example"])):
        assert status_of(names, "any.example:8000") == 200
        assert status_of(names, "") == 421
    assert status_of(Names(["shop.example"], any_by_default=True), "any.example") == 421


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "shop.example:8000",
        "http://shop.example",
        "shop.example/path",
        "shop.example?query",
        "shop.example#here",
        "user@shop.example",
        "shop example",
        "*.shop.example",
        "sh\xf6p.example",
    ],
)
def test_what_is_no_name_cannot_be_listed(name: str) -> None:
    with pytest.raises(UsageError, match=r"^`allow_host` takes names such as"):
        Names([name])


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "OPTIONS"])
def test_only_the_services_own_pages_may_change_something(method: str) -> None:
    names = Names(["shop.example"])

    def status(host: str, origin: str) -> int:
        return status_of(names, host, method=method, origin=origin)

    assert status("127.0.0.1:8000", "http://127.0.0.1:8000") == 200
    assert status("[::1]:8000", "http://[::1]:8000") == 200
    assert status("shop.example", "https://shop.example") == 200
    assert status("10.1.2.3:8000", "https://shop.example") == 200  # as by a proxy that gives another name
    for origin in (
        "http://evil.example",
        "http://127.0.0.1:8001",  # another service of the same machine
        "http://127.0.0.1",
        "http://localhost:8000",
        "http://127.0.0.1:8000.evil.example",
        "http://127.0.0.1:8000@evil.example",
        "http://shop.example.evil.example",
        "null",
        "",
        "file://",
        "127.0.0.1:8000",
        "http://evil.example http://127.0.0.1:8000",
        "http://\xe9vil.example",
    ):
        assert status("127.0.0.1:8000", origin) == 403, origin
    assert status_of(names, "127.0.0.1:8000", method=method) == 200  # no browser sent this


def test_the_origin_of_who_only_reads_does_not_matter() -> None:
    for method in ("GET", "HEAD"):
        assert status_of(Names(), "127.0.0.1", method=method, origin="http://evil.example") == 200


def test_a_star_takes_any_name_but_not_any_page() -> None:
    names = Names(["*"])
    assert status_of(names, "any.example", method="POST", origin="https://any.example") == 200
    assert status_of(names, "any.example", method="POST", origin="https://evil.example") == 403


def test_a_service_refuses_other_names_and_pages_of_others(exported_model: Path, tmp_path: Path) -> None:
    app = create_app(settings_for(exported_model, tmp_path, allow_host=("shop.example",)))
    with TestClient(app) as client:
        for path in ("/", "/v1/users/u1/history", "/health/live", "/nowhere"):
            refused = client.get(path, headers={"Host": "evil.example"})
            assert_problem(refused, 421, "misdirected_request")
        assert client.get("/v1/info", headers={"Host": "shop.example"}).status_code == 200
        for headers, status in (({"Origin": "http://evil.example"}, 403), ({}, 200)):
            assert client.delete("/v1/users/u1/history", headers=headers).status_code == status
        refused = client.post(
            "/v1/events", json={"events": [event("e1")]}, headers={"Origin": "http://evil.example"}
        )
        assert_problem(refused, 403, "cross_origin")
        assert client.get("/v1/users/u1/history").json()["events"] == []


# In a browser

ATTACK = """
async (service) => {
    const outcome = async (path, options) => {
        try {
            const response = await fetch(service + path, options);
            return [response.type, response.status, await response.text()];
        } catch (error) {
            return ["failed", 0, ""];
        }
    };
    const event = {event_id: "evil", user_id: "u1", item_id: "i2", timestamp: "2026-01-01T00:00:00Z"};
    const body = JSON.stringify({events: [event]});
    const history = "/v1/users/u1/history";
    return {
        read: await outcome(history, {}),
        readBlindly: await outcome(history, {mode: "no-cors"}),
        post: await outcome("/v1/events", {method: "POST", body, headers: {"content-type": "application/json"}}),
        postBlindly: await outcome("/v1/events", {method: "POST", body, mode: "no-cors"}),
        rollBack: await outcome("/v1/models/rollback", {method: "POST", mode: "no-cors"}),
        delete: await outcome(history, {method: "DELETE"}),
    };
}
"""


class EvilPage(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Evil</title>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def evil_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EvilPage) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield server.server_port
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def misled_browser() -> Iterator[Browser]:
    """In which evil.example is this machine, as its owner may arrange when a page of it is open."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--host-resolver-rules=MAP evil.example 127.0.0.1"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(misled_browser: Browser) -> Iterator[Page]:
    with misled_browser.new_context() as context:
        context.set_default_timeout(PATIENCE * 1000)
        yield context.new_page()


@pytest.fixture(scope="module")
def server(exported_model: Path) -> Iterator[RunningServer]:
    """Without keys."""
    with running(exported_model) as server:
        yield server


def history_of(server: RunningServer) -> list[str]:
    with server.client() as client:
        return [each["event_id"] for each in client.get("/v1/users/u1/history").json()["events"]]


def test_a_page_of_others_can_neither_read_nor_change_a_history(
    page: Page, server: RunningServer, evil_port: int
) -> None:
    with server.client() as client:
        client.post("/v1/events", json={"events": [event("e1")]})
    page.goto(f"http://evil.example:{evil_port}/")
    # By the service's own address, and by the page's own name, which leads to the service too.
    for service in (server.address, f"http://evil.example:{server.port}"):
        outcomes = page.evaluate(ATTACK, service)
        assert {content for _, _, content in outcomes.values()} == {""}
        assert {kind for kind, _, _ in outcomes.values()} <= {"failed", "opaque"}
        assert history_of(server) == ["e1"]


def test_a_name_that_was_made_to_lead_to_the_service_opens_nothing(page: Page, server: RunningServer) -> None:
    with server.client() as client:
        client.post("/v1/events", json={"events": [event("e1")]})
    response = page.goto(f"http://evil.example:{server.port}/")
    assert response
    assert response.status == 421
    # For the browser this is one origin: it holds nothing back, so the service must.
    outcomes = page.evaluate(ATTACK, "")
    assert {status for _, status, _ in outcomes.values()} == {421}
    assert {json.loads(content)["code"] for _, _, content in outcomes.values()} == {"misdirected_request"}
    assert history_of(server) == ["e1"]
