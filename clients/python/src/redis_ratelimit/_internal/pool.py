"""The pool of connections to one server. It does no I/O."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .libraries import Connection

#: The most connections for calls that do not wait (BLOCK).
PLACES = 50
#: The most connections that are being made at the same time. Fewer than all, because a few connections that are ready answer
#: a burst of calls sooner than many that are being made. More than one, because to a distant server each takes several round
#: trips.
CONNECTING = 16


class Signal(Protocol):
    """Wakes a call that waits: a lock for threads, a future for asyncio."""

    def wake(self) -> None: ...


S = TypeVar("S", bound=Signal)


class Idle(NamedTuple):
    """Lends a connection that was used before. The server may have closed it in the meantime."""

    connection: Connection


class MayConnect:
    """Allows the call to make a connection. It calls connected() when that is done or has failed."""


class Dismissed:
    """Ends the wait of a call because the server does not answer."""


class Turn(Generic[S]):
    """The place of a call in the line for a connection. When its turn has come, `lent` is set and the signal is woken."""

    __slots__ = ("lent", "signal")

    def __init__(self, signal: S) -> None:
        self.signal = signal
        self.lent: Idle | MayConnect | Dismissed | None = None


_MAY_CONNECT = MayConnect()
_DISMISSED = Dismissed()


class Lender(Protocol):
    """Lends connections to calls: a Pool to calls that do not wait (BLOCK), its `unlimited` to calls that do."""

    def take(self, signal: type[Signal]) -> Idle | MayConnect | Turn[Any]:
        """Lends a connection, or puts the call into the line. The call ends the loan with give(), even if it got no
        connection."""

    def connected(self) -> None:
        """Records that a call that was allowed to connect has done so, or failed."""

    def give(self, connection: Connection | None) -> bool:
        """Ends a loan. `connection` is None if it cannot be used again. Returns whether the connection is kept; if not, the
        caller closes it."""


class Pool:
    """Lends connections, first come, first served.

    A call occupies one of the places from take() to give(), whatever happens to its connection. Calls that wait (BLOCK)
    occupy no place: they borrow from `unlimited`.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._connecting = 0
        self._idle: deque[Any] = deque()
        self._line: deque[Turn[Any]] = deque()
        self._lock = Lock()
        self.unlimited = _Unlimited(self)

    def take(self, signal: type[Signal]) -> Idle | MayConnect | Turn[Any]:
        """Lends a connection, or returns a turn in the line for one."""
        with self._lock:
            lent = None if self._line else self._lend()
            if lent is not None:
                return lent
            turn: Turn[Any] = Turn(signal())
            self._line.append(turn)
            return turn

    def connected(self) -> None:
        """Records that a connection was made, or could not be made."""
        with self._lock:
            self._connecting -= 1
            self._serve()

    def give(self, connection: Connection | None) -> bool:
        """Ends a loan. Keeps the connection if there is one."""
        with self._lock:
            self._taken -= 1
            if connection is not None:
                self._idle.append(connection)
            self._serve()
            return connection is not None

    def pop_idle(self) -> Connection | None:
        """Returns an idle connection for a call that already occupies a place, or needs none; None if there is none."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def give_surplus(self, connection: Connection) -> bool:
        """Adds the connection of a call without a place, unless the pool has enough. Returns whether it was added."""
        with self._lock:
            if len(self._idle) + self._taken >= self._places:
                return False
            self._idle.append(connection)
            self._serve()
            return True

    def leave(self, turn: Turn[Any]) -> None:
        """Removes a call from the line. If its turn has just come, the next call gets what it was lent."""
        with self._lock:
            lent = turn.lent
            if lent is None:
                self._line.remove(turn)
            elif not isinstance(lent, Dismissed):
                self._taken -= 1
                if isinstance(lent, Idle):
                    self._idle.append(lent.connection)
                else:
                    self._connecting -= 1
                self._serve()

    def clear(self) -> list[Any]:
        """Removes the idle connections and returns them, for the caller to close."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
            return idle

    def dismiss(self) -> None:
        """Dismisses all calls in the line because the server does not answer."""
        with self._lock:
            for turn in self._line:
                turn.lent = _DISMISSED
                turn.signal.wake()
            self._line.clear()

    def _lend(self) -> Idle | MayConnect | None:
        """Occupies a place. Returns None if the call has to wait."""
        if self._taken >= self._places:
            return None
        if self._idle:
            self._taken += 1
            return Idle(self._idle.pop())
        if self._connecting >= CONNECTING:
            return None
        self._taken += 1
        self._connecting += 1
        return _MAY_CONNECT

    def _serve(self) -> None:
        """Lends what is available to the calls in the line, in their order."""
        while self._line:
            lent = self._lend()
            if lent is None:
                return
            turn = self._line.popleft()
            turn.lent = lent
            turn.signal.wake()


class _Unlimited:
    """Lends any number of connections, without a line. Idle connections of the pool are used first."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def take(self, signal: type[Signal]) -> Idle | MayConnect:
        """Lends an idle connection of the pool, or allows the call to make one."""
        connection = self._pool.pop_idle()
        return _MAY_CONNECT if connection is None else Idle(connection)

    def connected(self) -> None:
        """Does nothing, as these connections are not counted."""

    def give(self, connection: Connection | None) -> bool:
        """Adds the connection to the pool, unless the pool has enough."""
        return connection is not None and self._pool.give_surplus(connection)
