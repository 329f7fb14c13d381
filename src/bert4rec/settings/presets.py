"""Named settings: one file a model, one table a preset. Needs no torch, so that a mistake is reported at once."""

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from bert4rec.errors import NotFoundError, UsageError
from bert4rec.settings.sections import SECTIONS

Values = dict[str, dict[str, Any]]
"""Section → setting → value, as a file or a user wrote it."""


def list_presets(model: str) -> list[str]:
    """The presets of a model; a model of your own has none."""
    refuse_unknown(model)
    return list(_presets_of(model))


def load_preset(model: str, name: str) -> Values:
    """The values of a preset, section by section."""
    refuse_unknown(model, name)
    return {section: dict(values) for section, values in _presets_of(model)[name].items()}


def refuse_unknown(model: str, preset: str | None = None) -> None:
    """Refuse a model or a preset that does not exist."""
    if not isinstance(model, str) or model not in SECTIONS:
        listed = ", ".join(SECTIONS)
        raise UsageError(f"Unknown model {model!r}.{did_you_mean(str(model), SECTIONS)} Models: {listed}.")
    known = _presets_of(model)
    if preset and preset not in known:
        owners = [each for each in SECTIONS if preset in _presets_of(each)]
        hint = f" It exists for {' and '.join(owners)}." if owners else did_you_mean(preset, known)
        listed = ", ".join(known) or "none"
        raise NotFoundError(f"Unknown preset {preset!r} of {model}.{hint} Presets of {model}: {listed}.")


@cache
def _presets_of(model: str) -> dict[str, Values]:
    """Preset → values. Every built-in model has a file; a model of your own has none."""
    file = resources.files("bert4rec") / "presets" / f"{model}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A hint at the nearest of the known names, shown behind `prefix`; empty if none is near."""
    near = get_close_matches(name.lower(), list(known), n=1)
    return f" Did you mean {prefix}{near[0]}?" if near else ""
