import json
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.training.config import LIMITS, RunConfig, load_preset, make_config, preset_names
from bert4rec.training.loop import Hooks, Loop
from bert4rec.training.task import ClozeTask
from tests.conftest import MakeDataset
from tests.training.tiny import random_histories, tiny_config

ALL_SETTINGS = {
    f"{section}.{each.name}" for section, part in vars(RunConfig()).items() for each in fields(part)
}


def test_the_presets_of_the_paper_come_tuned_and_in_the_papers_own_values() -> None:
    named = {"ml-1m", "beauty", "steam", "ml-20m"}
    assert set(preset_names()) == named | {f"{name}-paper" for name in named} | {"demo"}


@pytest.mark.parametrize("name", preset_names())
def test_every_value_of_a_preset_is_a_setting_and_is_taken_over(name: str) -> None:
    config = make_config(load_preset(name)).as_dict()
    for section, keys in load_preset(name).items():
        assert keys.items() <= config[section].items()


def test_an_unknown_preset_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(NotFoundError, match=r"no preset 'ml-1n'. Did you mean ml-1m"):
        load_preset("ml-1n")


def test_settings_win_over_the_preset_and_the_last_one_wins() -> None:
    config = make_config({"model": {"dim": 32, "layers": 3}}, ["model.dim=64", "model.dim = 128"])
    assert (config.model.dim, config.model.layers) == (128, 3)


def test_settings_take_the_types_of_their_fields() -> None:
    config = make_config({}, ["training.learning_rate=3e-4", "training.steps=70", "model.hidden_dropout=0"])
    assert config.training.learning_rate == 3e-4
    assert isinstance(config.training.steps, int)
    assert isinstance(config.model.hidden_dropout, float)


def test_a_configuration_survives_json() -> None:
    config = tiny_config("training.learning_rate=0.1", "cloze.prefix_share=0.3")
    assert make_config(json.loads(json.dumps(config.as_dict()))) == config


@pytest.mark.parametrize("setting", ["dim=3", "model.dim", "model=3", "model.dim:3"])
def test_a_setting_of_another_form_is_refused_with_an_example(setting: str) -> None:
    with pytest.raises(UsageError, match=r"not of the form section.key=value, such as model.dim=128"):
        make_config({}, [setting])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("modle.dim=3", "no setting modle. Did you mean model?"),
        ("model.dmi=3", "no setting model.dmi. Did you mean model.dim?"),
        ("training.lr=3", "no setting training.lr. Known: training.batch_size, training.steps, "),
        ("model.dim.x=3", "no setting model.dim.x. Did you mean model.dim?"),
        (".dim=3", "no setting . Known: model, cloze, training."),
    ],
)
def test_a_setting_nobody_reads_is_refused_with_the_nearest_one(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_config({}, [setting])
    assert message in str(refused.value)


def test_a_preset_with_a_value_nobody_reads_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no setting training.epochs"):
        make_config({"training": {"epochs": 3}})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.dim=wide", "model.dim = wide: Input should be a valid integer"),
        ("model.dim=64.5", "model.dim = 64.5: Input should be a valid integer"),
        ("training.learning_rate=fast", "training.learning_rate = fast: Input should be a valid number"),
        ("training.learning_rate=nan", "Input should be a finite number"),
        ("training.learning_rate=inf", "Input should be a finite number"),
        ("training.learning_rate=0", "Input should be greater than 0"),
        ("training.warmup_steps=-1", "Input should be greater than or equal to 0"),
        ("training.steps=0", "training.steps = 0: Input should be greater than or equal to 1"),
        ("training.window_step=1.1", "Input should be less than or equal to 1"),
        ("model.heads=0", "model.heads = 0: Input should be greater than or equal to 1"),
        ("model.layers=0", "Input should be greater than or equal to 1"),
        ("model.max_length=1", "Input should be greater than or equal to 2"),
        ("model.hidden_dropout=1", "Input should be less than 1"),
        ("model.attention_dropout=nan", "Input should be"),
        ("cloze.mask_probability=0", "cloze.mask_probability = 0: Input should be greater than 0"),
        ("cloze.last_item_share=-0.1", "Input should be greater than or equal to 0"),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_config({}, [setting])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.heads=3", ["model", "dim 64 is no multiple of the 3 heads"]),
        ("cloze.prefix_share=0.95", ["cloze", "last_item_share = 0.1, prefix_share = 0.95"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_their_values(
    setting: str, words: list[str]
) -> None:
    with pytest.raises(UsageError, match="do not go together") as refused:
        make_config({}, [setting])
    assert all(word in str(refused.value) for word in words)


def test_every_setting_has_limits() -> None:
    assert {f"{section}.{key}" for section, keys in LIMITS.items() for key in keys} == ALL_SETTINGS


def test_the_command_says_what_is_wrong_in_one_line(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(random_histories()).path
    command = [sys.executable, "-m", "bert4rec", "train", str(dataset), "-o", str(dataset.parent / "run")]
    done = subprocess.run([*command, "--set", "model.heads=0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: model.heads = 0: Input should be greater than or equal to 1.\n"


OTHER_VALUES = {
    "model.dim": 12,
    "model.layers": 1,
    "model.heads": 4,
    "model.feed_forward": 2,
    "model.max_length": 6,
    "model.embedding_dropout": 0.4,
    "model.hidden_dropout": 0.4,
    "model.attention_dropout": 0.4,
    "cloze.mask_probability": 0.7,
    "cloze.last_item_share": 0.6,
    "cloze.prefix_share": 0.6,
    "training.batch_size": 9,
    "training.steps": 10,
    "training.learning_rate": 2e-2,
    "training.warmup_steps": 4,
    "training.weight_decay": 0.5,
    "training.clip_norm": 0.01,
    "training.window_step": 0.25,
    "training.validate_every": 4,
    "training.patience": 2,
}


def what_happens(dataset: Dataset, config: RunConfig) -> list[tuple[float, float]]:
    """When there is a validation, what the loss is then, and, by its length, when training stops.

    Validation never improves, so that patience runs out at step 12 of the tiny settings.
    """
    device = torch.device("cpu")
    end = make_split(dataset).training_end("valid")
    task = ClozeTask(dataset, end, config, seed=1, device=device, dtype=None)
    loop = Loop(task, config.training, device=device, seed=1)
    history = loop.run(config.training.steps, Hooks(validate=lambda: 0.0)).history
    return [(entry["step"], entry["loss"]) for entry in history]


def test_every_config_field_changes_something(make_dataset: MakeDataset) -> None:
    assert OTHER_VALUES.keys() == ALL_SETTINGS
    dataset = make_dataset(random_histories())
    as_usual = ["training.steps=20", "training.patience=3"]
    expected = what_happens(dataset, tiny_config(*as_usual))
    assert what_happens(dataset, tiny_config(*as_usual)) == expected
    dead = [
        name
        for name, value in OTHER_VALUES.items()
        if what_happens(dataset, tiny_config(*as_usual, f"{name}={value}")) == expected
    ]
    assert not dead


def test_patience_and_the_number_of_steps_decide_when_training_ends(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(random_histories())

    def last_step(*settings: str) -> float:
        return what_happens(dataset, tiny_config("training.steps=20", *settings))[-1][0]

    assert last_step("training.patience=2") == 3 + 2 * 3
    assert last_step("training.patience=3") == 3 + 3 * 3
    assert last_step("training.patience=100") == 20
