"""`tune` prints what was found, and how to train with it."""

import json
from pathlib import Path
from queue import SimpleQueue

import pytest

from bert4rec.cli.tune_command import SearchLine, tune_command
from tests.conftest import MakeDataset
from tests.training.tiny import random_histories
from tests.tuning.test_stop_and_resume import SETTINGS


def test_the_outcome_is_printed_for_people_and_for_programs(
    make_dataset: MakeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = make_dataset(random_histories()).folder
    settings = tuple(f"{key}={value}" for key, value in SETTINGS.items())
    tune_command(dataset, output=tmp_path / "tuned", settings=settings, trials=2, device="cpu")
    printed = capsys.readouterr()
    assert "default" in printed.out
    assert "Trial 1: NDCG@10:both " in printed.err
    assert (
        f"train {dataset} -o {tmp_path / 'tuned-run'} --model bert4rec+ "
        f"--config {tmp_path / 'tuned' / 'settings.toml'}" in printed.err
    )
    assert "--select-by" not in printed.err
    tune_command(dataset, output=tmp_path / "tuned", trials=2, resume=True, json=True, device="cpu")
    found = json.loads(capsys.readouterr().out)
    assert [trial["number"] for trial in found["trials"]] == [0, 1]
    assert found["sentence"] in " ".join(printed.out.split())


def test_what_was_searched_by_is_part_of_the_command_and_of_the_file(
    make_dataset: MakeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, folder = make_dataset(random_histories()).folder, tmp_path / "tuned"
    settings = tuple(f"{key}={value}" for key, value in SETTINGS.items())
    tune_command(dataset, output=folder, settings=settings, trials=1, device="cpu", select_by="ndcg@10:full")
    command = f"--config {folder / 'settings.toml'} --select-by NDCG@10:full"
    assert command in capsys.readouterr().err
    assert 'config="settings.toml", select_by="NDCG@10:full")`' in (folder / "settings.toml").read_text()


def test_without_a_terminal_it_never_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    told: SimpleQueue[str] = SimpleQueue()
    now = [100.0]
    monkeypatch.setattr("bert4rec.cli.tune_command.say", told.put)
    monkeypatch.setattr("bert4rec.cli.tune_command.time.monotonic", lambda: now[0])
    monkeypatch.setattr("bert4rec.cli.train_command.SILENCE", 0.01)
    with SearchLine() as line:
        assert told.get(timeout=60) == "Getting ready."
        line.busy("trial 3: step 100 of 800", 90.0)
        now[0] += 30
        assert any(told.get(timeout=60) == "trial 3: step 100 of 800, 0:01:00 left" for _ in range(1000))
