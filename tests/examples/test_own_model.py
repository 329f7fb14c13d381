"""examples/own_model.py: a model of one's own can do what the built-in ones can."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from bert4rec import SequenceEncoder, register
from bert4rec.data.histories import Histories
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.recommend.recommender import Recommender
from bert4rec.settings.config import choose_config, list_settings
from bert4rec.settings.networks import ModelConfig, ModelSettings
from bert4rec.settings.objectives import Cloze, NextItem, ObjectiveSettings
from bert4rec.settings.sections import SECTIONS, list_models
from bert4rec.tasks import ClozeTask, CountingTask, NextItemTask, PairTask
from bert4rec.tasks.task import TaskKind
from bert4rec.training.device import Placement
from bert4rec.training.loop import Interrupted
from bert4rec.training.run import Plan, Run
from bert4rec.training.specs import MODELS
from bert4rec.training.train import RunContext, train
from tests.conftest import MakeDataset
from tests.training.tiny import CPU, Witness, after

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"
RING = [[(user + step) % 20 for step in range(8 + user % 3)] for user in range(40)]
"""Around a ring of twenty items, one step at a time: what comes next follows from the newest item."""


def forget(*models: str) -> None:
    for model in models:
        for table in (MODELS, SECTIONS):
            table.pop(model, None)


@pytest.fixture
def example() -> Iterator[ModuleType]:
    spec = spec_from_file_location("own_model", EXAMPLE)
    assert spec
    assert spec.loader
    sys.modules["own_model"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("own_model", None)
    forget("recency")


def train_it(
    make_dataset: MakeDataset,
    folder: Path,
    settings: Mapping[str, object] | None = None,
    stop_after: int | None = None,
) -> Run:
    dataset = make_dataset(RING)
    given = {"training.steps": 120, "training.learning_rate": 0.03, **(settings or {})}
    config = choose_config(dataset, "recency", settings=given)
    plan = Plan.for_dataset(dataset, "recency", config, preset=None, seed=1, split=None)
    context = RunContext(Placement(CPU, None), Witness())
    if stop_after is not None:
        context = RunContext(Placement(CPU, None), Witness(), should_stop=after(stop_after))
    return train(dataset, folder, plan, context)


def test_it_runs_as_a_script() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    assert "NDCG@10" in done.stdout


def test_it_takes_fewer_than_forty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40


@pytest.mark.usefixtures("example")
def test_it_is_trained_judged_opened_again_and_recommends(make_dataset: MakeDataset, tmp_path: Path) -> None:
    run = train_it(make_dataset, tmp_path / "run")
    assert run.result["lines"][-1]["metrics"]["sampled"]["HR@1"] > 0.9, "the ring is learned"
    opened = Run.open(run.path)
    assert opened.plan == run.plan
    recommender = Recommender.load(run.path)
    assert recommender.max_history == 20
    ids = ["", *opened.dataset.items()["id"]]
    scores = np.asarray(
        opened.scorer("final", Placement(CPU, None))(np.array([0]), Histories.from_lists([[3, 7]]))
    )
    found = recommender.recommend([ids[3], ids[7]], k=1, exclude_seen=False)
    assert found.items[0].item_id == ids[scores[0].argmax()]


@pytest.mark.usefixtures("example")
def test_an_interrupted_training_is_resumed(make_dataset: MakeDataset, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train_it(make_dataset, tmp_path / "stopped", stop_after=50)
    resumed, straight = (train_it(make_dataset, tmp_path / name) for name in ("stopped", "straight"))
    ours, theirs = (each.result["lines"][-1]["metrics"] for each in (resumed, straight))
    assert ours == theirs


@pytest.mark.usefixtures("example")
def test_its_settings_are_listed_set_and_checked(make_dataset: MakeDataset, tmp_path: Path) -> None:
    assert list_models()[-1] == "recency"
    listed = {each.key: each for each in list_settings("recency")}
    assert listed["model.decay"].value == 0.5
    assert listed["model.decay"].meaning.startswith("Weight of an item")
    assert listed["objective.loss"].value == "cross-entropy"
    run = train_it(make_dataset, tmp_path / "run", {"model.decay": 0.25, "training.steps": 10})
    assert run.plan.config.as_dict()["model"] == {"dim": 32, "decay": 0.25}
    dataset = make_dataset(RING)
    with pytest.raises(UsageError, match=r"model.decay = 2: must be less than or equal to 1"):
        choose_config(dataset, "recency", settings={"model.decay": 2})
    with pytest.raises(UsageError, match=r"recency has no setting model.deacy. Did you mean model.decay?"):
        choose_config(dataset, "recency", settings={"model.deacy": 0.2})
    with pytest.raises(NotFoundError, match="Unknown preset 'demo' of recency"):
        choose_config(dataset, "recency", preset="demo")


def test_a_run_of_a_model_that_is_not_registered_says_what_to_do(
    make_dataset: MakeDataset, tmp_path: Path, example: ModuleType
) -> None:
    run = train_it(make_dataset, tmp_path / "run", {"training.steps": 10})
    forget("recency")
    with pytest.raises(
        NotFoundError, match=r"Unknown model 'recency'.*`bert4rec.register\('recency', ...\)`"
    ):
        Run.open(run.path)
    assert example.Recency.__name__ == "Recency"


@pytest.mark.usefixtures("example")
def test_a_model_of_a_notebook_is_listed_without_the_meaning_of_its_settings() -> None:
    """Its source cannot be read."""
    del sys.modules["own_model"]
    assert {each.key: each.meaning for each in list_settings("recency")}["model.decay"] == ""


@dataclass(frozen=True)
class NoDefault(ModelSettings):
    dim: int


def test_what_cannot_be_registered_is_refused(example: ModuleType) -> None:
    model, settings = example.Recency, example.RecencySettings

    class Unfinished(SequenceEncoder):
        pass

    wrong: list[tuple[str, object, object, str]] = [
        ("bert4rec", model, settings, "A model 'bert4rec' already exists"),
        ("my model", model, settings, "`name` must be lower-case letters"),
        ("mine", dict, settings, "`model` must be a class that extends SequenceEncoder"),
        (
            "mine",
            MODELS["bpr-mf"].network,
            settings,
            "requires a `model` that extends SequenceEncoder; BPRMF",
        ),
        ("mine", Unfinished, settings, "Unfinished lacks what every model must have: encode, item_vectors"),
        ("mine", model, dict, "`settings` must be a dataclass that extends ModelSettings"),
        ("mine", model, NoDefault, "Every field of NoDefault must have a default"),
    ]

    class NoArguments(example.Recency):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(2, settings())

    class NoLength(example.Recency):  # type: ignore[name-defined,misc]
        def __init__(self, *made_with: object) -> None:
            super().__init__(*made_with)
            del self.max_length

    wrong += [
        (
            "mine",
            NoArguments,
            settings,
            r"NoArguments\(num_items, settings, generator\).* takes 1 positional",
        ),
        (
            "mine",
            NoLength,
            settings,
            "`max_length` if it extends SequenceEncoder; trying it failed: 'NoLength'",
        ),
    ]
    for name, network, fields, message in wrong:
        with pytest.raises(UsageError, match=message):
            register(name, network, fields)  # type: ignore[arg-type]
    assert "mine" not in list_models()


def test_a_task_a_model_cannot_learn_by_or_settings_of_another_task_are_refused(example: ModuleType) -> None:
    model, settings = example.Recency, example.RecencySettings

    class BothSides(example.Recency):  # type: ignore[name-defined,misc]
        causal = False

    wrong: list[tuple[type, type[TaskKind], type[ObjectiveSettings] | None, str]] = [
        (model, ClozeTask, None, "ClozeTask requires a model with `causal = False`; Recency has True"),
        (BothSides, ClozeTask, None, r"ClozeTask requires a model with an `end_token`.* BothSides has none"),
        (BothSides, NextItemTask, None, "NextItemTask requires a model with `causal = True`"),
        (model, CountingTask, None, "CountingTask requires a model with a method `count`; Recency has none"),
        (MODELS["pop"].network, CountingTask, NextItem, "must be None: there is nothing to train; found Ne"),
        (MODELS["bert4rec"].network, ClozeTask, NextItem, "of ClozeTask must be a class that extends Cloze"),
        (model, NextItemTask, Cloze, "`objective` of NextItemTask must be a class that extends NextItemSet"),
    ]
    for network, task, objective, message in wrong:
        fields = settings if issubclass(network, model) else ModelConfig
        with pytest.raises(UsageError, match=message):
            register("mine", network, fields, task=task, objective=objective)
    with pytest.raises(
        UsageError, match=r"`task` must be a class, such as those of bert4rec.tasks; found 'cloze'"
    ):
        register("mine", model, settings, task="cloze")  # type: ignore[arg-type]
    assert "mine" not in list_models()


@pytest.mark.parametrize(
    ("like", "task"),
    [("bert4rec", ClozeTask), ("gru4rec", NextItemTask), ("bpr-mf", PairTask), ("pop", CountingTask)],
)
def test_a_model_learns_by_any_task_with_the_settings_of_the_task(
    make_dataset: MakeDataset, tmp_path: Path, like: str, task: type[TaskKind]
) -> None:
    register("mine", MODELS[like].network, SECTIONS[like].model, task=task)
    try:
        dataset = make_dataset(RING)
        config = choose_config(dataset, "mine", settings={"training.steps": 2} if like != "pop" else {})
        plan = Plan.for_dataset(dataset, "mine", config, preset=None, seed=1, split=None)
        run = train(dataset, tmp_path / "run", plan, RunContext(Placement(CPU, None), Witness()))
    finally:
        forget("mine")
    assert run.result["lines"][-1]["metrics"]["sampled"]["HR@10"] >= 0


def test_a_cell_that_registers_can_be_run_again(example: ModuleType) -> None:
    class Newer(example.Recency):  # type: ignore[name-defined,misc]
        pass

    before = torch.random.get_rng_state()
    register("recency", Newer, example.RecencySettings, title="Recency 2")
    assert MODELS["recency"].network is Newer
    assert MODELS["recency"].title == "Recency 2"
    assert list_models().count("recency") == 1
    assert torch.equal(torch.random.get_rng_state(), before), "trying a model out draws nothing"
