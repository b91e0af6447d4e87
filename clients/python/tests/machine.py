"""Repeats tests that failed while the machine stood still, because then no server answers within a short deadline."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

#: If a thread wakes up this late, the machine stood still.
STOP_SECONDS = 0.05
#: The most tries of a test, and the most retries in a run. Tests that fail more often have another cause.
TRIES = 5
MOST_RETRIES = 12

#: Prints how late it wakes up, if it is late. It is a separate process, because the threads of a test may delay others.
_SLEEPER = f"""
import time
woken = time.monotonic()
while True:
    time.sleep(0.005)
    now = time.monotonic()
    if now - woken > {STOP_SECONDS}:
        print(now - woken, flush=True)
    woken = now
"""


class _Sleeper:
    def __init__(self) -> None:
        process = subprocess.Popen([sys.executable, "-S", "-c", _SLEEPER], stdout=subprocess.PIPE)
        assert process.stdout is not None
        self._told = process.stdout.fileno()
        os.set_blocking(self._told, False)
        # The functions are called in reverse order.
        atexit.register(process.communicate)
        atexit.register(process.kill)

    def longest(self) -> float:
        """Returns the longest stop in seconds since the last call; 0 if there was none."""
        # The sleeper reports a stop when it runs again.
        time.sleep(2 * STOP_SECONDS)
        try:
            told = os.read(self._told, 1 << 20)
        except BlockingIOError:
            return 0.0
        return max(float(line) for line in told.split())


_sleeper = cache(_Sleeper)
_retries = 0


def unless_stopped(test: Callable[..., None], *arguments: Any) -> None:
    """Runs a test. Repeats it if it failed while the machine stood still, unless too many tests were repeated."""
    global _retries
    _sleeper().longest()
    for _ in range(TRIES - 1):
        try:
            test(*arguments)
            return
        except Exception as error:
            stop = _sleeper().longest()
            if stop == 0.0 or _retries == MOST_RETRIES:
                raise
            _retries += 1
            retry = f"retry {_retries} of at most {MOST_RETRIES}"
            print(f"  {retry}, as the machine stood still for {stop:.3f} s: {error}", flush=True)
    test(*arguments)
