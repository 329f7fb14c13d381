"""What the sampled softmax loses against the exact one, in a world whose best possible ranking is known.

`python -m benchmarks.sampled --items 1000000` draws histories from the built-in world's ring of that many items, trains
the same model on them with either softmax, as many steps with each seed, and ranks the validation items among the whole
catalogue. It prints one JSON line, for results/speed-scale.jsonl: NDCG@10 of the best possible ranking, of popularity
and of each softmax by seed, how much the sampled one loses, and samples a second. Users may choose an item again here,
so that histories of a large catalogue are drawn in no time.
"""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.splits import Split, Targets, leave_one_out
from bert4rec.evaluation.judge import rows_per_batch
from bert4rec.evaluation.metrics import summarise
from bert4rec.evaluation.protocol import Scorer, rank_targets
from bert4rec.evaluation.yardsticks import CountingRanker
from bert4rec.models.model import make_scorer
from bert4rec.settings.config import RunConfig, make_config
from bert4rec.settings.defaults import NEGATIVES
from bert4rec.tasks.task import TaskInputs
from bert4rec.training.device import Placement, place
from bert4rec.training.loop import Loop
from bert4rec.training.specs import MODELS
from bert4rec.world.shapes import Shape
from bert4rec.world.world import World, WorldConfig

METRIC = "NDCG@10"
COUNTS = (10, 25, 45, 70, 105, 160, 240, 350, 500)
"""Quantiles of how often items are chosen, as in the default world; only their ratios matter."""
FEW = 500
"""Users for whom the best possible ranking is computed: it takes longer than a model."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--users", type=int, help="default: twice as many as items")
    parser.add_argument("--length", type=int, default=20, help="actions of a user")
    parser.add_argument("--model", default="bert4rec+", choices=["bert4rec+", "bert4rec", "sasrec"])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--negatives", type=int, default=NEGATIVES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--judged", type=int, default=10_000, help="users whose validation items are ranked")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    given.users = given.users or 2 * given.items
    sys.stdout.write(json.dumps(compared(given)) + "\n")


def compared(given: argparse.Namespace) -> dict[str, Any]:
    placement = place(given.device)
    world = make_world(given)
    dataset = draw_dataset(world, given.length)
    split = leave_one_out(dataset)
    judged = some_targets(split, given.judged)
    result: dict[str, Any] = {
        "scale": "sampled softmax",
        "device": placement.name,
        **{name: value for name, value in vars(given).items() if name != "device"},
        "actions": dataset.num_actions,
        "best": value_of(best_scorer(world), dataset, some_targets(split, FEW), "cpu"),
        "popularity": popularity(dataset, split, judged),
    }
    for name, negatives in (("exact", 0), ("sampled", given.negatives)):
        runs = [
            trained(given.model, configured(given, negatives), dataset, split, judged, placement, seed)
            for seed in range(1, given.seeds + 1)
        ]
        values = [value for value, _ in runs]
        result[name] = {
            METRIC: values,
            "mean": float(np.mean(values)),
            "samples_per_second": [round(speed) for _, speed in runs],
        }
    exact = result["exact"]["mean"]
    result["loss"] = 1 - result["sampled"]["mean"] / exact if exact else None
    return result


def make_world(given: argparse.Namespace) -> World:
    """Everybody has the same number of actions, so that they can be drawn position by position."""
    shape = Shape(
        given.users, given.items, given.users * given.length, (given.length,) * 2, COUNTS, source="made up"
    )
    return World.generate(WorldConfig(shape=shape))


def draw_dataset(world: World, length: int) -> Dataset:
    """Histories in which repeats are kept: nobody needs to be remembered while they are drawn."""
    rng, users = np.random.default_rng(1), np.arange(len(world.lengths))
    actions = np.empty((len(users), length), np.int32)
    for position in range(length):
        actions[:, position] = world.ring.draw(
            rng, world.tastes, actions[:, max(0, position - 1) : position], users
        )
    return Dataset.from_sequences(
        actions.ravel() + np.int32(1),
        np.arange(len(users) + 1) * length,
        num_items=world.config.shape.num_items,
        repeats="keep",
    )


def best_scorer(world: World) -> Scorer:
    """The true probabilities of the next item."""

    def scores(users: NDArray[np.int64], histories: Histories) -> NDArray[np.float64]:
        recent = histories.padded(1).astype(np.int64) - 1
        return np.pad(world.ring.probabilities(world.tastes[users], recent), ((0, 0), (1, 0)))

    return scores


def popularity(dataset: Dataset, split: Split, judged: Targets) -> float:
    ranker = CountingRanker(dataset, split.training_end("valid"), pairs=False)
    return summarise(ranker.ranks(judged, "full"), [METRIC])[METRIC]


def some_targets(split: Split, count: int) -> Targets:
    """The validation items of some users, the same at every call."""
    valid = split.valid
    rows = np.sort(np.random.default_rng(2).permutation(len(valid))[:count])
    return Targets(valid.users[rows], valid.positions[rows])


def value_of(scorer: Scorer, dataset: Dataset, judged: Targets, device_type: str) -> float:
    """By the full ranking."""
    nobody = np.zeros((dataset.num_users, 1), np.int32)
    batch = rows_per_batch(dataset.num_items, device_type)
    ranks = rank_targets(scorer, dataset, judged, negatives=nobody, batch_size=batch)
    return summarise(ranks.full, [METRIC])[METRIC]


def configured(given: argparse.Namespace, negatives: int) -> RunConfig:
    network = {"dim": given.dim, "heads": max(1, given.dim // 32), "max_length": given.length}
    dropout = dict.fromkeys(("embedding_dropout", "hidden_dropout", "attention_dropout"), 0.0)
    return make_config(
        given.model,
        {
            "model": network | dropout,
            "objective": {"negatives": negatives},
            "training": {
                "batch_size": given.batch_size,
                "steps": given.steps,
                "warmup_steps": given.steps // 10,
                "learning_rate": given.learning_rate,
            },
        },
    )


def trained(
    model: str,
    config: RunConfig,
    dataset: Dataset,
    split: Split,
    judged: Targets,
    placement: Placement,
    seed: int,
) -> tuple[float, float]:
    """What a training reaches on the validation items, and how many samples a second it took."""
    end, device = split.training_end("valid"), placement.device
    inputs = TaskInputs(dataset, end, config, seed=seed, device=device, dtype=placement.dtype)
    task = MODELS[model].make_task(inputs)
    assert config.training
    loop = Loop(task, config.training, device=device, seed=seed)
    began = time.perf_counter()
    loop.run_steps(config.training.steps)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    loop.catch_up()
    task.model.eval()
    value = value_of(make_scorer(task.model, placement.dtype), dataset, judged, device.type)
    return value, config.training.steps * config.training.batch_size / seconds


if __name__ == "__main__":
    main()
