"""What each process of `test_divided_parts` checks, in float64: either divided softmax is the whole one."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bert4rec.data.dataset import Dataset
from bert4rec.distributed.collectives import gathered
from bert4rec.distributed.divided_sampled_softmax import UsedItems
from bert4rec.distributed.divided_softmax import AskedRows, divided_cross_entropy
from bert4rec.distributed.item_shards import BIAS, TABLE, ItemShards
from bert4rec.distributed.ranks import Ranks, joined
from bert4rec.kernels.used_rows import LentRows, lent_rows
from bert4rec.models.sasrec import SASRec
from bert4rec.settings.networks import ModelConfig
from bert4rec.tasks.losses import MAX_LOGITS, shares, softmax_cross_entropy
from bert4rec.tasks.sampled_softmax import filled, sampled_cross_entropy, where_among
from tests.training.tiny import make_task, random_histories, tiny_config

DIM = 8


def model_of(num_items: int, generator: torch.Generator, *, with_bias: bool) -> SASRec:
    model = SASRec(num_items, ModelConfig(dim=DIM, heads=2, layers=1, max_length=4), generator)
    if with_bias:
        del model.item_bias
        model.item_bias = nn.Parameter(torch.randn(num_items, generator=generator))
    return model


def rows_of(ranks: Ranks, num_items: int, rows: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Hidden rows, targets, weights, and whose row each is."""
    hidden = (3 * torch.randn(rows, DIM, generator=generator)).requires_grad_()
    targets = torch.randint(0, num_items + 1, (rows,), generator=generator)
    weights = 2 * shares(targets, torch.float64)
    # Some rows belong to nobody: a batch of fixed shape is filled up.
    owner = torch.randint(-1, ranks.size, (rows,), generator=generator)
    owner[0] = ranks.size - 1
    return hidden, targets, torch.where(owner >= 0, weights, 0), owner


def check(ranks: Ranks, num_items: int, rows: int, *, max_logits: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(num_items + rows)
    model = model_of(num_items, generator, with_bias=with_bias)
    table, bias = (each.detach().clone().requires_grad_() for each in model.item_vectors())
    hidden, targets, weights, owner = rows_of(ranks, num_items, rows, generator)
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


def check_sampled(ranks: Ranks, count: int, rows: int, *, max_logits: int, with_bias: bool) -> None:
    """With so few negatives that some ranks have none, up to so many that most repeat."""
    generator = torch.Generator().manual_seed(count + rows)
    dataset = few_items()
    num_items = dataset.num_items
    softmax = make_task(dataset, tiny_config(f"objective.negatives={count}")).sampled
    model = model_of(num_items, generator, with_bias=with_bias)
    table, bias = (each.detach().clone().requires_grad_() for each in model.item_vectors())
    hidden, targets, weights, owner = rows_of(ranks, num_items, rows, generator)
    negatives = softmax.draw(1, generator)[0].int()
    items = filled(targets, negatives)
    expected = sampled_cross_entropy(
        hidden,
        table,
        items,
        negatives,
        bias[items - 1],
        softmax.offsets(negatives, bias[negatives - 1]),
        weights,
        hits=where_among(negatives, items.int()),
    )
    expected.backward()

    shards = ItemShards(model, ranks.rank, ranks.size)
    own = hidden.detach()[owner == ranks.rank].requires_grad_()
    asked = AskedRows.sort(targets, weights, owner, ranks.size)
    used = UsedItems.lend(shards, asked, torch.arange(0), negatives, softmax)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MAX_LOGITS, "cpu", max_logits)
        loss = used.loss(own)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    assert (gathered(loss.detach()) == loss).all(), "all ranks have the same loss, to the last bit"
    torch.testing.assert_close(own.grad, grad_of(hidden)[owner == ranks.rank])
    scored = torch.cat([items[owner >= 0], negatives])
    scored = scored[scored % ranks.size == ranks.rank].unique()
    check_lent(lent_rows(shards.table), scored // ranks.size, shards.own(TABLE, grad_of(table)))
    if with_bias:
        check_lent(lent_rows(shards.bias), (scored - 1) // ranks.size, shards.own(BIAS, grad_of(bias)))


def few_items() -> Dataset:
    histories = random_histories(users=20, items=37)
    offsets = np.cumsum([0, *map(len, histories)])
    return Dataset.from_sequences(np.concatenate(histories).astype(np.int32) + 1, offsets, num_items=37)


def check_lent(lent: LentRows | None, used: Tensor, expected: Tensor) -> None:
    """What was lent is what was used, and has the gradient that the whole table has."""
    assert lent is not None
    torch.testing.assert_close(lent.distinct.numbers, used)
    found = torch.zeros_like(expected).index_copy_(0, used, grad_of(lent.rows))
    torch.testing.assert_close(found, expected)


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
        for count, rows in product((1, 2, 10, 36), (1, 2, 50)):
            check_sampled(together, count, rows, max_logits=1 << 20, with_bias=rows > 1)
            check_sampled(together, count, rows, max_logits=30, with_bias=rows == 1)
