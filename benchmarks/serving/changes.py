"""What clients notice when the model is replaced, and when a server is stopped."""

import asyncio
import json
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.load import Crowd, Outcome, run
from benchmarks.serving.models import BEAUTY
from benchmarks.serving.plan import Found, Plan, told
from benchmarks.serving.servers import Server, Version, is_ready, serving

CLIENTS = 16
DRAIN = 3
"""Seconds for which a server that is told to stop goes on answering, where it can."""
LOOK_EVERY = 0.25
"""Seconds between two looks at /health/ready, as a balancer has them."""


def swaps(plan: Plan) -> Found:
    """Requests while the link to the model is switched every second. Three models take turns, so that none is the
    previous one, which a server may still hold."""

    def one(version: Version) -> Found:
        models = [BEAUTY.folder(version, seed) for seed in (1, 2, 3)]
        with TemporaryDirectory() as folder:
            link = Path(folder) / "model"
            link.symlink_to(models[0])
            with serving(version, link, "--watch") as server:
                calm = run(
                    Crowd(server.port, BEAUTY.by_history(), connections=CLIENTS).closed_loop(plan.turn)
                )
                outcome, seen = run(_while_switching(server.port, link, models, plan.seconds))
        names = [json.loads(body)["model"] for body in seen.bodies]
        changes = sum(model != after for model, after in pairwise(names))
        return {
            "calm": told(calm),
            "switching": told(outcome),
            "swaps_seen": changes,
            "failed": outcome.failed + seen.failed,
        }

    return plan.each(one)


async def _while_switching(
    port: int, link: Path, models: list[Path], seconds: float
) -> tuple[Outcome, Outcome]:
    async def switch() -> None:
        for number in range(1, int(seconds)):
            await asyncio.sleep(1)
            new = link.with_name("new")
            new.symlink_to(models[number % len(models)])
            new.replace(link)

    requests = BEAUTY.by_history()
    load = Crowd(port, requests, connections=CLIENTS)
    witness = Crowd(port, requests, connections=1, keep_bodies=True)
    outcome, seen, _ = await asyncio.gather(
        load.closed_loop(seconds), witness.paced(seconds, per_second=10), switch()
    )
    return outcome, seen


def stops(plan: Plan) -> Found:
    """SIGTERM under load. Half of the clients keep their connection and half open one for every request; all go to
    another server once a look at /health/ready finds that this one is leaving."""

    def one(version: Version) -> Found:
        taken = [_stop(version, plan.turn) for _ in range(plan.stops)]
        totals = {name: sum(each[name] for each in taken) for name in taken[0]}
        return {
            "stops": plan.stops,
            **{name: totals[name] for name in ("requests", "failed", "reset", "overdue", "refused")},
            "failed_per_stop": round((totals["failed"] + totals["refused"]) / plan.stops, 2),
            "seconds_to_stop": round(totals["seconds"] / plan.stops, 2),
            "drain_seconds": DRAIN if version.knows("--drain") else None,
        }

    return plan.each(one)


def _stop(version: Version, seconds: float) -> dict[str, float]:
    with ExitStack() as stack:
        leaving = stack.enter_context(serving(version, BEAUTY.folder(version), drain=DRAIN))
        staying = stack.enter_context(serving(version, BEAUTY.folder(version)))
        outcomes, stopping = run(_while_stopping(leaving, staying, seconds))
    return {
        "requests": sum(each.sent for each in outcomes),
        "failed": sum(each.failed for each in outcomes),
        "reset": sum(each.reset for each in outcomes),
        "overdue": sum(each.overdue for each in outcomes),
        "refused": sum(each.refused for each in outcomes),
        "seconds": stopping,
    }


async def _while_stopping(leaving: Server, staying: Server, before: float) -> tuple[list[Outcome], float]:
    requests = BEAUTY.by_history()
    crowds = [Crowd(leaving.port, requests, connections=CLIENTS, fresh=fresh) for fresh in (False, True)]

    async def look() -> None:
        while await asyncio.to_thread(is_ready, leaving.port):
            await asyncio.sleep(LOOK_EVERY)
        for crowd in crowds:
            crowd.port = staying.port

    async def stop() -> float:
        await asyncio.sleep(before)
        leaving.process.terminate()
        began = time.perf_counter()
        await asyncio.to_thread(leaving.process.wait)
        return time.perf_counter() - began

    seconds = before + DRAIN + 2
    *outcomes, _, stopping = await asyncio.gather(
        *(crowd.closed_loop(seconds) for crowd in crowds), look(), stop()
    )
    return outcomes, stopping  # type: ignore[return-value]
