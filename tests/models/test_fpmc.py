import pytest
import torch

from tests.evaluation.tiny import dataset_of
from tests.models.tiny import can_tell, fill, learns_the_cycle
from tests.training.tiny import make_task, tiny_config


@pytest.mark.parametrize("exponent", [0, 1])
def test_a_cycle_is_learned_perfectly(exponent: int) -> None:
    assert learns_the_cycle("fpmc", f"objective.exponent={exponent}")


def test_the_loss_is_the_one_computed_by_hand() -> None:
    dataset = dataset_of([[1, 2, 3, 1]], num_items=3)
    settings = ("model.dim=1", "training.batch_size=1", "objective.negatives=1")
    task = make_task(dataset, tiny_config(*settings, model="fpmc"), "fpmc")
    fill(task.model.user_table.weight, 1)
    fill(task.model.previous_table.weight, 9, 2, 9, 9)
    fill(task.model.next_table.weight, 9, 9, 9, 9, 0.5, 1, 1, -0.5)
    # After item 1, the score of item 2 is 1 × 0.5 + 2 × 1 = 2.5, that of item 3 is 1 × 1 - 2 × 0.5 = 0.
    # -log σ(2.5) = 0.078890.
    assert task.loss(torch.tensor([1, 3])).item() == pytest.approx(0.078890, abs=1e-6)


def test_it_knows_the_user_and_the_last_item_and_nothing_else() -> None:
    assert can_tell("fpmc", (0, [1, 2, 3]), (1, [1, 2, 3]))
    assert can_tell("fpmc", (0, [1, 2, 3]), (0, [1, 2, 4]))
    assert not can_tell("fpmc", (0, [1, 2, 3]), (0, [2, 1, 3]))
    assert not can_tell("fpmc", (0, [1, 2, 3]), (0, [3]))
