"""`reproduce` and `report` as a user meets them: interrupted, killed, short of time, on a bare machine."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bert4rec.cli.reproduce_command import Board, report_command, reproduce_command
from bert4rec.data.filters import Filters
from bert4rec.data.prepare import Recipe, prepare
from bert4rec.errors import Bert4RecError, NotFoundError
from bert4rec.paper.runs import estimate
from bert4rec.paper.runs.jobs import mark_of
from bert4rec.paper.runs.ledger import Ledger
from bert4rec.paper.runs.runner import Outcome, OverallProgress
from bert4rec.training.checkpoint import load_tensors
from tests.cli.test_data_commands import bert4rec
from tests.conftest import log_of
from tests.paper.tiny import pretended_job
from tests.training.tiny import random_histories

FULL = ("bert4rec", "reproduce", "table3", "--data", "small")
"""Four runs, many minutes each."""
QUICK = (*FULL, "--quick")
"""Four runs, a second each."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place with a small dataset, and modules that stand in the way of libraries a bare GPU machine lacks."""
    recipe = Recipe(filters=Filters(min_user_actions=1), num_negatives=5)
    prepare(log_of(random_histories(users=60)), tmp_path / "data" / "small", name="small", recipe=recipe)
    for missing in ("polars", "matplotlib"):
        (tmp_path / "bare" / missing).mkdir(parents=True)
        (tmp_path / "bare" / missing / "__init__.py").write_text("raise ImportError('not installed here')")
    return tmp_path


@contextmanager
def process(folder: Path, *command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(folder / "bare"), os.environ.get("PYTHONPATH", "")]),
            **environment,
        },
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def finish(folder: Path, *command: str) -> tuple[str, str]:
    with process(folder, *command) as running:
        output, messages = running.communicate()
    assert running.returncode == 0, messages
    return output, messages


def wait_for(running: subprocess.Popen[str], beginning: str) -> None:
    assert running.stderr
    assert any(line.startswith(beginning) for line in running.stderr)


def assert_all_is_there_once(folder: Path) -> None:
    lines = Ledger(folder / "results" / "quick", quick=True).lines()
    assert set(Counter(map(mark_of, lines)).values()) == {1}
    tested = [line for line in lines if line.get("split") == "test" and "kind" not in line]
    assert len([line for line in tested if line["stage"] == "refit"]) == 4


def test_it_goes_on_after_ctrl_c_and_kill_9_where_polars_and_matplotlib_are_not_installed(
    folder: Path,
) -> None:
    with process(folder, *QUICK) as running:
        assert running.stderr
        first = next(line for line in running.stderr if line.startswith("[1/4]"))
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate()
    assert running.returncode == 130
    assert re.fullmatch(r"\[1/4\] small: .+\. About \d+:\d\d:\d\d left\.\n", first), "one plain line a run"
    assert "\x1b" not in messages
    (command,) = (line.strip() for line in messages.splitlines() if line.startswith("  "))
    with process(folder, *shlex.split(command)) as running:
        wait_for(running, "[1/")
        running.send_signal(signal.SIGKILL)
    output, messages = finish(folder, *QUICK, "--jobs", "2")
    # Two at the least: a worker may just have been about to write when it was told to stop.
    assert re.search(r"^4 runs: [234] done, [210] to do\.$", messages, re.MULTILINE)
    runs = [line for line in messages.splitlines() if line.startswith("[")]
    assert all(re.fullmatch(r"\[\d/\d\] small: .+\. About \d+:\d\d:\d\d left\.", line) for line in runs)
    assert output == "", "no verdicts on the paper from a few steps"
    assert "Everything works. The numbers mean nothing" in messages
    assert "bert4rec report results/quick -o report-quick" in messages
    assert_all_is_there_once(folder)
    _, messages = finish(folder, "bert4rec", "report", "results/quick", "-o", "report")
    assert "matplotlib is not installed" in messages
    page = (folder / "report" / "report.html").read_text()
    assert "Quick runs" in page
    assert "matplotlib is not installed" in page
    assert "<svg" not in page


def interrupt_training(folder: Path, interrupt: Callable[[int], None]) -> int:
    """Let it train for a moment, as its bar shows, and interrupt it. Returns the step of the checkpoint it leaves."""
    with process(folder, *FULL, FORCE_COLOR="1", TERM="xterm", COLUMNS="200") as running:
        assert running.stderr
        shown = ""
        while not re.search(r" [1-9]\d*/\d{4,}", shown):
            more = os.read(running.stderr.fileno(), 10_000)
            assert more, shown
            shown += more.decode(errors="replace")
        interrupt(running.pid)
        _, messages = running.communicate()
    assert running.returncode == 130
    assert "Stopped; checkpoints are kept." in messages
    (checkpoint,) = folder.glob("work/*/resume-*.safetensors")
    return int(load_tensors(checkpoint)[1]["progress"]["step"])


def test_interrupted_while_it_trains_it_goes_on_from_the_very_step(folder: Path) -> None:
    step = interrupt_training(folder, lambda runner: os.kill(runner, signal.SIGINT))
    assert step > 0
    log = folder / "work" / "worker-cpu.log"
    assert "Going on" not in log.read_text()
    # As the command `timeout` does: the whole group of processes is told, the workers included.
    later = interrupt_training(folder, lambda group: os.killpg(group, signal.SIGTERM))
    assert f"Resuming at step {step:,}.\n" in log.read_text()
    assert later > step


def test_an_error_of_several_lines_is_told_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    with Board() as board:
        board.begin(3)
        outcome = Outcome("broken", "RuntimeError: out of memory\n  try less\n")
        board.finished("cpu", pretended_job(), outcome, OverallProgress(1, 3, 70.0))
    assert capsys.readouterr().err == (
        "[1/3] beauty: bert4rec some case, seed 1: BROKEN: RuntimeError: out of memory try less. "
        "About 0:01:10 left.\n"
    )


def test_what_does_not_fit_into_the_time_is_left_out_and_said(folder: Path) -> None:
    _, messages = finish(folder, *QUICK, "--minutes", "0.5")
    assert "Not run for lack of time: 4 runs, about" in messages
    assert "small: bert4rec BERT4Rec (1 mask), seed 1" in messages
    assert "bert4rec reproduce table3 --data small --quick --minutes 0.5" in messages


def test_a_dry_run_only_says_what_would_be_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    reproduce_command("all", dry_run=True)
    output, messages = capsys.readouterr()
    assert "SASRec (softmax), seed 3" in output
    assert "speed of bert4rec N=50, seed 1" in output
    times = re.findall(r"~([\d,]+) s$", output, re.MULTILINE)
    assert len(times) == int(re.search(r"(\d+) to do", messages)[1]), "of every run"  # type: ignore[index]
    assert "One after the other, all of them take about" in messages
    assert re.search(r"^\d+ runs: 0 done, \d+ to do\.$", messages, re.MULTILINE)
    assert list((folder / "results").iterdir()) == []
    assert not (folder / "work").exists()


def test_a_dry_run_estimates_what_it_would_have_to_fetch_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    reproduce_command("table3", data="ml-100k", dry_run=True)
    output, messages = capsys.readouterr()
    assert "No dataset found at data/ml-100k. It would be downloaded first" in messages
    assert len(re.findall(r"^ml-100k: .* ~[\d,]+ s$", output, re.MULTILINE)) == 4
    assert not (tmp_path / "data").exists()


def test_without_a_name_all_datasets_in_the_folder_are_taken(folder: Path) -> None:
    output, messages = finish(folder, "bert4rec", "reproduce", "table1")
    assert output.startswith("## Table 1: the data sets: small\n")
    assert "0 runs: 0 done, 0 to do." in messages


@pytest.mark.parametrize(
    ("names", "options", "code", "complaint"),
    [
        (["table9"], {}, 2, "Did you mean table"),
        ([], {}, 2, "The name of a table or figure is required: table1"),
        (["table3"], {"data": "nowhere"}, 4, "No dataset found at nowhere or data/nowhere"),
        (
            ["table1"],
            {"data": None},
            4,
            'No dataset found in data. Pass the name of one that can be downloaded, such as `data="ml-1m"`',
        ),
        (["table3"], {"data": ","}, 2, "--data is empty"),
        (["table3"], {"seeds": "1,two"}, 2, "--seeds 1,two: expected whole numbers"),
        (["table3"], {"jobs": 0}, 2, "`jobs` must be at least 1; got 0"),
        (["table3"], {"device": "abacus"}, 2, "abacus"),
    ],
)
def test_mistakes_are_told_at_once(
    names: list[str],
    options: dict[str, Any],
    code: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Bert4RecError, match=complaint) as error:
        reproduce_command(*names, **{"data": "nowhere", **options})
    assert error.value.exit_code == code
    assert list(tmp_path.iterdir()) == []


def test_a_report_needs_results(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere does not exist"):
        report_command(tmp_path / "nowhere", output=tmp_path / "report")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"empty has no results .* `bert4rec.paper.reproduce"):
        report_command(tmp_path / "empty", output=tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.timeout(600)
def test_table_3_of_ml_100k_runs_to_its_end(real_data: Path, tmp_path: Path) -> None:
    """As in the documents, but with the people of the first days only."""
    source, first_days = ("--from", real_data / "ml-100k"), ("--before", "1997-10-01")
    prepared = bert4rec("prepare", "ml-100k", *source, *first_days, "-o", tmp_path / "data" / "ml-100k")
    assert prepared.returncode == 0, prepared.stderr
    output, messages = finish(tmp_path, "bert4rec", "reproduce", "table3", "--data", "ml-100k", "--quick")
    assert "[4/4]" in messages
    assert "The numbers mean nothing" in messages
    assert output == ""
    lines = [json.loads(text) for text in (tmp_path / "results/quick/ml-100k.jsonl").read_text().splitlines()]
    assert all(line["quick"] for line in lines)
    assert {line["preset"] for line in lines if "preset" in line} == {"ml-1m", "ml-1m-softmax"}
    assert list((tmp_path / "results").glob("*.jsonl")) == []
    (statistics,) = (line["statistics"] for line in lines if line.get("kind") == "statistics")
    assert statistics["users"] == 75
