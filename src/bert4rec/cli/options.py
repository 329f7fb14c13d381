"""Options of the command line: parameters of the library written as options, and options that are wrong.

Messages of the library name parameters and calls in backticks: `time`, `overwrite=True`,
`split="time", test_from=0.9`, `run.evaluate(split="valid")`. Here they become what one types in a shell.
Anything else in backticks stays as it is.

An option that was forgotten, or that only exists elsewhere, is answered by what to write.
"""

import ast
import re
import shlex

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError

_SAME_NAME = frozenset(
    re.findall(
        r"\w+",
        "after all allow allow_host any_code api_key_file approximate before compile config data data_folder deny "
        "device diversity drain drop_bad_rows drop_duplicates drop_repeats dry_run encoding engine exclude_seen force "
        "history host insecure int8 items jobs k k_core keep keep_runs like log_format log_requests log_user_ids "
        "master metric min_item_actions min_user_actions minutes model name negatives otel overwrite plot port preset "
        "protocol quantised quick refit repeats results resume samples seed seeds select_by separator since split "
        "store targets test test_from threads time_format tls_cert tls_key track trials unix_socket "
        "valid_from verify watch where work workers",
    )
)
"""Parameters whose option has the same name, with dashes."""
_OTHER_NAME = {
    "user": "--user-col",
    "item": "--item-col",
    "time": "--time-col",
    "title": "--title-col",
    "dataset": "--data",
    "folder": "--output",
    "histories": "--input",
    "local_copy": "--from",
    "settings": "--set",
    "target": "--output",
}
_ARGUMENTS = {"runs": "RUNS", "source": "SOURCE"}
"""Parameters that are arguments of the command, without an option."""
_COMMANDS = {
    "prepare": "prepare LOG",
    "dataset.save": "prepare LOG -o FOLDER",
    "train": "train DATASET",
    "tune": "tune DATASET",
    "run.evaluate": "evaluate RUN",
    "backtest": "evaluate RUN --data DATASET",
    "run.export": "export RUN",
    "run.refit": "refit RUN -o FOLDER",
    "load": "recommend RUN",
    "recommend": "recommend RUN --history IDS",
    "recommend_user": "recommend RUN --user ID",
    "recommend_many": "recommend RUN --input FILE -o FILE",
    "recommend_file": "recommend RUN --input FILE -o FILE",
    "compare": "compare RUN RUN",
    "serve": "serve MODEL",
    "reproduce": "reproduce EXPERIMENT",
    "report": "report",
}
"""Function or method → the command that calls it, and its arguments."""

_WRITES = {
    "auto": ("model and its report", "out"),
    "prepare": ("dataset", "dataset"),
    "train": ("run", "run"),
    "refit": ("new run", "final-run"),
    "tune": ("search", "search"),
    "export": ("model", "model"),
    "refresh": ("models", "production"),
}
"""Command → what it writes, and what the folder may be called."""
_SETTING_OF = {
    "epochs": "training.steps",
    "num-epochs": "training.steps",
    "max-steps": "training.steps",
    "iterations": "training.steps",
    "lr": "training.learning_rate",
    "bs": "training.batch_size",
    "wd": "training.weight_decay",
    "warmup": "training.warmup_steps",
    "early-stopping": "training.patience",
    "hidden-size": "model.dim",
    "hidden-dim": "model.dim",
    "embedding-dim": "model.dim",
    "d-model": "model.dim",
    "num-layers": "model.layers",
    "n-layers": "model.layers",
    "num-heads": "model.heads",
    "n-heads": "model.heads",
    "max-len": "model.max_length",
    "maxlen": "model.max_length",
    "seq-len": "model.max_length",
    "dropout": "model.hidden_dropout",
    "mask-prob": "objective.mask_probability",
}
"""Names of options that people know from elsewhere → the setting that does it."""


def as_options(text: str) -> str:
    """The same text with parameters and calls in backticks written as options and commands."""
    return re.sub(r"`([^`]+)`", lambda found: _translate(found[1]) or found[0], text)


def _translate(code: str) -> str | None:
    """Options or a command for a piece of Python; None if it is neither."""
    try:
        parameters = ast.parse(f"f({code})", mode="eval").body
    except SyntaxError:
        return None
    assert isinstance(parameters, ast.Call)
    match parameters:
        case ast.Call(args=[ast.Name(name)], keywords=[]):
            return _ARGUMENTS.get(name) or _option(name)
        case ast.Call(args=[ast.Call(function, arguments, keywords)], keywords=[]):
            command = _COMMANDS.get(ast.unparse(function).removeprefix("bert4rec."))
            if command is None:
                return None
            name, *placeholders = command.split()
            given, words = _given(arguments, placeholders), _options(keywords)
            return None if given is None or words is None else " ".join(["bert4rec", name, *given, *words])
        case ast.Call(args=[]):
            words = _options(parameters.keywords)
            return " ".join(words) if words else None
    return None


def _given(arguments: list[ast.expr], placeholders: list[str]) -> list[str] | None:
    """The argument of a command and its output folder; placeholders for their names, None for other names."""
    names = [ast.unparse(argument) for argument in arguments]
    if all(name == "..." or name.upper() in placeholders for name in names):
        return placeholders
    if not all(isinstance(argument, ast.Constant) for argument in arguments):
        return None
    first, *folder = [shlex.quote(str(ast.literal_eval(argument))) for argument in arguments]
    return [first, *(f"-o {each}" for each in folder)]


def _options(keywords: list[ast.keyword]) -> list[str] | None:
    """Words for a shell; None if some parameter has no option."""
    words = []
    for keyword in keywords:
        option = _option(keyword.arg or "")
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError:
            return None
        if option is None or value is None:
            return None
        if value is True:
            words.append(option)
        elif value is False:
            words.append(option.replace("--", "--no-", 1))
        elif isinstance(value, dict):
            words += [f"{option} {shlex.quote(f'{key}={setting}')}" for key, setting in value.items()]
        elif isinstance(value, list | tuple):
            words.append(f"{option} {shlex.quote(','.join(map(str, value)))}")
        else:
            words.append(f"{option} {'…' if value is ... else shlex.quote(str(value))}")
    return words


def _option(parameter: str) -> str | None:
    if parameter in _SAME_NAME:
        return f"--{parameter.replace('_', '-')}"
    return _OTHER_NAME.get(parameter)


def explain(error: CycloptsError, program: str) -> str:
    """A mistake on the command line of `program` in a sentence, and what to do."""
    if isinstance(error, MissingArgumentError) and "-o" in _names(error):
        return _explain_output(error, program)
    if isinstance(error, UnknownOptionError) and (setting := _setting_for(error)):
        option = (error.token.keyword or "").partition("=")[0]
        return f"Unknown option: {option}. Use --set {setting}=…; `{program} settings` lists all settings."
    return str(error)


def _explain_output(error: MissingArgumentError, program: str) -> str:
    given = [word for word in error.root_input_tokens or () if word not in _names(error)]
    what, folder = _WRITES[given[0]]
    example = shlex.join([*given, "-o", folder])
    return f"-o is missing: the folder to write the {what} to. For example: {program} {example}"


def _names(error: MissingArgumentError) -> tuple[str, ...]:
    return () if error.argument is None else error.argument.names


def _setting_for(error: UnknownOptionError) -> str | None:
    """The setting that an option is meant for, by a name that is known here or by its own."""
    if not any("--set" in argument.names for argument in error.argument_collection):
        return None
    from bert4rec.settings.config import list_settings
    from bert4rec.settings.sections import DEFAULT_MODEL

    word = (error.token.keyword or "").partition("=")[0].lstrip("-").replace("_", "-")
    by_name = {
        each.key.partition(".")[2].replace("_", "-"): each.key for each in list_settings(DEFAULT_MODEL)
    }
    return _SETTING_OF.get(word) or by_name.get(word)
