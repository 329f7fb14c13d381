"""What the commands print reads well: plurals, and parameters of the library as options."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bert4rec
from bert4rec.cli import _COMMANDS, app, options
from bert4rec.cli.console import count, say, warn
from bert4rec.cli.options import as_options

PACKAGE = Path(bert4rec.__file__).parent
LIBRARY_ONLY = {"tasks/cloze.py", "tasks/task.py", "training/specs.py", "world/world.py"}
"""What these refuse cannot be reached from the command line: models and worlds of one's own."""
STAYS = {"`SplitSpec`", "`df`", "`to_arrow()`", "`to_pandas()`", "`bert4rec.register(0, ...)`", "`0`"}
"""In backticks as it is. 0 stands for what a message fills in: on its own, the name of a parameter."""
FLAG = re.compile(r"(?<![\w(-])--[a-z][a-z-]*(?![\w:-])")
"""An option; not a variable of a style sheet, as in `--line: 1px` and `var(--line)`."""


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (12345, "12,345 runs")]
)
def test_one_is_not_many(number: int, words: str) -> None:
    assert count(number, "run") == words


@pytest.mark.parametrize(
    ("told", "printed"),
    [
        ("`time_format`", "--time-format"),
        ("`user`: column 'usr' not found.", "--user-col: column 'usr' not found."),
        ("Name it with `time`, or use `title`.", "Name it with --time-col, or use --title-col."),
        ("pass a copy with `local_copy`", "pass a copy with --from"),
        ("`source` is required", "SOURCE is required"),
        ("`overwrite=True`", "--overwrite"),
        ("`compile=False`", "--no-compile"),
        ('`repeats="keep"`', "--repeats keep"),
        ("`min_user_actions=5` dropped 2 actions", "--min-user-actions 5 dropped 2 actions"),
        ('`split="time", test_from=0.9`', "--split time --test-from 0.9"),
        ('`time_format="%m/%d/%Y %H:%M"`', "--time-format '%m/%d/%Y %H:%M'"),
        ('`time_format="%d.%m.%Y"`', "--time-format %d.%m.%Y"),
        ('`settings={"model.dim": 128}`', "--set model.dim=128"),
        ("`k=(5, 10)`", "--k 5,10"),
        ("`device=...`", "--device …"),
        ('`run.evaluate(split="valid")`', "bert4rec evaluate RUN --split valid"),
        ("`train(..., resume=True)`", "bert4rec train DATASET --resume"),
        ('`bert4rec.prepare(..., negatives="both")`', "bert4rec prepare LOG --negatives both"),
        ("`run.export()`", "bert4rec export RUN"),
        ("`run.refit()`", "bert4rec refit RUN -o FOLDER"),
        ("`prepare()`", "bert4rec prepare LOG"),
        ("`dataset.save(folder)`", "bert4rec prepare LOG -o FOLDER"),
        ("`load(run)`", "bert4rec recommend RUN"),
        ("`recommend()`", "bert4rec recommend RUN --history IDS"),
        ("`recommend_user()`", "bert4rec recommend RUN --user ID"),
        ("`recommend_many()`", "bert4rec recommend RUN --input FILE -o FILE"),
        ("Choose another `target`", "Choose another --output"),
        ("Both `after` and `before`", "Both --after and --before"),
    ],
)
def test_parameters_and_calls_are_printed_as_options_and_commands(told: str, printed: str) -> None:
    assert as_options(told) == printed


@pytest.mark.parametrize(
    "text",
    [
        "`dataset.save(other)`",
        "`train(other, resume=True)`",
        "`to_arrow()` requires pyarrow",
        "`seed=None`",
        "`model.dim`",
        "`SplitSpec`",
        "`a b`",
        "`user=name`",
        "`overwrite=True, colour=1`",
        "` ` and a lone ` stay",
        "no backticks: --time-col, as older datasets say",
    ],
)
def test_anything_else_stays_as_it_is(text: str) -> None:
    assert as_options(text) == text


def test_messages_and_warnings_are_printed_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    say('Prepare with `repeats="keep"`.')
    warn("Try `drop_duplicates=True` [really].")
    printed = capsys.readouterr()
    assert printed.err == "Prepare with --repeats keep.\nWarning: Try --drop-duplicates [really].\n"
    assert printed.out == ""


def test_every_option_and_command_that_is_printed_exists() -> None:
    there = {
        name
        for command in _COMMANDS
        for argument in app[command].assemble_argument_collection()
        for name in (*argument.names, *argument.negatives)
    }
    printed = {options._option(name) for name in (*options._SAME_NAME, *options._OTHER_NAME)}
    assert printed - there <= {"--config"}
    assert {words.split()[0] for words in options._COMMANDS.values()} <= set(_COMMANDS)


def test_below_the_command_line_no_message_names_an_option() -> None:
    for module in sorted(PACKAGE.rglob("*.py")):
        name = module.relative_to(PACKAGE).as_posix()
        if name.startswith(
            ("cli/", "paper/", "service/", "automatic/auto_page")
        ):  # a page of commands to type
            continue
        texts = [
            node.value for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Constant)
        ]
        flags = [flag for text in texts if isinstance(text, str) for flag in FLAG.findall(text)]
        assert not flags, f"{name} names {flags}"


def texts_of(node: ast.AST) -> Iterator[str]:
    """The texts in an expression, with 0 for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
        for part in node.values:
            yield from texts_of(part) if isinstance(part, ast.FormattedValue) else ()
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts_of(child)


def test_every_parameter_and_call_in_an_error_can_be_printed_as_an_option_or_a_command() -> None:
    for module in sorted(PACKAGE.rglob("*.py")):
        name = module.relative_to(PACKAGE).as_posix()
        if name.startswith(("cli/", "paper/", "service/")) or name in LIBRARY_ONLY:
            continue
        raised = (node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Raise))
        marked = {code for node in raised for text in texts_of(node) for code in re.findall("`[^`]+`", text)}
        unknown = {code for code in marked - STAYS if as_options(code) == code}
        assert not unknown, f"{name} raises {unknown}"
