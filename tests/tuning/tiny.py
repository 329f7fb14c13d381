"""A shop and settings small enough that a trial takes a moment."""

from dataclasses import dataclass, field
from pathlib import Path

from bert4rec.data.dataset import Dataset
from bert4rec.data.prepare import prepare
from bert4rec.world.shapes import Shape
from bert4rec.world.world import World, WorldConfig

SHAPE = Shape(
    num_users=200,
    num_items=60,
    num_actions=2000,
    length_quantiles=(5, 6, 7, 8, 9, 10, 12, 14, 18),
    count_quantiles=(10, 15, 20, 25, 30, 40, 50, 60, 80),
    source="made up",
)


def tiny_shop(folder: Path) -> Dataset:
    log = World.generate(WorldConfig(shape=SHAPE, departments=4)).log()
    return prepare(log, folder, name="tiny shop")


@dataclass
class Witness:
    """A listener that remembers what it heard."""

    said: list[str] = field(default_factory=list)
    now: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.said.append(f"Warning: {text}")

    def busy(self, what: str, seconds_left: float) -> None:
        self.now.append(what)
