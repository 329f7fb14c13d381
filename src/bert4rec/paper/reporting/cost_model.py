"""What a training step costs on several GPUs, on paper: arithmetic, bytes exchanged, memory.

The rate of arithmetic is what one GPU was measured to reach. What could not be measured (the links between GPUs) is
what their makers state. The model leaves out what overlaps and what waits, so it tells what breaks first, and not how
fast a cluster will be.

Shapes: G GPUs, B samples on each, T tokens and R targets a sample, V items of width D.
"""

from dataclasses import dataclass

FLOAT = 4
"""Bytes of a number, in all that is exchanged and kept."""
GPUS_A_MACHINE = 8
INSIDE, BETWEEN = 450e9, 50e9
"""Bytes a second that one GPU of an H200 machine sends, as its makers state: by NVLink, and by a network of 400 Gbit/s
for each GPU."""


@dataclass(frozen=True)
class Job:
    """A model, and the batch that each GPU takes of a step."""

    items: int
    dim: int = 128
    layers: int = 2
    samples: int = 256
    tokens: int = 50
    targets: int = 10
    negatives: int | None = None
    """Items drawn for a sampled softmax; None is the exact one."""

    @property
    def dense(self) -> int:
        """Parameters besides the item table: four products of attention, and a feed-forward network four times as
        wide as the model."""
        return self.layers * 12 * self.dim**2

    @property
    def flops(self) -> float:
        """Of one GPU in a step, forward and backward. Of several, each takes all targets and its share of the items."""
        attention = 2 * self.tokens * self.dim * self.layers
        encoder = self.tokens * (self.dense + attention)
        against = self.items if self.negatives is None else self.negatives
        return 6.0 * self.samples * (encoder + self.targets * self.dim * against)

    def exchanged(self, gpus: int) -> float:
        """Bytes that one GPU sends in a step: rows of items, targets' hidden states, gradients of what is not split.

        Targets and negatives are scored where their rows are, with either softmax.
        """
        others = (gpus - 1) / gpus
        fetched = 2 * self.samples * self.tokens * self.dim * others  # there, and the gradients back
        summed = 2 * self.dense * others
        gathered = 2 * (gpus - 1) * self.samples * self.targets * self.dim
        return FLOAT * (fetched + summed + gathered)

    def table_bytes(self, gpus: int) -> float:
        """Memory of one GPU for the item table while it learns: weights and two moments and, where every item has a
        gradient, that gradient and a copy of half the width."""
        numbers = 3.0 if self.negatives is not None else 4.5
        return FLOAT * numbers * self.items * self.dim / gpus

    @property
    def whole_table(self) -> float:
        """Bytes of the weights alone: what each GPU holds besides while it validates."""
        return float(FLOAT * self.items * self.dim)


@dataclass(frozen=True)
class StepCost:
    """What one step takes."""

    computing: float
    """Seconds."""
    exchanging: float
    """Seconds."""
    samples_per_second: float
    learning_bytes: float
    """Of one GPU."""
    validating_bytes: float
    """Likewise."""

    @property
    def bound_by(self) -> str:
        """What most of the time goes into."""
        return "arithmetic" if self.computing >= self.exchanging else "exchange"


def step_cost(job: Job, gpus: int, flops_per_second: float, shortest: float = 0.0) -> StepCost:
    """A step on so many GPUs, each of which reaches this rate of arithmetic, and takes `shortest` seconds at least."""
    link = INSIDE if gpus <= GPUS_A_MACHINE else BETWEEN
    computing, exchanging = max(shortest, job.flops / flops_per_second), job.exchanged(gpus) / link
    learning = job.table_bytes(gpus)
    return StepCost(
        computing,
        exchanging,
        gpus * job.samples / (computing + exchanging),
        learning,
        learning + (job.whole_table if gpus > 1 else 0.0),
    )
