"""The trained models as evaluation asks them: any batch of histories in, a score for every item out."""

import numpy as np
import pytest
import torch

from bert4rec.data.dataset import Repeats
from bert4rec.data.histories import Histories
from bert4rec.data.splits import Part
from bert4rec.tasks.cloze import append_mask
from bert4rec.training.specs import MODELS
from tests.conftest import MakeDataset
from tests.evaluation.tiny import dataset_of
from tests.models.tiny import NUM_ITEMS, NUM_USERS, scores_of, untrained
from tests.training.tiny import SETTINGS, make_task, random_histories, tiny_config

MAX_LENGTH = SETTINGS["bert4rec"]["model"]["max_length"]
RNG = np.random.default_rng(1)
LENGTHS = (0, 1, 2, 3, MAX_LENGTH - 1, MAX_LENGTH, MAX_LENGTH + 1, 2 * MAX_LENGTH, 3, 0)
HISTORIES = [RNG.integers(1, NUM_ITEMS + 1, length).tolist() for length in LENGTHS]
"""Of every length, the longest ones longer than the models can see."""
USERS = RNG.integers(0, NUM_USERS, len(HISTORIES)).tolist()

each_model = pytest.mark.parametrize("name", MODELS)


@each_model
def test_a_user_gets_the_same_scores_alone_as_in_company(name: str) -> None:
    model = untrained(name)
    together = scores_of(name, model, USERS, HISTORIES)
    for row, (user, history) in enumerate(zip(USERS, HISTORIES, strict=True)):
        torch.testing.assert_close(scores_of(name, model, [user], [history])[0], together[row])


@each_model
def test_every_item_has_a_score_also_where_nobody_has_a_history(name: str) -> None:
    scores = scores_of(name, untrained(name), [1, 1], [[], []])
    assert scores.shape == (2, NUM_ITEMS + 1)
    assert torch.isfinite(scores[:, 1:]).all()
    torch.testing.assert_close(scores[0], scores[1])


@each_model
def test_some_items_get_the_scores_they_have_among_all(name: str) -> None:
    model, items = untrained(name), RNG.integers(0, NUM_ITEMS + 1, (len(HISTORIES), 5))
    scorer = MODELS[name].task.make_scorer(model)
    found = scorer(np.array(USERS), Histories.from_lists(HISTORIES), items)
    expected = scores_of(name, model, USERS, HISTORIES).gather(1, torch.from_numpy(items))
    torch.testing.assert_close(found[items > 0], expected[items > 0], atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize("name", ["gru4rec", "gru4rec+", "sasrec", "bert4rec"])
def test_a_query_of_a_padded_history_scores_items_as_evaluation_does(name: str) -> None:
    """What is served is what was judged, whatever the length, and however much padding there is."""
    model = untrained(name)
    # BERT4Rec needs a place for [mask].
    longest = MAX_LENGTH - (name == "bert4rec")
    rows, bias = model.answers()
    histories = Histories.from_lists(HISTORIES)
    expected = scores_of(name, model, USERS, HISTORIES)[:, 1:]
    queries = model.query(torch.from_numpy(histories.padded(longest)).long())
    torch.testing.assert_close(queries @ rows.T + bias, expected, atol=1e-5, rtol=1e-5)
    for row, history in enumerate(HISTORIES):
        if 0 < len(history) <= longest:
            query = model.query(torch.tensor([history]))
            torch.testing.assert_close(query @ rows.T + bias, expected[row : row + 1], atol=1e-5, rtol=1e-5)


def test_bert4recs_scores_are_those_of_the_padded_form_with_mask_at_the_end() -> None:
    model = untrained("bert4rec")
    padded = torch.tensor([[0, 0, 3, 1, 4, model.mask_number]])
    torch.testing.assert_close(scores_of("bert4rec", model, [0], [[3, 1, 4]]), model(padded))


def test_bert4rec_sees_only_the_newest_items_that_fit_before_the_mask() -> None:
    newest = list(range(1, MAX_LENGTH))
    scores = scores_of(
        "bert4rec", untrained("bert4rec"), [0, 0, 0], [[7, 8, *newest], [9, *newest], [*newest[:-1], 9]]
    )
    torch.testing.assert_close(scores[0], scores[1])
    assert not torch.allclose(scores[0], scores[2])


@pytest.mark.parametrize("name", ["gru4rec", "gru4rec+", "sasrec", "bert4rec"])
def test_padding_is_never_recommended(name: str) -> None:
    scores = scores_of(name, untrained(name), [0], [[1, 2]])
    assert scores.dtype == torch.float32
    assert torch.isneginf(scores[:, 0]).all()


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
    history = torch.from_numpy(np.array(dataset.sequences[:3]))
    asked = append_mask(
        history,
        torch.tensor([0]),
        torch.tensor([3]),
        max_length=MAX_LENGTH,
        mask_number=dataset.mask_number,
    )
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
