from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING
from bert4rec.data.histories import Histories
from bert4rec.models.attention import PackedLayout, PaddedLayout, RecordingLayout
from bert4rec.models.bert4rec import BERT4Rec, Layer
from bert4rec.models.history_batch import PaddedHistories
from bert4rec.models.model import make_scorer
from bert4rec.settings.networks import ModelConfig
from bert4rec.settings.objectives import Cloze
from bert4rec.tasks.batches import Batches, PackedBatch
from bert4rec.tasks.cloze import MaskedItems, cloze_loss
from bert4rec.tasks.windows import cut_windows

NUM_ITEMS = 11
MASK = NUM_ITEMS + 1
WITHOUT_DROPOUT = ModelConfig(
    dim=12, layers=2, heads=3, max_length=7, embedding_dropout=0.0, hidden_dropout=0.0, attention_dropout=0.0
)
HISTORIES = [[3, 1, MASK, 7, 5, MASK], [2, MASK], [9, 8, MASK, 4], [1, 6, MASK, MASK], [MASK]]
"""Of several lengths, two neighbours of the same one; hidden items in all places."""


def model_with(config: ModelConfig = WITHOUT_DROPOUT, dtype: torch.dtype = torch.float64) -> BERT4Rec:
    """Weights far larger than at the start, so that every part matters."""
    generator = torch.Generator().manual_seed(0)
    model = BERT4Rec(NUM_ITEMS, config, generator).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return model


def with_dropout(place: str) -> ModelConfig:
    change: dict[str, Any] = {place: 0.5}
    return replace(WITHOUT_DROPOUT, **change)


def packed(histories: list[list[int]], *, everything: bool = False) -> PackedBatch:
    """All sequences end to end; wanted are the hidden items, or everything. The targets are 1, 2, 3, …."""
    tokens = torch.tensor([item for history in histories for item in history], dtype=torch.int32)
    length = torch.tensor([len(history) for history in histories])
    wanted = torch.ones_like(tokens, dtype=torch.bool) if everything else tokens == MASK
    per_sequence = torch.stack([part.sum() for part in torch.split(wanted, length.tolist())])
    positions = torch.cat([torch.arange(7 - n, 7) for n in length.tolist()])
    layout = PackedLayout(
        bounds_of(length), 7, torch.nonzero(wanted).squeeze(1).int(), bounds_of(per_sequence), 7
    )
    return PackedBatch(tokens, positions, 1 + torch.arange(len(layout.rows)) % NUM_ITEMS, layout)


def bounds_of(lengths: Tensor) -> Tensor:
    return nn.functional.pad(lengths.cumsum(0), (1, 0)).int()


def left_padded(histories: list[list[int]], length: int = 7) -> Tensor:
    return torch.tensor([[PADDING] * (length - len(history)) + history for history in histories])


def test_our_layer_matches_torch_given_the_same_weights() -> None:
    config = WITHOUT_DROPOUT
    ours = Layer(config).double()
    reference = nn.TransformerEncoderLayer(
        config.dim, config.heads, 4 * config.dim, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True
    ).double()
    names = {
        "self_attn.in_proj_": "query_key_value.",
        "self_attn.out_proj.": "attention_output.",
        "norm1.": "attention_norm.",
        "linear1.": "widen.",
        "linear2.": "narrow.",
        "norm2.": "output_norm.",
    }
    weights = ours.state_dict()
    reference.load_state_dict(
        {theirs + kind: weights[own + kind] for theirs, own in names.items() for kind in ("weight", "bias")}
    )
    x = torch.randn(5, 7, config.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    present = left_padded(HISTORIES) != PADDING
    expected = reference(x, src_key_padding_mask=~present)
    torch.testing.assert_close(ours(x, PaddedLayout(present))[present], expected[present])
    torch.testing.assert_close(ours(x, PaddedLayout(present), wanted_only=True), expected[:, -1:])


def test_packed_and_padded_give_the_same_hidden_states() -> None:
    model = model_with()
    batch = packed(HISTORIES, everything=True)
    hidden = model.encode(batch.tokens, batch.positions, batch.layout)
    rectangle = left_padded(HISTORIES)
    present = rectangle != PADDING
    torch.testing.assert_close(
        model.encode(rectangle, torch.arange(7), RecordingLayout(present))[present], hidden
    )
    last = model.encode(rectangle, torch.arange(7), PaddedLayout(present))[:, 0]
    torch.testing.assert_close(last, hidden[batch.layout.bounds[1:] - 1])


def test_the_wanted_rows_are_those_of_the_whole() -> None:
    model = model_with()
    some, all_ = packed(HISTORIES), packed(HISTORIES, everything=True)
    hidden = model.encode(some.tokens, some.positions, some.layout)
    whole = model.encode(all_.tokens, all_.positions, all_.layout)
    assert len(hidden) < len(whole)
    torch.testing.assert_close(hidden, whole[some.layout.rows])


def test_padding_changes_nothing() -> None:
    model = model_with()
    histories = (left_padded([[3, 1]], 2), left_padded([[3, 1]], 6))
    short, long = (model.queries(PaddedHistories(history)) for history in histories)
    torch.testing.assert_close(short, long)


def test_padded_positions_are_never_attended_to() -> None:
    model = model_with()
    rectangle, history = left_padded(HISTORIES), PaddedHistories(left_padded(HISTORIES, 6))
    before = model.queries(history)
    with torch.no_grad():
        model.item_table.weight[PADDING] = 1e3
    torch.testing.assert_close(model.queries(history), before)
    maps = model.attention_maps(rectangle)
    assert maps.shape == (5, 2, 3, 7, 7)
    torch.testing.assert_close(maps.sum(-1), torch.ones(5, 2, 3, 7, dtype=torch.float64))
    assert not maps.movedim(-1, 1)[rectangle == PADDING].any()


def test_neighbours_in_a_pack_do_not_see_each_other() -> None:
    model = model_with()
    loss = cloze_loss(model, packed(HISTORIES))
    alone = [packed([history]) for history in HISTORIES]
    first = 0
    losses = []
    for batch in alone:
        rows = len(batch.targets)
        targets = 1 + (first + torch.arange(rows)) % NUM_ITEMS
        one = PackedBatch(batch.tokens, batch.positions, targets, batch.layout)
        losses.append(cloze_loss(model, one) * rows)
        first += rows
    torch.testing.assert_close(loss, torch.stack(losses).sum() / first)


def test_the_order_of_sequences_does_not_matter() -> None:
    model = model_with()
    batch, turned = packed(HISTORIES), packed(HISTORIES[::-1])
    hidden = model.encode(batch.tokens, batch.positions, batch.layout)
    hidden_turned = model.encode(turned.tokens, turned.positions, turned.layout)
    counts = batch.layout.row_bounds.diff().tolist()
    torch.testing.assert_close(torch.cat(torch.split(hidden, counts)[::-1]), hidden_turned)


def test_padding_and_mask_are_never_predicted() -> None:
    model = model_with()
    scores = model.scores(model.queries(PaddedHistories(left_padded(HISTORIES, 6))))
    assert scores.shape == (5, NUM_ITEMS + 1)
    assert (scores[:, PADDING] == -torch.inf).all()
    assert torch.isfinite(scores[:, 1:]).all()


def test_scores_are_those_the_loss_is_made_of() -> None:
    model = model_with()
    batch = packed(HISTORIES)
    scores = model.scores(model.project(model.encode(batch.tokens, batch.positions, batch.layout)))
    torch.testing.assert_close(
        cloze_loss(model, batch), nn.functional.cross_entropy(scores[:, 1:], batch.targets - 1)
    )


def test_the_number_of_parameters_follows_from_the_sizes() -> None:
    config = ModelConfig(dim=32, layers=3, heads=4, max_length=50)
    d, n, v = config.dim, config.max_length, NUM_ITEMS
    attention = 4 * d * d + 4 * d
    feed_forward = 2 * d * 4 * d + 4 * d + d
    layer = attention + feed_forward + 2 * 2 * d
    head = d * d + d + 2 * d + v
    expected = (v + 2) * d + n * d + 2 * d + 3 * layer + head
    assert sum(parameter.numel() for parameter in BERT4Rec(v, config).parameters()) == expected


def test_weights_start_small_and_the_generator_decides_them() -> None:
    first, same, other = (
        BERT4Rec(500, ModelConfig(), torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    table = first.item_table.weight
    assert torch.equal(table, same.item_table.weight)
    assert not torch.equal(table, other.item_table.weight)
    assert table.abs().max() <= 0.04
    assert table.std().item() == pytest.approx(0.02 * 0.88, rel=0.02)  # cutting at 2 std narrows it
    assert all(not bias.any() for name, bias in first.named_parameters() if name.endswith("bias"))


def test_gradients_agree_with_finite_differences() -> None:
    model = model_with(replace(WITHOUT_DROPOUT, dim=4, heads=2))
    batch = packed([[3, MASK, 2], [MASK, 5, 1], [4, MASK]])
    parameters = dict(model.named_parameters())

    def loss(*values: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(
            model, dict(zip(parameters, values, strict=True))
        ):
            return cloze_loss(model, batch)

    inputs = [parameter.detach().clone().requires_grad_() for parameter in parameters.values()]
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


@pytest.mark.parametrize("place", ["embedding_dropout", "hidden_dropout", "attention_dropout"])
def test_each_dropout_changes_training_and_not_evaluation(place: str) -> None:
    plain = model_with()
    model = model_with(with_dropout(place))
    torch.manual_seed(0)
    expected = cloze_loss(plain, packed(HISTORIES))
    assert cloze_loss(model, packed(HISTORIES)) != expected
    torch.testing.assert_close(cloze_loss(model.eval(), packed(HISTORIES)), expected)


def test_low_precision_activations_stay_close_and_leave_the_weights_alone() -> None:
    model = model_with(dtype=torch.float32)
    batch = packed(HISTORIES)
    exact = cloze_loss(model, batch)
    rough = cloze_loss(model, batch, torch.bfloat16)
    torch.autograd.backward(rough)
    assert rough.item() == pytest.approx(exact.item(), rel=0.05)
    assert all(
        parameter.grad is not None and parameter.grad.dtype == torch.float32
        for parameter in model.parameters()
    )


def test_a_history_longer_than_the_model_can_see_is_refused() -> None:
    with pytest.raises(AssertionError, match="max_length"):
        model_with().queries(PaddedHistories(torch.ones(1, 7, dtype=torch.int64)))


def test_a_cycle_is_learned_perfectly() -> None:
    """1 → 2 → … → 7 → 1: whoever reads the last item knows the next."""
    length, cycle = 24, 7
    sequences = torch.cat([1 + (first + torch.arange(length)) % cycle for first in range(40)]).int()
    offsets = np.arange(0, len(sequences) + 1, length)
    windows = cut_windows(offsets[:-1], offsets[1:], max_length=8, step_share=0.5)
    hiding = MaskedItems(Cloze(0.2, prefix_share=0.0), cycle + 1)
    batches = Batches(sequences, windows, hiding, max_length=8, batch_size=16, seed=0)
    config = replace(WITHOUT_DROPOUT, dim=64, heads=2, max_length=8)
    model = BERT4Rec(cycle, config, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(400):
        first, block = batches.block(step)
        loss = cloze_loss(model, batches.shape.read(block[step - first]))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    histories = Histories(sequences.numpy(), offsets[:-1], offsets[1:] - 1)
    scores = make_scorer(model)(np.arange(len(histories)), histories)
    assert torch.equal(scores.argmax(1), sequences[offsets[1:] - 1].long())
