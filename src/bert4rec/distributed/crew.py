"""The processes that train together, as training sees them. Most trainings have one, which is here."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from bert4rec.evaluation.protocol import OneProcess
from bert4rec.kernels.adamw import Norm
from bert4rec.models.model import SequentialModel
from bert4rec.tasks.task import Task

Tensors = dict[str, Tensor]


class Crew(OneProcess):
    """A single process: it has nobody to tell, and nothing is divided.

    With several (`Ranks`), the first one leads. It alone has the folder, the clock and the user's ear, and decides
    everything; the others wait for its orders and do their part of them (`training.stages.StageTrainer.follow`).
    """

    size = 1
    is_alone = True
    leads = True
    """Whether this is the first process."""
    is_restarted = False
    """Whether any of the processes was started anew because one had failed."""

    def note_begun(self, folder: Path) -> None:
        """Remember, also after a restart, that this job has begun a run there."""

    def has_begun(self, folder: Path) -> bool:  # noqa: ARG002
        """Whether an earlier attempt of this job has begun the run there."""
        return False

    @contextmanager
    def order(self, name: str, **arguments: Any) -> Iterator[None]:  # noqa: ARG002
        """Let all processes do together what this one does in the block. `arguments` must be fit for JSON."""
        yield

    def divided(self, task: Task) -> Task:
        """The same task, for which each process has a part of the items and takes a part of each batch."""
        return task

    def seed_step(self, seed: int, step: int) -> None:
        """Begin the random numbers of a step anew where each process needs others."""

    def share_gradients(self, task: Task) -> None:
        """Add up the gradients of all processes, each of which has gone back from its part of the loss."""

    def norm_of(self, task: Task) -> Norm | None:  # noqa: ARG002
        """How gradients are measured, if the usual way does not do."""
        return None

    def collected(self, tensors: Tensors) -> Tensors:
        """Tensors of which each process has its part, whole, for the process that leads."""
        return tensors

    def dealt(self, tensors: Tensors, state: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
        """What only the process that leads has, for all: of each tensor the part that is to be theirs."""
        return tensors, state

    def set_weights(self, model: SequentialModel, weights: Mapping[str, Tensor]) -> None:
        """Give every process the whole model with these weights, which the one that leads has."""
        model.load_state_dict(weights)

    @contextmanager
    def judging(self, model: SequentialModel) -> Iterator[None]:  # noqa: ARG002
        """Meanwhile every process has the whole model, and an error of one is an error of all."""
        yield


ALONE = Crew()
