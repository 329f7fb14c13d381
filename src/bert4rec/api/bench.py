"""How fast training is on this machine, beside others (`peers.py`) in the same process.

All of them train the same model size on the same synthetic sequences.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bert4rec.api.peers import Sections, time_plain, time_transformers
from bert4rec.api.timing import Speed, arithmetic_limit, forget_peak, time_steps
from bert4rec.data.dataset import Dataset
from bert4rec.settings.config import RunConfig, make_config
from bert4rec.settings.defaults import usual_negatives
from bert4rec.settings.networks import ModelConfig
from bert4rec.settings.objectives import Cloze
from bert4rec.tasks.cloze import num_masked
from bert4rec.tasks.task import TaskInputs
from bert4rec.tasks.windows import Windows, cut_windows
from bert4rec.training.device import Placement
from bert4rec.training.loop import Loop
from bert4rec.training.specs import MODELS
from bert4rec.world.world import World, like

MASK_PROBABILITY = {"ml-1m": 0.2, "ml-20m": 0.2, "beauty": 0.6, "steam": 0.4}
MAX_LENGTH = {"ml-1m": 200, "ml-20m": 200, "beauty": 50, "steam": 50}
"""ρ and N of the paper."""

Peer = Literal["hf"]
"""`hf`: `BertForMaskedLM` of Hugging Face's transformers."""


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
    tokens = windows.average_length
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
        theirs = time_plain(dataset, windows, _sections(config), placement)
        result["plain"] = vars(theirs)
        result["ratio"] = ours.samples_per_second / theirs.samples_per_second
    if peer == "hf":
        theirs = time_transformers(dataset, windows, _sections(config), placement)
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


def _sections(config: RunConfig) -> Sections:
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
    forget_peak(placement)
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

    return time_steps(step, placement, training.batch_size, tokens)


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
