from collections.abc import Callable
from math import log

import pytest
import torch

from bert4rec.models.gru4rec import GRU4Rec
from bert4rec.models.history_batch import PaddedHistories
from bert4rec.settings.networks import GRUConfig
from tests.evaluation.tiny import dataset_of
from tests.models.tiny import can_tell, fill, first_row, learns_the_cycle, untrained
from tests.training.tiny import make_task, tiny_config

WITHOUT_DROPOUT = ("model.max_length=8", "model.embedding_dropout=0", "model.hidden_dropout=0")


@pytest.mark.parametrize("loss", ["top1", "bpr"])
def test_a_cycle_is_learned_perfectly(loss: str) -> None:
    assert learns_the_cycle("gru4rec", f"objective.loss={loss}", *WITHOUT_DROPOUT)


@pytest.mark.parametrize(("loss", "expected"), [("bpr", 0.514216), ("top1", 0.933887)])
def test_the_loss_is_the_one_computed_by_hand(loss: str, expected: float) -> None:
    """Both gates stand half open, and what enters is tanh(ln 3) = 0.8 at item 1 and -0.8 at item 2.

    So the state is 0.4 after item 1, and 0.4 / 2 - 0.4 = -0.2 after item 2. Item 2 follows item 1, and item 3
    follows item 2; both are compared with item 1. The scores are 0.4 × 2 = 0.8 against 0.4 × 1 + 0.1 = 0.5, and
    0.2 × 1 + 0.2 = 0.4 against -0.2 × 1 + 0.1 = -0.1.

    BPR: -log σ(0.3) = 0.554355 and -log σ(0.5) = 0.474077.
    TOP1: σ(-0.3) + σ(0.5²) = 0.425557 + 0.562177 and σ(-0.5) + σ(0.1²) = 0.377541 + 0.502500.
    """
    dataset = dataset_of([[1, 2, 3, 1, 1]], num_items=3)
    settings = ("model.dim=1", "model.layers=1", "training.batch_size=1", f"objective.loss={loss}")
    task = make_task(dataset, tiny_config(*settings, *WITHOUT_DROPOUT, model="gru4rec"), "gru4rec")
    fill(task.model.item_table.weight, 9, log(3), -log(3), 9, 9)
    fill(task.model.layers[0].weight_ih_l0, 0, 0, 1)
    fill(task.model.layers[0].weight_hh_l0, 0, 0, 0)
    fill(task.model.output_table.weight, 9, 1, 2, -1, 9)
    fill(task.model.item_bias, 0.1, 0, 0.2)
    assert task.loss(first_row(task, [1])).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["gru4rec", "gru4rec+"])
def test_it_sees_items_in_their_order_and_is_blind_to_the_user(name: str) -> None:
    assert not can_tell(name, (0, [1, 2, 3]), (1, [1, 2, 3]))
    assert can_tell(name, (0, [1, 2, 3]), (0, [2, 1, 3]))
    assert can_tell(name, (0, [1, 2, 3]), (0, [2, 3]))
    assert not can_tell(name, (0, [9, 1, 2, 3, 4, 5, 6, 7, 8]), (0, [1, 2, 3, 4, 5, 6, 7, 8]))


def test_padding_changes_nothing() -> None:
    model = untrained("gru4rec")
    expected = model.queries(PaddedHistories(torch.tensor([[3, 1, 4]])))
    with torch.no_grad():
        model.item_table.weight[0] = 100.0
    padded = model.queries(PaddedHistories(torch.tensor([[0, 0, 0, 3, 1, 4], [5, 6, 7, 8, 9, 1]])))
    torch.testing.assert_close(padded[:1], expected)


def test_the_generator_decides_all_weights() -> None:
    first, same, other = (
        GRU4Rec(20, GRUConfig(dim=8, layers=2), torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    for name, weight in first.named_parameters():
        assert torch.equal(weight, same.get_parameter(name))
        assert torch.equal(weight, other.get_parameter(name)) == ("bias" in name)
    for gate in first.get_parameter("layers.0.weight_hh_l0").detach().chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8), atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_compiler_leaves_the_recurrence_to_the_library() -> None:
    """On a GPU the step is compiled. cuDNN's recurrence is the fastest, and torch keeps it unless it is told not to."""
    graphs: list[torch.fx.GraphModule] = []

    def note(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    dataset = dataset_of([[1, 2, 3, 1, 1]], num_items=3)
    task = make_task(dataset, tiny_config(*WITHOUT_DROPOUT, model="gru4rec"), "gru4rec")
    row = first_row(task, [1])
    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(task.loss, dynamic=False, backend=note)
    assert compiled(row).item() == pytest.approx(task.loss(row).item())
    assert graphs
    assert not [node for graph in graphs for node in graph.graph.nodes if "gru" in str(node.target).lower()]
