"""Options that were forgotten, or that exist elsewhere, are answered by what to write."""

import inspect
import shlex

import pytest

from bert4rec.cli import _COMMANDS, app, options
from bert4rec.settings.config import list_settings
from bert4rec.settings.sections import DEFAULT_MODEL


def told(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a wrong command line is told, in one line."""
    with pytest.raises(SystemExit) as left:
        app(shlex.split(command), result_action="return_value")
    assert left.value.code != 0
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("command", "what", "completed"),
    [
        ("auto log.csv", "model and its report", "auto log.csv -o out"),
        ("prepare 'my log.csv'", "dataset", "prepare 'my log.csv' -o dataset"),
        ("prepare log.csv -o", "dataset", "prepare log.csv -o dataset"),
        ("train dataset --set model.dim=8", "run", "train dataset --set model.dim=8 -o run"),
        ("refit run", "new run", "refit run -o final-run"),
        ("tune dataset", "search", "tune dataset -o search"),
        ("export run", "model", "export run -o model"),
    ],
)
def test_a_forgotten_folder_is_told_what_it_is_for_and_how_to_name_it(
    command: str, what: str, completed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(command, capsys)
    assert said.startswith(f"Error: -o is missing: the folder to write the {what} to. For example: ")
    assert said.endswith(completed)


def test_every_command_that_requires_a_folder_is_known() -> None:
    requires = {
        name
        for name in _COMMANDS
        for argument in app[name].assemble_argument_collection()
        if "-o" in argument.names and argument.field_info.default is inspect.Parameter.empty
    }
    assert requires == set(options._WRITES)


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("--epochs 10", "training.steps"),
        ("--lr 0.1", "training.learning_rate"),
        ("--batch-size=8", "training.batch_size"),
        ("--batch_size 8", "training.batch_size"),
        ("--dim 8", "model.dim"),
        ("--hidden-size 8", "model.dim"),
    ],
)
@pytest.mark.parametrize("command", ["train dataset -o run", "tune dataset -o search"])
def test_an_option_known_from_elsewhere_is_answered_by_the_setting_that_does_it(
    command: str, option: str, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = option.replace("=", " ").split()[0]
    said = told(f"{command} {option}", capsys)
    assert said.startswith(f"Error: Unknown option: {name}. Use --set {setting}=…; ")


def test_options_of_commands_without_settings_are_not_answered_by_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--set" not in told("export run -o model --epochs 10", capsys)


def test_every_setting_that_is_suggested_exists() -> None:
    known = {setting.key for setting in list_settings(DEFAULT_MODEL)}
    assert set(options._SETTING_OF.values()) <= known
