"""Everything that decides the outcome of a run, and where it comes from: preset, configuration file, settings.

Needs no torch, so that a mistake in a setting is reported at once.
"""

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from bert4rec.data.dataset import Dataset
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.settings.defaults import LARGE, DataFacts, default_settings
from bert4rec.settings.objectives import RunConfig as RunConfig  # noqa: PLC0414 (callers know it from here)
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.settings.presets import Values, did_you_mean, load_preset, refuse_unknown
from bert4rec.settings.sections import SECTIONS

Settings = Mapping[str, object] | Iterable[str]
"""`{"model.dim": 128}`, or texts such as `model.dim=128`."""
Section = TypeVar("Section")


_PLAIN_WORDS = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "predicate_failed": "must be a finite number",
}


@dataclass(frozen=True)
class GivenSettings:
    """What somebody has set. The rest comes from the preset or, without one, follows from the data."""

    model: str
    """A name of `list_models`."""
    preset: str | None
    values: Values
    """Of the file and of single settings, checked."""

    @classmethod
    def read(
        cls, model: str, preset: str | None = None, settings: Settings = (), config: str | Path | None = None
    ) -> "GivenSettings":
        """The parameters are those of `choose_config`."""
        refuse_unknown(model, preset)
        given = read_config(model, config) if config else {}
        given = _merged(given, parse_settings(settings))
        _refuse_unknown_keys(model, given)
        classes = SECTIONS[model].classes()
        checked = {name: _checked(name, classes[name], values) for name, values in given.items()}
        return cls(model, preset, checked)

    def has(self, section: str, key: str) -> bool:
        """Whether this was set, other than by a preset."""
        return key in self.values.get(section, {})

    def complete(self, facts: DataFacts, planned: Values | None = None) -> RunConfig:
        """All settings of a run on such data. What is `planned` wins over preset and data, what is given over both."""
        given = _merged(planned or {}, self.values)
        start = (
            load_preset(self.model, self.preset)
            if self.preset
            else default_settings(self.model, facts, given)
        )
        return make_config(self.model, _merged(start, given))


def choose_config(
    dataset: Dataset,
    model: str,
    preset: str | None = None,
    settings: Settings = (),
    config: str | Path | None = None,
) -> RunConfig:
    """The complete settings of a run on a dataset.

    Parameters
    ----------
    dataset
        Without a preset, settings follow from it.
    model
        A name of `list_models`.
    preset
        Named settings to start from.
    settings
        Single settings, `{"model.dim": 128}` or `["model.dim=128"]`; they win over the rest.
    config
        A TOML file with sections model, objective and training; it wins over the preset.
    """
    return GivenSettings.read(model, preset, settings, config).complete(DataFacts.of(dataset))


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


def list_settings(
    model: str, preset: str | None = None, dataset: Dataset | str | Path | None = None
) -> list[Setting]:
    """Everything that can be set for a model, with the value it has if nobody sets it.

    Parameters
    ----------
    model
        A name of `list_models`.
    preset
        Show the values of this preset.
    dataset
        A dataset or its folder: show the values that a training on it has without a preset. With neither, those of a
        large log are shown; which of them follow from the data is in `settings.defaults`.
    """
    if preset and dataset is not None:
        raise UsageError("`preset` and `dataset` cannot be used together: a preset is the same for all data.")
    given = GivenSettings.read(model, preset)
    if isinstance(dataset, str | Path):
        dataset = Dataset.open(dataset)
    values = given.complete(LARGE if dataset is None else DataFacts.of(dataset)).as_dict()
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
    """What stands below each field, here or in a class that this one extends.

    Nothing for a class whose source cannot be read, as in a notebook.
    """
    from docstring_parser import parse_from_object

    found: dict[str, str] = {}
    for each in filter(is_dataclass, reversed(cls.__mro__)):
        with suppress(OSError, TypeError):
            found |= {part.arg_name: part.description or "" for part in parse_from_object(each).params}
    return found


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
    except TypeError as error:
        raise UsageError(f"`config` must be the path of a TOML file; found {path!r}.") from error
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
    if isinstance(settings, str) or not isinstance(settings, Iterable):
        raise UsageError(f"`settings` must be a mapping or a list; found {settings!r}.")
    found: Values = {}
    if isinstance(settings, Mapping):
        pairs = [(str(key), value, f"{key!r}: {value!r}") for key, value in settings.items()]
    else:
        texts = [(str(text), *str(text).partition("=")) for text in settings]
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
    return cls(**_checked(section, cls, values))


def _checked(section: str, cls: type, values: Mapping[str, object]) -> dict[str, Any]:
    """The same values, each of the type of its field and within its limits."""
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
    return checked


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
