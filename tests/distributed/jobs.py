"""What the processes of a test do: trainings one after the other, in one group.

`jobs.py JOBS.json`: a list of objects with the parameters of `train`, and beside them

- `stop_at`: the step of the selection after whose validation training stops with a checkpoint,
- `kill`: [stage, step, rank] for the first start, the first restart and so on: who is killed, and when,
- `diverge`: the ranks whose first validation finds scores that are no numbers; `seed` tells them which training it is.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bert4rec.data.dataset import Dataset
from bert4rec.distributed.ranks import joined
from bert4rec.evaluation.judge import ROWS_PER_BATCH
from bert4rec.machine import rank
from bert4rec.models.model import ModelScorer
from bert4rec.settings.config import make_config
from bert4rec.tasks.task import Task
from bert4rec.training.device import place
from bert4rec.training.launch import follow, launch
from bert4rec.training.plan import Plan
from bert4rec.training.reporting.watch import TrainingStatus
from bert4rec.training.stages import StageTrainer
from tests.training.tiny import SETTINGS

FEW_USERS = 8
"""In a batch of a validation, so that all processes have some to ask about."""


def main() -> None:
    torch.set_num_threads(1)
    ROWS_PER_BATCH["cpu"] = FEW_USERS
    path = Path(sys.argv[1])
    path.with_name(f"pid-{rank()}").write_text(str(os.getpid()))
    jobs = json.loads(path.read_text())
    torch.set_default_dtype(getattr(torch, jobs["dtype"]))
    dataset = Dataset.open(Path(jobs["dataset"]))
    let_diverge({job["seed"] for job in jobs["trainings"] if rank() in job.get("diverge", ())})
    with joined() as ranks:
        if ranks.leads:
            for job in jobs["trainings"]:
                work(dataset, path.parent, ranks, **job)
        else:
            follow(ranks, dataset, place("cpu"))


def let_diverge(seeds: set[int]) -> None:
    """Lose the numbers of this rank, once in each training with one of these seeds."""
    plain = StageTrainer.scorer

    def scorer(self: StageTrainer, task: Task) -> ModelScorer:
        scores = plain(self, task)
        if self.plan.seed not in seeds:
            return scores
        seeds.remove(self.plan.seed)
        return lambda *asked: scores(*asked) * torch.nan

    StageTrainer.scorer = scorer  # type: ignore[method-assign]


def work(
    dataset: Dataset,
    folder: Path,
    crew: Any,
    *,
    name: str,
    model: str,
    settings: dict[str, Any],
    stop_at: int | None = None,
    kill: list[list[Any]] | None = None,
    seed: int = 1,
    diverge: Sequence[int] = (),
) -> None:
    """One training. Alone, there is no `crew`."""
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    due = kill[restart] if kill and restart < len(kill) else None

    def watch(status: TrainingStatus) -> bool:
        if due and not status.message and [status.stage, status.step] == due[:2]:
            os.kill(int((folder / f"pid-{due[2]}").read_text()), signal.SIGKILL)
        return status.stage == "selection" and status.step == stop_at

    config = make_config(model, SETTINGS[model], settings)
    plan = Plan.for_dataset(dataset, model, config, preset=None, seed=seed, split=None)
    resume = (folder / name).exists()
    assert not (crew and restart) or crew.has_begun(folder / name), (
        "what an earlier attempt began is remembered"
    )
    try:
        launch(dataset, folder / name, plan, device="cpu", callback=watch, resume=resume, crew=crew)
    except KeyboardInterrupt:
        assert stop_at is not None


if __name__ == "__main__":
    main()
