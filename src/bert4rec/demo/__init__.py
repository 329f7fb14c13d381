"""A demo of everything in a minute or two: the built-in world, ten models, a report."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert4rec.demo.demo import run_demo

__all__ = ["run_demo"]


def __getattr__(name: str) -> Any:
    if name == "run_demo":
        from bert4rec.demo.demo import run_demo

        return run_demo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
