"""Everything that decides the outcome of a run, and where it comes from: preset, then `--set`."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib import resources
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from bert4rec.errors import NotFoundError, UsageError
from bert4rec.models.bert4rec import ModelConfig
from bert4rec.training.cloze import Cloze


@dataclass(frozen=True)
class TrainingConfig:
    """How the weights are found."""

    batch_size: int = 256
    """Windows a step."""
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
    window_step: float = 0.5
    """Histories longer than the model sees are cut into windows this share of the length apart."""
    validate_every: int = 500
    """Steps from one validation, and one checkpoint, to the next."""
    patience: int = 10
    """Validations without improvement after which training stops."""


@dataclass(frozen=True)
class RunConfig:
    """The complete settings of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cloze: Cloze = field(default_factory=Cloze)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_COUNT = Field(ge=1)
_DROPOUT = Field(ge=0, lt=1)
_SHARE = Field(ge=0, le=1)
_SHARE_ABOVE_ZERO = Field(gt=0, le=1)
_ABOVE_ZERO = Field(gt=0, allow_inf_nan=False)
LIMITS: dict[str, dict[str, Any]] = {
    "model": {
        "dim": _COUNT,
        "layers": _COUNT,
        "heads": _COUNT,
        "feed_forward": _COUNT,
        "max_length": Field(ge=2),  # [mask] and something before it
        "embedding_dropout": _DROPOUT,
        "hidden_dropout": _DROPOUT,
        "attention_dropout": _DROPOUT,
    },
    "cloze": {"mask_probability": _SHARE_ABOVE_ZERO, "last_item_share": _SHARE, "prefix_share": _SHARE},
    "training": {
        "batch_size": _COUNT,
        "steps": _COUNT,
        "learning_rate": _ABOVE_ZERO,
        "warmup_steps": Field(ge=0),
        "weight_decay": Field(ge=0, allow_inf_nan=False),
        "clip_norm": _ABOVE_ZERO,
        "window_step": _SHARE_ABOVE_ZERO,
        "validate_every": _COUNT,
        "patience": _COUNT,
    },
}
"""What each setting may be."""


def preset_names() -> list[str]:
    return sorted(
        path.name.removesuffix(".toml") for path in _presets().iterdir() if path.name.endswith(".toml")
    )


def load_preset(name: str) -> dict[str, Any]:
    """The values of a preset, section by section."""
    if name not in preset_names():
        raise NotFoundError(
            f"There is no preset {name!r}.{_nearest(name, preset_names())} Presets: {', '.join(preset_names())}."
        )
    return tomllib.loads((_presets() / f"{name}.toml").read_text(encoding="utf-8"))


def make_config(values: Mapping[str, Any], settings: Iterable[str] = ()) -> RunConfig:
    """A checked configuration from a preset's values and `section.key=value` settings, the latter winning."""
    merged = {section: dict(keys) for section, keys in values.items()}
    for setting in settings:
        key, separator, value = setting.partition("=")
        section, dot, name = key.strip().partition(".")
        if not separator or not dot:
            raise UsageError(f"--set {setting} is not of the form section.key=value, such as model.dim=128.")
        merged.setdefault(section, {})[name] = value.strip()
    _refuse_unknown(RunConfig, merged)
    sections = get_type_hints(RunConfig)
    return RunConfig(**{name: _make_section(name, sections[name], keys) for name, keys in merged.items()})


def _make_section(section: str, cls: type, values: Mapping[str, Any]) -> Any:
    """One of the configurations of a run, each value of its type and within its limits."""
    types = get_type_hints(cls)
    checked: dict[str, Any] = {}
    for key, value in values.items():
        expected: Any = Annotated[types[key], LIMITS[section][key]]
        try:
            checked[key] = TypeAdapter(expected).validate_python(value)
        except ValidationError as error:
            raise UsageError(f"{section}.{key} = {value}: {error.errors()[0]['msg']}.") from error
    try:
        return cls(**checked)
    except AssertionError as error:
        values = {each.name: checked.get(each.name, each.default) for each in fields(cls)}
        found = ", ".join(f"{key} = {value}" for key, value in values.items())
        why = f": {error}" if str(error) else ""
        raise UsageError(f"The settings of {section} do not go together{why}. They are {found}.") from error


def _presets() -> Any:
    return resources.files("bert4rec") / "presets"


def _refuse_unknown(cls: type, values: Mapping[str, Any], prefix: str = "") -> None:
    """A key nobody reads is an error, not a silent nothing."""
    types = get_type_hints(cls)
    known = [each.name for each in fields(cls)]
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"There is no setting {prefix}{key}.{_nearest(key, known, prefix)}")
        if is_dataclass(types[key]) and isinstance(value, Mapping):
            _refuse_unknown(types[key], value, f"{prefix}{key}.")


def _nearest(name: str, known: list[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return (
        f" Did you mean {prefix}{near[0]}?"
        if near
        else f" Known: {', '.join(prefix + each for each in known)}."
    )
