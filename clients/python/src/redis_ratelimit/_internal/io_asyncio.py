"""The I/O of asyncio. An alarm cancels what takes too long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cache
from time import monotonic
from typing import Any, TypeVar

from .io import FOREVER, IO, Address
from .libraries import Connection, DeadlinePassed

T = TypeVar("T")

#: For this long after a reply a connection is assumed to be open. A check takes a turn of the event loop, which costs as
#: much as a call, and a server rarely closes a connection that soon.
FRESH_SECONDS = 0.0001


class _Signal:
    """A future that a task waits for."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Watched:
    """A mixin for a connection class of the client library. It records whether the server accepted the connection."""

    ratelimit_address: Address | None = None
    ratelimit_deadline: float | None = None
    ratelimit_accepted = False
    #: The time when the last reply was read.
    ratelimit_read_at = float("-inf")

    async def on_connect(self) -> None:
        self.ratelimit_accepted = True
        await super().on_connect()  # type: ignore[misc]

    async def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        self.ratelimit_accepted = True
        await super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]


@cache
def _watched_class(base: Any) -> type[Any]:
    return type(f"Watched{base.__name__}", (_Watched, base), {"__module__": __name__})


class _Alarm:
    """Cancels a task when its time is up.

    A busy event loop reads replies late. So if the alarm itself is late, it waits for that much longer, and then for some
    turns of the loop, in which replies that have already arrived are read.
    """

    __slots__ = ("_cancellations", "_handle", "_loop", "_task", "_until", "has_rung")

    TURNS = 3
    #: The longest additional wait.
    GRACE_SECONDS = 0.02

    def __init__(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        self._loop = loop
        self._task = asyncio.current_task(loop)
        #: The number of times that the program had cancelled the task before, for example if this call is a part of its
        #: cleanup. Python counts them from version 3.11 on.
        self._cancellations: int = getattr(self._task, "cancelling", lambda: 0)()
        self._until = until
        self.has_rung = False
        self._handle: asyncio.Handle = loop.call_later(until - monotonic(), self._due)

    def _due(self) -> None:
        late = monotonic() - self._until
        if late > 0.002:
            self._handle = self._loop.call_later(min(late, self.GRACE_SECONDS), self._turn, 0)
        else:
            self._turn(0)

    def _turn(self, turns: int) -> None:
        if turns < self.TURNS:
            self._handle = self._loop.call_soon(self._turn, turns + 1)
        elif self._task is not None:
            self.has_rung = True
            self._task.cancel()

    def cancel(self) -> None:
        self._handle.cancel()

    def was_cancelled_otherwise(self) -> bool:
        """Returns whether the task was cancelled by the program as well, after the alarm had rung."""
        uncancel = getattr(self._task, "uncancel", None)
        return uncancel is not None and uncancel() > self._cancellations


class AsyncioIO(IO):
    """The I/O of asyncio."""

    signal = _Signal

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    # Alarms take the place of the library's timeouts.
    settings = {"socket_timeout": None, "socket_connect_timeout": None}

    def connection_class(self, base: Any) -> type[Any]:
        return _watched_class(base)

    async def bounded(self, work: Coroutine[Any, Any, T], until: float) -> T:
        if until == FOREVER:
            return await work
        alarm = _Alarm(asyncio.get_running_loop(), until)
        try:
            return await work
        except asyncio.CancelledError:
            if alarm.has_rung and not alarm.was_cancelled_otherwise():
                raise DeadlinePassed from None
            raise
        finally:
            alarm.cancel()

    async def connect(self, connection: Connection, address: Address | None, until: float) -> None:
        connection.ratelimit_address = address
        if address is None:
            await connection.connect()
        else:
            await connection.connect_to(address)

    async def is_alive(self, connection: Connection, until: float) -> bool:
        if monotonic() - connection.ratelimit_read_at < FRESH_SECONDS:
            return True
        try:
            # If the server has closed the connection, the loop notices in its first turn, and reports it in its second.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if not connection.is_connected:
                return False
            if hasattr(connection, "can_read"):
                if await connection.can_read():
                    return False
            # The result is False if there is no data, and empty at the end of the stream.
            elif await connection.can_read_destructive() is not False:
                return False
            if connection.health_check_interval:
                await connection.check_health()
        except Exception:
            return False
        return True

    async def write(self, connection: Connection, sent: bytes, until: float) -> None:
        await connection.send_packed_command([sent], check_health=False)

    async def read(self, connection: Connection) -> Any:
        reply = await connection.read_response()
        connection.ratelimit_read_at = monotonic()
        return reply

    async def drop(self, connection: Connection) -> None:
        await connection.disconnect(nowait=True)

    def abandon(self, connection: Connection) -> None:
        self.spawn(connection.disconnect(nowait=True), "disconnection")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        # The event loop does not keep tasks alive.
        task = asyncio.get_running_loop().create_task(work, name=f"redis-ratelimit {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel_spawned(self) -> None:
        """Cancels the background work of the running loop."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait(self, signal: Any, until: float) -> None:
        await signal.future

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
