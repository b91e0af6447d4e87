"""Measures limits in the process: python -m tests.measure_leases [seconds] [cpu].

RATELIMIT_SERVER and RATELIMIT_MODULE are the server and the module. 16 processes ask for 80, 100 and 150 % of a limit, each
at an even pace, with leases of a twentieth of the period. Told is what was spent of what one key would admit of the same
calls, how many commands that took, and the time of a decision.

Last, what RL.WINDOW for each call costs the server where the same processes call at the same pace: the server's processor
time for a call, beside that of a call by leases, at 100 % of the largest limit. Beside both stands what is left when nothing
is decided: a PING in place of each pair of commands about leases. With `cpu` only that.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis_ratelimit
from redis_ratelimit import Window

from .fixtures import LIBRARIES, make
from .servers import Server, Wire

PROCESSES = 16
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
LARGE = 20_000
#: The goal: the server's CPU time with leases, as a part of its CPU time with an RL.WINDOW for each call.
CPU_GOAL = 0.15
ROUNDS = 3
#: Before this many seconds nothing is counted.
WARM_SECONDS = 1.5


FORK = multiprocessing.get_context("fork")

#: Says that a process is ready, and returns from when on it counts, and until when.
Wait = Callable[[], tuple[float, float]]


def work(wait: Wait, port: int, limit: int, per_second: float) -> tuple[int, int, int, int]:
    """Takes at a pace. Returns how much was asked for and spent, and the median and the 99th percentile of a decision in
    nanoseconds."""
    limiter = redis_ratelimit.Limiter(make(LIBRARIES[0], port=port), deadline=5)
    asked = spent = 0
    times: list[int] = []
    limiter.window("connected", Window(1, "1s"))
    begin, end = wait()
    with limiter.local("k", Window(limit, "1s"), lease=50) as local:
        for now in at_a_pace(per_second, end):
            started = time.perf_counter_ns()
            allowed = local.take().allowed
            if now >= begin:
                times.append(time.perf_counter_ns() - started)
                asked += 1
                spent += allowed
    times.sort()
    return asked, spent, times[len(times) // 2], times[len(times) * 99 // 100]


def work_directly(wait: Wait, port: int, command: tuple[object, ...], per_second: float) -> None:
    """Sends a command at a pace."""
    wire = Wire(port)
    for _ in at_a_pace(per_second, wait()[1]):
        wire.ask(*command)


def at_a_pace(per_second: float, end: float) -> Iterator[float]:
    """Yields the time when each call is due, until the end."""
    due = time.monotonic() + 1 / per_second
    while (now := time.monotonic()) < end:
        if now < due:
            # As a server that sleeps until the next requests are there.
            time.sleep(max(due - now, 0.001))
            continue
        due += 1 / per_second
        yield now


class Crowd:
    """Processes that begin when all of them are ready."""

    def __init__(self, work: Callable[..., Any], *words: Any) -> None:
        barrier, times, self._outcomes = FORK.Barrier(PROCESSES + 1), FORK.Array("d", 2), FORK.SimpleQueue()

        def wait() -> tuple[float, float]:
            for _ in range(2):
                barrier.wait()
            return times[0], times[1]

        self._processes = [
            FORK.Process(target=lambda: self._outcomes.put(work(wait, *words))) for _ in range(PROCESSES)
        ]
        for process in self._processes:
            process.start()
        barrier.wait(60)
        self.begin = time.monotonic() + WARM_SECONDS
        self.end = self.begin + SECONDS
        times[:] = [self.begin, self.end]
        barrier.wait()

    def join(self) -> list[Any]:
        """Returns what the processes returned."""
        found = [self._outcomes.get() for _ in self._processes]
        for process in self._processes:
            process.join()
        return found


def calls(server: Server) -> int:
    lines = str(server.ask("INFO", "commandstats")).splitlines()
    counts = {line.split(":")[0]: int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line}
    return sum(count for name, count in counts.items() if name.startswith("cmdstat_rl."))


class Span:
    """What a server did between two moments."""

    def __init__(self, server: Server, begin: float, end: float) -> None:
        time.sleep(max(0.0, begin - time.monotonic()))
        commands, used = calls(server), cpu(server)
        time.sleep(max(0.0, end - time.monotonic()))
        self.commands, self.cpu = calls(server) - commands, cpu(server) - used


def leases(limit: int, share: float) -> tuple[float, float]:
    """The server's processor time for a call, in microseconds, and its commands in a second."""
    with Server() as server:
        crowd = Crowd(work, server.port, limit, share * limit / PROCESSES)
        span = Span(server, crowd.begin, crowd.end)
        found = crowd.join()
    asked, spent = sum(each[0] for each in found), sum(each[1] for each in found)
    admitted = min(asked, limit * SECONDS)
    medians = sorted(each[2] for each in found)
    print(
        f"limit {limit}/s, asked {100 * asked / SECONDS / limit:.0f} %: spent {100 * spent / admitted:.1f} % of "
        f"what one key admits, {100 * span.commands / asked:.1f} commands for 100 calls, "
        f"a decision {medians[8] / 1000:.1f} us "
        f"(p99 {max(each[3] for each in found) / 1000:.0f} us), server {100 * span.cpu / SECONDS:.0f} % of a core",
        flush=True,
    )
    per_call: float = 1e6 * span.cpu / asked
    return per_call, span.commands / SECONDS


def by_commands(command: tuple[object, ...], per_second: float) -> Span:
    """What a server of its own did while the processes together sent a command so often."""
    with Server() as server:
        crowd = Crowd(work_directly, server.port, command, per_second / PROCESSES)
        span = Span(server, crowd.begin, crowd.end)
        crowd.join()
    return span


def direct(limit: int) -> float:
    """The server's processor time for a call, in microseconds, with RL.WINDOW for each call."""
    span = by_commands(("RL.WINDOW", "k", limit, "1s"), limit)
    print(f"RL.WINDOW for each call: {span.commands / SECONDS:.0f} a second", flush=True)
    per_call: float = 1e6 * span.cpu / span.commands
    return per_call


def undecided(limit: int, commands: float) -> float:
    """The same with a PING in place of each pair of commands about leases, for one of the application's calls."""
    span = by_commands(("PING",), commands / 2)
    per_call: float = 1e6 * span.cpu / (limit * SECONDS)
    return per_call


def main() -> None:
    for limit in () if "cpu" in sys.argv else (1000, LARGE):
        for share in 0.8, 1.0, 1.5:
            leases(limit, share)
    # The machine may be busy in some rounds: the least of each counts.
    rounds = []
    for _ in range(ROUNDS):
        per_call, commands = leases(LARGE, 1.0)
        rounds.append((per_call, direct(LARGE), undecided(LARGE, commands)))
    by_lease, by_call, by_ping = (min(each[at] for each in rounds) for at in range(3))
    share = by_lease / by_call
    print(
        f"server for a call at {LARGE}/s: {by_lease:.2f} us by leases, {by_call:.2f} us by RL.WINDOW, {share:.2f} of it "
        f"(with PINGs in place of the commands {by_ping / by_call:.2f}); "
        f"goal {CPU_GOAL}: {'met' if share <= CPU_GOAL else 'MISSED'}",
        flush=True,
    )


def cpu(server: Server) -> float:
    found = dict(line.split(":") for line in str(server.ask("INFO", "cpu")).splitlines() if ":" in line)
    return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


if __name__ == "__main__":
    main()
