"""More than the service can answer, and clients that want more than their share."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from benchmarks.load import Crowd, Outcome, closed_loop, paced, run
from benchmarks.serving.models import BEAUTY, SMALL, Shape
from benchmarks.serving.plan import Found, Plan, share, told
from benchmarks.serving.servers import Server, Version, serving
from benchmarks.serving.speed import USUAL, best_rate

FLOOD = 2000
BATCH_CLIENTS, SINGLE_CLIENTS, BATCH = 3, 16, 256
SINGLES_PER_SECOND = 100


def overload(plan: Plan) -> Found:
    """Two thousand connections: in a closed loop, and at twice and four times the highest goodput."""
    kinds: dict[str, tuple[Shape, Callable[[Server], list[bytes]]]] = {
        "small": (SMALL, lambda _: SMALL.by_history()),
        "beauty": (BEAUTY, lambda _: BEAUTY.by_history()),
        "by_user": (SMALL, SMALL.by_user),
    }
    return plan.each_kind({kind: partial(_flood, plan, *which) for kind, which in kinds.items()})


def _flood(plan: Plan, shape: Shape, make: Callable[[Server], list[bytes]], version: Version) -> Found:
    with serving(version, shape.folder(version)) as server:
        requests, port = make(server), server.port
        closed_loop(port, requests, connections=USUAL, seconds=1)
        capacity = best_rate(server, requests, plan)
        closed = partial(closed_loop, port, requests, connections=FLOOD, seconds=plan.seconds)
        on_schedule = partial(paced, port, requests, connections=FLOOD, seconds=plan.seconds)
        floods = {
            "closed_loop": server.during(closed),
            "paced_2x": server.during(partial(on_schedule, per_second=2 * capacity)),
            "paced_4x": server.during(partial(on_schedule, per_second=4 * capacity)),
        }
        after = closed_loop(port, requests, connections=USUAL, seconds=plan.turn)
    highest = max(capacity, *(each.per_second for each in floods.values()))
    return {
        "highest_per_second": round(highest),
        **{
            name: {
                **told(each),
                "share_of_highest": share(each.per_second, highest),
                "offered_per_second": round(each.sent / each.seconds),
                "held_back": each.held_back,
            }
            for name, each in floods.items()
        },
        "afterwards": {"per_second": round(after.per_second), "failed": after.failed},
    }


def fairness(plan: Plan) -> Found:
    """Single clients, without and with a few that send batch after batch.

    In a closed loop the singles fall into step with the batches: they are answered with them and ask again just as the
    queue is empty. On a schedule they come at any moment, as people do.
    """

    def one(version: Version) -> Found:
        requests, batch = BEAUTY.by_history(), BEAUTY.batch(BATCH)
        seconds = plan.seconds / 2
        with serving(version, BEAUTY.folder(version)) as server:

            def singles() -> Crowd:
                return Crowd(server.port, requests, connections=SINGLE_CLIENTS)

            def batches() -> Crowd:
                return Crowd(server.port, [batch], connections=BATCH_CLIENTS, keep_bodies=True)

            alone = run(singles().closed_loop(plan.turn))
            alone_paced = run(singles().paced(plan.turn, SINGLES_PER_SECOND))
            beside = run(
                together(lambda: singles().closed_loop(seconds), lambda: batches().closed_loop(seconds))
            )
            beside_paced = run(
                together(
                    lambda: singles().paced(seconds, SINGLES_PER_SECOND),
                    lambda: batches().closed_loop(seconds),
                )
            )
        return {
            "closed_loop": _fairness(alone, *beside),
            "paced": _fairness(alone_paced, *beside_paced),
        }

    return plan.each(one)


def _fairness(alone: Outcome, singles: Outcome, batches: Outcome) -> Found:
    entries = [entry for body in batches.bodies for entry in json.loads(body).get("results", ())]
    failed = sum("error" in entry for entry in entries)
    return {
        "alone": told(alone),
        "beside_batches": {
            **told(singles),
            "share_failed": share(singles.failed, singles.failed + len(singles.latencies)),
        },
        "batches": {
            **told(batches),
            "entries": len(entries),
            "entries_answered_per_second": round((len(entries) - failed) / batches.seconds),
            "share_of_entries_failed": share(failed, len(entries)),
        },
    }


async def together(*loads: Callable[[], Coroutine[Any, Any, Outcome]]) -> list[Outcome]:
    return await asyncio.gather(*(load() for load in loads))
