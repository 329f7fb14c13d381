"""Models as the training loop and as evaluation want them: batches in, a loss out; histories in, scores out.

There are four ways to learn here, and each model uses one: Cloze, next-item prediction, pairs of users and
items, and plain counting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.dataset import PADDING, Dataset
from bert4rec.data.histories import Histories
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.models.pop import Pop
from bert4rec.tasks import ranking_losses
from bert4rec.tasks.batches import Batches, refuse_nothing
from bert4rec.tasks.cloze import MaskedItems, append_mask
from bert4rec.tasks.losses import cloze_loss, softmax_cross_entropy
from bert4rec.tasks.next_item import (
    Negatives,
    NextItems,
    NoNegatives,
    SharedNegatives,
    UnchosenNegatives,
    ask_what_follows,
    cut_questions,
)
from bert4rec.tasks.objectives import BatchRanking, NextItem, Pairwise, SampledRanking
from bert4rec.tasks.pairs import PairBatches
from bert4rec.tasks.sampling import Chosen, ItemSampler
from bert4rec.tasks.windows import cut_windows

if TYPE_CHECKING:
    from bert4rec.training.config import RunConfig


@dataclass(frozen=True)
class TaskInputs:
    """What a task is built on."""

    dataset: Dataset
    training_end: NDArray[np.int64]
    """For each user, the index in the flat sequences at which the training part ends."""
    config: "RunConfig"
    seed: int
    device: torch.device
    dtype: torch.dtype | None
    """Of activations; None is that of the weights."""


class ModelScorer(Protocol):
    """A model as evaluation wants it, both as a `Scorer` and as a `CandidateScorer`."""

    def __call__(
        self, users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Scores of all items, [users, items + 1] with padding first, or of `items` [users, K] alone."""
        ...


class ClozeTask:
    """BERT4Rec, and the Cloze batches of the training part."""

    def __init__(self, model: BERT4Rec, ground: TaskInputs) -> None:
        self.model, self.dtype = model, ground.dtype
        dataset, config = ground.dataset, ground.config
        max_length = config.model.max_length
        windows = cut_windows(
            dataset.offsets[:-1],
            ground.training_end,
            max_length=max_length,
            step_share=config.objective.window_step,
        )
        refuse_nothing(len(windows), dataset.where)
        self._batches = Batches(
            torch.from_numpy(np.array(dataset.sequences)).to(ground.device),
            windows,
            MaskedItems(config.objective, dataset.mask_number),
            max_length=max_length,
            batch_size=config.training.batch_size,
            seed=ground.seed,
        )
        self.width = self._batches.shape.width
        self.block = self._batches.block

    def loss(self, batch: Tensor) -> Tensor:
        return cloze_loss(self.model, self._batches.shape.read(batch), self.dtype)

    @staticmethod
    def make_scorer(model: BERT4Rec, dtype: torch.dtype | None = None) -> ModelScorer:
        """Scores for what each history goes on with."""
        device = model.item_bias.device

        @torch.inference_mode()
        def scores(
            users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
        ) -> Tensor:
            assert len(users) == len(histories)
            recent = histories.newest(model.config.max_length - 1)
            _, tokens = recent.flat()
            end = torch.as_tensor(np.cumsum(recent.lengths), device=device)
            begin = end - torch.as_tensor(recent.lengths, device=device)
            batch = append_mask(
                torch.as_tensor(tokens, device=device),
                begin,
                end,
                max_length=model.config.max_length,
                mask_number=model.mask_number,
            )
            hidden = model.encode(batch.tokens, batch.positions, batch.layout, dtype)
            # Scores in float32: in bfloat16 many items would tie, and ties count against the model.
            return _scores(model, model.project(hidden.float()), items)

        return scores


class NextItemTask:
    """SASRec, GRU4Rec or GRU4Rec+, and batches that ask at every action what follows."""

    def __init__(self, model: Any, ground: TaskInputs) -> None:
        self.model, self.dtype, self.objective = model, ground.dtype, ground.config.objective
        dataset, max_length = ground.dataset, model.config.max_length
        sequences = torch.from_numpy(np.array(dataset.sequences)).to(ground.device)
        windows = cut_questions(
            dataset.offsets[:-1],
            ground.training_end,
            max_length=max_length,
            step_share=self.objective.window_step,
        )
        refuse_nothing(len(windows), dataset.where)
        self._batches = Batches(
            sequences,
            windows,
            NextItems(sequences, _negatives(ground, sequences)),
            max_length=max_length,
            batch_size=ground.config.training.batch_size,
            seed=ground.seed,
        )
        self.width = self._batches.shape.width
        self.block = self._batches.block

    def loss(self, batch: Tensor) -> Tensor:
        read, model = self._batches.shape.read(batch), self.model
        hidden = model.encode(read.tokens, read.positions, read.layout, self.dtype)
        output = hidden, model.table, model.item_bias, read.targets
        if self.objective.loss == "cross-entropy":
            return softmax_cross_entropy(*output)
        if self.objective.loss == "binary":
            return ranking_losses.binary(*output, read.negatives)
        penalty = getattr(self.objective, "penalty", 0.0)
        return ranking_losses.shared(self.objective.loss, *output, read.negatives, penalty)

    @staticmethod
    def make_scorer(model: Any, dtype: torch.dtype | None = None) -> ModelScorer:
        """Scores for what each history goes on with."""
        device = model.item_table.weight.device

        @torch.inference_mode()
        def scores(
            users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
        ) -> Tensor:
            assert len(users) == len(histories)
            batch = ask_what_follows(histories, model.config.max_length, device)
            hidden = model.encode(batch.tokens, batch.positions, batch.layout, dtype)
            return _scores(model, hidden.float(), items)

        return scores


def _scores(model: Any, queries: Tensor, items: NDArray[np.int64] | None) -> Tensor:
    """What the rows of the item table answer to queries [B, D]: all of them, or those of `items` [B, K]."""
    table = model.table[: model.num_items + 1]
    bias = F.pad(model.item_bias, (1, 0), value=float("-inf"))
    if items is None:
        # Bias and padding in the same pass: over a large catalogue each of its own costs half a product.
        return torch.addmm(bias, queries, table.T)
    places = torch.as_tensor(items, device=queries.device)
    some: Tensor = (queries[:, None] * table[places]).sum(dim=-1) + bias[places]
    return some


def _negatives(ground: TaskInputs, sequences: Tensor) -> Negatives:
    """What the chosen loss compares answers with."""
    objective: NextItem | BatchRanking | SampledRanking = ground.config.objective
    if objective.loss == "cross-entropy":
        return NoNegatives()
    dataset = ground.dataset
    user_of = np.repeat(np.arange(dataset.num_users), dataset.lengths)
    is_training = np.arange(dataset.num_actions) < ground.training_end[user_of]
    actions = torch.from_numpy(np.flatnonzero(is_training)).to(ground.device)
    items = sequences[actions]
    if isinstance(objective, NextItem):
        users = torch.from_numpy(user_of).to(ground.device)
        chosen = Chosen(users[actions], items, dataset.num_items) if dataset.repeats == "exclude" else None
        return UnchosenNegatives(ItemSampler(items, dataset.num_items, exponent=0), users, chosen)
    if isinstance(objective, SampledRanking):
        exponent, extra = objective.exponent, objective.negatives
    else:
        exponent, extra = 0.0, 0
    sampler = ItemSampler(items, dataset.num_items, exponent=exponent)
    return SharedNegatives(ground.config.training.batch_size, sampler, extra)


class PairTask:
    """BPR-MF, NCF, FPMC or Caser, and batches of what users chose and what they did not."""

    def __init__(self, model: Any, ground: TaskInputs) -> None:
        self.model = model
        objective = ground.config.objective
        self._compare: Callable[[Tensor, Tensor, Tensor], Tensor] = (
            ranking_losses.pairwise if isinstance(objective, Pairwise) else ranking_losses.pointwise
        )
        self._batches = PairBatches(
            ground.dataset,
            ground.training_end,
            objective,
            context=model.context,
            batch_size=ground.config.training.batch_size,
            seed=ground.seed,
            device=ground.device,
        )
        self.width = self._batches.width
        self.block = self._batches.block

    def loss(self, batch: Tensor) -> Tensor:
        pair = self._batches.read(batch)
        targets = pair.chosen.shape[1]
        items = torch.cat([pair.chosen, pair.unchosen.flatten(1)], dim=1)
        scores = self.model.score(pair.users, pair.context, items)
        unchosen = scores[:, targets:].view_as(pair.unchosen)
        return self._compare(scores[:, :targets], unchosen, pair.chosen != PADDING)

    @staticmethod
    def make_scorer(model: Any, dtype: torch.dtype | None = None) -> ModelScorer:  # noqa: ARG004
        """Scores for what each user goes on with."""
        device = next(model.parameters()).device

        @torch.inference_mode()
        def scores(
            users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
        ) -> Tensor:
            known = (
                torch.as_tensor(users, device=device),
                torch.as_tensor(histories.padded(model.context), device=device),
            )
            found: Tensor
            if items is None:
                found = model.scores(*known)
            else:
                found = model.score(*known, torch.as_tensor(items, device=device))
            return found

        return scores


class CountingTask:
    """POP: there is nothing to train, only to count."""

    width = 0

    def __init__(self, model: Pop, ground: TaskInputs) -> None:
        self.model = model
        model.count(ground.dataset, ground.training_end)

    @staticmethod
    def make_scorer(model: Pop, dtype: torch.dtype | None = None) -> ModelScorer:  # noqa: ARG004
        return model.scores
