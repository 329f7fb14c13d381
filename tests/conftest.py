"""Shared by all tests: small datasets, the real data where it lies beside the checkout, no silent skips in CI."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.logs.log import Log
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.recommender import Recommender

# No test is about time: on a busy machine anything may take long.
settings.register_profile("calm", deadline=None)
settings.load_profile("calm")
REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; it is not part of the repository."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"the real data sets are not at {REAL_DATA}")
    return REAL_DATA


SLOWEST = ("tests/demo/", "tests/automatic/", "tests/cli/test_reproduce.py", "tests/docs/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests come first, so that two workers finish at about the same time."""
    items.sort(key=lambda item: not item.nodeid.startswith(SLOWEST))


MakeDataset = Callable[..., Dataset]


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Prepare histories given as lists of item numbers; every list is one user."""

    def make(
        histories: Sequence[Sequence[int]], times: Sequence[int] | None = None, **recipe: object
    ) -> Dataset:
        log = log_of(histories, times)
        settings = Recipe(**{"filters": Filters(min_user_actions=1), "num_negatives": 5, **recipe})  # type: ignore[arg-type]
        return prepare(
            log, tmp_path / f"dataset-{len(list(tmp_path.iterdir()))}", name="tiny", recipe=settings
        )

    return make


def log_of(histories: Sequence[Sequence[int]], times: Sequence[int] | None = None) -> Log:
    items = np.array([item for history in histories for item in history], np.uint32)
    return Log(
        users=np.repeat(np.arange(len(histories), dtype=np.uint32), [len(history) for history in histories]),
        items=items,
        times=None if times is None else np.array(times, np.int64),
        user_ids=pl.Series("id", [f"user-{i}" for i in range(len(histories))]),
        item_ids=pl.Series("id", [f"item-{i}" for i in range(int(items.max(initial=0)) + 1)]),
    )


NUM_ITEMS = 60


@pytest.fixture(scope="session")
def exported_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights; items i1 to i60, the first being the most popular. Exporting takes seconds, so all share one."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "exported-model"
    with (shared / "exported-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _export(folder)
    return folder


def _export(folder: Path) -> None:
    import torch

    from bert4rec.export.exporter import export_model
    from bert4rec.models.bert4rec import BERT4Rec
    from bert4rec.settings.networks import ModelConfig

    generator = torch.Generator().manual_seed(1)
    model = BERT4Rec(NUM_ITEMS, ModelConfig(dim=16, layers=1, heads=2, max_length=20), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    numbers = range(1, NUM_ITEMS + 1)
    catalogue = Catalogue(
        ids=[f"i{number}" for number in numbers],
        titles=[f"Film {number:03}" for number in numbers],
        counts=np.arange(NUM_ITEMS, 0, -1, dtype=np.int64),
    )
    export_model(model, catalogue, folder, name="films")


@pytest.fixture(scope="session")
def recommender(exported_model: Path) -> Recommender:
    return Recommender.load(exported_model)


# Not for the whole session: Playwright keeps an event loop running, and other tests want their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("BERT4REC_NO_SKIPS") and terminalreporter.stats.get("skipped"):
        terminalreporter.write_line("Tests were skipped that must run here.", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and os.environ.get("BERT4REC_NO_SKIPS") and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
