import pytest
import torch

from bert4rec.models import ncf
from bert4rec.models.history_batch import PaddedHistories
from tests.evaluation.tiny import dataset_of
from tests.models.tiny import can_tell, fill, learns_tastes, untrained
from tests.training.tiny import make_task, tiny_config


def test_what_others_of_ones_taste_chose_comes_before_all_else() -> None:
    assert learns_tastes("ncf", "training.steps=60", "training.batch_size=128")


def test_the_loss_is_the_one_computed_by_hand() -> None:
    dataset = dataset_of([[1, 2, 3]], num_items=3)
    settings = ("model.dim=2", "model.layers=2", "model.hidden_dropout=0", "objective.negatives=2")
    task = make_task(dataset, tiny_config(*settings, "training.batch_size=1", model="ncf"), "ncf")
    model = task.model
    fill(model.user_product.weight, 1, 1)
    fill(model.item_product.weight, 9, 9, 2, 0, 0, -1, 0, 0)
    fill(model.user_network.weight, 1, -1)
    fill(model.item_network.weight, 9, 9, 0, 3, -2, 2, 0, 5)
    fill(model.network[0].weight, 1, -1)
    fill(model.network[0].bias, 2)
    fill(model.output.weight, 1, 1, 3)
    fill(model.output.bias, -4)
    # Item 1: the product is (2, 0); the network reads (1, 2) and says 1 - 2 + 2 = 1; together 2 + 0 + 3 - 4 = 1.
    # Item 2: the product is (0, -1); the network reads (-1, 1), so (0, 1), and says 1; together -1 + 3 - 4 = -2.
    # Item 3: the product is (0, 0); the network reads (1, 4) and says 1 - 4 + 2 < 0, so 0; together -4.
    # -log σ(1) = 0.313262, -log(1 - σ(-2)) = 0.126928, -log(1 - σ(-4)) = 0.018150; the mean is 0.152780.
    assert task.loss(torch.tensor([0, 2, 3])).item() == pytest.approx(0.152780, abs=1e-6)


def test_all_items_are_scored_as_some_are_however_few_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, users = untrained("ncf"), torch.tensor([2, 0, 1, 1])
    items = torch.tensor([[1, 9]]).expand(4, 2)
    queries = model.queries(PaddedHistories(torch.empty(4, 0)), users)
    whole = model.scores(queries)
    torch.testing.assert_close(whole[:, [1, 9]], model.scores(queries, items))
    monkeypatch.setattr(ncf, "PAIRS_AT_ONCE", 1)
    torch.testing.assert_close(model.scores(queries), whole)


def test_it_knows_the_user_and_nothing_of_the_history() -> None:
    assert can_tell("ncf", (0, [1, 2, 3]), (1, [1, 2, 3]))
    assert not can_tell("ncf", (0, [1, 2, 3]), (0, [3, 2, 1]))
    assert not can_tell("ncf", (0, [1, 2, 3]), (0, []))
