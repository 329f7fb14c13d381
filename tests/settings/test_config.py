import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Literal, get_origin, get_type_hints

import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.settings.config import GivenSettings, choose_config, list_settings, make_config
from bert4rec.settings.defaults import LARGE, default_settings
from bert4rec.settings.networks import ModelConfig
from bert4rec.settings.objectives import Cloze, NextItemSettings, RunConfig, TrainingConfig
from bert4rec.settings.presets import list_presets, load_preset
from bert4rec.settings.sections import SECTIONS
from bert4rec.training.loop import Hooks, Loop
from bert4rec.training.specs import MODELS
from tests.conftest import MakeDataset
from tests.training.tiny import CPU, make_task, random_histories, tiny_config

each_model = pytest.mark.parametrize("model", MODELS)


def sections_of(config: RunConfig) -> tuple[ModelConfig, Cloze, TrainingConfig]:
    """The settings of BERT4Rec."""
    assert isinstance(config.model, ModelConfig)
    assert isinstance(config.objective, Cloze)
    assert config.training
    return config.model, config.objective, config.training


def settings_of(model: str) -> dict[str, str]:
    """Every setting: its name with its section, and without."""
    sections = vars(make_config(model, {})).items()
    return {
        f"{section}.{each.name}": each.name
        for section, part in sections
        if part is not None
        for each in fields(part)
    }


@each_model
def test_every_model_has_a_preset_for_each_data_set_and_for_the_demo(model: str) -> None:
    assert set(list_presets(model)) >= {"ml-1m", "beauty", "steam", "ml-20m", "demo"}


@pytest.mark.parametrize("suffix", ["-paper", "-small"])
def test_bert4rec_also_comes_in_the_papers_own_values_and_small(suffix: str) -> None:
    assert set(list_presets("bert4rec")) >= {
        f"{name}{suffix}" for name in ("ml-1m", "beauty", "steam", "ml-20m")
    }


@pytest.mark.parametrize("name", ["ml-1m", "beauty", "steam", "ml-20m"])
def test_small_presets_are_the_model_of_the_papers_sweeps_and_hide_what_the_large_ones_hide(
    name: str,
) -> None:
    large, small = (
        make_config("bert4rec", load_preset("bert4rec", each)) for each in (name, f"{name}-small")
    )
    small_model, large_model = sections_of(small)[0], sections_of(large)[0]
    assert (small_model.dim, small_model.layers, small_model.heads) == (64, 2, 2)
    assert small_model.max_length == large_model.max_length
    assert small.objective == large.objective


@pytest.mark.parametrize(
    ("name", "dim", "heads", "max_length", "mask_probability"),
    [
        ("beauty", 256, 8, 50, 0.6),
        ("steam", 128, 4, 50, 0.4),
        ("ml-1m", 256, 8, 200, 0.2),
        ("ml-20m", 256, 8, 200, 0.2),
    ],
)
def test_the_papers_own_values_are_those_of_the_paper_and_its_code(
    name: str, dim: int, heads: int, max_length: int, mask_probability: float
) -> None:
    """Section 4.3: two layers, heads of 32, AdamW with rate 1e-4 and decay 0.01, batches of 256, clipping at 5."""
    model, objective, training = sections_of(
        make_config("bert4rec", load_preset("bert4rec", f"{name}-paper"))
    )
    assert (model.dim, model.heads, model.layers, model.max_length) == (dim, heads, 2, max_length)
    assert objective.mask_probability == mask_probability
    assert objective.last_item_share > 0
    assert objective.prefix_share == 0
    assert (training.learning_rate, training.weight_decay, training.batch_size) == (1e-4, 0.01, 256)
    assert training.clip_norm == 5


@pytest.mark.parametrize("model", ["sasrec", "gru4rec+"])
def test_softmax_presets_compare_with_all_items_and_the_others_with_drawn_ones(model: str) -> None:
    for name in set(list_presets(model)) - {"demo"}:
        objective = make_config(model, load_preset(model, name)).objective
        assert isinstance(objective, NextItemSettings)
        assert (objective.loss == "cross-entropy") == name.endswith("-softmax")


@each_model
def test_every_value_of_a_preset_is_a_setting_and_is_taken_over(model: str) -> None:
    for name in list_presets(model):
        config = make_config(model, load_preset(model, name)).as_dict()
        for section, keys in load_preset(model, name).items():
            assert keys.items() <= config[section].items()


def test_settings_win_over_the_preset_and_the_last_one_wins() -> None:
    preset = {"model": {"dim": 32, "layers": 3}}
    config = make_config("bert4rec", preset, ["model.dim=64", "model.dim = 128"])
    assert (sections_of(config)[0].dim, sections_of(config)[0].layers) == (128, 3)


def test_settings_may_be_a_mapping_of_values() -> None:
    texts = ["model.dim=128", "training.learning_rate=3e-4", "objective.mask_probability=0.4"]
    values = {"model.dim": 128, "training.learning_rate": 3e-4, "objective.mask_probability": 0.4}
    assert make_config("bert4rec", {}, values) == make_config("bert4rec", {}, texts)
    with pytest.raises(UsageError, match=r"model.dim = None: must be a whole number"):
        make_config("bert4rec", {}, {"model.dim": None})
    for key in ("model.dim", "training.learning_rate"):
        with pytest.raises(UsageError, match=rf"{key} = True: must be a .*number"):
            make_config("bert4rec", {}, {key: True})
    with pytest.raises(UsageError, match=r"'dim': 128 is not of the form section.key=value"):
        make_config("bert4rec", {}, {"dim": 128})
    with pytest.raises(UsageError, match=r"`settings` must be a mapping or a list; found 'model.dim=128'"):
        make_config("bert4rec", {}, "model.dim=128")


def test_settings_take_the_types_of_their_fields() -> None:
    settings = ["training.learning_rate=3e-4", "training.steps=70", "model.hidden_dropout=0"]
    config = make_config("bert4rec", {}, settings)
    assert config.training
    assert config.training.learning_rate == 3e-4
    assert isinstance(config.training.steps, int)
    assert isinstance(sections_of(config)[0].hidden_dropout, float)


@each_model
def test_a_configuration_survives_json(model: str) -> None:
    config = tiny_config(model=model)
    assert make_config(model, json.loads(json.dumps(config.as_dict()))) == config


@pytest.mark.parametrize("setting", ["dim=3", "model.dim", "model=3", "model.dim:3"])
def test_a_setting_of_another_form_is_refused_with_an_example(setting: str) -> None:
    with pytest.raises(UsageError, match=r"not of the form section.key=value, such as model.dim=128"):
        make_config("bert4rec", {}, [setting])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("modle.dim=3", "no setting modle. Did you mean model?"),
        ("model.dmi=3", "no setting model.dmi. Did you mean model.dim?"),
        ("training.lr=3", "no setting training.lr. Known: training.batch_size, training.steps, "),
        ("model.dim.x=3", "no setting model.dim.x. Did you mean model.dim?"),
        (".dim=3", "no setting . Known: model, objective, training."),
    ],
)
def test_a_setting_nobody_reads_is_refused_with_the_nearest_one(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_config("bert4rec", {}, [setting])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("model", "setting"),
    [("pop", "training.steps=3"), ("bpr-mf", "model.heads=2"), ("sasrec", "objective.mask_probability=0.2")],
)
def test_a_setting_of_another_model_is_refused(model: str, setting: str) -> None:
    with pytest.raises(UsageError, match=f"{model} has no setting"):
        make_config(model, {}, [setting])


def test_a_preset_with_a_value_nobody_reads_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no setting training.epochs"):
        make_config("bert4rec", {"training": {"epochs": 3}})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.dim=wide", "model.dim = wide: must be a whole number"),
        ("model.dim=64.5", "model.dim = 64.5: must be a whole number"),
        ("training.learning_rate=fast", "training.learning_rate = fast: must be a number"),
        ("training.learning_rate=nan", "must be a finite number"),
        ("training.learning_rate=inf", "must be a finite number"),
        ("training.learning_rate=0", "must be greater than 0"),
        ("training.warmup_steps=-1", "must be greater than or equal to 0"),
        ("training.steps=0", "training.steps = 0: must be greater than or equal to 1"),
        ("objective.window_step=1.1", "must be less than or equal to 1"),
        ("model.heads=0", "model.heads = 0: must be greater than or equal to 1"),
        ("model.layers=0", "must be greater than or equal to 1"),
        ("model.max_length=1", "must be greater than or equal to 2"),
        ("model.hidden_dropout=1", "must be less than 1"),
        ("model.attention_dropout=nan", "must be"),
        ("objective.mask_probability=0", "objective.mask_probability = 0: must be greater than 0"),
        ("objective.last_item_share=-0.1", "must be greater than or equal to 0"),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_config("bert4rec", {}, [setting])
    assert message in str(refused.value)


CONTRADICTIONS = [
    ("sasrec", "model.heads=3", "model.dim = 64 must be a multiple of model.heads = 3, such as 60 or 66."),
    ("sasrec", "model.dim=65", "model.dim = 65 must be a multiple of model.heads = 2, such as 64 or 68."),
    ("bert4rec", "model.dim=1", "model.dim = 1 must be a multiple of model.heads = 2, such as 4."),
    ("ncf", "model.layers=8", "model.dim = 64 cannot be halved for model.layers = 8."),
    (
        "bert4rec",
        "objective.prefix_share=0.95",
        "objective.last_item_share = 0.1 and objective.prefix_share = 0.95 must not sum to more than 1.",
    ),
]


@pytest.mark.parametrize(("model", "setting", "message"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused_with_their_values(
    model: str, setting: str, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        make_config(model, {}, [setting])
    assert str(refused.value) == message


@pytest.mark.parametrize("model", ["sasrec", "bert4rec", "bert4rec+"])
@pytest.mark.parametrize(("dim", "heads"), [(65, 2), (64, 3), (5, 4), (130, 12)])
def test_the_widths_that_are_suggested_instead_of_a_wrong_one_can_be_used(
    model: str, dim: int, heads: int
) -> None:
    with pytest.raises(UsageError) as refused:
        make_config(model, {}, [f"model.dim={dim}", f"model.heads={heads}"])
    for width in re.findall(r"\d+", str(refused.value).partition("such as")[2]):
        make_config(model, {}, [f"model.dim={width}", f"model.heads={heads}"])


def test_wrong_settings_are_refused_also_where_python_leaves_out_assertions() -> None:
    program = f"""
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.settings.config import make_config
for model, setting, _ in {[*CONTRADICTIONS, ("bert4rec", "model.dim=0", "")]!r}:
    try:
        make_config(model, {{}}, [setting])
    except UsageError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)
    expected = [message for _, _, message in CONTRADICTIONS]
    assert done.stdout.splitlines() == [*expected, "model.dim = 0: must be greater than or equal to 1."]


@pytest.mark.parametrize(
    ("model", "setting", "message"),
    [
        ("pop", "model.actions=some", "must be 'training' or 'all'"),
        ("gru4rec", "objective.loss=bpr-max", "must be 'top1' or 'bpr'"),
        ("gru4rec+", "objective.exponent=-1", "must be greater than or equal to 0"),
        ("gru4rec+", "objective.penalty=nan", "must be"),
        ("fpmc", "objective.negatives=0", "must be greater than or equal to 1"),
        ("caser", "objective.targets=0", "must be greater than or equal to 1"),
    ],
)
def test_each_model_has_limits_of_its_own(model: str, setting: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_config(model, {}, [setting])
    assert message in str(refused.value)


@each_model
def test_every_setting_has_limits_on_its_field(model: str) -> None:
    """A number without limits, or a text without choices, would be taken whatever it is."""
    for cls in SECTIONS[model].classes().values():
        hints = get_type_hints(cls, include_extras=True)
        assert all(get_origin(hints[each.name]) in (Annotated, Literal) for each in fields(cls))


def test_the_command_says_what_is_wrong_in_one_line(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(random_histories()).folder
    command = [sys.executable, "-m", "bert4rec", "train", str(dataset), "-o", str(dataset.parent / "run")]
    done = subprocess.run([*command, "--set", "model.heads=0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: model.heads = 0: must be greater than or equal to 1.\n"


OTHER_VALUES = {
    "model.actions": "all",
    "model.dim": 12,
    "model.layers": 1,
    "model.heads": 4,
    "model.feed_forward": 2,
    "model.max_length": 6,
    "model.horizontal": 5,
    "model.vertical": 3,
    "model.embedding_dropout": 0.4,
    "model.hidden_dropout": 0.4,
    "model.attention_dropout": 0.4,
    "objective.mask_probability": 0.7,
    "objective.last_item_share": 0.6,
    "objective.prefix_share": 0.6,
    "objective.next_item_weight": 3.0,
    "objective.window_step": 0.25,
    "objective.negatives": 3,
    "objective.exponent": 1.0,
    "objective.penalty": 2.0,
    "objective.targets": 2,
    "training.batch_size": 9,
    "training.steps": 10,
    "training.learning_rate": 2e-2,
    "training.warmup_steps": 4,
    "training.weight_decay": 0.5,
    "training.clip_norm": 0.01,
    "training.validate_every": 4,
    "training.patience": 2,
}
OTHER_LOSS = {"gru4rec": "bpr", "gru4rec+": "top1-max", "sasrec": "binary"}


def what_happens(dataset: Dataset, model: str, *settings: str) -> list[tuple[float, float]]:
    """When there is a validation, what the loss is then, and, by its length, when training stops.

    Validation never improves, so that patience runs out at step 12 of the tiny settings. Where nothing is
    trained, the counts.
    """
    config = tiny_config(*settings, model=model)
    task = make_task(dataset, config, model)
    if config.training is None:
        return list(enumerate(task.model.counts.tolist()))
    loop = Loop(task, config.training, device=CPU, seed=1)
    history = loop.run(config.training.steps, Hooks(validate=lambda: 0.0)).history
    return [(entry["step"], entry["loss"]) for entry in history]


@each_model
def test_every_setting_changes_something(make_dataset: MakeDataset, model: str) -> None:
    others = {**OTHER_VALUES, "objective.loss": OTHER_LOSS.get(model)}
    dataset = make_dataset(random_histories())
    as_usual = ["training.steps=20", "training.patience=3"] if model != "pop" else []
    expected = what_happens(dataset, model, *as_usual)
    assert what_happens(dataset, model, *as_usual) == expected
    dead = [
        name
        for name in settings_of(model)
        # Training is the same, however the model is asked afterwards.
        if name != "model.ask"
        and what_happens(dataset, model, *as_usual, f"{name}={others[name]}") == expected
    ]
    assert not dead


def test_patience_and_the_number_of_steps_decide_when_training_ends(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(random_histories())

    def last_step(*settings: str) -> float:
        return what_happens(dataset, "bert4rec", "training.steps=20", *settings)[-1][0]

    assert last_step("training.patience=2") == 3 + 2 * 3
    assert last_step("training.patience=3") == 3 + 3 * 3
    assert last_step("training.patience=100") == 20


def without_preset(model: str, *settings: str, users: int, actions: int) -> TrainingConfig:
    facts = replace(LARGE, users=users, actions=actions)
    training = GivenSettings.read(model, settings=settings).complete(facts).training
    assert training
    return training


def test_without_a_preset_the_size_of_the_data_decides_how_long_is_trained() -> None:
    def steps(model: str, users: int, actions: int) -> int:
        return without_preset(model, users=users, actions=actions).steps

    assert steps("bert4rec", 200, 3_000) == steps("bert4rec", 20, 300) == steps("sasrec", 200, 2_000) == 800
    assert 800 < steps("bert4rec", 6_040, 1_000_000) < steps("bert4rec", 100_000, 10**7) == 10_000
    assert steps("bpr-mf", 200, 3_000) > 800, "pairs are drawn by action, not by user"
    assert default_settings("pop", LARGE) == {}


def test_where_the_number_of_steps_is_given_the_warm_up_and_validations_go_by_it() -> None:
    training = without_preset("sasrec", "training.steps=60", users=5000, actions=50_000)
    assert (training.steps, training.warmup_steps, training.validate_every) == (60, 6, 3)


def test_without_a_preset_a_short_training_has_a_short_warm_up() -> None:
    small, large = (without_preset("bert4rec", users=users, actions=10 * users) for users in (200, 100_000))
    assert (small.warmup_steps, large.warmup_steps) == (80, 200)


@pytest.mark.parametrize(
    ("dim", "rate"), [(None, 0.002), (32, 0.002), (64, 0.002), (65, 0.001), (256, 0.001)]
)
def test_without_a_preset_the_width_of_bert4rec_decides_its_learning_rate_named_or_not(
    make_dataset: MakeDataset, dim: int | None, rate: float
) -> None:
    dataset = make_dataset(random_histories())
    settings = {"model.heads": 1} | ({"model.dim": dim} if dim else {})
    _, cloze, training = sections_of(choose_config(dataset, "bert4rec", settings=settings))
    assert training.learning_rate == rate
    assert cloze.prefix_share == 0.5
    other = choose_config(dataset, "sasrec", settings=settings).training
    assert other
    assert other.learning_rate == 0.001


@each_model
def test_what_is_listed_is_what_is_used_without_a_preset(make_dataset: MakeDataset, model: str) -> None:
    dataset = make_dataset(random_histories())
    used = {
        f"{section}.{key}": value
        for section, values in choose_config(dataset, model).as_dict().items()
        for key, value in values.items()
    }
    assert {each.key: each.value for each in list_settings(model, dataset=dataset)} == used
    large = {each.key: each.value for each in list_settings(model)}
    by_size = {"training.steps", "training.warmup_steps", "training.validate_every"}
    assert large.keys() == used.keys()
    assert model == "bert4rec+" or {key for key in large if large[key] != used[key]} <= by_size


def test_a_file_wins_over_the_preset_and_single_settings_win_over_both(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    dataset, file = make_dataset(random_histories()), tmp_path / "mine.toml"
    file.write_text("[model]\ndim = 96\nlayers = 3\n[training]\nsteps = 70\n")
    chosen = choose_config(dataset, "bert4rec", preset="demo", settings={"model.layers": 1}, config=file)
    model, cloze, training = sections_of(chosen)
    assert (model.dim, model.layers, model.max_length, training.steps) == (96, 1, 20, 70)
    assert cloze.prefix_share == 0.8, "from the preset"
    _, _, alone = sections_of(choose_config(dataset, "bert4rec", config=str(file)))
    assert (alone.steps, alone.warmup_steps, alone.learning_rate) == (70, 7, 0.001)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[model]\ndmi = 3", UsageError, "bert4rec has no setting model.dmi. Did you mean model.dim?"),
        ("[modle]\ndim = 3", UsageError, "bert4rec has no setting modle. Did you mean model?"),
        (
            "[model]\nheads = 3",
            UsageError,
            "model.dim = 64 must be a multiple of model.heads = 3, such as 60 or 66.",
        ),
        ("[training]\nsteps = 0.5", UsageError, "training.steps = 0.5: must be a whole number."),
        ("model = 3", UsageError, "model must be a section, such as [model], with keys below it."),
        ("dim 3", DataError, "cannot be read as TOML"),
        (None, NotFoundError, "not found. `config` must be a TOML file."),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_name(
    make_dataset: MakeDataset, tmp_path: Path, text: str | None, error: type[Exception], message: str
) -> None:
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(error) as refused:
        choose_config(make_dataset(random_histories()), "bert4rec", config=file)
    assert str(refused.value).startswith(str(file))
    assert message in str(refused.value)


def test_presets_still_are_the_settings_of_the_committed_results() -> None:
    """Results are found by their settings: a default that changes must not change a preset."""
    found = set()
    for path in sorted((Path(__file__).parents[2] / "results").glob("*.jsonl")):
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            preset = line.get("preset")
            if (
                preset
                and line.get("config")
                == make_config(line["model"], load_preset(line["model"], preset)).as_recorded()
            ):
                found.add((line["model"], preset))
    data_sets = ("ml-1m", "beauty")
    assert found >= {(model, name) for model in MODELS for name in data_sets}
    assert found >= {("bert4rec", f"{name}-small") for name in data_sets}
    assert found >= {(model, f"{name}-softmax") for model in ("sasrec", "gru4rec+") for name in data_sets}
