import pytest
import torch
from torch import Tensor

from bert4rec.models.attention import PackedLayout, PaddedLayout
from bert4rec.models.bert4rec import Layer
from tests.evaluation.tiny import dataset_of
from tests.models.tiny import can_tell, fill, first_row, learns_the_cycle, untrained
from tests.training.tiny import make_task, tiny_config

WITHOUT_DROPOUT = tuple(f"model.{place}_dropout=0" for place in ("embedding", "hidden", "attention"))


@pytest.mark.parametrize("loss", ["binary", "cross-entropy"])
def test_a_cycle_is_learned_perfectly(loss: str) -> None:
    assert learns_the_cycle("sasrec", f"objective.loss={loss}", "model.max_length=8", *WITHOUT_DROPOUT)


@pytest.mark.parametrize(("loss", "expected"), [("binary", 1.787339), ("cross-entropy", 2.180656)])
def test_the_loss_is_the_one_computed_by_hand(loss: str, expected: float) -> None:
    """Where all layers say nothing, the norm of two numbers is (1, -1) or (-1, 1), whichever is larger.

    Items are (1, 0), (0, 1) and (0.5, 0). Scaled by √2, the first stays the first's also where (0, 1.2) is added
    for the position: so the state is (1, -1) after item 1 and (-1, 1) after item 2.
    Item 2 follows item 1 and is compared with item 3: scores -1 and 0.5. Item 3 follows item 2 and is compared
    with item 1: scores -0.5 and -1.

    Binary: 1.313262 + 0.974077 and 0.974077 + 0.313262.
    Cross-entropy: 1 + log(e + 1/e + √e) = 2.554957 and 0.5 + log(1/e + e + 1/√e) = 1.806356.
    """
    dataset = dataset_of([[1, 2, 3, 1, 1]], num_items=3)
    settings = ("model.dim=2", "model.heads=1", "training.batch_size=1", f"objective.loss={loss}")
    task = make_task(dataset, tiny_config(*settings, *WITHOUT_DROPOUT, model="sasrec"), "sasrec")
    for name, weight in task.model.named_parameters():
        if "norm" not in name:
            torch.nn.init.zeros_(weight)
    fill(task.model.item_table.weight, 9, 9, 1, 0, 0, 1, 0.5, 0, 9, 9)
    fill(task.model.position_table.weight, *(0, 1.2) * 8)
    row = first_row(task, [3, 1, 0, 0, 0, 0, 0, 0]) if loss == "binary" else task.block(0)[1][0]
    assert task.loss(row).item() == pytest.approx(expected, abs=1e-6)


def test_it_sees_items_in_their_order_and_is_blind_to_the_user() -> None:
    assert not can_tell("sasrec", (0, [1, 2, 3]), (1, [1, 2, 3]))
    assert can_tell("sasrec", (0, [1, 2, 3]), (0, [2, 1, 3]))
    assert can_tell("sasrec", (0, [1, 2, 3]), (0, [2, 3]))
    assert not can_tell("sasrec", (0, [9, 1, 2, 3, 4, 5, 6, 7, 8]), (0, [1, 2, 3, 4, 5, 6, 7, 8]))


def packed(lengths: list[int]) -> PackedLayout:
    """Every token is wanted."""
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return PackedLayout(bounds, 8, torch.arange(sum(lengths), dtype=torch.int32), bounds, 8, causal=True)


@pytest.mark.parametrize("changed", [1, 4])
def test_a_later_item_never_changes_what_was_thought_before(changed: int) -> None:
    """Two histories of five items end to end; one item of the first is exchanged."""
    model, layout = untrained("sasrec"), packed([5, 5])
    tokens, positions = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 1]), torch.arange(3, 8).repeat(2)
    other = tokens.clone()
    other[changed] = 9
    is_same = torch.isclose(
        model.encode(tokens, positions, layout), model.encode(other, positions, layout), atol=1e-5
    ).all(dim=1)
    assert is_same.tolist() == [True] * changed + [False] * (5 - changed) + [True] * 5


def states(layer: Layer, x: Tensor) -> Tensor:
    found: Tensor = layer(x, PaddedLayout(torch.tensor([[False, False, True, True, True]]), causal=True))
    return found


def test_nor_does_it_where_histories_are_padded() -> None:
    """The layer by itself: of the last one, a model computes the newest token alone."""
    layer = untrained("sasrec").layers[0]
    x = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0))
    whole = states(layer, x)
    assert torch.isfinite(whole).all()
    torch.testing.assert_close(whole[0, 2:], layer(x[0, 2:], packed([3])))
    for changed in range(5):
        other = x.clone()
        other[0, changed] += 1
        torch.testing.assert_close(states(layer, other)[0, :changed], whole[0, :changed])
        assert not torch.allclose(states(layer, other)[0, changed], whole[0, changed])
