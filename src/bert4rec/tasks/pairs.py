"""Users and items in pairs: what a user chose against what they did not (BPR-MF, NCF, FPMC, Caser).

A sample is one action of the training part, with the items before it where the model looks at them, and items
the user never chose (where repeats are kept: did not choose then). Samples are drawn with replacement: a batch
depends on its step alone.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import PADDING, Dataset
from bert4rec.models.history_batch import PaddedHistories
from bert4rec.models.model import SequentialModel
from bert4rec.settings.objectives import ObjectiveSettings, PairSettings, Pairwise
from bert4rec.tasks import ranking_losses
from bert4rec.tasks.batches import refuse_empty
from bert4rec.tasks.sampling import Chosen, ItemSampler, count_items, draw_wrong
from bert4rec.tasks.seeds import seed_of
from bert4rec.tasks.task import TaskInputs

BLOCK_NUMBERS = 1 << 20
"""About how many numbers are drawn at once."""


class PairTask:
    """BPR-MF, NCF, FPMC or Caser, and batches of what users chose and what they did not."""

    objective_kind: ClassVar[type[ObjectiveSettings] | None] = PairSettings
    default_objective: ClassVar[type[ObjectiveSettings] | None] = Pairwise

    def __init__(self, model: SequentialModel, inputs: TaskInputs) -> None:
        self.model = model
        objective = inputs.objective(PairSettings)
        self._compare = {"pairwise": ranking_losses.pairwise, "pointwise": ranking_losses.pointwise}[
            objective.loss
        ]
        self._batches = PairBatches(
            inputs.dataset,
            inputs.training_end,
            objective,
            context=model.max_history,
            batch_size=inputs.batch_size,
            seed=inputs.seed,
            device=inputs.device,
        )
        self.width = self._batches.width
        self.block = self._batches.block

    @staticmethod
    def check(model: SequentialModel) -> None:
        """Any model can learn from pairs."""

    def loss(self, batch: Tensor) -> Tensor:
        pair = self._batches.read(batch)
        num_targets = pair.chosen.shape[1]
        items = torch.cat([pair.chosen, pair.unchosen.flatten(1)], dim=1)
        scores = self.model.scores(self.model.queries(PaddedHistories(pair.context), pair.users), items)
        unchosen = scores[:, num_targets:].view_as(pair.unchosen)
        return self._compare(scores[:, :num_targets], unchosen, pair.chosen != PADDING)


@dataclass(frozen=True)
class PairBatch:
    """A batch. B samples, C items before, T targets, each with n items to compare with."""

    users: Tensor
    """[B]"""
    context: Tensor
    """[B, C]. Filled up on the left with PADDING."""
    chosen: Tensor
    """[B, T]. PADDING where the training part has ended."""
    unchosen: Tensor
    """[B, T, n]"""


class PairBatches:
    """The endless, repeatable stream of training batches of one run. Step s is always the same batch."""

    def __init__(
        self,
        dataset: Dataset,
        training_end: NDArray[np.int64],
        objective: PairSettings,
        *,
        context: int,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        begin, length = dataset.offsets[:-1], training_end - dataset.offsets[:-1]
        user_of = np.repeat(np.arange(dataset.num_users, dtype=np.int32), dataset.lengths)
        place = np.arange(dataset.num_actions) - begin[user_of]
        is_training = place < length[user_of]
        # A model that looks back learns from actions that have something before them.
        is_sample = is_training & (place > 0) if context else is_training
        refuse_empty(int(is_sample.sum()), dataset.where)
        self.objective, self.context, self.batch_size, self.seed = objective, context, batch_size, seed
        self.sequences = torch.from_numpy(np.array(dataset.sequences)).to(device)
        self.begin = torch.from_numpy(np.array(begin)).to(device)
        self.end = torch.from_numpy(np.array(training_end)).to(device)
        self.user_of = torch.from_numpy(user_of).to(device)
        self._samples = torch.from_numpy(np.flatnonzero(is_sample)).to(device)
        training = torch.from_numpy(np.flatnonzero(is_training)).to(device)
        items = self.sequences[training]
        self._sampler = ItemSampler(count_items(items, dataset.num_items), exponent=objective.exponent)
        self._chosen = (
            Chosen(self.user_of[training], items, dataset.num_items) if dataset.repeats == "exclude" else None
        )
        self.width = batch_size * (1 + objective.targets * objective.negatives)
        self.block_steps = max(1, BLOCK_NUMBERS // self.width)

    def block(self, step: int) -> tuple[int, Tensor]:
        """The block that holds this step, and the step it begins with: int32 [steps, width]."""
        number = step // self.block_steps
        generator = torch.Generator(self.sequences.device).manual_seed(seed_of(self.seed, number))
        picks = torch.randint(
            len(self._samples),
            (self.block_steps, self.batch_size),
            generator=generator,
            device=self.sequences.device,
        )
        actions = self._samples[picks]
        count = self.objective.targets * self.objective.negatives
        owners = self._targets(actions) if self._chosen is None else self.user_of[actions][..., None]
        is_right = torch.eq if self._chosen is None else self._chosen.contains
        unchosen = draw_wrong(self._sampler, is_right, owners, count, generator)
        return number * self.block_steps, torch.cat([actions, unchosen.flatten(1)], dim=1).int()

    def read(self, row: Tensor) -> PairBatch:
        """The batch in one row of a block."""
        targets, negatives = self.objective.targets, self.objective.negatives
        action_B, unchosen = row[: self.batch_size], row[self.batch_size :]
        users_B = self.user_of[action_B]
        before = action_B[:, None] + torch.arange(-self.context, 0, device=row.device)
        context = torch.where(
            before >= self.begin[users_B, None], self.sequences[before.clamp(min=0)], PADDING
        )
        unchosen = unchosen.view(self.batch_size, targets, negatives)
        return PairBatch(users_B, context, self._targets(action_B), unchosen)

    def _targets(self, actions: Tensor) -> Tensor:
        """The items of actions and, with several targets, of those behind; PADDING where the training part ends."""
        after = actions[..., None] + torch.arange(self.objective.targets, device=actions.device)
        inside = after < self.end[self.user_of[actions]][..., None]
        return torch.where(inside, self.sequences[after.clamp(max=len(self.sequences) - 1)], PADDING)
