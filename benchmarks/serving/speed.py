"""How fast one core is, how soon a server is there, and what a second worker adds."""

import statistics
import sys
import time
from contextlib import ExitStack
from functools import partial

from benchmarks.load import Outcome, closed_loop, post
from benchmarks.serving.models import BEAUTY
from benchmarks.serving.plan import Found, Plan, milliseconds, told
from benchmarks.serving.servers import CORES, SERVER_CORE, Server, Version, processor_seconds_of, serving

SWEEP = (1, 8, 32, 128, 512, 2000)
USUAL = 32
MANY = 64
"""Connections for several workers: enough for each to have its share by chance."""
IMPORT = """
import importlib, importlib.util, time
names = ["bert4rec.service.running", "bert4rec.service.server"]
began = time.perf_counter()
importlib.import_module(next(each for each in names if importlib.util.find_spec(each)))
print(time.perf_counter() - began)
"""
"""What the command imports to serve: the name of that module has changed."""


def throughput(plan: Plan) -> Found:
    """Goodput of one core by the number of connections; all versions run, and take turns."""
    requests = BEAUTY.by_history()
    with ExitStack() as stack:
        servers = {
            each.name: stack.enter_context(serving(each, BEAUTY.folder(each))) for each in plan.versions
        }
        for server in servers.values():
            closed_loop(server.port, requests, connections=USUAL, seconds=1)
        outcomes: dict[str, dict[int, list[Outcome]]] = {
            name: {count: [] for count in SWEEP} for name in servers
        }
        for _ in range(plan.rounds):
            for connections in SWEEP:
                for name, server in servers.items():
                    load = partial(closed_loop, server.port, requests, connections=connections)
                    outcome = server.during(partial(load, seconds=plan.turn))
                    outcomes[name][connections].append(outcome)
    found: Found = {name: _sweep(taken) for name, taken in outcomes.items()}
    if len(plan.versions) > 1:
        this, before = (found[each.name] for each in plan.versions)
        this["times_the_best_before"] = round(this["best"] / before["best"], 2)
        this["times_by_processor_time"] = round(
            this["best_per_processor_second"] / before["best_per_processor_second"], 2
        )
    return found


def _sweep(taken: dict[int, list[Outcome]]) -> Found:
    """Middles over the turns."""
    rates = {count: statistics.median(each.per_second for each in turns) for count, turns in taken.items()}
    by_processor = {
        count: statistics.median(each.per_processor_second for each in turns)
        for count, turns in taken.items()
    }
    usual = taken[USUAL]
    p50, p99 = (statistics.median(each.percentile(percent) for each in usual) for percent in (50, 99))
    return {
        "per_second": {str(count): round(rate) for count, rate in rates.items()},
        "per_processor_second": {str(count): round(rate) for count, rate in by_processor.items()},
        "best": round(max(rates.values())),
        "best_at": max(rates, key=rates.__getitem__),
        "best_per_processor_second": round(max(by_processor.values())),
        "turns_at_32": [round(each.per_second) for each in usual],
        "p50_ms": round(p50, 1),
        "p99_ms": round(p99, 1),
        "p99_by_p50": round(p99 / p50, 2),
        "alone_p50_ms": round(statistics.median(each.percentile(50) for each in taken[1]), 2),
        "failed": {str(count): sum(each.failed for each in turns) for count, turns in taken.items()},
    }


def start(plan: Plan) -> Found:
    """How soon it is ready, what importing it takes, and what it holds when idle."""

    def one(version: Version) -> Found:
        imports = [float(version.call([sys.executable, "-c", IMPORT])) for _ in range(plan.rounds)]
        ready, resident = [], []
        for _ in range(plan.rounds):
            with serving(version, BEAUTY.folder(version)) as server:
                ready.append(server.ready_seconds)
                resident.append(server.resident_mb())
        return {
            "import_seconds": round(min(imports), 2),
            "ready_seconds": round(min(ready), 2),
            "resident_mb": round(statistics.median(resident)),
        }

    return plan.each(one)


def events(plan: Plan) -> Found:
    """Requests with one new event each, every one on disk before it is acknowledged."""

    def one(version: Version) -> Found:
        with serving(version, BEAUTY.folder(version)) as server:
            seconds = plan.turn
            requests = [_event(number) for number in range(max(1000, int(20_000 * seconds)))]
            outcome = server.during(
                lambda: closed_loop(server.port, requests, connections=USUAL, seconds=seconds)
            )
            return told(outcome)

    return plan.each(one)


def _event(number: int) -> bytes:
    event = {
        "event_id": f"{time.time_ns()}-{number}",
        "user_id": f"u{number % 100}",
        "item_id": "i1",
        "timestamp": "2026-01-01T00:00:00Z",
    }
    return post("/v1/events", {"events": [event]})


def workers(plan: Plan) -> Found:
    """Two workers against one.

    One worker has the first core to itself. Two have both cores, of which the load takes a part (`load_busy`): so the
    raw ratio cannot reach 2. By processor time, it is what they would reach with two cores to themselves: answers for
    a second of the servers' processors, with two workers by with one, divided by the busiest worker's part of that
    time, since the one that has most of the connections is the one that limits.
    """

    def one(version: Version) -> Found:
        turns = [
            (_with_workers(version, plan, 1), _with_workers(version, plan, 2)) for _ in range(plan.rounds)
        ]
        raw = [two["per_second"] / alone["per_second"] for alone, two in turns]
        by_processor = [
            two["per_processor_second"] / alone["per_processor_second"] / two["busiest_worker"]
            for alone, two in turns
        ]
        return {
            "one": [alone for alone, _ in turns],
            "two": [two for _, two in turns],
            "times": [round(each, 2) for each in raw],
            "times_by_processor_time": [round(each, 2) for each in by_processor],
        }

    return plan.each(one)


def _with_workers(version: Version, plan: Plan, count: int) -> Found:
    requests = BEAUTY.by_history()
    cores = (SERVER_CORE,) if count == 1 else CORES
    with serving(version, BEAUTY.folder(version), f"--workers={count}", cores=cores) as server:
        server.settle()  # ready is said by whichever worker is first
        closed_loop(server.port, requests, connections=MANY, seconds=1)
        pids = server.pids
        began = processor_seconds_of(pids)
        outcome = server.during(
            lambda: closed_loop(server.port, requests, connections=MANY, seconds=plan.turn)
        )
        used = [now - then for now, then in zip(processor_seconds_of(pids), began, strict=True)]
        found = {name: told(outcome)[name] for name in ("per_second", "per_processor_second", "load_busy")}
        return {
            **found,
            "p99_ms": milliseconds(outcome, 99),
            "failed": outcome.failed,
            "busiest_worker": round(max(used) / sum(used), 2),
        }


def best_rate(server: Server, requests: list[bytes], plan: Plan) -> float:
    """The highest goodput over a short sweep."""
    return max(
        closed_loop(server.port, requests, connections=connections, seconds=plan.turn).per_second
        for connections in (USUAL, 128, 512)
    )
