"""Everything that decides the outcome of a run, and where it comes from: preset, configuration file, settings.

Needs no torch, so that a mistake in a setting is reported at once.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.settings.objectives import RunConfig as RunConfig  # noqa: PLC0414 (callers know it from here)
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.settings.presets import Values, did_you_mean, load_preset, refuse_unknown
from bert4rec.settings.sections import SECTIONS

if TYPE_CHECKING:
    from bert4rec.data.dataset import Dataset

Settings = Mapping[str, object] | Iterable[str]
"""`{"model.dim": 128}`, or texts such as `model.dim=128`."""
Section = TypeVar("Section")
DEFAULT_MODEL = "bert4rec"
"""What is trained and tuned where no model is named."""
PASSES, FEWEST_STEPS = 300, 800
"""Without a preset: how often each sample is seen, and how many steps there are at least."""


_PLAIN_WORDS = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "predicate_failed": "must be a finite number",
}


def choose_config(
    dataset: "Dataset",
    model: str,
    preset: str | None = None,
    settings: Settings = (),
    config: str | Path | None = None,
) -> RunConfig:
    """The complete settings of a run on a dataset.

    Parameters
    ----------
    dataset
        Without a preset, its size decides how many steps are trained.
    model
        A name of `list_models`.
    preset
        Named settings to start from.
    settings
        Single settings, `{"model.dim": 128}` or `["model.dim=128"]`; they win over the rest.
    config
        A TOML file with sections model, objective and training; it wins over the preset.
    """
    refuse_unknown(model, preset)
    given = read_config(model, config) if config else {}
    given = _merged(given, parse_settings(settings))
    _refuse_unknown_keys(model, given)
    sizes = {"num_users": dataset.num_users, "num_actions": dataset.num_actions}
    start = load_preset(model, preset) if preset else settings_by_size(model, given, **sizes)
    return make_config(model, _merged(start, given))


def settings_by_size(
    model: str, given: Mapping[str, Mapping[str, object]] | None = None, *, num_users: int, num_actions: int
) -> Values:
    """What stands in for a preset where none is named: as many steps as the size of the data needs.

    A log of a few hundred users takes a minute or two; one as large as MovieLens 1M as long as its preset. If `given`
    has the number of steps, the warm-up and the validations go by that; the learning rate goes by the width.
    """
    sections, given = SECTIONS[model], given or {}
    if sections.objective is None:
        return {}
    usual = TrainingConfig()
    samples = num_users if sections.objective.samples_are == "users" else num_actions
    steps = min(usual.steps, max(FEWEST_STEPS, PASSES * samples // usual.batch_size))
    if "steps" in given.get("training", {}):
        steps = _make_section("training", TrainingConfig, {"steps": given["training"]["steps"]}).steps
    network = _make_section("model", sections.model, given.get("model", {}))
    return {
        "training": {
            "steps": steps,
            "warmup_steps": min(usual.warmup_steps, steps // 10),
            "validate_every": max(1, steps // 20),
            "learning_rate": sections.objective.usual_learning_rate(network.width),
        }
    }


@dataclass(frozen=True)
class Setting:
    """One thing that can be set."""

    key: str
    """As it is written, such as model.dim."""
    value: Any
    """Its value in the preset, or without one."""
    choices: tuple[str, ...]
    """All possible values; empty for a number."""
    meaning: str
    """What it is, in a sentence."""


def list_settings(model: str, preset: str | None = None) -> list[Setting]:
    """Everything that can be set for a model, with its value in the preset or, without one, what is used then.

    Without a preset, `training.steps`, `training.warmup_steps` and `training.validate_every` depend on the size of the
    data; shown is what the largest data gets.
    """
    refuse_unknown(model, preset)
    largest = 10**12
    start = (
        load_preset(model, preset)
        if preset
        else settings_by_size(model, num_users=largest, num_actions=largest)
    )
    values = make_config(model, start).as_dict()
    return [
        Setting(
            key=f"{section}.{each.name}",
            value=values[section][each.name],
            choices=get_args(get_type_hints(cls)[each.name]),
            meaning=" ".join(about.get(each.name, "").split()),
        )
        for section, cls in SECTIONS[model].classes().items()
        for about in [_docstrings(cls)]
        for each in fields(cls)
    ]


def _docstrings(cls: type) -> dict[str, str]:
    """What stands below each field; nothing for a class whose source cannot be read, as in a notebook."""
    from docstring_parser import parse_from_object

    try:
        return {part.arg_name: part.description or "" for part in parse_from_object(cls).params}
    except (OSError, TypeError):
        return {}


def make_config(model: str, values: Mapping[str, Mapping[str, object]], settings: Settings = ()) -> RunConfig:
    """A checked configuration from values, section by section, and settings, which win over them."""
    if model not in SECTIONS:
        raise NotFoundError(
            f"Unknown model {model!r}. If it is a model of your own, register it first: "
            f"`bert4rec.register({model!r}, ...)`."
        )
    merged, sections = _merged(values, parse_settings(settings)), SECTIONS[model]
    _refuse_unknown_keys(model, merged)
    network = _make_section("model", sections.model, merged.get("model", {}))
    if sections.objective is None:
        return RunConfig(network, None, None)
    return RunConfig(
        network,
        _make_section("objective", sections.objective, merged.get("objective", {})),
        _make_section("training", TrainingConfig, merged.get("training", {})),
    )


def read_config(model: str, path: str | Path) -> Values:
    """The sections of a TOML file. Its mistakes are reported with its name."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} not found. `config` must be a TOML file.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as TOML: {error}.") from error
    try:
        for section, keys in values.items():
            if not isinstance(keys, dict):
                raise UsageError(f"{section} must be a section, such as [model], with keys below it.")
        make_config(model, values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return values


def parse_settings(settings: Settings) -> Values:
    """Single settings, section by section. Of a setting that is given several times, the last one wins."""
    if isinstance(settings, str):
        raise UsageError(f"`settings` must be a mapping or a list, not the text {settings!r}.")
    found: Values = {}
    if isinstance(settings, Mapping):
        pairs = [(str(key), value, f"{key!r}: {value!r}") for key, value in settings.items()]
    else:
        texts = [(text, *text.partition("=")) for text in settings]
        pairs = [(key if equals else "", value.strip(), text) for text, key, equals, value in texts]
    for key, value, text in pairs:
        section, dot, name = key.strip().partition(".")
        if not dot:
            raise UsageError(
                f"`settings`: {text} is not of the form section.key=value, such as model.dim=128."
            )
        found.setdefault(section, {})[name] = value
    return found


def _merged(
    values: Mapping[str, Mapping[str, object]], winning: Mapping[str, Mapping[str, object]]
) -> Values:
    return {
        section: {**values.get(section, {}), **winning.get(section, {})} for section in {**values, **winning}
    }


def _make_section(section: str, cls: type[Section], values: Mapping[str, object]) -> Section:
    """One of the sections of a configuration, each value of its type and within its limits."""
    types = get_type_hints(cls, include_extras=True)
    checked: dict[str, Any] = {}
    for key, value in values.items():
        try:
            # pydantic takes True for 1; no number is meant so.
            plain = str(value) if isinstance(value, bool) else value
            checked[key] = TypeAdapter(types[key]).validate_python(plain)
        except ValidationError as error:
            problem = error.errors()[0]
            told = _PLAIN_WORDS.get(problem["type"]) or problem["msg"].replace("Input should be", "must be")
            raise UsageError(f"{section}.{key} = {value}: {told}.") from error
    return cls(**checked)


def _refuse_unknown_keys(model: str, values: Mapping[str, Mapping[str, object]]) -> None:
    """A key that nothing reads is an error, not silently ignored."""
    sections = SECTIONS[model].classes()
    for section, keys in values.items():
        if section not in sections:
            near = did_you_mean(section, sections) or f" Known: {', '.join(sections)}."
            raise UsageError(f"{model} has no setting {section}.{near}")
        known = [each.name for each in fields(sections[section])]
        for key in keys:
            if key not in known:
                listed = ", ".join(f"{section}.{each}" for each in known)
                near = did_you_mean(key, known, prefix=f"{section}.") or f" Known: {listed}."
                raise UsageError(f"{model} has no setting {section}.{key}.{near}")
