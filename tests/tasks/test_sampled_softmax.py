"""The sampled softmax: what it computes, what it is on average, and that it trains the models that have one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.tasks import sampled_softmax
from bert4rec.tasks.losses import softmax_cross_entropy
from bert4rec.tasks.sampled_softmax import _plain, sampled_cross_entropy
from bert4rec.tasks.sampling import ItemSampler
from bert4rec.training.loop import Hooks, Interrupted, Loop
from tests.training.tiny import CPU, make_task, random_histories, tiny_config

ROWS, ITEMS, DIM = 7, 40, 5
MODELS_WITH_SOFTMAX = ("bert4rec+", "bert4rec", "sasrec")


def operands(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden, table, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((ROWS, DIM), (ITEMS + 2, DIM), (ITEMS,))
    )
    return hidden, table, bias, torch.randint(1, ITEMS + 1, (ROWS,), generator=generator)


def sampler(even_share: float = 0.5) -> ItemSampler:
    """Popularity falls; the last ten items were never chosen."""
    counts = torch.arange(ITEMS - 10, -10, -1).clamp(min=0)
    return ItemSampler(counts, exponent=1.0, even_share=even_share)


def sampled_loss(
    hidden: Tensor, table: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor, log_chances: Tensor
) -> Tensor:
    """As the tasks compute it, with the whole table."""
    places = torch.searchsorted(negatives, targets).clamp(max=len(negatives) - 1)
    repeats = torch.cat([torch.tensor([False]), negatives[1:] == negatives[:-1]])
    return sampled_cross_entropy(
        hidden,
        table,
        targets,
        negatives,
        bias[targets - 1],
        (bias[negatives - 1] - log_chances[negatives - 1]).masked_fill(repeats, -torch.inf),
        torch.full((len(hidden),), 1 / len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32)),
        hits=torch.where(negatives[places] == targets, places, len(negatives)),
    )


def test_with_every_item_drawn_for_certain_it_is_the_exact_softmax() -> None:
    hidden, table, bias, targets = operands()
    inputs = hidden, table, bias
    everything, certain = torch.arange(1, ITEMS + 1), torch.zeros(ITEMS, dtype=torch.float64)
    ours = sampled_loss(hidden, table, bias, targets, everything, certain)
    exact = softmax_cross_entropy(hidden, table, bias, targets)
    torch.testing.assert_close(ours, exact)
    for found, expected in zip(
        torch.autograd.grad(2 * ours, inputs), torch.autograd.grad(2 * exact, inputs), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_a_known_answer() -> None:
    """Scores of 0 everywhere; two items drawn with chances of 1/2 and 1/4, one of them twice."""
    hidden, table, bias = torch.zeros(2, DIM), torch.zeros(ITEMS + 2, DIM), torch.zeros(ITEMS)
    log_chances = torch.zeros(ITEMS)
    log_chances[3 - 1], log_chances[8 - 1] = np.log(1 / 2), np.log(1 / 4)
    negatives = torch.tensor([3, 8, 8])
    loss = sampled_loss(hidden, table, bias, torch.tensor([5, 8]), negatives, log_chances)
    # The target counts 1, item 3 stands for two, item 8 for four; the target of the second row is not its own rival.
    assert loss.item() == pytest.approx((np.log(1 + 2 + 4) + np.log(1 + 2)) / 2)


def test_the_chance_to_be_drawn_is_the_share_of_batches_that_hold_an_item() -> None:
    draws, batches = 12, 40_000
    drawn = sampler().draw((batches, draws), torch.Generator().manual_seed(0))
    holds = torch.zeros(batches, ITEMS + 1).scatter_(1, drawn, 1.0)[:, 1:].mean(dim=0)
    torch.testing.assert_close(holds, sampler().log_chances(draws).exp(), atol=0.012, rtol=0)
    assert (sampler().log_chances(draws) > -torch.inf).all(), "no item is left out"
    assert (sampler(even_share=0.0).log_chances(draws)[-10:] == -torch.inf).all()


def test_on_average_the_sum_over_what_was_drawn_is_the_sum_over_all_items() -> None:
    """exp(loss + target's score) is the sum that the softmax divides by: many draws must average to the true one."""
    hidden, table, bias, targets = (
        each.detach()[:1] if each.shape[0] == ROWS else each for each in operands()
    )
    own = (hidden * table[targets]).sum() + bias[targets - 1]
    losses = [
        sampled_loss(hidden, table, bias, targets, negatives, log_chances_of(8))
        for negatives in drawn(8, times=2000)
    ]
    sums = (torch.stack(losses).detach() + own.detach()).exp()
    error = sums.std() / len(sums) ** 0.5
    exact = (hidden @ table[1 : ITEMS + 1].T + bias).exp().sum()
    assert (sums.mean() - exact).abs() < 4 * error
    assert error < 0.05 * exact, "so that the comparison says something"


def test_the_more_is_drawn_the_closer_gradients_come_to_the_exact_ones() -> None:
    hidden, table, bias, targets = operands()
    inputs = hidden, table, bias
    loss = softmax_cross_entropy(hidden, table, bias, targets)
    exact = torch.cat([each.flatten() for each in gradients(loss, inputs)])
    away = []
    for draws in (10, 100, 400):
        losses = [
            sampled_loss(hidden, table, bias, targets, negatives, log_chances_of(draws))
            for negatives in drawn(draws, times=100)
        ]
        mean = torch.cat([each.flatten() for each in gradients(torch.stack(losses).mean(), inputs)])
        away.append(((mean - exact).norm() / exact.norm()).item())
    assert away[0] > 5 * away[1] > 25 * away[2]
    assert away[2] < 0.005


def log_chances_of(draws: int) -> Tensor:
    return sampler().log_chances(draws).double()


def drawn(count: int, times: int) -> Tensor:
    return sampler().draw((times, count), torch.Generator().manual_seed(0)).sort(dim=1).values


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_form_for_compilers_is_the_same(dtype: torch.dtype) -> None:
    hidden, table, bias, targets = operands()
    leaves = hidden.detach().to(dtype).requires_grad_(), table, bias
    negatives, is_repeat = torch.tensor([2, 2, 9, 17, 33]), torch.tensor([False, True, False, False, False])
    targets[0] = 9
    hits = torch.where(targets == 9, 2, 5)
    weights = torch.linspace(0, 1, ROWS, dtype=torch.promote_types(dtype, torch.float32))

    places = leaves[0], table, targets, negatives

    def biases() -> tuple[Tensor, Tensor]:
        return bias[targets - 1], bias[negatives - 1].masked_fill(is_repeat, -torch.inf)

    ours = sampled_cross_entropy(*places, *biases(), weights, hits=hits)
    plain = _plain(*places, *biases(), weights, hits)
    close = 0.03 if dtype == torch.bfloat16 else 1e-9
    torch.testing.assert_close(ours, plain.to(ours.dtype), rtol=close, atol=close)
    for found, expected in zip(gradients(ours, leaves), gradients(plain, leaves), strict=True):
        torch.testing.assert_close(found, expected, rtol=close, atol=close)


def large_dataset() -> Dataset:
    histories = random_histories(users=40, items=300)
    lengths = [len(each) for each in histories]
    return Dataset.from_sequences(
        np.array([item + 1 for each in histories for item in each], np.int32),
        np.concatenate([[0], np.cumsum(lengths)]),
        num_items=300,
    )


@pytest.mark.parametrize("model", MODELS_WITH_SOFTMAX)
def test_a_step_touches_the_rows_that_it_uses_and_no_others(model: str) -> None:
    task = make_task(large_dataset(), tiny_config("objective.negatives=5", model=model), model)
    before = {name: each.detach().clone() for name, each in task.model.named_parameters()}
    loop = Loop(task, tiny_config().training, device=CPU, seed=1)  # type: ignore[arg-type]
    row = task.block(0)[1][0]
    loop.run_steps(1)
    changed = (task.model.item_table.weight != before["item_table.weight"]).any(dim=1)
    assert 5 < changed.sum() < len(changed) / 2
    assert set(changed.nonzero()[:, 0].tolist()) <= set(row.tolist())
    assert task.model.item_table.weight.grad is None
    if "item_bias" in before:
        moved = task.model.item_bias != before["item_bias"]
        assert 0 < moved.sum() < len(moved) / 2
        assert changed[1:-1][moved].all()


@pytest.mark.parametrize("model", MODELS_WITH_SOFTMAX)
def test_lent_rows_give_the_gradients_of_the_whole_table(model: str) -> None:
    config = tiny_config("objective.negatives=50", "model.hidden_dropout=0", model=model)
    lending, whole = (make_task(large_dataset(), config, model) for _ in range(2))
    for task in (lending, whole):
        task.model.eval()
    row = whole.block(0)[1][0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampled_softmax, "TiedEncoder", ())  # so that nothing is lent
        whole_loss = whole.loss(row)
    loss = lending.loss(row)
    assert loss.item() == pytest.approx(whole_loss.item(), rel=1e-6)
    loss.backward()
    whole_loss.backward()
    for name, parameter in lending.model.named_parameters():
        expected = whole.model.get_parameter(name).grad
        if lent := getattr(parameter, "_lent", None):
            found = torch.zeros_like(parameter).index_copy_(0, lent.distinct.numbers, lent.rows.grad)
        else:
            found = parameter.grad
        torch.testing.assert_close(found, expected, msg=name)


@pytest.mark.parametrize("model", MODELS_WITH_SOFTMAX)
def test_a_resumed_training_goes_on_to_the_last_bit(tmp_path: Path, model: str) -> None:
    config = tiny_config("objective.negatives=20", model=model)
    training = config.training
    assert training

    def fresh() -> Loop:
        return Loop(make_task(large_dataset(), config, model), training, device=CPU, seed=1)

    straight = fresh()
    straight.run(9)
    broken = fresh()
    stops = iter([False] * 5 + [True])
    with pytest.raises(Interrupted):
        broken.run(9, Hooks(should_stop=lambda: next(stops)), checkpoint=tmp_path / "resume")
    resumed = fresh()
    resumed.resume(tmp_path / "resume", "")
    resumed.run(9)
    for (name, ours), theirs in zip(
        resumed.task.model.state_dict().items(), straight.task.model.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("model", MODELS_WITH_SOFTMAX)
def test_the_negatives_of_a_step_depend_on_seed_and_step_alone(model: str) -> None:
    config = tiny_config("objective.negatives=20", model=model)
    first, same, other = (make_task(large_dataset(), config, model, seed=seed) for seed in (1, 1, 2))
    begin, rows = first.block(0)
    later = len(rows) - 1
    assert torch.equal(rows[later], same.block(later)[1][later - same.block(later)[0]])
    assert not torch.equal(rows[0], other.block(0)[1][0][: len(rows[0])])
    assert begin == 0


@pytest.mark.parametrize("negatives", [0, 300, 1000])
def test_with_no_negatives_or_as_many_as_items_the_softmax_is_exact(negatives: int) -> None:
    sampled = make_task(large_dataset(), tiny_config(f"objective.negatives={negatives}"))
    exact = make_task(large_dataset(), tiny_config())
    for task in (sampled, exact):
        task.model.eval()  # without dropout
    row = exact.block(0)[1][0]
    assert torch.equal(sampled.loss(row), exact.loss(row))
