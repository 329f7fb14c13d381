"""`train` never costs a user what was there before, and does what it was told."""

import json
from pathlib import Path

import pytest

from tests.cli.test_data_commands import bert4rec, write_log

SHORT = [
    f"--set={setting}"
    for setting in (
        "training.steps=2",
        "training.validate_every=1",
        "training.batch_size=4",
        "model.dim=8",
        "model.max_length=5",
    )
]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    assert bert4rec("prepare", write_log(tmp_path / "log.csv"), "-o", tmp_path / "dataset").returncode == 0
    return tmp_path / "dataset"


def test_seed_zero_is_a_seed(dataset: Path, tmp_path: Path) -> None:
    run = bert4rec("train", dataset, "-o", tmp_path / "run", "--seed", "0", *SHORT, "--json")
    assert [line["seed"] for line in json.loads(run.stdout)] == [0, 0]


def test_a_mistake_in_the_settings_does_not_cost_the_old_run(dataset: Path, tmp_path: Path) -> None:
    assert bert4rec("train", dataset, "-o", tmp_path / "run", *SHORT).returncode == 0
    for mistake in (["--set", "model.dmi=3"], ["--preset", "ml-1mm"], ["--device", "abacus"]):
        assert bert4rec("train", dataset, "-o", tmp_path / "run", "--overwrite", *mistake).returncode in (
            2,
            4,
        )
        assert bert4rec("evaluate", tmp_path / "run").returncode == 0


def test_a_model_is_trained_by_its_name_and_a_wrong_name_is_refused(dataset: Path, tmp_path: Path) -> None:
    short = [setting for setting in SHORT if "max_length" not in setting]
    run = bert4rec("train", dataset, "-o", tmp_path / "run", "--model", "bpr-mf", *short, "--json")
    assert [line["model"] for line in json.loads(run.stdout)] == ["bpr-mf", "bpr-mf"]
    wrong = bert4rec("train", dataset, "-o", tmp_path / "other", "--model", "bpr-fm", *short)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("Error: There is no model 'bpr-fm'. Did you mean bpr-mf?")
    assert not (tmp_path / "other").exists()


def test_a_run_does_not_take_the_place_of_its_dataset(dataset: Path) -> None:
    run = bert4rec("train", dataset, "-o", dataset, "--overwrite", *SHORT)
    assert run.returncode == 2
    assert "it is never replaced" in run.stderr
    assert bert4rec("stats", dataset).returncode == 0


def test_resuming_refuses_other_settings_and_appends_no_result_twice(dataset: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    again = ("train", dataset, "-o", tmp_path / "run", "--results", results)
    assert bert4rec(*again, *SHORT).returncode == 0
    assert bert4rec(*again, "--resume", "--seed", "7").returncode == 2
    assert bert4rec(*again, "--resume").returncode == 0
    assert len(results.read_text().splitlines()) == 2
