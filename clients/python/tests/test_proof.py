"""The proof of leases: processes that spend one limit on real servers, some of them killed, some stopped for a while. Each
records each unit that it spends, with the clock readings that decided it. At the end every period is checked.

LEASES_SECONDS is the duration, and PROOF_SEED the seed of the random numbers. PROOF_RUST and PROOF_NODE are the commands of
processes of the other clients, which spend the same limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
import signal
import statistics
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path

from redis_ratelimit import Window

from . import spender
from .pair import Loss, Pair
from .spender import Spent, most_in_a_period

PROCESSES = 16
SECONDS = float(os.environ.get("LEASES_SECONDS", "6"))
SEED = int(os.environ.get("PROOF_SEED", "1"))
#: The part of the limit that is used at least, on a machine on which 95 % of sleeps end in time.
LEAST_USED = 0.9
LATE = 0.002


#: The commands of processes of the other clients that are built.
OTHERS = [shlex.split(os.environ[name]) for name in ("PROOF_RUST", "PROOF_NODE") if name in os.environ]


def most_in_a_fixed_window(spent: list[Spent], seconds: float) -> int:
    """Returns the most that was spent in one window of the calendar."""
    sums: dict[int, int] = {}
    for record in spent:
        window = int(record.wall // seconds)
        sums[window] = sums.get(window, 0) + record.quantity
    return max(sums.values(), default=0)


class Crowd:
    """Processes that spend one limit."""

    def __init__(
        self, port: int, window: Window, lease: int, per_second: float, seconds: float, others: Sequence[list[str]]
    ) -> None:
        self._others = others
        self._lease = lease / 1000
        self._folder = tempfile.TemporaryDirectory()
        self._files: list[str] = []
        self._waking: dict[int, float] = {}
        self.killed = self.stopped = 0
        self.end = time.monotonic() + seconds
        #: What a process spends. One of another client reads it from its environment.
        self._spend = {
            "port": port,
            "limit": window.limit,
            "period": window.period,
            "fixed": window.fixed,
            "lease_ms": lease,
            "per_second": per_second,
            "until": self.end,
        }
        self._processes = [self._begin(at) for at in range(PROCESSES)]

    def _begin(self, at: int) -> int:
        # A fork, because a new interpreter takes longer to start than most of these processes live.
        self._files.append(str(Path(self._folder.name) / str(len(self._files))))
        other = at % (len(self._others) + 1) - 1
        child = os.fork()
        if child == 0:
            outcome = 1
            try:
                spend = {**self._spend, "file": self._files[-1]}
                if other >= 0:
                    command = self._others[other]
                    os.execvpe(command[0], command, {**os.environ, "PROOF_SPEND": json.dumps(spend)})
                asyncio.run(spender.spend("" if at % 2 else ".asyncio", spend))
                outcome = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(outcome)
        return child

    def disturb(self, chance: random.Random, stops: bool) -> None:
        """Kills or stops a process or neither, and continues processes that were stopped for long enough."""
        at = chance.randrange(PROCESSES)
        if at < PROCESSES // 3 or not self.killed:
            os.kill(self._processes[at], signal.SIGKILL)
            os.waitpid(self._processes[at], 0)
            self._processes[at] = self._begin(at)
            self.killed += 1
        elif stops and at not in self._waking and chance.random() < 0.5:
            os.kill(self._processes[at], signal.SIGSTOP)
            self._waking[at] = time.monotonic() + chance.choice([0.5, 1, 2, 20]) * self._lease
            self.stopped += 1
        for sleeper in [each for each, until in self._waking.items() if until < time.monotonic()]:
            os.kill(self._processes[sleeper], signal.SIGCONT)
            del self._waking[sleeper]

    def outcomes(self) -> list[int | None]:
        """Returns the exit codes of the processes. The last is None if that process does not end."""
        for sleeper in self._waking:
            os.kill(self._processes[sleeper], signal.SIGCONT)
        self._waking = {}
        found: list[int | None] = []
        while self._processes:
            found.append(self._outcome(self._processes[0]))
            if found[-1] is None:
                break
            del self._processes[0]
        return found

    def _outcome(self, process: int) -> int | None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None

    def spent(self) -> list[Spent]:
        return [record for path in self._files if os.path.exists(path) for record in spender.read(path)]

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        self._folder.cleanup()


class Proof(unittest.TestCase):
    def prove(
        self,
        window: Window,
        seconds: float,
        lease: int,
        *,
        lasts: float = SECONDS,
        happen: Callable[[Pair, random.Random], Loss | None] | None = lambda pair, chance: pair.fail_over(),
        others: Sequence[list[str]] = (),
    ) -> None:
        """Asks for one and a half times the limit, with a third of the processes killed and others stopped, while
        something happens to the servers. If nothing does, no process is stopped, and on a quiet machine nearly all of the
        limit must be used."""
        limit = window.limit
        chance = random.Random(SEED)
        per_second = 1.5 * limit / seconds / PROCESSES / 1.33
        lost: Loss | None = None
        with Pair() as pair, Crowd(pair.port, window, lease, per_second, lasts, others) as crowd:
            moment = crowd.end - lasts * chance.uniform(0.3, 0.7)
            has_happened = happen is None
            late = []
            while (begin := time.monotonic()) < crowd.end or not has_happened:
                time.sleep(pause := chance.uniform(0.02, 0.25))
                late.append(time.monotonic() - begin - pause)
                crowd.disturb(chance, stops=happen is not None)
                if happen and not has_happened and time.monotonic() >= moment:
                    lost, has_happened = happen(pair, chance), True
            outcomes = crowd.outcomes()
            spent = crowd.spent()
        self.assertEqual(outcomes, [0] * PROCESSES)
        total = sum(record.quantity for record in spent)
        sliding = most_in_a_period([(record.at, record.quantity) for record in spent], seconds)
        calendar = most_in_a_fixed_window(spent, seconds)
        used = total * seconds / (limit * lasts)
        is_quiet = statistics.quantiles(late, n=20)[-1] < LATE
        what = f"the master died with {lost.commands} commands, {lost.units} units" if lost else "one failover"
        print(
            f"proof: {total} spent in {lasts:.0f} s ({100 * used:.0f} % of the limit), at most {sliding} in "
            f"{seconds} s and {calendar} in a window of the calendar, of {limit}; {crowd.killed} killed, "
            f"{crowd.stopped} stopped; {what if happen else 'no failover'}; a {'quiet' if is_quiet else 'busy'} machine",
            flush=True,
        )
        most = limit + (lost.units if lost else 0)
        self.assertLessEqual(calendar, most)
        if not window.fixed:
            self.assertLessEqual(sliding, most)
        # A busy machine may let through little.
        self.assertGreater(used, LEAST_USED if is_quiet and not happen else 0)
        self.assertTrue(crowd.killed and has_happened)

    def test_no_period_has_more_than_the_limit_whatever_dies(self) -> None:
        self.prove(Window(1000, "1s"), 1.0, 50)

    @unittest.skipUnless(OTHERS, "PROOF_RUST and PROOF_NODE say what the other clients run")
    def test_no_period_shared_by_several_clients_has_more_than_the_limit(self) -> None:
        self.prove(Window(1000, "1s"), 1.0, 50, others=OTHERS)

    @unittest.skipUnless(OTHERS and (SECONDS >= 40 or os.environ.get("CLIENTS") == "all"), "make test-clients")
    def test_several_clients_use_nearly_all_of_the_limit_although_some_die(self) -> None:
        self.prove(Window(1000, "1s"), 1.0, 50, lasts=40, happen=None, others=OTHERS)

    def test_no_period_as_short_as_a_lease_has_more_than_the_limit(self) -> None:
        self.prove(Window(300, "300ms"), 0.3, 100, lasts=SECONDS / 2)

    def test_no_window_of_the_calendar_has_more_than_the_limit(self) -> None:
        self.prove(Window(1000, "1s", fixed=True), 1.0, 50, lasts=SECONDS / 2, others=OTHERS)

    def test_a_master_that_dies_loses_only_what_it_had_not_replicated(self) -> None:
        def happen(pair: Pair, chance: random.Random) -> Loss:
            return pair.lose_the_master(lambda: time.sleep(chance.uniform(0.005, 0.2)))

        self.prove(Window(1000, "1s"), 1.0, 50, lasts=SECONDS / 2, happen=happen)
