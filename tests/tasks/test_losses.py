from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.tasks.losses import _opaque, shares, softmax_cross_entropy, softmax_gradient_

ROWS, ITEMS, DIM = 13, 29, 6


def operands(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, table, bias = (
        (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
        for shape in ((ROWS, DIM), (ITEMS + 2, DIM), (ITEMS,))
    )
    targets = torch.randint(1, ITEMS + 1, (ROWS,), generator=generator, dtype=torch.int32)
    targets[::5] = PADDING
    return hidden, table, bias, targets


def plain_loss(hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """All logits at once, over the items alone."""
    logits = hidden @ table[1 : ITEMS + 1].T + bias
    return F.cross_entropy(logits, targets.long() - 1, ignore_index=PADDING - 1)


def gradients(loss: Callable[..., Tensor], scale: float = 1.0) -> tuple[Tensor, ...]:
    *inputs, targets = operands(scale=scale)
    value = loss(*inputs, targets)
    return value, *torch.autograd.grad(2 * value, inputs)


@pytest.mark.parametrize("max_logits", [1, 3 * (ITEMS + 2), 7 * (ITEMS + 2), 10**6])
def test_loss_and_gradients_equal_the_plain_ones_however_small_the_chunks(max_logits: int) -> None:
    loss = partial(softmax_cross_entropy, max_logits=max_logits)
    for ours, plain in zip(gradients(loss), gradients(plain_loss), strict=True):
        torch.testing.assert_close(ours, plain)


def test_gradients_agree_with_finite_differences() -> None:
    *inputs, targets = operands()

    def loss(hidden: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        return softmax_cross_entropy(hidden, table, bias, targets, max_logits=100)

    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


def test_huge_logits_neither_overflow_nor_vanish() -> None:
    for ours, plain in zip(gradients(softmax_cross_entropy, 60), gradients(plain_loss, 60), strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours, plain)


def test_padding_and_mask_are_never_predicted() -> None:
    hidden, table, bias, targets = operands()
    loss = softmax_cross_entropy(hidden, table, bias, targets)
    with torch.no_grad():
        table[0], table[-1] = 100.0, -100.0
    torch.testing.assert_close(softmax_cross_entropy(hidden, table, bias, targets), loss)
    torch.autograd.backward(loss)
    assert table.grad is not None
    assert not table.grad[[0, -1]].any()


def test_rows_without_a_target_do_not_count() -> None:
    hidden, table, bias, targets = operands()
    real = targets != PADDING
    expected = softmax_cross_entropy(hidden[real], table, bias, targets[real])
    loss = softmax_cross_entropy(hidden, table, bias, targets)
    torch.testing.assert_close(loss, expected)
    torch.autograd.backward(loss)
    assert hidden.grad is not None
    assert not hidden.grad[~real].any()


def test_a_batch_with_nothing_hidden_has_no_loss() -> None:
    hidden, table, bias, targets = operands()
    loss = softmax_cross_entropy(hidden, table, bias, torch.full_like(targets, PADDING))
    torch.autograd.backward(loss)
    assert loss.item() == 0
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_low_precision_logits_still_give_float32_losses_and_table_gradients() -> None:
    hidden, table, bias, targets = operands(torch.float32)
    loss = softmax_cross_entropy(hidden.to(torch.bfloat16), table, bias, targets, max_logits=100)
    torch.autograd.backward(loss)
    assert loss.dtype == torch.float32
    assert table.grad is not None
    assert table.grad.dtype == torch.float32
    expected, *plain = gradients(plain_loss)
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    for ours, exact in zip((hidden.grad, table.grad, bias.grad), plain, strict=True):
        assert ours is not None
        assert torch.linalg.vector_norm(2 * ours - exact) < 0.02 * torch.linalg.vector_norm(exact)


def test_excluded_columns_and_weightless_rows_get_no_gradient() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0], [-torch.inf, 5.0, 1.0]])
    losses = softmax_gradient_(logits, torch.tensor([2, 0]), torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(losses, torch.tensor([0.5 * 0.6931472, 0.0]))
    torch.testing.assert_close(logits, torch.tensor([[0.0, 0.25, -0.25], [0.0, 0.0, 0.0]]))


def test_the_operator_keeps_what_it_promises_the_compiler() -> None:
    given = operands(torch.float32)
    torch.library.opcheck(_opaque, (*given, shares(given[-1]), 100))
