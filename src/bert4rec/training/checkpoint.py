"""Tensors on disk: safetensors, written under another name and renamed, never pickled."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bert4rec.errors import DataError, NotFoundError

State = dict[str, Any]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], state: State | None = None) -> None:
    """Write tensors, and beside them whatever JSON can hold, so that `path` is always whole or absent."""
    unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, unfinished, metadata={"state": json.dumps(state or {})})
        # safetensors lets only the owner read it; it should be as readable as the folder.
        unfinished.chmod(path.parent.stat().st_mode & 0o666)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], State]:
    """What `save_tensors` wrote. A missing, truncated or foreign file is refused by name."""
    if not path.is_file():
        raise NotFoundError(f"{path} not found.")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            state = json.loads((file.metadata() or {})["state"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} is truncated or was not written by bert4rec ({error}).") from error
    return tensors, state
