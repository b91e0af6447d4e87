"""Measures limits in the process: python -m tests.measure_leases [seconds], with RATELIMIT_SERVER and RATELIMIT_MODULE.

16 processes ask for 80, 100 and 150 % of a limit, each at an even pace, with leases of a twentieth of the period. Told is
what was spent of what one key would admit of the same calls, how many commands that took, and the time of a decision.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import time
from pathlib import Path

import redis_ratelimit
from redis_ratelimit import Window

from .fixtures import LIBRARIES, make
from .servers import Server

PROCESSES = 16
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
#: Before this many seconds nothing is counted.
WARM_SECONDS = 1.5


def work(port: int, path: Path, limit: int, per_second: float, begin: float, end: float) -> None:
    limiter = redis_ratelimit.Limiter(make(LIBRARIES[0], port=port), deadline=5)
    asked = spent = 0
    times: list[int] = []
    with limiter.local("k", Window(limit, "1s"), lease=50) as local:
        due = time.monotonic() + per_second**-1
        while True:
            now = time.monotonic()
            if now >= end:
                break
            if now < due:
                # As a server that sleeps until the next requests are there.
                time.sleep(max(due - now, 0.001))
                continue
            due += 1 / per_second
            started = time.perf_counter_ns()
            allowed = local.take().allowed
            if now >= begin:
                times.append(time.perf_counter_ns() - started)
                asked += 1
                spent += allowed
    times.sort()
    path.write_bytes(struct.pack("<qqqq", asked, spent, times[len(times) // 2], times[len(times) * 99 // 100]))


def calls(server: Server) -> int:
    lines = str(server.ask("INFO", "commandstats")).splitlines()
    counts = {line.split(":")[0]: int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line}
    return sum(count for name, count in counts.items() if name.startswith("cmdstat_rl."))


def main() -> None:
    for limit in 1000, 20_000:
        for share in 0.8, 1.0, 1.5:
            with Server() as server, tempfile.TemporaryDirectory() as folder:
                begin = time.monotonic() + WARM_SECONDS
                end = begin + SECONDS
                children = []
                for at in range(PROCESSES):
                    child = os.fork()
                    if child == 0:
                        outcome = 1
                        try:
                            work(server.port, Path(folder) / str(at), limit, share * limit / PROCESSES, begin, end)
                            outcome = 0
                        finally:
                            os._exit(outcome)
                    children.append(child)
                time.sleep(max(0.0, begin - time.monotonic()))
                before, cpu_before = calls(server), cpu(server)
                time.sleep(max(0.0, end - time.monotonic()))
                commands, used = calls(server) - before, cpu(server) - cpu_before
                for child in children:
                    os.waitpid(child, 0)
                found = [struct.unpack("<qqqq", path.read_bytes()) for path in Path(folder).iterdir()]
            asked, spent = sum(each[0] for each in found), sum(each[1] for each in found)
            admitted = min(asked, limit * SECONDS)
            medians = sorted(each[2] for each in found)
            print(
                f"limit {limit}/s, asked {100 * asked / SECONDS / limit:.0f} %: spent {100 * spent / admitted:.1f} % of "
                f"what one key admits, {100 * commands / asked:.1f} commands for 100 calls, "
                f"a decision {medians[8] / 1000:.1f} us "
                f"(p99 {max(each[3] for each in found) / 1000:.0f} us), server {100 * used / SECONDS:.0f} % of a core",
                flush=True,
            )


def cpu(server: Server) -> float:
    found = dict(line.split(":") for line in str(server.ask("INFO", "cpu")).splitlines() if ":" in line)
    return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


if __name__ == "__main__":
    main()
