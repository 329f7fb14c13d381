import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.data import histories as module
from bert4rec.data.histories import Histories, histories_before, training_histories
from tests.evaluation.tiny import dataset_of

ROWS = st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=6)


def test_the_newest_item_has_the_last_column_and_older_ones_fall_off_the_left() -> None:
    histories = Histories.from_lists([[1, 2, 3, 4], [5], []])
    assert histories.padded(3).tolist() == [[2, 3, 4], [0, 0, 5], [0, 0, 0]]


@given(rows=ROWS, length=st.integers(0, 8))
def test_padding_agrees_with_doing_it_row_by_row(rows: list[list[int]], length: int) -> None:
    expected = [([0] * length + row)[len(row) :] for row in rows]
    table = Histories.from_lists(rows).padded(length)
    assert table.dtype == np.int32
    assert table.tolist() == expected


@given(rows=ROWS)
def test_flat_names_every_action_and_its_row(rows: list[list[int]]) -> None:
    row_numbers, items = Histories.from_lists(rows).flat()
    expected = [(number, item) for number, row in enumerate(rows) for item in row]
    assert list(zip(row_numbers.tolist(), items.tolist(), strict=True)) == expected


@given(rows=ROWS, items=st.lists(st.integers(1, 9), max_size=3))
def test_the_same_items_can_stand_behind_every_row(rows: list[list[int]], items: list[int]) -> None:
    backwards = Histories.from_lists(rows)[::-1]
    longer = backwards.followed_by(np.array(items, np.int32))
    found = [longer[row : row + 1].flat()[1].tolist() for row in range(len(longer))]
    assert found == [[*row, *items] for row in rows[::-1]]


@given(rows=ROWS)
def test_rows_can_be_picked_in_any_order_and_more_than_once(rows: list[list[int]]) -> None:
    histories = Histories.from_lists(rows)
    picked = np.array([*range(len(rows)), *range(len(rows))][::-1], dtype=np.int64)
    again = histories[picked]
    assert len(again) == 2 * len(rows)
    assert again.padded(6).tolist() == histories.padded(6)[picked].tolist()
    assert histories[:2].lengths.tolist() == [len(row) for row in rows[:2]]


@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
def test_counting_in_parts_counts_everything_once(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", rows_at_once)
    histories = Histories.from_lists([[1, 2, 2], [], [4, 2], [1]])
    assert histories.item_counts(5).tolist() == [0, 2, 3, 0, 1, 0]


def test_a_history_ends_before_the_position_it_is_asked_for() -> None:
    dataset = dataset_of([[1, 2, 3], [4, 5], [6]], num_items=6)
    histories = histories_before(dataset, np.array([2, 0]), np.array([5, 2]))
    assert histories.padded(3).tolist() == [[0, 0, 0], [0, 1, 2]]


def test_training_histories_end_where_the_split_says() -> None:
    dataset = dataset_of([[1, 2, 3], [4, 5], [6]], num_items=6)
    assert training_histories(dataset, np.array([1, 4, 6])).padded(2).tolist() == [[0, 1], [0, 4], [0, 6]]
