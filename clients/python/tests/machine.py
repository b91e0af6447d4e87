"""Whether the machine stood still. Then a server that works well answers nobody for longer than a deadline, and a test that
asks for its decision finds none."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

#: From here on it stood still: the threads of a test that runs well are never that late.
STOP_SECONDS = 0.05
#: How often a test is tried at most.
TRIES = 5

#: Tells how late it is woken each time, if that is much. A process of its own is not kept by the threads of a test.
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
        # The first to be called is the last that is said.
        atexit.register(process.communicate)
        atexit.register(process.kill)

    def longest(self) -> float:
        """The longest stop in seconds since this was asked last; 0 if there was none."""
        # One that has just ended is told when the sleeper has run again.
        time.sleep(2 * STOP_SECONDS)
        try:
            told = os.read(self._told, 1 << 20)
        except BlockingIOError:
            return 0.0
        return max(float(line) for line in told.split())


_sleeper = cache(_Sleeper)


def unless_stopped(test: Callable[..., None], *arguments: Any) -> None:
    """Runs a test, and again if it failed and the machine stood still meanwhile."""
    _sleeper().longest()
    for _ in range(TRIES - 1):
        try:
            test(*arguments)
            return
        except Exception as error:
            stop = _sleeper().longest()
            if stop == 0.0:
                raise
            print(f"  tried again, as the machine stood still for {stop:.3f} s: {error}", flush=True)
    test(*arguments)
