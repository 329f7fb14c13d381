import pytest
import torch

from tests.evaluation.tiny import dataset_of
from tests.models.tiny import CYCLE_LENGTH, best_after_cycle, can_tell, fill, learns_the_cycle
from tests.training.tiny import SETTINGS, make_task, tiny_config


def test_a_cycle_is_learned_perfectly() -> None:
    assert learns_the_cycle("caser", "objective.targets=1", "model.max_length=3")


def test_the_items_a_little_further_on_are_right_answers_too() -> None:
    best, answers = best_after_cycle("caser", "objective.targets=3", "model.max_length=3")
    following = torch.stack([1 + (answers - 1 + step) % CYCLE_LENGTH for step in range(3)], dim=1)
    assert torch.equal(best[:, :3].sort(dim=1).values, following.sort(dim=1).values)


def test_the_loss_is_the_one_computed_by_hand() -> None:
    dataset = dataset_of([[1, 2, 3, 1, 1]], num_items=4)
    model = ("model.dim=1", "model.max_length=2", "model.horizontal=1", "model.vertical=1")
    objective = ("objective.targets=1", "objective.negatives=1")
    config = tiny_config(*model, *objective, "model.hidden_dropout=0", "training.batch_size=1", model="caser")
    task = make_task(dataset, config, "caser")
    fill(task.model.user_table.weight, -1)
    fill(task.model.item_table.weight, 9, 1, 2, 9, 9)
    fill(task.model.horizontal[0].weight, 1)
    fill(task.model.horizontal[1].weight, 1, -1)
    fill(task.model.horizontal[1].bias, 0.5)
    fill(task.model.vertical.weight, 2, -0.5)
    fill(task.model.narrow.weight, 1, 5, -1)
    fill(task.model.narrow.bias, 0.5)
    fill(task.model.output_table.weight, 9, 9, 9, 9, 9, 9, 2, 1, 0, 1)
    fill(task.model.output_bias, 9, 9, 9, 0.5, 1)
    # Items 1 and 2 came before. Filters of height 1 find max(1, 2) = 2, those of height 2 find 1 - 2 + 0.5 < 0,
    # so nothing, and the vertical one finds 2 × 1 - 0.5 × 2 = 1. The query is 2 + 0 - 1 + 0.5 = 1.5, and the user.
    # Item 3 scores 1.5 × 2 - 1 + 0.5 = 2.5 and item 4 scores 0 - 1 + 1 = 0.
    # -log σ(2.5) = 0.078890 and -log(1 - σ(0)) = 0.693147, of which the mean is 0.386018.
    assert task.loss(torch.tensor([2, 4])).item() == pytest.approx(0.386018, abs=1e-6)


def test_it_knows_the_user_and_the_last_items_in_their_order_and_nothing_before() -> None:
    assert SETTINGS["caser"]["model"]["max_length"] == 4
    assert can_tell("caser", (0, [5, 1, 2, 3, 4]), (1, [5, 1, 2, 3, 4]))
    assert can_tell("caser", (0, [5, 1, 2, 3, 4]), (0, [5, 6, 2, 3, 4]))
    assert can_tell("caser", (0, [5, 1, 2, 3, 4]), (0, [5, 2, 1, 3, 4]))
    assert not can_tell("caser", (0, [5, 1, 2, 3, 4]), (0, [6, 7, 1, 2, 3, 4]))
    assert can_tell("caser", (0, [3, 4]), (0, []))
