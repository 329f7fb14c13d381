import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.histories import Histories
from bert4rec.errors import UsageError
from bert4rec.kernels.activate import activated
from bert4rec.models.attention import JoinedLayout, PackedLayout, RotaryLayout
from bert4rec.models.bert4rec_plus import BERT4RecPlus, GatedLayer
from bert4rec.models.history_batch import PackedHistories, PaddedHistories
from bert4rec.settings.config import make_config
from tests.models.tiny import can_tell, learns_the_cycle, untrained
from tests.training.tiny import CPU

WAYS = ("mask", "last", "both")
WITHOUT_DROPOUT = tuple(f"model.{place}_dropout=0" for place in ("embedding", "hidden", "attention"))
HISTORIES = PackedHistories(Histories.from_lists([[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9]]), CPU)
MASK = 10
"""One above the nine items of the tiny models."""


def model_with(*settings: str) -> BERT4RecPlus:
    model = untrained("bert4rec+", *settings)
    assert isinstance(model, BERT4RecPlus)
    return model.double()


def packed(lengths: list[int], *, causal: bool) -> PackedLayout:
    """Every token is wanted."""
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return PackedLayout(bounds, 8, torch.arange(sum(lengths), dtype=torch.int32), bounds, 8, causal=causal)


@pytest.mark.parametrize("ask", WAYS)
def test_a_cycle_is_learned_perfectly_however_it_is_asked(ask: str) -> None:
    settings = ("model.heads=2", "model.max_length=8", "training.learning_rate=1e-2", *WITHOUT_DROPOUT)
    assert learns_the_cycle("bert4rec+", f"model.ask={ask}", *settings)


def test_it_sees_items_in_their_order_and_is_blind_to_the_user() -> None:
    assert not can_tell("bert4rec+", (0, [1, 2, 3]), (1, [1, 2, 3]))
    assert can_tell("bert4rec+", (0, [1, 2, 3]), (0, [2, 1, 3]))
    assert can_tell("bert4rec+", (0, [1, 2, 3]), (0, [2, 3]))
    # [mask] takes one of the eight places, whichever way it is asked.
    assert not can_tell("bert4rec+", (0, [9, 1, 2, 3, 4, 5, 6, 7]), (0, [1, 2, 3, 4, 5, 6, 7]))


def test_asked_by_both_the_query_is_the_mean_of_the_two() -> None:
    by_mask, by_last, by_both = (model_with(f"model.ask={ask}").queries(HISTORIES) for ask in WAYS)
    assert not torch.allclose(by_mask, by_last)
    torch.testing.assert_close(by_both, (by_mask + by_last) / 2)


def test_asked_by_last_it_is_the_causal_state_of_the_newest_item() -> None:
    model = model_with("model.ask=last")
    states = model.encode(torch.tensor([3, 1, 4]), torch.arange(3), packed([3], causal=True))
    asked = model.queries(PackedHistories(Histories.from_lists([[3, 1, 4]]), CPU))
    torch.testing.assert_close(asked[0], states[-1])


@pytest.mark.parametrize("changed", range(5))
def test_looking_back_a_later_item_never_changes_what_was_thought_before(changed: int) -> None:
    """Beside a history that is read in both directions, as in joint training."""
    model, items = model_with(), torch.tensor([3, MASK, 4, 1, 5, 9, 2, 6, 5, 8])
    layout = JoinedLayout(packed([5], causal=False), packed([5], causal=True), num_tokens=5)
    positions = torch.arange(5).repeat(2)
    before = model.encode(items, positions, layout)
    other = items.clone()
    other[5 + changed] = 7
    after = model.encode(other, positions, layout)
    is_same = (before == after).all(dim=1)
    assert is_same.tolist() == [True] * (5 + changed) + [False] * (5 - changed)


def test_looking_both_ways_every_item_changes_every_state() -> None:
    model, items = model_with(), torch.tensor([3, MASK, 4, 1, 5, 9, 2, 6, 5, 8])
    layout = JoinedLayout(packed([5], causal=False), packed([5], causal=True), num_tokens=5)
    positions = torch.arange(5).repeat(2)
    before, items[3] = model.encode(items, positions, layout), 7
    after = model.encode(items, positions, layout)
    assert (before == after).all(dim=1).tolist() == [False] * 5 + [True] * 5


def test_two_batches_side_by_side_are_read_as_each_alone() -> None:
    model, items = model_with(), torch.tensor([3, MASK, 4, 1, 5, 9, 2, 6, 5, 8])
    positions = torch.cat([torch.arange(4), torch.arange(6)])
    first, second = packed([4], causal=False), packed([2, 4], causal=True)
    alone = [
        model.encode(items[:4], positions[:4], first),
        model.encode(items[4:], positions[4:], second),
    ]
    together = model.encode(items, positions, JoinedLayout(first, second, num_tokens=4))
    torch.testing.assert_close(together, torch.cat(alone))


def test_only_the_distance_between_items_counts_not_where_they_stand() -> None:
    model, items = model_with(), torch.tensor([3, 1, 4, 1, 5])
    layout = packed([5], causal=False)
    early, late = (model.encode(items, torch.arange(5) + shift, layout) for shift in (0, 3))
    torch.testing.assert_close(early, late)
    spread = model.encode(items, torch.tensor([0, 2, 3, 4, 5]), layout)
    assert not torch.allclose(early, spread)


def test_queries_and_keys_are_turned_as_complex_numbers_are() -> None:
    """A pair of channels is a complex number, and position p multiplies it with e to the power of i p w."""
    query, key, value = torch.randn(
        3, 4, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    angles = RotaryLayout.angles(4, 6)
    assert angles[1].tolist() == pytest.approx([1, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3)])

    def turned(x: Tensor) -> Tensor:
        as_complex = torch.complex(x[..., :3], x[..., 3:]) * torch.exp(1j * angles.double())[:, None]
        return torch.cat([as_complex.real, as_complex.imag], dim=-1)

    plain = packed([4], causal=True)
    rotary = RotaryLayout(plain, torch.arange(len(angles)), angles.cos(), angles.sin())
    ours, reference = (
        layout.attend(*qkv, dropout=0.0, wanted_only=False)
        for layout, qkv in ((rotary, (query, key, value)), (plain, (turned(query), turned(key), value)))
    )
    torch.testing.assert_close(ours, reference, atol=1e-6, rtol=1e-6)


def test_the_feed_forward_network_has_a_gate_and_about_as_many_weights_as_the_papers() -> None:
    config = make_config("bert4rec+", {"model": {"dim": 48, "heads": 4}}).model
    layer = GatedLayer(config)  # type: ignore[arg-type]
    x = torch.randn(7, 48)
    matrix, bias = layer.widen.weight, layer.widen.bias
    inner = len(matrix) // 2
    gate, open_ = F.linear(x, matrix[:inner], bias[:inner]), F.linear(x, matrix[inner:], bias[inner:])
    wide, _ = activated(x, layer.widen, has_gate=layer.has_gate)
    torch.testing.assert_close(wide, gate * torch.sigmoid(gate) * open_)
    assert 3 * 48 * inner == 2 * 48 * 4 * 48


def test_attention_is_that_of_the_question() -> None:
    history = PaddedHistories(torch.tensor([[3, 1, 4]]))
    by_mask, by_last, by_both = (model_with(f"model.ask={ask}").attention(history) for ask in WAYS)
    assert by_mask.shape == by_last.shape == (1, 2, 2, 4)
    assert by_mask[..., -1].all()
    assert not by_last[..., -1].any(), "the newest item is asked, and there is nothing behind it"
    torch.testing.assert_close(by_both, (by_mask + by_last) / 2)


def test_heads_of_an_odd_width_are_refused() -> None:
    with pytest.raises(UsageError, match=r"heads of 3 channels; it must be an even number"):
        make_config("bert4rec+", {"model": {"dim": 12, "heads": 4}})
