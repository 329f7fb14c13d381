"""`python -m benchmarks.serving`: what the service holds, on two cores, as one line of JSON.

The server has the first core to itself and the load comes from another. Every measurement can be asked for by its
name; without names, all but `kills` are made. `--against OTHER/src` measures the service of another checkout beside
this one, turn by turn.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.serving.changes import stops, swaps
from benchmarks.serving.kills import kills
from benchmarks.serving.memory import requests, unread
from benchmarks.serving.overload import fairness, overload
from benchmarks.serving.plan import Found, Measure, Plan
from benchmarks.serving.servers import LOAD_CORE, THIS, Version
from benchmarks.serving.speed import events, start, throughput, workers

USUAL: tuple[Measure, ...] = (
    start,
    throughput,
    workers,
    overload,
    fairness,
    events,
    unread,
    requests,
    swaps,
    stops,
)
MEASURES = {each.__name__: each for each in (*USUAL, kills)}


def main() -> None:
    given = arguments()
    versions = [Version("this", THIS)]
    if given.against:
        versions.append(Version("before", given.against.resolve()))
    plan = Plan(versions, given.seconds, given.rounds, given.requests, given.stops, given.count, given.store)
    os.sched_setaffinity(0, {LOAD_CORE})
    found: Found = {"serve": {"seconds": plan.seconds, "rounds": plan.rounds}}
    try:
        for name in given.what or [each.__name__ for each in USUAL]:
            sys.stderr.write(f"{name}\n")
            found[name] = MEASURES[name](plan)
    finally:  # what took half an hour is not lost because the last part failed
        sys.stdout.write(json.dumps(found) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join(MEASURES)}")
    parser.add_argument("--against", type=Path, metavar="SRC", help="folder of another version's package")
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="of each overload")
    parser.add_argument("--rounds", type=int, default=Plan.rounds, help="turns, where a ratio counts")
    parser.add_argument("--requests", type=int, default=Plan.requests, help="over which memory is watched")
    parser.add_argument("--stops", type=int, default=Plan.stops, help="how often a server is stopped")
    parser.add_argument("--count", type=int, default=Plan.count, help="of kills")
    parser.add_argument("--store", help="of kills: postgresql://…; by default SQLite in a temporary folder")
    given = parser.parse_args()
    if unknown := set(given.what) - set(MEASURES):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(MEASURES)}")
    return given


if __name__ == "__main__":
    main()
