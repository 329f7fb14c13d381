"""The exact softmax over all items where each rank has some of them.

The hidden rows of all ranks are gathered; each rank computes the logits of its own items, a chunk of rows at a time.
Of each row, ranks exchange three numbers: the highest logit, the sum above it, and the target's logit. These give every
rank the loss and the gradient of its own logits, exactly as if one process had all of them. The gradient of the table
stays where it is; that of the hidden rows is summed over ranks and goes back to where they came from. As in
`tasks.losses`, gradients are found on the way forth, and logits are forgotten chunk by chunk.
"""

from collections.abc import Callable
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

    def gather(self, own: Tensor) -> Tensor:
        """[ranks * longest, D]: the hidden rows of all ranks, from this one's."""
        return gathered(F.pad(own, (0, 0, 0, self.longest - len(own)))).flatten(0, 1)

    def give_back(self, of_everybody: Tensor, own: Tensor) -> Tensor:
        """The gradient of this rank's hidden rows, from what each rank has found for those of all."""
        of_own = scattered_sum(of_everybody.unflatten(0, (-1, self.longest)))
        return of_own[: len(own)].to(own.dtype)

    def at_once(self, columns: int, max_logits: int | None = None) -> int:
        """Rows whose logits in so many columns are held at once. It must be the same on every rank."""
        limit = max_logits or MAX_LOGITS[self.targets.device.type]
        return max(1, min(len(self.targets), limit // columns))


@dataclass(frozen=True)
class AllItems:
    """The items of this rank as a step with the exact softmax uses them, which is all of them."""

    shards: ItemShards
    asked: AskedRows
    sent: Tensor
    """Rows of the table that this rank sends to where tokens are looked up."""

    @property
    def table(self) -> Tensor:
        return self.shards.table

    def loss(self, hidden: Tensor) -> Tensor:
        """That of all ranks, from this one's hidden rows [R, D]."""
        return divided_cross_entropy(hidden, self.shards, self.asked)


def divided_cross_entropy(
    hidden: Tensor, shards: ItemShards, asked: AskedRows, *, max_logits: int | None = None
) -> Tensor:
    """The weighted sum of `losses.softmax_cross_entropy` over the rows of all ranks; every rank gets the same number.

    hidden [R, D] are this rank's rows, `shards` its items.
    """
    # As many rows at a time on every rank: the widest shard decides.
    chunk = asked.at_once(-(-shards.total(TABLE) // shards.ranks), max_logits)
    given = hidden, shards.table, shards.bias, asked, shards.rank, shards.ranks, chunk
    return FoundAhead.loss(_loss_and_gradients, *given)


def _loss_and_gradients(
    hidden: Tensor, table: Tensor, bias: Tensor, asked: AskedRows, rank: int, ranks: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss of all rows, and its gradients for this rank's hidden rows, table and bias."""
    everybody = asked.gather(hidden)
    weight, ahead = narrow_copy(table, hidden.dtype), int(rank == 0)
    # Row 0 is padding and belongs to rank 0; what stands behind the items belongs to whoever has it.
    offset = F.pad(bias, (ahead, len(table) - len(bias) - ahead), value=-torch.inf).to(hidden.dtype)
    column = torch.where(asked.targets % ranks == rank, asked.targets // ranks, -1)
    extended = F.pad(everybody, (0, 1), value=1.0)
    losses = torch.empty_like(asked.weights)
    of_everybody = everybody.new_empty(everybody.shape, dtype=losses.dtype)
    of_table: Tensor | None = None
    for start in range(0, len(everybody), chunk):
        rows = slice(start, start + chunk)
        logits = torch.addmm(offset, everybody[rows], weight.T)
        losses[rows] = softmax_gradient_of_own_(logits, column[rows], asked.weights[rows])
        of_everybody[rows] = add_product(None, logits, weight)
        of_table = add_product(of_table, logits.T, extended[rows])
    assert of_table is not None
    of_hidden, dim = asked.give_back(of_everybody, hidden), hidden.shape[1]
    of_bias = of_table[ahead : ahead + len(bias), dim]
    return losses.sum(), of_hidden, of_table[:, :dim].contiguous(), of_bias.contiguous()


def softmax_gradient_of_own_(logits: Tensor, column: Tensor, weights: Tensor) -> Tensor:
    """`losses.softmax_gradient_` where each rank has some of the columns; all return the same losses.

    A rank that does not have the target of a row says so by the column -1, or by one whose logit is -inf.
    """
    column, work = column[:, None], logits.to(weights.dtype)
    own = torch.where(column < 0, -torch.inf, work.gather(1, column.clamp(min=0))).squeeze(1)
    # Not -inf where this rank has nothing to compare a row with: that cannot be subtracted.
    highest = work.amax(dim=1).clamp(min=torch.finfo(work.dtype).min)
    total = work.sub_(highest[:, None]).exp_().sum(dim=1)
    tops, totals, targeted = gathered(torch.stack([highest, total, own])).unbind(1)
    top = tops.amax(dim=0)
    of_all = (totals * (tops - top).exp()).sum(dim=0)
    work.mul_((weights * (highest - top).exp() / of_all)[:, None])
    work.scatter_add_(1, column.clamp(min=0), torch.where(own > -torch.inf, -weights, 0)[:, None])
    if work is not logits:
        logits.copy_(work)
    return torch.where(weights > 0, (top + of_all.log() - targeted.amax(dim=0)) * weights, 0)


class FoundAhead(torch.autograd.Function):
    """A loss whose gradients are found together with it."""

    @staticmethod
    def loss(find: Callable[..., tuple[Tensor, ...]], *given: Any) -> Tensor:
        """`find` returns the loss, and behind it the gradients of what it is given first."""
        loss: Tensor = FoundAhead.apply(find, *given)  # type: ignore[no-untyped-call]
        return loss

    @staticmethod
    def forward(ctx: Any, find: Callable[..., tuple[Tensor, ...]], *given: Any) -> Tensor:
        loss, *gradients = find(*given)
        ctx.save_for_backward(*gradients)
        ctx.num_others = len(given) - len(gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ((each * loss_gradient).to(each.dtype) for each in ctx.saved_tensors)
        return None, *gradients, *(None,) * ctx.num_others
