"""Tables about speed: training, recommending, serving. Lines are those that the benchmarks print."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

from bert4rec.paper.experiments.cases import BERT4REC, BEYOND, PAPER_NAMES, PLUS, Case, overall_cases
from bert4rec.paper.reporting.evidence import Evidence, Line
from bert4rec.paper.reporting.layout import Row, Table
from bert4rec.paper.reporting.printed import printed
from bert4rec.paper.runs.run_times import is_whole

GOAL = "NDCG@10"
OURS = (BERT4REC, PLUS)
"""What is shown beside the paper's BERT4Rec; what has no results is left out."""


def times_table(data: Sequence[Evidence]) -> Table:
    """When validation first passed what the paper has on the test items, in the fastest uninterrupted run, also if it
    was made only to be timed.

    A run that had the device to itself comes first; the time of any other is an upper bound.
    """
    columns = [f"the paper's {GOAL}", "passed at step", "after", "all steps after", "device"]
    rows = []
    for evidence, case in product(data, OURS):
        if passed := _first_pass(evidence, case):
            goal, line, validation = passed
            times = [_since_start(line, each) for each in (validation, line["validations"][-1])]
            device = line["device"] + (", shared" if line["device_shared"] else "")
            cells = [f"{goal:.4f}", f"{validation['step']:,}", *times, device]
            rows.append(Row(f"{evidence.facts.title}, {case.label}, seed {line['seed']}", cells))
    return Table("", columns, rows)


def paper_quality_time(evidence: Evidence, case: Case) -> str:
    """The time of `times_table`, in one cell; or, as an upper bound, that of a whole run, if its test passes it."""
    if passed := _first_pass(evidence, case):
        return f"{_since_start(*passed[1:])} ({passed[1]['device']})"
    run, whole = evidence.find(case), _shortest(evidence, case)
    if run is None or whole is None or run.mean(GOAL) < _goal(evidence):
        return "–"
    return f"at most {math.ceil(whole['command_seconds'])} s ({whole['device']})"


def _first_pass(evidence: Evidence, case: Case) -> tuple[float, Line, Line] | None:
    """The paper's number, the line of the run, and its validation that passed it.

    A model that is selected by the mean of both protocols passes it later than by the paper's alone, never earlier.
    """
    goal = _goal(evidence)
    kinds = [evidence.find(case, kind=kind, stage="selection", part="valid") for kind in ("result", "timing")]
    passed = [
        (goal, line, validation)
        for runs in kinds
        for line in (runs.lines if runs else ())
        for validation in line["validations"]
        if validation["value"] >= goal and is_whole(line, None)
    ]
    return min(passed, key=lambda one: (one[1]["device_shared"], one[2]["command_seconds"]), default=None)


def _goal(evidence: Evidence) -> float:
    """The paper's number; out of reach if it has none."""
    return printed("table2_overall", evidence.facts.title, GOAL, BERT4REC.label) or math.inf


def _since_start(line: Line, validation: Line) -> str:
    return f"{'at most ' if line['device_shared'] else ''}{validation['command_seconds']:.0f} s"


def runs_table(data: Sequence[Evidence]) -> Table:
    """How long selection, refit and test of each model of Table 2 take at most; some shared the GPU."""
    cases = overall_cases(data[0].facts) if data else []
    found = [[_shortest(each, case) for each in data] for case in cases]
    devices = Counter(line["device"] for lines in found for line in lines if line)
    usual = max(devices, key=devices.__getitem__, default="")
    rows = [
        Row(case.label, [_seconds(line, usual) for line in lines], beyond=case in BEYOND)
        for case, lines in zip(cases, found, strict=True)
    ]
    return Table("", [each.facts.title for each in data], rows, corner=f"at most, {usual}")


def _seconds(line: Line | None, usual: str) -> str:
    """Of a whole run, with its device if that is not the usual one."""
    if line is None:
        return "–"
    elsewhere = f" ({line['device']})" if line["device"] != usual else ""
    return f"{math.ceil(line['command_seconds'])} s{elsewhere}"


def _shortest(evidence: Evidence, case: Case) -> Line | None:
    """Of the runs that were not interrupted, and of those made only to be timed."""
    timed = evidence.find(case, kind="timing")
    lines = [line for selection, line in evidence.stages(case) if is_whole(line, selection)]
    lines += timed.lines if timed else ()
    return min(lines, key=lambda line: line["command_seconds"], default=None)


def training_table(lines: Sequence[Line]) -> Table:
    """Samples a second, beside the paper's, and in the same process a plain loop's and, where measured, a peer's."""
    rows, alone = [], [line for line in lines if not line.get("device_shared")]
    has_peer = any("hf" in line for line in alone)
    for line in alone:
        title, theirs, speed = _title(line), _paper_speed(line), line["samples_per_second"]
        cells = [
            str(line["dim"]),
            str(line["batch_size"]),
            line["device"],
            f"{speed:,.0f}",
            f"{line['share_of_arithmetic_limit']:.0%}",
            f"{line['ratio']:.1f}" if "ratio" in line else "",
            *([f"{line['hf']['ratio']:.1f}" if "hf" in line else ""] if has_peer else []),
            f"{speed / theirs:,.1f}" if theirs else "",
        ]
        softmax = f", {line['negatives']:,} negatives" if line.get("negatives") else ""
        rows.append(Row(f"{title}, {line['items']:,} items, N={line['max_length']}{softmax}", cells))
    peers = ["times the plain loop", *(["times transformers"] if has_peer else [])]
    columns = ["d", "batch", "device", "samples/s", "of the limit", *peers, "times the paper"]
    return Table("", columns, rows, corner="shape")


def speed_beside_paper(title: str, lines: Sequence[Line]) -> str:
    """How many times as fast training is as the paper's, where a plain loop was timed in the same process."""
    ratios = [
        (line["samples_per_second"] / theirs, line["device"])
        for line in lines
        if _title(line) == title and "ratio" in line and not line.get("device_shared")
        if (theirs := _paper_speed(line))
    ]
    return "{:,.0f} times the paper's ({})".format(*max(ratios)) if ratios else "–"


def _title(line: Line) -> str:
    shape: str = line["shape"]
    return PAPER_NAMES.get(shape, shape)


def _paper_speed(line: Line) -> float | None:
    """Samples a second on the paper's GTX 1080 Ti, if it has a number for this width and length."""
    lengths = printed("table4_max_length_d64", _title(line), "N") or []
    if line["dim"] != 64 or line["max_length"] not in lengths:
        return None
    place = lengths.index(line["max_length"])
    speed: float = printed("table4_max_length_d64", _title(line), "samples_per_second_gtx1080ti", place)
    return speed


def recommending_table(lines: Sequence[Line]) -> Table:
    """One request after another, and many users at once; lines of `benchmarks.recommend`."""
    rows = []
    for line in lines:
        one, many = line["milliseconds"], line["users_per_second"]
        cells = [
            line["device"],
            *(f"{one[name]:.2f} ms" if name in one else "" for name in ("PyTorch", "exported")),
            f"{one['PyTorch'] / one['exported']:.1f}" if one else "",
            *(f"{many[name]:,.0f}" if name in many else "" for name in ("plain", "run", "exported")),
            f"{many['exported'] / many['plain']:.1f}" if "plain" in many else "",
            f"{many['file to file']:,.0f}" if "file to file" in many else "",
        ]
        rows.append(Row(f"{PAPER_NAMES[line['recommend']]}, {line['items']:,} items", cells))
    columns = [
        "device",
        "a request, PyTorch",
        "exported",
        "times",
        "users/s, plain loop",
        "run",
        "exported",
        "times",
        "from file to file",
    ]
    return Table("", columns, rows, corner="shape")


def cpu_table(lines: Sequence[Line]) -> Table:
    """What people without a GPU wait for; lines of `benchmarks.start`, `cpu_training` and `search`."""
    rows: dict[str, Row] = {}
    for line in lines:
        rows |= {
            label: Row(label, [cell, line["device"]]) for label, cell in CPU_CELLS[line["cpu"]](line).items()
        }
    return Table("", ["measured", "device"], list(rows.values()), corner="one thread")


def _step_cells(line: Line) -> dict[str, str]:
    settings = f"preset {line['preset']}" if line["preset"] else f"{line['users']:,} users, no preset"
    cell = f"{line['milliseconds']['now']['step']:.1f} ms"
    if "times" in line:
        cell += f", {line['times']['step']:.2f} times as fast as {line['before']}"
    return {f"a training step, {line['model']}, {settings}": cell}


def _search_cells(line: Line) -> dict[str, str]:
    return {
        f"a request among {line['items']:,} items, {line['vectors']} vectors": f"{line['quantised_ms']:.1f} ms, "
        f"{line['times']:.1f} times as fast as a plain search; "
        f"{line['equal_answers']:,} of {line['histories']:,} answers equal"
    }


CPU_CELLS: dict[str, Callable[[Line], dict[str, str]]] = {
    "start": lambda line: {what: f"{seconds:.2f} s" for what, seconds in line["seconds"].items()},
    "training": _step_cells,
    "search": _search_cells,
}


def serving_table(lines: Sequence[Line]) -> Table:
    """What `benchmarks.serving` found, of this version and, where it was measured, of the one before.

    Lines may hold some of the measurements only; of rows with the same name, the last one counts.
    """
    measured = [
        (line[part], cells) for line in lines for part, cells in SERVING_CELLS.items() if part in line
    ]
    versions = [name for name in ("this", "before") if any(name in found for found, _ in measured)]
    rows: dict[str, Row] = {}
    for found, cells_of in measured:
        cells = [cells_of(found[name]) if name in found else {} for name in versions]
        rows |= {label: Row(label, [each.get(label, "") for each in cells]) for label in cells[0]}
    columns = ["this version", "the version before"][: len(versions)]
    return Table("", columns, list(rows.values()), corner="one core, 54,542 items, N=50, d=64")


def production_table(lines: Sequence[Line]) -> Table:
    """What `benchmarks.production` found; of parts that were measured again, the last counts."""
    rows: dict[str, Row] = {}
    for line in lines:
        for part, cells_of in PRODUCTION_CELLS.items():
            if part in line:
                rows |= {label: Row(label, [cell]) for label, cell in cells_of(line[part]).items()}
    cores = {line["production"]["cores"] for line in lines}
    return Table("", ["measured"], list(rows.values()), corner=f"{min(cores, default=0)} cores")


def _circle_cells(found: Line) -> dict[str, str]:
    steps = ", ".join(f"{name} {seconds:g}" for name, seconds in found["seconds"].items())
    return {
        f"the whole circle, {found['minutes']:g} min for each training": f"{found['total']:.0f} s ({steps})",
        "failed requests meanwhile": f"{found['failed']} of {found['requests']:,}",
    }


def _auto_cells(found: Line) -> dict[str, str]:
    return {f"`auto`, {found['users']:,} users, {found['minutes']} minutes": f"{found['seconds']:.0f} s"}


def _import_cells(found: Line) -> dict[str, str]:
    return {
        f"import of {found['actions']:,} actions": f"{found['imported_per_second']:,} a second, "
        f"{found['peak_memory_mib']:,} MiB at most",
        "import of the same again": f"{found['imported_again_per_second']:,} a second",
        "export of all of them": f"{found['exported_per_second']:,} a second",
    }


def _filter_cells(found: Line) -> dict[str, str]:
    title = f"a request among {found['items']:,} items, one core"
    shares = {f"{title}, {name}": f"{share:.2f} of that" for name, share in found["shares"].items()}
    return {title: f"{found['milliseconds']:.2f} ms", **shares}


PRODUCTION_CELLS: dict[str, Callable[[Line], dict[str, str]]] = {
    "circle": _circle_cells,
    "auto": _auto_cells,
    "import": _import_cells,
    "filters": _filter_cells,
}


def serving_sentence(lines: Sequence[Line]) -> str:
    """The service in a sentence; nothing while it was not measured."""
    found = {
        part: line[part]["this"] for line in lines for part in ("throughput", "overload") if part in line
    }
    if len(found) < 2:
        return ""
    usual, flood = found["throughput"], found["overload"]["beauty"]["paced_4x"]
    return (
        f"One core answers {usual['per_second']['32']:,} requests a second among 54,542 items, 99% of them within "
        f"{usual['p99_ms']:.0f} ms; under four times the load it can bear, from 2,000 connections, it goes on at "
        f"{flood['share_of_highest']:.0%} of its best, within {flood['p99_ms'] / 1000:.1f} s."
    )


def _throughput_cells(found: Line) -> dict[str, str]:
    cells = {
        "requests a second, 32 connections": f"{found['per_second']['32']:,}",
        "requests a second, at best": f"{found['best']:,} ({found['best_at']} connections)",
        "p50 and p99, 32 connections": f"{found['p50_ms']:.0f} and {found['p99_ms']:.0f} ms",
        "p50, one connection": f"{found['alone_p50_ms']:.1f} ms",
    }
    if "times_the_best_before" in found:
        cells["times the best of the version before"] = f"{found['times_the_best_before']:.2f}"
    return cells


def _workers_cells(found: Line) -> dict[str, str]:
    raw, by_processor = (statistics.median(found[name]) for name in ("times", "times_by_processor_time"))
    return {"two workers, times one": f"{raw:.2f} (by processor time {by_processor:.2f})"}


def _overload_cells(found: Line) -> dict[str, str]:
    kinds = {"small": "1,000 items", "beauty": "54,542 items", "by_user": "1,000 items, by user id"}
    loads = {"closed_loop": "closed loop", "paced_2x": "twice the load", "paced_4x": "four times the load"}
    return {
        f"2,000 connections, {title}, {loads[load]}": _flood_cell(found[kind][load])
        for (kind, title), load in product(kinds.items(), loads)
    }


def _flood_cell(flood: Line) -> str:
    slowest = "nothing answered" if flood["p99_ms"] is None else f"p99 {flood['p99_ms']:,.0f} ms"
    share = f"{flood['share_of_highest']:.0%} of the highest goodput"
    return f"{share}, {slowest}, {flood['unanswered']:,} unanswered"


def _fairness_cells(found: Line) -> dict[str, str]:
    beside = found["paced"]["beside_batches"]
    cell = f"{beside['share_failed']:.1%} refused, p99 {beside['p99_ms']:,.0f} ms"
    return {"beside three clients that send batches": cell}


def _unread_cells(found: Line) -> dict[str, str]:
    kinds = {
        "small": "60 clients that never read 11 MB, 1,000 items",
        "beauty": "60 clients that never read 11 MB",
        "unfinished": "500 clients that never end a request of 1 MB, 1,000 items",
    }
    return {
        f"memory, {title}": f"{found[kind]['before_mb']} → {found[kind]['peak_mb']} MB"
        for kind, title in kinds.items()
    }


def _requests_cells(found: Line) -> dict[str, str]:
    first, *_, last = found["resident_mb"]
    return {f"memory over {found['requests']:,} requests, 1,000 items": f"{first:.0f} → {last:.0f} MB"}


SERVING_CELLS: dict[str, Callable[[Line], dict[str, str]]] = {
    "throughput": _throughput_cells,
    "workers": _workers_cells,
    "overload": _overload_cells,
    "fairness": _fairness_cells,
    "unread": _unread_cells,
    "requests": _requests_cells,
    "swaps": lambda found: {
        "failed requests while the model is replaced": f"{found['failed']} ({found['swaps_seen']} times)"
    },
    "stops": lambda found: {"failed requests when a server is stopped": f"{found['failed_per_stop']:,.0f}"},
    "kills": lambda found: {
        f"acknowledged events lost or doubled by {found['kills']:,} kills, {found['store']}": (
            f"{found['lost'] + found['doubled']} of {found['acknowledged']:,}"
        )
    },
    "events": lambda found: {"events a second, each on disk": f"{found['per_second']:,}"},
    "start": lambda found: {
        "import": f"{found['import_seconds']:.2f} s",
        "ready": f"{found['ready_seconds']:.2f} s",
        "memory, idle": f"{found['resident_mb']} MB",
    },
}
"""Name of a measurement → the rows of the table: what was measured, and what was found."""
