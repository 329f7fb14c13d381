"""`bert4rec settings`: everything that can be set is listed, and the document is what the command prints."""

import json
from pathlib import Path

import pytest

from bert4rec.cli.settings_command import from_data, settings_document
from bert4rec.settings.config import choose_config, list_settings, make_config
from bert4rec.settings.defaults import LARGE, DataFacts, default_settings
from bert4rec.settings.presets import load_preset
from bert4rec.settings.sections import DEFAULT_MODEL, SECTIONS
from bert4rec.training.plan import flat
from tests.cli.test_data_commands import bert4rec
from tests.conftest import MakeDataset
from tests.training.tiny import random_histories

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize("model", SECTIONS)
def test_every_setting_is_listed_with_its_meaning_and_is_taken_as_listed(model: str) -> None:
    listed = list_settings(model)
    assert all(setting.meaning.endswith(".") for setting in listed)
    config = make_config(model, {}, [f"{setting.key}={setting.value}" for setting in listed])
    assert config == make_config(model, default_settings(model, LARGE))
    assert len(listed) == sum(len(section) for section in config.as_dict().values())


def test_the_values_are_those_of_the_preset_where_one_is_named() -> None:
    run = bert4rec("settings", "sasrec", "--preset", "beauty", "--json")
    values = {setting["key"]: setting["value"] for setting in json.loads(run.stdout)}
    preset = load_preset("sasrec", "beauty")
    assert values["objective.loss"] == "binary"
    assert all(
        values[f"{name}.{key}"] == value for name, keys in preset.items() for key, value in keys.items()
    )


def test_the_values_are_those_of_a_training_where_a_dataset_is_named(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(random_histories())
    run = bert4rec("settings", "--data", str(dataset.path), "--json")
    values = {setting["key"]: setting["value"] for setting in json.loads(run.stdout)}
    assert values == flat(choose_config(dataset, DEFAULT_MODEL).as_dict())
    assert values["training.steps"] == 1_250
    table = bert4rec("settings", "--data", str(dataset.path))
    assert dataset.folder.name in table.stdout
    assert "Shown is what a large log gets" not in table.stderr


def marked(*arguments: str) -> set[str]:
    """The settings whose value is marked in the table."""
    rows = [line.split() for line in bert4rec("settings", *arguments).stdout.splitlines()]
    return {row[0] for row in rows if len(row) > 1 and "." in row[0] and row[1].endswith("*")}


def test_settings_that_follow_from_the_data_are_marked_if_there_is_no_preset(
    make_dataset: MakeDataset,
) -> None:
    by_size = {
        "training.steps",
        "training.warmup_steps",
        "training.validate_every",
        "objective.negatives",
    }
    assert (
        marked("sasrec") == marked("sasrec", "--data", str(make_dataset(random_histories()).path)) == by_size
    )
    assert marked("sasrec", "--preset", "beauty") == marked("pop") == set()
    of_plus = marked()
    assert by_size | {"model.dim", "model.hidden_dropout", "training.learning_rate"} < of_plus
    assert not of_plus & {"model.layers", "model.attention_dropout", "training.patience"}
    assert "* follows from the data if there is no preset. Shown is what a large log gets" in (
        bert4rec("settings").stderr
    )
    listed = json.loads(bert4rec("settings", "--json").stdout)
    assert {setting["key"] for setting in listed if setting["from_data"]} == of_plus


@pytest.mark.parametrize("model", SECTIONS)
def test_what_is_not_marked_is_the_same_for_all_data(model: str) -> None:
    logs = [
        DataFacts(users, round(users * length), length, round(longest * length), items)
        for users in (50, 3_000, 200_000)
        for length in (6.0, 40.0, 300.0)
        for longest in (2, 20)
        for items in (100, 2_000_000)
    ]
    found = [flat(default_settings(model, facts)) for facts in logs]
    assert {key for key in found[0] if len({each[key] for each in found}) > 1} == from_data(model)


def test_the_table_names_choices() -> None:
    assert "One of cross-entropy, binary." in " ".join(bert4rec("settings", "sasrec").stdout.split())


def test_the_document_is_what_the_command_prints() -> None:
    assert DOCUMENT.read_text() == settings_document() + "\n"
    assert bert4rec("settings", "--markdown").stdout == DOCUMENT.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sasrek"], "Did you mean sasrec?"),
        (["--preset", "ml1m"], "Did you mean ml-1m?"),
        (["sasrec", "--markdown"], "--markdown prints the settings of all models"),
        (["--preset", "demo", "--data", "d"], "--preset and --data cannot be used together"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_slips_are_told(arguments: list[str], told: str) -> None:
    run = bert4rec("settings", *arguments)
    assert run.returncode in (2, 4)
    assert told in run.stderr
