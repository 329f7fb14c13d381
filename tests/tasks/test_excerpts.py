"""Batches are the same whether all data is at hand or stays in a memory map."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.settings.objectives import Cloze
from bert4rec.tasks import batches as batches_module
from bert4rec.tasks import task
from bert4rec.tasks.batches import Batches
from bert4rec.tasks.cloze import MaskedItems
from bert4rec.tasks.excerpts import Excerpt, MappedSequences, Sequences, read_excerpt
from bert4rec.tasks.next_item import NextItems, NoNegatives, cut_followed_windows
from bert4rec.tasks.task import TaskInputs
from bert4rec.tasks.windows import cut_windows
from tests.training.tiny import CPU

LENGTHS = np.random.default_rng(0).integers(2, 40, 300)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
ITEMS = np.arange(1, OFFSETS[-1] + 1, dtype=np.int32)
"""No item occurs twice, so an item says where it came from."""


def masked(sequences: Sequences) -> Batches:
    windows = cut_windows(OFFSETS[:-1], OFFSETS[1:], max_length=10, step_share=0.5)
    rule = MaskedItems(Cloze(0.3, last_item_share=0.1, prefix_share=0.3), len(ITEMS) + 1)
    return Batches(sequences, windows, rule, max_length=10, batch_size=16, seed=3, block_tokens=1000)


def followed(sequences: Sequences) -> Batches:
    windows = cut_followed_windows(OFFSETS[:-1], OFFSETS[1:], max_length=10, step_share=0.5)
    rule = NextItems(NoNegatives())
    return Batches(sequences, windows, rule, max_length=10, batch_size=16, seed=3, block_tokens=1000)


@pytest.fixture
def mapped(tmp_path: Path) -> MappedSequences:
    np.save(tmp_path / "items.npy", ITEMS)
    return MappedSequences(np.load(tmp_path / "items.npy", mmap_mode="r"), CPU)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=30))
def test_an_excerpt_has_all_pieces_of_the_whole(pieces: list[tuple[int, int]]) -> None:
    begin, length = np.array(pieces).T
    excerpt = Excerpt(*map(torch.from_numpy, read_excerpt(ITEMS, begin, begin + length)))
    shift = excerpt.shift(torch.from_numpy(begin)).tolist()
    for (start, size), further in zip(pieces, shift, strict=True):
        found = excerpt.items[start + further : start + further + size]
        assert found.tolist() == ITEMS[start : start + size].tolist()
    wanted = {place for start, size in pieces for place in range(start, start + size)}
    assert len(excerpt.items) == len(wanted), "and nothing twice"


@pytest.mark.parametrize("make", [masked, followed])
def test_batches_from_a_memory_map_are_those_of_data_at_hand(
    make: Callable[[Sequences], Batches], mapped: MappedSequences
) -> None:
    at_hand, streamed = make(torch.from_numpy(ITEMS)), make(mapped)
    steps = [*range(0, 3 * at_hand.steps_per_round, at_hand.block_steps), 5, 200, 0]
    assert at_hand.block_steps < at_hand.steps_per_round, "several blocks in a round"
    for step in steps:  # In turn, as a training asks, and here and there, as those do that are resumed.
        first, rows = at_hand.block(step)
        found, same = streamed.block(step)
        assert found == first
        assert torch.equal(rows, same)


def test_an_error_while_reading_ahead_is_raised_where_batches_are_asked_for(mapped: MappedSequences) -> None:
    stream = masked(mapped)
    stream.block(0)
    assert stream._excerpts
    assert stream._excerpts._thread
    stream._excerpts._thread.join()
    stream._excerpts._items = ITEMS.reshape(1, -1)  # Something that cannot be read.
    stream.block(stream.block_steps)
    with pytest.raises((ValueError, IndexError)):
        stream.block(2 * stream.block_steps)
    assert stream._excerpts._thread not in threading.enumerate()


def test_large_data_stays_in_its_memory_map_and_small_data_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset.from_sequences(ITEMS, OFFSETS).save(tmp_path / "d")
    inputs = TaskInputs(dataset, OFFSETS[1:], config=None, seed=0, device=CPU, dtype=None)  # type: ignore[arg-type]
    at_hand = inputs.sequences()
    assert isinstance(at_hand, Tensor)
    assert at_hand.tolist() == ITEMS.tolist()
    monkeypatch.setattr(task, "BYTES_AT_HAND", 100)
    assert isinstance(inputs.sequences(), MappedSequences)


def test_very_many_windows_are_gone_over_in_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they take every window once, but for those that do not fill a batch; and so again, in another order."""
    monkeypatch.setattr(batches_module, "MOST_WINDOWS_A_ROUND", 200)
    monkeypatch.setattr(batches_module, "MIN_STEPS_A_ROUND", 4)
    stream = followed(torch.from_numpy(ITEMS))
    assert stream.parts > 2

    def begins(number: int) -> list[int]:
        samples = stream._draw_round(16, stream._generator(number), number)
        assert samples.begin.shape == (stream.steps_per_round, 16)
        found: list[int] = samples.begin.flatten().tolist()
        return found

    passes = [
        [begin for part in range(stream.parts) for begin in begins(first + part)]
        for first in (0, stream.parts)
    ]
    for taken in passes:
        assert len(set(taken)) == len(taken)
        assert 0 <= len(stream.length) - len(taken) < 16 * stream.parts
    assert passes[0] != passes[1]
    assert torch.equal(stream.block(0)[1], followed(torch.from_numpy(ITEMS)).block(0)[1])
