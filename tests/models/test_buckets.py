"""Attention in buckets must be attention inside each sequence, whatever their lengths."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.models import buckets
from bert4rec.models.buckets import Buckets

HEADS, CHANNELS = 2, 4
SEQUENCES = st.lists(st.tuples(st.integers(1, 90), st.integers(0, 5)), min_size=1, max_size=30)
"""Tokens of each, and how many of them ask."""


def bounds(sizes: list[int]) -> Tensor:
    return F.pad(torch.tensor(sizes).cumsum(0), (1, 0)).int()


def random(tokens: int) -> Tensor:
    return torch.randn(tokens, HEADS, CHANNELS, dtype=torch.float64, requires_grad=True)


def one_by_one(
    query: Tensor, key: Tensor, value: Tensor, asked: list[int], seen: list[int], *, causal: bool
) -> Tensor:
    found = []
    for q, k, v in zip(query.split(asked), key.split(seen), value.split(seen), strict=True):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # noqa: PLW2901
        found.append(F.scaled_dot_product_attention(q, k, v, is_causal=causal)[0].transpose(0, 1))
    return torch.cat(found)


@given(SEQUENCES, st.booleans())
def test_every_sequence_is_attended_to_as_if_it_were_alone_and_learned_from_alike(
    sequences: list[tuple[int, int]], causal: bool
) -> None:
    seen = [tokens for tokens, _ in sequences]
    asked = seen if causal else [min(pair) for pair in sequences]
    if not sum(asked):
        return
    inputs = random(sum(asked)), random(sum(seen)), random(sum(seen))
    ours = Buckets(bounds(asked), bounds(seen), causal=causal).attend(*inputs, dropout=0.0)
    expected = one_by_one(*inputs, asked, seen, causal=causal)
    torch.testing.assert_close(ours, expected)
    above = torch.randn_like(ours)
    for found, right in zip(
        torch.autograd.grad(ours, inputs, above), torch.autograd.grad(expected, inputs, above), strict=True
    ):
        torch.testing.assert_close(found, right)


def test_rows_that_have_nothing_to_look_at_are_numbers() -> None:
    attended = Buckets(bounds([2, 3]), bounds([2, 0]), causal=False).attend(
        random(5), random(2), random(2), 0.0
    )
    assert attended.isfinite().all()


@pytest.mark.parametrize(("most", "expected"), [(0, [0, 2, 3, 4]), (10_000_000, [0]), (5_000, [0, 2])])
def test_the_less_may_be_wasted_the_more_buckets_there_are(
    most: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "PAIRS_OF_A_CALL", most)
    assert buckets._cuts([100, 100, 20, 10, 5]) == expected
