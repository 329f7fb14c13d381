"""Softmax cross-entropy with drawn items in the place of the whole catalogue, for catalogues of millions.

All rows of a batch share the same N negatives, which depend on the seed and the step alone. Half of them are drawn by
popularity, which is what a model confuses targets with, and half evenly, so that no item is left as it began. Each
negative that was drawn counts as much as all the items that it stands for: its exponential is divided by the chance
that it was drawn (the logQ correction), so that the sum over the negatives and the target is, on average, that over
all items. The target is always there, and so is not corrected; a negative that is the row's target is left out.

Of the item table, only the rows of tokens, targets and negatives are touched: see `kernels.used_rows`.

Shapes: R rows, N negatives, C columns of logits, D numbers in a vector.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.data.histories import training_histories
from bert4rec.kernels.support import begin_gradient, is_eager, is_on_gpu, is_one
from bert4rec.kernels.used_rows import distinct, lend_rows
from bert4rec.models.attention import Layout
from bert4rec.models.model import SequenceEncoder, TiedEncoder
from bert4rec.tasks.losses import MAX_LOGITS, add_product, shares, softmax_gradient_where_it_is
from bert4rec.tasks.sampling import ItemSampler
from bert4rec.tasks.task import TaskInputs

EXPONENT, EVEN_SHARE = 1.0, 0.5
"""Negatives are drawn by popularity to this power, and in this share evenly."""
Turn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""As `losses.softmax_gradient_`: turns logits into their gradient, and returns the losses of rows."""


class SampledSoftmax:
    """What negatives are drawn, and the loss that compares targets with them."""

    def __init__(self, inputs: TaskInputs, count: int) -> None:
        """`count` negatives a batch."""
        self.count = count
        chosen = training_histories(inputs.dataset, inputs.training_end).item_counts(inputs.dataset.num_items)
        counts = torch.from_numpy(chosen[1:]).to(inputs.drawing_device)
        self._sampler = ItemSampler(counts, exponent=EXPONENT, even_share=EVEN_SHARE)
        self._log_chances = self._sampler.log_chances(self.count).to(inputs.device)

    def draw(self, batches: int, generator: torch.Generator) -> Tensor:
        """[K, N] item numbers for K batches, rising."""
        return self._sampler.draw((batches, self.count), generator).sort(dim=1).values

    def loss(
        self,
        model: SequenceEncoder,
        tokens: Tensor,
        positions: Tensor,
        layout: Layout,
        targets: Tensor,
        negatives: Tensor,
        *,
        weights: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The loss of predicting the targets [R] at the tokens that the layout wants: weighted, or else their mean."""
        counted, targets = targets, filled(targets, negatives)
        candidates = torch.cat([targets, negatives])
        table, bias = model.item_vectors()
        if isinstance(model, TiedEncoder) and is_eager():
            used = distinct(torch.cat([tokens, candidates]), fixed=is_on_gpu(tokens))
            table, places = lend_rows(table, used), used.places[len(tokens) :]
            queries = model.with_rows(table, used.places[: len(tokens)].int(), positions, layout, dtype)
            of_bias = distinct(candidates - 1, fixed=is_on_gpu(tokens))
            biases = lend_rows(bias, of_bias)[of_bias.places]
        else:
            queries, places = model(tokens, positions, layout, dtype), candidates
            biases = bias[candidates - 1]
        weights = shares(counted, queries.dtype) if weights is None else weights
        sizes = [len(targets), len(negatives)]
        own_bias, biases = biases.split(sizes)
        own_places, other_places = places.split(sizes)
        return sampled_cross_entropy(
            queries,
            table,
            own_places,
            other_places,
            own_bias,
            self.offsets(negatives, biases),
            weights,
            hits=where_among(negatives, targets),
        )

    def offsets(self, negatives: Tensor, biases: Tensor) -> Tensor:
        """[N] what is added to the products with negatives, which rise: -inf for repeats, which never count."""
        repeats = negatives == F.pad(negatives, (1, 0))[:-1]
        return (biases - self._log_chances[negatives - 1]).masked_fill(repeats, -torch.inf)


def softmax_for(inputs: TaskInputs, negatives: int) -> SampledSoftmax | None:
    """With so many negatives; None, which is the exact softmax, with 0 or as many as there are items."""
    return SampledSoftmax(inputs, negatives) if 0 < negatives < inputs.dataset.num_items else None


def filled(targets: Tensor, negatives: Tensor) -> Tensor:
    """The targets, so that a filler row, which has no weight, has an item too, and one that is used anyway."""
    return torch.where(targets == PADDING, negatives[:1], targets)


def where_among(rising: Tensor, items: Tensor) -> Tensor:
    """The first place of each item among others that rise; the place behind all, where it is not there."""
    places = torch.searchsorted(rising.contiguous(), items.contiguous())
    return torch.where(F.pad(rising, (0, 1))[places] == items, places, len(rising))


def sampled_cross_entropy(
    hidden: Tensor,
    table: Tensor,
    targets: Tensor,
    negatives: Tensor,
    own_bias: Tensor,
    offsets: Tensor,
    weights: Tensor,
    *,
    hits: Tensor,
) -> Tensor:
    """Sum over the rows of -log of the target's share of exp(logits), times the weights.

    hidden [R, D]; targets [R] and negatives [N] are rows of the table [K, D]. Logits are products of `hidden` with
    these, plus `own_bias` [R] or `offsets` [N]. In each row the negative at `hits` [R] does not count. Logits are
    computed in the dtype of `hidden`, all sums in float32 at least.
    """
    if not is_eager():
        return _plain(hidden, table, targets, negatives, own_bias, offsets, weights, hits)
    given = hidden, table, own_bias, offsets, targets, negatives, weights, hits
    loss: Tensor = _SampledCrossEntropy.apply(*given)  # type: ignore[no-untyped-call]
    return loss


def _plain(
    hidden: Tensor,
    table: Tensor,
    targets: Tensor,
    negatives: Tensor,
    own_bias: Tensor,
    offsets: Tensor,
    weights: Tensor,
    hits: Tensor,
) -> Tensor:
    """The same, for a compiler to make kernels of."""
    own = (hidden * F.embedding(targets, table).to(hidden.dtype)).sum(dim=1) + own_bias
    others = F.linear(hidden, F.embedding(negatives, table).to(hidden.dtype)) + offsets
    is_hit = torch.arange(len(negatives), device=hits.device) == hits[:, None]
    logits = torch.cat([own[:, None], others.masked_fill(is_hit, -torch.inf)], dim=1).to(weights.dtype)
    return ((logits.logsumexp(dim=1) - logits[:, 0]) * weights).sum()


def loss_and_gradients(
    hidden: Tensor,
    table: Tensor,
    own_bias: Tensor,
    offsets: Tensor,
    targets: Tensor,
    negatives: Tensor,
    weights: Tensor,
    hits: Tensor,
    *,
    chunk: int | None = None,
    turn_: Turn = softmax_gradient_where_it_is,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients for `hidden`, table, `own_bias` and `offsets`; for a chunk of rows at a time.

    Columns of logits are the negatives, the target, one that never counts and what a GPU wants for alignment. The
    gradient of `hidden` is in float32 at least.
    """
    (num_rows, dim), count = hidden.shape, len(negatives)
    multiple = 8 if is_on_gpu(hidden) else 1
    num_columns, width = (-(-size // multiple) * multiple for size in (count + 2, dim + 1))
    wide = torch.promote_types(hidden.dtype, torch.float32)
    vectors = F.pad(table[negatives].to(hidden.dtype), (0, 0, 0, num_columns - count))
    offset = F.pad(offsets.to(wide), (0, num_columns - count), value=-torch.inf).to(hidden.dtype)
    # The column of ones makes the gradient of the offsets fall out of that of the vectors.
    extended = F.pad(hidden, (0, width - dim))
    extended[:, dim] = 1
    own_vectors = table[targets].to(wide)
    own_logits = (hidden.to(wide) * own_vectors).sum(dim=1) + own_bias
    column = targets.new_full((num_rows,), count)
    hits = torch.where(hits < count, hits, count + 1)

    losses, of_own = torch.empty_like(weights), torch.empty_like(weights)
    of_hidden = torch.empty_like(own_vectors)
    of_vectors = None
    chunk = chunk or -(-num_rows // -(-num_rows * num_columns // MAX_LOGITS[hidden.device.type]))
    buffer = hidden.new_empty(chunk, num_columns)
    for start in range(0, num_rows, chunk):
        rows = slice(start, start + chunk)
        logits = torch.addmm(offset, hidden[rows], vectors.T, out=buffer[: len(hidden[rows])])
        logits[:, count] = own_logits[rows]
        logits.scatter_(1, hits[rows, None], -torch.inf)
        losses[rows] = turn_(logits, column[rows], weights[rows])
        of_own[rows] = logits[:, count]
        of_hidden[rows] = add_product(None, logits, vectors) + of_own[rows, None] * own_vectors[rows]
        of_vectors = add_product(of_vectors, logits.T, extended[rows])
    assert of_vectors is not None
    of_table = torch.zeros_like(table, dtype=wide)
    of_table.index_add_(0, negatives, of_vectors[:count, :dim])
    of_table.index_add_(0, targets, of_own[:, None] * hidden.to(wide))
    return losses.sum(), of_hidden, of_table, of_own, of_vectors[:count, dim].contiguous()


class _SampledCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, *others: Tensor) -> Tensor:
        loss, of_hidden, *gradients = loss_and_gradients(hidden, table, *others)
        ctx.table = table
        ctx.save_for_backward(of_hidden.to(hidden.dtype), *gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_table, of_own, of_offsets = ctx.saved_tensors
        if is_one(loss_gradient):
            of_table = begin_gradient(ctx.table, of_table)
        else:
            scaled = [(each * loss_gradient).to(each.dtype) for each in ctx.saved_tensors]
            of_hidden, of_table, of_own, of_offsets = scaled
        return of_hidden, of_table, of_own, of_offsets, None, None, None, None
