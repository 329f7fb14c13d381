import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.errors import UsageError
from bert4rec.settings.objectives import Cloze
from bert4rec.tasks.batches import SequenceSamples
from bert4rec.tasks.cloze import MaskedItems, shuffle_inside


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(cloze: Cloze, begin: Tensor, length: Tensor) -> SequenceSamples:
    return MaskedItems(cloze, mask_number=99).draw(begin, length, generator())


def many(length: int, count: int = 4000) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, dtype=torch.int64), torch.full((count,), length)


@pytest.mark.parametrize(
    ("length", "probability", "expected"), [(1, 0.2, 1), (2, 0.2, 1), (10, 0.2, 2), (13, 0.6, 8), (5, 1.0, 5)]
)
def test_the_share_of_hidden_items_is_rounded_and_never_none(
    length: int, probability: float, expected: int
) -> None:
    samples = draw(Cloze(probability, last_item_share=0.0, prefix_share=0.0), *many(length, 10))
    assert set(samples.num_targets.tolist()) == {expected}
    assert not samples.last_only.any()


@given(st.floats(0.001, 1), st.lists(st.integers(1, 2000), min_size=1))
@example(0.15, [190])  # in float32 this is 28.500002, in float64 28.5
@example(0.7, [45])
def test_no_sample_hides_more_than_the_bound_says_and_the_longest_hides_just_that(
    probability: float, lengths: list[int]
) -> None:
    hiding = MaskedItems(Cloze(probability, last_item_share=0.0, prefix_share=0.0), mask_number=99)
    samples = hiding.draw(torch.zeros(len(lengths), dtype=torch.int64), torch.tensor(lengths), generator())
    assert samples.num_targets.max().item() == hiding.max_targets(max(lengths))
    assert samples.num_targets.tolist() == [max(1, round(length * probability)) for length in lengths]


def test_the_set_share_of_samples_hides_the_last_item_only() -> None:
    samples = draw(Cloze(0.5, last_item_share=0.25, prefix_share=0.0), *many(20))
    assert samples.last_only.double().mean().item() == pytest.approx(0.25, abs=0.03)
    assert set(samples.num_targets[samples.last_only].tolist()) == {1}
    assert set(samples.num_targets[~samples.last_only].tolist()) == {10}
    assert set(samples.length.tolist()) == {20}


def test_prefixes_are_cut_anywhere_but_keep_an_item_to_look_at() -> None:
    samples = draw(Cloze(0.5, last_item_share=0.0, prefix_share=0.5), *many(6))
    assert samples.last_only.double().mean().item() == pytest.approx(0.5, abs=0.03)
    counts = torch.bincount(samples.length[samples.last_only], minlength=7)
    assert counts[:2].sum() == 0
    assert counts[2:].min() > 0.8 * counts[2:].double().mean()
    assert set(samples.length[~samples.last_only].tolist()) == {6}


def test_a_window_of_one_item_cannot_be_cut() -> None:
    samples = draw(Cloze(0.5, last_item_share=0.0, prefix_share=1.0), *many(1, 50))
    assert set(samples.length.tolist()) == {1}


def test_tokens_are_shuffled_inside_their_sequence_and_evenly() -> None:
    sequence = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2]]).repeat(3000, 1) + 3 * torch.arange(3000)[:, None]
    shuffled = shuffle_inside(sequence, torch.zeros_like(sequence, dtype=torch.bool), generator())
    assert torch.equal(sequence.gather(1, shuffled), sequence)
    assert torch.equal(shuffled.sort(1).values, torch.arange(8).expand(3000, 8))
    first_of_four = torch.bincount(shuffled[:, 4] - 4, minlength=4)
    assert first_of_four.min() > 0.85 * 750


def test_a_token_can_be_put_first() -> None:
    sequence = torch.tensor([[0, 0, 0, 1, 1]]).repeat(50, 1) + 2 * torch.arange(50)[:, None]
    is_first = torch.tensor([False, False, True, False, True]).expand(50, 5)
    shuffled = shuffle_inside(sequence, is_first, generator())
    assert (shuffled[:, 0] == 2).all()
    assert (shuffled[:, 3] == 4).all()


def test_shares_that_sum_to_more_than_one_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"last_item_share = 0.6 and objective.prefix_share = 0.6 must not sum"
    ):
        Cloze(last_item_share=0.6, prefix_share=0.6)
