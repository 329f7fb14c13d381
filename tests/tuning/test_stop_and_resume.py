"""Real processes, killed or interrupted while they search: nothing that was found is lost."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bert4rec
from bert4rec.data.dataset import Dataset
from bert4rec.errors import UsageError
from bert4rec.settings.config import read_config
from bert4rec.settings.sections import DEFAULT_MODEL
from tests.conftest import MakeDataset
from tests.training.tiny import TRAINING, random_histories

SETTINGS = {
    "model.dim": 8,
    "model.layers": 1,
    "model.max_length": 8,
    **{f"training.{key}": value for key, value in TRAINING.items()},
}


@contextmanager
def tuning(dataset: Dataset, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bert4rec", "tune", str(dataset.path), "-o", str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def wait_for(running: subprocess.Popen[str], beginning: str) -> None:
    assert running.stderr
    seen = []
    for line in running.stderr:
        seen.append(line)
        if line.startswith(beginning):
            return
    raise AssertionError(f"the process ended before it said {beginning}:\n{''.join(seen)}")


def test_a_search_that_was_killed_and_interrupted_keeps_what_it_found_and_goes_on(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    dataset, folder = make_dataset(random_histories()), tmp_path / "tuned"
    options = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    with tuning(dataset, folder, "--minutes", "30", *options) as running:
        wait_for(running, "Trial 2:")
        running.send_signal(signal.SIGKILL)
    kept = (folder / "trials.jsonl").read_text().splitlines()
    assert len(kept) >= 3
    read_config(DEFAULT_MODEL, folder / "settings.toml")
    with pytest.raises(
        UsageError, match=r"holds an unfinished search\. Continue it with `resume=True`, or start"
    ):
        bert4rec.tune(dataset, folder)

    # The worst moment: in the middle of a line of the journal, with its lock, and a trial under way.
    journal = folder / "study.jsonl"
    (folder / "study.jsonl.lock").unlink(missing_ok=True)
    (folder / "study.jsonl.lock").symlink_to(journal)
    with journal.open("a") as file:
        file.write('{"op_code": 7, "worker_id": "')
    with tuning(dataset, folder, "--minutes", "30", "--resume") as running:
        wait_for(running, "Trial ")
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate()
    assert running.returncode == 130
    assert f"Stopped. The best settings so far are in {folder / 'settings.toml'}, which says how" in messages
    assert f"tune {dataset.path} -o {folder} --resume --minutes 30" in messages
    assert (folder / "tuning.png").exists()
    now = (folder / "trials.jsonl").read_text().splitlines()
    assert now[: len(kept)] == kept
    assert len(now) > len(kept)

    found = bert4rec.tune(dataset, folder, 30, trials=len(now) + 3, resume=True, device="cpu")
    assert [json.dumps(vars(trial)) for trial in found.trials][: len(now)] == now
    assert "failed" in {trial.state for trial in found.trials}, "those that were stopped"
    assert {trial.state for trial in found.trials[len(now) + 1 :]} <= {"complete", "pruned"}
    assert found.settings["model"]["dim"] == 8, "settings that were chosen stay as they are"
    run = bert4rec.train(dataset, tmp_path / "run", config=found.file, test=False, device="cpu")
    assert run.plan.config.as_dict() == found.settings


def test_stopping_before_the_default_was_tried_leaves_nothing(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    dataset = make_dataset(random_histories())
    with pytest.raises(KeyboardInterrupt):
        bert4rec.tune(dataset, tmp_path / "tuned", 30, should_stop=lambda: True, device="cpu")
    assert not (tmp_path / "tuned").exists()
