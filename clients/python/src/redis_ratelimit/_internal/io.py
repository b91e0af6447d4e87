"""The interface of the I/O that differs between threads and asyncio, and the encoding of commands.

The code above this interface is written once, with async and await. In the synchronous limiter no await ever suspends,
because its I/O blocks. So run() executes a whole coroutine in one step.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from .libraries import Connection
from .parameters import Word
from .pool import Signal

P = ParamSpec("P")
T = TypeVar("T")

Address = tuple[str, int]

#: The deadline of a call without a time limit.
FOREVER = float("inf")
#: The longest that the client's own work takes, such as settling in the background, if nothing else limits it.
DEFAULT_SECONDS = 5.0


class IO(ABC):
    """The I/O of threads or of asyncio. `until` is a time of time.monotonic."""

    #: The class of signals that a call waits for.
    signal: type[Signal]
    #: Settings for all connections.
    settings: dict[str, Any]

    @abstractmethod
    def connection_class(self, base: Any) -> type[Any]:
        """Returns a class of connections that is derived from the client's own."""

    @abstractmethod
    def bounded(self, work: Coroutine[Any, Any, T], until: float) -> Awaitable[T]:
        """Runs a coroutine. Raises DeadlinePassed when the time is up."""

    @abstractmethod
    async def connect(self, connection: Connection, address: Address | None, until: float) -> None: ...

    @abstractmethod
    async def is_alive(self, connection: Connection, until: float) -> bool:
        """Returns whether an idle connection can be used, and was not closed by the server."""

    @abstractmethod
    async def write(self, connection: Connection, sent: bytes, until: float) -> None: ...

    @abstractmethod
    async def read(self, connection: Connection) -> Any: ...

    async def exchange(self, connection: Connection, command: bytes, until: float) -> Any:
        """Sends a command and reads its reply."""
        await self.write(connection, command, until)
        return await self.read(connection)

    async def exchange_all(
        self, connection: Connection, commands: list[bytes], until: float, errors: type[Exception]
    ) -> list[Any]:
        """Sends commands together and reads their replies. Errors of the class `errors` are returned among the replies."""
        await self.write(connection, b"".join(commands), until)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await self.read(connection))
            except errors as error:
                replies.append(error)
        return replies

    @abstractmethod
    async def drop(self, connection: Connection) -> None: ...

    @abstractmethod
    def abandon(self, connection: Connection) -> None:
        """Closes a connection without waiting for it."""

    @abstractmethod
    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Starts work in the background. Raises RuntimeError if that is not possible."""

    @abstractmethod
    async def wait(self, signal: Any, until: float) -> None: ...

    @abstractmethod
    async def pause(self, seconds: float) -> None: ...


IOType = TypeVar("IOType", bound=IO)


#: The name of a client's encoding, and how it handles errors.
Encoding = tuple[str, str]


def encode(word: Word, encoding: Encoding) -> bytes:
    """Returns the bytes of a word. Raises ValueError for a text that cannot be encoded, such as half of a surrogate pair."""
    if isinstance(word, str):
        try:
            return word.encode(*encoding)
        except UnicodeEncodeError as error:
            raise ValueError(f"{word!r} cannot be sent in {encoding[0]}: {error.reason}") from None
    return word if isinstance(word, bytes) else b"%d" % word


def pack(words: tuple[Word, ...], encoding: Encoding) -> bytes:
    """Returns the bytes of a command. The client library accepts more types of values, but takes twice as long.

    This may raise an error, so it must be done before a connection is borrowed for the command.
    """
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        sent = encode(word, encoding)
        parts.append(b"$%d\r\n%b\r\n" % (len(sent), sent))
    return b"".join(parts)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends, and returns its result."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("the work of a synchronous limiter was suspended")


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Returns the method of a synchronous class that runs an async one. It has the same signature and docstring."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(self, *args, **kwargs))

    return call


async def await_if_needed(answer: Any) -> Any:
    """Returns an answer of a limiter or of the program. Awaits it if it comes from a coroutine function."""
    return await answer if inspect.isawaitable(answer) else answer
