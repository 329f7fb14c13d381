"""The image: what the Dockerfile promises, and what its commands make."""

import json
import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.deploy.container import build_image, running_container
from tests.deploy.dockerfile import BUILD, FINAL, ROOT, is_sent

BASE_BYTES = 130_000_000
"""An estimate, rounded up: python:3.12-slim, unpacked. It is the one part of the image that is not made here."""
MOST_BYTES = 600_000_000
ASK = """
import json
from http.client import HTTPConnection

connection = HTTPConnection("127.0.0.1", 8000)
headers = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
event = {"event_id": "e1", "user_id": "ann", "item_id": "i1", "timestamp": "2026-01-31T12:00:00Z"}
for path, body in (("/v1/events", {"events": [event]}), ("/v1/recommend", {"user_id": "ann", "k": 3})):
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse().read()
print(answer.decode())
"""


def test_the_service_is_started_without_a_shell_by_a_user_that_is_not_root() -> None:
    user, group = map(int, FINAL.one("USER").split(":"))
    assert user > 0 and group > 0, "numbers, so that Kubernetes can tell that it is not root"
    assert FINAL.words("ENTRYPOINT") + FINAL.words("CMD")[:2] == ["bert4rec", "serve", "/model"]
    words = [word for word, _ in FINAL.instructions]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "RUN" not in words[words.index("USER") :], "nothing belongs to the user but its data"


def test_the_health_check_asks_whether_the_service_is_ready_and_needs_no_other_program() -> None:
    command = FINAL.words("HEALTHCHECK")
    assert command[:2] == ["python", "-c"]
    port = FINAL.words("CMD")[FINAL.words("CMD").index("--port") + 1]
    assert f"C('127.0.0.1', {port}," in command[2] and "/health/ready" in command[2]
    assert FINAL.one("EXPOSE") == port


def test_what_keeps_state_is_a_volume_and_python_writes_nothing_else() -> None:
    options = FINAL.words("CMD")
    volume = FINAL.one("VOLUME")
    assert options[options.index("--store") + 1].startswith(f"sqlite:///{volume}/")
    assert FINAL.environment["PYTHONDONTWRITEBYTECODE"] == "1"


def test_versions_are_pinned_and_only_what_serving_needs_is_installed() -> None:
    [install] = [command for command in BUILD.all("RUN") if "[$EXTRAS]" in command]
    assert "--constraint constraints.txt" in install
    assert BUILD.arguments == {"EXTRAS": "serve,postgres"}


def test_files_that_are_copied_exist_and_are_sent_and_others_are_not() -> None:
    copied = [source for argument in BUILD.all("COPY") for source in argument.split()[:-1]]
    assert copied
    for source in copied:
        assert (ROOT / source).exists() and is_sent(ROOT / source), source
    kept_back = (
        ".git/config",
        "history.db",
        "results/x",
        "README.txt",
        ".venv/bin/python",
        "src/a/__pycache__/b.pyc",
    )
    assert not [name for name in kept_back if is_sent(ROOT / name)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process another root and another user")
def test_the_image_serves_a_model_without_torch_as_nobody_on_a_read_only_system(
    tmp_path: Path, exported_model: Path
) -> None:
    with TemporaryDirectory(dir=tmp_path) as folder:  # half a gigabyte that nobody wants to keep
        image = build_image(Path(folder))
        check_what_is_installed(image / "opt" / "bert4rec")
        check_that_it_serves(image, exported_model, tmp_path)


def check_what_is_installed(environment: Path) -> None:
    installed = {path.name.partition("-")[0] for path in environment.glob("lib/*/site-packages/*.dist-info")}
    assert {"bert4rec", "onnxruntime", "psycopg"} <= installed
    assert not {"torch", "onnx", "pip", "pytest"} & installed
    size = sum(path.lstat().st_size for path in environment.rglob("*"))
    assert size + BASE_BYTES < MOST_BYTES, f"{size / 1e6:.0f} MB are installed"


def check_that_it_serves(image: Path, model: Path, folder: Path) -> None:
    data, keys = folder / "data", folder / "keys"
    data.mkdir(mode=0o700)
    os.chown(data, *map(int, FINAL.one("USER").split(":")))
    keys.mkdir()
    (keys / "keys.txt").write_text("secret\n")
    volumes = {"/data": data, "/model:ro": model, "/keys:ro": keys}
    with running_container(image, volumes) as container:
        health = container.run(FINAL.words("HEALTHCHECK"))
        assert health.returncode == 0, health.stderr
        answer = container.run(["python", "-c", ASK])
        assert len(json.loads(answer.stdout)["items"]) == 3, answer
        for place in ("/opt/bert4rec", "/model", "/etc", "/"):
            assert "Read-only file system" in container.run(["touch", f"{place}/x"]).stderr, place
        container.process.send_signal(signal.SIGTERM)
        assert container.process.wait() == 0
    assert (data / "history.db").stat().st_uid == int(FINAL.one("USER").partition(":")[0])
