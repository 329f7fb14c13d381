"""Rows that are lent, learned and put back: as if all were learned, and nothing else is touched."""

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bert4rec.kernels.adamw import ClippedAdamW
from bert4rec.kernels.used_rows import distinct, lend_rows, lent_rows

ROWS, DIM = 12, 4


class Tables(nn.Module):
    """A table, a bias and something that is always learned as a whole."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(ROWS, DIM, generator=generator))
        self.bias = nn.Parameter(torch.randn(ROWS, generator=generator))
        self.dense = nn.Parameter(torch.randn(DIM, generator=generator))

    def loss(self, table: Tensor, bias: Tensor) -> Tensor:
        return ((table @ self.dense + bias).square() * torch.arange(1, len(bias) + 1)).sum()


def optimizer_of(model: Tables, clip_norm: float = 1.0) -> ClippedAdamW:
    optimizer = ClippedAdamW(model, torch.tensor(0.1), weight_decay=0.3, clip_norm=clip_norm)
    optimizer.plan_rates(torch.full((10,), 0.1))
    return optimizer


def step_with(model: Tables, optimizer: ClippedAdamW, numbers: list[int], *, fixed: bool = False) -> None:
    """A step that uses these rows, and as many of each as they are named."""
    optimizer.zero_grad()
    used = distinct(torch.tensor(numbers), fixed=fixed)
    table, bias = (lend_rows(each, used)[used.places] for each in (model.table, model.bias))
    model.loss(table, bias).backward()
    optimizer.step()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_every_number_is_found_once_and_in_order(numbers: list[int]) -> None:
    found = distinct(torch.tensor(numbers, dtype=torch.int32), fixed=False)
    assert found.numbers.tolist() == sorted(set(numbers))
    assert found.numbers[found.places].tolist() == numbers
    assert found.writers.tolist() == list(range(len(found.numbers)))
    filled = distinct(torch.tensor(numbers, dtype=torch.int32), fixed=True)
    room = len(numbers) - len(found.numbers)
    assert filled.numbers.tolist() == [min(numbers)] * room + sorted(set(numbers))
    assert filled.numbers[filled.places].tolist() == numbers
    assert filled.writers.tolist() == [room] * room + list(range(room, len(numbers)))
    assert set(filled.places.tolist()) == set(range(room, len(numbers))), "fillers are nobody's"


def test_with_all_rows_in_use_it_is_the_step_of_a_whole_table() -> None:
    lending, whole = Tables(), Tables()
    of_lending, of_whole = optimizer_of(lending), optimizer_of(whole)
    for _ in range(4):
        step_with(lending, of_lending, list(range(ROWS)))
        of_whole.zero_grad()
        whole.loss(whole.table, whole.bias).backward()
        of_whole.step()
    for (name, ours), theirs in zip(lending.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        for key, kept in of_whole.state[theirs].items():
            assert torch.equal(of_lending.state[ours][key], kept), (name, key)
    assert set(of_lending.state) == set(lending.parameters()), "nothing that was lent is remembered"


def test_rows_that_are_not_used_are_not_touched() -> None:
    model, used = Tables(), [3, 5, 3, 11]
    optimizer = optimizer_of(model)
    step_with(model, optimizer, list(range(ROWS)))  # so that there are moments
    before = {
        name: [each.clone() for each in (parameter, *optimizer.state[parameter].values())]
        for name, parameter in model.named_parameters()
    }
    step_with(model, optimizer, used)
    for name in ("table", "bias"):
        parameter = model.get_parameter(name)
        now = parameter.detach(), *optimizer.state[parameter].values()
        is_used = torch.zeros(ROWS, dtype=torch.bool).index_fill(0, torch.tensor(used), True)
        for old, new in zip(before[name], now, strict=True):
            if old.dim():
                assert torch.equal(old[~is_used], new[~is_used])
                assert not (old[is_used] == new[is_used]).any()
            else:
                assert new == old + 1 == 2, "steps are counted for all rows together"


@pytest.mark.parametrize(("warmup", "near"), [(10, 0.01), (500, 1e-3)])
def test_rows_end_where_they_would_if_every_step_touched_all_of_them(warmup: int, near: float) -> None:
    """As by torch's AdamW, for which a row that is not used has a gradient of 0, while the rate rises and falls."""
    ours, theirs = Tables(), Tables()
    begun = ours.table.detach().clone()
    uses = [list(range(ROWS - 1))] * warmup
    uses += [[3], [3, 5], [5], *[[7, 3]] * 30, [5, 6], *[[0]] * 4, *[[5]] * 200, [2, 6], *[[5]] * 9]
    number = torch.arange(1.0, len(uses) + 1)
    rates = 0.1 * torch.minimum(number / warmup, (len(uses) + 1 - number) / (len(uses) + 1 - warmup))
    rate = torch.zeros(())
    optimizer = ClippedAdamW(ours, rate, weight_decay=0.3, clip_norm=1e9)
    optimizer.plan_rates(rates)
    reference = torch.optim.AdamW([theirs.table], weight_decay=0.3)
    generator = torch.Generator().manual_seed(1)
    for numbers, now in zip(uses, rates, strict=True):
        rate.copy_(now)
        reference.param_groups[0]["lr"] = float(now)
        gradients = torch.randn(len(numbers), DIM, generator=generator) + 1
        optimizer.zero_grad()
        used = distinct(torch.tensor(numbers), fixed=False)
        (lend_rows(ours.table, used)[used.places] * gradients).sum().backward()
        optimizer.step()
        theirs.table.grad = torch.zeros(ROWS, DIM).index_add(0, torch.tensor(numbers), gradients)
        reference.step()
    optimizer.catch_up()
    moved, wanted = ours.table.detach() - begun, theirs.table.detach() - begun
    off = torch.linalg.vector_norm(moved - wanted, dim=1) / torch.linalg.vector_norm(wanted, dim=1)
    assert (off < near).all()
    assert off[ROWS - 1] < 1e-5, "never used, it has only decayed"
    now = ours.table.detach().clone()
    optimizer.catch_up()
    assert torch.equal(ours.table, now), "what is up to date stays as it is"


def test_an_optimiser_and_what_it_remembers_are_gone_with_the_last_that_holds_it() -> None:
    """A card may not have room for what the next training needs as well."""
    model = Tables()
    optimizer = optimizer_of(model)
    step_with(model, optimizer, [3, 5])
    is_there = weakref.ref(optimizer.state[model.table]["exp_avg"])
    del optimizer
    assert is_there() is None
    rows = lend_rows(model.table, distinct(torch.tensor([3]), fixed=False))
    assert torch.equal(rows[0], model.table[3]), "and rows are lent as they are"


@pytest.mark.parametrize("fixed", [False, True])
def test_a_step_that_uses_no_rows_is_counted_for_them(fixed: bool) -> None:
    """One of several processes may have none of the items of a step."""
    model = Tables()
    optimizer, before = optimizer_of(model), model.table.detach().clone()
    step_with(model, optimizer, [], fixed=fixed)
    assert torch.equal(model.table, before)
    assert optimizer.state[model.table]["step"] == 1


def test_the_gradients_of_a_row_that_is_used_twice_are_summed() -> None:
    twice, once = Tables(), Tables()
    weights = torch.arange(1.0, DIM + 1)
    for model, numbers, factor in ((twice, [4, 4, 7], 1), (once, [4, 7], 2)):
        optimizer = optimizer_of(model, clip_norm=100.0)
        used = distinct(torch.tensor(numbers), fixed=False)
        rows = lend_rows(model.table, used)[used.places]
        (rows[:-1] * weights * factor).sum().backward()
        assert (lent := lent_rows(model.table)) is not None
        assert torch.equal(lent.rows.grad[0], 2 * weights)  # type: ignore[index]
        optimizer.step()
    assert torch.equal(twice.table, once.table)


def test_gradients_of_lent_rows_are_clipped_together_with_all_others() -> None:
    model = Tables()
    optimizer = optimizer_of(model, clip_norm=1e-3)
    step_with(model, optimizer, [1, 2])
    moments = [10 * optimizer.state[each]["exp_avg"].flatten() for each in model.parameters()]
    assert torch.linalg.vector_norm(torch.cat(moments)).item() == pytest.approx(1e-3, rel=1e-4)


def test_a_forgotten_loan_is_not_learned_from() -> None:
    model = Tables()
    optimizer = optimizer_of(model)
    used = distinct(torch.tensor([1]), fixed=False)
    lend_rows(model.table, used).sum().backward()
    optimizer.zero_grad()
    assert lent_rows(model.table) is None


def test_with_a_fixed_shape_the_same_is_learned() -> None:
    fixed, trimmed = Tables(), Tables()
    of_fixed, of_trimmed = optimizer_of(fixed), optimizer_of(trimmed)
    for numbers in ([7, 2, 7, 2], [2, 2, 2], [5]):
        step_with(fixed, of_fixed, numbers, fixed=True)
        step_with(trimmed, of_trimmed, numbers)
    for ours, theirs in zip(fixed.parameters(), trimmed.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(of_fixed.state[ours]["exp_avg_sq"], of_trimmed.state[theirs]["exp_avg_sq"])
