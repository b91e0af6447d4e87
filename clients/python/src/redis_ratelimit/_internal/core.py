"""The core of a limiter on a server: it sends calls, and decides what they return if the server does not answer.

A call takes the same steps in Core, with threads, and in AsyncCore:

    send()        the call; if there is no reply, what `unreachable` decides
    _deliver()    to the server that has the key, and to where that redirects it
    _exchange()   on a connection of the client library, unless the breaker of the server is open
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, Union, cast

from . import calls, several
from .calls import Call
from .libraries import Copy, DeadlinePassed, Unsent, find_library, kind_of
from .limits import RateLike, WindowLike
from .options import ReserveOptions, ThrottleOptions, WindowOptions
from .replies import AllReply, Busy, Id, MissingModule, Reply, read
from .servers import FULL_SECONDS, Attempt, ClusterServers, Delivery, Server, SingleServer, pack
from .several import Reserved
from .words import Key, milliseconds

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

T = TypeVar("T")

logger = logging.getLogger("redis_ratelimit")

#: The longest deadline, about 24 days. The timers of operating systems and event loops have similar bounds.
MAX_DEADLINE_SECONDS = 2_147_483
#: A call that waits is released a second time after this pause: the server may grant it after the first release, before it
#: notices that the connection is closed.
SECOND_RELEASE_SECONDS = 0.05
#: The longest that the client's own work takes, such as settling in the background, if nothing else limits it.
DEFAULT_SECONDS = 5.0

#: The client's own calls: a probe, and the question for the table of slots.
PING: Call[Any] = Call(("PING",), bool, None)
SLOTS: Call[Any] = Call(("CLUSTER", "SLOTS"), list, None)


class Fallback(Protocol):
    """What `unreachable=` accepts besides a word: an object that decides calls while Redis does not answer, such as another
    limiter.

    A method gets the arguments and options that the program passed to the limiter's method of the same name, and returns a
    Reply. In a fallback for asyncio it may be a coroutine function.

    Further methods of a limiter are used if there are any: `all`, `throttle_ro`, `window_ro`, `acquire_ro` and `all_ro`
    decide the calls of the same name, which otherwise raise the error of Redis. `apply`, `release` and `renew` settle and
    renew what `reserve` reserved, so they are needed if its replies have an `id`.
    """

    def throttle(
        self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[ThrottleOptions]
    ) -> Reply | Awaitable[Reply]:
        """Decides in place of Limiter.throttle."""

    def window(
        self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[WindowOptions]
    ) -> Reply | Awaitable[Reply]:
        """Decides in place of Limiter.window."""

    def reserve(
        self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[ReserveOptions]
    ) -> Reply | Awaitable[Reply]:
        """Decides in place of Limiter.reserve and Limiter.acquire."""


#: Seconds, a number with a unit ("250ms", "5s"), or a timedelta.
Deadline = Union[float, str, timedelta]

#: The outcome of calls while Redis does not answer, see Limiter.
Unreachable = Union[Literal["raise", "allow", "deny"], Fallback]


def _check_unreachable(unreachable: object, asynchronous: bool) -> None:
    names = "throttle", "window", "reserve"
    if isinstance(unreachable, str):
        if unreachable not in ("raise", "allow", "deny"):
            raise ValueError(f"unreachable must be 'raise', 'allow', 'deny' or a limiter, not {unreachable!r}")
    elif not all(callable(getattr(unreachable, name, None)) for name in names):
        raise TypeError(f"unreachable must be 'raise', 'allow', 'deny' or a limiter, not {kind_of(unreachable)}")
    elif not asynchronous and any(inspect.iscoroutinefunction(getattr(unreachable, name)) for name in names):
        raise TypeError(f"{kind_of(unreachable)} is a limiter for asyncio: use redis_ratelimit.asyncio.Limiter")


def deadline_seconds(deadline: Deadline) -> float:
    """Returns a deadline in seconds, after checking it."""
    seconds: object = deadline
    if isinstance(deadline, (str, timedelta)):
        seconds = milliseconds("deadline", deadline) / 1000
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(
            f"deadline must be a number of seconds, a text such as '250ms' or a timedelta, not {deadline!r}"
        )
    if not 0 < seconds <= MAX_DEADLINE_SECONDS:
        raise ValueError(f"deadline must be above 0 seconds, and at most {MAX_DEADLINE_SECONDS}, not {deadline!r}")
    return seconds


def as_unreachable(answer: Any) -> Any:
    """Returns the answer of a fallback. A reply says that Redis could not be reached."""
    if not isinstance(answer, Reply):
        return answer
    marked: Reply = replace(answer, reachable=False)
    if isinstance(answer, AllReply) and isinstance(marked, AllReply):
        # A reservation of the fallback is settled by the fallback.
        marked._keep_reservation(answer.reservation)
    return marked


async def await_if_needed(answer: Any) -> Any:
    """Returns an answer of a limiter or of the program. Awaits it if it comes from a coroutine function."""
    return await answer if inspect.isawaitable(answer) else answer


class Failure(NamedTuple):
    """The outcome of commands that got no replies."""

    error: Exception
    #: The server may have received the commands.
    is_sent: bool


class CoreBase:
    """What does not depend on threads or asyncio."""

    #: A clock that a test sets, for local limits. None: the clocks of the system.
    clock: Callable[[], float] | None = None
    #: Make the semaphores and the locks of threads or of asyncio.
    _make_places: Any
    _make_lock: Any

    def __init__(self, client: Any, *, asynchronous: bool, unreachable: Unreachable, deadline: Deadline) -> None:
        self.library = find_library(client, asynchronous=asynchronous)
        #: The core of the MemoryLimiter that decides while Redis is away; None if `unreachable` is anything else. It settles
        #: what it reserved meanwhile, even when Redis is back.
        self._memory: Any = None
        if with_same_keys := getattr(unreachable, "_with_same_keys", None):
            # A limiter for asyncio needs a fallback for asyncio, and a synchronous one a synchronous fallback.
            unreachable = with_same_keys(asynchronous)
            self._memory = unreachable._core  # type: ignore[union-attr]
        _check_unreachable(unreachable, asynchronous)
        self.unreachable: Unreachable = unreachable
        self.deadline = deadline_seconds(deadline)
        self._copy = Copy(self.library, client, self.deadline)
        settings = self._copy.settings
        self.encoding = settings.get("encoding", "utf-8"), settings.get("encoding_errors", "strict")
        #: The servers that calls are sent to. Each event loop and each forked child has its own.
        self.servers = self._new_servers()

    def _new_servers(self) -> SingleServer | ClusterServers:
        if self._copy.nodes is None:
            return SingleServer(self._copy, self._make_places)
        return ClusterServers(self.library, self._copy, self._make_places, self._make_lock(), self.encoding)

    def server_of(self, key: Key) -> object:
        """Returns the server that has a key, as far as that is known without asking; otherwise this core."""
        return self.servers.server_of(key) or self

    def renew_servers(self) -> None:
        """Forgets all connections without closing them, because they belong to another process."""
        self.servers = self._new_servers()

    def _close_idle(self, pool: Any) -> None:
        """Closes the idle connections of a pool."""
        raise NotImplementedError

    def _new_attempt(self, call: Call[Any]) -> Attempt:
        if call.block_ms == 0:
            return Attempt(None, True)
        seconds = self.deadline if call.at_most_seconds is None else min(self.deadline, call.at_most_seconds)
        return Attempt(seconds + (call.block_ms or 0) / 1000, call.block_ms is not None)

    def _packed(self, call: Call[Any]) -> list[bytes]:
        return [pack(words, self.encoding) for words in call.commands]

    def _check_slots(self, call: Call[Any], servers: ClusterServers) -> None:
        """Raises an error if the keys of a transaction have different slots."""
        if call.further_commands and len({servers.slot_of(cast(Key, words[1])) for words in call.commands}) > 1:
            raise self.library.reply_error("CROSSSLOT the keys of one step must lie in one slot")

    def _read(self, call: Call[T], deliveries: list[Delivery], attempt: Attempt) -> T:
        """Returns the meaning of the replies to a call. Raises an error reply, unless `read` gets it."""
        answers = []
        for delivery in deliveries:
            for at, reply in enumerate(delivery.replies):
                if isinstance(reply, Exception):
                    if call.is_atomic or self.library.is_not_serving(reply):
                        raise reply
                    delivery.replies[at] = self._record_error(reply, call, attempt)
            answers.append(read(call.read, call.words, delivery.replies[0] if call.is_atomic else delivery.replies))
        return answers[0] if call.merge is None else call.merge(answers)

    def is_away(self, error: Exception) -> bool:
        """Returns whether an error means that Redis cannot be reached, so that `unreachable` decides."""
        library = self.library
        return library.is_late(error) or library.is_lost(error) or library.is_not_serving(error)

    def is_forgiven(self, error: Exception) -> bool:
        """Returns whether an error of settling is hidden, because the program chose not to see that Redis is away."""
        return self.unreachable != "raise" and self.is_away(error)

    def _unavailable(self, server: Server) -> Exception:
        """Returns the error of a call that is not sent because earlier ones failed."""
        return self.library.unsent_error(f"{server.name} does not answer: {server.breaker.error}")

    def _decision(self, call: Call[T], error: Exception) -> Callable[[], Any] | None:
        """Returns what decides a call that failed with an error; None if the error is raised."""
        unreached, unreachable = call.unreached, self.unreachable
        if unreached is None or unreachable == "raise" or not self.is_away(error):
            return None
        logger.info("%s is decided without Redis: %s", call.words[0], error)
        if isinstance(unreachable, str):
            return lambda: unreached(unreachable == "allow")
        decide = getattr(unreachable, call.method, None)
        return decide and (lambda: decide(*call.args, **call.options))

    def _held_in_memory(self, call: Call[Any]) -> list[Id]:
        """Returns the ids that a call settles and that the MemoryLimiter holds, because it made these reservations while
        Redis was away."""
        memory = self._memory
        return [id for id in call.settles if memory.holds(call.key, id)] if memory else []

    def _has_lost(self, own: Sequence[Reserved], error: BaseException, attempt: Attempt) -> bool:
        """Returns whether a call that failed may have reserved something with an id that the program does not know."""
        library = self.library
        return bool(own) and attempt.is_sent and not (library.is_answer(error) or library.is_not_serving(error))

    def _may_be_executed(self, call: Call[Any], error: Exception, attempt: Attempt) -> bool:
        """Returns whether a server may have executed a call that failed."""
        return attempt.is_sent and not (call.is_atomic and self.library.is_not_serving(error))

    def _make_failure(self, error: Exception, call: Call[Any], attempt: Attempt) -> Failure:
        error = self._record_error(error, call, attempt)
        return Failure(error, attempt.is_sent)

    def _record_error(self, error: Exception, call: Call[Any], attempt: Attempt) -> Exception:
        """Updates the breaker after an error. Returns the error that the call raises unless `unreachable` decides."""
        library, server, now = self.library, attempt.server, monotonic()
        if type(error) is DeadlinePassed:
            name = server.name if server else "the cluster"
            error = library.timeout_error(f"{name} did not answer within {now - attempt.began:.3f} s")
        if server is None or isinstance(error, Unsent):
            return error
        has_hung_up = not attempt.is_sent and library.has_hung_up(error)
        if library.is_full(error):
            server.breaker.record_reply(now)
        if library.is_full(error) or (has_hung_up and now - server.breaker.answered_at < FULL_SECONDS):
            return Busy(f"{server.name} has no connection to give: max number of clients reached")
        # A server may have answered while the call waited (BLOCK), and hang now.
        since = max(attempt.began, now - self.deadline) if library.is_late(error) else attempt.began
        if library.is_late(error) and server.breaker.answered_at >= since:
            return Busy(f"{server.name} answers, but did not answer this call within {now - attempt.began:.3f} s")
        if read_only := library.read_only(error):
            # The master has become a replica. New connections find the new one.
            error = read_only
            self._leave(server, attempt)
        if library.is_late(error) or library.is_lost(error):
            self.servers.record_failure()
            if server.breaker.record_failure(since, now, error):
                # The idle connections may be lost as well.
                self._leave(server, attempt)
        elif library.is_not_serving(error) or library.is_answer(error):
            server.breaker.record_reply(now)
        return self._clearer_error(error, call, server)

    def _leave(self, server: Server, attempt: Attempt) -> None:
        """Closes the connections to a server, unless another call has already done so."""
        self.servers.record_failure()
        if attempt.pool in (None, server.pool):
            self._close_idle(server.replace_pool())

    def _clearer_error(self, error: Exception, call: Call[Any], server: Server) -> Exception:
        """Returns the error to raise for an error reply: a clearer one for an unknown command or policy, and
        for an id that is held."""
        text, code = str(error), self.library.code(error)
        # Redis has no code for this error.
        if code == "ERR" and text.lower().startswith("unknown command"):
            return MissingModule(
                f"{server.name} has no redis-ratelimit, or one that does not know this command: {text}"
            )
        # With the setting ratelimit.policies-only, NOPOLICY also means that the call names no policy.
        words = [word for words in call.commands for word in words]
        if code == "NOPOLICY" and any(isinstance(word, (str, bytes)) and word[:1] in ("@", b"@") for word in words):
            return self.library.unknown_policy(text)
        return self.library.duplicate(text) if code == "DUPLICATE" else error


class Core(CoreBase):
    """The core of a synchronous limiter. The deadline is the longest that each step of a call takes: waiting for a free
    connection, connecting, and the reply."""

    _make_places = threading.Semaphore
    _make_lock = threading.Lock

    def send(self, call: Call[T]) -> T:
        """Sends a call and returns its reply, or what `unreachable` decides."""
        call.check_key()
        if held := self._held_in_memory(call):
            return cast(T, self._settle_in_memory(call, held))
        # What the server reserves for a call whose reply is lost needs an id that the client knows.
        call, own = several.with_own_ids(call)
        attempt = self._new_attempt(call)
        try:
            return self._read(call, self._deliver(call, attempt), attempt)
        except BaseException as error:
            # Before the release, whose reply says that the server answers.
            raised = self._record_error(error, call, attempt) if isinstance(error, Exception) else error
            if self._has_lost(own, error, attempt):
                # A program that chose an id can try again with it.
                with suppress(RuntimeError):  # No thread can be started. Then the leases end by themselves.
                    twice = call.block_ms is not None
                    threading.Thread(target=self._release, args=(own, twice), daemon=True).start()
            if not isinstance(raised, Exception):
                raise
            # Without that the call cannot have been counted. LiteLLM's callback asks for it.
            raised.was_sent = self._may_be_executed(call, raised, attempt)  # type: ignore[attr-defined]
            decide = self._decision(call, raised)
            if decide is None:
                raise raised from (None if raised is error else error)
        answer: T = as_unreachable(decide())
        return answer

    def try_to_send(self, call: Call[T]) -> T | Failure:
        """Sends a call that has no fallback. Returns its reply, or why there is none."""
        attempt = self._new_attempt(call)
        try:
            return self._read(call, self._deliver(call, attempt), attempt)
        except Exception as error:
            return self._make_failure(error, call, attempt)

    def _settle_in_memory(self, call: Call[Any], held: list[Id]) -> Any:
        """Settles a reservation where it was made. Only RL.RELEASE has several ids."""
        others = [id for id in call.settles if id not in held]
        if not others:
            return self._memory.send(call)
        key: Any = call.key
        return self._memory.send(calls.release(key, *held)) + self.send(calls.release(key, *others))

    def _release(self, reserved: Sequence[Reserved], twice: bool) -> None:
        call = several.release_all(reserved)
        call.at_most_seconds = DEFAULT_SECONDS
        self.try_to_send(call)
        if twice:
            time.sleep(SECOND_RELEASE_SECONDS)
            self.try_to_send(call)

    def _deliver(self, call: Call[Any], attempt: Attempt) -> list[Delivery]:
        """Sends a call to the server that has its key; without a key, to each node of a cluster."""
        commands = self._packed(call)
        deliveries = [Delivery(commands, server, call.is_atomic) for server in self._find(call)]
        for delivery in deliveries:
            while delivery.left:
                replies = self._exchange(delivery.server, delivery.commands(), attempt)
                delivery.receive(iter(replies), self.servers, self.library)
        return deliveries

    def _find(self, call: Call[Any]) -> list[Server]:
        """Returns the servers to send a call to."""
        servers = self.servers
        if isinstance(servers, SingleServer):
            return servers.known()
        if servers.must_be_read():
            if not servers.lock.acquire(timeout=self.deadline):
                raise DeadlinePassed
            try:
                if servers.must_be_read():
                    self._read_table(servers)
            finally:
                servers.lock.release()
        if call.key is None:
            return servers.serving_any()
        self._check_slots(call, servers)
        return [servers.serving(call.key)]

    def _read_table(self, servers: ClusterServers) -> None:
        for server in servers.to_ask(self.deadline):
            attempt = Attempt(self.deadline, False)
            try:
                (table,) = self._exchange(server, self._packed(SLOTS), attempt)
                servers.read_table(table, server)
                break
            except Exception as error:
                servers.record_no_table(self._record_error(error, SLOTS, attempt))

    def _exchange(self, server: Server, commands: list[bytes], attempt: Attempt) -> list[Any]:
        """Sends commands to a server. Returns their replies, which may be error replies."""
        attempt.server = server
        if server.breaker.is_open:
            self._probe(server)
        if attempt.may_wait:
            server.count(1)
            try:
                return self._use_connection(server, commands, attempt)
            finally:
                server.count(-1)
        if not server.places.acquire(timeout=self.deadline):
            raise DeadlinePassed
        try:
            if server.breaker.is_open:
                raise self._unavailable(server)
            return self._use_connection(server, commands, attempt)
        finally:
            server.places.release()

    def _probe(self, server: Server) -> None:
        """Asks a server whose breaker is open whether it answers again. Raises an error if it does not."""
        breaker = server.breaker
        if breaker.may_probe(monotonic()):
            # PING, not the call itself: a server that hangs may still execute it when it continues.
            attempt = Attempt(self.deadline, False)
            attempt.server = server
            try:
                self._use_connection(server, self._packed(PING), attempt)
            except Exception as error:
                self._record_error(error, PING, attempt)
            finally:
                breaker.end_probe(monotonic())
        if breaker.is_open:
            raise self._unavailable(server)

    def _use_connection(self, server: Server, commands: list[bytes], attempt: Attempt) -> list[Any]:
        library = self.library
        attempt.pool = pool = server.pool
        connection = pool.get_connection(*library.to_get_connection)
        replies: list[Any] = []
        try:
            attempt.is_sent = True
            connection.send_packed_command([b"".join(commands)])
            # A connection reads for as long as the deadline.
            if attempt.seconds != self.deadline and not connection.can_read(attempt.seconds):
                raise DeadlinePassed
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except library.reply_error as error:
                    replies.append(error)
            server.breaker.record_reply(monotonic())
            return replies
        finally:
            if len(replies) < len(commands) or not server.keeps(attempt):
                connection.disconnect()
            pool.release(connection)

    def _close_idle(self, pool: Any) -> None:
        pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Closes the idle connections."""
        for server in self.servers.known():
            self._close_idle(server.pool)
