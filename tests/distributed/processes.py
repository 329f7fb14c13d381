"""Start processes together, as a user does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""After which processes that wait for each other in vain are ended, and the test fails."""


def torchrun(ranks: int, *command: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """The same command in so many processes, of which each has one thread."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "--max-restarts", str(restarts)),
            *command,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def train_together(
    ranks: int, folder: Path, dataset: Path, *trainings: dict[str, Any], dtype: str, restarts: int = 0
) -> None:
    """Let so many processes do these trainings (see `jobs`), in folders of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "jobs.json"
    path.write_text(json.dumps({"dtype": dtype, "dataset": str(dataset), "trainings": trainings}))
    done = torchrun(ranks, "-m", "tests.distributed.jobs", str(path), restarts=restarts)
    assert done.returncode == 0, done.stderr
