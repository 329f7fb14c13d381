"""Real processes, killed without warning while they train, must end where an undisturbed one ends."""

import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.errors import DataError
from bert4rec.training.run import Run
from tests.conftest import log_of
from tests.training.tiny import random_histories, tiny_options

SETTINGS = [
    "--refit=all",
    *tiny_options(),
    *(f"--set=training.{each}" for each in ("steps=80", "patience=80", "validate_every=4", "batch_size=32")),
]
"""Twenty validations, 40 ms apart: time enough for a signal to arrive where it is meant to."""


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A command as typed in a shell that finds this environment's programs.

    One core for everybody: with another number of threads, sums would be rounded otherwise.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def watch(running: subprocess.Popen[str], stage: str, marks: int) -> None:
    """Return as soon as the stage has begun and so many of its validations or checkpoints were reported."""
    assert running.stderr
    seen = []
    for line in running.stderr:
        seen.append(line)
        if any(each.startswith(stage) for each in seen):
            if not marks:
                return
            marks -= line.startswith("step ")
    raise AssertionError(f"the process ended before {stage} came that far:\n{''.join(seen)}")


def finish(running: subprocess.Popen[str]) -> None:
    _, messages = running.communicate()
    assert running.returncode == 0, messages


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    folder = tmp_path_factory.mktemp("data") / "dataset"
    return prepare(log_of(random_histories()), folder, name="tiny", recipe=recipe)


@pytest.fixture(scope="module")
def undisturbed(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    with process("bert4rec", "train", str(dataset.path), "-o", str(folder), *SETTINGS) as running:
        finish(running)
    return Run.open(folder)


def assert_same_weights(folder: Path, undisturbed: Run) -> None:
    run = Run.open(folder)
    run.verify()
    assert {path.name for path in folder.iterdir()} == {path.name for path in undisturbed.path.iterdir()}
    for name in ("selection.safetensors", "model.safetensors", "production.safetensors"):
        assert (folder / name).read_bytes() == (undisturbed.path / name).read_bytes()
    for mine, theirs in zip(run.result["lines"], undisturbed.result["lines"], strict=True):
        assert mine["metrics"] == theirs["metrics"]


def test_a_run_killed_again_and_again_ends_with_the_same_weights(
    dataset: Dataset, undisturbed: Run, tmp_path: Path
) -> None:
    """One command line begins it, goes on with it and, once it is finished, leaves it as it is."""
    folder = tmp_path / "run"
    command = ["bert4rec", "train", str(dataset.path), "-o", str(folder), "--resume", *SETTINGS]
    rng = random.Random(1)
    moments = [
        ("Selection", 0),
        ("Selection", rng.randint(1, 8)),
        ("Refit", rng.randint(0, 3)),
        ("Refit", rng.randint(1, 3)),
        ("Production", rng.randint(0, 3)),
        ("Production", rng.randint(1, 3)),
    ]
    for stage, marks in moments:
        with process(*command) as running:
            watch(running, stage, marks)
            running.send_signal(signal.SIGKILL)
        assert running.returncode == -signal.SIGKILL
        with pytest.raises(DataError, match=r"unfinished\. Continue it with `train\(.*, resume=True\)`"):
            Run.open(folder)
    for _ in range(2):
        with process(*command) as running:
            finish(running)
        assert_same_weights(folder, undisturbed)


def test_ctrl_c_prints_the_command_that_finishes_the_run(
    dataset: Dataset, undisturbed: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "a run"
    with process("bert4rec", "train", str(dataset.path), "-o", str(folder), *SETTINGS) as running:
        watch(running, "Selection", 2)
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate()
    assert running.returncode == 130
    assert "A checkpoint is written. Continue with:" in messages
    (command,) = (line for line in messages.splitlines() if line.startswith("  bert4rec train "))
    with process(*shlex.split(command)) as running:
        finish(running)
    assert_same_weights(folder, undisturbed)


SCRIPT = """
import sys
import bert4rec

dataset, folder, *settings = sys.argv[1:]

def tell(status):
    print(status.message or f"step {status.step}", file=sys.stderr, flush=True)

try:
    bert4rec.train(dataset, folder, settings=settings, refit="all", resume=not settings, device="cpu", callback=tell)
except KeyboardInterrupt as stopped:
    print("Stopped by", type(stopped).__name__, file=sys.stderr)
"""
"""What a script or a notebook does; without settings it resumes."""


def test_ctrl_c_in_a_script_leaves_a_checkpoint_from_which_it_goes_on(
    dataset: Dataset, undisturbed: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    script = (sys.executable, "-c", SCRIPT, str(dataset.path), str(folder))
    with process(*script, *(each.removeprefix("--set=") for each in SETTINGS[1:])) as running:
        watch(running, "step", 10)
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate()
    assert messages.endswith("Stopped by Interrupted\n")
    with process(*script) as running:
        _, messages = running.communicate()
    (resumed,) = (line for line in messages.splitlines() if line.startswith("Resuming at step "))
    assert resumed != "Resuming at step 0."
    assert "Stopped by" not in messages
    assert_same_weights(folder, undisturbed)
