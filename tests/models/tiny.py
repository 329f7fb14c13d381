"""Models with large weights, and data whose answer is known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories, histories_before
from bert4rec.data.splits import leave_one_out
from bert4rec.evaluation.protocol import Scorer
from bert4rec.models.model import SequentialModel, make_scorer
from bert4rec.settings.config import make_config
from bert4rec.training.loop import Loop
from bert4rec.training.specs import MODELS
from tests.evaluation.tiny import dataset_of
from tests.training.tiny import CPU, make_task, tiny_config

NUM_USERS, NUM_ITEMS = 3, 9
CYCLE_LENGTH = 7
CYCLE = dataset_of(
    [[1 + (start + step) % CYCLE_LENGTH for step in range(12)] for start in range(CYCLE_LENGTH)] * 3,
    num_items=CYCLE_LENGTH,
    repeats="keep",
)
"""1 → 2 → … → 7 → 1: whoever reads the last item knows the next."""
TASTES = (range(1, 11), range(11, 21))
"""The first ten users choose among these items, the other ten among those."""
GROUPS = dataset_of(
    [np.random.default_rng(user).permutation(TASTES[user // 10])[:8].tolist() for user in range(20)],
    num_items=20,
)


def untrained(name: str, *settings: str) -> Any:
    """A model of the tiny settings with weights far larger than at the start, so that every part matters."""
    generator = torch.Generator().manual_seed(0)
    model = MODELS[name].build(NUM_USERS, NUM_ITEMS, tiny_config(*settings, model=name).model, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def scores_of(model: SequentialModel, users: Sequence[int], histories: Sequence[Sequence[int]]) -> Tensor:
    """[users, items + 1], as evaluation asks for them."""
    scorer = make_scorer(model)
    return torch.as_tensor(scorer(np.array(users), Histories.from_lists(histories)))


def can_tell(name: str, one: tuple[int, list[int]], other: tuple[int, list[int]]) -> bool:
    """Whether the model scores items otherwise for one user and history than for the other."""
    scores = scores_of(untrained(name), [one[0], other[0]], [one[1], other[1]])[:, 1:]
    assert torch.isfinite(scores).all()
    return not torch.allclose(scores[0], scores[1], atol=1e-4)


def learn(name: str, dataset: Dataset, *settings: str) -> Scorer:
    """Train on all but everybody's last two actions."""
    training = ("steps=150", "batch_size=32", "learning_rate=2e-2", "warmup_steps=10")
    config = make_config(name, {}, [*(f"training.{each}" for each in training), "model.dim=16", *settings])
    assert config.training
    task = make_task(dataset, config, name)
    Loop(task, config.training, device=CPU, seed=1).run_steps(config.training.steps)
    return make_scorer(task.model.eval())


def best_after_cycle(name: str, *settings: str) -> tuple[Tensor, Tensor]:
    """All items by score, the best first, and the right answer, for histories that were not trained on."""
    asked = leave_one_out(CYCLE).test
    histories = histories_before(CYCLE, asked.users, asked.positions)
    scores = learn(name, CYCLE, *settings)(asked.users, histories)
    answers = torch.from_numpy(CYCLE.sequences[asked.positions]).long()
    return 1 + scores[:, 1:].argsort(dim=1, descending=True), answers


def learns_the_cycle(name: str, *settings: str) -> bool:
    best, answers = best_after_cycle(name, *settings)
    assert len(answers) == CYCLE.num_users
    return torch.equal(best[:, 0], answers)


def learns_tastes(name: str, *settings: str) -> bool:
    """Whether everybody's held-out items come before all items of the other group.

    Few steps: held-out items are drawn as wrong answers too, and one day a model knows them all by heart.
    """
    users = np.arange(GROUPS.num_users)
    scorer = learn(name, GROUPS, "training.steps=100", "model.dim=8", *settings)
    scores = torch.as_tensor(scorer(users, Histories.from_lists([[]] * len(users))))
    return all(
        scores[user, GROUPS.history(user)[-2:]].min() > scores[user, list(TASTES[1 - user // 10])].max()
        for user in users.tolist()
    )


def fill(parameter: Tensor, *values: float) -> None:
    """Set a parameter to these numbers, row after row."""
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).view_as(parameter))


def first_row(task: Any, negatives: Sequence[int]) -> Tensor:
    """The first batch of next-item prediction, with these items to compare the answers with."""
    row: Tensor = task.block(0)[1][0].clone()
    row[-len(negatives) :] = torch.tensor(negatives)
    return row
