"""Histories as models read them: the newest items, then the token at which is asked what comes next."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.data.dataset import PADDING
from bert4rec.data.histories import Histories
from bert4rec.models.attention import PackedLayout, PaddedLayout
from bert4rec.models.history_batch import PackedHistories, PaddedHistories, TokenSequences, send
from tests.training.tiny import CPU

MASK = 99


def asked(histories: list[list[int]], end_token: int | None = None) -> tuple[TokenSequences, PackedLayout]:
    packed = PackedHistories(Histories.from_lists(histories), CPU)
    found = packed.sequences(4, end_token, causal=end_token is None)
    assert isinstance(found.layout, PackedLayout)
    assert found.layout.max_rows == 1
    assert found.layout.causal == (end_token is None)
    return found, found.layout


@pytest.mark.parametrize(
    ("histories", "end_token", "tokens", "positions", "bounds"),
    [
        ([[1, 2, 3, 4, 5], [6]], None, [2, 3, 4, 5, 6], [0, 1, 2, 3, 3], [0, 4, 5]),
        ([[], [7, 8], []], None, [PADDING, 7, 8, PADDING], [3, 2, 3, 3], [0, 1, 3, 4]),
        ([[1, 2, 3, 4, 5], [6]], MASK, [3, 4, 5, MASK, 6, MASK], [0, 1, 2, 3, 2, 3], [0, 4, 6]),
        ([[], [7], []], MASK, [MASK, 7, MASK, MASK], [3, 2, 3, 3], [0, 1, 3, 4]),
    ],
    ids=["longer than the model sees", "empty", "longer, with an end token", "empty, with an end token"],
)
def test_a_question_is_the_newest_items_and_asks_at_the_last_token(
    histories: list[list[int]],
    end_token: int | None,
    tokens: list[int],
    positions: list[int],
    bounds: list[int],
) -> None:
    found, layout = asked(histories, end_token)
    assert found.tokens.tolist() == tokens
    assert found.positions.tolist() == positions
    assert layout.bounds.tolist() == bounds
    assert layout.rows.tolist() == [end - 1 for end in bounds[1:]]
    assert layout.row_bounds.tolist() == list(range(len(bounds)))
    assert layout.max_length == max(end - begin for begin, end in pairwise(bounds))


def test_rows_of_histories_need_not_be_neighbours_in_memory() -> None:
    histories = Histories.from_lists([[1, 2, 3], [4, 5], [6]])[[2, 0]]  # type: ignore[index]
    assert PackedHistories(histories, CPU).sequences(4, causal=True).tokens.tolist() == [6, 1, 2, 3]


ROWS = st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=6)


@given(rows=ROWS, far=st.sampled_from([0, 1000]), share=st.booleans(), data=st.data())
def test_items_that_batches_share_on_the_device_are_those_that_each_would_have_sent(
    rows: list[list[int]], far: int, share: bool, data: st.DataObject
) -> None:
    """Rows in any order, with much or little between them, and excluded items in the same memory or elsewhere."""
    seen = Histories.from_lists([[7] * 3, *rows, [8] * far, *rows, [9]])
    picked = np.array(data.draw(st.lists(st.integers(0, len(seen) - 2), min_size=1, max_size=6)))
    histories, excluded = seen.newest(3)[picked], seen[picked]
    if data.draw(st.booleans()):
        excluded = Histories(seen.items, excluded.begin, excluded.begin)
    if not share:
        excluded = Histories(excluded.items.copy(), excluded.begin, excluded.end)
    packed, struck = send(histories, excluded, CPU)
    for part in (slice(0, 3), slice(3, 6)):
        for shared, alone in ((packed[part], histories[part]), (struck[part], excluded[part])):
            assert [each.tolist() for each in shared.flat()] == [each.tolist() for each in alone.flat()]
            for end_token in (None, MASK):
                found = shared.sequences(4, end_token, causal=False)
                expected = PackedHistories(alone, CPU).sequences(4, end_token, causal=False)
                assert found.tokens.dtype == expected.tokens.dtype == torch.int32
                assert found.tokens.tolist() == expected.tokens.tolist()
                assert found.positions.tolist() == expected.positions.tolist()


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_the_newest_items_are_the_same_packed_and_padded(count: int) -> None:
    histories = Histories.from_lists([[1, 2, 3, 4], [], [5]])
    padded = PaddedHistories(torch.from_numpy(histories.padded(4)))
    found = PackedHistories(histories, CPU).newest(count)
    assert found.shape == (3, count)
    assert padded.newest(count).tolist() == found.tolist()
    assert len(padded) == len(PackedHistories(histories, CPU)) == 3


def test_a_padded_question_longer_than_the_model_can_read_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="5 tokens, but max_length is 4"):
        PaddedHistories(torch.ones(1, 4, dtype=torch.int64)).sequences(4, MASK, causal=False)


def test_both_layouts_make_rows_of_sequences_and_find_the_wanted_states_again() -> None:
    """A state here is its token and its place, so that a wrong one is seen."""
    expected = [[3, 4, 5, 6], [7, 0, 0, 0], [PADDING, 0, 0, 0]]
    histories = Histories.from_lists([[1, 2, 3, 4, 5, 6], [7], []])
    packed = PackedHistories(histories, CPU).sequences(4, causal=True)
    padded = PaddedHistories(torch.from_numpy(histories.padded(4))).sequences(4, causal=True)
    assert isinstance(padded.layout, PaddedLayout)
    for found in (packed, padded):
        rectangle = found.layout.rectangle(found.tokens)
        assert rectangle.tolist() == expected
        states = torch.stack([rectangle, torch.arange(4).expand_as(rectangle)], dim=-1)
        assert found.layout.pick(states).flatten(0, -2).tolist() == [[6, 3], [7, 0], [PADDING, 0]]
