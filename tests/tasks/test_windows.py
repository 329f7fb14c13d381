import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.tasks.windows import Windows, cut_windows


def windows_of(*lengths: int, max_length: int, step_share: float) -> Windows:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return cut_windows(offsets[:-1], offsets[1:], max_length=max_length, step_share=step_share)


def test_a_history_that_fits_is_one_window() -> None:
    windows = windows_of(3, 10, 1, max_length=10, step_share=0.5)
    assert windows.begin.tolist() == [0, 3, 13]
    assert windows.length.tolist() == [3, 10, 1]


def test_windows_step_back_from_the_end_and_one_begins_at_the_start() -> None:
    windows = windows_of(27, max_length=10, step_share=0.5)
    assert windows.begin.tolist() == [17, 12, 7, 2, 0]
    assert set(windows.length.tolist()) == {10}


def test_the_start_is_not_taken_twice() -> None:
    assert windows_of(20, max_length=10, step_share=0.5).begin.tolist() == [10, 5, 0]


def test_a_user_without_actions_has_no_window() -> None:
    assert windows_of(0, 4, 0, max_length=10, step_share=1.0).begin.tolist() == [0]


def test_a_step_that_skips_actions_is_refused() -> None:
    with pytest.raises(AssertionError):
        windows_of(27, max_length=10, step_share=1.5)


@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    max_length=st.integers(1, 20),
    step_share=st.floats(0.01, 1.0),
)
def test_windows_agree_with_the_loop_of_the_authors(
    lengths: list[int], max_length: int, step_share: float
) -> None:
    windows = windows_of(*lengths, max_length=max_length, step_share=step_share)
    step = max(1, int(step_share * max_length))
    expected = []
    offset = 0
    for length in lengths:
        if 0 < length <= max_length:
            expected.append((offset, length))
        elif length:
            starts = [*range(length - max_length, 0, -step), 0]
            expected += [(offset + start, max_length) for start in starts]
        offset += length
    assert list(zip(windows.begin.tolist(), windows.length.tolist(), strict=True)) == expected
    covered = {action for begin, length in expected for action in range(begin, begin + length)}
    assert covered == set(range(sum(lengths)))
