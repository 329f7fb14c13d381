"""The command under torchrun: what is refused, in one sentence, and how it is stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec.cli import app
from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.errors import DataError
from bert4rec.training.run import Run
from tests.conftest import log_of
from tests.distributed.processes import torchrun, torchrun_on_two_machines
from tests.training.tiny import random_histories, tiny_options, train_tiny

RECIPE = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
TRAIN = f'"{sys.executable}" -m bert4rec train {{folder}}/{{data}} -o {{folder}}/run --device cpu {{options}} || exit 0'


@pytest.fixture
def datasets(tmp_path: Path) -> Dataset:
    for rank in range(2):
        made = prepare(
            log_of(random_histories(seed=rank)), tmp_path / f"data-{rank}", name="tiny", recipe=RECIPE
        )
    return made


@pytest.mark.usefixtures("datasets")
@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (
            "data-0",
            "--seed $RANK",
            "Error: All processes must be started alike, but --seed of rank 1 is 1, not 0",
        ),
        (
            "data-$RANK",
            "",
            "Error: All processes must be started alike, but the checksum of the dataset of rank 1",
        ),
        ("data-0", "--model pop", "Error: Pop with these settings cannot be trained by several processes"),
    ],
)
def test_what_cannot_be_trained_together_is_refused_once_and_leaves_nothing(
    tmp_path: Path, data: str, options: str, said: str
) -> None:
    command = TRAIN.format(folder=tmp_path, data=data, options=options)
    done = torchrun(2, "--no-python", "sh", "-c", command)
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith(said)
    assert not (tmp_path / "run").exists()


def test_a_refusal_ends_all_machines_and_is_no_other_after_a_restart(
    datasets: Dataset, tmp_path: Path
) -> None:
    """Only the first process has a folder to refuse. A machine whose processes end well would wait for the others."""
    before = train_tiny(datasets, tmp_path / "run")
    command = ["-m", "bert4rec", "train", str(datasets.path), "-o", str(before.path), "--device", "cpu"]
    done = torchrun_on_two_machines(*command, restarts=1)
    assert [each.returncode for each in done] == [1, 1], done
    refusals = [line for each in done for line in each.stderr.splitlines() if line.startswith("Error: ")]
    assert len(refusals) == 2, done
    assert all("--overwrite" in line for line in refusals)


def test_ctrl_c_leaves_a_checkpoint_from_which_one_process_goes_on(datasets: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["train", str(datasets.path), "-o", str(folder), "--device", "cpu"]
    options = [*tiny_options(), *(f"--set=training.{each}" for each in ("steps=200", "patience=200"))]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "bert4rec",
    ]
    with subprocess.Popen(
        [*command, *words, *options], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stderr
        said = []
        for line in running.stderr:
            said.append(line)
            if line.startswith("step ") and sum(each.startswith("step ") for each in said) == 2:
                os.killpg(running.pid, signal.SIGINT)  # As a terminal does.
    assert "A checkpoint is written. Continue with:\n" in said, said
    assert any(
        line.startswith("  torchrun --standalone --nproc-per-node 2 -m bert4rec train ") for line in said
    )
    with pytest.raises(DataError, match="unfinished"):
        Run.open(folder)
    app([*words, "--resume"], result_action="return_value")
    Run.open(folder).verify()
