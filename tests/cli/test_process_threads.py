"""One core is left to others, whatever limits the process, unless the user says otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec import machine
from bert4rec.cli import process
from bert4rec.cli.process import share_the_machine
from bert4rec.machine import usable_cores


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # So that it is put back afterwards.
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [
        (8, "max 100000", 8),
        (8, "200000 100000", 2),
        (2, "800000 100000", 2),
        (8, "50000 100000", 1),
        (8, None, 8),
    ],
)
def test_cores_are_counted_by_affinity_and_by_the_quota_of_a_container(
    affinity: int, quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")
    if quota:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert usable_cores() == cores


@pytest.mark.parametrize(("cores", "used"), [(1, "1"), (2, "1"), (16, "15")])
def test_a_core_is_left_to_others(cores: int, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "usable_cores", lambda: cores)
    share_the_machine()
    assert os.environ["OMP_NUM_THREADS"] == used


def test_what_the_user_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    share_the_machine()
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "GOMP_SPINCOUNT" not in os.environ


def test_torch_uses_as_many_threads_as_the_command_says() -> None:
    program = "from bert4rec.cli.process import *; share_the_machine(); import torch; print(torch.get_num_threads())"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) == max(1, usable_cores() - 1)
