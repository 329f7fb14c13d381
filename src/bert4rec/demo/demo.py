"""The demo: the built-in world from log to report, so that a newcomer sees every stage at work.

It makes a shop whose best possible ranking is known, prepares its log, trains BERT4Rec and the baselines of the
paper, judges them beside the best possible, and shows what is recommended to a few users, in titles one can read.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import histories_before
from bert4rec.data.prepare import prepare
from bert4rec.data.splits import Split, make_split
from bert4rec.evaluation.judge import judge, metrics_of
from bert4rec.evaluation.protocol import Scorer
from bert4rec.training.config import make_config
from bert4rec.training.presets import load_preset
from bert4rec.training.run import Plan, Run
from bert4rec.training.specs import MODELS
from bert4rec.training.train import RunContext, train
from bert4rec.world.world import World, WorldConfig, best_scores

SHOWN_USERS = 3
SHOWN_ITEMS = 6
"""Of each history, the newest; and of each recommendation, the best."""
BEST = "best possible"
SHOWN_MODELS = ("POP", "BERT4Rec", BEST)
"""Whose recommendations are shown."""


@dataclass(frozen=True)
class Example:
    """One user: what came before, what came next, what was recommended."""

    user: str
    history: list[str]
    """Oldest first."""
    next_item: str
    recommended: dict[str, list[str]]
    """Model → titles, best first."""


@dataclass(frozen=True)
class Demo:
    """What the demo found out."""

    dataset: Dataset
    run_folder: Path
    metrics: dict[str, dict[str, dict[str, float]]]
    """Title of the model → protocol → metric; the best possible comes last."""
    examples: list[Example]

    @property
    def share_of_best(self) -> float:
        """How much of the best possible NDCG@10, in full ranking, BERT4Rec reaches."""
        return self.metrics["BERT4Rec"]["full"]["NDCG@10"] / self.metrics[BEST]["full"]["NDCG@10"]


def run_demo(folder: Path, around: RunContext, *, seed: int = 1, overwrite: bool = False) -> Demo:
    """Run every stage; artefacts go below `folder`."""
    say = around.listener.say
    config = WorldConfig(seed=seed)
    say("Making the built-in world: a shop, its visitors, and a log of what they did.")
    origin = {"name": "synthetic", "world": config.to_json()}
    dataset = prepare(
        World.generate(config).log(),
        folder / "dataset",
        name="built-in world",
        source=origin,
        overwrite=overwrite,
    )
    say(
        f"Prepared {dataset.num_users:,} users, {dataset.num_items:,} items, {dataset.num_actions:,} actions."
    )
    runs = {name: _train(name, dataset, run_folder(folder, name), around, seed=seed) for name in MODELS}
    split = make_split(dataset)
    metrics = {MODELS[name].title: run.result["lines"][-1]["metrics"] for name, run in runs.items()}
    metrics[BEST] = metrics_of(judge(best_scores(dataset), dataset, split, "test"))
    scorers = [
        *(runs[name].scorer("final", around.placement) for name in ("pop", "bert4rec")),
        best_scores(dataset),
    ]
    shown = dict(zip(SHOWN_MODELS, scorers, strict=True))
    found = Demo(dataset, runs["bert4rec"].path, metrics, show_examples(dataset, split, shown, seed=seed))
    (folder / "result.json").write_text(json.dumps({"metrics": metrics}, indent=2) + "\n", encoding="utf-8")
    return found


def run_folder(folder: Path, model: str) -> Path:
    """Where in the demo's folder the run of a model is."""
    return folder / "run" if model == "bert4rec" else folder / "baselines" / model


def _train(name: str, dataset: Dataset, folder: Path, around: RunContext, *, seed: int) -> Run:
    around.listener.say(f"{MODELS[name].title}:")
    config = make_config(name, load_preset(name, "demo"))
    # Refitting would double the wait, and in a world that never changes the newest actions teach nothing new.
    plan = Plan.for_dataset(dataset, name, config, preset="demo", seed=seed, split=None, refit=False)
    return train(dataset, folder, plan, around)


def show_examples(dataset: Dataset, split: Split, scorers: dict[str, Scorer], *, seed: int) -> list[Example]:
    """A few users with histories long enough to tell a story, drawn at random."""
    titles = ["", *dataset.items()["title"]]
    user_ids = dataset.users()["id"].to_list()
    long_enough = np.flatnonzero(split.test.positions - dataset.offsets[split.test.users] >= SHOWN_ITEMS)
    chosen = np.sort(np.random.default_rng(seed).choice(long_enough, SHOWN_USERS, replace=False))
    users, positions = split.test.users[chosen], split.test.positions[chosen]
    histories = histories_before(dataset, users, positions)
    best = {name: _best_unseen(scorer, dataset, users, positions) for name, scorer in scorers.items()}
    return [
        Example(
            user=str(user_ids[user]),
            history=[titles[item] for item in histories.newest(SHOWN_ITEMS)[slice(row, row + 1)].flat()[1]],
            next_item=titles[dataset.sequences[position]],
            recommended={name: [titles[item] for item in items[row]] for name, items in best.items()},
        )
        for row, (user, position) in enumerate(zip(users, positions, strict=True))
    ]


def _best_unseen(scorer: Scorer, dataset: Dataset, users: Any, positions: Any) -> Any:
    """The best items that are not in the history, [users, SHOWN_ITEMS]."""
    histories = histories_before(dataset, users, positions)
    scores = scorer(users, histories)
    table = np.array(scores.cpu() if hasattr(scores, "cpu") else scores, dtype=np.float64)
    rows, items = histories.flat()
    table[rows, items] = -np.inf
    table[:, 0] = -np.inf
    return np.argsort(-table, axis=1, kind="stable")[:, :SHOWN_ITEMS]
