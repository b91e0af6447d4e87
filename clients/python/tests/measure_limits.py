"""Measures decisions of `limits` on its own storage for Redis and on ours: how many one thread makes in a second, and the
server's CPU time for each.

    make bench-adapters

Both storages are asked in turn in each round, on one server, and the figures are medians of the rounds. With the name of a
page it writes the table there, between its marks. REDIS_SERVER and RATELIMIT_SO say what is measured: a release build.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import redis
from limits import RateLimitItem, RateLimitItemPerHour
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, RateLimiter

import redis_ratelimit.limits  # noqa: F401 (makes the URI known)

from .fixtures import write_between
from .servers import Server

ROUNDS = int(os.environ.get("ROUNDS", "11"))
HITS = int(os.environ.get("HITS", "2000"))
USERS = 50
#: The goals: the server's CPU time as a part of that with the package's own storage.
GOALS = {"moving window": 0.8, "fixed window": 1.1}


class Row(NamedTuple):
    strategy: str
    what: str
    make: Callable[[Any], RateLimiter]
    item: RateLimitItem


ROWS = [
    Row("fixed window", "allowed", FixedWindowRateLimiter, RateLimitItemPerHour(1_000_000)),
    Row("fixed window", "denied", FixedWindowRateLimiter, RateLimitItemPerHour(1)),
    Row("moving window", "allowed", MovingWindowRateLimiter, RateLimitItemPerHour(1_000)),
    Row("moving window", "denied", MovingWindowRateLimiter, RateLimitItemPerHour(100)),
]


class Cost(NamedTuple):
    """The costs of one decision."""

    a_second: float
    cpu_us: float


def cpu_seconds(client: Any) -> float:
    found = client.info("cpu")
    return float(found["used_cpu_sys"] + found["used_cpu_user"])


def measure(limiter: RateLimiter, item: RateLimitItem, client: Any) -> Cost:
    began, cpu = time.perf_counter(), cpu_seconds(client)
    for number in range(HITS):
        limiter.hit(item, f"user:{number % USERS}")
    spent = cpu_seconds(client) - cpu
    return Cost(HITS / (time.perf_counter() - began), 1e6 * spent / HITS)


def median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(figures) for figures in zip(*costs)))


def rows(port: int) -> list[tuple[Row, Cost, Cost]]:
    client = redis.Redis(port=port)
    uris = f"redis://127.0.0.1:{port}", f"ratelimit+redis://127.0.0.1:{port}"
    found = []
    for row in ROWS:
        client.flushall()
        limiters = [row.make(storage_from_string(uri)) for uri in uris]
        if row.what == "denied":
            for limiter in limiters:
                for number in range(USERS):
                    limiter.hit(row.item, f"user:{number}", cost=row.item.amount)
        costs: list[list[Cost]] = [[], []]
        for at in range(ROUNDS + 1):
            for limiter, of in zip(limiters, costs):
                cost = measure(limiter, row.item, client)
                # The first round connects and loads scripts.
                if at:
                    of.append(cost)
        for limiter in limiters:
            assert limiter.hit(row.item, "user:0") == (row.what == "allowed"), row
        found.append((row, median(costs[0]), median(costs[1])))
    client.close()
    return found


def table(found: list[tuple[Row, Cost, Cost]]) -> list[str]:
    lines = [
        "| | decisions a second: limits | ours | server CPU for one: limits | ours | ours / limits |",
        "|---|---|---|---|---|---|",
    ]
    for row, theirs, ours in found:
        ratio = ours.cpu_us / theirs.cpu_us
        lines.append(
            f"| {row.strategy}, {row.what} | {theirs.a_second:.0f} | {ours.a_second:.0f} | {theirs.cpu_us:.1f} us "
            f"| {ours.cpu_us:.1f} us | {ratio:.2f} |"
        )
    return lines


def missed(found: list[tuple[Row, Cost, Cost]]) -> list[str]:
    """Returns the goals that were missed, for people who work on the storage. The page leaves them out."""
    return [
        f"MISSED: {row.strategy}, {row.what} costs more than {GOALS[row.strategy]} of the other storage"
        for row, theirs, ours in found
        if ours.cpu_us > GOALS[row.strategy] * theirs.cpu_us
    ]


def main(pages: list[str]) -> None:
    with Server() as server:
        found = rows(server.port)
    lines = table(found)
    print("\n".join([*lines, *missed(found)]))
    for page in pages:
        write_between(Path(page), "storages", lines)


if __name__ == "__main__":
    main(sys.argv[1:])
