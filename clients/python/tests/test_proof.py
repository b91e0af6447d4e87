"""The proof of leases: processes that spend one limit on a real server, some of them killed, some stopped for a while. Each
writes down each unit that it spends, with the clock reading on which that was decided. Then every period is looked at.

LEASES_SECONDS is for how long, PROOF_SEED where chance begins.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
import unittest
from pathlib import Path

from redis_ratelimit import Window

from . import spender
from .servers import Server
from .test_leases import most_in_a_period

PROCESSES = 16
SECONDS = float(os.environ.get("LEASES_SECONDS", "6"))
SEED = int(os.environ.get("PROOF_SEED", "1"))


class Proof(unittest.TestCase):
    def prove(self, limit: int, seconds: float, lease: int, start: str = "") -> None:
        """Asks for one and a half times the limit, with a third of the processes killed and others stopped."""
        chance = random.Random(SEED)
        window = Window(limit, f"{round(seconds * 1000)}ms", fixed=bool(start), start=start or None)
        per_second = 1.5 * limit / seconds / PROCESSES / 1.33
        files: list[str] = []
        killed = stopped = 0
        with Server() as server, tempfile.TemporaryDirectory() as folder:
            end = time.monotonic() + SECONDS

            def begin(at: int) -> int:
                # A fork, as a new interpreter takes longer to begin than most of these live.
                files.append(str(Path(folder) / str(len(files))))
                child = os.fork()
                if child == 0:
                    outcome = 1
                    try:
                        spend = spender.spend if at % 2 else spender.spend_soon
                        spend(server.port, files[-1], window, lease, per_second, end)
                        outcome = 0
                    finally:
                        os._exit(outcome)
                return child

            processes = [begin(at) for at in range(PROCESSES)]
            waking: dict[int, float] = {}
            try:
                while time.monotonic() < end:
                    time.sleep(chance.uniform(0.02, 0.25))
                    at = chance.randrange(PROCESSES)
                    if at < PROCESSES // 3:
                        os.kill(processes[at], signal.SIGKILL)
                        os.waitpid(processes[at], 0)
                        processes[at] = begin(at)
                        killed += 1
                    elif at not in waking and chance.random() < 0.5:
                        os.kill(processes[at], signal.SIGSTOP)
                        waking[at] = time.monotonic() + chance.choice([0.5, 1, 2, 20]) * lease / 1000
                        stopped += 1
                    for sleeper in [each for each, until in waking.items() if until < time.monotonic()]:
                        os.kill(processes[sleeper], signal.SIGCONT)
                        del waking[sleeper]
                for sleeper in waking:
                    os.kill(processes[sleeper], signal.SIGCONT)
                outcomes = []
                while processes:
                    outcomes.append(self.outcome(processes[0]))
                    if outcomes[-1] is None:
                        break
                    del processes[0]
            finally:
                for process in processes:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
            spent = [record for path in files if os.path.exists(path) for record in spender.read(path)]
        self.assertEqual(outcomes, [0] * PROCESSES)
        total = sum(quantity for _, quantity in spent)
        most = most_in_a_period(spent, seconds)
        could = limit * SECONDS / seconds
        print(
            f"proof: {total} spent in {SECONDS:.0f} s ({100 * total / could:.0f} % of the limit), at most {most} of {limit} "
            f"in {seconds} s; {killed} killed, {stopped} stopped",
            flush=True,
        )
        self.assertLessEqual(most, limit)
        self.assertGreater(total, could / 10)
        self.assertTrue(killed and stopped)

    def outcome(self, process: int) -> int | None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None

    def test_no_period_has_more_than_the_limit_whatever_dies(self) -> None:
        self.prove(1000, 1.0, 50)

    def test_nor_where_a_period_is_as_short_as_leases_are(self) -> None:
        self.prove(300, 0.3, 100)
