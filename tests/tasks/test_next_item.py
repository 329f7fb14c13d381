from itertools import pairwise

import numpy as np
import torch

from bert4rec.data.dataset import PADDING
from bert4rec.tasks.batches import Batches
from bert4rec.tasks.next_item import (
    Negatives,
    NextItems,
    NoNegatives,
    SharedNegatives,
    UnchosenNegatives,
    cut_followed_windows,
)
from bert4rec.tasks.sampling import Chosen, ItemSampler, count_items

MAX_LENGTH = 6
LENGTHS = np.random.default_rng(0).integers(1, 15, 60)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
NUM_ITEMS = int(OFFSETS[-1])
SEQUENCES = torch.arange(1, NUM_ITEMS + 1, dtype=torch.int32)
"""No item occurs twice, so an item says where it came from, and n + 1 follows n."""
USER_OF = torch.from_numpy(np.repeat(np.arange(len(LENGTHS)), LENGTHS))


def batches(negatives: Negatives | None = None) -> Batches:
    windows = cut_followed_windows(OFFSETS[:-1], OFFSETS[1:], max_length=MAX_LENGTH, step_share=0.5)
    objective = NextItems(negatives or NoNegatives())
    return Batches(SEQUENCES, windows, objective, max_length=MAX_LENGTH, batch_size=8, seed=0)


def test_windows_are_followed_by_an_action_of_the_same_user() -> None:
    begin, end = np.array([0, 1, 3]), np.array([1, 3, 12])
    windows = cut_followed_windows(begin, end, max_length=4, step_share=0.5)
    # A single action is followed by nothing.
    assert windows.begin.tolist() == [1, 7, 5, 3]
    assert windows.length.tolist() == [1, 4, 4, 4]


def test_at_every_item_the_one_that_follows_is_asked_for() -> None:
    stream = batches()
    asked = set()
    for row in stream.block(0)[1]:
        batch = stream.shape.read(row)
        assert batch.layout.causal
        assert torch.equal(batch.layout.bounds, batch.layout.row_bounds)
        assert torch.equal(batch.layout.rows, torch.arange(stream.shape.tokens))
        is_dead = batch.tokens == PADDING
        assert is_dead.any()
        assert torch.equal(batch.targets, torch.where(is_dead, PADDING, batch.tokens + 1))
        asked |= set(batch.targets[~is_dead].tolist())
    assert asked == set(range(1, NUM_ITEMS + 1)) - set((OFFSETS[:-1] + 1).tolist())


def test_the_newest_item_of_a_window_has_the_last_position() -> None:
    stream = batches()
    batch = stream.shape.read(stream.block(0)[1][0])
    for end in batch.layout.bounds[1 : stream.shape.samples + 1].tolist():
        assert batch.positions[end - 1] == MAX_LENGTH - 1


def test_no_two_tokens_of_a_batch_are_of_different_users_in_one_sequence() -> None:
    stream = batches()
    batch = stream.shape.read(stream.block(0)[1][0])
    bounds = batch.layout.bounds[: stream.shape.samples + 1].tolist()
    for begin, end in pairwise(bounds):
        users = USER_OF[batch.targets[begin:end] - 1]
        assert set(users.tolist()) == set(USER_OF[batch.tokens[begin:end] - 1].tolist())
        assert len(set(users.tolist())) == 1


def test_the_softmax_needs_nothing_drawn() -> None:
    stream = batches()
    assert stream.shape.negatives == 0
    assert len(stream.shape.read(stream.block(0)[1][0]).negatives) == 0


def test_each_answer_gets_an_item_of_its_own_that_the_user_did_not_choose() -> None:
    chosen = Chosen(USER_OF, SEQUENCES, NUM_ITEMS)
    sampler = ItemSampler(count_items(SEQUENCES, NUM_ITEMS), exponent=0)
    stream = batches(UnchosenNegatives(sampler, USER_OF, chosen))
    assert stream.shape.negatives == stream.shape.rows
    for row in stream.block(0)[1]:
        batch = stream.shape.read(row)
        alive = batch.targets != PADDING
        users = USER_OF[batch.targets[alive] - 1]
        assert not chosen.contains(users, batch.negatives[alive]).any()
        assert len(batch.negatives.unique()) > len(batch.negatives) // 2


def test_a_batch_shares_some_of_its_own_answers_and_some_drawn_items() -> None:
    rare = ItemSampler(count_items(torch.tensor([NUM_ITEMS]), NUM_ITEMS), exponent=1)
    stream = batches(SharedNegatives(8, rare, extra=5))
    assert stream.shape.negatives == 8 + 5
    own = set()
    for row in stream.block(0)[1]:
        batch = stream.shape.read(row)
        assert set(batch.negatives[:8].tolist()) <= set(batch.targets.tolist())
        assert set(batch.negatives[8:].tolist()) == {NUM_ITEMS}
        own |= set(batch.negatives[:8].tolist())
    assert len(own) > NUM_ITEMS // 2
