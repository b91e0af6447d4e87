"""The connections of a limiter: how they are made, lent to calls, looked after, and probed when a server does not answer."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Generic

from .breaker import Breaker
from .calls import Call
from .io import DEFAULT_SECONDS, FOREVER, Encoding, IOType, pack
from .libraries import Connection, DeadlinePassed, Library
from .parameters import Word
from .pool import Idle, Lender, MayConnect, Signal, Turn
from .servers import Server, Servers

#: The pauses between two tries to connect to a server that hangs up: each is twice as long as the one before.
MIN_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.1
#: The last of these tries begins this long before the deadline, so that it ends in time.
LAST_TRY_SECONDS = 0.01
#: If a server that hangs up said within this time that it accepts no more connections, that is taken to be the reason.
FULL_SECONDS = 1.0

PING = b"*1\r\n$4\r\nPING\r\n"


class Attempt:
    """The state of a call while it is under way."""

    __slots__ = ("began", "is_full", "is_sent", "server", "until")

    def __init__(self, began: float, until: float) -> None:
        self.began = began
        self.until = until
        self.server: Server | None = None
        #: True if the server said that it accepts no more connections.
        self.is_full = False
        #: True if the server may have received the call.
        self.is_sent = False


class Connector(Generic[IOType]):
    """The part of a limiter's core that manages connections."""

    io: IOType
    library: Library
    #: The servers that calls are sent to. Each event loop and each forked child has its own.
    servers: Servers
    #: The longest that a call takes, in seconds.
    deadline: float
    #: The encoding of the client.
    encoding: Encoding

    def connection_factory(self, connection_class: type[Any], settings: dict[str, Any]) -> Callable[..., Any]:
        """Returns a function that makes connections for a limiter, with the class and the settings of the client's
        connections.

        The connections never retry by themselves: a call whose reply was lost may have been counted.
        """
        wrapped_class = self.io.connection_class(connection_class)
        overrides = {"retry": self.library.no_retry, "retry_on_timeout": False, **self.io.settings}
        deadline = self.deadline
        connect_seconds = settings.get("socket_connect_timeout") or DEFAULT_SECONDS

        def make(**address: Any) -> Any:
            connection = wrapped_class(**{**settings, **overrides, **address})
            connection.ratelimit_deadline = deadline
            connection.ratelimit_connect_seconds = connect_seconds
            return connection

        return make

    async def borrow(self, server: Server, lender: Lender, attempt: Attempt) -> Any:
        """Returns a connection to a server whose breaker is closed. The caller gives it back to the lender."""
        if server.breaker.is_open:
            await self._probe(server, attempt)
        if attempt.until < FOREVER:
            return await self._borrow_from(server, lender, attempt)
        # A call with BLOCK 0 may wait forever for its grant, but not for a connection.
        until = monotonic() + self.deadline
        return await self.io.bounded(self._borrow_from(server, lender, Attempt(attempt.began, until)), until)

    async def _borrow_from(self, server: Server, lender: Lender, attempt: Attempt) -> Any:
        """Borrows from the lender until it gets a usable connection."""
        while True:
            lent = lender.take(self.io.signal)
            if isinstance(lent, Turn):
                lent = await self._wait_in_line(server, lent, attempt)
            connection = None
            try:
                if isinstance(lent, Idle):
                    connection = await self._check_idle(server, lent.connection, attempt)
                else:
                    connection = await self._make_connection(server, lender, attempt)
            finally:
                if connection is None:
                    lender.give(None)
            if connection is not None:
                return connection

    async def _make_connection(self, server: Server, lender: Lender, attempt: Attempt) -> Any:
        """Returns a new connection. Tells the lender that connecting has ended."""
        try:
            return await self._connect(server, attempt)
        finally:
            lender.connected()

    async def _check_idle(self, server: Server, connection: Connection, attempt: Attempt) -> Connection | None:
        """Returns an idle connection if it is open and its address is still that of the server. Otherwise closes it."""
        is_usable = False
        try:
            is_usable = connection.ratelimit_address == server.address and await self.io.is_alive(
                connection, attempt.until
            )
        finally:
            if not is_usable:
                await self.io.drop(connection)
        return connection if is_usable else None

    async def _wait_in_line(self, server: Server, turn: Turn[Any], attempt: Attempt) -> Idle | MayConnect:
        """Waits for a turn in the line. Returns what the turn brings."""
        try:
            await self.io.wait(turn.signal, attempt.until)
        except BaseException:
            server.pool.leave(turn)
            raise
        lent = turn.lent
        if isinstance(lent, (Idle, MayConnect)):
            return lent
        if server.breaker.answered_at >= attempt.began:
            raise DeadlinePassed
        raise self.unavailable_error(str(server), server.breaker)

    async def _connect(self, server: Server, attempt: Attempt) -> Any:
        """Returns a new connection, or one that another call has given back in the meantime.

        If the server accepts a connection and closes it at once, tries again while there is time.
        """
        if _is_full(server) and attempt.until - monotonic() <= LAST_TRY_SECONDS:
            attempt.is_full = True
            raise DeadlinePassed
        pause = MIN_PAUSE_SECONDS
        while True:
            began = monotonic()
            if began >= attempt.until:
                raise DeadlinePassed
            connection = await self._try_to_connect(server, attempt)
            if connection is not None:
                return connection
            now = monotonic()
            # The next try may take as long as this one did.
            left = attempt.until - now - max(LAST_TRY_SECONDS, now - began)
            if left <= 0:
                raise DeadlinePassed
            await self.io.pause(min(pause, left))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
            idle = server.pool.pop_idle()
            if idle is not None:
                connection = await self._check_idle(server, idle, attempt)
                if connection is not None:
                    return connection

    async def _try_to_connect(self, server: Server, attempt: Attempt) -> Connection | None:
        """Returns a new connection; None if the server closed it at once and the call has a deadline to try again until."""
        connection = server.make()
        try:
            address = await self.servers.locate(attempt.until)
            if attempt.until < FOREVER:
                await self.io.connect(connection, address, attempt.until)
            else:
                until = monotonic() + connection.ratelimit_connect_seconds
                await self.io.bounded(self.io.connect(connection, address, until), until)
        except BaseException as error:
            await self.io.drop(connection)
            has_hung_up = isinstance(error, Exception) and self._has_hung_up(server, connection, error, attempt)
            if has_hung_up and attempt.until != FOREVER:
                return None
            raise
        if address is not None:
            server.address = address
        return connection

    def _has_hung_up(self, server: Server, connection: Connection, error: Exception, attempt: Attempt) -> bool:
        """Returns whether the server accepted a connection only to close it, and records whether that is because it has too
        many."""
        library, now = self.library, monotonic()
        if library.is_full(error):
            attempt.is_full, server.full_at = True, now
            server.breaker.record_reply(now)
            return True
        if not connection.ratelimit_accepted or not library.is_lost(error) or library.is_late(error):
            return False
        # The client may not see the error with which a server closes a connection, because it was sending at that moment.
        attempt.is_full = attempt.is_full or _is_full(server)
        return True

    async def _probe(self, server: Server, attempt: Attempt) -> None:
        """Asks a server whose breaker is open whether it answers again. Raises an error if it does not.

        The call that started the probe ends at its deadline like any other. The probe continues: connecting may take longer
        than a deadline, and later calls can use its connection.
        """
        breaker = server.breaker
        if not breaker.may_probe(monotonic()):
            raise self.unavailable_error(str(server), breaker)
        signal = self.io.signal()
        work = self._probe_to_the_end(server, signal)
        try:
            self.io.spawn(work, "probe")
        except Exception:
            # No thread can be started. A probe that never ends would leave the breaker open.
            work.close()
            breaker.end_probe(monotonic())
            raise
        await self.io.wait(signal, attempt.until)
        if breaker.is_open:
            raise self.unavailable_error(str(server), breaker)

    async def _probe_to_the_end(self, server: Server, signal: Signal) -> None:
        breaker, began = server.breaker, monotonic()
        until = began + Breaker.PROBE_SECONDS
        try:
            connection = await self.io.bounded(self._ping(server, until), until)
            breaker.record_reply(monotonic())
            if not server.pool.give_surplus(connection):
                await self.io.drop(connection)
        except Exception as error:
            if self.library.is_answer(error):
                breaker.record_reply(monotonic())
            else:
                breaker.record_failure(began, monotonic(), error)
            self.servers.record_failure()
        finally:
            breaker.end_probe(monotonic())
            signal.wake()

    async def _ping(self, server: Server, until: float) -> Any:
        # PING, not the call itself: a server that hangs may still execute it when it continues.
        connection = await self._connect(server, Attempt(monotonic(), until))
        try:
            await self.io.exchange(connection, PING, until)
        except self.library.reply_error:
            pass
        except BaseException as error:
            await self.io.drop(connection)
            if isinstance(error, Exception) and self.library.is_not_serving(error):
                server.breaker.record_reply(monotonic())
            raise
        return connection

    async def ask_once(self, make: Callable[..., Any], words: tuple[Word, ...], until: float) -> Any:
        """Sends one command on a connection of its own. Returns the reply. This takes no longer than the limiter's deadline,
        even for a call that waits without limit."""
        until = min(until, monotonic() + self.deadline)

        command = pack(words, self.encoding)

        async def work() -> Any:
            connection = make()
            try:
                await self.io.connect(connection, None, until)
                return await self.io.exchange(connection, command, until)
            finally:
                await self.io.drop(connection)

        return await self.io.bounded(work(), until)

    def unavailable_error(self, name: str, breaker: Breaker) -> Exception:
        """Returns the error of a call that is not sent because earlier ones failed."""
        return self.library.unsent_error(f"{name} does not answer: {breaker.error}")

    def give_up(self, server: Server) -> None:
        """Closes the idle connections and dismisses the waiting calls, because the breaker has opened."""
        server.pool.dismiss()
        for connection in server.pool.clear():
            self.io.abandon(connection)

    def leave(self, server: Server) -> None:
        """Closes the connections to a server that has become a replica, so that the next call finds the new master."""
        server.generation += 1
        self.servers.record_failure()
        for connection in server.pool.clear():
            self.io.abandon(connection)

    async def close(self) -> None:
        """Closes the idle connections."""
        for server in self.servers.known_servers():
            for connection in server.pool.clear():
                await self.io.drop(connection)


def _is_full(server: Server) -> bool:
    """Returns whether the server has recently refused a connection because it has too many."""
    return monotonic() - server.full_at < FULL_SECONDS


class Borrowed:
    """A connection for one call, as a context manager: `async with Borrowed(..) as connection`."""

    __slots__ = ("_attempt", "_connection", "_connector", "_generation", "_lender", "_server")

    def __init__(self, connector: Connector[Any], server: Server, call: Call[Any], attempt: Attempt) -> None:
        self._connector = connector
        self._server = server
        self._attempt = attempt
        self._generation = server.generation
        self._lender: Lender = server.pool if call.block_ms is None else server.pool.unlimited

    async def __aenter__(self) -> Any:
        self._connection = await self._connector.borrow(self._server, self._lender, self._attempt)
        self._attempt.is_sent = True
        return self._connection

    def leave_if_read_only(self, error: BaseException) -> None:
        """Leaves the server if the error says that it is now a replica, unless another call has already done so."""
        if self._is_current() and self._connector.library.is_read_only(error):
            self._connector.leave(self._server)

    def _is_current(self) -> bool:
        return self._generation == self._server.generation

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        kept = None
        if error is None or isinstance(error, self._connector.library.reply_error):
            self._server.breaker.record_reply(monotonic())
            kept = self._connection
        if error is not None:
            self.leave_if_read_only(error)
        if not self._is_current():
            kept = None
        if not self._lender.give(kept):
            await self._connector.io.drop(self._connection)
