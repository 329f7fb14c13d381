"""Folders that are either complete or not there.

Every stage writes one folder: arrays and tables beside a small JSON manifest with its format, its
schema version, and the size and SHA-256 of every other file. The folder is filled under a temporary name
and renamed when it is complete, so a full disk, an error or Ctrl-C leaves whatever was there before.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from bert4rec.errors import Bert4RecError, DataError, NotFoundError, UsageError

Manifest = dict[str, Any]
_MANIFESTS = {"dataset.json": "dataset", "run.json": "run", "model.json": "model"}
"""The file by which a folder is recognised → its kind."""
NAMES = {"dataset": "a dataset", "run": "a run", "model": "an exported model", "file": "a file"}
_WRITER = {
    "dataset": "`prepare('LOG', 'dataset')`",
    "run": "`train('DATASET', 'run')`",
    "model": "`run.export()`",
}


@contextmanager
def new_folder(target: Path, manifest: str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder that replaces `target` when the block ends well, and is removed otherwise.

    Only a folder of the same kind, recognised by its manifest, is ever replaced. A link stays, and the folder that it
    leads to is replaced.
    """
    refuse_existing(target, manifest, overwrite=overwrite)
    target = behind_links(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid4().hex[:8]
    unfinished = target.parent / f".{target.name}.unfinished-{mark}"
    replaced = target.parent / f".{target.name}.replaced-{mark}"
    unfinished.mkdir()
    try:
        yield unfinished
        # Somebody else may have made it meanwhile.
        refuse_existing(target, manifest, overwrite=overwrite)
        if target.exists():
            target.rename(replaced)
        unfinished.rename(target)
    except BaseException:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def behind_links(path: Path) -> Path:
    """Where `path` leads, whether it exists or not: renaming something to a link would replace the link."""
    return Path(os.path.realpath(path))


@contextmanager
def held(folder: Path, *, wait: bool) -> Iterator[None]:
    """Lock a folder for this process and create it if needed. If another process has it, wait or refuse.

    If it is empty in the end, it is removed.
    """
    folder = behind_links(folder)
    while (handle := _lock(folder, wait=wait)) is None:
        pass
    try:
        yield
    finally:
        if _is_still(handle, folder):
            with suppress(OSError):  # It is not empty.
                folder.rmdir()
        os.close(handle)


def _lock(folder: Path, *, wait: bool) -> int | None:
    """None if the process that had the folder has removed it: others will then find another folder of this name."""
    with suppress(FileExistsError):
        folder.mkdir(parents=True)
    with ExitStack() as unless_kept, suppress(FileNotFoundError):
        handle = os.open(folder, os.O_RDONLY)
        unless_kept.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"Another process is at work in {folder}. Wait for it, or choose another folder."
            ) from error
        if _is_still(handle, folder):
            unless_kept.pop_all()
            return handle
    return None


def _is_still(handle: int, folder: Path) -> bool:
    """Whether the folder that was opened is the one of this name now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), folder.stat())
    return False


def refuse_existing(target: Path, manifest: str, *, overwrite: bool) -> None:
    """Refuse a `target` that will not be replaced, before any long work."""
    if not target.exists():
        return
    if not target.is_dir() or (any(target.iterdir()) and not _is_ours(target / manifest)):
        raise UsageError(
            f"{target} is not a bert4rec folder (it has no {manifest}) and will not be overwritten."
        )
    if not overwrite:
        raise UsageError(
            f"{target} already exists. Choose another folder, or replace it with `overwrite=True`."
        )


def _is_ours(manifest: Path) -> bool:
    try:
        return "bert4rec" in str(json.loads(manifest.read_text(encoding="utf-8"))["format"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_manifest(folder: Path, name: str, manifest: Manifest) -> None:
    """Write `manifest` as `folder/name`, with size and SHA-256 of every other file in the folder."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != name and not path.name.startswith(".")
    }
    write_text(folder / name, json.dumps({**manifest, "files": files}, indent=2, ensure_ascii=False))


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it is always complete."""
    unfinished = path.with_name(f".{path.name}.unfinished-{uuid4().hex[:8]}")
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(path)


def read_manifest(folder: Path, name: str, *, kind: str, schema: int) -> Manifest:
    """The manifest of `folder`, after checking that it is a `kind` of this schema and no file is missing.

    Contents are not hashed here, so that opening takes milliseconds whatever the size: `verify_files` does that.
    """
    path = folder / name
    if not path.is_file():
        raise wrong_folder(folder, kind)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found, files = manifest["schema"], manifest["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged and cannot be read ({error}). Re-create the folder.") from error
    if found != schema:
        raise DataError(
            f"{path} has schema version {found}, this version of bert4rec reads {schema}. Re-create the folder."
        )
    for file_name, facts in files.items():
        _check_size(folder / file_name, facts["bytes"])
    return dict(manifest)


def kind_of(path: Path) -> str | None:
    """`dataset`, `run`, `model` or `file`; None for anything else."""
    if path.is_file():
        return "file"
    return next((kind for name, kind in _MANIFESTS.items() if (path / name).is_file()), None)


def wrong_folder(path: Path, *kinds: str) -> Bert4RecError:
    """Why `path` is none of these kinds, and what to do: the step that is missing, or what is for what."""
    expected = " or ".join(NAMES[kind] for kind in kinds)
    written = f"{expected}, which {_WRITER[kinds[0]]} writes."
    shown, found = repr(str(path)), kind_of(path)
    if not path.exists():
        return NotFoundError(f"{path} does not exist; expected {written}")
    if found is None or found in kinds:
        return NotFoundError(f"{path} is not {written}")
    told = f"{path} is {NAMES[found]}; expected"
    if found == "file" and "dataset" in kinds:
        return UsageError(f"{told} {expected}. Prepare it first: `prepare({shown}, 'dataset')`.")
    if found == "file":
        return UsageError(f"{told} {written}")
    if found == "dataset" and "run" in kinds:
        return NotFoundError(f"{told} {expected}. Train with it first: `train({shown}, 'run')`.")
    return NotFoundError(f"{told} {written} {purpose(path, found)}")


def purpose(path: Path, kind: str) -> str:
    """What a folder of this kind is for, in a sentence."""
    shown = repr(str(path))
    return {
        "dataset": f"A dataset is for `train({shown}, 'run')`.",
        "run": "A run is for `run.evaluate()`, `load(run)` and `run.export()`.",
        "model": f"An exported model is for `load({shown})` and `serve({shown})`.",
    }[kind]


def verify_files(folder: Path, manifest: Manifest) -> None:
    """Hash every file of the folder and refuse the first that has changed since it was written."""
    for file_name, facts in manifest["files"].items():
        path = folder / file_name
        _check_size(path, facts["bytes"])
        if sha256_of(path) != facts["sha256"]:
            raise DataError(
                f"{path} has changed since it was written (its checksum differs). Re-create the folder."
            )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise DataError(f"{path} is missing, but the folder's manifest lists it. Re-create the folder.")
    found = path.stat().st_size
    if found != expected:
        raise DataError(f"{path} has {found} bytes where {expected} were written. Re-create the folder.")
