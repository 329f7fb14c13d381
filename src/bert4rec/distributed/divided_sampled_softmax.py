"""The sampled softmax where each rank has some of the items.

All ranks draw the same negatives, because a batch depends on its step alone. Each compares the rows of all ranks with
those that it owns, and scores the targets that it owns; what they exchange is what the exact softmax exchanges. Of its
table and bias it lends out the rows that the step uses (`kernels.used_rows`): those of the tokens that anybody looks
up, of targets and of negatives. No others are learned, and a rank that has none of them learns nothing in this step.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.distributed.divided_softmax import AskedRows, FoundAhead, softmax_gradient_of_own_
from bert4rec.distributed.item_shards import ItemShards
from bert4rec.kernels.used_rows import distinct, lend_rows
from bert4rec.tasks.sampled_softmax import SampledSoftmax, filled, loss_and_gradients, where_among


@dataclass(frozen=True)
class UsedItems:
    """The items of this rank as a step with a sampled softmax uses them."""

    asked: AskedRows
    table: Tensor
    """[K, D]: the used rows, lent by this rank's table."""
    sent: Tensor
    """Rows of it that this rank sends to where tokens are looked up."""
    targets: Tensor
    """[R]: rows of it, for the rows of all ranks; K where another rank has the target."""
    negatives: Tensor
    """[N]: rows of it, for the negatives that are this rank's."""
    own_bias: Tensor
    """[R]: of each target; -inf where another rank has it."""
    offsets: Tensor
    """[N]: what is added to the products with negatives."""
    hits: Tensor
    """[R]: which of the negatives is the target; N where none is."""
    most: int
    """The most negatives that a rank has."""

    @classmethod
    def lend(
        cls, shards: ItemShards, asked: AskedRows, sent: Tensor, negatives: Tensor, softmax: SampledSoftmax
    ) -> "UsedItems":
        """From the rows of the shard that are sent, and the negatives of the step, rising."""
        rank, ranks, negatives = shards.rank, shards.ranks, negatives.long()
        own, targets = negatives[negatives % ranks == rank], filled(asked.targets, negatives)
        scored = (targets % ranks == rank).nonzero().squeeze(1)  # Rows whose targets are this rank's.
        candidates = torch.cat([targets[scored], own])
        used = distinct(torch.cat([sent, candidates // ranks]), fixed=False)
        of_bias = distinct((candidates - 1) // ranks, fixed=False)
        table, biases = lend_rows(shards.table, used), lend_rows(shards.bias, of_bias)[of_bias.places]
        places, of_targets, of_negatives = used.places.split([len(sent), len(scored), len(own)])
        own_bias, other_bias = biases.split([len(scored), len(own)])
        return cls(
            asked,
            table,
            sent=places,
            targets=torch.full_like(targets, len(table)).index_put_((scored,), of_targets),
            negatives=of_negatives,
            own_bias=biases.new_full((len(targets),), -torch.inf).index_put((scored,), own_bias),
            offsets=softmax.offsets(own, other_bias),
            hits=where_among(own, targets),
            most=int(torch.bincount(negatives % ranks).max()),
        )

    def loss(self, hidden: Tensor) -> Tensor:
        """That of all ranks, from this one's hidden rows [R, D]. As `sampled_softmax.sampled_cross_entropy`."""
        return FoundAhead.loss(_loss_and_gradients, hidden, self.table, self.own_bias, self.offsets, self)


def _loss_and_gradients(
    hidden: Tensor, table: Tensor, own_bias: Tensor, offsets: Tensor, items: UsedItems
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The loss of all rows, and its gradients for this rank's hidden rows, table, `own_bias` and `offsets`."""
    loss, of_everybody, of_table, of_own_bias, of_offsets = loss_and_gradients(
        items.asked.gather(hidden),
        F.pad(table, (0, 0, 0, 1)),  # One row more, for targets of others.
        own_bias,
        offsets,
        items.targets,
        items.negatives,
        items.asked.weights,
        items.hits,
        chunk=items.asked.at_once(items.most + 2),
        turn_=softmax_gradient_of_own_,
    )
    return loss, items.asked.give_back(of_everybody, hidden), of_table[:-1], of_own_bias, of_offsets
