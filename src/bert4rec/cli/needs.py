"""What commands check at once: a folder that must exist. PyTorch is checked by the library."""

from pathlib import Path

from bert4rec.errors import NotFoundError
from bert4rec.extras import require_torch

__all__ = ["require_folder", "require_torch"]


def require_folder(path: Path, what: str) -> None:
    """Look for a folder before PyTorch is loaded, which takes seconds."""
    if not path.exists():
        raise NotFoundError(f"{path} does not exist; expected {what}.")
