"""What every model is: histories become queries, and queries meet the vectors of the items.

`SequentialModel` is the whole contract: what has it can be trained, judged, recommended from and, where it says so,
exported and explained. `SequenceEncoder` is the same for models that read a history item by item; it asks what comes
next in the same way everywhere. Both are classes to extend, and a model is one step away from one of them.

Shapes: B histories, K items of each, V items, D numbers in a vector.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.models.attention import Layout
from bert4rec.models.history_batch import HistoryBatch, PackedHistories, TokenSequences


class SequentialModel(nn.Module, ABC):
    """A model that scores items for what a user did. The score of an item is its vector times a query, plus its bias.

    It is made by `Model(num_items, settings, generator)` or, where it `knows_users`, by
    `Model(num_users, num_items, settings, generator)`. Items are numbered from 1, because 0 is padding; users from 0.
    """

    knows_users: ClassVar[bool] = False
    """Whether it learns something about each user, and so can answer only for users it was trained with."""
    can_be_exported: ClassVar[bool] = False
    """Whether `queries` can be traced and computed by ONNX Runtime."""
    has_kernels: ClassVar[bool] = False
    """Whether it calls `bert4rec.kernels` for what a GPU takes longest for. Others are compiled before they train."""

    way_to_ask: str | None = None
    """How it is asked what comes next, where there is a choice: one of its `ways_to_ask`, chosen on the validation
    items and kept beside the weights. None: as its settings say."""

    @property
    def ways_to_ask(self) -> tuple[str, ...]:
        """The ways of asking that are still to be chosen from; most models have one way, and no choice."""
        return ()

    @property
    @abstractmethod
    def max_history(self) -> int:
        """How many of the newest items of a history it looks at."""

    @abstractmethod
    def queries(
        self, histories: HistoryBatch, users: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The question "what comes next?" after each history, as vectors [B, D].

        `users` [B] are needed where the model `knows_users`. `dtype` is that of the activations (bfloat16 on a GPU
        that has it); None means that of the parameters. The vectors are in float32 at least.
        """

    @abstractmethod
    def item_vectors(self) -> tuple[Tensor, Tensor]:
        """What queries are multiplied with: a table [V + 1 or more, D] and a bias [V].

        Row i of the table is the vector of item i; row 0 and rows behind V are never scored. The bias of item 1 comes
        first.
        """

    def scores(self, queries: Tensor, items: Tensor | None = None) -> Tensor:
        """Scores [B, V + 1] of all items, -inf for padding, which is column 0; or those of `items` [B, K] alone."""
        table, bias = self.item_vectors()
        if items is None:
            # Bias and padding in the same pass: over a large catalogue each of its own costs half a product.
            return torch.addmm(F.pad(bias, (1, 0), value=-torch.inf), queries, table[: len(bias) + 1].T)
        # A product and a sum: as many small matrix products they take twice as long on a CPU. Padding stays finite
        # here, because losses leave it out afterwards, and the gradient of what is left out must be a number.
        products = (queries[:, None] * F.embedding(items, table)).sum(dim=-1)
        return products + F.pad(bias, (1, 0))[items]

    def count(self, dataset: Dataset, training_end: NDArray[np.int64]) -> None:
        """Take from the training part, which ends at `training_end` for each user, what needs no training.

        Nothing, for most models: they learn step by step.
        """

    def attention(self, histories: HistoryBatch) -> Tensor | None:  # noqa: ARG002
        """How much the query looks at each item and, last, at itself, [B, layers, heads, L + 1].

        Histories must be padded, to length L. None if the model has no attention.
        """
        return None


class Question(NamedTuple):
    """One way to ask a sequence encoder what comes next."""

    end_token: int | None
    """What is appended to the history, and is where it is asked; None: it is asked at the newest item."""
    causal: bool
    """Whether tokens see only what came before them."""


class SequenceEncoder(SequentialModel):
    """A model that reads a history as a sequence of tokens and has a state after each of them.

    It learns what comes next (or what is masked) at many places of a history at once. To recommend, it is asked for the
    state after the newest item or, where there is an `end_token`, at that token.
    """

    causal: ClassVar[bool] = True
    """Whether a state depends only on the token itself and what came before it."""

    max_length: int
    """The longest sequence it can read, `end_token` included. To be set by `__init__`."""

    @property
    def end_token(self) -> int | None:
        """What is appended to a history to ask what comes next; None: the newest item is where it is asked."""
        return None

    @property
    def max_history(self) -> int:
        return self.max_length - (self.end_token is not None)

    @abstractmethod
    def encode(
        self, tokens: Tensor, positions: Tensor, layout: Layout, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The states of the tokens that `layout` wants, [R, D] or [B, 1, D].

        Tokens are item numbers, arranged as the layout says; `layout.rectangle` turns them into rows, one a sequence,
        and `layout.pick` chooses the wanted states. The newest token of each sequence has position `max_length` - 1.
        """

    def project(self, hidden: Tensor) -> Tensor:
        """From states to queries; the same, unless a model has an output layer."""
        return hidden

    def forward(
        self, tokens: Tensor, positions: Tensor, layout: Layout, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The queries at the tokens that `layout` wants."""
        return self.project(self.encode(tokens, positions, layout, dtype))

    @property
    def questions(self) -> tuple[Question, ...]:
        """The ways it is asked what comes next; of several, the mean of their queries counts."""
        return (Question(self.end_token, self.causal),)

    def queries(
        self,
        histories: HistoryBatch,
        users: Tensor | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        queries = []
        for question in self.questions:
            asked = self.asked(histories, question)
            hidden = self.encode(asked.tokens, asked.positions, asked.layout, dtype).flatten(0, -2)
            # In float32 from here on: in bfloat16 many items would tie, and ties count against the model.
            queries.append(self.project(hidden.to(torch.promote_types(hidden.dtype, torch.float32))))
        return queries[0] if len(queries) == 1 else torch.stack(queries).mean(dim=0)

    def asked(self, histories: HistoryBatch, question: Question) -> TokenSequences:
        """What is read to answer a question. All questions are about the same items of a history."""
        length = self.max_history + (question.end_token is not None)
        return histories.sequences(length, question.end_token, causal=question.causal)


class TiedEncoder(SequenceEncoder):
    """A sequence encoder with one table of items: tokens are looked up in it, and queries are compared with it.

    Several processes can train it together (`bert4rec.distributed`), each with some of the items, and a step can do
    with the rows that it uses. So `encode` takes from the table the rows of its tokens and nothing else.
    """

    num_items: int
    item_table: nn.Embedding
    """Row i is item i; row 0 is padding, and there is one row behind the items, for [mask]."""
    item_bias: Tensor
    """[V]: a parameter, or zeros where the model has none."""

    def item_vectors(self) -> tuple[Tensor, Tensor]:
        return self.item_table.weight, self.item_bias

    def with_rows(
        self,
        rows: Tensor,
        tokens: Tensor,
        positions: Tensor,
        layout: Layout,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The same with a small table in the place of its item table; tokens are numbers of its rows."""
        given = tokens, positions, layout, dtype
        queries: Tensor = torch.func.functional_call(self, {"item_table.weight": rows}, given)
        return queries


SCORES_AT_ONCE = {"cuda": 2**29, "mps": 2**26, "cpu": 2**26}
"""Scores that are held at once, by kind of device: 2 GiB on a GPU, 256 MiB elsewhere."""


class ChunkedScores:
    """Scores [B, V + 1] of a catalogue that is too large for all of them to be held: some columns at a time.

    Evaluation knows it as `ScoresInChunks`.
    """

    def __init__(self, model: SequentialModel, queries: Tensor, width: int) -> None:
        table, bias = model.item_vectors()
        self._queries, self._table = queries, table
        self._bias = F.pad(bias, (1, 0), value=-torch.inf)
        self.shape, self.width = (len(queries), len(self._bias)), width
        self.starts = range(0, len(self._bias), width)

    @torch.inference_mode()
    def columns_from(self, start: int) -> Tensor:
        bias = self._bias[start : start + self.width]
        return torch.addmm(bias, self._queries, self._table[start : start + len(bias)].T)


class ModelScorer(Protocol):
    """A model as evaluation wants it, both as a `Scorer` and as a `CandidateScorer`."""

    def __call__(
        self, users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Scores of all items, [users, items + 1] with padding first, or of `items` [users, K] alone.

        Those of all items may be `ChunkedScores`, which only evaluation is told.
        """
        ...


def make_scorer(model: SequentialModel, dtype: torch.dtype | None = None) -> ModelScorer:
    """The scores of a model for what each user did. `dtype` is that of the activations."""
    device = model.item_vectors()[1].device

    @torch.inference_mode()
    def scores(
        users: NDArray[np.int64], histories: Histories, items: NDArray[np.int64] | None = None
    ) -> Tensor:
        assert len(users) == len(histories)
        packed = PackedHistories(histories, device)
        queries = model.queries(packed, torch.as_tensor(users, device=device), dtype)
        width = max(1, SCORES_AT_ONCE[device.type] // len(queries))
        is_plain = type(model).scores is SequentialModel.scores
        if items is None and is_plain and width < len(model.item_vectors()[1]):
            return ChunkedScores(model, queries, width)  # type: ignore[return-value]
        return model.scores(queries, None if items is None else torch.as_tensor(items, device=device))

    return scores
