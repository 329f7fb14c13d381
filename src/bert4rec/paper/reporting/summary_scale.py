"""Tables about size: what was measured beyond one data set, and what larger machines would take, on paper."""

from collections.abc import Callable, Sequence
from itertools import product

from bert4rec.paper.reporting.cost_model import Job, StepCost, step_cost
from bert4rec.paper.reporting.evidence import Line
from bert4rec.paper.reporting.layout import Row, Table
from bert4rec.settings.defaults import NEGATIVES

LARGE_CATALOGUE = 1_000_000
"""At least so many items make a training one that the softmax bounds, as larger ones are."""
MEASURED_LIMIT = 788e12
"""Operations a second of one H200 in a large product of bfloat16 matrices."""
GPUS = (1, 8, 64)
JOBS = {
    "10 million items, exact softmax": Job(10_000_000),
    "10 million items, sampled softmax": Job(10_000_000, negatives=NEGATIVES),
    "100 million items, exact softmax": Job(100_000_000),
    "100 million items, sampled softmax": Job(100_000_000, negatives=NEGATIVES),
}


def projection_table(lines: Sequence[Line]) -> Table:
    """What a step would take on more GPUs, by what one of them was measured at: the share of the arithmetic limit that
    a large catalogue reaches, and the shortest step with either softmax."""
    measured = [line for line in lines if "NVIDIA" in line["device"]]
    shares = [line["share_of_arithmetic_limit"] for line in measured if line["items"] >= LARGE_CATALOGUE]
    if not shares:
        return Table("", [], [])
    rate = max(shares) * MEASURED_LIMIT
    rows = [
        Row(
            f"{name}, {gpus} GPU{'s' * (gpus > 1)}",
            _cells(step_cost(job, gpus, rate, _shortest(measured, job))),
        )
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


def _shortest(lines: Sequence[Line], job: Job) -> float:
    """Seconds of the shortest step with the softmax of the job or, if there is none, with any."""
    alike = [line for line in lines if bool(line.get("negatives")) == bool(job.negatives)] or lines
    return float(min(line["step_milliseconds"] for line in alike) / 1000)


def _cells(cost: StepCost) -> list[str]:
    return [
        f"{cost.computing * 1000:,.1f} ms",
        f"{cost.exchanging * 1000:,.2f} ms",
        f"{cost.samples_per_second:,.0f}",
        cost.bound_by,
        f"{cost.learning_bytes / 2**30:,.1f} GiB",
        f"{cost.validating_bytes / 2**30:,.1f} GiB",
    ]


def larger_table(lines: Sequence[Line]) -> Table:
    """What was measured beyond one data set; of things that were measured again, the last counts."""
    rows: dict[str, Row] = {}
    for line in lines:
        if cells_of := LARGER_CELLS.get(line["scale"]):
            rows |= {label: Row(label, [cell]) for label, cell in cells_of(line).items()}
    return Table("", ["measured"], list(rows.values()))


def _millions(count: int) -> str:
    return f"{count / 1e6:,.0f} million"


def _prepare_cells(line: Line) -> dict[str, str]:
    what = f"`prepare`, {_millions(line['actions'])} actions, {line['cores']} cores"
    space = f"{line['peak_gib']:.1f} GiB at most, {line['peak_disk_gib']:.0f} GiB of disk"
    bound = "at most " if line.get("shared") else ""  # Others were at work on the same cores.
    return {what: f"{bound}{line['seconds'] / 60:.0f} min, {space}"}


def _training_cells(line: Line) -> dict[str, str]:
    what, large, ratios = f"training on {_millions(line['actions'])} actions", line["large"], line["ratios"]
    return {
        f"{what}, until the first step": f"{large['seconds_to_first_step']:.0f} s",
        f"{what}, steps a second": f"{ratios['steps_per_second']:.2f} times those on 2 million",
        f"{what}, batches a second": f"{ratios['batches_per_second']:.2f} times those on 2 million",
    }


def _spark_prepare_cells(line: Line) -> dict[str, str]:
    polars, spark = line["polars"], line["spark"]
    what = f"`prepare --engine spark`, {_millions(line['actions'])} actions, {line['cores']} cores"
    memory = f"{spark['python MiB']:,} MiB of Python, {spark['java MiB']:,} MiB of Java"
    return {
        what: f"{spark['seconds']:.0f} s, {line['ratio']:.1f} times polars ({polars['seconds']:.0f} s); {memory}"
    }


def _spark_driver_cells(line: Line) -> dict[str, str]:
    what = f"the driver of `prepare --engine spark`, {_millions(line['users'])} users"
    mapped = f"{line['python MiB']:,} with pages of files"
    return {
        what: f"{line['own MiB']:,} MiB of Python ({mapped}), {line['java MiB']:,} MiB of Java, executors apart"
    }


def _spark_recommend_cells(line: Line) -> dict[str, str]:
    what = f"`recommend --engine spark`, {line['users']:,} users, {line['cores']} cores"
    seconds = line["seconds"]
    return {
        what: f"{seconds['Spark']:.0f} s, {line['ratio']:.2f} times one machine ({seconds['one machine']:.0f} s)"
    }


def _process_cells(line: Line) -> dict[str, str]:
    speeds, many = line["samples_per_second"], str(line["processes"])
    settings = ", ".join([line["model"], *line["settings"]])
    what = f"`torchrun`, {many} processes on {line['cores']} cores, {line['like']}'s shape, {settings}"
    return {
        what: f"{speeds[many]:,.0f} samples/s, {line['ratio']:.2f} times one process ({speeds['1']:,.0f})"
    }


def _catalogue_cells(line: Line) -> dict[str, str]:
    what, approximate = f"{_millions(line['items'])} items, d={line['dim']}", line["approximate"]
    return {
        f"export, {what}": f"{line['export_seconds'] / 60:.0f} min, {line['export_peak_mb'] / 1000:.1f} GB at most "
        f"(of which the model {line['of_which_model_mb'] / 1000:.1f})",
        f"serve --approximate, {what}, {line['cores']} cores": f"p50 {approximate['p50_ms']:.1f} ms, "
        f"p99 {approximate['p99_ms']:.1f} ms, recall@10 {line['index']['recall']:.3f}, "
        f"{approximate['pss_mb'] / 1000:.1f} GB of memory",
        f"serve, {what}, exact": f"p50 {line['exact_int8']['p50_ms']:.0f} ms",
    }


def _streamed_cells(line: Line) -> dict[str, str]:
    shape = f"{line['like']}'s shape, d={line['dim']}, batch {line['batch_size']}"
    what = f"training, {_millions(line['actions'])} actions in a mapped file, {shape}"
    return {what: f"{line['ratio']:.2f} times the steps a second of data on the device ({line['device']})"}


def _softmax_cells(line: Line) -> dict[str, str]:
    model = f"{line['model']}, d={line['dim']}"
    what = f"sampled softmax, {line['items']:,} items, {line['negatives']:,} negatives, {model}"
    exact, sampled = line["exact"]["mean"], line["sampled"]["mean"]
    beside = f"exact {exact:.4f}, the best possible {line['best']:.4f}"
    change = "" if line["loss"] is None else f" ({-line['loss']:+.1%})"
    return {what: f"NDCG@10 {sampled:.4f}{change}, {beside} ({line['device']})"}


LARGER_CELLS: dict[str, Callable[[Line], dict[str, str]]] = {
    "prepare": _prepare_cells,
    "train": _training_cells,
    "spark prepare": _spark_prepare_cells,
    "spark driver": _spark_driver_cells,
    "spark recommend": _spark_recommend_cells,
    "processes": _process_cells,
    "large catalogue": _catalogue_cells,
    "streamed": _streamed_cells,
    "sampled softmax": _softmax_cells,
}
"""What a line of `results/speed-scale.jsonl` is about → the rows of the table."""
