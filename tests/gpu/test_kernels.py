"""Every kernel gives what its plain equivalent gives, forth and back, at awkward sizes."""

from collections.abc import Callable

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor, nn

from bert4rec.kernels.activate import plain_gated, plain_gelu
from bert4rec.kernels.adamw import ClippedAdamW
from bert4rec.kernels.attend import Span, plain_attend
from bert4rec.kernels.embed import plain_lookup
from bert4rec.kernels.linear import linear, linear_beside
from bert4rec.kernels.rotary import plain_turned
from bert4rec.kernels.support import draw_seed, keep_mask, keep_pairs
from bert4rec.tasks.losses import plain_shares, shares, softmax_gradient_
from tests.gpu import WHERE_KERNELS_RUN
from tests.gpu.conftest import HALF

pytestmark = WHERE_KERNELS_RUN
DTYPES = {torch.float32: 1e-4, HALF: 3e-2}
"""Of activations, and how far the results may be apart, relative to the largest number."""
EPSILON = 1e-12


def only_on_a_gpu(*values: object) -> ParameterSet:
    """What would take the interpreter an hour."""
    return pytest.param(*values, marks=pytest.mark.gpu)


def assert_near(ours: Tensor, plain: Tensor, dtype: torch.dtype) -> None:
    largest = max(1e-1, float(plain.abs().max()))
    assert float((ours.float() - plain.float()).abs().max()) <= DTYPES[dtype] * largest


def randoms(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(device=device, dtype=dtype)


def gradients(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], above: Tensor
) -> tuple[Tensor, ...]:
    """What a plain function gives in float32, and its gradients."""
    leaves = [each.detach().float().requires_grad_() for each in inputs]
    out = function(*leaves)
    out.backward(above.float())
    return (out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "columns", "dropout"), [(1, 8, 0.2), (7, 48, 0.3), (70, 64, 0.0), (301, 256, 0.5)]
)
def test_sums_are_normed(
    rows: int, columns: int, dropout: float, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu import add_norm_triton as kernels

    x, y, above = (randoms(rows, columns, device=device, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    y_bias, weight, bias = (randoms(columns, device=device, seed=seed) for seed in (4, 5, 6))
    seed = draw_seed(device)
    kept = keep_mask(seed, (rows, columns), dropout) / (1 - dropout)

    def plain(x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return nn.functional.layer_norm(x + (y + y_bias) * kept, (columns,), weight, bias, EPSILON)

    expected = gradients(plain, (x, y, y_bias, weight, bias), above)
    ours = (
        kernels.forward(x, y, y_bias, weight, bias, seed, EPSILON, dropout),
        *kernels.backward(above, x, y, y_bias, weight, seed, EPSILON, dropout),
    )
    for mine, right in zip(ours, expected, strict=True):
        assert mine is not None
        assert_near(mine, right, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (70, 48), (301, 256)])
def test_what_is_activated_is_normed(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu import add_norm_triton as kernels

    y, above = (randoms(rows, columns, device=device, dtype=dtype, seed=seed) for seed in (2, 3))
    y_bias, weight, bias = (randoms(columns, device=device, seed=seed) for seed in (4, 5, 6))
    seed = draw_seed(device)

    def plain(y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return nn.functional.layer_norm(plain_gelu(y + y_bias), (columns,), weight, bias, EPSILON)

    expected = gradients(plain, (y, y_bias, weight, bias), above)
    no_x, *found = kernels.backward(above, None, y, y_bias, weight, seed, EPSILON, 0.0)
    ours = kernels.forward(None, y, y_bias, weight, bias, seed, EPSILON, 0.0), *found
    assert no_x is None
    for mine, right in zip(ours, expected, strict=True):
        assert mine is not None
        assert_near(mine, right, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_gate", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (5, 40), (333, 171)])
def test_feed_forward_networks_are_activated(
    rows: int, width: int, has_gate: bool, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu import activate_triton as kernels

    x = randoms(rows, width * (1 + has_gate), device=device, dtype=dtype)
    bias, above = randoms(x.shape[1], device=device), randoms(rows, width, device=device, dtype=dtype)
    plain = plain_gated if has_gate else plain_gelu
    expected = gradients(lambda x, bias: plain(x + bias), (x, bias), above)
    ours = (
        kernels.forward(x, bias, has_gate=has_gate),
        *kernels.backward(above, x, bias, has_gate=has_gate),
    )
    for mine, right in zip(ours, expected, strict=True):
        assert_near(mine, right, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_gate", [True, False])
@pytest.mark.parametrize(
    ("rows", "dim", "width", "dropout"), [(1, 8, 3, 0.3), (70, 24, 130, 0.0), (333, 64, 176, 0.5)]
)
def test_feed_forward_networks_need_no_wide_layer(
    rows: int, dim: int, width: int, dropout: float, has_gate: bool, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu import feed_forward_triton as kernels

    x, above = (randoms(rows, dim, device=device, dtype=dtype, seed=seed) for seed in (1, 2))
    widen = randoms(width * (1 + has_gate), dim, device=device, dtype=dtype, seed=3) / dim**0.5
    narrow = randoms(dim, width, device=device, dtype=dtype, seed=4) / width**0.5
    widen_bias = randoms(len(widen), device=device, seed=5)
    narrow_bias, weight, bias = (randoms(dim, device=device, seed=seed) for seed in (6, 7, 8))
    seed = draw_seed(device)
    kept = keep_mask(seed, (rows, dim), dropout) / (1 - dropout)
    activate = plain_gated if has_gate else plain_gelu

    def plain(
        x: Tensor,
        widen: Tensor,
        widen_bias: Tensor,
        narrow: Tensor,
        narrow_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        y = activate(x @ widen.T + widen_bias) @ narrow.T + narrow_bias
        return nn.functional.layer_norm(x + y * kept, (dim,), weight, bias, EPSILON)

    maps = widen, widen_bias, narrow, narrow_bias
    expected = gradients(plain, (x, *maps, weight, bias), above)
    out, y = kernels.forward(x, maps, weight, bias, seed, EPSILON, dropout, has_gate=has_gate)
    found = kernels.backward(above, x, y, maps, weight, seed, EPSILON, dropout, has_gate=has_gate)
    for mine, right in zip((out, *found), expected, strict=True):
        assert_near(mine, right, dtype)


def bounds(lengths: list[int], device: torch.device) -> Tensor:
    return nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int().to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "channels"), [(1, 8), (2, 20), (3, 64)])
@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    [
        ([1], [1], False),
        ([3, 0, 1], [5, 2, 130], False),
        ([2, 1], [4, 0], False),
        ([70, 1, 17], None, True),
        only_on_a_gpu([2000, 5], None, True),
        only_on_a_gpu([2, 900], [2000, 1000], False),
    ],
)
def test_sequences_attend_to_themselves(
    queries: list[int],
    keys: list[int] | None,
    causal: bool,
    heads: int,
    channels: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Also where there are more keys than queries, none of either, and head widths that no library likes."""
    from bert4rec.kernels.gpu import attend_triton as kernels

    keys = keys or queries
    span = Span(
        sum(queries),
        sum(keys),
        bounds(queries, device),
        bounds(keys, device),
        max(queries),
        max(keys),
        causal,
    )
    query, above = (
        randoms(sum(queries), heads, channels, device=device, dtype=dtype, seed=seed) for seed in (1, 2)
    )
    key, value = randoms(sum(keys), 2, heads, channels, device=device, dtype=dtype, seed=3).unbind(1)
    expected = gradients(lambda q, k, v: plain_attend(q, k, v, (span,), 0.0), (query, key, value), above)
    out, sums = torch.empty_like(query), torch.empty(len(query), heads, device=device)
    bits = kernels.draw_bits(draw_seed(device), query, key, 0.0)
    kernels.forward((query, out, sums, bits[0]), (key, value, bits[1]), span, 0.0)
    found = [torch.full(x.shape, torch.nan, dtype=dtype, device=device) for x in (query, key, value)]
    by_query = above, query, kernels.means(above, out, 0.0), sums, bits[0], found[0]
    kernels.backward(by_query, (key, value, bits[1], *found[1:]), span, 0.0)
    for mine, right in zip((out, *found), expected, strict=True):
        assert_near(mine, right, dtype)


def test_attention_drops_what_its_seed_says(device: torch.device) -> None:
    from bert4rec.kernels.gpu import attend_triton as kernels

    heads, lengths, dropout = 2, [9, 40], 0.4
    span = Span(49, 49, bounds(lengths, device), bounds(lengths, device), 40, 40, causal=False)
    query, key, value, above = (randoms(49, heads, 16, device=device, seed=seed) for seed in range(4))
    seed = draw_seed(device)
    places = torch.arange(49, device=device) * heads + torch.arange(heads, device=device)[:, None]
    kept = torch.stack([keep_pairs(seed, place, -1 - place, dropout) for place in places]) / (1 - dropout)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = []
        for begin, length in zip((0, 9), lengths, strict=True):
            rows = slice(begin, begin + length)
            q, k, v = (x[rows].transpose(0, 1) for x in (query, key, value))
            shares = (q @ k.mT / 4).softmax(dim=-1) * kept[:, rows, rows]
            parts.append((shares @ v).transpose(0, 1))
        return torch.cat(parts)

    expected = gradients(plain, (query, key, value), above)
    out, sums = torch.empty_like(query), torch.empty(49, heads, device=device)
    bits = kernels.draw_bits(seed, query, key, dropout)
    kernels.forward((query, out, sums, bits[0]), (key, value, bits[1]), span, dropout)
    found = [torch.empty_like(x) for x in (query, key, value)]
    by_query = above, query, kernels.means(above, out, dropout), sums, bits[0], found[0]
    kernels.backward(by_query, (key, value, bits[1], *found[1:]), span, dropout)
    for mine, right in zip((out, *found), expected, strict=True):
        assert_near(mine, right, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "heads", "channels"), [(1, 1, 2), (9, 3, 16), (300, 4, 64)])
def test_queries_are_turned_and_turned_back(
    rows: int, heads: int, channels: int, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu import rotary_triton as kernels

    packed = randoms(rows, 3, heads, channels, device=device, dtype=dtype)
    positions = (torch.arange(rows, device=device) % 12).int()
    angles = torch.arange(12, device=device)[:, None] * torch.rand(channels // 2, device=device)
    tables = angles.cos(), angles.sin()
    for x in packed.unbind(1):
        ours = kernels.turn(x, positions, *tables, 1.0)
        assert_near(ours, plain_turned(x.float(), positions, *tables), dtype)
        assert_near(kernels.turn(ours, positions, *tables, -1.0), x, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (77, 130), (2000, 256)])
def test_the_gradient_of_a_bias_is_summed_in_float32(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu.linear_triton import column_sums

    x = randoms(rows, columns, device=device, dtype=dtype)
    torch.testing.assert_close(column_sums(x), x.float().sum(dim=0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 3, 5), (77, 130, 24), (2000, 64, 256)])
def test_gradients_of_narrow_maps_are_summed_in_float32(
    rows: int, outputs: int, inputs: int, has_bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu.linear_triton import parameter_gradients

    above, x = (randoms(rows, width, device=device, dtype=dtype, seed=width) for width in (outputs, inputs))
    of_weight, of_bias = parameter_gradients(above, x, has_bias=has_bias)
    assert_near(of_weight, above.float().T @ x.float(), dtype)
    assert (of_bias is not None) == has_bias
    if of_bias is not None:
        assert_near(of_bias, above.float().sum(dim=0), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 3, 5), (300, 130, 24), (129, 64, 64)])
def test_narrow_maps_are_mapped(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu.linear_triton import mapped

    x, weight = (randoms(each, inputs, device=device, dtype=dtype, seed=each) for each in (rows, outputs))
    bias = randoms(outputs, device=device, dtype=dtype)
    assert_near(mapped(x, weight, bias), x.float() @ weight.float().T + bias.float(), dtype)


def test_an_affine_map_and_its_gradients_are_those_of_float32(device: torch.device) -> None:
    x, weight, bias = (randoms(*shape, device=device) for shape in ((3, 50, 64), (40, 64), (40,)))
    above = randoms(3, 50, 40, device=device, seed=2)
    expected = gradients(nn.functional.linear, (x.to(HALF), weight, bias), above)
    leaves = x.to(HALF).requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    out = linear(*leaves)
    out.backward(above.to(HALF))
    for mine, right in zip((out.detach(), *(leaf.grad for leaf in leaves)), expected, strict=True):
        assert mine is not None
        assert_near(mine, right, HALF)
    assert weight.grad is not None and weight.grad.dtype == torch.float32


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_map_adds_to_the_gradient_of_what_is_read_beside_it(is_whole: bool, device: torch.device) -> None:
    """Also where that gradient is a part of another tensor."""
    x, weight, bias = (randoms(*shape, device=device) for shape in ((50, 64), (40, 64), (40,)))

    def read_twice(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mapped, x = linear_beside(x, weight, bias)
        read = x if is_whole else torch.cat([x, x], dim=1)[:, 64:]
        return mapped.float().sum() + (read.float() ** 2).sum()

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return nn.functional.linear(x, weight, bias).sum() + (x**2).sum()

    expected = gradients(plain, (x.to(HALF), weight, bias), torch.ones((), device=device))
    leaves = x.to(HALF).requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    read_twice(*leaves).backward()
    for mine, right in zip(leaves, expected[1:], strict=True):
        assert mine.grad is not None
        assert_near(mine.grad, right, HALF)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_positions", [True, False])
@pytest.mark.parametrize(("tokens", "columns", "dropout"), [(1, 8, 0.0), (50, 24, 0.3), (999, 64, 0.5)])
def test_tokens_are_looked_up(
    tokens: int, columns: int, dropout: float, has_positions: bool, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu import embed_triton as kernels

    numbers, places = ((torch.arange(tokens, device=device) * step % 7).int() for step in (3, 5))
    tables = [randoms(7, columns, device=device, seed=seed) for seed in (1, 2)]
    table, position_table = (tables[0], tables[1]) if has_positions else (tables[0], None)
    positions = places if has_positions else None
    weight, bias = (randoms(columns, device=device, seed=seed) for seed in (4, 5))
    above, seed = randoms(tokens, columns, device=device, dtype=dtype, seed=3), draw_seed(device)
    kept = keep_mask(seed, (tokens, columns), dropout) / (1 - dropout)

    def plain(weight: Tensor, bias: Tensor, *tables: Tensor) -> Tensor:
        x = plain_lookup(numbers, tables[0], positions, tables[1] if has_positions else None, 3.0)
        return nn.functional.layer_norm(x, (columns,), weight, bias, EPSILON) * kept

    given = (weight, bias, *(each for each in (table, position_table) if each is not None))
    out, of_weight, of_bias, *of_tables = gradients(plain, given, above)
    tables_read = numbers, table, positions, position_table
    ours = kernels.forward(*tables_read, weight, bias, seed, EPSILON, dropout, 3.0, dtype)
    assert_near(ours, out, dtype)
    found = kernels.backward(above, None, *tables_read, weight, seed, EPSILON, dropout, 3.0)
    gradients_found = [each for each in (found[2], found[3], found[0], found[1]) if each is not None]
    for mine, right in zip(gradients_found, [of_weight, of_bias, *of_tables], strict=True):
        assert_near(mine, right, dtype)


@pytest.mark.parametrize("rows", [1, 300, 9000])
def test_targets_share_a_mean_and_padding_has_no_part_in_it(rows: int, device: torch.device) -> None:
    targets = (torch.arange(rows, device=device) % 3).int()
    torch.testing.assert_close(shares(targets), plain_shares(targets))
    assert not shares(torch.zeros_like(targets)).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # by the interpreter, of what is not used
@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (30, 70), (5, 9001), only_on_a_gpu(3, 1_000_001)])
def test_logits_become_their_gradient(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu.softmax_gradient_triton import softmax_gradient_ as in_one_kernel

    logits = randoms(rows, columns, device=device, dtype=dtype)
    logits[:, 0] = -torch.inf
    targets = torch.arange(rows, device=device) % columns
    weights = (targets > 0).float() / rows
    plain = logits.float().clone()
    losses = softmax_gradient_(plain, targets, weights)
    assert_near(in_one_kernel(logits, targets, weights), losses, dtype)
    assert_near(logits, plain, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "items", "dim"),
    [(1, 1, 8), (30, 70, 24), (150, 500, 64), (70, 130, 128), only_on_a_gpu(90, 1_000_000, 64)],
)
def test_a_softmax_over_items_needs_no_logits(
    rows: int, items: int, dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    from bert4rec.kernels.gpu.softmax_triton import loss_and_gradients

    hidden, table, bias = (
        randoms(*shape, device=device, dtype=kind, seed=len(shape) * shape[0])
        for shape, kind in (((rows, dim), dtype), ((items + 2, dim), dtype), ((items,), torch.float32))
    )
    targets = (torch.arange(rows, device=device) % (items + 1)).int()
    weights = (targets > 0).float() / rows

    def plain(hidden: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        chances = (hidden @ table[1 : items + 1].T + bias).log_softmax(dim=1)
        return -(chances.gather(1, (targets.long() - 1).clamp(min=0)[:, None])[:, 0] * weights).sum()

    expected = gradients(plain, (hidden, table, bias), torch.ones((), device=device))
    for mine, right in zip(loss_and_gradients(hidden, table, bias, targets, weights), expected, strict=True):
        assert_near(mine, right, dtype)


def test_dropout_drops_as_much_as_it_should_and_something_else_each_time() -> None:
    masks = [keep_mask(draw_seed(torch.device("cpu")), (1000, 64), 0.3) for _ in range(3)]
    for mask in masks:
        assert mask.float().mean() == pytest.approx(0.7, abs=0.01)
        assert mask.float().mean(dim=0).std() < 0.03
        assert mask.float().mean(dim=1).std() < 0.08
    same = (masks[0] == masks[1]).float().mean()
    assert same == pytest.approx(0.7**2 + 0.3**2, abs=0.01)


def test_attention_drops_as_much_as_it_should_of_every_query_and_key() -> None:
    places = torch.arange(400)
    kept = keep_pairs(draw_seed(torch.device("cpu")), places, -1 - places, 0.3).float() - 0.7
    assert abs(kept.mean()) < 0.01
    for pairs in (kept, kept.T):
        # As far apart as by chance, and no two alike.
        assert pairs.mean(dim=1).std() == pytest.approx((0.3 * 0.7 / 400) ** 0.5, rel=0.2)
        alike = (pairs @ pairs.T / 400 / (0.3 * 0.7)).fill_diagonal_(0)
        assert alike.std() == pytest.approx(400**-0.5, rel=0.1)
        assert alike.abs().max() < 0.5


def test_parameters_are_updated_as_by_torch(device: torch.device) -> None:
    """Also those whose gradients begin at odd places; the longest steps are clipped."""
    shapes = (500, 30), (1,), (77,), (3,)
    ours, theirs = (nn.ParameterList(randoms(*shape, device=device) for shape in shapes) for _ in range(2))
    rate = torch.full((), 0.01, device=device)
    mine = ClippedAdamW(ours, rate, weight_decay=0.3, clip_norm=2.0)
    groups = [{"params": [theirs[0]], "weight_decay": 0.3}, {"params": list(theirs)[1:], "weight_decay": 0.0}]
    right = torch.optim.AdamW(groups, lr=0.01)
    for step in range(5):
        flat = randoms(15_081, device=device, seed=step) * 10.0 ** -(step % 4)
        for parameters in (ours, theirs):
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, gradient in zip(parameters, flat.clone().split(sizes), strict=True):
                parameter.grad = gradient.view_as(parameter)
        nn.utils.clip_grad_norm_(theirs, 2.0)
        assert mine.has_kernels
        mine.step()
        right.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        for key in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                mine.state[one][key].cpu(), right.state[other][key].cpu(), rtol=1e-5, atol=1e-8
            )
