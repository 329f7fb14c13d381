"""The trained model as evaluation asks it: any batch of histories in, a score for every item out."""

import numpy as np
import torch

from bert4rec.data.histories import Histories
from bert4rec.models.bert4rec import BERT4Rec, ModelConfig
from bert4rec.training.cloze import append_mask
from bert4rec.training.config import make_config
from bert4rec.training.task import ClozeTask, make_scorer
from tests.conftest import MakeDataset

CONFIG = ModelConfig(dim=16, layers=2, heads=2, max_length=6)


def model_of(num_items: int) -> BERT4Rec:
    return BERT4Rec(num_items, CONFIG, torch.Generator().manual_seed(1)).eval()


def scores_of(model: BERT4Rec, histories: list[list[int]]) -> torch.Tensor:
    return torch.as_tensor(make_scorer(model)(np.arange(len(histories)), Histories.from_lists(histories)))


def test_a_user_gets_the_same_scores_alone_as_in_company() -> None:
    """Histories of every length, the longest ones longer than the model can see."""
    model = model_of(9)
    rng = np.random.default_rng(1)
    histories = [rng.integers(1, 10, length).tolist() for length in (0, 1, 2, 3, 5, 6, 12, 3, 0)]
    together = scores_of(model, histories)
    for row, history in enumerate(histories):
        torch.testing.assert_close(scores_of(model, [history])[0], together[row])


def test_scores_are_those_of_the_padded_form_with_mask_at_the_end() -> None:
    model = model_of(9)
    padded = torch.tensor([[0, 0, 3, 1, 4, model.mask_number]])
    torch.testing.assert_close(scores_of(model, [[3, 1, 4]]), model(padded))


def test_only_the_newest_items_that_fit_before_the_mask_are_seen() -> None:
    model = model_of(9)
    scores = scores_of(model, [[7, 8, 1, 2, 3, 4, 5], [9, 9, 1, 2, 3, 4, 5], [1, 2, 3, 4, 6]])
    torch.testing.assert_close(scores[0], scores[1])
    assert not torch.allclose(scores[0], scores[2])


def test_nobody_with_a_history_is_no_reason_to_fail() -> None:
    scores = scores_of(model_of(9), [[], []])
    torch.testing.assert_close(scores[0], scores[1])
    assert scores.dtype == torch.float32
    assert torch.isneginf(scores[:, 0]).all()
    assert torch.isfinite(scores[:, 1:]).all()


def test_the_question_at_test_time_is_a_training_sample_that_hides_its_last_item(
    make_dataset: MakeDataset,
) -> None:
    """No gap between training and prediction: the same tokens at the same positions."""
    dataset = make_dataset([[1, 2, 3, 4]] * 8)
    config = make_config(
        {"model": vars(CONFIG), "cloze": {"last_item_share": 1.0}, "training": {"batch_size": 4, "steps": 10}}
    )
    end = dataset.offsets[1:]
    task = ClozeTask(dataset, end, config, seed=1, device=torch.device("cpu"), dtype=None)
    batch = task._batches.shape.read(task.block(0)[1][0])
    begin, first_end = batch.layout.bounds[:2].tolist()
    history = torch.from_numpy(np.array(dataset.sequences[:3]))
    asked = append_mask(
        history,
        torch.tensor([0]),
        torch.tensor([3]),
        max_length=CONFIG.max_length,
        mask_number=dataset.mask_number,
    )
    assert batch.tokens[begin:first_end].tolist() == asked.tokens.tolist()
    assert batch.positions[begin:first_end].tolist() == asked.positions.tolist()
    assert batch.targets[0] == dataset.sequences[3]


def test_items_beyond_every_window_of_the_newest_actions_are_still_trained_on(
    make_dataset: MakeDataset,
) -> None:
    """Long histories are cut into windows, not cut off: the oldest item is a target too."""
    dataset = make_dataset([list(range(1, 31))])
    config = make_config({"model": vars(CONFIG), "training": {"batch_size": 4, "steps": 10}})
    task = ClozeTask(dataset, dataset.offsets[1:], config, seed=1, device=torch.device("cpu"), dtype=None)
    first, rows = task.block(0)
    targets = {int(item) for row in rows for item in task._batches.shape.read(row).targets}
    assert first == 0
    assert targets >= set(range(1, dataset.num_items + 1))
