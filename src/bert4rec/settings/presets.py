"""Named settings: one file a model, one table a preset. Needs no torch, so that a mistake is reported at once."""

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from bert4rec.errors import NotFoundError, UsageError

Values = dict[str, dict[str, Any]]
"""Section → setting → value, as a file or a user wrote it."""


def list_presets(model: str) -> list[str]:
    """The presets of a model; a model of your own has none."""
    refuse_unknown(model)
    return list(_all_presets()[model])


def load_preset(model: str, name: str) -> Values:
    """The values of a preset, section by section."""
    refuse_unknown(model, name)
    return {section: dict(values) for section, values in _all_presets()[model][name].items()}


def add_model(model: str) -> None:
    """Make a model known that has no presets."""
    _all_presets()[model] = {}


def refuse_unknown(model: str, preset: str | None = None) -> None:
    """Refuse a model or a preset that does not exist."""
    presets = _all_presets()
    if model not in presets:
        listed = ", ".join(presets)
        raise UsageError(f"Unknown model {model!r}.{did_you_mean(model, presets)} Models: {listed}.")
    if preset and preset not in presets[model]:
        owners = [each for each, names in presets.items() if preset in names]
        known = list(presets[model])
        hint = f" It exists for {' and '.join(owners)}." if owners else did_you_mean(preset, known)
        listed = ", ".join(known) or "none"
        raise NotFoundError(f"Unknown preset {preset!r} of {model}.{hint} Presets of {model}: {listed}.")


@cache
def _all_presets() -> dict[str, dict[str, Values]]:
    """Model → preset → values. Every built-in model has a file."""
    files = sorted((resources.files("bert4rec") / "presets").iterdir(), key=lambda each: each.name)
    return {
        each.name.removesuffix(".toml"): tomllib.loads(each.read_text(encoding="utf-8"))
        for each in files
        if each.name.endswith(".toml")
    }


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A hint at the nearest of the known names, shown behind `prefix`; empty if none is near."""
    near = get_close_matches(name.lower(), list(known), n=1)
    return f" Did you mean {prefix}{near[0]}?" if near else ""
