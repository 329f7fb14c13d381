"""What each process of `test_divided_parts` checks, in float64: the divided softmax is the whole one."""

import torch
from torch import Tensor, nn

from bert4rec.distributed.collectives import gathered
from bert4rec.distributed.divided_softmax import AskedRows, divided_cross_entropy
from bert4rec.distributed.item_shards import BIAS, TABLE, ItemShards
from bert4rec.distributed.ranks import Ranks, joined
from bert4rec.models.sasrec import SASRec
from bert4rec.settings.networks import ModelConfig
from bert4rec.tasks.losses import shares, softmax_cross_entropy

DIM = 8


def check(ranks: Ranks, num_items: int, rows: int, *, max_logits: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(num_items + rows)
    model = SASRec(num_items, ModelConfig(dim=DIM, heads=2, layers=1, max_length=4), generator)
    if with_bias:
        del model.item_bias
        model.item_bias = nn.Parameter(torch.randn(num_items, generator=generator))
    table, bias = (each.detach().clone().requires_grad_() for each in model.item_vectors())
    hidden = (3 * torch.randn(rows, DIM, generator=generator)).requires_grad_()
    targets = torch.randint(0, num_items + 1, (rows,), generator=generator)
    weights = 2 * shares(targets, torch.float64)
    # Some rows belong to nobody: a batch of fixed shape is filled up.
    owner = torch.randint(-1, ranks.size, (rows,), generator=generator)
    owner[0] = ranks.size - 1
    weights = torch.where(owner >= 0, weights, 0)
    expected = softmax_cross_entropy(hidden, table, bias, targets, weights=weights)
    expected.backward()

    shards = ItemShards(model, ranks.rank, ranks.size)
    own = hidden.detach()[owner == ranks.rank].requires_grad_()
    asked = AskedRows.sort(targets, weights, owner, ranks.size)
    loss = divided_cross_entropy(own, shards, asked, max_logits=max_logits)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    assert (gathered(loss.detach()) == loss).all(), "all ranks have the same loss, to the last bit"
    torch.testing.assert_close(own.grad, grad_of(hidden)[owner == ranks.rank])
    torch.testing.assert_close(shards.table.grad, shards.own(TABLE, grad_of(table)))
    if with_bias:
        torch.testing.assert_close(shards.bias.grad, shards.own(BIAS, grad_of(bias)))
    check_united(shards, model, table, bias)


def check_united(shards: ItemShards, model: SASRec, table: Tensor, bias: Tensor) -> None:
    assert len(model.item_table.weight) < len(table)
    shards.unite()
    assert torch.equal(model.item_table.weight, table)
    assert torch.equal(model.item_bias, bias)


def grad_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    with joined() as together:
        for num_items in (3, 4, 5, 100, 101, 103):
            for rows in (1, 2, 50):
                check(together, num_items, rows, max_logits=1 << 20, with_bias=rows > 1)
                check(together, num_items, rows, max_logits=100, with_bias=rows == 1)
