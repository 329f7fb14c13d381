"""The exact softmax over all items where each rank has some of them.

The hidden rows of all ranks are gathered; each rank computes the logits of its own items, a chunk of rows at a time.
Of each row, ranks exchange three numbers: the highest logit, the sum above it, and the target's logit. These give every
rank the loss and the gradient of its own logits, exactly as if one process had all of them. The gradient of the table
stays where it is; that of the hidden rows is summed over ranks and goes back to where they came from. As in
`tasks.losses`, gradients are found on the way forth, and logits are forgotten chunk by chunk.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.distributed.collectives import gathered, scattered_sum
from bert4rec.distributed.item_shards import TABLE, ItemShards
from bert4rec.kernels.support import narrow_copy
from bert4rec.tasks.losses import MAX_LOGITS, add_product


@dataclass(frozen=True)
class AskedRows:
    """The rows of all ranks, in the order of ranks, each rank's filled up to the same number."""

    targets: Tensor
    """[ranks * longest]: item numbers; of fillers, 0."""
    weights: Tensor
    """[ranks * longest]: of each row's loss; 0 of fillers."""
    longest: int
    """Rows of a rank, fillers included."""

    @classmethod
    def sort(cls, targets: Tensor, weights: Tensor, owner: Tensor, ranks: int) -> "AskedRows":
        """From the rows of a batch and the rank that each is computed by, -1 for none."""
        counts = torch.bincount(owner + 1, minlength=ranks + 1)
        order = torch.argsort(owner, stable=True)[int(counts[0]) :]
        longest = int(counts[1:].max())
        owner = owner[order]
        begin = (counts.cumsum(0) - counts)[1:] - counts[0]
        place = owner * longest + torch.arange(len(order), device=order.device) - begin[owner]
        spread = targets.new_zeros(ranks * longest).index_put_((place,), targets[order])
        shares = weights.new_zeros(ranks * longest).index_put_((place,), weights[order])
        return cls(spread.long(), shares, longest)


def divided_cross_entropy(
    hidden: Tensor, shards: ItemShards, asked: AskedRows, *, max_logits: int | None = None
) -> Tensor:
    """The weighted sum of `losses.softmax_cross_entropy` over the rows of all ranks; every rank gets the same number.

    hidden [R, D] are this rank's rows, `shards` its items.
    """
    # As many rows at a time on every rank: the widest shard decides.
    columns = -(-shards.total(TABLE) // shards.ranks)
    chunk = max(1, (max_logits or MAX_LOGITS[hidden.device.type]) // columns)
    given = hidden, shards.table, shards.bias, asked, shards.rank, shards.ranks, chunk
    loss: Tensor = _CrossEntropy.apply(*given)  # type: ignore[no-untyped-call]
    return loss


def _loss_and_gradients(
    hidden: Tensor, table: Tensor, bias: Tensor, asked: AskedRows, rank: int, ranks: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss of all rows, and its gradients for this rank's hidden rows, table and bias."""
    everybody = gathered(F.pad(hidden, (0, 0, 0, asked.longest - len(hidden)))).flatten(0, 1)
    weight, ahead = narrow_copy(table, hidden.dtype), int(rank == 0)
    # Row 0 is padding and belongs to rank 0; what stands behind the items belongs to whoever has it.
    offset = F.pad(bias, (ahead, len(table) - len(bias) - ahead), value=-torch.inf).to(hidden.dtype)
    extended = F.pad(everybody, (0, 1), value=1.0)
    losses = torch.empty_like(asked.weights)
    of_everybody = everybody.new_empty(everybody.shape, dtype=losses.dtype)
    of_table: Tensor | None = None
    for start in range(0, len(everybody), chunk):
        rows = slice(start, start + chunk)
        logits = torch.addmm(offset, everybody[rows], weight.T)
        losses[rows] = _gradient_of_own_(logits, asked.targets[rows], asked.weights[rows], rank, ranks)
        of_everybody[rows] = add_product(None, logits, weight)
        of_table = add_product(of_table, logits.T, extended[rows])
    assert of_table is not None
    of_hidden = scattered_sum(of_everybody.unflatten(0, (ranks, asked.longest)))[: len(hidden)]
    dim = hidden.shape[1]
    of_bias = of_table[ahead : ahead + len(bias), dim]
    return losses.sum(), of_hidden.to(hidden.dtype), of_table[:, :dim].contiguous(), of_bias.contiguous()


def _gradient_of_own_(logits: Tensor, targets: Tensor, weights: Tensor, rank: int, ranks: int) -> Tensor:
    """Turn this rank's logits, in place, into the gradient of each row's weighted loss, and return those losses."""
    is_own, column = targets % ranks == rank, (targets // ranks)[:, None]
    column = torch.where(is_own[:, None], column, 0)
    work = logits.to(weights.dtype)
    own = torch.where(is_own, work.gather(1, column).squeeze(1), 0)
    highest = work.amax(dim=1)
    total = work.sub_(highest[:, None]).exp_().sum(dim=1)
    tops, totals, targeted = gathered(torch.stack([highest, total, own])).unbind(1)
    top = tops.amax(dim=0)
    of_all = (totals * (tops - top).exp()).sum(dim=0)
    work.mul_((weights * (highest - top).exp() / of_all)[:, None])
    work.scatter_add_(1, column, torch.where(is_own, -weights, 0)[:, None])
    if work is not logits:
        logits.copy_(work)
    return torch.where(weights > 0, (top + of_all.log() - targeted.sum(dim=0)) * weights, 0)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        loss, *gradients = _loss_and_gradients(*given)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ((each * loss_gradient).to(each.dtype) for each in ctx.saved_tensors)
        return *gradients, None, None, None, None
