"""`bert4rec.paper` as a library: what it offers, and what it gives back."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import bert4rec.paper
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.demo import demo
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.paper.experiments.cases import overall_cases
from bert4rec.paper.experiments.index import EXPERIMENTS
from bert4rec.training.specs import MODELS
from tests.conftest import log_of
from tests.paper.fake import facts_of, write_results
from tests.training.tiny import random_histories


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    prepare(log_of(random_histories(users=60)), tmp_path / "data" / "small", name="small", recipe=recipe)
    return tmp_path / "data"


def test_importing_it_loads_neither_torch_nor_polars() -> None:
    program = (
        "import bert4rec.paper, bert4rec.demo, sys; print({'torch', 'polars', 'scipy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_its_names_are_functions_also_after_their_modules_were_imported() -> None:
    assert callable(bert4rec.paper.reproduce)
    assert callable(bert4rec.paper.report)
    with pytest.raises(AttributeError, match="no attribute 'produce'"):
        bert4rec.paper.produce  # noqa: B018


def test_the_models_of_the_paper_are_a_list_and_a_registered_model_never_joins_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["POP", "BPR-MF", "NCF", "FPMC", "GRU4Rec", "GRU4Rec+", "Caser", "SASRec"]
    beyond = ["GRU4Rec+ (softmax)", "SASRec (softmax)", "BERT4Rec+"]
    facts = facts_of("beauty")
    before = {name: experiment.cases(facts) for name, experiment in EXPERIMENTS.items()}
    monkeypatch.setitem(MODELS, "mine", MODELS["sasrec"])
    assert [case.label for case in overall_cases(facts)] == [*names, "BERT4Rec", *beyond]
    assert {name: experiment.cases(facts) for name, experiment in EXPERIMENTS.items()} == before
    assert list(demo.DEMO_MODELS.values()) == [*names, "BERT4Rec", "BERT4Rec+"]
    for part in ("paper", "demo"):
        for path in (Path(bert4rec.paper.__file__).parents[1] / part).rglob("*.py"):
            assert " in MODELS" not in path.read_text(), f"{path} goes through all models"


def test_a_table_without_runs_is_made_at_once_and_read_as_markdown(data_folder: Path, tmp_path: Path) -> None:
    found = bert4rec.paper.reproduce(
        "table1", data_folder=data_folder, results=tmp_path / "results", work=tmp_path / "work"
    )
    assert (found.runs, found.left, found.failures) == ((), [], {})
    assert found.to_markdown().startswith("## Table 1: the data sets: small\n\n")
    assert repr(found) == f"Reproduction(0 runs: 0 done, 0 to do, 0 failed; {tmp_path / 'results'})"
    written = bert4rec.paper.report(tmp_path / "results", tmp_path / "report")
    assert written.page == tmp_path / "report" / "report.html"
    assert "Table 1" in written.text.read_text()
    assert written.figures == []


def test_what_would_not_finish_in_time_is_to_do_and_the_table_of_runs_says_so(
    data_folder: Path, tmp_path: Path
) -> None:
    found = bert4rec.paper.reproduce(
        ["table3"],
        data="small",
        data_folder=data_folder,
        seeds=[1, 2],
        minutes=0,
        quick=True,
        results=tmp_path / "results",
        work=tmp_path / "work",
        device="cpu",
    )
    frame = found.to_polars()
    assert frame.shape == (8, 8)
    assert set(frame["status"]) == {"to do"}
    assert frame.filter(pl.col("case") == "BERT4Rec (1 mask)")["seed"].to_list() == [1, 2]
    assert frame["seconds"].min() > 0  # type: ignore[operator]
    assert found.results == tmp_path / "results" / "quick"


def test_mistakes_name_parameters(data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Unknown table or figure 'tabel2'\. Did you mean table2"):
        bert4rec.paper.reproduce("tabel2")
    with pytest.raises(UsageError, match="`jobs` must be at least 1; got 0"):
        bert4rec.paper.reproduce("table2", jobs=0)
    with pytest.raises(NotFoundError, match="'nothing' is not the name of a known data set"):
        bert4rec.paper.reproduce("table2", data="nothing", data_folder=data_folder)
    with pytest.raises(NotFoundError, match=f"{tmp_path / 'nowhere'} not found"):
        bert4rec.paper.report(tmp_path / "nowhere")


def test_a_report_of_results_has_figures_and_says_what_a_reader_must_know(tmp_path: Path) -> None:
    write_results(tmp_path / "results", ["beauty"], ["figure4"], quick=True)
    written = bert4rec.paper.report(tmp_path / "results" / "quick", tmp_path / "report")
    assert {path.suffix for path in written.figures} == {".png", ".svg"}
    (warning,) = written.warnings
    assert warning.startswith("Quick runs")
