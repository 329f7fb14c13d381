"""The service as an operator meets it: sockets, certificates, signals, keys and logs of real servers."""

import json
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bert4rec.service.app import create_app
from bert4rec.service.http.listening import Address, listening
from tests.service.application import TestClient, assert_problem, event, settings_for
from tests.service.servers import BERT4REC, PATIENCE, RunningServer, running, variant


def until(is_so: Callable[[], object]) -> None:
    """Look again and again."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "this has never come true"
        time.sleep(0.02)


def refused(model: Path, *options: str) -> tuple[int, str]:
    """Exit status and message of a server that does not start."""
    command = [BERT4REC, "serve", str(model), "--store", "sqlite:///:memory:", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "Traceback" not in run.stderr
    return run.returncode, " ".join(run.stderr.split())


# A unix socket


def test_a_unix_socket_answers_its_owner_and_group_until_the_end(
    exported_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))  # and never removed
    with running(exported_model, "--unix-socket", str(path)) as server:
        assert server.address == f"unix socket {path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(transport=transport, base_url="http://any-name.example") as client:
            assert client.get("/v1/info").status_code == 200
            code, message = refused(exported_model, "--unix-socket", str(path))
            assert (code, "Address already in use" in message) == (2, True)
            assert client.get("/v1/info").status_code == 200
        assert server.stop() == 0
    assert not path.exists()


def test_a_file_in_place_of_the_socket_is_kept(exported_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.write_text("something of value")
    code, message = refused(exported_model, "--unix-socket", str(path))
    assert (code, str(path) in message) == (2, True)
    assert path.read_text() == "something of value"


def test_a_socket_that_another_service_has_taken_over_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listening(Address(unix_socket=path)):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(tmp_path / "new"))  # the file system may give a removed file's number to the next
            (tmp_path / "new").rename(path)
    assert path.is_socket()


# A certificate


def make_certificate(folder: Path, name: str) -> str:
    """A new one with its key, put in place of the old by renaming; its text."""
    certificate, key = folder / "new-certificate.pem", folder / "new-key.pem"
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(["openssl", "req", *kind, *subject, *files], check=True, capture_output=True)
    key.rename(folder / "key.pem")
    return certificate.rename(folder / "certificate.pem").read_text()


def trusts(server: RunningServer, certificate: str) -> bool:
    """Whether a client that knows only this certificate gets an answer."""
    context = ssl.create_default_context(cadata=certificate)
    try:
        with httpx2.Client(verify=context, base_url=server.address, timeout=PATIENCE) as client:
            return client.get("/v1/info").status_code == 200
    except httpx2.ConnectError:
        return False


def with_certificate(folder: Path) -> list[str]:
    return ["--tls-cert", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem")]


def test_https_is_served_with_the_certificate_of_the_day(exported_model: Path, tmp_path: Path) -> None:
    first = make_certificate(tmp_path, "first")
    with running(exported_model, *with_certificate(tmp_path)) as server:
        assert server.address == f"https://127.0.0.1:{server.port}"
        assert trusts(server, first)
        # Who does not speak TLS gets nothing that HTTP could be, and harms nobody.
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as plain:
            plain.sendall(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while part := _received(plain):
                answer += part
        assert b"HTTP" not in answer
        assert trusts(server, first)
        second = make_certificate(tmp_path, "second")
        assert not trusts(server, second)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: trusts(server, second))
        assert not trusts(server, first)
        (tmp_path / "certificate.pem").write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("The certificate cannot be read again; the known one stays")
        assert trusts(server, second)
        # Half of a renewal: the new certificate is there, its key is not.
        key = (tmp_path / "key.pem").read_bytes()
        make_certificate(tmp_path, "third")
        (tmp_path / "key.pem").write_bytes(key)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.log.count("The certificate cannot be read again") == 2)
        assert trusts(server, second)
        with httpx2.Client(verify=False, base_url=server.address, timeout=PATIENCE) as idle:
            assert idle.get("/health/live").status_code == 200
            assert server.stop() == 0
    assert "were cut" not in server.log, "a client that stays connected holds nobody up"
    assert "Traceback" not in server.log


def test_every_worker_takes_over_a_new_certificate(exported_model: Path, tmp_path: Path) -> None:
    first = make_certificate(tmp_path, "first")
    with running(exported_model, *with_certificate(tmp_path), "--workers", "2") as server:
        assert trusts(server, first)
        until(lambda: server.log.count(": loaded") == 2)
        second = make_certificate(tmp_path, "second")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: all(trusts(server, second) for _ in range(6)))
        assert server.stop() == 0
    assert "Traceback" not in server.log


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(2**16)
    except ConnectionResetError:
        return b""


# Signals


class Guest:
    """Asks all the time, connects anew when its connection ends, and leaves when the service is not ready."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self.statuses: list[int] = []
        self.failure: httpx2.HTTPError | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._server.client() as client:
                while client.get("/health/ready").status_code == 200:
                    for _ in range(5):
                        answer = client.post("/v1/recommend", json={"history": ["i1"], "k": 1})
                        self.statuses.append(answer.status_code)
        except httpx2.HTTPError as error:
            self.failure = error


@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_leaves_when_the_service_drains_loses_no_request(exported_model: Path, workers: str) -> None:
    with running(exported_model, "--drain", "2", "--workers", workers) as server:
        guests = [Guest(server) for _ in range(4)]
        until(lambda: all(guest.statuses for guest in guests))
        server.process.send_signal(signal.SIGTERM)
        for guest in guests:
            guest.thread.join(PATIENCE)
        assert server.process.wait(PATIENCE) == 0
    assert [guest.failure for guest in guests] == [None] * 4
    assert {status for guest in guests for status in guest.statuses} == {200}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_sigterm_ends_the_wait_and_an_interrupt_does_not_begin_one(
    exported_model: Path, workers: str
) -> None:
    """The seconds to wait are more than the test has patience for."""
    options = ["--drain", str(10 * PATIENCE), "--workers", workers]
    with running(exported_model, *options) as server:
        with server.client() as client:
            assert client.get("/health/ready").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            until(lambda: client.get("/health/ready").status_code == 503)
            assert client.get("/v1/info").headers["connection"] == "close"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    with running(exported_model, *options) as server:
        with server.client() as client:
            assert client.get("/health/ready").status_code == 200
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
        server.wait_for_line("Stopped.")
    assert "Traceback" not in server.log


def test_a_hang_up_takes_over_keys_and_a_replaced_model(exported_model: Path, tmp_path: Path) -> None:
    model = variant(exported_model, tmp_path / "model", "one")
    keys = tmp_path / "keys"
    keys.write_text("old-key\nkept-key\n")
    with running(model, "--api-key-file", str(keys)) as server, server.client() as client:

        def status(key: str) -> int:
            return client.get("/v1/info", headers={"X-API-Key": key}).status_code

        def version() -> Any:
            return client.get("/v1/info", headers={"X-API-Key": "kept-key"}).json()["model"]["version"]

        assert version() == "one"
        keys.write_text("new-key\nkept-key\n")
        model.rename(tmp_path / "before")
        variant(exported_model, tmp_path / "model", "two")
        assert (status("old-key"), status("new-key"), version()) == (200, 401, "one")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: version() == "two")
        assert (status("old-key"), status("new-key")) == (401, 200)
        keys.write_text("# nobody\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("The API keys cannot be read again; the known ones stay valid")
        assert (status("new-key"), status("kept-key"), version()) == (200, 200, "two")


# Who may do what

KEYS = """
[reader]
key = "reader-0123456789abcdef"
role = "read"

[shop]
key = "shop-0123456789abcdef"
role = "write"

[operator]
key = "operator-0123456789abcdef"
role = "admin"

[hurried]
key = "hurried-0123456789abcdef"
role = "read"
limit = 0.01
"""


def as_key(name: str) -> dict[str, str]:
    return {"X-API-Key": f"{name}-0123456789abcdef"}


@pytest.fixture
def guarded(exported_model: Path, tmp_path: Path) -> Iterator[TestClient]:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    with TestClient(create_app(settings_for(exported_model, tmp_path, api_key_file=keys))) as client:
        yield client


def test_a_key_may_do_what_its_role_says(guarded: TestClient) -> None:
    body = {"events": [event("e1")]}
    answer = assert_problem(guarded.post("/v1/events", json=body, headers=as_key("reader")), 403, "forbidden")
    assert answer["detail"] == "This needs a key with the role write; reader has the role read."
    for path in ("/v1/users/u1/history", "/v1/events/e1"):
        assert_problem(guarded.delete(path, headers=as_key("reader")), 403, "forbidden")
    assert guarded.post("/v1/events", json=body, headers=as_key("shop")).status_code == 202
    assert guarded.get("/v1/users/u1/history", headers=as_key("reader")).status_code == 200
    for name in ("reader", "shop"):
        assert_problem(guarded.post("/v1/models/rollback", headers=as_key(name)), 403, "forbidden")
    # The operator may, but there is nothing to go back to.
    response = guarded.post("/v1/models/rollback", headers=as_key("operator"))
    assert_problem(response, 409, "no_previous_model")


def test_a_key_beyond_its_limit_is_told_when_to_come_back(guarded: TestClient) -> None:
    assert guarded.get("/v1/info", headers=as_key("hurried")).status_code == 200
    response = guarded.get("/v1/info", headers=as_key("hurried"))
    assert_problem(response, 429, "rate_limited")
    assert 1 <= int(response.headers["retry-after"]) <= 100
    assert guarded.get("/v1/info", headers=as_key("reader")).status_code == 200


def test_others_can_reach_a_service_without_keys_only_if_that_is_said(exported_model: Path) -> None:
    code, message = refused(exported_model, "--host", "0.0.0.0", "--port", "0")
    assert (code, "--api-key-file" in message, "--insecure" in message) == (2, True, True)
    with running(exported_model, "--host", "0.0.0.0", "--insecure") as server:
        assert httpx2.get(f"http://127.0.0.1:{server.port}/v1/info").status_code == 200
        assert server.stop() == 0


# What is answered and logged


def test_head_tells_of_the_same_response_as_get_without_its_content(client: TestClient) -> None:
    for path in ("/", "/v1/info", "/health/live", "/v1/users/u1/history", "/v1/items?query=film"):
        whole, head = client.get(path), client.head(path)
        assert (whole.status_code, head.status_code, head.content) == (200, 200, b"")
        volatile = ("date", "x-request-id")
        assert [each for each in head.headers.items() if each[0] not in volatile] == [
            each for each in whole.headers.items() if each[0] not in volatile
        ]
    assert client.get("/health/live").status_code == 200  # on the same connection, which is in step


def test_nobody_keeps_a_copy_of_what_users_did(client: TestClient) -> None:
    client.post("/v1/events", json={"events": [event("e1")]})
    answers = [
        client.get("/v1/users/u1/history"),
        client.post("/v1/recommend", json={"user_id": "u1"}),
        client.delete("/v1/users/u1/history"),
    ]
    assert [answer.headers["cache-control"] for answer in answers] == ["no-store"] * 3


@pytest.mark.parametrize("names_users", [False, True])
def test_every_line_of_a_log_is_json_and_each_request_has_one(
    exported_model: Path, tmp_path: Path, names_users: bool
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    options = ["--api-key-file", str(keys), "--log-format", "json", "--log-requests"]
    trace = "0af7651916cd43dd8448eb211c80319c"
    with running(exported_model, *options, *(["--log-user-ids"] if names_users else [])) as server:
        with server.client() as client:
            client.headers.update(as_key("shop"))
            traced = client.get(
                "/v1/users/somebody/history",
                headers={"X-Request-ID": "first", "traceparent": f"00-{trace}-b7ad6b7169203331-01"},
            )
            client.post("/v1/recommend", json={"user_id": "söme body"}, headers={"X-Request-ID": "second"})
            client.get("/v1/somebody", headers={"X-Request-ID": "third"})
            client.get("/v1/info", headers={"X-Request-ID": "fourth", "X-API-Key": "wrong"})
            untraced = client.get("/health/live", headers={"X-Request-ID": "fifth"})
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert all({"time", "level"} <= line.keys() for line in lines)
    requests = [line for line in lines if "route" in line]
    assert [
        (line["request_id"], line["method"], line["route"], line["status"], line.get("key"))
        for line in requests
    ] == [
        ("first", "GET", "/v1/users/{user_id}/history", 200, "shop"),
        ("second", "POST", "/v1/recommend", 200, "shop"),
        ("third", "GET", "other", 404, None),
        ("fourth", "GET", "/v1/info", 401, None),
        ("fifth", "GET", "/health/live", 200, None),
    ]
    users = [line.get("user_id") for line in requests]
    assert users == (["somebody", "söme body", None, None, None] if names_users else [None] * 5)
    assert names_users or "body" not in server.log
    assert "0123456789abcdef" not in server.log
    version, trace_id, span_id, _ = traced.headers["traceparent"].split("-")
    assert (version, trace_id, requests[0]["trace_id"]) == ("00", trace, trace)
    assert span_id != "b7ad6b7169203331"
    assert "traceparent" not in untraced.headers
