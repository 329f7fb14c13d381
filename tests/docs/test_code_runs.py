"""The code of README, documentation and examples runs, block after block, as somebody would type it."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

import bert4rec
from bert4rec.cli import app
from tests.docs.pages import PAGES, ROOT, blocks_of
from tests.service.servers import running
from tests.service.test_workers import until
from tests.spark.conftest import NO_JAVA

LANGUAGES = ("sh", "python")
SHORT = {"training.steps": 4, "training.validate_every": 2, "training.batch_size": 8}
"""Trainings stop after a few steps."""
SHALLOW = {"model.layers": 1}
"""What commands train is exported later, and every layer takes seconds. Nothing else is changed, but for the port of a
service."""
USUAL_ADDRESS = "http://127.0.0.1:8000"
WITH_CODE = [
    page
    for page, text in PAGES.items()
    if any(block.language in LANGUAGES and block.is_run for block in blocks_of(text))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader works: a log, and what is known of its items."""
    rows = [
        f"u{user},i{(user + step) % 12},{date(2024, 1, 1) + timedelta(days=25 * step + user % 20)}"
        for user in range(40)
        for step in range(8)
    ]
    (tmp_path / "events.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]) + "\n")
    items = [
        f"i{number},Blend no. {number},{'tea' if number % 2 else 'coffee'},{number}" for number in range(12)
    ]
    (tmp_path / "items.csv").write_text("\n".join(["item_id,title,category,price", *items]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def short_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    train: Callable[..., Any] = bert4rec.train

    def train_shortly(*arguments: Any, settings: dict[str, Any] | None = None, **others: Any) -> Any:
        return train(*arguments, settings={**(settings or {}), **SHORT}, **others)

    monkeypatch.setattr(bert4rec, "train", train_shortly)


class Shell:
    """Runs commands; a service goes on until the page is done.

    Ours run in this process: importing torch anew for each would take longer than all the rest.
    """

    def __init__(self, folder: Path, until_done: ExitStack) -> None:
        self._folder, self._until_done = folder, until_done
        self._address = ""

    def run(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if words[:2] == ["bert4rec", "serve"]:
            store = words.pop(words.index("--store") + 1) if "--store" in words else None
            options = [word for word in words[3:] if word != "--store"]
            server = self._until_done.enter_context(running(Path(words[2]), *options, store=store))
            self._address = server.address
            return
        if words[:2] == ["bert4rec", "auto"]:
            words += ["--minutes", "0.001"]
        if words[0] == "torchrun":
            words[:1] = [sys.executable, "-m", "torch.distributed.run"]
        if words[:2] in (["bert4rec", "train"], ["bert4rec", "refresh"]) or "torch.distributed.run" in words:
            words += [f"--set={key}={value}" for key, value in {**SHORT, **SHALLOW}.items()]
        if words[0] == "curl":
            assert words[-1].startswith(USUAL_ADDRESS)
            words[-1] = words[-1].replace(USUAL_ADDRESS, self._address)
            words[1:1] = ["--silent", "--show-error", "--fail-with-body"]
        if words[:2] == ["bert4rec", "ab"]:
            until(lambda: is_counted(words[2]))
        if words[0] == "bert4rec":
            app(words[1:], result_action="return_value")
            return
        run = subprocess.run(words, cwd=self._folder, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"{line}\n{run.stdout}{run.stderr}"


def is_counted(store: str) -> bool:
    """Recommendations of a test are, a second after they were given."""
    try:
        return bool(bert4rec.ab(store).arms)
    except bert4rec.NotFoundError:
        return False


@pytest.mark.usefixtures("short_trainings")
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs_in_order(page: str, folder: Path) -> None:
    names: dict[str, Any] = {}
    if page == "docs/guides/spark.md" and shutil.which("java") is None:
        pytest.skip(NO_JAVA)
    with ExitStack() as until_done:
        shell = Shell(folder, until_done)
        for block in blocks_of(PAGES[page]):
            if block.language == "python" and block.is_run:
                exec(compile(block.code, page, "exec"), names)
            elif block.language == "sh" and block.is_run:
                for line in block.code.splitlines():
                    shell.run(line)


def test_the_notebook_runs_as_a_script(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "notebook.py")]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "item-00" in run.stdout, "something is recommended"


def test_the_documentation_is_built_without_a_warning_and_runs_the_tutorial(tmp_path: Path) -> None:
    flags = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "sphinx-build" in line)
    words = shlex.split(flags.partition("sphinx-build")[2])[:-2]
    command = [sys.executable, "-m", "sphinx", *words, str(ROOT / "docs"), str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "-W" in words, "a warning is an error"
    assert "item-00" in (tmp_path / "tutorial.html").read_text(), "something is recommended"


def test_the_notebook_has_at_most_sixteen_lines() -> None:
    lines = (ROOT / "examples" / "notebook.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.startswith(("#", '"""'))]
    assert len(code) <= 16
