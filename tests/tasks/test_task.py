"""What models learn from: batches of the training part, and of nothing else."""

import pytest
import torch

from bert4rec.data.dataset import Repeats
from bert4rec.data.histories import Histories
from bert4rec.data.splits import Part
from bert4rec.models.history_batch import PackedHistories
from bert4rec.training.specs import MODELS
from tests.conftest import MakeDataset
from tests.evaluation.tiny import dataset_of
from tests.training.tiny import CPU, make_task, random_histories, tiny_config

each_model = pytest.mark.parametrize("name", MODELS)


def test_sasrecs_wrong_answers_may_be_old_choices_where_repeats_are_kept_and_never_otherwise() -> None:
    drawn: dict[Repeats, set[int]] = {"keep": set(), "exclude": set()}
    for repeats, items in drawn.items():
        dataset = dataset_of([[1, 2, 3] * 4, [4, 5, 6] * 4], 12, repeats)
        task = make_task(dataset, tiny_config("objective.loss=binary", model="sasrec"), "sasrec")
        for row in task.block(0)[1][:50]:
            batch = task._batches.shape.read(row)
            of_first = (batch.targets >= 1) & (batch.targets <= 3)
            assert not (batch.negatives == batch.targets)[of_first].any()
            items |= set(batch.negatives[of_first].tolist())
    assert drawn == {"keep": set(range(1, 13)), "exclude": set(range(4, 13))}


POPULARITY_MATTERS = {
    **dict.fromkeys(("bpr-mf", "ncf", "fpmc", "caser", "gru4rec+"), ("objective.exponent=1",)),
    "sasrec": ("objective.loss=binary",),
}
"""Settings under which most is drawn from what was chosen."""


@pytest.mark.parametrize(("part", "held_out"), [("valid", 2), ("test", 1)])
@each_model
def test_what_is_held_out_decides_nothing(name: str, part: Part, held_out: int) -> None:
    """Everybody's last items are exchanged for others, more popular ones for rarer: batches and losses stay."""
    histories = [[1 + item for item in history] for history in random_histories()]
    others = [[*history[:-held_out], *(21 - item for item in history[-held_out:])] for history in histories]
    one, other = (dataset_of(each, num_items=20) for each in (histories, others))
    assert one.item_counts.tolist() != other.item_counts.tolist()
    config = tiny_config(*POPULARITY_MATTERS.get(name, ()), model=name)
    ours, theirs = (make_task(dataset, config, name, part=part) for dataset in (one, other))
    for key, weight in ours.model.eval().state_dict().items():
        assert torch.equal(weight, theirs.model.eval().state_dict()[key])
    if config.training:
        rows = ours.block(0)[1]
        assert torch.equal(rows, theirs.block(0)[1])
        assert all(torch.equal(ours.loss(row), theirs.loss(row)) for row in rows[:20])


def test_the_question_at_test_time_is_a_training_sample_that_hides_its_last_item(
    make_dataset: MakeDataset,
) -> None:
    """No gap between training and prediction: the same tokens at the same positions."""
    dataset = make_dataset([[1, 2, 3, 4]] * 8)
    config = tiny_config("objective.prefix_share=0", "objective.last_item_share=1")
    task = make_task(dataset, config, end=dataset.offsets[1:])
    batch = task._batches.shape.read(task.block(0)[1][0])
    begin, first_end = batch.layout.bounds[:2].tolist()
    history = PackedHistories(Histories.from_lists([dataset.sequences[:3].tolist()]), CPU)
    asked = history.sequences(task.model.max_length, task.model.end_token, causal=False)
    assert batch.tokens[begin:first_end].tolist() == asked.tokens.tolist()
    assert batch.positions[begin:first_end].tolist() == asked.positions.tolist()
    assert batch.targets[0] == dataset.sequences[3]


@pytest.mark.parametrize(("name", "never_asked"), [("bert4rec", 0), ("sasrec", 1), ("gru4rec+", 1)])
def test_items_beyond_every_window_of_the_newest_actions_are_still_trained_on(
    make_dataset: MakeDataset, name: str, never_asked: int
) -> None:
    """Long histories are cut into windows, not cut off: the oldest item that follows another is a target too."""
    dataset = make_dataset([list(range(1, 31))])
    task = make_task(dataset, tiny_config(model=name), name, end=dataset.offsets[1:])
    first, rows = task.block(0)
    targets = {int(item) for row in rows for item in task._batches.shape.read(row).targets}
    assert first == 0
    assert targets >= set(dataset.sequences[never_asked:].tolist())
