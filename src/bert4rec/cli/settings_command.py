"""`bert4rec settings`: what can be set, and its default, its value for a dataset or in a preset."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.cli.console import print_json, print_table, results, say
from bert4rec.cli.prepare_command import Flag
from bert4rec.errors import UsageError
from bert4rec.settings.defaults import LARGE, DataFacts, default_settings
from bert4rec.settings.presets import list_presets
from bert4rec.settings.sections import DEFAULT_MODEL
from bert4rec.training.plan import flat

if TYPE_CHECKING:
    from bert4rec.settings.config import Setting


MARK = "*"
"""Behind the value of a setting that follows from the data."""
SMALL = DataFacts(users=100, actions=1_000, mean_length=10.0, longest_length=30, items=10_000_000)
"""A log as far from `LARGE` as logs are, or farther: what is the same for both does not follow from the data."""
SHOWN = "Shown is what a large log gets; with --data DATASET, what your data gets."
RATE = "bert4rec has a learning rate of 0.002 up to model.dim=64, and 0.001 above."


def settings_command(
    model: str = DEFAULT_MODEL,
    *,
    preset: str | None = None,
    data: Path | None = None,
    markdown: Flag = False,
    json: Flag = False,
) -> None:
    """List everything that `train --set` and `train --config` can change, with the value it has if nobody sets it.

    Parameters
    ----------
    model
        bert4rec+, bert4rec, or a baseline: pop, bpr-mf, ncf, fpmc, gru4rec, gru4rec+, caser, sasrec.
    preset
        Show the values of this preset.
    data
        Show the values for this dataset: those that `train` uses without a preset and a time limit.
    markdown
        Print the settings of all models as a document instead.
    json
        Print the settings as JSON.
    """
    from bert4rec.settings.config import list_settings

    if markdown:
        if preset or data or json or model != DEFAULT_MODEL:
            raise UsageError(
                "--markdown prints the settings of all models; it takes no model, --preset, --data or --json."
            )
        results.out(settings_document(), highlight=False)
        return
    found = list_settings(model, preset, data)
    marked = set() if preset else from_data(model)
    if json:
        print_json([{**asdict(setting), "from_data": setting.key in marked} for setting in found])
        return
    rows = [(each.key, _value(each, marked), _told(each)) for each in found]
    print_table(["setting", preset or (data.name if data else "default"), "what it is"], rows, words=(0, 2))
    if marked:
        say(f"{MARK} follows from the data if there is no preset.{'' if data else f' {SHOWN}'}")
    if model == "bert4rec" and not preset:
        say(RATE)
    say(f"Presets of {model}: {', '.join(list_presets(model)) or 'none'}.")


def settings_document() -> str:
    """The settings of all models as Markdown: what they have in common once, the rest model by model."""
    from bert4rec.settings.config import list_settings
    from bert4rec.settings.sections import SECTIONS

    parts = [
        "# Settings",
        "What `bert4rec train --set section.key=value` or a file of these keys (`--config settings.toml`) can change. "
        "This page is written by `bert4rec settings --markdown`. "
        "`bert4rec settings MODEL --preset NAME` shows the values of a preset. Without a preset, the settings that are "
        f"marked with {MARK} follow from the data; of bert4rec+ {_only_of_plus()} do so too. {SHOWN} {RATE}",
        "## How all models are trained (all but pop)",
        _table("sasrec", (each for each in list_settings("sasrec") if each.key.startswith("training."))),
    ]
    for model in reversed(SECTIONS):
        parts += [
            f"## {model}",
            _table(model, (each for each in list_settings(model) if not each.key.startswith("training."))),
        ]
    return "\n\n".join(parts)


def from_data(model: str) -> set[str]:
    """The settings of a model that follow from the data if there is no preset."""
    small, large = (flat(default_settings(model, facts)) for facts in (SMALL, LARGE))
    return {key for key, value in large.items() if value != small[key]}


def _only_of_plus() -> str:
    """How BERT4Rec+ is trained is not shown in the document, so what follows from the data is told."""
    names = sorted(from_data("bert4rec+") - from_data("sasrec"))
    *first, last = [f"`{name}`" for name in names if name.startswith("training.")]
    return f"{', '.join(first)} and {last}"


def _value(setting: "Setting", marked: set[str]) -> str:
    return f"{setting.value}{MARK if setting.key in marked else ''}"


def _table(model: str, settings: "Iterable[Setting]") -> str:
    marked = from_data(model)
    rows = [f"| `{each.key}` | {_value(each, marked)} | {_told(each)} |" for each in settings]
    return "\n".join(["| setting | default | what it is |", "|---|---|---|", *rows])


def _told(setting: "Setting") -> str:
    choices = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    return setting.meaning + choices
