from math import log

import pytest

from tests.evaluation.tiny import dataset_of
from tests.models.tiny import can_tell, fill, first_row, learns_the_cycle, untrained
from tests.training.tiny import make_task, tiny_config

WITHOUT_DROPOUT = ("model.max_length=8", "model.embedding_dropout=0", "model.hidden_dropout=0")


@pytest.mark.parametrize("loss", ["bpr-max", "top1-max", "cross-entropy"])
def test_a_cycle_is_learned_perfectly(loss: str) -> None:
    assert learns_the_cycle("gru4rec+", f"objective.loss={loss}", "objective.negatives=8", *WITHOUT_DROPOUT)


@pytest.mark.parametrize(
    ("loss", "expected"), [("bpr-max", 1.027970), ("top1-max", 1.139819), ("cross-entropy", 0.847298)]
)
def test_the_loss_is_the_one_computed_by_hand(loss: str, expected: float) -> None:
    """After item 1 the state is 0.4, as with GRU4Rec. Item 2, which follows, and item 3 score ln 3, item 1 scores 0.

    The softmax over those that are compared, 1 and 3, is 1/4 and 3/4.
    BPR-max: above them with 1/4 × 3/4 + 3/4 × 1/2 = 9/16; the penalty is half of 3/4 × (ln 3)² = 0.905212.
    TOP1-max: 1/4 × (1/4 + σ(0)) + 3/4 × (1/2 + σ((ln 3)²)) = 0.1875 + 0.952319.
    Cross-entropy: -log(3 / (1 + 3 + 3)).
    """
    dataset = dataset_of([[1, 2, 1, 1]], num_items=3)
    model = ("model.dim=1", "model.layers=1", "training.batch_size=1")
    objective = (f"objective.loss={loss}", "objective.negatives=1", "objective.penalty=0.5")
    config = tiny_config(*model, *objective, *WITHOUT_DROPOUT, model="gru4rec+")
    task = make_task(dataset, config, "gru4rec+")
    fill(task.model.item_table.weight, 9, log(3), 0, 0, 9)
    fill(task.model.layers[0].weight_ih_l0, 0, 0, 1)
    fill(task.model.layers[0].weight_hh_l0, 0, 0, 0)
    fill(task.model.item_bias, -0.4 * log(3), log(3), log(3))
    row = first_row(task, [1, 3]) if loss != "cross-entropy" else task.block(0)[1][0]
    assert task.loss(row).item() == pytest.approx(expected, abs=1e-6)


def test_one_table_serves_input_and_output() -> None:
    model, other = untrained("gru4rec+"), untrained("gru4rec")
    assert model.item_vectors()[0] is model.item_table.weight
    assert other.item_vectors()[0] is not other.item_table.weight


def test_it_is_blind_to_users_but_not_to_order_or_to_what_came_long_before() -> None:
    assert not can_tell("gru4rec+", (0, [1, 2, 3]), (1, [1, 2, 3]))
    assert can_tell("gru4rec+", (0, [1, 2, 3]), (0, [2, 1, 3]))
    assert can_tell("gru4rec+", (0, [1, 2, 3]), (0, [2, 3]))
