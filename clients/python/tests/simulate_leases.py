"""Simulates limits in the process: python -m tests.simulate_leases. The figures do not depend on the machine.

16 processes ask for parts of a limit, one of them for a quarter of all calls, with leases of a twentieth of the period and
round trips of 0.3 ms. The server is in memory.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import Any

from redis_ratelimit import MemoryLimiter
from redis_ratelimit._internal.extension import native

from .spender import most_in_a_period

PROCESSES = 16
ROUND_TRIP = 0.0003
PERIOD = 1.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def simulate(limit: int, loads: list[tuple[float, float]], lease: int = 50, seed: int = 1) -> tuple[float, int, float]:
    """Returns what was spent in the last load, in percent of what one key admits, the most that was spent in a period, and
    the number of commands for 100 calls. A load is a time in seconds, and the part of the limit that is asked for."""
    chance = random.Random(seed)
    clock = Clock()
    carry_out = MemoryLimiter(clock)._memory.ask
    own: deque[float] = deque()
    # The key, the words of the window before and after the quantity, the limit, its period, the lease and `leave`.
    terms: Any = (b"k", [b"%d" % limit, b"1s"], [], limit, round(PERIOD * 1000), lease, 0)
    hooks: Any = {"wake": lambda: None, "late_error": TimeoutError, "clocks": (clock, clock)}
    crowd = [native("this").Leases(*terms, **hooks) for _ in range(PROCESSES)]
    busy: list[bool] = [False] * PROCESSES
    look_at = [float("inf")] * PROCESSES
    waiting: list[int] = [0] * PROCESSES
    spent: list[tuple[float, int]] = []
    queue: list[tuple[float, int, str, int, Any]] = []
    number = 0

    def at(moment: float, what: str, process: int, more: Any = None) -> None:
        nonlocal number
        number += 1
        heapq.heappush(queue, (moment, number, what, process, more))

    moment = clock.now
    calls: list[float] = []
    for seconds, share in loads:
        end = moment + seconds
        while share and moment < end:
            moment += chance.expovariate(share * limit)
            calls.append(moment)
            at(moment, "take", 0 if chance.random() < 0.25 else chance.randrange(1, PROCESSES))
        moment = end
    admitted = commands = 0
    # By then the processes have learned their demand.
    counted_from = clock.now + (loads[0][0] if len(loads) > 1 else 1.0)

    def spend(index: int, is_counted: bool) -> None:
        leases = crowd[index]
        reply = leases.take(1, is_counted)
        if reply is None:
            waiting[index] += 1
            leases.want(1, is_counted)
        elif reply.allowed:
            spent.append((clock.now, 1))

    def send(index: int) -> None:
        leases = crowd[index]
        if busy[index]:
            return
        round_ = leases.next_round()
        if round_ is None:
            seconds = leases.next_in()
            if seconds is not None and clock.now + seconds < look_at[index]:
                look_at[index] = clock.now + max(seconds, 0.0001)
                at(look_at[index], "look", index)
        else:
            busy[index] = True
            at(clock.now + ROUND_TRIP / 2, "arrive", index, round_)

    while queue and queue[0][0] <= moment:
        clock.now, _, what, index, more = heapq.heappop(queue)
        if what == "take":
            while own and own[0] + PERIOD <= clock.now:
                own.popleft()
            if len(own) < limit:
                own.append(clock.now)
                admitted += clock.now >= counted_from
            spend(index, False)
        elif what == "look":
            look_at[index] = float("inf")
        elif what == "arrive":
            commands += len(more.commands) if clock.now >= counted_from else 0
            replies = [carry_out(words) for words in more.commands]
            at(clock.now + ROUND_TRIP / 2, "answer", index, (more, replies))
        elif what == "answer":
            busy[index] = False
            crowd[index].receive(*more)
            turns, waiting[index] = waiting[index], 0
            for _ in range(turns):
                spend(index, True)
        send(index)
    late = sum(quantity for at_, quantity in spent if at_ >= counted_from)
    most = most_in_a_period(spent, PERIOD)
    return 100 * late / admitted, most, 100 * commands / sum(call >= counted_from for call in calls)


LOADS = [[(5.0, 0.8)], [(5.0, 1.0)], [(5.0, 1.5)], [(2.0, 0.1), (2.0, 3.0)]]


def main() -> None:
    """Prints the rows of the table in docs/operations.md."""
    for limit, lease in (1000, 50), (1000, 200), (20_000, 50):
        found = [simulate(limit, loads, lease) for loads in LOADS]
        shares = " | ".join(f"{share:.1f} %" for share, _, _ in found)
        most = max(most for _, most, _ in found)
        commands = " / ".join(f"{commands:.0f}" for _, _, commands in found)
        print(f"| {limit} a second, {lease} ms | {shares} | {most} | {commands} |", flush=True)


if __name__ == "__main__":
    main()
