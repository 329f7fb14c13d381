"""The folder that `auto` fills, and auto.json in it: what was asked, what was found, how long each stage took."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert4rec.artefact import refuse_existing, write_text
from bert4rec.errors import DataError, UsageError

MANIFEST, PAGE = "auto.json", "report.html"
FILES = (MANIFEST, PAGE)
STAGES = ("dataset", "runs", "production", "model")
"""Folders in the folder."""
SCHEMA = 1


@dataclass
class AutoFolder:
    """Stages in a folder, each of which is done or goes on where it stopped."""

    path: Path
    asked: dict[str, Any]
    """Parameter → value, of all that were given and decide the outcome."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Stage → how long it took, of those that are done."""
    is_new: bool = False
    """Whether it is filled from the start; what an earlier call left is there until `start`."""

    @classmethod
    def begin(cls, path: Path, asked: Mapping[str, Any], *, overwrite: bool) -> "AutoFolder":
        """A new folder, or the one that an earlier call with the same parameters began."""
        refuse_existing(path, MANIFEST, overwrite=True)  # What is not ours, whoever may overwrite.
        folder = cls(path, json.loads(json.dumps(asked)))
        if overwrite or not folder.is_begun:
            folder.is_new = True
            return folder
        before = _read(path / MANIFEST)
        if before["finished"]:
            refuse_existing(path, MANIFEST, overwrite=False)
        for name in {**before["asked"], **folder.asked}:
            kept, value = before["asked"].get(name), folder.asked.get(name)
            if kept != value:
                raise UsageError(
                    f"{path} was begun {_given(name, kept)}, not {_given(name, value)}. Go on as it was begun, or "
                    "start again with `overwrite=True`."
                )
        folder.seconds = before["seconds"]
        return folder

    @property
    def dataset(self) -> Path:
        return self.path / "dataset"

    @property
    def production(self) -> Path:
        """The run whose model is exported."""
        return self.path / "production"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def page(self) -> Path:
        return self.path / PAGE

    def run(self, model: str) -> Path:
        """Where the run of a model is."""
        return self.path / "runs" / model

    @property
    def is_begun(self) -> bool:
        """Whether anything is done that took its time; until then, other parameters do no harm."""
        return self.dataset.exists() or (self.path / "runs").exists()

    def start(self) -> None:
        """Remove what an earlier call left. Not before there is something to put in its place: a typo costs nothing."""
        self.clear()
        self.save()
        self.is_new = False

    def clear(self) -> None:
        """Remove what stages leave. What others put there stays, and the folder itself, because it is locked."""
        for path in (*map(self.path.joinpath, STAGES), *self.path.glob(".*.unfinished-*")):
            shutil.rmtree(path, ignore_errors=True)
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)

    def save(self, found: Mapping[str, Any] | None = None) -> None:
        """Write auto.json; with what was `found`, all is done."""
        content = {
            "format": "bert4rec auto",
            "schema": SCHEMA,
            "finished": found is not None,
            "asked": self.asked,
            "seconds": self.seconds,
            **(found or {}),
        }
        write_text(self.path / MANIFEST, json.dumps(content, indent=2, ensure_ascii=False))


def _given(name: str, value: object) -> str:
    return f"with `{name}={value!r}`" if value else f"without `{name}`"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = dict(json.loads(path.read_text(encoding="utf-8")))
        dict(content["asked"]), dict(content["seconds"]), bool(content["finished"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is damaged or of another version ({error}). Start again with `overwrite=True`."
        ) from error
    return content
