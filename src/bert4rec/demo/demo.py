"""The demo: the built-in world from log to report, so that a newcomer sees every stage.

It makes a shop whose best possible ranking is known, prepares its log, trains BERT4Rec+, BERT4Rec and the paper's
baselines, compares them with the best possible ranking, and shows recommendations for a few users with readable
titles.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.artefact import refuse_existing
from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import histories_before
from bert4rec.data.prepare import prepare
from bert4rec.data.splits import Split, make_split
from bert4rec.demo.demo_page import make_page
from bert4rec.demo.lane import Task, train_side_by_side
from bert4rec.evaluation.judge import judge, metrics_of
from bert4rec.evaluation.protocol import Scorer
from bert4rec.export.exporter import export_run
from bert4rec.settings.config import make_config
from bert4rec.settings.presets import load_preset
from bert4rec.training.device import place
from bert4rec.training.reporting.watch import Listener
from bert4rec.training.run import Plan, Run
from bert4rec.training.train import RunContext, train
from bert4rec.world.world import World, WorldConfig, best_scores

DEMO_MODELS = {
    "pop": "POP",
    "bpr-mf": "BPR-MF",
    "ncf": "NCF",
    "fpmc": "FPMC",
    "gru4rec": "GRU4Rec",
    "gru4rec+": "GRU4Rec+",
    "caser": "Caser",
    "sasrec": "SASRec",
    "bert4rec": "BERT4Rec",
    "bert4rec+": "BERT4Rec+",
}
"""The models of the demo: name → title. Other models are never added."""
SERVED = "bert4rec+"
"""The model that is exported and shown."""
SHOWN_USERS = 3
SHOWN_ITEMS = 6
"""The newest of each history, and the best of each recommendation."""
BEST = "best possible"
SHOWN_MODELS = ("POP", DEMO_MODELS[SERVED], BEST)
"""The models whose recommendations are shown."""


@dataclass(frozen=True)
class Example:
    """One user: the history, the true next item, and what was recommended."""

    user: str
    history: list[str]
    """Oldest first."""
    next_item: str
    recommended: dict[str, list[str]]
    """Model → titles, best first."""


@dataclass(frozen=True)
class Demo:
    """What the demo has made and measured."""

    folder: Path
    dataset: Dataset
    run: Run
    """Of BERT4Rec+."""
    metrics: dict[str, dict[str, dict[str, float]]]
    """Title of the model → protocol → metric; the best possible ranking comes last."""
    examples: list[Example]

    @property
    def page(self) -> Path:
        """The report, an HTML file."""
        return self.folder / "report.html"

    @property
    def model(self) -> Path:
        """The exported BERT4Rec+, which can be served."""
        return self.folder / "model"

    @property
    def best(self) -> dict[str, dict[str, float]]:
        """The metrics of the best possible ranking."""
        return self.metrics[BEST]

    @property
    def share_of_best(self) -> float:
        """The NDCG@10 of BERT4Rec+ in full ranking, as a share of the best possible."""
        return self.metrics[DEMO_MODELS[SERVED]]["full"]["NDCG@10"] / self.best["full"]["NDCG@10"]


def run_demo(
    folder: str | Path = "demo",
    *,
    seed: int = 1,
    overwrite: bool = False,
    device: str = "auto",
    listener: Listener | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Demo:
    """Run every stage on the built-in world: prepare, train ten models, evaluate, export, report.

    It takes a minute or two. The dataset, the runs, the exported model and report.html are written to `folder`.

    Parameters
    ----------
    folder
        The folder to write to.
    seed
        Of the built-in world and of training.
    overwrite
        Replace what an earlier demo left in the folder.
    device
        "auto", "cpu", "cuda" or "cuda:1".
    listener
        Hears messages and how training is going. By default, nothing is shown.
    should_stop
        Training stops with a checkpoint as soon as this returns True.
    """
    folder = Path(folder)
    for name in DEMO_MODELS:
        _clear(run_folder(folder, name), overwrite=overwrite)
    context = RunContext(place(device), listener or Quiet(), should_stop=should_stop)
    dataset = _prepare(folder / "dataset", seed, overwrite=overwrite)
    context.listener.say(
        f"Prepared {dataset.num_users:,} users, {dataset.num_items:,} items, {dataset.num_actions:,} actions."
    )
    runs = _train_all(dataset, folder, context, seed=seed)
    split = make_split(dataset)
    metrics = {DEMO_MODELS[name]: run.result["lines"][-1]["metrics"] for name, run in runs.items()}
    metrics[BEST] = metrics_of(judge(best_scores(dataset), dataset, split, "test"))
    scorers = [
        *(runs[name].scorer("final", context.placement) for name in ("pop", SERVED)),
        best_scores(dataset),
    ]
    examples = show_examples(dataset, split, dict(zip(SHOWN_MODELS, scorers, strict=True)), seed=seed)
    demo = Demo(folder, dataset, runs[SERVED], metrics, examples)
    (folder / "result.json").write_text(json.dumps({"metrics": metrics}, indent=2) + "\n", encoding="utf-8")
    export_run(demo.run, demo.model, sampled_from=dataset, overwrite=True)
    demo.page.write_text(make_page(demo), encoding="utf-8")
    return demo


class Quiet:
    """A listener that does nothing."""

    def stage(self, *_: object) -> None: ...

    def progress(self, *_: object) -> None: ...

    def busy(self, *_: object) -> None: ...

    def say(self, *_: object) -> None: ...

    def warn(self, *_: object) -> None: ...


def run_folder(folder: Path, model: str) -> Path:
    """Where in the demo's folder the run of a model is."""
    return folder / "run" if model == SERVED else folder / "baselines" / model


def _clear(folder: Path, *, overwrite: bool) -> None:
    if folder.exists():
        refuse_existing(folder, "config.json", overwrite=overwrite)
        shutil.rmtree(folder)


def _prepare(folder: Path, seed: int, *, overwrite: bool) -> Dataset:
    config = WorldConfig(seed=seed)
    source = {"name": "synthetic", "world": config.to_json()}
    log = World.generate(config).log()
    return prepare(log, folder, name="built-in world", source=source, overwrite=overwrite)


def _train_all(dataset: Dataset, folder: Path, context: RunContext, *, seed: int) -> dict[str, Run]:
    """On a CPU side by side; on a GPU, which one model fills, one after the other."""
    if context.placement.device.type != "cpu":
        for name, title in DEMO_MODELS.items():
            context.listener.say(f"{title}:")
            train_model(name, dataset, run_folder(folder, name), context, seed=seed)
    else:
        # The longest first, so that no core is idle in the end.
        tasks = [
            Task(name, str(dataset.folder), str(run_folder(folder, name)), seed)
            for name in reversed(DEMO_MODELS)
        ]
        context.listener.say(f"Training {len(tasks)} models side by side.")
        for task in train_side_by_side(tasks, context.should_stop):
            found = Run.open(task.folder).result["lines"][-1]["metrics"]["full"]["NDCG@10"]
            context.listener.say(f"{DEMO_MODELS[task.model]}: NDCG@10 {found:.4f}")
    return {name: Run.open(run_folder(folder, name)) for name in DEMO_MODELS}


def train_model(name: str, dataset: Dataset, folder: Path, context: RunContext, *, seed: int) -> None:
    config = make_config(name, load_preset(name, "demo"))
    # A refit would double the waiting time, and in a world that never changes the newest actions teach nothing new.
    plan = Plan.for_dataset(dataset, name, config, preset="demo", seed=seed, split=None, refit=False)
    train(dataset, folder, plan, context)


def show_examples(dataset: Dataset, split: Split, scorers: dict[str, Scorer], *, seed: int) -> list[Example]:
    """A few users with long enough histories, drawn at random."""
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
