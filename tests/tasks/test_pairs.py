from itertools import pairwise

import numpy as np
import pytest
import torch

from bert4rec.data.dataset import PADDING, Dataset
from bert4rec.data.splits import leave_one_out
from bert4rec.settings.objectives import Pairwise, Pointwise, SkippingPointwise
from bert4rec.tasks.pairs import PairBatches
from tests.evaluation.tiny import dataset_of
from tests.training.tiny import CPU

LENGTHS = np.random.default_rng(0).integers(1, 12, 25)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
NUM_ITEMS = 2 * int(OFFSETS[-1])
DATASET = dataset_of([list(range(begin + 1, end + 1)) for begin, end in pairwise(OFFSETS)], NUM_ITEMS)
"""No item occurs twice, so an item says where it came from. Half of the items are never chosen."""
Objective = Pairwise | Pointwise | SkippingPointwise


def batches(
    objective: Objective | None = None, *, context: int = 0, seed: int = 0, dataset: Dataset = DATASET
) -> PairBatches:
    return PairBatches(
        dataset,
        leave_one_out(dataset).training_end("valid"),
        objective or Pairwise(2),
        context=context,
        batch_size=16,
        seed=seed,
        device=CPU,
    )


def rows_of(stream: PairBatches, steps: int = 30) -> list[torch.Tensor]:
    found = []
    for step in range(steps):
        first, rows = stream.block(step)
        found.append(rows[step - first])
    return found


def training_actions(*, from_place: int = 0) -> list[int]:
    """Item numbers of the training part, from this place of each history on."""
    ends = leave_one_out(DATASET).training_end("valid").tolist()
    return [
        item + 1
        for begin, end in zip(OFFSETS[:-1], ends, strict=True)
        for item in range(begin + from_place, end)
    ]


def test_every_training_action_is_a_right_answer_equally_often_and_no_other_is() -> None:
    stream = batches()
    chosen = torch.cat([stream.read(row).chosen for row in rows_of(stream, 600)])
    counts = torch.bincount(chosen.flatten(), minlength=NUM_ITEMS + 1)
    expected = training_actions()
    assert counts.nonzero().flatten().tolist() == expected
    mean = 600 * 16 / len(expected)
    assert ((counts[expected] - mean).abs() < 5 * mean**0.5).all()


def test_a_model_that_looks_back_is_asked_only_where_there_is_something_to_see() -> None:
    stream = batches(context=1)
    chosen = torch.cat([stream.read(row).chosen for row in rows_of(stream, 300)])
    assert set(chosen.flatten().tolist()) == set(training_actions(from_place=1))


@pytest.mark.parametrize("context", [1, 4])
def test_before_the_answer_stand_the_users_last_items(context: int) -> None:
    stream = batches(context=context)
    for row in rows_of(stream):
        pair = stream.read(row)
        for user, before, (answer,) in zip(
            pair.users.tolist(), pair.context.tolist(), pair.chosen.tolist(), strict=True
        ):
            history = list(range(int(OFFSETS[user]) + 1, answer))[-context:]
            assert answer <= OFFSETS[user + 1]
            assert before == [PADDING] * (context - len(history)) + history


def test_the_items_that_follow_are_answers_too_until_the_training_part_ends() -> None:
    stream = batches(SkippingPointwise(negatives=2, targets=3), context=2)
    ends = leave_one_out(DATASET).training_end("valid")
    for row in rows_of(stream):
        pair = stream.read(row)
        assert pair.unchosen.shape == (16, 3, 2)
        for user, answers in zip(pair.users.tolist(), pair.chosen.tolist(), strict=True):
            following = [answers[0] + step for step in range(3)]
            assert answers == [item if item <= ends[user] else PADDING for item in following]


@pytest.mark.parametrize("objective", [Pairwise(3), Pointwise(3), Pairwise(3, exponent=0.5)])
def test_wrong_answers_were_not_chosen_in_the_training_part(objective: Objective) -> None:
    stream = batches(objective)
    ends = leave_one_out(DATASET).training_end("valid")
    for row in rows_of(stream):
        pair = stream.read(row)
        begin, end = (torch.from_numpy(each)[pair.users.long()] for each in (OFFSETS[:-1], ends))
        items = pair.unchosen.flatten(1)
        assert not ((items > begin[:, None]) & (items <= end[:, None])).any()
        assert len(items.unique()) > items.numel() // 4


@pytest.mark.parametrize("objective", [Pairwise(3), Pointwise(3), SkippingPointwise(negatives=3, targets=2)])
def test_where_repeats_are_kept_only_the_right_answers_of_the_moment_are_not_drawn(
    objective: Objective,
) -> None:
    """Everybody goes round three of twelve items: what comes another time is a wrong answer now."""
    favourites = dataset_of([[1, 2, 3] * 4, [4, 5, 6] * 4], 12, repeats="keep")
    stream = batches(objective, context=1, dataset=favourites)
    drawn = set()
    for row in rows_of(stream, 100):
        pair = stream.read(row)
        assert not (pair.unchosen.flatten(1)[:, :, None] == pair.chosen[:, None, :]).any()
        drawn |= set(pair.unchosen[pair.users == 0].flatten().tolist())
    assert drawn == set(range(1, 13))


def test_by_popularity_nothing_is_drawn_that_nobody_chose() -> None:
    stream = batches(Pairwise(4, exponent=1.0))
    drawn = torch.cat([stream.read(row).unchosen.flatten() for row in rows_of(stream)])
    assert set(drawn.tolist()) <= set(training_actions())
    stream = batches(Pairwise(4, exponent=0.0))
    drawn = torch.cat([stream.read(row).unchosen.flatten() for row in rows_of(stream)])
    assert (drawn > OFFSETS[-1]).double().mean() > 0.4


def test_a_step_has_the_same_batch_wherever_one_starts() -> None:
    straight, resumed = batches(seed=3), batches(seed=3)
    rows = rows_of(straight, 100)
    assert straight.block_steps < 100
    assert torch.equal(rows_of(resumed, 100)[77], rows[77])
    first, block = batches(seed=3).block(77)
    assert torch.equal(block[77 - first], rows[77])
    assert not torch.equal(rows[0], rows[straight.block_steps])
    assert not torch.equal(rows[0], rows_of(batches(seed=4), 1)[0])


def test_what_comes_after_the_training_part_decides_nothing() -> None:
    """Everybody's last two items are exchanged for others."""
    sequences = DATASET.sequences.copy()
    for begin, end in zip(leave_one_out(DATASET).training_end("valid"), OFFSETS[1:], strict=True):
        sequences[begin:end] = NUM_ITEMS - sequences[begin:end]
    other = Dataset(DATASET.path, DATASET.manifest, sequences, DATASET.offsets, None)
    assert not np.array_equal(DATASET.sequences, other.sequences)
    objective = SkippingPointwise(negatives=2, exponent=0.5, targets=3)
    one, two = (batches(objective, context=3, dataset=dataset) for dataset in (DATASET, other))
    for row, same in zip(rows_of(one), rows_of(two), strict=True):
        assert torch.equal(row, same)
        for ours, theirs in zip(vars(one.read(row)).values(), vars(two.read(same)).values(), strict=True):
            assert torch.equal(ours, theirs)
