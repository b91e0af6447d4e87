"""The connections to one server. No I/O is done here."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Any, Generic, Literal, Protocol, TypeVar, Union

#: Connections for calls that do not wait.
PLACES = 50
#: Connections that are made at the same time. Not all of them: a burst of calls is answered sooner by some connections that
#: are ready than by many that are all being made. Nor few: far away each takes several round trips.
CONNECTING = 16


class Signal(Protocol):
    """What a call waits for: a lock for threads, a future for asyncio."""

    def wake(self) -> None: ...


S = TypeVar("S", bound=Signal)
#: "connect": the call may make a connection. "closed": there is nothing to wait for.
Given = Union[Any, Literal["connect", "closed"]]


class Turn(Generic[S]):
    """The place of a call in the line for a connection."""

    __slots__ = ("given", "signal")

    def __init__(self, signal: S) -> None:
        self.signal = signal
        self.given: Given | None = None


class Pool:
    """Hands out connections, first come, first served.

    A call that does not wait holds one of `places`, whatever happens to its connection, from take() to give(). Those that
    wait (BLOCK) have no place: they use connections beside the others.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._connecting = 0
        self._idle: deque[Any] = deque()
        self._line: deque[Turn[Any]] = deque()
        self._lock = Lock()

    def take(self, signal: type[Signal]) -> Given | Turn[Any]:
        """A place and with it an idle connection, or leave to make one, or else a turn in the line."""
        with self._lock:
            if not self._line:
                if self._idle and self._taken < self._places:
                    self._taken += 1
                    return self._idle.pop()
                if self._may_connect():
                    return "connect"
            turn: Turn[Any] = Turn(signal())
            self._line.append(turn)
            return turn

    def take_beside(self) -> Given:
        """An idle connection, or leave to make one, without a place."""
        with self._lock:
            return self._idle.pop() if self._idle else "connect"

    def give(self, connection: Any | None) -> None:
        """Gives a place back, and with it its connection if that can be used again."""
        with self._lock:
            self._taken -= 1
            if connection is not None:
                self._idle.append(connection)
            if self._line:
                self._serve()

    def give_beside(self, connection: Any) -> bool:
        """Gives a connection back that has no place; False if there are enough: the caller closes it."""
        with self._lock:
            if len(self._idle) + self._taken >= self._places:
                return False
            self._idle.append(connection)
            self._serve()
            return True

    def connected(self) -> None:
        """A connection was made, or could not be made."""
        with self._lock:
            self._connecting -= 1
            self._serve()

    def swap(self) -> Any | None:
        """An idle connection for a call that has a place already, and tries to make a connection."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def leave(self, turn: Turn[Any]) -> None:
        """A call does not wait any longer. What it was given at the last moment goes to the next."""
        with self._lock:
            if turn.given is None:
                self._line.remove(turn)
            elif turn.given != "closed":
                self._taken -= 1
                if turn.given == "connect":
                    self._connecting -= 1
                else:
                    self._idle.append(turn.given)
                self._serve()

    def clear(self, *, dismiss: bool = False) -> list[Any]:
        """The idle connections, for the caller to close. `dismiss` also tells those who wait that it is in vain."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
            if dismiss:
                for turn in self._line:
                    turn.given = "closed"
                    turn.signal.wake()
                self._line.clear()
            return idle

    def _may_connect(self) -> bool:
        if self._taken >= self._places or self._connecting >= CONNECTING:
            return False
        self._taken += 1
        self._connecting += 1
        return True

    def _serve(self) -> None:
        while self._line:
            if self._idle and self._taken < self._places:
                self._taken += 1
                given = self._idle.pop()
            elif self._may_connect():
                given = "connect"
            else:
                return
            turn = self._line.popleft()
            turn.given = given
            turn.signal.wake()
