"""Tables about size: what was measured beyond one data set, and what larger machines would take, on paper."""

from collections.abc import Sequence
from itertools import product

from bert4rec.paper.reporting.cost_model import Job, StepCost, step_cost
from bert4rec.paper.reporting.evidence import Line
from bert4rec.paper.reporting.layout import Row, Table

LARGE_CATALOGUE = 1_000_000
"""At least so many items make a training one that the softmax bounds, as larger ones are."""
MEASURED_LIMIT = 788e12
"""Operations a second of one H200 in a large product of bfloat16 matrices."""
GPUS = (1, 8, 64)
NEGATIVES = 8192
JOBS = {
    "10 million items, exact softmax": Job(10_000_000),
    "10 million items, sampled softmax": Job(10_000_000, negatives=NEGATIVES),
    "100 million items, exact softmax": Job(100_000_000),
    "100 million items, sampled softmax": Job(100_000_000, negatives=NEGATIVES),
}


def projection_table(lines: Sequence[Line]) -> Table:
    """What a step would take on more GPUs, by what one of them was measured at: the share of the arithmetic limit that
    a large catalogue reaches, and the shortest step of all."""
    measured = [line for line in lines if "NVIDIA" in line["device"]]
    shares = [line["share_of_arithmetic_limit"] for line in measured if line["items"] >= LARGE_CATALOGUE]
    if not shares:
        return Table("", [], [])
    rate, shortest = max(shares) * MEASURED_LIMIT, min(line["step_milliseconds"] for line in measured) / 1000
    rows = [
        Row(f"{name}, {gpus} GPU{'s' * (gpus > 1)}", _cells(step_cost(job, gpus, rate, shortest)))
        for (name, job), gpus in product(JOBS.items(), GPUS)
    ]
    columns = [
        "computing",
        "exchanging",
        "samples/s",
        "bound by",
        "a GPU's memory, learning",
        "validating",
    ]
    return Table("", columns, rows, corner="a step, on paper")


def _cells(cost: StepCost) -> list[str]:
    return [
        f"{cost.computing * 1000:,.1f} ms",
        f"{cost.exchanging * 1000:,.2f} ms",
        f"{cost.samples_per_second:,.0f}",
        cost.bound_by,
        f"{cost.learning_bytes / 2**30:,.1f} GiB",
        f"{cost.validating_bytes / 2**30:,.1f} GiB",
    ]
