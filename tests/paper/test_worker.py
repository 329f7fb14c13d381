"""Real processes: they leave every result exactly once, whatever is killed and when."""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.paper.experiments.cases import Case
from bert4rec.paper.runs.jobs import Job, mark_of
from bert4rec.paper.runs.ledger import Ledger
from bert4rec.paper.runs.runner import Slot, Worker, WorkerSettings
from bert4rec.paper.runs.worker import WorkerState, perform
from bert4rec.training.loop import Interrupted
from tests.conftest import log_of
from tests.paper.tiny import tiny_case, tiny_job
from tests.training.tiny import after, random_histories

LONG = ("training.steps=60", "training.validate_every=3")
"""Validations a few milliseconds apart: time enough for a signal to arrive where it is meant to."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    folder = tmp_path_factory.mktemp("data") / "dataset"
    return prepare(log_of(random_histories()), folder, name="beauty", recipe=recipe)


def jobs_for(dataset: Dataset) -> list[Job]:
    cases: list[Case] = [
        tiny_case("first", "bert4rec", *LONG, measures=("attention", "selection")),
        tiny_case("second", "bert4rec+", *LONG, measures=("asked", "selection")),
        tiny_case("third", "bert4rec", *LONG, variant="without positions"),
    ]
    return [tiny_job(dataset, case) for case in cases]


def state_in(folder: Path) -> WorkerState:
    return WorkerState(folder / "results", folder / "work", "cpu", 1, False, quick=False, keep_runs=False)


def work(dataset: str, folder: str) -> None:
    """What the killed processes do: all jobs, with a word on stdout at every step of the way."""
    for job in jobs_for(Dataset.open(dataset)):
        perform(job, state_in(Path(folder)), tell, lambda: False)
        tell(event="done")


def tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def work_after_another(dataset: str, folder: str) -> None:
    """What the process does that comes second: one job, with a word whenever it is about to wait for a lock."""
    lock = fcntl.flock

    def say_and_lock(handle: Any, how: int) -> None:
        tell(event="waits")
        lock(handle, how)

    fcntl.flock = say_and_lock
    text, is_whole = perform(tiny_job(Dataset.open(dataset)), state_in(Path(folder)), tell, lambda: False)
    tell(event="done", text=text, is_whole=is_whole)


def results_of(folder: Path) -> dict[str, Any]:
    """Mark → what came out; each mark must be there once."""
    lines = Ledger(folder / "results").lines()
    assert set(Counter(map(mark_of, lines)).values()) == {1}
    return {mark_of(line): line.get("metrics") or line.get("maps") for line in lines}


@contextmanager
def process(
    what: Callable[[str, str], None], dataset: Dataset, folder: Path
) -> Iterator[subprocess.Popen[str]]:
    code = f"from {what.__module__} import {what.__name__} as do; do({str(dataset.path)!r}, {str(folder)!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.fixture(scope="module")
def undisturbed(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    Ledger.open(folder / "results", quick=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # With another number, sums would be rounded otherwise.
    for job in jobs_for(dataset):
        perform(job, state_in(folder), lambda **_: None, lambda: False)
    torch.set_num_threads(threads)
    return results_of(folder)


def test_killed_again_and_again_it_ends_with_the_same_results(
    dataset: Dataset, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    Ledger.open(tmp_path / "results", quick=False)
    rng = random.Random(3)
    for _ in range(3):
        with process(work, dataset, tmp_path) as running:
            assert running.stdout
            for _ in range(rng.randint(1, 60)):
                running.stdout.readline()
            running.send_signal(signal.SIGKILL)
    with process(work, dataset, tmp_path) as running:
        running.communicate()
    assert running.returncode == 0
    assert results_of(tmp_path) == undisturbed
    assert list((tmp_path / "work").iterdir()) == [], "finished runs are removed"


def test_killed_between_training_and_writing_it_writes_without_training_again(
    dataset: Dataset, undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, state = jobs_for(dataset)[0], state_in(tmp_path)
    Ledger.open(tmp_path / "results", quick=False)
    with monkeypatch.context() as context, pytest.raises(MemoryError):
        context.setattr(Ledger, "add", _fail)
        perform(job, state, lambda **_: None, lambda: False)
    heard: list[str] = []
    perform(job, state, lambda **event: heard.append(event["event"]), lambda: True)
    assert heard == []
    assert {mark: undisturbed[mark] for mark in results_of(tmp_path)} == results_of(tmp_path)
    assert job.wanted <= set(results_of(tmp_path))


def _fail(*_: object) -> None:
    raise MemoryError


def next_event(running: subprocess.Popen[str]) -> dict[str, Any]:
    assert running.stdout
    return dict(json.loads(running.stdout.readline()))


def last_event(running: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = running.communicate()
    assert running.returncode == 0
    return dict(json.loads(output.splitlines()[-1]))


def test_a_job_that_another_process_is_doing_is_waited_for_and_not_done_again(
    dataset: Dataset, tmp_path: Path
) -> None:
    Ledger.open(tmp_path / "results", quick=False)
    others: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:

        def let_another_come(**_event: Any) -> None:
            if not others:
                others.append(stack.enter_context(process(work_after_another, dataset, tmp_path)))
                assert next_event(others[0]) == {"event": "waits"}

        told, is_whole = perform(tiny_job(dataset), state_in(tmp_path), let_another_come, lambda: False)
        last = last_event(others[0])
    assert told.startswith("NDCG@10")
    assert is_whole
    assert last == {"event": "done", "text": "was done by another process", "is_whole": False}
    assert set(results_of(tmp_path)) >= tiny_job(dataset).wanted
    assert list((tmp_path / "work").iterdir()) == []


def test_a_folder_that_was_removed_and_made_anew_is_waited_for_again(
    dataset: Dataset, tmp_path: Path
) -> None:
    Ledger.open(tmp_path / "results", quick=False)
    folder = tmp_path / "work" / tiny_job(dataset).folder_name
    removed = hold(folder)
    with process(work_after_another, dataset, tmp_path) as other:
        assert next_event(other) == {"event": "waits"}
        shutil.rmtree(folder)
        anew = hold(folder)
        os.close(removed)
        assert next_event(other) == {"event": "waits"}, "what it could lock is not what is there now"
        os.close(anew)
        assert last_event(other)["text"].startswith("NDCG@10")


def hold(folder: Path) -> int:
    """Be at work in a new folder, as far as others can see, until the handle is closed."""
    folder.mkdir(parents=True)
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def test_an_interrupted_job_leaves_its_checkpoint_and_no_result(dataset: Dataset, tmp_path: Path) -> None:
    job, state = jobs_for(dataset)[1], state_in(tmp_path)
    Ledger.open(tmp_path / "results", quick=False)
    with pytest.raises(Interrupted):
        perform(job, state, lambda **_: None, after(10))
    assert (tmp_path / "work" / job.folder_name / "resume-selection.safetensors").exists()
    assert state.ledger.marks() == set()
    _, is_whole = perform(job, state, lambda **_: None, lambda: False)
    assert not is_whole, "the time of the second half says little about such runs"


def test_a_model_that_diverges_is_written_down_as_such_and_not_tried_again(
    dataset: Dataset, tmp_path: Path
) -> None:
    wild = tiny_case("wild", "bert4rec", "training.learning_rate=1e30", "training.warmup_steps=0")
    job = tiny_job(dataset, wild)
    Ledger.open(tmp_path / "results", quick=False)
    office = WorkerSettings(tmp_path / "results", tmp_path / "work", compile_step=False)
    worker = Worker(Slot("here", "cpu", True), office, 1)
    heard: list[dict[str, Any]] = []
    outcome = worker.do(job, heard.append)
    again = worker.do(job, heard.append)
    worker.close()
    assert " thread" in worker.device
    assert outcome.status == "failed"
    assert "diverged" in outcome.text
    assert heard[0]["stage"] == "selection"
    assert again.text == "was done by another process"
    (line,) = Ledger(tmp_path / "results").lines()
    assert (line["kind"], line["error"]) == ("failure", outcome.text)
    assert job.is_done({mark_of(line)})


def test_a_dead_worker_is_noticed_and_a_stopped_one_writes_a_checkpoint(
    dataset: Dataset, tmp_path: Path
) -> None:
    job = tiny_job(
        dataset, tiny_case("long", "bert4rec", "training.steps=100000", "training.patience=100000")
    )
    Ledger.open(tmp_path / "results", quick=False)
    office = WorkerSettings(tmp_path / "results", tmp_path / "work", compile_step=False)
    for end, status in ((Worker.kill, "broken"), (Worker.stop, "interrupted")):
        worker = Worker(Slot("here", "cpu", True), office, 1)
        outcome = worker.do(job, lambda _event, end=end, worker=worker: end(worker))  # type: ignore[misc]
        worker.close()
        assert outcome.status == status
    assert (tmp_path / "work" / job.folder_name / "resume-selection.safetensors").exists()


def test_speed_is_measured_and_written_down(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert4rec.api.timing.MIN_SECONDS", 0.01)
    job, state = tiny_job(dataset, tiny_case(task="speed")), state_in(tmp_path)
    Ledger.open(tmp_path / "results", quick=False)
    assert perform(job, state, lambda **_: None, lambda: False)[0].endswith("samples/s")
    (line,) = state.ledger.lines()
    assert line["samples_per_second"] == pytest.approx(8 / line["step_milliseconds"] * 1000)
    assert job.is_done({mark_of(line)})
