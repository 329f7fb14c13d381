"""What a CPU computes in fewer passes must be what the plain forms compute. GPUs are in tests/gpu."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bert4rec.kernels.activate import activated, plain_gated
from bert4rec.kernels.rotary import plain_turned, turned
from bert4rec.kernels.support import added_dropped, dropped, kept


def values_and_gradients(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    found = function(x)
    weights = torch.arange(found.numel(), dtype=found.dtype).view(found.shape)
    return found, torch.autograd.grad((found * weights).sum(), x)[0]


@pytest.mark.parametrize("shape", [(7, 2, 6), (3, 5, 4, 8)])
def test_tokens_are_turned_and_learned_from_as_by_the_plain_form(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    positions = torch.randint(9, shape[:-2])
    angles = torch.randn(9, shape[-1] // 2, dtype=torch.float64)
    tables = angles.cos(), angles.sin()
    ours = values_and_gradients(lambda x: turned(x, positions, *tables), x)
    torch.testing.assert_close(ours, values_and_gradients(lambda x: plain_turned(x, positions, *tables), x))


def test_a_gate_passes_and_learns_as_the_plain_form() -> None:
    x = torch.randn(5, 12, dtype=torch.float64)
    torch.testing.assert_close(
        values_and_gradients(lambda x: activated(x, nn.Identity(), has_gate=True)[0], x),
        values_and_gradients(plain_gated, x),
    )


@pytest.mark.parametrize("share", [0.001, 0.1, 0.39, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(share: float) -> None:
    torch.manual_seed(1)
    found = kept(torch.empty(1000, 1001), share)
    assert (found == 0).float().mean().item() == pytest.approx(share, abs=0.002)
    assert found.mean().item() == pytest.approx(1, abs=0.01)
    assert len(found.unique()) == 2


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(1)
    is_dropped = (kept(torch.empty(1_000_000), 0.5) == 0).float()
    for distance in (1, 2, 3, 4, 8):
        both = (is_dropped[:-distance] * is_dropped[distance:]).mean().item()
        assert both == pytest.approx(0.25, abs=0.003)


def test_the_same_seed_drops_the_same() -> None:
    x = torch.randn(10, 7)
    torch.manual_seed(3)
    first = dropped(x, 0.4)
    torch.manual_seed(3)
    assert torch.equal(dropped(x, 0.4), first)
    torch.manual_seed(3)
    assert torch.equal(added_dropped(torch.zeros_like(x), x, 0.4), first)


def test_no_dropout_draws_nothing() -> None:
    state = torch.get_rng_state()
    x = torch.ones(4)
    assert torch.equal(added_dropped(x, dropped(x, 0.0), 0.0), torch.full((4,), 2.0))
    assert torch.equal(torch.get_rng_state(), state)
