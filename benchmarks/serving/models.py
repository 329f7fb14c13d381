"""Models with random weights, and requests for them.

`python -m benchmarks.serving.models FOLDER ITEMS DIM SEED` writes one. It runs as a process of its own, so that
the one that makes the load never holds torch.
"""

import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from benchmarks.load import post
from benchmarks.serving.servers import Server, Version

FOLDER = Path("bench") / "serving"
MAX_LENGTH = 50
USERS = 1000


@dataclass(frozen=True)
class Shape:
    name: str
    items: int
    dim: int

    def folder(self, version: Version, seed: int = 1) -> Path:
        """Where a model of this shape is, exported by the version that serves it; it is made if there is none."""
        checkout = sha256(str(version.source.resolve()).encode()).hexdigest()[:8]
        target = FOLDER / f"{self.name}-{seed}-{checkout}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            program = [sys.executable, "-m", "benchmarks.serving.models"]
            version.call([*program, str(target), str(self.items), str(self.dim), str(seed)])
        return target.resolve()

    def history(self, rng: np.random.Generator, length: int = MAX_LENGTH - 1) -> list[str]:
        return [f"i{item}" for item in rng.integers(1, self.items + 1, length)]

    def by_history(self) -> list[bytes]:
        """A thousand requests with full histories."""
        rng = np.random.default_rng(1)
        return [post("/v1/recommend", {"history": self.history(rng)}) for _ in range(1000)]

    def by_user(self, server: Server) -> list[bytes]:
        """Requests by user id, after the store has full histories of these users."""
        rng = np.random.default_rng(2)
        at_once = 20
        for first in range(0, USERS, at_once):
            events = [
                {
                    "event_id": f"stored-{user}-{place}",
                    "user_id": f"u{user}",
                    "item_id": item,
                    "timestamp": f"2026-01-01T00:00:{place:02}Z",
                }
                for user in range(first, first + at_once)
                for place, item in enumerate(self.history(rng))
            ]
            server.send("/v1/events", {"events": events})
        return [post("/v1/recommend", {"user_id": f"u{user}"}) for user in range(USERS)]

    def batch(self, size: int, *, k: int = 10, length: int = MAX_LENGTH - 1) -> bytes:
        rng = np.random.default_rng(3)
        entries = [{"history": self.history(rng, length), "k": k} for _ in range(size)]
        return post("/v1/recommend/batch", {"requests": entries})


BEAUTY = Shape("beauty", 54_542, 64)
"""Of the Beauty data set."""
SMALL = Shape("small", 1_000, 32)
"""So cheap to ask that everything around the model is what counts."""


def make(target: Path, items: int, dim: int, seed: int) -> None:
    import torch

    from bert4rec.export.exporter import export_model
    from bert4rec.models.bert4rec import BERT4Rec
    from bert4rec.recommend.catalogue import Catalogue
    from bert4rec.settings.networks import ModelConfig

    model = BERT4Rec(items, ModelConfig(dim=dim, max_length=MAX_LENGTH), torch.Generator().manual_seed(seed))
    numbers = range(1, items + 1)
    catalogue = Catalogue(
        ids=[f"i{number}" for number in numbers],
        titles=[f"Item number {number} of a catalogue" for number in numbers],
        counts=np.arange(items, 0, -1, dtype=np.int64),
    )
    export_model(model, catalogue, target, name=target.name)


if __name__ == "__main__":
    _, folder, *numbers = sys.argv
    make(Path(folder), *map(int, numbers))
