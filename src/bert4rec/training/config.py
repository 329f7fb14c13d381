"""Everything that decides the outcome of a run, and where it comes from: preset, then `--set`.

Needs no torch, so that a slip in a setting is told at once.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from bert4rec.errors import UsageError
from bert4rec.models.settings import (
    BPRMFConfig,
    CaserConfig,
    FPMCConfig,
    GRUConfig,
    ModelConfig,
    NCFConfig,
    PopConfig,
)
from bert4rec.tasks.objectives import (
    BatchRanking,
    Cloze,
    NextItem,
    Pairwise,
    Pointwise,
    SampledRanking,
    SkippingPointwise,
)
from bert4rec.training.presets import did_you_mean, load_preset, refuse_unknown

if TYPE_CHECKING:
    from bert4rec.data.dataset import Dataset

PASSES, FEWEST_STEPS = 300, 800
"""Without a preset: how often each sample is seen, and how many steps there are at least."""
CLOZE_RATE = 0.002
"""Without a preset, at the usual width: a few hidden items a sample teach slowly. Wider models may fail to learn."""
PREFIX_SHARE = 0.5
"""Without a preset. Small logs and short histories gain much by it, and long ones lose nothing to speak of."""


@dataclass(frozen=True)
class TrainingConfig:
    """How the weights are found."""

    batch_size: int = 256
    """Samples a step."""
    steps: int = 10_000
    """Steps at most. The learning rate falls to zero here."""
    learning_rate: float = 1e-3
    """Highest learning rate, reached at the end of the warm-up."""
    warmup_steps: int = 200
    """Steps over which the learning rate rises from zero."""
    weight_decay: float = 0.01
    """Of AdamW; on matrices and tables, not on biases and norms."""
    clip_norm: float = 5.0
    """Gradients whose norm is larger are scaled down to it."""
    validate_every: int = 500
    """Steps from one validation to the next."""
    patience: int = 10
    """Validations without improvement after which training stops."""


def _sections(model: type, objective: type) -> dict[str, type]:
    return {"model": model, "objective": objective, "training": TrainingConfig}


SECTIONS: dict[str, dict[str, type]] = {
    "pop": {"model": PopConfig},
    "bpr-mf": _sections(BPRMFConfig, Pairwise),
    "ncf": _sections(NCFConfig, Pointwise),
    "fpmc": _sections(FPMCConfig, Pairwise),
    "gru4rec": _sections(GRUConfig, BatchRanking),
    "gru4rec+": _sections(GRUConfig, SampledRanking),
    "caser": _sections(CaserConfig, SkippingPointwise),
    "sasrec": _sections(ModelConfig, NextItem),
    "bert4rec": _sections(ModelConfig, Cloze),
}
"""The settings of each model, section by section. POP has nothing to train."""


@dataclass(frozen=True)
class RunConfig:
    """The complete settings of a run. What `model` and `objective` hold depends on the model: see `SECTIONS`."""

    model: Any
    objective: Any
    training: Any
    """A `TrainingConfig`. This and the objective are None where there is nothing to train."""

    def as_dict(self) -> dict[str, Any]:
        return {section: values for section, values in asdict(self).items() if values is not None}


_COUNT = Field(ge=1)
_DROPOUT = Field(ge=0, lt=1)
_SHARE = Field(ge=0, le=1)
_SHARE_ABOVE_ZERO = Field(gt=0, le=1)
_ZERO_OR_MORE = Field(ge=0, allow_inf_nan=False)
_ABOVE_ZERO = Field(gt=0, allow_inf_nan=False)
_ANY = Field()
LIMITS: dict[str, Any] = {
    "dim": _COUNT,
    "layers": _COUNT,
    "heads": _COUNT,
    "feed_forward": _COUNT,
    "max_length": Field(ge=2),  # [mask] and something before it
    "horizontal": _COUNT,
    "vertical": _COUNT,
    "actions": _ANY,
    "embedding_dropout": _DROPOUT,
    "hidden_dropout": _DROPOUT,
    "attention_dropout": _DROPOUT,
    "mask_probability": _SHARE_ABOVE_ZERO,
    "last_item_share": _SHARE,
    "prefix_share": _SHARE,
    "window_step": _SHARE_ABOVE_ZERO,
    "loss": _ANY,
    "negatives": _COUNT,
    "exponent": _ZERO_OR_MORE,
    "penalty": _ZERO_OR_MORE,
    "targets": _COUNT,
    "batch_size": _COUNT,
    "steps": _COUNT,
    "learning_rate": _ABOVE_ZERO,
    "warmup_steps": Field(ge=0),
    "weight_decay": _ZERO_OR_MORE,
    "clip_norm": _ABOVE_ZERO,
    "validate_every": _COUNT,
    "patience": _COUNT,
}
"""What each setting may be, whatever the model."""
_PLAIN_WORDS = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
}


def choose_config(
    dataset: "Dataset",
    model: str,
    preset: str | None = None,
    settings: Mapping[str, object] | Iterable[str] = (),
    config: str | Path | None = None,
) -> RunConfig:
    """The complete settings: those of the preset, or usual ones for data of this size, then file and settings."""
    refuse_unknown(model, preset)
    said = [
        f"{section}.{key}={value}"
        for section, keys in _read_toml(config).items()
        for key, value in keys.items()
    ]
    said += (
        [f"{key}={value}" for key, value in settings.items()] if isinstance(settings, Mapping) else settings
    )
    if preset:
        values = load_preset(model, preset)
    else:
        sizes = {"num_users": dataset.num_users, "num_actions": dataset.num_actions}
        values = settings_by_size(model, said, **sizes)
    return make_config(model, values, said)


def _read_toml(path: str | Path | None) -> dict[str, dict[str, Any]]:
    if path is None:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as TOML ({error}).") from error


def settings_by_size(
    model: str, settings: Iterable[str] = (), *, num_users: int, num_actions: int
) -> dict[str, Any]:
    """What stands in for a preset where none is named: as many steps as the size of the data asks for.

    A log of a few hundred users takes a minute or two; one as large as MovieLens 1M as long as its preset. Where
    `settings` say how many steps, the warm-up and the validations go by that.
    """
    objective, usual = SECTIONS[model].get("objective"), TrainingConfig()
    if objective is None:
        return {}
    samples = num_actions if objective in (Pairwise, Pointwise, SkippingPointwise) else num_users
    steps = min(usual.steps, max(FEWEST_STEPS, PASSES * samples // usual.batch_size))
    said = [
        setting.partition("=")[2].strip() for setting in settings if setting.startswith("training.steps=")
    ]
    if said and said[-1].isdecimal():
        steps = int(said[-1])
    warmup, often = min(usual.warmup_steps, steps // 10), max(1, steps // 20)
    training: dict[str, float] = {"steps": steps, "warmup_steps": warmup, "validate_every": often}
    if objective is not Cloze:
        return {"training": training}
    if not any(setting.startswith("model.dim") for setting in settings):
        training["learning_rate"] = CLOZE_RATE
    return {"objective": {"prefix_share": PREFIX_SHARE}, "training": training}


@dataclass(frozen=True)
class Setting:
    """One thing that can be set."""

    key: str
    """As it is written, such as model.dim."""
    value: Any
    """What it is where nobody says otherwise."""
    choices: tuple[str, ...]
    """All there are to choose from; empty where it is a number."""
    meaning: str


def list_settings(model: str, values: Mapping[str, Any] | None = None) -> list[Setting]:
    """Everything that can be set for a model, with its value among `values`, or else the usual one."""
    from docstring_parser import parse_from_object

    return [
        Setting(
            key=f"{section}.{each.name}",
            value=(values or {}).get(section, {}).get(each.name, each.default),
            choices=get_args(get_type_hints(cls)[each.name]),
            meaning=" ".join(about[each.name].split()),
        )
        for section, cls in SECTIONS[model].items()
        for about in [{part.arg_name: part.description or "" for part in parse_from_object(cls).params}]
        for each in fields(cls)
    ]


def make_config(model: str, values: Mapping[str, Any], settings: Iterable[str] = ()) -> RunConfig:
    """A checked configuration from a preset's values and `section.key=value` settings, the latter winning."""
    merged = {section: dict(keys) for section, keys in values.items()}
    for setting in settings:
        key, separator, value = setting.partition("=")
        section, dot, name = key.strip().partition(".")
        if not separator or not dot:
            raise UsageError(f"--set {setting} is not of the form section.key=value, such as model.dim=128.")
        merged.setdefault(section, {})[name] = value.strip()
    sections = SECTIONS[model]
    _refuse_unknown(model, sections, merged)
    made = {name: _make_section(name, cls, merged.get(name, {})) for name, cls in sections.items()}
    return RunConfig(made["model"], made.get("objective"), made.get("training"))


def _make_section(section: str, cls: type, values: Mapping[str, Any]) -> Any:
    """One of the configurations of a run, each value of its type and within its limits."""
    types = get_type_hints(cls)
    checked: dict[str, Any] = {}
    for key, value in values.items():
        expected: Any = Annotated[types[key], LIMITS[key]]
        try:
            checked[key] = TypeAdapter(expected).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            told = _PLAIN_WORDS.get(problem["type"]) or problem["msg"].replace("Input should be", "must be")
            raise UsageError(f"{section}.{key} = {value}: {told}.") from error
    try:
        return cls(**checked)
    except AssertionError as error:
        values = {each.name: checked.get(each.name, each.default) for each in fields(cls)}
        found = ", ".join(f"{key} = {value}" for key, value in values.items())
        why = f": {error}" if str(error) else ""
        raise UsageError(f"The settings of {section} do not go together{why}. They are {found}.") from error


def _refuse_unknown(model: str, sections: Mapping[str, type], values: Mapping[str, Any]) -> None:
    """A key nobody reads is an error, not a silent nothing."""
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
