"""Start processes together, as a user does."""

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 200
"""After which processes that wait for each other in vain are ended, and the test fails."""


def torchrun(ranks: int, *command: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """The same command in so many processes, of which each has one thread."""
    options = ("--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts))
    with _start(*options, *command) as running:
        return _ended(running)


def torchrun_on_two_machines(*command: str, restarts: int = 0) -> list[subprocess.CompletedProcess[str]]:
    """The same command on two machines, which are both this one, with a process each."""
    with closing(socket.socket()) as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
    options = ("--nnodes", "2", "--max-restarts", str(restarts), "--rdzv-backend", "c10d", "--rdzv-id", "1")
    where = ("--rdzv-endpoint", f"localhost:{port}", "--local-addr", "localhost")
    with _start(*options, *where, *command) as one, _start(*options, *where, *command) as other:
        return [_ended(one), _ended(other)]


def _start(*options: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(running: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = running.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        running.terminate()
        raise
    return subprocess.CompletedProcess(running.args, running.returncode, out, err)


def train_together(
    ranks: int, folder: Path, dataset: Path, *trainings: dict[str, Any], dtype: str, restarts: int = 0
) -> None:
    """Let so many processes do these trainings (see `jobs`), in folders of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "jobs.json"
    path.write_text(json.dumps({"dtype": dtype, "dataset": str(dataset), "trainings": trainings}))
    done = torchrun(ranks, "-m", "tests.distributed.jobs", str(path), restarts=restarts)
    assert done.returncode == 0, done.stderr
