"""Folders that are either complete or not there.

Every stage writes one folder: arrays and tables beside a small JSON manifest with its format, its
schema version, the size and SHA-256 of every other file, and last the SHA-256 of itself. The folder is filled under
a temporary name and takes its own when it is complete, so a full disk, an error, Ctrl-C or a kill leaves whatever was
there before. What a killed process leaves beside it is removed by the next one that writes the same folder.
"""

import ctypes
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape as glob_escape
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from bert4rec.errors import Bert4RecError, DataError, NotFoundError, UsageError
from bert4rec.machine import usable_cores

Manifest = dict[str, Any]
Task = TypeVar("Task")
Result = TypeVar("Result")
_MANIFESTS = {"dataset.json": "dataset", "run.json": "run", "model.json": "model"}
"""The file by which a folder is recognised → its kind."""
NAMES = {"dataset": "a dataset", "run": "a run", "model": "an exported model", "file": "a file"}
_WRITER = {
    "dataset": "`prepare('LOG', 'dataset')`",
    "run": "`train('DATASET', 'run')`",
    "model": "`run.export()`",
}


_SEAL = re.compile(rb',\n  "sha256": "([0-9a-f]{64})"\n}\n\Z')
"""How a manifest ends: the SHA-256 of all that stands before. Those of earlier versions end with the files."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Of Linux, for `renameat2`."""
log = logging.getLogger("bert4rec")


@contextmanager
def new_folder(target: Path, manifest: str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder that replaces `target` when the block ends well, and is removed otherwise.

    Only a folder of the same kind, recognised by its manifest, is ever replaced. A link stays, and the folder that it
    leads to is replaced. The folder is locked for as long as it is unfinished: one that is not was left by a kill.
    """
    _clear_away(behind_links(target))
    refuse_existing(target, manifest, overwrite=overwrite)
    with scratch_folder(target) as unfinished:
        yield unfinished
        # Somebody else may have made it meanwhile.
        refuse_existing(target, manifest, overwrite=overwrite)
        target = behind_links(target)
        if target.exists():
            _replace(target, unfinished)
        else:
            unfinished.rename(target)


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target`, locked, and removed in the end with whatever is in it then."""
    target = behind_links(target)
    _clear_away(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.parent / f".{target.name}.unfinished-{uuid4().hex[:8]}"
    with held(unfinished, wait=True):  # for the moment in which somebody may look whether it is held
        try:
            yield unfinished
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _replace(target: Path, new: Path) -> None:
    """Put `new` in the place of `target`, in one step if the system can."""
    if _exchange(target, new):
        return
    log.warning(
        "This file system cannot exchange two folders in one step: for a moment there is no %s. "
        "If this process is killed just then, the next command that writes it brings the old one back.",
        target,
    )
    replaced = new.with_name(new.name.replace(".unfinished-", ".replaced-"))
    target.rename(replaced)
    try:
        new.rename(target)
    except BaseException:
        replaced.rename(target)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once; False if the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(one))


def _clear_away(target: Path) -> None:
    """Remove what killed processes left beside `target`, and bring it back if one was killed while it replaced it."""
    for kind in ("unfinished", "replaced"):
        for left in target.parent.glob(f".{glob_escape(target.name)}.{kind}-*"):
            with _lock_if_free(left.with_name(left.name.replace(".replaced-", ".unfinished-"))) as is_free:
                if not is_free or not left.is_dir():
                    continue
                if kind == "replaced" and not target.exists():
                    left.rename(target)
                    log.warning("%s is back: a command was killed while it replaced it.", target)
                else:
                    shutil.rmtree(left, ignore_errors=True)
                    log.warning("Removed %s, which an interrupted command had left.", left)


@contextmanager
def _lock_if_free(folder: Path) -> Iterator[bool]:
    """Whether no other process has locked the folder; if so, none can until the block ends."""
    with ExitStack() as closing:
        try:
            handle = os.open(folder, os.O_RDONLY)
            closing.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            yield False
            return
        yield True


def behind_links(path: Path) -> Path:
    """Where `path` leads, whether it exists or not: renaming something to a link would replace the link."""
    return Path(os.path.realpath(path))


@contextmanager
def held(folder: Path, *, wait: bool, busy: str = "") -> Iterator[None]:
    """Lock a folder for this process and create it if needed. If another process has it, wait or refuse.

    If it is empty in the end, it is removed. `busy` is what to say where another process has it.
    """
    folder = behind_links(folder)
    while (handle := _lock(folder, wait=wait, busy=busy)) is None:
        pass
    try:
        yield
    finally:
        if _is_still(handle, folder):
            with suppress(OSError):  # It is not empty.
                folder.rmdir()
        os.close(handle)


def _lock(folder: Path, *, wait: bool, busy: str) -> int | None:
    """None if the process that had the folder has removed it: others will then find another folder of this name."""
    with suppress(FileExistsError):
        folder.mkdir(parents=True)
    with ExitStack() as unless_kept, suppress(FileNotFoundError):
        handle = os.open(folder, os.O_RDONLY)
        unless_kept.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            usual = f"Another process is at work in {folder}. Wait for it, or choose another folder."
            raise UsageError(busy or usual) from error
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
    """Write `manifest` as `folder/name`, with size and SHA-256 of every other file in the folder, and of itself."""
    paths = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != name and not path.name.startswith(".")
    ]
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(paths, _at_once(sha256_of, paths), strict=True)
    }
    facts = {key: value for key, value in manifest.items() if key not in ("files", "sha256")}
    content = json.dumps({**facts, "files": files}, indent=2, ensure_ascii=False).removesuffix("\n}")
    seal = hashlib.sha256(content.encode()).hexdigest()
    write_text(folder / name, f'{content},\n  "sha256": "{seal}"\n}}')


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it is always complete."""
    unfinished = path.with_name(f".{path.name}.unfinished-{uuid4().hex[:8]}")
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(path)


def read_manifest(
    folder: Path, name: str, *, kind: str, schema: int, check: Callable[[Manifest], object] = dict
) -> Manifest:
    """The manifest of `folder`, after checking that it is a `kind` of this schema and no file is missing.

    The other files are not hashed here, so that opening takes milliseconds whatever the size: `verify_files` does
    that. `check` looks up what a manifest of this kind has in every version: earlier ones did not seal it, so what is
    missing or of another type is damage.
    """
    path = folder / name
    if not path.is_file():
        raise wrong_folder(folder, kind)
    try:
        content = path.read_bytes()
        manifest = dict(json.loads(content))
        found, files = manifest["schema"], manifest["files"]
        if found == schema:  # Another one may be sealed in another way.
            _unseal(content, manifest)
            check(manifest)
        sizes = {each: (facts["bytes"], facts["sha256"])[0] for each, facts in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise DataError(f"{path} is damaged and cannot be read ({reason}). Re-create the folder.") from error
    if found != schema:
        raise DataError(
            f"{path} has schema version {found}, this version of bert4rec reads {schema}. Re-create the folder."
        )
    for file_name, size in sizes.items():
        _check_size(folder / file_name, size)
    return manifest


def _unseal(content: bytes, manifest: Manifest) -> None:
    """Take its own SHA-256 out of a manifest; raises ValueError if it is not as it was written."""
    seal = _SEAL.search(content)
    if seal and hashlib.sha256(content[: seal.start()]).hexdigest() == seal[1].decode():
        del manifest["sha256"]
    # Earlier versions wrote no seal; a damaged one must not pass for none.
    elif seal or next(reversed(manifest), None) != "files":
        raise ValueError("it has changed since it was written")


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
        left = next(path.parent.glob(f".{glob_escape(path.name)}.replaced-*"), None)
        back = f" {left} is the one that a killed command was about to replace: rename it." if left else ""
        return NotFoundError(f"{path} does not exist; expected {written}{back}")
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
    _at_once(lambda file_name: verify_file(folder, manifest, file_name), manifest["files"])


def verify_file(folder: Path, manifest: Manifest, file_name: str) -> None:
    """Hash one file of the folder and refuse it if it has changed since it was written."""
    path = folder / file_name
    if file_name not in manifest["files"]:
        raise DataError(f"The manifest of {folder} does not list {file_name}. Re-create the folder.")
    facts = manifest["files"][file_name]
    _check_size(path, facts["bytes"])
    if sha256_of(path) != facts["sha256"]:
        raise DataError(
            f"{path} has changed since it was written (its checksum differs). Re-create the folder."
        )


def _at_once(work: Callable[[Task], Result], tasks: Iterable[Task]) -> list[Result]:
    """What `work` makes of each task, on all cores. For work that lets other threads go on, such as hashing files."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(usable_cores()) as threads:
        return list(threads.map(work, tasks))


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
