"""A process of the proof: spends a limit, and writes down when.

What is written lies in a file that is mapped into memory, so that nothing of it is lost when the process is killed.
"""

from __future__ import annotations

import asyncio
import mmap
import random
import struct
import threading
import time
from typing import Any

import redis_ratelimit
import redis_ratelimit.asyncio
from redis_ratelimit import Window

from .fixtures import LIBRARIES, make

#: The clock reading in seconds, and what was spent; a quantity of 0 ends the list.
RECORD = struct.Struct("<dq")
RECORDS = 1 << 18


def read(path: str) -> list[tuple[float, int]]:
    with open(path, "rb") as file:
        records = list(RECORD.iter_unpack(file.read()))
    return [record for record in records if record[1]]


class Book:
    def __init__(self, path: str, leases: Any) -> None:
        with open(path, "w+b") as file:
            file.truncate(RECORD.size * RECORDS)
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0
        self._thread = threading.get_ident()
        self._at = 0.0
        self._take = leases.take
        self._clock = leases.monotonic
        self._is_taking = False
        leases.monotonic, leases.take = self._look, self._watch

    def _watch(self, *words: Any, **options: Any) -> Any:
        self._is_taking = True
        try:
            return self._take(*words, **options)
        finally:
            self._is_taking = False

    def _look(self) -> float:
        now: float = self._clock()
        # What settles looks at the clock as well.
        if self._is_taking and threading.get_ident() == self._thread:
            self._at = now
        return now

    def spent(self, quantity: int) -> None:
        RECORD.pack_into(self._map, self._count * RECORD.size, self._at, quantity)
        self._count += 1


def quantity(chance: random.Random) -> int:
    return chance.choice([1, 1, 1, 1, 1, 1, 1, 2, 3])


def spend(port: int, path: str, window: Window, lease: int, per_second: float, until: float) -> None:
    limiter = redis_ratelimit.Limiter(make(LIBRARIES[0], port=port), unreachable="deny", deadline=0.5)
    chance = random.Random()
    with limiter.local("proof", window, lease=lease) as local:
        book = Book(path, local._leases)
        while time.monotonic() < until:
            asked = quantity(chance)
            try:
                if local.take(asked).allowed:
                    book.spent(asked)
            except redis_ratelimit.Busy:
                pass
            time.sleep(chance.expovariate(per_second))


def spend_soon(port: int, path: str, window: Window, lease: int, per_second: float, until: float) -> None:
    asyncio.run(_spend_soon(port, path, window, lease, per_second, until))


async def _spend_soon(port: int, path: str, window: Window, lease: int, per_second: float, until: float) -> None:
    client = make(LIBRARIES[0], ".asyncio", port=port)
    limiter = redis_ratelimit.asyncio.Limiter(client, unreachable="deny", deadline=0.5)
    chance = random.Random()
    async with limiter.local("proof", window, lease=lease) as local:
        book = Book(path, local._leases)
        while time.monotonic() < until:
            asked = quantity(chance)
            try:
                if (await local.take(asked)).allowed:
                    book.spent(asked)
            except redis_ratelimit.Busy:
                pass
            await asyncio.sleep(chance.expovariate(per_second))
    await limiter.aclose()
