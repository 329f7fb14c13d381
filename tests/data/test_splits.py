"""Who is asked what, and what a model may have seen."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.data import blocks, splits
from bert4rec.data.leakage import split_warnings
from bert4rec.data.splits import SplitSpec, all_targets, leave_one_out, make_split, split_by_time
from bert4rec.errors import DataError, UsageError
from tests.conftest import MakeDataset

DAY = 86_400_000_000


def test_leave_one_out_asks_for_the_last_item_and_validates_on_the_one_before(
    make_dataset: MakeDataset,
) -> None:
    dataset = make_dataset([[1, 2, 3, 4], [5, 6, 7]])
    split = leave_one_out(dataset)
    ids = ["", *dataset.items()["id"]]
    assert [ids[item] for item in dataset.sequences[split.test.positions]] == ["item-4", "item-7"]
    assert [ids[item] for item in dataset.sequences[split.valid.positions]] == ["item-3", "item-6"]
    assert split.training_end("valid").tolist() == [2, 5]
    assert split.training_end("test").tolist() == [3, 6]


def test_users_with_fewer_than_three_actions_train_but_are_never_asked(make_dataset: MakeDataset) -> None:
    split = leave_one_out(make_dataset([[1, 2], [3, 4, 5]]))
    assert split.test.users.tolist() == split.valid.users.tolist() == [1]
    assert split.training_end("test").tolist() == [2, 4]


def test_a_time_split_cuts_everybody_at_the_same_moment(make_dataset: MakeDataset) -> None:
    histories = [[1, 2, 3, 4], [1, 2], [3, 4], [5, 6]]
    times = [1, 2, 3, 4, 1, 3, 3, 4, 1, 2]
    dataset = make_dataset(histories, [day * DAY for day in times])
    split = split_by_time(dataset, test_from=3 * DAY, valid_from=2 * DAY)
    assert split.test.users.tolist() == [0, 1], "user 2 did nothing before, user 3 nothing after"
    assert split.test.positions.tolist() == [2, 5]
    assert split.valid.users.tolist() == [0, 3], "user 1's next action lies in the test part"
    assert split.training_end("valid").tolist() == [1, 5, 6, 9]
    assert split.training_end("test").tolist() == [2, 5, 6, 10]


@pytest.mark.parametrize(
    ("repeats", "test", "valid", "left_out"),
    [("exclude", [[4, 5], [3]], [[3]], 1), ("keep", [[1, 4, 5], [3], [1]], [[3], [1]], 0)],
)
def test_all_that_users_do_in_a_part_may_be_asked_for_each_item_once(
    make_dataset: MakeDataset, repeats: str, test: list[list[int]], valid: list[list[int]], left_out: int
) -> None:
    """User 2 comes back to what they had, user 3 has no history, and user 4 does nothing in time."""
    histories = [[1, 2, 3, 4, 5, 4, 1], [1, 3], [1, 1, 1], [3, 4], [2]]
    days = [1, 1, 2, 3, 4, 5, 6, 1, 3, 1, 2, 3, 3, 4, 1]
    dataset = make_dataset(histories, [day * DAY for day in days], repeats=repeats)
    split = split_by_time(dataset, test_from=3 * DAY, valid_from=2 * DAY)
    ids = [0, *(int(each.removeprefix("item-")) for each in dataset.items()["id"])]
    for part, expected in (("test", test), ("valid", valid)):
        found = all_targets(dataset, split, part)  # type: ignore[arg-type]
        items = [
            sorted(ids[item] for item in found.items[row : row + 1].flat()[1])
            for row in range(len(found.items))
        ]
        assert items == expected
        assert found.asked.positions.tolist() == split.training_end(part)[found.asked.users].tolist()  # type: ignore[arg-type]
    assert all_targets(dataset, split, "test").asked.left_out == left_out


def test_a_time_split_may_be_given_as_a_share_of_the_actions(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([list(range(1, 11))], [day * DAY for day in range(10)])
    by_share = make_split(dataset, SplitSpec("time", test_from="0.8"))
    by_date = make_split(dataset, SplitSpec("time", test_from="1970-01-09", valid_from="1970-01-07"))
    assert by_share.test.positions.tolist() == by_date.test.positions.tolist() == [8]
    assert by_share.valid.positions.tolist() == by_date.valid.positions.tolist() == [6]


def test_without_further_word_the_split_is_the_one_prepared(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(
        [[1, 2, 3, 4]], [0, DAY, 2 * DAY, 3 * DAY], split=SplitSpec("time", "1970-01-03", "1970-01-02")
    )
    assert make_split(dataset).test.positions.tolist() == [2]


def test_impossible_splits_say_why(make_dataset: MakeDataset) -> None:
    timeless = make_dataset([[1, 2, 3]])
    with pytest.raises(DataError, match="has no times"):
        make_split(timeless, SplitSpec("time", test_from="0.9"))
    timed = make_dataset([[1, 2, 3]], [0, DAY, 2 * DAY])
    with pytest.raises(DataError, match="No user acts both before and after"):
        make_split(timed, SplitSpec("time", "2000-01-01", "1999-01-01"))
    with pytest.raises(UsageError, match="must begin before"):
        make_split(timed, SplitSpec("time", "1970-01-02", "1970-01-03"))
    with pytest.raises(UsageError, match="requires `test_from`"):
        SplitSpec("time")
    with pytest.raises(UsageError, match='require `split="time"`'):
        SplitSpec(test_from="0.9")


def test_leaks_unseen_items_and_ties_are_warned_of_with_their_share(make_dataset: MakeDataset) -> None:
    """User 0's last action is on day 2; everything user 1 does comes later, and ends in a tie."""
    histories, days = [[1, 2, 3], [1, 2, 3, 4]], [0, 1, 2, 5, 6, 7, 7]
    dataset = make_dataset(histories, [day * DAY for day in days])
    few_users, few_items, future, unseen, ties = split_warnings(dataset, leave_one_out(dataset))
    assert "Too few users to judge a model: only 2 users are tested" in few_users
    assert "Too few items to judge a model: with 4 items, random guessing has HR@10 of 1.00" in few_items
    assert "30% of the training actions happen after" in future
    assert "1 of 2 test items (50.0%) never occur in training" in unseen
    assert "1 of 2 test items (50.0%) happen at the same time" in ties


def test_a_time_split_does_not_leak_and_is_not_accused_of_it(make_dataset: MakeDataset) -> None:
    histories = [[1, 2, 3, 1], [1, 2, 3, 1]]
    dataset = make_dataset(histories, [day * DAY for day in (0, 1, 2, 3, 0, 1, 2, 3)], repeats="keep")
    warnings = split_warnings(dataset, split_by_time(dataset, 3 * DAY, 2 * DAY))
    assert [warning for warning in warnings if "to judge a model" not in warning] == []


def test_where_repeats_are_excluded_targets_that_repeat_are_left_out_and_counted(
    make_dataset: MakeDataset,
) -> None:
    histories = [[1, 2, 3, 4], [1, 2, 3, 1], [1, 2, 1, 3], [5, 6, 7, 7]]
    dataset = make_dataset(histories, [day * DAY for day in range(4)] * 4, repeats="exclude")
    for split in (leave_one_out(dataset), split_by_time(dataset, 3 * DAY, 2 * DAY)):
        assert (split.test.users.tolist(), split.test.left_out) == ([0, 2], 2)
        assert (split.valid.users.tolist(), split.valid.left_out) == ([0, 1, 3], 1)
        assert split.training_end("test").tolist() == [3, 7, 11, 15], (
            "they are cut and trained on all the same"
        )
    assert any("2 test items (50.0%) repeat" in each for each in split_warnings(dataset, split))
    kept = leave_one_out(make_dataset(histories, repeats="keep"))
    assert (len(kept.test), kept.test.left_out) == (4, 0)


@pytest.mark.parametrize(
    ("users", "told"), [(20, "Too few users to judge a model: only 20"), (300, "Only 300")]
)
def test_few_users_are_warned_of_with_how_much_chance_may_do(
    make_dataset: MakeDataset, users: int, told: str
) -> None:
    dataset = make_dataset([[(3 * user + place) % 60 + 1 for place in range(4)] for user in range(users)])
    (warning,) = split_warnings(dataset, leave_one_out(dataset))
    assert warning.startswith(f"{told} users are tested")
    assert f"{0.98 / users**0.5:.2f} either way" in warning


def test_actions_after_today_are_counted_and_the_latest_is_told(make_dataset: MakeDataset) -> None:
    year_2190 = 220 * 365 * DAY
    late = make_dataset([[0, 1, 2], [1, 2, 0]], times=[DAY, 2 * DAY, year_2190, 0, DAY, year_2190 - 1])
    (warning,) = (each for each in split_warnings(late, leave_one_out(late)) if "after today" in each)
    assert warning.startswith("2 actions lie after today (UTC), the latest is 2189-11-08. ")
    assert re.search(r'prepare with `before="\d{4}-\d\d-\d\d"`', warning)
    past = make_dataset([[0, 1, 2], [1, 2, 0]], times=[0, DAY, 2 * DAY, 0, DAY, 2 * DAY])
    assert not any("after today" in each for each in split_warnings(past, leave_one_out(past)))


def test_of_very_many_users_the_same_sample_is_asked_in_every_part(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    dataset = make_dataset([rng.permutation(50)[:12].tolist() for _ in range(400)])
    everybody = leave_one_out(dataset)
    monkeypatch.setattr(splits, "MOST_USERS", 100)
    split = leave_one_out(dataset)
    assert len(split.test) == len(split.valid) == 100
    assert split.test.not_asked == len(everybody.test) - 100
    assert split.test.users.tolist() == split.valid.users.tolist() == sorted(set(split.test.users.tolist()))
    assert split.test.positions.tolist() == everybody.test.positions[split.test.users].tolist()
    assert leave_one_out(dataset).test.users.tolist() == split.test.users.tolist()
    assert split.test_cut.tolist() == everybody.test_cut.tolist(), "training sees what it would see"
    monkeypatch.setattr(blocks, "ACTIONS_AT_ONCE", 500)
    in_blocks = leave_one_out(dataset)
    assert in_blocks.test.users.tolist() == split.test.users.tolist()
    assert in_blocks.test.not_asked == split.test.not_asked
    assert 150 < split.test.users.mean() < 250, "drawn from all of them"
    assert any("Of 400 users who can be tested, 100 are" in each for each in split_warnings(dataset, split))


@given(
    st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 5), min_size=1, max_size=60),
    st.floats(0, 1),
)
def test_a_share_of_times_is_found_in_blocks_as_by_numpy(times: list[int], share: float) -> None:
    values = np.array(times)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "ACTIONS_AT_ONCE", 7)
        patch.setattr(blocks, "INTERVALS", 5)
        found = blocks.nth_smallest(values, int(np.ceil((len(values) - 1) * share)))
    assert found == np.quantile(values, share, method="higher")
