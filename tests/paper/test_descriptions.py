"""What a report shows of a data set is written beside the results, once."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.paper.runs.ledger import Ledger, describe
from tests.conftest import log_of
from tests.paper.tiny import tiny_job
from tests.training.tiny import random_histories


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Half of the items have a title."""
    titles = pl.DataFrame(
        {"id": [f"item-{i}" for i in range(0, 20, 2)], "title": [f"T{i}" for i in range(0, 20, 2)]}
    )
    log = replace(log_of(random_histories()), item_columns=titles)
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    return prepare(log, tmp_path / "dataset", name="small", recipe=recipe)


def test_statistics_are_written_once(dataset: Dataset, tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "results", quick=False)
    describe(dataset, ledger)
    describe(dataset, ledger)
    (line,) = ledger.lines()
    assert (line["kind"], line["family"], line["protocol"]) == ("statistics", "beauty", "leave-one-out")
    assert line["statistics"]["users"] == dataset.num_users


def test_titles_of_shown_items_are_added_when_they_can_be_read(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(tmp_path / "results", quick=False)
    example = {"items": [1, 2, 3, 4], "maps": []}
    ledger.add([{**tiny_job(dataset).identity(kind="attention"), "examples": [example]}])
    with monkeypatch.context() as context:
        context.setattr(Dataset, "items", _no_polars)
        describe(dataset, ledger)
    assert [line["kind"] for line in ledger.lines()] == ["attention", "statistics"]
    describe(dataset, ledger)
    describe(dataset, ledger)
    (line,) = [line for line in ledger.lines() if line["kind"] == "titles"]
    known = dataset.items()["title"].to_list()
    assert line["titles"] == {str(item): known[item - 1] for item in example["items"] if known[item - 1]}
    assert line["titles"]


def _no_polars(_self: Dataset) -> None:
    raise ImportError
