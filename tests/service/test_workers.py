"""Several workers behind one address: how they share the work, and what happens when some of them die."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx2
import pytest

from bert4rec.service.http.workers import BEAT_EVERY, READY, RELOAD, Supervisor
from tests.service.servers import PATIENCE, RunningServer, running, variant

ESTABLISHED = "01"
PROGRAM = """
from pathlib import Path
from bert4rec.service import running
from bert4rec.service.http import workers

workers.HANG = 3.0
settings = running.Settings(Path({model!r}), {store!r}, workers=2)
running.run(settings, running.Launch(running.Address(port=0), workers=2, drain=0))
"""
"""A service that loses its patience with workers sooner."""


def until(is_so: Callable[[], object]) -> None:
    """Look again and again."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "this has never come true"
        time.sleep(0.02)


def workers_of(server: RunningServer) -> set[int]:
    """Their process ids. The parent has another child, which cleans up after all of them."""
    parent = server.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def processes_of(server: RunningServer) -> list[str]:
    """All that still run of those that the server started, itself included."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            if int(group) == server.process.pid and state != "Z":
                found.append((path.parent / "cmdline").read_text())
    return found


class Client:
    """A connection that is kept open, and on which one thing is asked after another."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.connection.connect()
        self._local_port = self.connection.sock.getsockname()[1]

    def ask(self, path: str = "/health/live", **headers: str) -> http.client.HTTPResponse:
        self.connection.request("GET", path, headers=headers)
        response = self.connection.getresponse()
        response.read()
        return response

    @property
    def worker(self) -> int | None:
        """The process at the other end, found by the socket that both of its ends name."""
        local, remote = f":{self._server.port:04X}", f":{self._local_port:04X}"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = [
            line[9]
            for line in lines
            if line[1].endswith(local) and line[2].endswith(remote) and line[3] == ESTABLISHED
        ]
        return next((pid for pid in workers_of(self._server) if _sockets(pid) & set(inodes)), None)

    def close(self) -> None:
        self.connection.close()


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(path.readlink())):
                    found.add(match[1])
    return found


@contextmanager
def clients_of_each(server: RunningServer, count: int = 2) -> Iterator[dict[int, Client]]:
    """A connection to each worker, as soon as all have come up."""
    with ExitStack() as closing:
        found: dict[int, Client] = {}

        def knows_all() -> bool:
            client = Client(server)
            closing.callback(client.close)
            assert client.ask().status == 200
            if client.worker:
                found.setdefault(client.worker, client)
            return len(found) == count

        until(knows_all)
        yield found


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("first-key\n")
    return path


@pytest.fixture(scope="module")
def server(exported_model: Path, keys: Path) -> Iterator[RunningServer]:
    with running(exported_model, "--workers", "2", "--api-key-file", str(keys)) as server:
        yield server
        assert server.stop() == 0


def test_connections_are_shared_evenly(server: RunningServer) -> None:
    with ExitStack() as closing, clients_of_each(server):
        clients: list[Client] = []

        def shares() -> list[int]:
            clients.append(Client(server))
            closing.callback(clients[-1].close)
            assert clients[-1].ask().status == 200
            return sorted(Counter(client.worker for client in clients).values())

        for _ in range(20):
            last = shares()
        # How many a worker has is told twice a second, and may be one behind when the next comes.
        assert len(last) == 2
        assert last[1] - last[0] <= 4


def test_a_killed_worker_is_replaced_and_clients_of_the_other_notice_nothing(server: RunningServer) -> None:
    with clients_of_each(server) as clients:
        (victim, _), (other, client) = clients.items()
        statuses: list[int] = []
        is_enough = threading.Event()

        def ask() -> None:
            while not is_enough.is_set():
                statuses.append(client.ask("/v1/info", **{"X-API-Key": "first-key"}).status)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            until(lambda: statuses)
            os.kill(victim, signal.SIGKILL)
            server.wait_for_line(rf"Worker {victim} ended \(killed by SIGKILL\); another one is started\.")
            with clients_of_each(server) as after:
                assert victim not in after
                assert other in after
        finally:
            is_enough.set()
            asking.join()
    assert set(statuses) == {200}


def test_keys_are_read_again_in_every_worker(server: RunningServer, keys: Path) -> None:
    def statuses(key: str) -> set[int]:
        return {client.ask("/v1/info", **{"X-API-Key": key}).status for client in clients.values()}

    with clients_of_each(server) as clients:
        assert (statuses("first-key"), statuses("second-key")) == ({200}, {401})
        keys.write_text("second-key\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: statuses("second-key") == {200})
        assert statuses("first-key") == {401}
        keys.write_text("first-key\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: statuses("first-key") == {200})


def test_without_a_model_it_is_said_and_tried_again_until_there_is_one(
    exported_model: Path, tmp_path: Path
) -> None:
    model = variant(exported_model, tmp_path / "model", "one")
    with running(model, "--workers", "2", "--log-format", "json") as server:
        with clients_of_each(server) as clients:
            victims = list(clients)
        model.rename(tmp_path / "elsewhere")
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        server.wait_for_line("exit status 1.*another one is started in 1 seconds")
        with server.client() as client:
            response = client.get("/health/ready")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        assert response.json()["code"] == "no_worker"
        server.wait_for_line("another one is started in 2 seconds")
        (tmp_path / "elsewhere").rename(model)
        until(lambda: httpx2.get(f"{server.address}/health/ready").status_code == 200)
        with clients_of_each(server) as clients:
            assert not set(victims) & set(clients)
        assert server.stop() == 0
    messages = [json.loads(line)["message"] for line in server.log.splitlines()]
    assert any(str(model) in message for message in messages)


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_sigterm_to_the_parent_or_to_all_drains_and_leaves_nobody_behind(
    exported_model: Path, send: Callable[[int, int], None]
) -> None:
    with running(exported_model, "--workers", "2", "--drain", str(PATIENCE)) as server:
        with clients_of_each(server) as clients:
            send(server.process.pid, signal.SIGTERM)
            with server.client() as client:
                until(lambda: client.get("/health/ready").status_code == 503)
                answer = client.post("/v1/recommend", json={"history": ["i1"]})
                assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            for each in clients.values():
                response = each.ask()
                assert (response.status, response.headers["connection"]) == (200, "close")
        send(server.process.pid, signal.SIGTERM)  # the second one ends the drain
        assert server.process.wait(PATIENCE) == 0
        until(lambda: not processes_of(server))
    assert "ended" not in server.log
    assert "Traceback" not in server.log


@pytest.mark.parametrize("is_deaf", [False, True])
def test_workers_whose_parent_was_killed_end_too(exported_model: Path, is_deaf: bool) -> None:
    """Also if it had not listened to them for a while."""
    with running(exported_model, "--workers", "2") as server, clients_of_each(server):
        if is_deaf:
            server.process.send_signal(signal.SIGSTOP)
            two_beats = time.monotonic() + 2 * BEAT_EVERY
            until(lambda: time.monotonic() > two_beats)
        server.process.kill()
        server.process.wait(PATIENCE)
        until(lambda: not processes_of(server))


def load_slowly(folder: Path, channel: socket.socket) -> None:
    """A worker that is ready when it has been told something, and keeps what that was."""
    (folder / "begun").touch()
    word = channel.recv(64)
    (folder / "word").write_bytes(word)
    channel.send(READY)
    channel.recv(64)


def test_a_worker_that_is_still_loading_is_told_that_something_has_changed(tmp_path: Path) -> None:
    """Otherwise it would go on with keys that it read before they were changed."""

    async def run() -> None:
        supervisor = Supervisor(partial(load_slowly, tmp_path), 1, drain=0)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(supervisor.run(listener))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.02)
            os.kill(os.getpid(), signal.SIGHUP)
            while not (tmp_path / "word").exists():
                await asyncio.sleep(0.02)
            os.kill(os.getpid(), signal.SIGTERM)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(run())
    assert (tmp_path / "word").read_bytes() == RELOAD


def test_a_worker_that_hangs_is_killed_and_replaced(exported_model: Path, tmp_path: Path) -> None:
    program = PROGRAM.format(model=str(exported_model), store=f"sqlite:///{tmp_path / 'history.db'}")
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        try:
            server = RunningServer(process)
            with clients_of_each(server) as clients:
                victim, *_ = clients
            os.kill(victim, signal.SIGSTOP)
            server.wait_for_line(f"Worker {victim} does not respond and is killed")
            server.wait_for_line(f"Worker {victim} ended")
            with clients_of_each(server) as clients:
                assert victim not in clients
            assert server.stop() == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
