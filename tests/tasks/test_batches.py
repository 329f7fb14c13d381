from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.settings.objectives import Cloze
from bert4rec.tasks.batches import Batches, BatchShape, PackedBatch, SequenceSamples, pack
from bert4rec.tasks.cloze import MaskedItems
from bert4rec.tasks.windows import cut_windows

NUM_ITEMS = 10_000
MASK = NUM_ITEMS + 1
MAX_LENGTH = 20


def batches(
    *,
    users: int = 300,
    cloze: Cloze | None = None,
    seed: int = 0,
    batch_size: int = 32,
    block_tokens: int = 4000,
) -> Batches:
    """Users with histories of 1 to 39 items. No item occurs twice, so an item says where it came from."""
    lengths = np.random.default_rng(0).integers(1, 40, users)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    windows = cut_windows(offsets[:-1], offsets[1:], max_length=MAX_LENGTH, step_share=0.5)
    sequences = torch.arange(1, int(offsets[-1]) + 1, dtype=torch.int32)
    return Batches(
        sequences,
        windows,
        MaskedItems(cloze or Cloze(0.3, last_item_share=0.1, prefix_share=0.0), MASK),
        max_length=MAX_LENGTH,
        batch_size=batch_size,
        seed=seed,
        block_tokens=block_tokens,
    )


def restored(batch: PackedBatch) -> Tensor:
    """The tokens with the hidden items put back."""
    tokens = batch.tokens.clone()
    is_real = batch.targets != PADDING
    tokens[batch.layout.rows[is_real]] = batch.targets[is_real]
    return tokens


def alive(batch: PackedBatch, shape: BatchShape) -> list[tuple[int, int]]:
    bounds = batch.layout.bounds.tolist()
    pairs = list(pairwise(bounds[: shape.samples + 1]))
    assert all(begin < end for begin, end in pairs)
    return pairs


ALL_KINDS = [
    Cloze(0.3, 0.1, 0.0),
    Cloze(0.6, 0.0, 0.0),
    Cloze(0.2, 0.1, prefix_share=0.5),
    Cloze(1.0, 1.0, 0.0),
]


@pytest.mark.parametrize("cloze", ALL_KINDS)
def test_every_sequence_of_a_batch_is_a_piece_of_a_history_with_items_hidden(cloze: Cloze) -> None:
    stream = batches(cloze=cloze)
    for row in stream.block(0)[1]:
        batch = stream.shape.read(row)
        whole = restored(batch)
        assert MASK not in whole
        for number, (begin, end) in enumerate(alive(batch, stream.shape)):
            items = whole[begin:end]
            assert torch.equal(items, torch.arange(int(items[0]), int(items[0]) + end - begin))
            assert batch.positions[begin:end].tolist() == list(range(MAX_LENGTH - (end - begin), MAX_LENGTH))
            first_row, last_row = batch.layout.row_bounds[number : number + 2].tolist()
            rows = batch.layout.rows[first_row:last_row]
            hidden = begin + torch.nonzero(batch.tokens[begin:end] == MASK).squeeze(1)
            assert torch.equal(rows.sort().values.long(), hidden)
            if len(hidden) > 1:
                assert len(hidden) == round((end - begin) * cloze.mask_probability)
            else:
                assert len(hidden) == 1
            if cloze.last_item_share == 1:
                assert hidden.tolist() == [end - 1]


@pytest.mark.parametrize("cloze", ALL_KINDS)
def test_batches_have_one_shape_and_waste_little_of_it(cloze: Cloze) -> None:
    stream = batches(cloze=cloze)
    shape = stream.shape
    for step in range(0, stream.steps_per_round, stream.block_steps):
        block = stream.block(step)[1]
        assert block.shape[1] == shape.width
        for row in block:
            batch = shape.read(row)
            bounds, row_bounds = batch.layout.bounds, batch.layout.row_bounds
            assert bounds[-1] == shape.tokens
            assert row_bounds[-1] == shape.rows
            assert bounds.diff().max() <= batch.layout.max_length
            assert row_bounds.diff().max() <= batch.layout.max_rows
            assert bounds[shape.samples] > 0.85 * shape.tokens
            assert row_bounds[shape.samples] > 0.7 * shape.rows


def test_dead_tokens_are_padding_and_dead_rows_have_no_target() -> None:
    stream = batches()
    batch = stream.shape.read(stream.block(0)[1][0])
    num_tokens = int(batch.layout.bounds[stream.shape.samples])
    num_rows = int(batch.layout.row_bounds[stream.shape.samples])
    assert num_tokens < stream.shape.tokens
    assert (batch.tokens[num_tokens:] == PADDING).all()
    assert (batch.tokens[:num_tokens] != PADDING).all()
    assert (batch.targets[num_rows:] == PADDING).all()
    assert (batch.targets[:num_rows] != PADDING).all()
    assert (batch.layout.rows[num_rows:] == stream.shape.tokens - 1).all()


def test_a_round_takes_every_window_equally_often_and_trains_on_every_item() -> None:
    stream = batches(cloze=Cloze(1.0, last_item_share=0.0, prefix_share=0.0))
    left_out = len(stream.length) * stream.repeats - stream.steps_per_round * stream.shape.samples
    assert 0 <= left_out < stream.shape.samples
    counts = torch.zeros(NUM_ITEMS, dtype=torch.int64)
    begins: list[int] = []
    for first in range(0, stream.steps_per_round, stream.block_steps):
        for row in stream.block(first)[1]:
            batch = stream.shape.read(row)
            counts += torch.bincount(batch.targets, minlength=NUM_ITEMS)
            begins += [int(restored(batch)[begin]) for begin, _ in alive(batch, stream.shape)]
    assert isinstance(stream.sequences, Tensor)
    assert counts[1 : len(stream.sequences) + 1].min() >= stream.repeats - left_out
    taken = np.unique(begins, return_counts=True)[1]
    assert len(begins) == stream.steps_per_round * stream.shape.samples
    assert taken.max() == stream.repeats
    assert taken.sum() == len(stream.length) * stream.repeats - left_out


def test_the_first_item_can_be_hidden_and_is_then_trained_on() -> None:
    stream = batches(cloze=Cloze(0.3, last_item_share=0.0, prefix_share=0.0))
    batch = stream.shape.read(stream.block(0)[1][0])
    starts = [begin for begin, end in alive(batch, stream.shape) if end - begin > 1]
    hidden_starts = [start for start in starts if batch.tokens[start] == MASK]
    assert hidden_starts
    assert all(batch.targets[batch.layout.rows == start].item() != PADDING for start in hidden_starts)


def test_the_same_seed_gives_the_same_batches_wherever_one_starts() -> None:
    straight, resumed = batches(seed=3), batches(seed=3)
    last = straight.steps_per_round + 5
    for step in (0, straight.block_steps, last):
        first, expected = straight.block(step)
        assert first <= step < first + len(expected)
    assert resumed.block(last)[0] == first
    assert torch.equal(resumed.block(last)[1], expected)


def test_other_seeds_rounds_and_blocks_are_other_batches() -> None:
    stream = batches(seed=3)
    block = stream.block(0)[1]
    assert not torch.equal(block, batches(seed=4).block(0)[1])
    assert not torch.equal(block, stream.block(stream.steps_per_round)[1])
    assert not torch.equal(block[:5], stream.block(stream.block_steps)[1][:5])


def test_masks_are_drawn_afresh_for_the_same_window() -> None:
    stream = batches(users=1, batch_size=4, cloze=Cloze(0.5, last_item_share=0.0, prefix_share=0.0))
    patterns = {tuple((stream.shape.read(row).tokens == MASK).tolist()) for row in stream.block(0)[1]}
    assert len(patterns) > len(stream.block(0)[1]) // 2


def test_less_data_than_a_batch_is_taken_several_times() -> None:
    stream = batches(users=3, batch_size=16)
    batch = stream.shape.read(stream.block(0)[1][0])
    assert len(alive(batch, stream.shape)) == 16


def test_a_sample_that_does_not_fit_is_left_out_whole() -> None:
    samples = SequenceSamples(
        begin=torch.tensor([[0, 8, 14]]),
        length=torch.tensor([[8, 6, 4]]),
        num_targets=torch.tensor([[2, 2, 1]]),
        last_only=torch.tensor([[False, False, True]]),
    )
    shape = BatchShape(
        samples=3, dead=2, tokens=16, rows=6, max_length=8, max_rows=3, negatives=0, causal=False
    )
    generator, hiding = torch.Generator().manual_seed(0), MaskedItems(Cloze(), 99)
    batch = shape.read(pack(torch.arange(1, 19, dtype=torch.int32), samples, shape, hiding, generator)[0])
    assert batch.layout.bounds.tolist() == [0, 8, 14, 14, 16, 16]
    assert batch.layout.row_bounds.tolist() == [0, 2, 4, 4, 6, 6]
    assert restored(batch).tolist() == [*range(1, 15), 0, 0]


@pytest.mark.parametrize("cloze", ALL_KINDS)
def test_on_a_cpu_a_batch_is_learned_without_what_is_dead(cloze: Cloze) -> None:
    made = batches(cloze=cloze)
    for row in made.block(0)[1]:
        whole, living = made.shape.read(row), made.shape.read_alive(row)
        sizes = living.layout.bounds.diff()
        assert sizes.tolist() == [end - begin for begin, end in alive(whole, made.shape)]
        assert len(living.tokens) == len(living.positions) == sizes.sum()
        assert living.layout.max_length == sizes.max()
        assert len(living.targets) == len(living.layout.rows) == living.layout.row_bounds[-1]
        assert torch.equal(living.targets, whole.targets[whole.targets != PADDING])
        assert torch.equal(restored(living), restored(whole)[: len(living.tokens)])
