from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.data.splits import leave_one_out
from bert4rec.errors import UsageError
from bert4rec.models.attention import Layout
from bert4rec.models.sasrec import SASRec
from bert4rec.settings.networks import ModelConfig
from bert4rec.settings.objectives import Joint
from bert4rec.tasks.cloze import ClozeTask
from bert4rec.tasks.joint import JointTask
from bert4rec.tasks.losses import softmax_cross_entropy
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.specs import MODELS
from tests.conftest import MakeDataset
from tests.training.tiny import CPU, random_histories, tiny_config

WITHOUT_DROPOUT = tuple(f"model.{place}_dropout=0" for place in ("embedding", "hidden", "attention"))


@pytest.fixture
def inputs(make_dataset: MakeDataset) -> TaskInputs:
    dataset = make_dataset(random_histories())
    config = tiny_config(*WITHOUT_DROPOUT, "objective.next_item_weight=3", model="bert4rec+")
    return TaskInputs(dataset, leave_one_out(dataset).training_end("valid"), config, 1, CPU, None)


@pytest.fixture
def joint(inputs: TaskInputs) -> JointTask:
    task = MODELS["bert4rec+"].make_task(inputs)
    assert isinstance(task, JointTask)
    return task


def test_the_loss_is_the_weighted_mean_of_those_of_masked_and_of_next_items(joint: JointTask) -> None:
    row = joint.block(0)[1][0]
    losses = []
    for half, part in zip(joint._halves, torch.split(row, joint._widths), strict=True):
        batch = half.shape.read(part)
        hidden = joint.model.encode(batch.tokens, batch.positions, batch.layout)
        losses.append(softmax_cross_entropy(hidden, *joint.model.item_vectors(), batch.targets))
    torch.testing.assert_close(joint.loss(row), (losses[0] + 3 * losses[1]) / 4)


def test_without_weight_on_next_items_it_is_the_cloze_task(inputs: TaskInputs, joint: JointTask) -> None:
    objective = inputs.objective(Joint)
    asked_by_mask = replace(inputs.config.model, ask="mask")  # type: ignore[call-arg]
    alone, cloze = (
        kind(
            joint.model,
            replace(inputs, config=replace(inputs.config, model=asked_by_mask, objective=settings)),
        )
        for kind, settings in (
            (JointTask, replace(objective, next_item_weight=0.0)),
            (ClozeTask, objective.cloze),
        )
    )
    assert alone.width == cloze.width < joint.width
    for mine, plain in zip(alone.block(0)[1], cloze.block(0)[1], strict=True):
        assert torch.equal(mine, plain)
        torch.testing.assert_close(alone.loss(mine), cloze.loss(plain))


def test_where_a_masked_item_is_asked_for_the_network_sees_only_the_mask(joint: JointTask) -> None:
    """What is read and what is asked are the history together, and share nothing."""
    sequences = joint._halves[0].sequences
    assert isinstance(sequences, Tensor)
    dataset_items = sequences.tolist()
    text = f" {' '.join(map(str, dataset_items))} "
    for row in joint.block(0)[1]:
        batch = joint._halves[0].shape.read(row[: joint._widths[0]])
        alive = batch.targets != PADDING
        rows = batch.layout.rows[alive].long()
        assert set(batch.tokens[rows].tolist()) == {joint.model.end_token}
        whole = batch.tokens.clone()
        whole[rows] = batch.targets[alive]
        bounds = batch.layout.bounds.tolist()
        for begin, end in pairwise(bounds):
            sequence = whole[begin:end].tolist()
            is_dead = not sequence or PADDING in sequence
            assert is_dead or f" {' '.join(map(str, sequence))} " in text


def test_the_second_half_looks_back_and_asks_for_what_follows(joint: JointTask) -> None:
    masked, followed = (half.shape for half in joint._halves)
    assert (masked.causal, followed.causal) == (False, True)
    assert (masked.max_length, followed.max_length) == (joint.model.max_length, joint.model.max_history)


def test_a_step_has_the_same_batch_whichever_step_was_asked_for_before(joint: JointTask) -> None:
    """The halves are made in blocks of different lengths."""
    first, rows = joint.block(0)
    wanted = {first + number: row for number, row in enumerate(rows)}
    while len(wanted) < 150:
        first, rows = joint.block(len(wanted))
        assert first <= len(wanted) < first + len(rows)
        wanted |= {first + number: row for number, row in enumerate(rows)}
    for step in (149, 3, 77, 20, 148, 64, 0):
        first, rows = joint.block(step)
        assert torch.equal(rows[step - first], wanted[step])


def test_a_model_that_only_looks_back_is_refused() -> None:
    with pytest.raises(UsageError, match="JointTask requires a model with `causal = False`"):
        JointTask.check(SASRec(9, ModelConfig()))


def test_a_model_that_reads_rectangles_is_refused_in_a_sentence(inputs: TaskInputs, joint: JointTask) -> None:
    class Recurrent(type(joint.model)):  # type: ignore[misc]
        def encode(self, tokens: Tensor, positions: Tensor, layout: Layout, dtype: object = None) -> Tensor:
            return layout.rectangle(tokens)

    model = Recurrent(inputs.dataset.num_items, inputs.config.model)
    task = JointTask(model, inputs)
    with pytest.raises(UsageError, match=r"JointTask cannot train a model that reads .* rectangles"):
        task.loss(task.block(0)[1][0])
