"""What commands need, and say at once if it is missing: libraries that are optional to install, and folders."""

from importlib.util import find_spec
from pathlib import Path

from bert4rec.errors import NotFoundError, UsageError


def require_torch() -> None:
    if find_spec("torch") is None:
        raise UsageError("This command needs PyTorch: pip install 'bert4rec[train]'.")


def require_folder(path: Path, what: str) -> None:
    """Ask for a folder before loading torch, which takes seconds."""
    if not path.exists():
        raise NotFoundError(f"{path} does not exist; expected {what}.")
