"""`bert4rec settings`: everything that can be set is listed, and the document is what the command prints."""

import json
from pathlib import Path

import pytest

from bert4rec.cli.settings_command import settings_document
from bert4rec.settings.config import list_settings, make_config, settings_by_size
from bert4rec.settings.presets import load_preset
from bert4rec.settings.sections import SECTIONS
from tests.cli.test_data_commands import bert4rec

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize("model", SECTIONS)
def test_every_setting_is_listed_with_its_meaning_and_is_taken_as_listed(model: str) -> None:
    listed = list_settings(model)
    assert all(setting.meaning.endswith(".") for setting in listed)
    config = make_config(model, {}, [f"{setting.key}={setting.value}" for setting in listed])
    largest = settings_by_size(model, num_users=10**9, num_actions=10**9)
    assert config == make_config(model, largest)
    assert len(listed) == sum(len(section) for section in config.as_dict().values())


def test_the_values_are_those_of_the_preset_where_one_is_named() -> None:
    run = bert4rec("settings", "sasrec", "--preset", "beauty", "--json")
    values = {setting["key"]: setting["value"] for setting in json.loads(run.stdout)}
    preset = load_preset("sasrec", "beauty")
    assert values["objective.loss"] == "binary"
    assert all(
        values[f"{name}.{key}"] == value for name, keys in preset.items() for key, value in keys.items()
    )


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
    ],
)
def test_slips_are_told(arguments: list[str], told: str) -> None:
    run = bert4rec("settings", *arguments)
    assert run.returncode in (2, 4)
    assert told in run.stderr
