"""What is optional to install: commands that need it say how to get it."""

from importlib.util import find_spec

from bert4rec.errors import UsageError


def require_torch() -> None:
    if find_spec("torch") is None:
        raise UsageError("This command needs PyTorch: pip install 'bert4rec[train]'.")
