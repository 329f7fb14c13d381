from itertools import permutations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert4rec.data import negatives as module
from bert4rec.data.dataset import Repeats
from bert4rec.data.negatives import NegativeKind, draw_negatives

NUM_ITEMS = 12
LOGS = st.lists(st.lists(st.integers(1, NUM_ITEMS), min_size=1, max_size=20), min_size=1, max_size=8)
KINDS = st.sampled_from(["popularity", "uniform"])


def draw(
    histories: list[list[int]],
    *,
    kind: NegativeKind = "popularity",
    count: int = 100,
    seed: int = 1,
    num_items: int = NUM_ITEMS,
    repeats: Repeats = "exclude",
) -> NDArray[np.int32]:
    sequences = np.array([item for history in histories for item in history], np.int32)
    offsets = np.cumsum([0, *map(len, histories)], dtype=np.int64)
    return draw_negatives(sequences, offsets, num_items, kind=kind, count=count, seed=seed, repeats=repeats)


def assert_promises(
    drawn: NDArray[np.int32],
    histories: list[list[int]],
    *,
    kind: NegativeKind,
    count: int,
    repeats: Repeats = "exclude",
) -> None:
    """Distinct, untouched unless repeats are kept, and as many as there can be, with zeros behind."""
    drawable = {item for history in histories for item in history}
    if kind == "uniform":
        drawable = set(range(1, NUM_ITEMS + 1))
    for row, history in zip(drawn.tolist(), histories, strict=True):
        untouched = drawable - set(history) if repeats == "exclude" else drawable
        items = [item for item in row if item]
        assert set(items) <= untouched
        assert len(set(items)) == len(items) == min(count, len(untouched))
        assert row == items + [0] * (count - len(items))


@given(
    histories=LOGS,
    kind=KINDS,
    count=st.integers(1, 14),
    seed=st.integers(0, 2**32),
    repeats=st.sampled_from(get_args(Repeats)),
)
def test_negatives_are_untouched_distinct_and_as_many_as_there_can_be(
    histories: list[list[int]], kind: NegativeKind, count: int, seed: int, repeats: Repeats
) -> None:
    drawn = draw(histories, kind=kind, count=count, seed=seed, repeats=repeats)
    assert_promises(drawn, histories, kind=kind, count=count, repeats=repeats)


@pytest.mark.parametrize("kind", ["popularity", "uniform"])
@pytest.mark.parametrize("tries", [0, 1, 50])
@pytest.mark.parametrize("cells", [1, 3 * (NUM_ITEMS + 1)])
def test_they_are_so_in_many_small_blocks_and_when_tries_run_out(
    kind: NegativeKind, tries: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TABLE_CELLS", cells)
    monkeypatch.setattr(module, "_TRIES_PER_NEGATIVE", tries)
    rng = np.random.default_rng(3)
    histories = [rng.integers(1, NUM_ITEMS + 1, size=rng.integers(1, 25)).tolist() for _ in range(50)]
    assert_promises(draw(histories, kind=kind, count=5), histories, kind=kind, count=5)


def test_the_draw_is_the_same_on_every_machine() -> None:
    histories = [[1, 2, 3], [1, 4, 5, 6], [1, 2, 7], [8, 9, 10, 11, 12, 1], [2]]
    assert draw(histories, count=4, seed=7).tolist() == [
        [10, 4, 6, 11],
        [12, 2, 7, 3],
        [9, 10, 11, 12],
        [7, 4, 3, 6],
        [10, 7, 5, 8],
    ]
    assert draw(histories, count=4, seed=7, kind="uniform").tolist() == [
        [4, 9, 10, 7],
        [8, 11, 12, 10],
        [3, 8, 6, 11],
        [7, 4, 2, 5],
        [7, 3, 4, 5],
    ]


def test_another_seed_is_another_draw() -> None:
    histories = [[1], [2], [3, 4, 5, 6, 7, 8, 9]]
    assert draw(histories, count=4, seed=1).tolist() != draw(histories, count=4, seed=2).tolist()


def test_a_user_who_touched_everything_has_no_negatives() -> None:
    everything = list(range(1, NUM_ITEMS + 1))
    assert not draw([everything, [1]], count=5)[0].any()


def test_a_user_who_left_three_items_gets_these_three() -> None:
    nearly_everything = list(range(1, NUM_ITEMS - 2)) * 2
    drawn = draw([nearly_everything, [10, 11, 12]], count=5)
    assert sorted(drawn[0].tolist()) == [0, 0, 10, 11, 12]


def test_an_item_nobody_chose_is_drawn_uniformly_but_never_by_popularity() -> None:
    histories = [[1]] * 50 + [[2], [3]]
    assert 4 not in draw(histories, count=2, num_items=4)
    assert 4 in draw(histories, count=2, num_items=4, kind="uniform")


def test_a_dataset_without_users_has_no_negatives() -> None:
    assert draw([], count=5).shape == (0, 5)


def probability_of(first: int, second: int, weights: dict[int, int]) -> float:
    """Drawing without replacement: the chance of this item first and that one second."""
    total = sum(weights.values())
    return weights[first] / total * weights[second] / (total - weights[first])


@pytest.mark.parametrize("tries", [0, 50], ids=["slow sure way", "usual way"])
@pytest.mark.parametrize("kind", ["popularity", "uniform"])
def test_ordered_pairs_come_as_often_as_theory_says(
    kind: NegativeKind, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TRIES_PER_NEGATIVE", tries)
    num_users = 6000
    # All have touched item 1 only; the last user gives items 2 to 5 their popularity 1, 2, 4, 8.
    popularity = {2: 1, 3: 2, 4: 4, 5: 8}
    histories = [[1]] * num_users + [[item for item, times in popularity.items() for _ in range(times)]]
    drawn = draw(histories, kind=kind, count=2, num_items=5, seed=5)[:num_users]
    weights = popularity if kind == "popularity" else dict.fromkeys(popularity, 1)
    chi_squared = 0.0
    for first, second in permutations(weights, 2):
        expected = num_users * probability_of(first, second, weights)
        found = np.count_nonzero((drawn[:, 0] == first) & (drawn[:, 1] == second))
        chi_squared += (found - expected) ** 2 / expected
    assert chi_squared < 31.26  # 11 degrees of freedom, one chance in a thousand
