"""Every loss against a number that a person worked out."""

from math import log

import pytest
import torch
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.tasks.ranking_losses import binary, pairwise, pointwise, shared

LN3 = log(3)
"""σ(ln 3) = 3/4, σ(-ln 3) = 1/4, and e to the power of it is 3."""


def tensor(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


ALL_COUNT = torch.tensor([[True, True]])
CHOSEN = tensor([LN3, 0.0])
UNCHOSEN = tensor([[0.0, 2 * LN3], [0.0, -LN3]])
"""One sample with two right answers, each with two wrong ones."""


def test_bpr_compares_each_right_answer_with_its_own_wrong_ones() -> None:
    # Differences ln 3, -ln 3, 0, ln 3: chances 3/4, 1/4, 1/2, 3/4; minus the mean of their logarithms.
    expected = (0.287682 + 1.386294 + 0.693147 + 0.287682) / 4
    assert pairwise(CHOSEN, UNCHOSEN, ALL_COUNT).item() == pytest.approx(expected, abs=1e-6)


def test_the_pointwise_loss_judges_every_item_for_itself() -> None:
    # Right: σ = 3/4, 1/2. Wrong: 1 - σ = 1/2, 1/10 and 1/2, 3/4. Minus the mean of all six logarithms.
    expected = (0.287682 + 0.693147 + 0.693147 + 2.302585 + 0.693147 + 0.287682) / 6
    assert pointwise(CHOSEN, UNCHOSEN, ALL_COUNT).item() == pytest.approx(expected, abs=1e-6)


def test_right_answers_that_do_not_exist_do_not_count() -> None:
    first = torch.tensor([[True, False]])
    assert pairwise(CHOSEN, UNCHOSEN, first).item() == pytest.approx((0.287682 + 1.386294) / 2, abs=1e-6)
    expected = (0.287682 + 0.693147 + 2.302585) / 3
    assert pointwise(CHOSEN, UNCHOSEN, first).item() == pytest.approx(expected, abs=1e-6)


HIDDEN = tensor([1.0, 0.0], [0.0, 1.0], [5.0, 5.0])
TABLE = tensor([9.0, 9.0], [0.0, LN3], [LN3, 0.0], [LN3 - 1, 7.0], [9.0, 9.0])
BIAS = tensor(0.0, 0.0, 1.0)
TARGETS = torch.tensor([2, 1, PADDING])
"""Three items between padding and [mask]. The third row asks nothing.

Scores of items 1, 2, 3: row 1 has 0, ln 3, ln 3; row 2 has ln 3, 0, 8.
"""


def test_the_binary_loss_sets_one_wrong_item_against_each_right_one() -> None:
    # Row 1: σ(ln 3) = 3/4 and 1 - σ(0) = 1/2. Row 2: σ(ln 3) = 3/4 and 1 - σ(0) = 1/2.
    loss = binary(HIDDEN, TABLE, BIAS, TARGETS, torch.tensor([1, 2, 3]))
    assert loss.item() == pytest.approx(0.287682 + 0.693147, abs=1e-6)


SHARED = [
    # Item 1 scores 0 and item 3 scores ln 3, like item 2, which is right. σ(0²) = 1/2, σ((ln 3)²) = 0.769758.
    ("top1", ((0.25 + 0.5) + (0.5 + 0.769758)) / 2),
    ("bpr", (0.287682 + 0.693147) / 2),
    # The softmax of 0 and ln 3 is 1/4 and 3/4.
    ("top1-max", 0.25 * (0.25 + 0.5) + 0.75 * (0.5 + 0.769758)),
    # 1/4 × 3/4 + 3/4 × 1/2 = 9/16, and (ln 3)² = 1.206949.
    ("bpr-max", 0.575364 + 2 * 0.75 * 1.206949),
]

each_shared = pytest.mark.parametrize("name", [name for name, _ in SHARED])


@pytest.mark.parametrize(("name", "expected"), SHARED)
def test_the_losses_of_gru4rec_set_the_same_items_against_every_answer(name: str, expected: float) -> None:
    loss = shared(name, HIDDEN[:1], TABLE, BIAS, TARGETS[:1], torch.tensor([1, 3]), penalty=2.0)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("name", "expected"), SHARED)
def test_padding_and_the_answer_itself_are_nothing_to_compare_with(name: str, expected: float) -> None:
    negatives = torch.tensor([2, 1, PADDING, 3, 2])
    loss = shared(name, HIDDEN[:1], TABLE, BIAS, TARGETS[:1], negatives, penalty=2.0)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


@each_shared
def test_rows_that_ask_nothing_do_not_count(name: str) -> None:
    negatives = torch.tensor([1, 2, 3])
    both = shared(name, HIDDEN[:2], TABLE, BIAS, TARGETS[:2], negatives)
    assert shared(name, HIDDEN, TABLE, BIAS, TARGETS, negatives) == both
    nothing = shared(name, HIDDEN[2:], TABLE, BIAS, TARGETS[2:], negatives)
    assert nothing.item() == 0


@each_shared
def test_an_answer_without_anything_to_compare_it_with_has_no_loss_and_no_gradient(name: str) -> None:
    """Only the answer itself was drawn."""
    hidden, table, bias = (each.clone().requires_grad_() for each in (HIDDEN[:1], TABLE, BIAS))
    loss = shared(name, hidden, table, bias, TARGETS[:1], torch.tensor([2, 2, PADDING]), penalty=1.0)
    assert loss.item() == 0
    for gradient in torch.autograd.grad(loss, (hidden, table, bias), allow_unused=True):
        assert gradient is None or not gradient.any()


@each_shared
def test_huge_scores_give_numbers_and_gradients_that_are_numbers(name: str) -> None:
    hidden = (1000 * HIDDEN).requires_grad_()
    loss = shared(name, hidden, TABLE, BIAS, TARGETS, torch.tensor([1, 3]), penalty=1.0)
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.autograd.grad(loss, hidden)[0]).all()


@each_shared
def test_low_precision_states_give_nearly_the_same_loss_in_float32(name: str) -> None:
    negatives = torch.tensor([1, 3])
    table, bias = TABLE.float(), BIAS.float()
    exact = shared(name, HIDDEN, table, bias, TARGETS, negatives)
    rough = shared(name, HIDDEN.bfloat16(), table, bias, TARGETS, negatives)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.02)
