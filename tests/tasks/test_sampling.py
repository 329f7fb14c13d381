import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.tasks.sampling import TRIES, Chosen, ItemSampler, count_items, draw_wrong

ITEMS = torch.tensor([1] * 1 + [2] * 4 + [4] * 9 + [5] * 16, dtype=torch.int32)
"""Item 3 was never chosen; item 6 neither."""
DRAWS = 60_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("exponent", "weights"),
    [
        (0.0, [1, 1, 1, 1, 1, 1]),
        (0.5, [1, 2, 0, 3, 4, 0]),
        (1.0, [1, 4, 0, 9, 16, 0]),
    ],
)
def test_items_are_drawn_by_their_popularity_to_the_given_power(exponent: float, weights: list[int]) -> None:
    drawn = ItemSampler(count_items(ITEMS, 6), exponent=exponent).draw((100, DRAWS // 100), generator())
    assert drawn.shape == (100, DRAWS // 100)
    counts = torch.bincount(drawn.flatten(), minlength=7)
    expected = DRAWS * torch.tensor([0, *weights]) / sum(weights)
    assert not counts[expected == 0].any()
    possible = expected > 0
    # Chi-square over at most 5 degrees of freedom: above 20.5 in one of a thousand cases, and the seed is fixed.
    assert ((counts - expected) ** 2 / expected)[possible].sum() < 20.5


def test_the_generator_decides_what_is_drawn() -> None:
    sampler = ItemSampler(count_items(ITEMS, 6), exponent=1.0)
    assert torch.equal(sampler.draw((50,), generator(1)), sampler.draw((50,), generator(1)))
    assert not torch.equal(sampler.draw((50,), generator(1)), sampler.draw((50,), generator(2)))


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=20))
def test_what_was_chosen_is_known_exactly(pairs: list[tuple[int, int]]) -> None:
    users, items = torch.tensor(pairs, dtype=torch.int32).T
    chosen = Chosen(users, items, num_items=4)
    everything = torch.cartesian_prod(torch.arange(6), torch.arange(1, 5))
    found = chosen.contains(everything[:, 0], everything[:, 1]).tolist()
    assert found == [tuple(pair) in set(pairs) for pair in everything.tolist()]


USERS = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2])
CHOSEN = torch.tensor([4, 1, 2, 3, 1, 2, 3, 4])
"""Of four items, user 0 chose one, user 1 three and user 2 all."""


def drawn_for(user: int, count: int = 20_000) -> torch.Tensor:
    sampler = ItemSampler(count_items(CHOSEN, 4), exponent=0.0)
    chosen = Chosen(USERS, CHOSEN, num_items=4)
    drawn = draw_wrong(sampler, chosen.contains, torch.full((2, 5, 1), user), count // 10, generator())
    assert drawn.shape == (2, 5, count // 10)
    return torch.bincount(drawn.flatten(), minlength=5) / count


def test_what_a_user_chose_is_not_drawn_and_all_else_is_as_likely_as_before() -> None:
    shares = drawn_for(0)
    assert shares[[0, 4]].tolist() == [0, 0]
    assert shares[1:4].tolist() == pytest.approx([1 / 3] * 3, abs=0.015)


def test_of_a_user_who_chose_nearly_everything_the_rest_is_drawn_but_for_a_rarity() -> None:
    """Three of four were chosen: after the first draw and eight more, 0.75⁹ = 7.5% are still among them."""
    shares = drawn_for(1)
    assert shares[1:4].sum().item() == pytest.approx(0.75 ** (1 + TRIES), abs=0.01)


def test_a_user_who_chose_everything_does_not_hang_the_machine() -> None:
    assert drawn_for(2)[1:].tolist() == pytest.approx([1 / 4] * 4, abs=0.015)


def test_where_right_answers_are_given_only_they_are_not_drawn() -> None:
    answers = torch.tensor([[1, 2], [3, 3]])
    drawn = draw_wrong(
        ItemSampler(count_items(CHOSEN, 4), exponent=0.0), torch.eq, answers, 5_000, generator()
    )
    shares = [torch.bincount(row, minlength=5) / 5_000 for row in drawn]
    assert shares[0][3:].tolist() == pytest.approx([0.5, 0.5], abs=0.03)
    assert shares[1][[1, 2, 4]].tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
