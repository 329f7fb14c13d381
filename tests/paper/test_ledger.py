"""Results are added exactly once, whoever adds them and whoever dies while doing so."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert4rec.evaluation.protocol import Ranks
from bert4rec.paper.runs.jobs import mark_of
from bert4rec.paper.runs.ledger import Ledger, standard_errors
from bert4rec.training.reporting.results import read_ranks
from tests.paper.tiny import pretended_job

LINES = [{**pretended_job(seed=seed).identity(), "value": "ä" * 5000} for seed in range(6)]
"""Longer than a pipe or a file takes at once."""


def texts(ledger: Ledger) -> list[str]:
    return (ledger.folder / "beauty.jsonl").read_text(encoding="utf-8").splitlines()


def test_a_line_that_is_there_is_not_added_again(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, quick=False)
    ledger.add(LINES[:2])
    ledger.add(LINES[1:3])
    assert [line["seed"] for line in ledger.lines()] == [0, 1, 2]
    assert ledger.marks() == {mark_of(line) for line in LINES[:3]}


def test_processes_that_add_the_same_lines_at_the_same_time_add_each_once(tmp_path: Path) -> None:
    program = (
        "from tests.paper.test_ledger import *\n"
        f"ledger = Ledger.open(Path({str(tmp_path)!r}), quick=False)\n"
        "for first in range(6):\n"
        "    ledger.add([LINES[(first + int(sys.argv[1])) % 6]])\n"
    )
    root = Path(__file__).parents[2]
    running = [subprocess.Popen([sys.executable, "-c", program, str(n)], cwd=root) for n in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    lines = [json.loads(text) for text in texts(Ledger(tmp_path))]
    assert sorted(line["seed"] for line in lines) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("cut", [1, 30, 5000])
def test_half_a_line_of_a_dead_process_is_removed(tmp_path: Path, cut: int) -> None:
    Ledger.open(tmp_path, quick=False).add(LINES[:2])
    path = tmp_path / "beauty.jsonl"
    path.write_bytes(path.read_bytes()[: -cut - 1])
    ledger = Ledger.open(tmp_path, quick=False)
    assert [line["seed"] for line in ledger.lines()] == [0]
    ledger.add(LINES)
    assert len(texts(ledger)) == 6


def test_a_whole_line_without_its_end_is_kept(tmp_path: Path) -> None:
    Ledger.open(tmp_path, quick=False).add(LINES[:1])
    path = tmp_path / "beauty.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    Ledger.open(tmp_path, quick=False).add(LINES[1:2])
    assert [line["seed"] for line in Ledger(tmp_path).lines()] == [0, 1]


def test_results_of_other_code_count_only_where_that_is_wanted(tmp_path: Path) -> None:
    ledger, job = Ledger.open(tmp_path, quick=False), pretended_job()
    ledger.add([{**job.identity(), "versions": {"code": "older"}}])
    assert not job.is_done(ledger.marks())
    assert job.is_done(ledger.marks(any_code=True))


def test_quick_results_are_marked_and_never_mixed_with_real_ones(tmp_path: Path) -> None:
    real, quick = Ledger.open(tmp_path, quick=False), Ledger.open(tmp_path, quick=True)
    real.add(LINES[:1])
    quick.add(LINES[1:2])
    assert quick.folder != real.folder
    assert [line["quick"] for line in quick.lines()] == [True]
    assert [line["seed"] for line in real.lines()] == [0]
    # Even where somebody concatenated the two.
    with (tmp_path / "beauty.jsonl").open("a") as file:
        file.write((quick.folder / "beauty.jsonl").read_text())
    assert [line["seed"] for line in real.lines()] == [0]


def test_ranks_come_back_as_they_were(tmp_path: Path) -> None:
    ranks = Ranks(np.array([0, 100, 7], np.int32), np.array([0, 70_000, 300], np.int32))
    ledger = Ledger.open(tmp_path, quick=True)
    ledger.add(LINES[:1], {mark_of(LINES[0]): ranks})
    found = read_ranks(ledger.folder, ledger.lines()[0])
    assert found
    np.testing.assert_array_equal(found.sampled, ranks.sampled)
    np.testing.assert_array_equal(found.full, ranks.full)


def test_the_standard_error_of_hits_is_that_of_a_coin() -> None:
    ranks = np.array([0] * 30 + [99] * 70, np.int32)
    found = standard_errors(Ranks(ranks, ranks))
    assert found["sampled"]["HR@10"] == pytest.approx(np.sqrt(0.3 * 0.7 / 100))
    assert found["full"]["MRR"] == pytest.approx(np.std([1.0] * 30 + [0.01] * 70) / 10)
