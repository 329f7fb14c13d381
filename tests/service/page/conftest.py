"""The page in a real browser, against a real server. Whoever visits must have nothing to complain of."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
)

from bert4rec.artefact import write_manifest
from tests.service.page.steps import (
    SAMPLES,
    TITLES,
    Visit,
)
from tests.service.servers import PATIENCE, RunningServer, running


@pytest.fixture(scope="module")
def model(exported_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Films with awkward titles, and two sample users."""
    folder = tmp_path_factory.mktemp("page") / "model"
    shutil.copytree(exported_model, folder)
    catalogue = json.loads((folder / "catalogue.json").read_text())
    catalogue["titles"] = [
        TITLES.get(*each) for each in zip(catalogue["ids"], catalogue["titles"], strict=True)
    ]
    (folder / "catalogue.json").write_text(json.dumps(catalogue))
    samples = [{"user_id": user, "history": history} for user, history in SAMPLES.items()]
    (folder / "samples.json").write_text(json.dumps(samples))
    write_manifest(folder, "model.json", json.loads((folder / "model.json").read_text()))
    return folder


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    with running(model) as server:
        yield server


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Visit]:
    """Open the page with a state in its address. In the end: no complaints, and nothing asked of anybody else."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []
    asked: list[tuple[str, str]] = []

    def visit(
        state: str = "", *, origin: str = server.address, may_fail: bool = False, **options: Any
    ) -> Page:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE * 1000)
        contexts.append(context)

        def hear(message: ConsoleMessage) -> None:
            is_failure = message.text.startswith("Failed to load resource")
            if message.type in ("error", "warning") and not (is_failure and may_fail):
                complaints.append(message.text)

        context.on("console", hear)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.on("request", lambda request: asked.append((request.url, origin)))
        page = context.new_page()
        page.goto(f"{origin}/{state}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert asked
    assert [url for url, origin in asked if not url.startswith((f"{origin}/", "data:"))] == []
