"""What a refresh is asked for, and which of its folders it goes on with, begins or clears away."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bert4rec.artefact import sha256_of, write_text
from bert4rec.data.dataset import Repeats
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.logs.times import format_moment
from bert4rec.recommend.onnx_engine import MANIFEST as MODEL
from bert4rec.settings.checks import checked_minutes, checked_seed
from bert4rec.settings.config import GivenSettings
from bert4rec.settings.sections import DEFAULT_MODEL
from bert4rec.store.upkeep import address_of, moment_before, sqlite_file

STALE = 12 * 3600.0
"""Seconds after which an interrupted refresh is not gone on with: its log misses too much by then."""
WHEN = "%Y%m%dT%H%M%SZ"
OURS = re.compile(r"\d{8}T\d{6}Z")
"""Names of the folders of refreshes. All others are somebody else's."""
SQLITE = b"SQLite format 3\0"
"""The beginning of every SQLite file."""


@dataclass(frozen=True)
class Request:
    """What the next model is made of, and how: the parameters of `refresh`."""

    source: str
    columns: dict[str, Any]
    """Of a log: parameters of `prepare`,"""
    items: str | None
    since: str | None
    filters: dict[str, Any]
    """more of them,"""
    repeats: Repeats | None
    training: dict[str, Any]
    """and of `train`."""
    config: str | None

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        from bert4rec.export.exporter import check_exportable
        from bert4rec.training.specs import MODELS

        if re.match(r"\w+:/[^/]", self.source):  # perhaps with a password, so it is not repeated
            raise UsageError("`source`: an address has two slashes, as in postgresql://user@host/database.")
        if self.address:
            sqlite_file(self.address)
            if any(self.columns.values()):
                raise UsageError("`user`, `item` and `time` are columns of a log; a store has its own.")
        elif not Path(self.source).exists():
            raise NotFoundError(f"{self.source} does not exist; expected a history store or a log.")
        if self.items is not None and not Path(self.items).is_file():
            raise NotFoundError(f"`items`: {self.items} does not exist.")
        _ = self.after
        if self.training["minutes"] is not None:
            checked_minutes(self.training["minutes"])
        checked_seed(self.training["seed"])
        model = self.training["model"] or DEFAULT_MODEL
        GivenSettings.read(model, self.training["preset"], self.training["settings"], self.config)
        check_exportable(MODELS[model].network, MODELS[model].title)

    @property
    def address(self) -> str:
        """Of the store, if the source is one; otherwise empty."""
        return address_of(self.source) if is_store(self.source) else ""

    @property
    def name(self) -> str:
        """What dataset and model are called."""
        return "history" if "://" in self.source else Path(self.source).stem

    @property
    def after(self) -> str | None:
        """The date that `since` means."""
        if self.since is None:
            return None
        try:
            return format_moment(moment_before(self.since))
        except (ValueError, OverflowError, OSError) as error:
            raise UsageError(f"`since`: {self.since} is before the first date there is.") from error

    @property
    def digest(self) -> str:
        """Tells requests apart, and what is in the files that they name; the source may hold a password, which must
        not be written down."""
        files = [sha256_of(Path(path)) for path in (self.items, self.config) if path]
        facts = json.dumps([asdict(self), files], sort_keys=True, default=str)
        return hashlib.sha256(facts.encode()).hexdigest()


def is_store(source: str) -> bool:
    """Whether this is the address of a store or its file, rather than a log."""
    if "://" in source:
        return True
    path = Path(source)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def begin(folder: Path, request: Request) -> Path:
    """A new folder for a refresh. What earlier ones left goes: it holds users who have been forgotten since."""
    for old in _folders(folder / "work", "request.json"):
        shutil.rmtree(old)
    moment = datetime.now(UTC)
    while (work := folder / "work" / moment.strftime(WHEN)).exists() or (
        folder / "models" / work.name
    ).exists():
        moment += timedelta(seconds=1)
    work.mkdir(parents=True)
    write_text(work / "request.json", json.dumps({"digest": request.digest, "began": time.time()}))
    return work


def unfinished(folder: Path, request: Request, *, is_forced: bool) -> Path | None:
    """The refresh to go on with: interrupted not long ago, and asked for the same. If it is forced, also one whose
    model was refused."""
    for work in _folders(folder / "work", "request.json"):
        begun = json.loads((work / "request.json").read_text(encoding="utf-8"))
        if begun["digest"] != request.digest or time.time() - begun["began"] > STALE:
            continue
        done = work / "refresh.json"
        if not done.exists() or (
            is_forced and not json.loads(done.read_text(encoding="utf-8"))["verdict"]["accepted"]
        ):
            return work
    return None


def clear_models(folder: Path, link: Path, keep: int) -> None:
    """All but the newest, and the one in service."""
    newest_first = sorted(_folders(folder / "models", MODEL), reverse=True)
    for old in newest_first[keep:]:
        if old.resolve() != link.resolve():
            shutil.rmtree(old)


def _folders(parent: Path, made_by_us: str) -> Iterator[Path]:
    """Those of refreshes, told by their names and by a file in them."""
    found = parent.iterdir() if parent.is_dir() else ()
    return (each for each in list(found) if OURS.fullmatch(each.name) and (each / made_by_us).is_file())
