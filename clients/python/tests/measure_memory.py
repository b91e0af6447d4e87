"""How many decisions a second MemoryLimiter makes: PYTHONPATH=src python -m tests.measure_memory

The most of several rounds, as other work on the machine only takes away. The goal is 200,000.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from redis_ratelimit import MemoryLimiter, Rate, Window
from redis_ratelimit.asyncio import MemoryLimiter as AsyncMemoryLimiter

CALLS = 50_000
ROUNDS = 7
GOAL = 200_000
RATE, WINDOW = Rate(15, 30, 60), Window(1000, 60)


def measure(name: str, work: Callable[[], None]) -> None:
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    print(f"{name:<20} {CALLS / least:>10,.0f} a second of CPU (goal {GOAL:,})")


def main() -> None:
    limiter, awaited = MemoryLimiter(), AsyncMemoryLimiter()

    def throttle() -> None:
        for _ in range(CALLS):
            limiter.throttle("user:1", RATE)

    def window() -> None:
        for at in range(CALLS):
            limiter.window(f"window:{at % 1000}", WINDOW)

    async def throttle_awaited() -> None:
        for _ in range(CALLS):
            await awaited.throttle("user:1", RATE)

    measure("throttle", throttle)
    measure("window", window)
    measure("throttle, asyncio", lambda: asyncio.run(throttle_awaited()))


if __name__ == "__main__":
    main()
