import pytest
import torch

from tests.evaluation.tiny import dataset_of
from tests.models.tiny import can_tell, fill, learns_tastes
from tests.training.tiny import make_task, tiny_config


@pytest.mark.parametrize("exponent", [0, 1])
def test_what_others_of_ones_taste_chose_comes_before_all_else(exponent: int) -> None:
    assert learns_tastes("bpr-mf", f"objective.exponent={exponent}")


def test_the_loss_is_the_one_computed_by_hand() -> None:
    dataset = dataset_of([[1, 2, 3]], num_items=3)
    config = tiny_config("model.dim=2", "training.batch_size=1", model="bpr-mf")
    task = make_task(dataset, config, "bpr-mf")
    fill(task.model.user_table.weight, 1, 2)
    fill(task.model.item_table.weight, 9, 9, 1, 0, 0, 1, -1, 0)
    fill(task.model.item_bias, 9, 0.5, -1, 0)
    # The scores are 1.5 for item 1, which was chosen, 1.0 for item 2 and -1.0 for item 3.
    # -log σ(0.5) = 0.474077 and -log σ(2.5) = 0.078890, of which the mean is 0.276483.
    assert task.loss(torch.tensor([0, 2, 3])).item() == pytest.approx(0.276483, abs=1e-6)


def test_it_knows_the_user_and_nothing_of_the_history() -> None:
    assert can_tell("bpr-mf", (0, [1, 2, 3]), (1, [1, 2, 3]))
    assert not can_tell("bpr-mf", (0, [1, 2, 3]), (0, [3, 2, 1]))
    assert not can_tell("bpr-mf", (0, [1, 2, 3]), (0, []))
