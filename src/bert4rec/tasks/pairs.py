"""Users and items in pairs: what a user chose against what they did not (BPR-MF, NCF, FPMC, Caser).

A sample is one action of the training part, with the items before it where the model looks at them, and items
the user never chose (where repeats are kept: did not choose then). Samples are drawn with replacement: a batch
depends on its step alone.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import PADDING, Dataset
from bert4rec.tasks.batches import refuse_nothing
from bert4rec.tasks.objectives import Pairwise, Pointwise, SkippingPointwise
from bert4rec.tasks.sampling import Chosen, ItemSampler, draw_wrong

BLOCK_NUMBERS = 1 << 20
"""About how many numbers are drawn at once."""


@dataclass(frozen=True)
class Pair:
    """A batch. B samples, C items before, T right answers, each with n wrong ones."""

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
        objective: Pairwise | Pointwise | SkippingPointwise,
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
        refuse_nothing(int(is_sample.sum()), dataset.where)
        self.objective, self.context, self.batch_size, self.seed = objective, context, batch_size, seed
        self.sequences = torch.from_numpy(np.array(dataset.sequences)).to(device)
        self.begin = torch.from_numpy(np.array(begin)).to(device)
        self.end = torch.from_numpy(np.array(training_end)).to(device)
        self.user_of = torch.from_numpy(user_of).to(device)
        self._samples = torch.from_numpy(np.flatnonzero(is_sample)).to(device)
        training = torch.from_numpy(np.flatnonzero(is_training)).to(device)
        items = self.sequences[training]
        self._sampler = ItemSampler(items, dataset.num_items, exponent=objective.exponent)
        self._chosen = (
            Chosen(self.user_of[training], items, dataset.num_items) if dataset.repeats == "exclude" else None
        )
        self.width = batch_size * (1 + objective.targets * objective.negatives)
        self.block_steps = max(1, BLOCK_NUMBERS // self.width)

    def block(self, step: int) -> tuple[int, Tensor]:
        """The block that holds this step, and the step it begins with: int32 [steps, width]."""
        number = step // self.block_steps
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)[0] >> 1)
        generator = torch.Generator(self.sequences.device).manual_seed(seed)
        picks = torch.randint(
            len(self._samples),
            (self.block_steps, self.batch_size),
            generator=generator,
            device=self.sequences.device,
        )
        actions = self._samples[picks]
        count = self.objective.targets * self.objective.negatives
        owners = self._answers(actions) if self._chosen is None else self.user_of[actions][..., None]
        is_right = torch.eq if self._chosen is None else self._chosen.contains
        unchosen = draw_wrong(self._sampler, is_right, owners, count, generator)
        return number * self.block_steps, torch.cat([actions, unchosen.flatten(1)], dim=1).int()

    def read(self, row: Tensor) -> Pair:
        """The batch in one row of a block."""
        targets, negatives = self.objective.targets, self.objective.negatives
        action_B, unchosen = row[: self.batch_size], row[self.batch_size :]
        users_B = self.user_of[action_B]
        before = action_B[:, None] + torch.arange(-self.context, 0, device=row.device)
        context = torch.where(
            before >= self.begin[users_B, None], self.sequences[before.clamp(min=0)], PADDING
        )
        unchosen = unchosen.view(self.batch_size, targets, negatives)
        return Pair(users_B, context, self._answers(action_B), unchosen)

    def _answers(self, actions: Tensor) -> Tensor:
        """The items of actions and, where several are right, of those behind; PADDING where the training part ends."""
        after = actions[..., None] + torch.arange(self.objective.targets, device=actions.device)
        inside = after < self.end[self.user_of[actions]][..., None]
        return torch.where(inside, self.sequences[after.clamp(max=len(self.sequences) - 1)], PADDING)
