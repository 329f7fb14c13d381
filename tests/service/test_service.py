"""`bert4rec serve` as a user meets it: real processes, real sockets, real signals."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import httpx2
import pytest

from bert4rec.artefact import new_folder
from bert4rec.store.events import Event, open_store
from tests.service.servers import BERT4REC, PATIENCE, RunningServer, running, variant


@pytest.fixture(scope="module")
def server(exported_model: Path) -> Iterator[RunningServer]:
    with running(exported_model) as server:
        yield server
        assert server.stop() == 0


def test_a_served_model_answers_and_torch_is_not_loaded(server: RunningServer) -> None:
    with server.client() as client:
        answer = client.post("/v1/recommend", json={"history": ["i1", "i2"], "k": 3})
        assert len(answer.json()["items"]) == 3
        client.post("/v1/explain", json={"history": ["i1"], "item_id": "i2"})
    libraries = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "onnxruntime" in libraries
    assert "libtorch" not in libraries
    assert "polars" not in libraries


def test_the_service_imports_neither_torch_nor_polars(exported_model: Path, tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
import bert4rec.service.running
from bert4rec.service.app import Settings, create_app
from tests.service.application import TestClient
settings = Settings(Path({str(exported_model)!r}), "sqlite:///{tmp_path}/history.db")
with TestClient(create_app(settings)) as client:
    assert client.post("/v1/recommend", json={{"history": ["i1"]}}).status_code == 200
    assert client.get("/v1/items", params={{"query": "film"}}).status_code == 200
print(sorted({{"torch", "polars", "psycopg", "matplotlib"}} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_only_this_machine_is_listened_to(server: RunningServer) -> None:
    """In /proc/net/tcp, 0100007F is 127.0.0.1 and 0A is a socket that listens."""
    sockets = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [local for local, _, state in sockets if state == "0A" and local.endswith(f":{server.port:04X}")]
    assert ours == [f"0100007F:{server.port:04X}"]


@pytest.mark.parametrize("user", ["a/b", "a b?c#d", "ünï", "%2F", "history", "x/history", "%"])
def test_ids_in_a_path_may_hold_anything(server: RunningServer, user: str) -> None:
    event = {"event_id": user, "user_id": user, "item_id": "i1", "timestamp": "2026-01-01T00:00:00Z"}
    with server.client() as client:
        client.post("/v1/events", json={"events": [event]})
        events = client.get(f"/v1/users/{quote(user, safe='')}/history").json()["events"]
    assert [each["user_id"] for each in events] == [user]


def refused(*arguments: str, port: int = 0) -> tuple[int, str]:
    """Exit code and message of a server that does not start, and leaves nothing behind."""
    command = [BERT4REC, "serve", *arguments, "--port", str(port)]
    with TemporaryDirectory() as folder:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder
        )
        assert list(Path(folder).iterdir()) == []
    assert "Traceback" not in run.stderr
    return run.returncode, run.stderr.replace("\n", " ")


def test_a_run_is_refused_with_the_command_to_type(tmp_path: Path) -> None:
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "run.json").write_text("{}")
    code, message = refused(str(tmp_path / "my run"))
    assert code == 2
    assert f"bert4rec export '{tmp_path}/my run' -o '{tmp_path}/my run-model'" in message


def test_what_is_no_model_is_refused(exported_model: Path, tmp_path: Path) -> None:
    code, message = refused(str(tmp_path / "nowhere"))
    assert (
        code,
        "nowhere does not exist; expected an exported model, which" in message,
    ) == (
        4,
        True,
    )
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "model.onnx").write_bytes(b"something")
    code, message = refused(str(tmp_path / "foreign"))
    assert (code, "foreign is not an exported model, which" in message) == (4, True)
    shutil.copytree(exported_model, tmp_path / "demo" / "model")
    code, message = refused(str(tmp_path / "demo"))
    assert (code, f"{tmp_path / 'demo' / 'model'} is: pass that folder." in message) == (4, True)


def test_a_wrong_folder_is_named_even_if_the_port_is_taken_too(server: RunningServer, tmp_path: Path) -> None:
    code, message = refused(str(tmp_path / "nowhere"), port=server.port)
    assert (code, f"{tmp_path / 'nowhere'} does not exist" in message) == (4, True)
    assert "Address" not in message


@pytest.mark.parametrize("name", ["encoder.onnx", "items.npy", "catalogue.json", "model.json"])
@pytest.mark.parametrize("keep_size", [False, True])
def test_a_damaged_model_is_refused(exported_model: Path, tmp_path: Path, name: str, keep_size: bool) -> None:
    model = tmp_path / "model"
    shutil.copytree(exported_model, model)
    content = (model / name).read_bytes()
    half = content[: len(content) // 2]
    (model / name).write_bytes(half + bytes(len(content) - len(half)) if keep_size else half)
    code, message = refused(str(model))
    assert (code, name in message) == (3, True)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_damaged_store_is_refused_with_the_way_out(
    exported_model: Path, tmp_path: Path, workers: str
) -> None:
    path = tmp_path / "history.db"
    store = open_store(f"sqlite:///{path}")
    store.add([Event(f"e{number}", f"somebody-{number}", "i1", number) for number in range(2000)])
    store.close()
    content = path.read_bytes()
    path.write_bytes(content[:20_000] + bytes(4096) + content[24_096:])
    code, message = refused(str(exported_model), "--store", f"sqlite:///{path}", "--workers", workers)
    assert (code, "is damaged: " in message, "bert4rec store backup" in message) == (3, True, True)
    assert "somebody" not in message


def test_an_address_in_use_is_refused_before_anything_is_loaded(
    server: RunningServer, exported_model: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(exported_model, tmp_path / "model")
    encoder = model / "encoder.onnx"
    encoder.write_bytes(bytes(encoder.stat().st_size))  # found out by whoever loads it
    code, message = refused(str(model), port=server.port)
    assert code == 2
    assert "Address already in use. Choose another" in message


def test_a_key_file_without_keys_does_not_mean_that_everybody_may_ask(
    exported_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    code, message = refused(str(exported_model), "--api-key-file", str(tmp_path / "keys"))
    assert (code, "contains no key" in message) == (2, True)
    code, message = refused(str(exported_model), "--api-key-file", str(tmp_path / "missing"))
    assert (code, "does not exist" in message) == (4, True)


def test_a_hang_up_before_there_is_a_model_changes_nothing(exported_model: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from bert4rec.service import running

def create_app(_):
    os.kill(os.getpid(), signal.SIGHUP)
    raise SystemExit(7)

running.create_app = create_app
settings = running.Settings(Path({str(exported_model)!r}), "sqlite:///:memory:")
running.run(settings, running.Launch(running.Address(port=0)))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7


def read_answer(connection: socket.socket) -> bytes:
    """Until the other side closes."""
    parts = []
    while part := connection.recv(2**16):
        parts.append(part)
    return b"".join(parts)


def test_sigterm_finishes_what_was_accepted(exported_model: Path) -> None:
    """A request has been begun when the server asks for its body; that comes only after the signal."""
    body = json.dumps({"history": ["i1", "i2"]}).encode()
    head = (
        b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    with running(exported_model) as server:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            connection.sendall(head)
            assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
            server.process.send_signal(signal.SIGTERM)
            while True:  # until the door is closed
                try:
                    socket.create_connection(("127.0.0.1", server.port), PATIENCE).close()
                except ConnectionError:
                    break
            connection.sendall(body)
            answer = read_answer(connection)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answer
        assert b'"items"' in answer
        assert server.stop() == 0
        assert "Stopped." in server.log


def test_several_workers_share_the_store_and_add_up_their_metrics(
    exported_model: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/history.db"
    with running(exported_model, "--workers", "2", store=store, temporary=tmp_path) as server:
        sent = 0
        while (
            sent % 2 or len(workers_that_answered(tmp_path)) < 2
        ):  # on new connections: any worker may take them
            event = {"event_id": f"e{sent // 2}", "user_id": "u", "item_id": "i1"}
            with server.client() as client:
                body = {"events": [{**event, "timestamp": "2026-01-01T00:00:00Z"}]}
                assert client.post("/v1/events", json=body).status_code == 202
            sent += 1
        with server.client() as client:
            metrics = client.get("/metrics").text
            assert len(client.get("/v1/users/u/history").json()["events"]) == sent // 2
        assert f'bert4rec_requests_total{{code="202",route="/v1/events"}} {sent}.0' in metrics
        assert f'bert4rec_events_total{{result="accepted"}} {sent // 2}.0' in metrics
        assert server.stop() == 0
    assert list(tmp_path.glob("bert4rec-metrics-*")) == []


def workers_that_answered(temporary: Path) -> list[Path]:
    return [
        path
        for path in temporary.glob("bert4rec-metrics-*/counter_*.db")
        if b"/v1/events" in path.read_bytes()
    ]


class Load:
    """Asks all the time, on one connection, and remembers every answer."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self.versions: list[str] = []
        self.failures: list[object] = []
        self._enough = threading.Event()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._server.client() as client:
            while not self._enough.is_set():
                try:
                    response = client.post("/v1/recommend", json={"history": ["i1"], "k": 1})
                    answer = response.json()
                    if response.status_code != 200:
                        self.failures.append(answer)
                        continue
                except httpx2.HTTPError as error:
                    self.failures.append(error)
                    continue
                with self._news:
                    self.versions.append(answer["model"]["version"])
                    self._news.notify_all()

    def wait_for(self, version: str) -> None:
        """Until this version has answered after now."""
        begun = len(self.versions)
        with self._news:
            assert self._news.wait_for(lambda: version in self.versions[begun:], timeout=PATIENCE)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


def swap_folder(new: Path, current: Path) -> None:
    """By two renames, as people do it."""
    current.rename(current.with_name(f"replaced-{new.name}"))
    new.rename(current)


def test_a_model_replaced_under_load_takes_over_without_a_failed_request(
    exported_model: Path, tmp_path: Path
) -> None:
    model = variant(exported_model, tmp_path / "model", "one")
    with running(model, "--watch") as server, Load(server) as load, server.client() as client:
        load.wait_for("one")
        swap_folder(variant(exported_model, tmp_path / "next", "two", favourite=33), model)
        load.wait_for("two")
        answer = client.post("/v1/recommend", json={"history": ["i1"], "k": 1}).json()
        assert answer["items"][0]["item_id"] == "i33"
        states = client.get("/v1/models").json()["models"]
        assert [(each["state"], each["version"]) for each in states] == [
            ("current", "two"),
            ("previous", "one"),
        ]
        assert states[0]["serving_since"] >= states[0]["loaded_at"] >= states[1]["loaded_at"]
        assert states[1]["serving_since"] is None
        # A broken model changes nothing.
        broken = variant(exported_model, tmp_path / "broken", "three")
        (broken / "encoder.onnx").write_bytes(b"nonsense")
        swap_folder(broken, model)
        server.wait_for_line("cannot be loaded; the current one stays in service")
        load.wait_for("two")
        # Back to the one before, at once; and to the newer again.
        for version in ("one", "two"):
            answer = client.post("/v1/models/rollback").json()
            assert answer["models"][0]["version"] == version
            load.wait_for(version)
        metrics = client.get("/metrics").text
        assert 'bert4rec_model_loads_total{result="loaded"} 2.0' in metrics
        assert 'bert4rec_model_loads_total{result="failed"} 1.0' in metrics
        assert 'bert4rec_model_loads_total{result="rolled_back"} 2.0' in metrics
        assert 'bert4rec_model_info{name="films",version="two"} 1.0' in metrics
        assert 'bert4rec_model_info{name="films",version="one"} 0.0' in metrics
    assert load.failures == []


def test_a_switched_link_takes_over_in_every_worker(exported_model: Path, tmp_path: Path) -> None:
    one, two = (variant(exported_model, tmp_path / name, name) for name in ("one", "two"))
    current = tmp_path / "current"
    current.symlink_to(one)
    with running(current, "--watch", "--workers", "2") as server, Load(server) as load:
        while server.log.count("version one: loaded") < 2:  # a worker that came later would know no other
            load.wait_for("one")
        (tmp_path / "new").symlink_to(two)
        (tmp_path / "new").rename(current)
        while server.log.count("version two: loaded") < 2:
            wait_for_everywhere(server, "two")
        with server.client() as client:
            assert client.post("/v1/models/rollback").status_code == 200
        wait_for_everywhere(server, "one")
    assert load.failures == []


def test_models_that_are_switched_to_and_fro_do_not_pile_up(exported_model: Path, tmp_path: Path) -> None:
    one, two = (variant(exported_model, tmp_path / name, name) for name in ("one", "two"))
    current = tmp_path / "current"
    current.symlink_to(one)
    with running(current, "--watch") as server, Load(server) as load:
        load.wait_for("one")
        threads = []
        for target in (two, one, two, one):
            (tmp_path / "new").symlink_to(target)
            (tmp_path / "new").rename(current)
            load.wait_for(target.name)
            threads.append(len(list(Path(f"/proc/{server.process.pid}/task").iterdir())))
        assert threads[-1] <= threads[1]
    assert load.failures == []


def test_a_model_replaced_behind_its_link_takes_over(exported_model: Path, tmp_path: Path) -> None:
    one, two = (variant(exported_model, tmp_path / name, name) for name in ("one", "two"))
    current = tmp_path / "current"
    current.symlink_to(one)
    with running(current, "--watch") as server, Load(server) as load:
        load.wait_for("one")
        with new_folder(current, "model.json", overwrite=True) as folder:
            shutil.copytree(two, folder, dirs_exist_ok=True)
        load.wait_for("two")
    assert current.readlink() == one
    assert load.failures == []


def wait_for_everywhere(server: RunningServer, version: str) -> None:
    """Until twenty connections in a row, taken by whichever worker, meet this version."""
    in_a_row = 0
    while in_a_row < 20:
        with server.client() as client:
            met = client.get("/v1/info").json()["model"]["version"]
        in_a_row = in_a_row + 1 if met == version else 0
