"""The demo: the built-in world from log to report, so that a newcomer sees every stage at work.

It makes a shop whose best possible ranking is known, prepares its log, trains BERT4Rec, judges it beside POP
and beside the best possible, and shows what is recommended to a few users, in titles one can read.
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
from bert4rec.data.synthetic import World, WorldConfig, best_scores
from bert4rec.evaluation.protocol import Scorer
from bert4rec.models.pop import Pop
from bert4rec.training.config import load_preset, make_config
from bert4rec.training.judge import judge, metrics_of
from bert4rec.training.run import Plan
from bert4rec.training.task import make_scorer
from bert4rec.training.train import Surroundings, train

SHOWN_USERS = 3
SHOWN_ITEMS = 6
"""Of each history, the newest; and of each recommendation, the best."""
MODELS = ("POP", "BERT4Rec", "best possible")


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
    """Model → protocol → metric."""
    examples: list[Example]

    @property
    def share_of_best(self) -> float:
        """How much of the best possible NDCG@10, in full ranking, BERT4Rec reaches."""
        return self.metrics["BERT4Rec"]["full"]["NDCG@10"] / self.metrics["best possible"]["full"]["NDCG@10"]


def run_demo(folder: Path, around: Surroundings, *, seed: int = 1, overwrite: bool = False) -> Demo:
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
    # Refitting would double the wait, and in a world that never changes the newest actions teach nothing new.
    plan = Plan.for_dataset(
        dataset, make_config(load_preset("demo")), preset="demo", seed=seed, split=None, refit=False
    )
    run = train(dataset, folder / "run", plan, around)
    split = make_split(dataset)
    scorers: dict[str, Scorer] = {
        "POP": Pop.fit(dataset, split.training_end("test")).scores,
        "BERT4Rec": make_scorer(
            run.load_model("test", around.placement.device), dtype=around.placement.dtype
        ),
        "best possible": best_scores(dataset),
    }
    metrics = {name: metrics_of(judge(scorer, dataset, split, "test")) for name, scorer in scorers.items()}
    found = Demo(dataset, run.path, metrics, show_examples(dataset, split, scorers, seed=seed))
    (folder / "result.json").write_text(json.dumps({"metrics": metrics}, indent=2) + "\n", encoding="utf-8")
    return found


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
