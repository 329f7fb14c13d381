"""What every model promises: one set of tests that all of them pass."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bert4rec.data.histories import Histories
from bert4rec.models.history_batch import PackedHistories, PaddedHistories
from bert4rec.models.model import SequenceEncoder, SequentialModel, make_scorer
from bert4rec.training.specs import MODELS
from tests.evaluation.tiny import dataset_of
from tests.models.tiny import NUM_ITEMS, NUM_USERS, scores_of, untrained
from tests.training.tiny import CPU, SETTINGS, make_task, random_histories, tiny_config

MAX_LENGTH = SETTINGS["bert4rec"]["model"]["max_length"]
RNG = np.random.default_rng(1)
LENGTHS = (0, 1, 2, 3, MAX_LENGTH - 1, MAX_LENGTH, MAX_LENGTH + 1, 2 * MAX_LENGTH, 3, 0)
LISTS = [RNG.integers(1, NUM_ITEMS + 1, length).tolist() for length in LENGTHS]
"""Of every length, the longest ones longer than the models can see."""
HISTORIES = Histories.from_lists(LISTS)
USERS = RNG.integers(0, NUM_USERS, len(LISTS)).tolist()
ANSWER_HISTORIES = [name for name, spec in MODELS.items() if not spec.knows_users]

each_model = pytest.mark.parametrize("name", MODELS)


def model_of(name: str) -> SequentialModel:
    """POP counts something here: with no counts, all its scores would be the same."""
    model: SequentialModel = untrained(name)
    if not MODELS[name].is_trained:
        counts = model.get_buffer("counts")
        counts.copy_(torch.arange(len(counts)).flip(0))
    return model


def queries_of(model: SequentialModel, histories: PackedHistories | PaddedHistories) -> Tensor:
    with torch.no_grad():
        return model.queries(histories, torch.tensor(USERS))


@each_model
def test_a_user_gets_the_same_scores_alone_as_in_company(name: str) -> None:
    model = model_of(name)
    together = scores_of(model, USERS, LISTS)
    for row, (user, history) in enumerate(zip(USERS, LISTS, strict=True)):
        torch.testing.assert_close(scores_of(model, [user], [history])[0], together[row])


@each_model
def test_the_order_of_the_users_does_not_matter(name: str) -> None:
    model = model_of(name)
    turned = scores_of(model, USERS[::-1], LISTS[::-1])
    torch.testing.assert_close(turned.flip(0), scores_of(model, USERS, LISTS))


@each_model
def test_every_item_has_a_score_also_where_nobody_has_a_history(name: str) -> None:
    scores = scores_of(model_of(name), [1, 1], [[], []])
    assert scores.shape == (2, NUM_ITEMS + 1)
    assert torch.isfinite(scores[:, 1:]).all()
    torch.testing.assert_close(scores[0], scores[1])


@each_model
def test_padding_is_never_recommended(name: str) -> None:
    scores = scores_of(model_of(name), USERS, LISTS)
    assert scores.dtype in (torch.float32, torch.float64), "in less, many items would tie"
    assert torch.isneginf(scores[:, 0]).all()


@each_model
def test_some_items_get_the_scores_they_have_among_all(name: str) -> None:
    model, items = model_of(name), RNG.integers(0, NUM_ITEMS + 1, (len(LISTS), 5))
    found = make_scorer(model)(np.array(USERS), HISTORIES, items)
    assert torch.isfinite(found).all(), "padding too: losses leave it out afterwards"
    expected = scores_of(model, USERS, LISTS).gather(1, torch.from_numpy(items))
    torch.testing.assert_close(found[items > 0], expected[items > 0], atol=1e-5, rtol=1e-5)


@each_model
def test_a_score_is_the_query_times_the_items_vector_plus_its_bias(name: str) -> None:
    """All but NCF, where both meet in a network."""
    model = model_of(name)
    table, bias = model.item_vectors()
    queries = queries_of(model, PackedHistories(HISTORIES, CPU))
    assert len(table) > NUM_ITEMS
    assert bias.shape == (NUM_ITEMS,)
    assert queries.shape == (len(LISTS), table.shape[1])
    product = queries @ table[1 : NUM_ITEMS + 1].T + bias
    is_product = torch.allclose(product, model.scores(queries)[:, 1:], atol=1e-5, rtol=1e-5)
    assert is_product == (name != "ncf")


@each_model
def test_only_the_newest_items_of_a_history_are_looked_at(name: str) -> None:
    model = model_of(name)
    longest = max(LISTS, key=len)
    seen = longest[len(longest) - model.max_history :]
    assert len(seen) == model.max_history < len(longest)
    torch.testing.assert_close(scores_of(model, [0], [longest]), scores_of(model, [0], [seen]))


@each_model
def test_padded_histories_get_the_queries_of_packed_ones(name: str) -> None:
    """What is exported and trained is what was judged, whatever the length, and however much padding there is."""
    model = model_of(name)
    expected = queries_of(model, PackedHistories(HISTORIES, CPU))
    padded = torch.from_numpy(HISTORIES.padded(model.max_history)).long()
    torch.testing.assert_close(queries_of(model, PaddedHistories(padded)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ANSWER_HISTORIES)
def test_a_model_that_does_not_know_users_needs_none(name: str) -> None:
    model = model_of(name)
    packed = PackedHistories(HISTORIES, CPU)
    torch.testing.assert_close(model.queries(packed), model.queries(packed, torch.tensor(USERS)))


@each_model
def test_its_state_makes_another_model_the_same(name: str) -> None:
    model = model_of(name)
    settings = tiny_config(model=name).model
    other = MODELS[name].build(NUM_USERS, NUM_ITEMS, settings, torch.Generator().manual_seed(9)).eval()
    assert not torch.equal(scores_of(other, USERS, LISTS)[:, 1:], scores_of(model, USERS, LISTS)[:, 1:])
    other.load_state_dict(model.state_dict())
    assert torch.equal(scores_of(other, USERS, LISTS), scores_of(model, USERS, LISTS))


@pytest.mark.parametrize("name", [name for name, spec in MODELS.items() if spec.is_trained])
def test_training_reaches_every_parameter(name: str) -> None:
    dataset = dataset_of([[1 + item for item in history] for history in random_histories()], num_items=20)
    task = make_task(dataset, tiny_config(model=name), name)
    first, rows = task.block(0)
    assert first == 0
    for row in rows[:20]:
        task.loss(row).backward()
    unreached = [
        name
        for name, parameter in task.model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert not unreached


@each_model
def test_attention_is_a_share_of_every_item_or_there_is_none(name: str) -> None:
    history = PaddedHistories(torch.tensor([[0, 3, 1, 4]]))
    weights = model_of(name).attention(history)
    assert (weights is not None) == (name in {"bert4rec", "bert4rec+"})
    if weights is not None:
        assert weights.shape == (1, 2, 2, 5)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 2))
        assert not weights[..., 0].any(), "padding"


def test_models_say_what_they_can_do() -> None:
    networks = {name: spec.network for name, spec in MODELS.items()}
    assert {name for name, each in networks.items() if each.knows_users} == {"bpr-mf", "ncf", "fpmc", "caser"}
    assert {name for name, each in networks.items() if each.can_be_exported} == {
        "sasrec",
        "bert4rec",
        "bert4rec+",
    }
    encoders = {name for name, each in networks.items() if issubclass(each, SequenceEncoder)}
    assert encoders == {"gru4rec", "gru4rec+", "sasrec", "bert4rec", "bert4rec+"}
    assert {name for name in encoders if untrained(name).end_token is not None} == {"bert4rec", "bert4rec+"}
