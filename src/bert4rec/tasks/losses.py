"""Exact softmax cross-entropy over all items, in bounded memory.

The logits are the largest thing in training: hidden rows times items. They are made for a chunk of rows at a
time, turned in place into their own gradient, multiplied out, and forgotten. So the forward pass computes the
gradients too, and the backward pass only scales them. For narrow models on a GPU a kernel does all of it without
logits in memory.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.kernels.linear import wide_product
from bert4rec.kernels.support import (
    begin_gradient,
    can_run,
    has_triton,
    is_eager,
    is_on_gpu,
    is_one,
    narrow_copy,
)

MAX_LOGITS = {"cuda": 1 << 28, "mps": 1 << 25, "cpu": 1 << 23}
"""Logits held at once. On a GPU large chunks keep it busy; on a CPU small ones stay in the cache."""
MOST_CHANNELS = 128
"""Up to this width a GPU does better to compute logits twice than to write them to memory and read them."""


def softmax_cross_entropy(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    targets: Tensor,
    *,
    weights: Tensor | None = None,
    max_logits: int | None = None,
) -> Tensor:
    """Sum over the rows of -log softmax(hidden @ items.T + bias)[target], over the items 1 to V, times the weights.

    hidden [R, D]; table [V + 1 or more, D], of which row 0 and rows behind V are never predicted; bias [V].
    Without weights it is the mean. Rows whose target is PADDING must have the weight 0. Logits are computed in the
    dtype of `hidden`, all sums in float32 at least.
    """
    weights = shares(targets, hidden.dtype) if weights is None else weights
    limit = max_logits or MAX_LOGITS[hidden.device.type]
    given = hidden, table, bias, targets, weights, limit
    loss: Tensor = _CrossEntropy.apply(*given) if is_eager() else _opaque(*given)[0]  # type: ignore[no-untyped-call]
    return loss


def shares(targets: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight of each row in a mean: none where the target is PADDING. Where all are, the mean is 0."""
    if is_eager() and is_on_gpu(targets) and has_triton() and dtype != torch.float64:
        from bert4rec.kernels.gpu.shares_triton import shares as in_one_kernel

        return in_one_kernel(targets)
    return plain_shares(targets, dtype)


def plain_shares(targets: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    counts = (targets != PADDING).to(torch.promote_types(dtype, torch.float32))
    return counts / counts.sum().clamp(min=1)


def softmax_gradient_(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Turn logits, in place, into the gradient of each row's weighted loss, and return those losses.

    A logit of -inf excludes its column. A weight of 0 gives a gradient and a loss of exactly 0.
    """
    targets = targets.long()[:, None]
    work = logits.to(weights.dtype)
    own = work.gather(1, targets).squeeze(1)
    highest = work.amax(dim=1, keepdim=True)
    total = work.sub_(highest).exp_().sum(dim=1, keepdim=True)
    log_total = (highest + total.log()).squeeze(1)
    # Sum and weight in one pass: over a large catalogue each of its own costs as much as the products.
    work.mul_(weights[:, None] / total).scatter_add_(1, targets, -weights[:, None])
    if work is not logits:
        logits.copy_(work)
    return torch.where(weights > 0, (log_total - own) * weights, 0)


def _loss_and_gradients(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, weights: Tensor, max_logits: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and its gradients for `hidden`, table and bias."""
    assert len(hidden), "a loss needs at least one row"
    if can_run(hidden) and hidden.shape[1] <= MOST_CHANNELS:
        from bert4rec.kernels.gpu.softmax_triton import loss_and_gradients

        return loss_and_gradients(hidden, narrow_copy(table, hidden.dtype), bias, targets, weights)
    num_columns, width = _padded_sizes(hidden, table)
    weight, offset, extended = _operands(hidden, table, bias, num_columns, width)
    num_chunks = -(-len(hidden) * num_columns // max_logits)
    chunk = -(-len(hidden) // num_chunks)
    losses = torch.empty_like(weights)
    hidden_gradient = torch.empty_like(hidden)
    table_gradient = None
    buffer = hidden.new_empty(chunk, num_columns)
    for start in range(0, len(hidden), chunk):
        rows = slice(start, start + chunk)
        logits = torch.addmm(offset, hidden[rows], weight.T, out=buffer[: len(hidden[rows])])
        losses[rows] = softmax_gradient_where_it_is(logits, targets[rows], weights[rows])
        hidden_gradient[rows] = add_product(None, logits, weight)
        table_gradient = add_product(table_gradient, logits.T, extended[rows])
    assert table_gradient is not None
    dim = hidden.shape[1]
    of_table, of_bias = table_gradient[: len(table), :dim], table_gradient[1 : len(bias) + 1, dim]
    return losses.sum(), hidden_gradient, of_table.contiguous(), of_bias.contiguous()


def _padded_sizes(hidden: Tensor, table: Tensor) -> tuple[int, int]:
    """Columns of the logits and of the table's gradient.

    Tensor cores want rows that begin at multiples of 16 bytes, or run at a fraction of their speed.
    """
    multiple = 8 if is_on_gpu(hidden) else 1
    num_columns, width = (-(-size // multiple) * multiple for size in (len(table), table.shape[1] + 1))
    return num_columns, width


def _operands(
    hidden: Tensor, table: Tensor, bias: Tensor, num_columns: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What the products take: the item table; the bias, -inf where nothing may be predicted; hidden with a one.

    The column of ones makes the bias's gradient fall out of the table's: no further pass over the logits.
    """
    weight = narrow_copy(table, hidden.dtype)
    if num_columns > len(table):
        weight = F.pad(weight, (0, 0, 0, num_columns - len(table)))
    offset = F.pad(bias, (1, num_columns - len(bias) - 1), value=float("-inf")).to(hidden.dtype)
    extended = F.pad(hidden, (0, width - hidden.shape[1]))
    extended[:, hidden.shape[1]] = 1
    return weight, offset, extended


def softmax_gradient_where_it_is(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """`softmax_gradient_`, on a GPU by a kernel."""
    if can_run(logits):
        from bert4rec.kernels.gpu.softmax_gradient_triton import softmax_gradient_ as in_one_kernel

        return in_one_kernel(logits, targets, weights)
    return softmax_gradient_(logits, targets, weights)


def add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """total + left @ right, in place where there is a total; summed and returned in float32 at least."""
    dtype = torch.promote_types(left.dtype, torch.float32)
    if left.dtype == dtype:
        return left @ right if total is None else total.addmm_(left, right)
    product = wide_product(left, right, dtype)
    return product if total is None else total.add_(product)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, *others: Any) -> Tensor:
        loss, *gradients = _loss_and_gradients(hidden, table, *others)
        ctx.table = table
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_table, of_bias = ctx.saved_tensors
        if is_one(loss_gradient):
            return of_hidden, begin_gradient(ctx.table, of_table), of_bias, None, None, None
        return _scale_gradients(ctx, loss_gradient)


# An operator of its own, so that torch.compile leaves it as it is. Its first use imports the compiler.
_opaque = torch.library.custom_op("bert4rec::softmax_cross_entropy", _loss_and_gradients, mutates_args=())


@_opaque.register_fake
def _(hidden: Tensor, table: Tensor, bias: Tensor, *_unused: Tensor | int) -> tuple[Tensor, ...]:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    loss, of_table, of_bias = (
        hidden.new_empty(shape, dtype=dtype) for shape in ((), table.shape, bias.shape)
    )
    return loss, torch.empty_like(hidden), of_table, of_bias


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    ctx.save_for_backward(*output[1:])


def _scale_gradients(ctx: Any, loss_gradient: Tensor, *_unused: Tensor) -> tuple[Tensor | None, ...]:
    gradients = [(gradient * loss_gradient).to(gradient.dtype) for gradient in ctx.saved_tensors]
    return (*gradients, None, None, None)


_opaque.register_autograd(_scale_gradients, setup_context=_keep_gradients)
