"""The connections to one server. No I/O is done here."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .libraries import Connection

#: Connections for calls that do not wait.
PLACES = 50
#: Connections that are made at the same time. Not all of them: a burst of calls is answered sooner by some connections that
#: are ready than by many that are all being made. Nor few: far away each takes several round trips.
CONNECTING = 16


class Signal(Protocol):
    """Wakes a call that waits: a lock for threads, a future for asyncio."""

    def wake(self) -> None: ...


S = TypeVar("S", bound=Signal)


class Idle(NamedTuple):
    """The call has this connection, which was used before. The server may have closed it."""

    connection: Connection


class MayConnect:
    """The call may make a connection. It calls connected() when it has tried."""


class Dismissed:
    """The call stops waiting, as no server answers."""


class Turn(Generic[S]):
    """The place of a call in the line for a connection. The signal is woken when the call was given something."""

    __slots__ = ("given", "signal")

    def __init__(self, signal: S) -> None:
        self.signal = signal
        self.given: Idle | MayConnect | Dismissed | None = None


_MAY_CONNECT = MayConnect()
_DISMISSED = Dismissed()


class Lender(Protocol):
    """Lends connections to calls: a Pool to those that do not wait (BLOCK), its `beside` to those that do."""

    def take(self, signal: type[Signal]) -> Idle | MayConnect | Turn[Any]:
        """Lends a connection, which ends with give() even if none is made, or puts the call into the line."""

    def connected(self) -> None:
        """Notes that a call that may connect has done so, or failed."""

    def give(self, connection: Connection | None) -> bool:
        """Ends what take() began. None stands for a connection that cannot be used again. Returns whether the connection
        is kept; if not, the caller closes it."""


class Pool:
    """Lends connections, first come, first served.

    A call holds one of `places`, whatever happens to its connection, from take() to give(). Calls that wait (BLOCK) have no
    place: they borrow of `beside`.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._connecting = 0
        self._idle: deque[Any] = deque()
        self._line: deque[Turn[Any]] = deque()
        self._lock = Lock()
        self.beside = _Beside(self)

    def take(self, signal: type[Signal]) -> Idle | MayConnect | Turn[Any]:
        """Returns a place, or a turn in the line for one."""
        with self._lock:
            lent = None if self._line else self._lend()
            if lent is not None:
                return lent
            turn: Turn[Any] = Turn(signal())
            self._line.append(turn)
            return turn

    def connected(self) -> None:
        """Notes that a connection was made, or could not be made."""
        with self._lock:
            self._connecting -= 1
            self._serve()

    def give(self, connection: Connection | None) -> bool:
        """Gives a place back, and with it its connection if that can be used again."""
        with self._lock:
            self._taken -= 1
            if connection is not None:
                self._idle.append(connection)
            self._serve()
            return connection is not None

    def pop_idle(self) -> Connection | None:
        """Returns an idle connection for a call that holds its place already; None if there is none."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def give_surplus(self, connection: Connection) -> bool:
        """Offers a connection that holds no place. Returns whether it is kept: not if there are enough."""
        with self._lock:
            if len(self._idle) + self._taken >= self._places:
                return False
            self._idle.append(connection)
            self._serve()
            return True

    def leave(self, turn: Turn[Any]) -> None:
        """Takes a call out of the line. What it was given at the last moment goes to the next."""
        with self._lock:
            given = turn.given
            if given is None:
                self._line.remove(turn)
            elif not isinstance(given, Dismissed):
                self._taken -= 1
                if isinstance(given, Idle):
                    self._idle.append(given.connection)
                else:
                    self._connecting -= 1
                self._serve()

    def clear(self) -> list[Any]:
        """Takes out the idle connections, for the caller to close."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
            return idle

    def dismiss(self) -> None:
        """Dismisses all calls in the line, as no server answers."""
        with self._lock:
            for turn in self._line:
                turn.given = _DISMISSED
                turn.signal.wake()
            self._line.clear()

    def _lend(self) -> Idle | MayConnect | None:
        """Takes a place; None if the call has to wait."""
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
        """Gives what is available to the first call in the line."""
        while self._line:
            lent = self._lend()
            if lent is None:
                return
            turn = self._line.popleft()
            turn.given = lent
            turn.signal.wake()


class _Beside:
    """Lends connections without a place and without a line. Those of the pool are borrowed first."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def take(self, signal: type[Signal]) -> Idle | MayConnect:
        """Returns an idle connection, or allows the call to make one."""
        connection = self._pool.pop_idle()
        return _MAY_CONNECT if connection is None else Idle(connection)

    def connected(self) -> None:
        """Does nothing, as these connections are not counted."""

    def give(self, connection: Connection | None) -> bool:
        """Leaves the connection to the pool, unless that has enough."""
        return connection is not None and self._pool.give_surplus(connection)
