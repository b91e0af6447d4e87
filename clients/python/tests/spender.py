"""A process of the proof: spends a limit, and records when it did.

The file is mapped into memory, so that nothing is lost when the process is killed.
"""

from __future__ import annotations

import asyncio
import mmap
import random
import struct
import threading
import time
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from redis_ratelimit import Busy, Window

from .fixtures import LIBRARIES, close, done, make

#: The monotonic and the wall clock in seconds, and the quantity that was spent. A quantity of 0 ends the list.
RECORD = struct.Struct("<ddq")
RECORDS = 1 << 18

#: Errors after which a call may be tried again. READONLY comes from a server that has just become a replica.
NOT_NOW = Busy, import_module(f"{LIBRARIES[0]}.exceptions").ReadOnlyError


class Spent(NamedTuple):
    at: float
    wall: float
    quantity: int


def read(path: str) -> list[Spent]:
    with open(path, "rb") as file:
        records = [Spent(*record) for record in RECORD.iter_unpack(file.read())]
    return [record for record in records if record.quantity]


def most_in_a_period(spent: list[tuple[float, int]], period: float) -> int:
    """Returns the most that was spent in any (t - period, t], in seconds. The server counts in microseconds."""
    spent, period = sorted((round(at * 1e6), quantity) for at, quantity in spent), round(period * 1e6)
    most = total = first = 0
    for at, quantity in spent:
        total += quantity
        while spent[first][0] <= at - period:
            total -= spent[first][1]
            first += 1
        most = max(most, total)
    return most


def wall_ahead() -> float:
    """Returns how far the wall clock is ahead of the clock that all processes of the machine have in common."""
    while True:
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        if after - before < 5e-6:
            return wall - before


class Book:
    def __init__(self, path: str) -> None:
        with open(path, "w+b") as file:
            file.truncate(RECORD.size * RECORDS)
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0
        self._ahead = wall_ahead()
        #: The last reading of the clock in each thread. The thread that settles reads it too.
        self._read: dict[int, float] = {}

    def clock(self) -> float:
        now = self._read[threading.get_ident()] = time.time()
        return now

    def spent(self, quantity: int) -> None:
        """Records what was spent by the last reading of the clock in this thread."""
        wall = self._read[threading.get_ident()]
        RECORD.pack_into(self._map, self._count * RECORD.size, wall - self._ahead, wall, quantity)
        self._count += 1


async def spend(folder: str, what: dict[str, Any]) -> None:
    """Spends with the limiter of redis_ratelimit ("") or redis_ratelimit.asyncio (".asyncio")."""
    client = make(LIBRARIES[0], folder, port=what["port"])
    limiter = import_module(f"redis_ratelimit{folder}").Limiter(client, unreachable="deny", deadline=0.5)
    chance = random.Random()
    window = Window(what["limit"], what["period"], fixed=what["fixed"])
    book = Book(what["file"])
    limiter._core.clock = book.clock
    local = limiter.local("proof", window, lease=f"{what['lease_ms']}ms")
    while time.monotonic() < what["until"]:
        asked = chance.choice([1, 1, 1, 1, 1, 1, 1, 2, 3])
        try:
            if (await done(local.take(asked))).allowed:
                book.spent(asked)
        except NOT_NOW:
            pass
        await asyncio.sleep(min(chance.expovariate(what["per_second"]), 0.1))
    with suppress(*NOT_NOW):  # What is not settled counts as spent.
        await done(local.close())
    await close(limiter)
