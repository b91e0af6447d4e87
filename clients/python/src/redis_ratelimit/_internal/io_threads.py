"""The I/O of threads, which blocks."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Coroutine
from functools import cache
from time import monotonic
from typing import Any, TypeVar

from .io import FOREVER, IO, Address, run
from .libraries import Connection, DeadlinePassed

T = TypeVar("T")

#: The most that a call may exceed its deadline by, if that saves a check of the connection.
NEARLY_SECONDS = 0.01


class _Signal:
    """A lock that a thread waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=-1 if seconds == FOREVER else max(0.0, seconds))


class _Bounded:
    """A mixin for a connection class of the client library, whose steps all end at `ratelimit_until`.

    When the library connects, it reads its timeouts from the attributes that are overridden here. It waits for replies in
    read_response.
    """

    ratelimit_address: Address | None = None
    ratelimit_deadline: float | None = None
    ratelimit_until = FOREVER
    #: True while the connection is being made.
    ratelimit_connecting = False
    #: True if the server accepted the connection.
    ratelimit_accepted = False
    #: True if the library's read_response has a parameter for a timeout.
    ratelimit_takes_timeout = False

    def _left(self) -> float | None:
        # Never 0, which would make the socket non-blocking.
        return None if self.ratelimit_until == FOREVER else max(0.001, self.ratelimit_until - monotonic())

    @property
    def socket_connect_timeout(self) -> float | None:
        return self._left()

    @socket_connect_timeout.setter
    def socket_connect_timeout(self, _: float | None) -> None:
        pass

    @property
    def socket_timeout(self) -> float | None:
        # Once the connection is made, the socket keeps this timeout for later calls.
        return self._left() if self.ratelimit_connecting else self.ratelimit_deadline

    @socket_timeout.setter
    def socket_timeout(self, _: float | None) -> None:
        pass

    def on_connect(self) -> None:
        self.ratelimit_accepted, self.ratelimit_connecting = True, False
        super().on_connect()  # type: ignore[misc]

    def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        self.ratelimit_accepted, self.ratelimit_connecting = True, False
        super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if self.ratelimit_until != FOREVER:
            left = self.ratelimit_until - monotonic()
            # The socket's timeout is the deadline, which is right for a call that has just begun.
            if self.ratelimit_deadline is None or not 0 <= self.ratelimit_deadline - left < NEARLY_SECONDS:
                if not self.can_read(max(0.0, left)):  # type: ignore[attr-defined]
                    self.disconnect()  # type: ignore[attr-defined]
                    raise DeadlinePassed
                if self.ratelimit_takes_timeout:
                    kwargs.setdefault("timeout", max(0.001, self.ratelimit_until - monotonic()))
        else:
            # The socket's timeout may be that of connecting.
            self.can_read(None)  # type: ignore[attr-defined]
        return super().read_response(*args, **kwargs)  # type: ignore[misc]


@cache
def _bounded_class(base: Any) -> type[Any]:
    # With a timeout for each reply, a reply that stops halfway is given up in time too.
    takes_timeout = "timeout" in inspect.signature(base.read_response).parameters
    return type(f"Bounded{base.__name__}", (_Bounded, base), {"ratelimit_takes_timeout": takes_timeout})


class ThreadIO(IO):
    """The I/O of threads."""

    signal = _Signal
    settings = {}

    def connection_class(self, base: Any) -> type[Any]:
        return _bounded_class(base)

    def bounded(self, work: Coroutine[Any, Any, T], until: float) -> Awaitable[T]:
        return work

    async def connect(self, connection: Connection, address: Address | None, until: float) -> None:
        connection.ratelimit_until = until
        connection.ratelimit_connecting = True
        connection.ratelimit_address = address
        if address is None:
            connection.connect()
        else:
            connection.connect_to(address)

    async def is_alive(self, connection: Connection, until: float) -> bool:
        connection.ratelimit_until = until
        try:
            if connection.can_read(0):
                return False
            if connection.health_check_interval:
                connection.check_health()
        except Exception:
            return False
        return True

    async def write(self, connection: Connection, sent: bytes, until: float) -> None:
        connection.ratelimit_until = until
        connection.send_packed_command([sent], check_health=False)

    async def read(self, connection: Connection) -> Any:
        return connection.read_response()

    async def drop(self, connection: Connection) -> None:
        connection.disconnect()

    def abandon(self, connection: Connection) -> None:
        connection.disconnect()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        threading.Thread(target=run, args=[work], name=f"redis-ratelimit {name}", daemon=True).start()

    async def wait(self, signal: Any, until: float) -> None:
        if not signal.wait(until - monotonic()):
            raise DeadlinePassed

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251
