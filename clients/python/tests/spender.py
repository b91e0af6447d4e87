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


class Book:
    def __init__(self, path: str, leases: Any) -> None:
        with open(path, "w+b") as file:
            file.truncate(RECORD.size * RECORDS)
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0
        self._thread = threading.get_ident()
        self._at = self._wall_at = 0.0
        self._take = leases.take
        self._clock, self._wall = leases.monotonic, leases.wall
        self._is_taking = False
        leases.monotonic, leases.wall, leases.take = self._look, self._look_at_the_wall, self._watch

    def _watch(self, *args: Any, **kwargs: Any) -> Any:
        self._is_taking = True
        try:
            return self._take(*args, **kwargs)
        finally:
            self._is_taking = False

    def _look(self) -> float:
        now: float = self._clock()
        # The thread that settles reads the clock too.
        if self._is_taking and threading.get_ident() == self._thread:
            self._at = now
        return now

    def _look_at_the_wall(self) -> float:
        now: float = self._wall()
        if self._is_taking and threading.get_ident() == self._thread:
            self._wall_at = now
        return now

    def spent(self, quantity: int) -> None:
        RECORD.pack_into(self._map, self._count * RECORD.size, self._at, self._wall_at, quantity)
        self._count += 1


async def spend(folder: str, what: dict[str, Any]) -> None:
    """Spends with the limiter of redis_ratelimit ("") or redis_ratelimit.asyncio (".asyncio")."""
    client = make(LIBRARIES[0], folder, port=what["port"])
    limiter = import_module(f"redis_ratelimit{folder}").Limiter(client, unreachable="deny", deadline=0.5)
    chance = random.Random()
    window = Window(what["limit"], what["period"], fixed=what["fixed"])
    local = limiter.local("proof", window, lease=what["lease_ms"])
    book = Book(what["file"], local._leases)
    while time.monotonic() < what["until"]:
        asked = chance.choice([1, 1, 1, 1, 1, 1, 1, 2, 3])
        try:
            if (await done(local.take(asked))).allowed:
                book.spent(asked)
        except NOT_NOW:
            pass
        await asyncio.sleep(min(chance.expovariate(what["per_second"]), 0.1))
    await done(local.close())
    await close(limiter)
