"""How fast training is on this machine, beside others in the same process.

The plain loop is what one would write first: `nn.TransformerEncoder`, every sequence padded to the longest,
logits for every position. A peer is what one would take instead: `BertForMaskedLM` of `transformers`. All of them train
the same model size on the same synthetic sequences.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bert4rec.data.dataset import PADDING, Dataset
from bert4rec.settings.config import RunConfig, make_config
from bert4rec.settings.defaults import usual_negatives
from bert4rec.settings.networks import ModelConfig
from bert4rec.settings.objectives import Cloze, TrainingConfig
from bert4rec.tasks.cloze import num_masked
from bert4rec.tasks.task import TaskInputs
from bert4rec.tasks.windows import Windows, cut_windows
from bert4rec.training.device import Placement
from bert4rec.training.loop import STEPS_BEFORE_CAPTURE, Loop
from bert4rec.training.specs import MODELS
from bert4rec.world.world import World, like

MASK_PROBABILITY = {"ml-1m": 0.2, "ml-20m": 0.2, "beauty": 0.6, "steam": 0.4}
MAX_LENGTH = {"ml-1m": 200, "ml-20m": 200, "beauty": 50, "steam": 50}
"""ρ and N of the paper."""
MIN_STEPS, MIN_SECONDS = 5, 3.0
"""What is timed, after a warm-up."""
BATCHES_AHEAD = 16
"""Batches that a peer finds ready, as if other processes had made them."""
UNMASKED = -100
"""The label of what is not to be predicted, as torch and transformers have it."""

Peer = Literal["hf"]
"""`hf`: `BertForMaskedLM` of Hugging Face's transformers."""


@dataclass(frozen=True)
class Speed:
    """What a timed stretch of training showed."""

    samples_per_second: float
    tokens_per_second: float
    step_milliseconds: float
    peak_memory_gib: float
    """On a GPU, the most that was allocated since this stretch began; on a CPU, the most the process ever had."""
    warmup_seconds: float
    """Compilation and the first steps."""


def bench_training(
    shape: str,
    placement: Placement,
    *,
    dim: int,
    batch_size: int,
    num_items: int | None = None,
    negatives: int | None = None,
    plain: bool = True,
    peer: Peer | None = None,
) -> dict[str, Any]:
    """Speeds on synthetic data of a data set's shape, ready for JSON.

    `negatives` are those of a sampled softmax, 0 is the exact one, and None whichever such a catalogue gets.
    """
    dataset = synthetic_dataset(shape, num_items)
    if negatives is None:
        negatives = usual_negatives(dataset.num_items)
    config = bench_config(shape, dim, batch_size, negatives)
    windows = bench_windows(dataset, config)
    tokens = _tokens(windows)
    ours = time_ours(dataset, config, placement, tokens)
    least = least_milliseconds(windows, config, dataset.num_items, arithmetic_limit(placement))
    result: dict[str, Any] = {
        "shape": shape,
        "device": placement.name,
        "dim": dim,
        "batch_size": batch_size,
        "max_length": MAX_LENGTH[shape],
        "items": dataset.num_items,
        "negatives": negatives,
        "average_tokens": round(tokens, 2),
        **vars(ours),
        "least_milliseconds": least,
        "share_of_arithmetic_limit": sum(least.values()) / ours.step_milliseconds,
    }
    if plain:
        theirs = _time_plain(dataset, windows, config, placement)
        result["plain"] = vars(theirs)
        result["ratio"] = ours.samples_per_second / theirs.samples_per_second
    if peer == "hf":
        theirs = _time_transformers(dataset, windows, config, placement)
        ratio = ours.samples_per_second / theirs.samples_per_second
        result["hf"] = {**vars(theirs), "ratio": ratio, "version": version("transformers")}
    return result


def bench_config(shape: str, dim: int, batch_size: int, negatives: int = 0) -> RunConfig:
    """The paper's settings: two layers, a head for each 32 of the width, its N and ρ."""
    return make_config(
        "bert4rec",
        {
            "model": {"dim": dim, "heads": max(1, dim // 32), "max_length": MAX_LENGTH[shape]},
            "objective": {
                "mask_probability": MASK_PROBABILITY[shape],
                "prefix_share": 0.0,
                "negatives": negatives,
            },
            "training": {"batch_size": batch_size, "steps": 1_000_000},
        },
    )


def bench_windows(dataset: Dataset, config: RunConfig) -> Windows:
    """The windows of all actions that BERT4Rec with these settings trains on."""
    network, cloze, _ = _sections(config)
    return cut_windows(
        dataset.offsets[:-1],
        dataset.offsets[1:],
        max_length=network.max_length,
        step_share=cloze.window_step,
    )


def _sections(config: RunConfig) -> tuple[ModelConfig, Cloze, TrainingConfig]:
    """The settings of BERT4Rec, which is what is timed."""
    network, cloze, training = config.model, config.objective, config.training
    assert isinstance(network, ModelConfig)
    assert isinstance(cloze, Cloze)
    assert training
    return network, cloze, training


def synthetic_dataset(shape: str, num_items: int | None = None) -> Dataset:
    """A dataset in memory, with the users, items, lengths and popularity of a data set.

    A larger catalogue gets the same items under numbers spread over all of it.
    """
    world = World.generate(like(shape))
    sequences = world.sequences() + np.int32(1)
    if num_items:
        numbers = np.random.default_rng(1).choice(num_items, world.config.shape.num_items, replace=False) + 1
        sequences = numbers.astype(np.int32)[sequences - 1]
    counts = {"items": num_items or world.config.shape.num_items}
    return Dataset(Path(), {"name": f"synthetic-{shape}", "counts": counts}, sequences, world.offsets, None)


def time_ours(dataset: Dataset, config: RunConfig, placement: Placement, tokens: float) -> Speed:
    """The speed of our training, on `tokens` a sample on average."""
    _forget_peak(placement)
    training = _sections(config)[2]
    inputs = TaskInputs(
        dataset, dataset.offsets[1:], config, seed=1, device=placement.device, dtype=placement.dtype
    )
    task = MODELS["bert4rec"].make_task(inputs)
    loop = Loop(task, training, device=placement.device, seed=1)
    state = {"step": 0}

    def step() -> None:
        state["step"] += 1
        loop.run_steps(state["step"])

    return _time(step, placement, training.batch_size, tokens)


def _time_plain(dataset: Dataset, windows: Windows, config: RunConfig, placement: Placement) -> Speed:
    _forget_peak(placement)
    network, cloze, training = _sections(config)
    model = _PlainModel(dataset.num_items, network).to(placement.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(1)

    def loss() -> Tensor:
        chosen = rng.integers(len(windows), size=training.batch_size)
        items = torch.from_numpy(
            _padded(dataset.sequences, windows, chosen, network.max_length, left=True)
        ).to(placement.device)
        masked = torch.rand(items.shape, device=items.device) < cloze.mask_probability
        masked &= items != PADDING
        masked[:, -1] = True
        logits = model(items.masked_fill(masked, dataset.mask_number))
        return F.cross_entropy(logits.flatten(0, 1), items.masked_fill(~masked, UNMASKED).flatten())

    return _time(
        _step(loss, optimizer, training, placement), placement, training.batch_size, _tokens(windows)
    )


def _step(
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    training: TrainingConfig,
    placement: Placement,
) -> Callable[[], None]:
    """A training step as everybody writes it, in the precision that ours has."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]

    def step() -> None:
        with torch.autocast(placement.device.type, torch.bfloat16, enabled=placement.dtype is not None):
            value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        optimizer.step()

    return step


def _time_transformers(dataset: Dataset, windows: Windows, config: RunConfig, placement: Placement) -> Speed:
    """`BertForMaskedLM` as its users train it: padded to the longest of a batch, its own loss, a fused AdamW.

    Its batches are on the device before the clock starts, so that nothing but the training counts.
    """
    _forget_peak(placement)
    network, cloze, training = _sections(config)
    model = transformers_model(dataset.num_items, network).to(placement.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rng = np.random.default_rng(1)

    def batch() -> dict[str, Tensor]:
        chosen = rng.integers(len(windows), size=training.batch_size)
        longest = int(windows.length[chosen].max())
        # Padding comes last, as transformers' own collators have it.
        items = torch.from_numpy(_padded(dataset.sequences, windows, chosen, longest, left=False))
        masked = (torch.rand(items.shape) < cloze.mask_probability) & (items != PADDING)
        return {
            "input_ids": items.masked_fill(masked, dataset.mask_number),
            "attention_mask": (items != PADDING).long(),
            "labels": items.masked_fill(~masked, UNMASKED),
        }

    ready = cycle(
        [
            {name: tensor.to(placement.device) for name, tensor in batch().items()}
            for _ in range(BATCHES_AHEAD)
        ]
    )

    def loss() -> Tensor:
        value: Tensor = model(**next(ready)).loss
        return value

    return _time(
        _step(loss, optimizer, training, placement), placement, training.batch_size, _tokens(windows)
    )


def transformers_model(num_items: int, size: ModelConfig) -> nn.Module:
    """BERT4Rec's size in `transformers`, with the attention of torch that it takes by default."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=num_items + 2,
        hidden_size=size.dim,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.dim * size.feed_forward,
        max_position_embeddings=size.max_length,
        type_vocab_size=1,
        pad_token_id=PADDING,
        hidden_dropout_prob=size.hidden_dropout,
        attention_probs_dropout_prob=size.attention_dropout,
        attn_implementation="sdpa",
    )
    model: nn.Module = BertForMaskedLM(config)
    return model


class _PlainModel(nn.Module):
    def __init__(self, num_items: int, size: ModelConfig) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items + 2, size.dim, padding_idx=PADDING)
        self.positions = nn.Embedding(size.max_length, size.dim)
        layer = nn.TransformerEncoderLayer(
            size.dim, size.heads, size.dim * size.feed_forward, size.hidden_dropout, "gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.output = nn.Linear(size.dim, size.dim)
        self.bias = nn.Parameter(torch.zeros(num_items + 2))

    def forward(self, items: Tensor) -> Tensor:
        x = self.items(items) + self.positions.weight
        x = self.encoder(x, src_key_padding_mask=items == PADDING)
        return F.gelu(self.output(x)) @ self.items.weight.T + self.bias


def _padded(
    sequences: NDArray[np.int32],
    windows: Windows,
    chosen: NDArray[np.int64],
    length: int,
    *,
    left: bool,
) -> NDArray[np.int64]:
    """One row a window, filled up with padding on the left or on the right."""
    table = np.zeros((len(chosen), length), np.int64)
    for row, window in enumerate(chosen):
        begin, size = windows.begin[window], windows.length[window]
        place = slice(length - size, length) if left else slice(size)
        table[row, place] = sequences[begin : begin + size]
    return table


def _tokens(windows: Windows) -> float:
    """Of a sample, on average."""
    return float(windows.length.mean())


def _time(step: Callable[[], None], placement: Placement, batch_size: int, tokens: float) -> Speed:
    """Warm up, then repeat a step until enough time has passed; the device is waited for before each reading."""
    began = time.perf_counter()
    for _ in range(STEPS_BEFORE_CAPTURE + 2):
        step()
    _wait(placement)
    warm = time.perf_counter()
    steps = 0
    while steps < MIN_STEPS or time.perf_counter() - warm < MIN_SECONDS:
        step()
        steps += 1
    _wait(placement)
    seconds = (time.perf_counter() - warm) / steps
    return Speed(
        batch_size / seconds, batch_size * tokens / seconds, seconds * 1000, _peak(placement), warm - began
    )


def _peak(placement: Placement) -> float:
    if placement.device.type == "cuda":
        return torch.cuda.max_memory_allocated(placement.device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _wait(placement: Placement) -> None:
    if placement.device.type == "cuda":
        torch.cuda.synchronize(placement.device)


def _forget_peak(placement: Placement) -> None:
    if placement.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(placement.device)


def flops_by_part(windows: Windows, config: RunConfig, num_items: int) -> dict[str, float]:
    """Multiplications and additions a sample needs, forward and backward, counting real tokens only.

    The last layer and the output layer are needed at masked positions alone.
    """
    size, cloze, _ = _sections(config)
    length = windows.length.astype(np.float64)
    masked = num_masked(torch.from_numpy(windows.length), cloze.mask_probability).numpy()
    inner = size.dim**2 * (4 + 2 * size.feed_forward)
    last_layer = length * 2 * size.dim**2 + masked * (inner - 2 * size.dim**2)
    parts = {
        "maps": (size.layers - 1) * length * inner + last_layer + masked * size.dim**2,
        "attention": 2 * size.dim * length * ((size.layers - 1) * length + masked),
        "softmax": masked * size.dim * (cloze.negatives or num_items),
    }
    return {part: float(6 * np.mean(products)) for part, products in parts.items()}


def least_milliseconds(
    windows: Windows, config: RunConfig, num_items: int, operations_per_second: float
) -> dict[str, float]:
    """What the products of a step take at this rate."""
    _, _, training = _sections(config)
    return {
        part: round(1000 * training.batch_size * flops / operations_per_second, 4)
        for part, flops in flops_by_part(windows, config, num_items).items()
    }


def arithmetic_limit(placement: Placement) -> float:
    """Operations a second that this device reaches in one large matrix product."""
    size = 8192 if placement.device.type == "cuda" else 2048
    matrix = torch.randn(size, size, device=placement.device, dtype=placement.dtype or torch.float32)
    return 2 * size**3 / best_seconds(lambda: matrix @ matrix, placement)


def best_seconds(work: Callable[[], object], placement: Placement) -> float:
    """The shortest of ten times."""
    best = float("inf")
    for _ in range(10):
        _wait(placement)
        began = time.perf_counter()
        work()
        _wait(placement)
        best = min(best, time.perf_counter() - began)
    return best
