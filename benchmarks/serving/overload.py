"""More than the service can answer, and clients that want more than their share."""

import asyncio
import json
from collections.abc import Callable

from benchmarks.load import Crowd, Outcome, closed_loop, paced, run
from benchmarks.serving.models import BEAUTY, SMALL, Shape
from benchmarks.serving.plan import Found, Plan, share, told
from benchmarks.serving.servers import Server, Version, serving
from benchmarks.serving.speed import USUAL, best_rate

FLOOD = 2000
BATCH_CLIENTS, SINGLE_CLIENTS, BATCH = 3, 16, 256


def overload(plan: Plan) -> Found:
    """Two thousand connections: in a closed loop, and at twice and four times the highest goodput."""
    kinds: dict[str, tuple[Shape, Callable[[Server], list[bytes]]]] = {
        "small": (SMALL, lambda _: SMALL.by_history()),
        "beauty": (BEAUTY, lambda _: BEAUTY.by_history()),
        "by_user": (SMALL, SMALL.by_user),
    }
    return {
        kind: plan.each(lambda version, shape=shape, make=make: _flood(version, shape, make, plan))  # type: ignore[misc]
        for kind, (shape, make) in kinds.items()
    }


def _flood(version: Version, shape: Shape, make: Callable[[Server], list[bytes]], plan: Plan) -> Found:
    with serving(version, shape.folder()) as server:
        requests, port = make(server), server.port
        closed_loop(port, requests, connections=USUAL, seconds=1)
        capacity = best_rate(server, requests, plan)
        floods = {
            "closed_loop": server.during(
                lambda: closed_loop(port, requests, connections=FLOOD, seconds=plan.seconds)
            )
        }
        for times in (2, 4):
            rate = times * capacity
            floods[f"paced_{times}x"] = server.during(
                lambda rate=rate: paced(
                    port, requests, connections=FLOOD, seconds=plan.seconds, per_second=rate
                )
            )
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
    """Single clients, without and with a few that send batch after batch."""

    def one(version: Version) -> Found:
        requests, batch = BEAUTY.by_history(), BEAUTY.batch(BATCH)
        with serving(version, BEAUTY.folder()) as server:
            alone = closed_loop(server.port, requests, connections=SINGLE_CLIENTS, seconds=plan.turn)
            singles, batches = run(_beside_batches(server.port, requests, batch, plan.seconds / 2))
        entries = [entry for body in batches.bodies for entry in json.loads(body).get("results", ())]
        return {
            "alone": told(alone),
            "beside_batches": {
                **told(singles),
                "share_failed": share(singles.failed, singles.failed + len(singles.latencies)),
            },
            "batches": {
                **told(batches),
                "entries": len(entries),
                "entries_answered_per_second": round(
                    sum("error" not in each for each in entries) / batches.seconds
                ),
                "share_of_entries_failed": share(sum("error" in each for each in entries), len(entries)),
            },
        }

    return plan.each(one)


async def _beside_batches(
    port: int, requests: list[bytes], batch: bytes, seconds: float
) -> tuple[Outcome, Outcome]:
    singles = Crowd(port, requests, connections=SINGLE_CLIENTS)
    batches = Crowd(port, [batch], connections=BATCH_CLIENTS, keep_bodies=True)
    return await asyncio.gather(singles.closed_loop(seconds), batches.closed_loop(seconds))
