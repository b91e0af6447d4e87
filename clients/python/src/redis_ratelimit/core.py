"""How a call is sent, and what it is answered when nobody answers: once, for both limiters.

All of it is written with async and await. Under the synchronous limiter nothing that is awaited ever suspends, as its I/O
blocks, so run() drives a coroutine to its end in one step.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from time import monotonic
from typing import Any, Generic, Literal, Protocol, TypeVar, Union, cast

from . import calls
from .breaker import Breaker
from .calls import Call
from .libraries import Late, library_of
from .parameters import Word
from .pool import Signal, Turn
from .replies import Busy, MissingModule, Reply
from .servers import Address, ByCluster, Server, Servers, make_servers

T = TypeVar("T")

FOREVER = float("inf")
#: The methods that settle a reservation.
_SETTLING = "apply", "release", "renew"
#: More often than this no call is redirected: a cluster whose nodes disagree answers MOVED without end.
REDIRECTS = 5


class Fallback(Protocol):
    """A limiter that decides while Redis does not: an object with the methods of a limiter, sync or asyncio."""

    def throttle(self, key: Any, rate: Any, quantity: int = 1) -> Any: ...

    def window(self, key: Any, window: Any, quantity: int = 1) -> Any: ...

    def reserve(self, key: Any, window: Any, quantity: int = 1) -> Any: ...


Unreachable = Union[Literal["raise", "allow", "deny"], Fallback]


class IO(Protocol):
    """What differs between threads and asyncio. `until` is a time of time.monotonic."""

    @property
    def signal(self) -> type[Signal]:
        """Makes what a call waits for."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of connections."""

    def connection_class(self, base: Any) -> type[Any]:
        """A class of connections, made of the client's own."""

    def bounded(self, work: Coroutine[Any, Any, T], until: float) -> Awaitable[T]:
        """Does the work; Late when the time is over."""

    async def connect(self, connection: Any, address: Address | None, until: float) -> None: ...

    async def is_alive(self, connection: Any, until: float) -> bool:
        """Whether an idle connection can be used: the server has not closed it."""

    async def exchange(self, connection: Any, words: tuple[Word, ...], until: float) -> Any:
        """Sends a command and reads its reply."""

    async def exchange_all(
        self, connection: Any, commands: list[tuple[Word, ...]], until: float, errors: type[Exception]
    ) -> list[Any]:
        """Sends commands together and reads their replies; errors of the class `errors` are among them."""

    async def drop(self, connection: Any) -> None: ...

    def abandon(self, connection: Any) -> None:
        """Closes a connection without waiting for it."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins work that goes on by itself."""

    async def wait(self, signal: Any, until: float) -> None: ...

    async def pause(self, seconds: float) -> None: ...


IOs = TypeVar("IOs", bound=IO)


class Attempt:
    """What is known of a call while it is under way."""

    __slots__ = ("began", "full", "sent", "server", "until")

    def __init__(self, began: float, until: float) -> None:
        self.began = began
        self.until = until
        self.server: Server | None = None
        #: The server said that it has no connection to give.
        self.full = False
        #: Something was sent.
        self.sent = False


def pack(words: tuple[Word, ...], connection: Any) -> bytes:
    """A command as it is sent. The client library's own way is for more kinds of values, and takes twice as long."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        if type(word) is str:
            sent = word.encode(*connection.ratelimit_encoding)
        elif type(word) is int:
            sent = b"%d" % word
        elif isinstance(word, bytes):
            sent = word
        else:
            raise TypeError(f"a key, an id and a time zone must be str or bytes, not {word!r}")
        parts.append(b"$%d\r\n%b\r\n" % (len(sent), sent))
    return b"".join(parts)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Drives to its end what never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("the work of a synchronous limiter was suspended")


class Core(Generic[IOs]):
    """A limiter without its methods."""

    #: Leases read the clocks of the system.
    clock: Callable[[], float] | None = None

    def __init__(
        self, io: IOs, client: Any, *, asynchronous: bool, unreachable: Unreachable, deadline: float | None
    ) -> None:
        self.library = library_of(client, asynchronous=asynchronous)
        if isinstance(unreachable, str):
            if unreachable not in ("raise", "allow", "deny"):
                raise ValueError(f"unreachable must be 'raise', 'allow', 'deny' or a limiter, not {unreachable!r}")
        elif not all(callable(getattr(unreachable, name, None)) for name in ("throttle", "window", "reserve")):
            raise TypeError(f"unreachable must be 'raise', 'allow', 'deny' or a limiter, not {unreachable!r}")
        if deadline is not None:
            if isinstance(deadline, bool) or not isinstance(deadline, (int, float)):
                raise TypeError(f"deadline must be a number of seconds, not {deadline!r}")
            if not deadline > 0:
                raise ValueError(f"deadline must be above 0 seconds, not {deadline!r}")
        self.io = io
        # A MemoryLimiter of the other kind has a twin of this one, on the same keys.
        twin = getattr(unreachable, "_twin", None)
        self.unreachable: Unreachable = unreachable if twin is None else twin(asynchronous)
        #: The MemoryLimiter's keys, if it is one that decides while Redis does not.
        self._memory: Any = getattr(self.unreachable, "_memory", None)
        self.deadline = self._socket_timeout(client) if deadline is None else deadline
        self._client = client
        self.servers: Servers = make_servers(self, client)

    def _socket_timeout(self, client: Any) -> float | None:
        """The socket_timeout of the client's connections, which is a setting or the library's default."""
        pool = getattr(client, "connection_pool", None)
        settings = client.get_connection_kwargs() if pool is None else pool.connection_kwargs
        if pool is None or "socket_timeout" in settings:
            return cast("float | None", settings.get("socket_timeout"))
        return cast("float | None", pool.connection_class(**settings).socket_timeout)

    def renew_servers(self) -> None:
        """Forgets all connections without closing them: they are those of another process."""
        self.servers = make_servers(self, self._client)

    def maker(self, connection_class: type[Any], settings: dict[str, Any]) -> Callable[..., Any]:
        """What makes connections that suit a limiter, of the class and with the settings of the client's own.

        They never try again by themselves: a call whose reply was lost may have been counted.
        """
        chosen = self.io.connection_class(connection_class)
        own = {"retry": self.library.no_retry, "retry_on_timeout": False, **self.io.settings}
        deadline = self.deadline
        encoding = settings.get("encoding", "utf-8"), settings.get("encoding_errors", "strict")

        def make(**address: Any) -> Any:
            connection = chosen(**{**settings, **own, **address})
            connection.ratelimit_deadline = deadline
            connection.ratelimit_encoding = encoding
            return connection

        return make

    async def send(self, call: Call[T], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """The answer to a call. `name`, `args` and `kwargs` say how it was called, for a fallback."""
        if call.key is not None and not isinstance(call.key, (str, bytes)):
            raise TypeError(f"a key must be str or bytes, not {call.key!r}")
        if self._memory is not None and name in _SETTLING:
            # A reservation is settled where it was made.
            ids = call.words[2:] if name == "release" else call.words[2:3]
            own = [id for id in ids if self._memory.holds(call.key, id)]
            if own:
                return await self._settle_own(call, name, own, [id for id in ids if id not in own])
        began = monotonic()
        until = FOREVER
        if self.deadline is not None and call.block_ms != 0:
            until = began + self.deadline + (call.block_ms or 0) / 1000
        attempt = Attempt(began, until)
        try:
            return await self.io.bounded(self._ask(call, attempt), until)
        except Exception as error:
            raised = self._judge(error, call, attempt)
            if raised is not None:
                raise raised from (None if raised is error else error)
            if isinstance(self.unreachable, str):
                assert call.unreached is not None
                return call.unreached(self.unreachable == "allow")
            decide = getattr(self.unreachable, name, None)
            if decide is None:
                raise
        answer = decide(*args, **kwargs)
        if inspect.isawaitable(answer):
            answer = await answer
        return cast(T, replace(answer, reachable=False) if isinstance(answer, Reply) else answer)

    async def _settle_own(self, call: Call[T], name: str, own: list[Any], others: list[Any]) -> T:
        """Settles what a MemoryLimiter reserved while Redis did not answer, and what else is released with it."""
        core = cast(Any, self.unreachable)._core
        if not others:
            return cast(T, await core.send(call, name, (), {}))
        released = await core.send(calls.release(call.words[1], *own), name, (), {})  # type: ignore[arg-type]
        return cast(T, released + await self.send(calls.release(call.words[1], *others), name, (), {}))  # type: ignore[arg-type]

    async def send_all(self, key: Any, commands: list[tuple[Word, ...]]) -> tuple[list[Any] | Exception, bool]:
        """The replies to commands on one key, with error replies among them, or why there are none; and whether the
        server may have been asked. They are sent together."""
        call: Call[Any] = Call(commands[0], list, key, more=tuple(commands[1:]))
        began = monotonic()
        attempt = Attempt(began, FOREVER if self.deadline is None else began + self.deadline)
        try:
            replies = await self.io.bounded(self._ask_all(call, attempt), attempt.until)
        except Exception as error:
            return self._judge(error, call, attempt) or error, attempt.sent
        return [
            self._told(each, call, attempt.server) if isinstance(each, Exception) else each for each in replies
        ], True

    def is_away(self, error: Exception) -> bool:
        """Whether an error means that Redis cannot be reached, so that `unreachable` decides."""
        library = self.library
        return library.is_late(error) or library.is_lost(error) or library.is_nobody_served(error)

    def _judge(self, error: Exception, call: Call[Any], attempt: Attempt) -> Exception | None:
        """What an error is for the caller; None if `unreachable` says what the answer is."""
        library, server = self.library, attempt.server
        now = monotonic()
        if library.is_full(error):
            attempt.full = True
        if attempt.full and (library.is_late(error) or library.is_full(error)):
            return Busy(f"{server} has no connection to give: max number of clients reached")
        if library.is_late(error):
            if server is not None and server.breaker.answered_at >= attempt.began:
                return Busy(f"{server} answers, but did not answer this call within {now - attempt.began:.3f} s")
            if type(error) is Late:
                waited = f"{now - attempt.began:.3f} s"
                error = library.timeout_error(f"{server or 'the cluster'} did not answer within {waited}")
        elif library.is_nobody_served(error):
            if server is not None:
                server.breaker.answered(now)
            return None if self._is_answered(call) else error
        elif not library.is_lost(error):
            if server is not None and library.is_answer(error):
                server.breaker.answered(now)
            return self._told(error, call, server)
        if server is not None and not isinstance(error, _Open):
            self.servers.failed()
            if server.breaker.failed(attempt.began, now, error):
                self._close(server)
        return None if self._is_answered(call) else error

    def _is_answered(self, call: Call[Any]) -> bool:
        return call.unreached is not None and self.unreachable != "raise"

    def is_forgiven(self, error: Exception) -> bool:
        """Whether an error of settling is hidden: the user chose an answer for when Redis cannot be reached."""
        return self.unreachable != "raise" and (self.is_away(error) or isinstance(error, Busy))

    def _told(self, error: Exception, call: Call[Any], server: Server | None) -> Exception:
        """An error reply, with what it does not say by itself."""
        text = str(error)
        if isinstance(error, self.library.reply_error):
            if text.lower().startswith("unknown command"):
                return MissingModule(f"{server} has no redis-ratelimit, or one that does not know this command: {text}")
            names = [word for word in call.words if isinstance(word, str) and word.startswith("@")]
            if text.startswith("NOPOLICY") and names and not any(name[1:] in text for name in names):
                return type(error)(f"{text}: {', '.join(names)}")
        return error

    def unanswered(self, name: str, breaker: Breaker) -> Exception:
        """The error of a call that is not sent, as others failed."""
        return _open_error(self.library.connection_error)(f"{name} does not answer: {breaker.error}")

    def _close(self, server: Server) -> None:
        """The breaker opened: what is idle is as dead as the rest, and nobody needs to wait any longer."""
        for connection in server.pool.clear(dismiss=True):
            self.io.abandon(connection)

    async def _ask(self, call: Call[T], attempt: Attempt) -> T:
        servers = self.servers
        if call.key is None and isinstance(servers, ByCluster):
            answers = []
            for server in await servers.all(attempt):
                attempt.server = server
                answers.append(call.read(await self._one_on(server, call, attempt)))
            assert call.merge is not None
            return call.merge(answers)
        server = servers.known(call) or await servers.find(call, attempt)
        asking = False
        for _ in range(REDIRECTS):
            attempt.server = server
            try:
                return call.read(await self._one_on(server, call, attempt, asking))
            except Exception as error:
                redirected = servers.redirected(error, server)
                if redirected is None:
                    raise
                server, asking = redirected
        attempt.server = server
        return call.read(await self._one_on(server, call, attempt, asking))

    async def _ask_all(self, call: Call[Any], attempt: Attempt) -> list[Any]:
        """The replies to the commands of a call. Those that were redirected are sent again, and only those."""
        servers = self.servers
        server = servers.known(call) or await servers.find(call, attempt)
        commands = [call.words, *call.more]
        replies: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        asking = False
        for turn in range(REDIRECTS + 1):
            attempt.server = server
            target = None
            sent = [commands[at] for at in left]
            again = []
            try:
                found = await self._all_on(server, call, attempt, asking, sent)
            except Exception as error:
                redirected = servers.redirected(error, server)
                if redirected is None or turn == REDIRECTS:
                    raise
                server, asking = redirected
                continue
            for at, reply in zip(left, found, strict=True):
                replies[at] = reply
                if not isinstance(reply, Exception):
                    continue
                redirected = servers.redirected(reply, server)
                if redirected is not None and turn < REDIRECTS:
                    target = redirected
                    again.append(at)
                elif self.library.is_nobody_served(reply) or not isinstance(reply, self.library.reply_error):
                    raise reply
            if target is None:
                break
            left = again
            server, asking = target
        return replies

    async def _on(
        self, server: Server, call: Call[Any], attempt: Attempt, exchange: Callable[[Any], Awaitable[T]]
    ) -> T:
        """What `exchange` answers of a connection to a server, that it is lent."""
        if server.breaker.is_open:
            await self._probe(server, attempt)
        beside = call.block_ms is not None
        if attempt.until == FOREVER and self.deadline is not None:
            # BLOCK 0 waits without end for its turn, but not for a connection.
            ready = Attempt(attempt.began, monotonic() + self.deadline)
            connection = await self.io.bounded(self._connection(server, ready, beside), ready.until)
        else:
            connection = await self._connection(server, attempt, beside)
        usable = False
        try:
            attempt.sent = True
            reply = await exchange(connection)
            usable = True
        except self.library.reply_error:
            usable = True
            raise
        finally:
            await self._give_back(server, connection, beside, usable)
        return reply

    async def _give_back(self, server: Server, connection: Any, beside: bool, usable: bool) -> None:
        """Ends the use of a connection, which had a place in the pool unless it was `beside`."""
        if usable:
            server.breaker.answered(monotonic())
            if not beside:
                server.pool.give(connection)
                return
            if server.pool.give_beside(connection):
                return
        elif not beside:
            server.pool.give(None)
        await self.io.drop(connection)

    async def _one_on(self, server: Server, call: Call[Any], attempt: Attempt, asking: bool = False) -> Any:
        """The reply of a server. `asking` is for a key that moves to it."""

        async def exchange(connection: Any) -> Any:
            if asking:
                await self.io.exchange(connection, ("ASKING",), attempt.until)
            return await self.io.exchange(connection, call.words, attempt.until)

        return await self._on(server, call, attempt, exchange)

    async def _all_on(
        self, server: Server, call: Call[Any], attempt: Attempt, asking: bool, commands: list[tuple[Word, ...]]
    ) -> list[Any]:
        """The replies of a server to several commands, error replies among them."""
        # ASKING is for one command.
        sent = [words for command in commands for words in (("ASKING",), command)] if asking else commands

        async def exchange(connection: Any) -> list[Any]:
            return await self.io.exchange_all(connection, sent, attempt.until, self.library.reply_error)

        replies = await self._on(server, call, attempt, exchange)
        return replies[1::2] if asking else replies

    async def _connection(self, server: Server, attempt: Attempt, beside: bool) -> Any:
        """A connection that can be used, and unless `beside` a place with it."""
        io, pool = self.io, server.pool
        while True:
            taken: Any = pool.take_beside() if beside else pool.take(io.signal)
            if type(taken) is Turn:
                taken = await self._in_line(server, taken, attempt)
            try:
                if taken == "connect":
                    try:
                        return await self._connect(server, attempt)
                    finally:
                        if not beside:
                            pool.connected()
                if taken.ratelimit_address == server.address and await io.is_alive(taken, attempt.until):
                    return taken
            except BaseException:
                if not beside:
                    pool.give(None)
                if taken != "connect":
                    await io.drop(taken)
                raise
            if not beside:
                pool.give(None)
            await io.drop(taken)

    async def _in_line(self, server: Server, turn: Turn[Any], attempt: Attempt) -> Any:
        try:
            await self.io.wait(turn.signal, attempt.until)
        except BaseException:
            server.pool.leave(turn)
            raise
        if turn.given == "closed":
            if server.breaker.answered_at >= attempt.began:
                raise Late
            raise self.unanswered(str(server), server.breaker)
        return turn.given

    async def _connect(self, server: Server, attempt: Attempt) -> Any:
        """A new connection. A server that accepts it and hangs up at once is asked again while there is time: it may have
        no connection to give, and then those that others give back are as good."""
        pause = 0.01
        while True:
            connection = server.make()
            try:
                address = await self.servers.locate(attempt.until)
                await self.io.connect(connection, address, attempt.until)
                if address is not None and server.address != address:
                    server.address = address
                return connection
            except BaseException as error:
                await self.io.drop(connection)
                if not isinstance(error, Exception):
                    raise
                if self.library.is_full(error):
                    attempt.full, server.full_at = True, monotonic()
                    server.breaker.answered(monotonic())
                elif (
                    not connection.ratelimit_accepted or not self.library.is_lost(error) or self.library.is_late(error)
                ):
                    raise
                # What a server says as it hangs up is sometimes lost, as the client was sending.
                attempt.full = attempt.full or monotonic() - server.full_at < 1
                if attempt.until == FOREVER:
                    raise
            left = attempt.until - monotonic()
            if left <= 0:
                raise Late
            await self.io.pause(min(pause, left))
            pause = min(2 * pause, 0.1)
            idle = server.pool.swap()
            if idle is not None:
                if idle.ratelimit_address == server.address and await self.io.is_alive(idle, attempt.until):
                    return idle
                await self.io.drop(idle)

    async def _probe(self, server: Server, attempt: Attempt) -> None:
        """Asks a server that did not answer whether it does now. Returns if so.

        The call that began the probe is answered at its deadline like any other. The probe goes on: to connect may take
        longer than a deadline, and what it has connected is there for the calls that follow.
        """
        breaker = server.breaker
        if not breaker.may_probe(monotonic()):
            raise self.unanswered(str(server), breaker)
        signal = self.io.signal()
        self.io.spawn(self._probe_to_the_end(server, signal))
        await self.io.wait(signal, attempt.until)
        if breaker.is_open:
            raise self.unanswered(str(server), breaker)

    async def _probe_to_the_end(self, server: Server, signal: Signal) -> None:
        breaker, began = server.breaker, monotonic()
        until = began + Breaker.PROBE_SECONDS
        try:
            connection = await self.io.bounded(self._ping(server, until), until)
            breaker.answered(monotonic())
            if not server.pool.give_beside(connection):
                await self.io.drop(connection)
        except Exception as error:
            if self.library.is_answer(error):
                breaker.answered(monotonic())
            else:
                breaker.failed(began, monotonic(), error)
            self.servers.failed()
        finally:
            breaker.probe_ended(monotonic())
            signal.wake()

    async def _ping(self, server: Server, until: float) -> Any:
        # PING and not the call: what is sent to a server that hangs may still be carried out when it goes on.
        connection = await self._connect(server, Attempt(monotonic(), until))
        try:
            await self.io.exchange(connection, ("PING",), until)
        except self.library.reply_error:
            pass
        except BaseException as error:
            await self.io.drop(connection)
            if isinstance(error, Exception) and self.library.is_nobody_served(error):
                server.breaker.answered(monotonic())
            raise
        return connection

    async def ask_once(self, make: Callable[..., Any], words: tuple[Word, ...], until: float) -> Any:
        """The reply on a connection that is made for it alone."""

        async def work() -> Any:
            connection = make()
            try:
                await self.io.connect(connection, None, until)
                return await self.io.exchange(connection, words, until)
            finally:
                await self.io.drop(connection)

        return await self.io.bounded(work(), until)

    async def close(self) -> None:
        """Closes the idle connections."""
        for server in self.servers.every():
            for connection in server.pool.clear():
                await self.io.drop(connection)


class _Open(Exception):
    """Marks the errors of calls that were not sent."""


_OPEN_ERRORS: dict[type[Exception], type[Exception]] = {}


def _open_error(base: type[Exception]) -> type[Exception]:
    """A class of errors that is the library's ConnectionError and says that nothing was sent."""
    if base not in _OPEN_ERRORS:
        _OPEN_ERRORS[base] = type("ConnectionError", (base, _Open), {"__module__": base.__module__})
    return _OPEN_ERRORS[base]
