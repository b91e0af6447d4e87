"""The core of both limiters: it sends calls, and decides what they return if no server answers (see also io.py)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, Union, cast, runtime_checkable

from . import calls, several
from .calls import Call
from .connecting import Attempt, Borrowed, Connector
from .io import DEFAULT_SECONDS, FOREVER, IOType, await_if_needed, pack
from .libraries import DeadlinePassed, Unsent, find_library, kind_of
from .options import ReserveOptions, ThrottleOptions, WindowOptions
from .parameters import Key, RateLike, WindowLike, Word, length_ms
from .replies import AllReply, Busy, Id, MissingModule, Reply, read
from .servers import ClusterServers, Route, Server, find_pool, make_servers
from .several import Reserved

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

T = TypeVar("T")

#: The names of the methods that settle a reservation.
_SETTLING = "apply", "release", "renew"
#: The most redirections of a call: a cluster whose nodes disagree would redirect it forever.
REDIRECTS = 5
#: The longest deadline, about 24 days. The timers of operating systems and event loops have similar bounds.
MAX_DEADLINE_SECONDS = 2_147_483
#: A call that waits is released a second time after this pause: the server may grant it after the first release, before it
#: notices that the connection is closed.
SECOND_RELEASE_SECONDS = 0.05

ASKING = b"*1\r\n$6\r\nASKING\r\n"


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
        ...

    def window(
        self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[WindowOptions]
    ) -> Reply | Awaitable[Reply]:
        """Decides in place of Limiter.window."""
        ...

    def reserve(
        self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[ReserveOptions]
    ) -> Reply | Awaitable[Reply]:
        """Decides in place of Limiter.reserve and Limiter.acquire."""
        ...


class MemoryFallbackCore(Protocol):
    """The core of a MemoryLimiter."""

    def holds(self, key: Key, id: Id) -> bool:
        """Returns whether a reservation is held in memory."""
        ...

    async def send(self, call: Call[T]) -> T: ...


@runtime_checkable
class MemoryFallback(Fallback, Protocol):
    """A MemoryLimiter. It settles what it reserved while Redis was away, even when Redis is back."""

    @property
    def _core(self) -> MemoryFallbackCore: ...

    def _with_same_keys(self, asynchronous: bool) -> MemoryFallback:
        """Returns a MemoryLimiter on the same keys, for asyncio or a synchronous one."""
        ...


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


def _deadline_seconds(deadline: Deadline) -> float:
    """Returns a deadline in seconds, after checking it."""
    seconds: object = deadline
    if isinstance(deadline, timedelta):
        seconds = deadline.total_seconds()
    elif isinstance(deadline, str) and (ms := length_ms(deadline)) is not None:
        seconds = ms / 1000
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


class Failure(NamedTuple):
    """The outcome of commands that got no replies."""

    error: Exception
    #: The server may have received the commands.
    is_sent: bool
    #: Redis is away or busy, so a later try may succeed.
    is_temporary: bool = False


class Core(Connector[IOType]):
    """The core of a limiter on a server: everything except the limiter's methods."""

    #: A clock that a test sets, for local limits. None: the clocks of the system.
    clock: Callable[[], float] | None = None

    def __init__(
        self, io: IOType, client: Any, *, asynchronous: bool, unreachable: Unreachable, deadline: Deadline
    ) -> None:
        self.library = find_library(client, asynchronous=asynchronous)
        self.io = io
        #: The core of the MemoryLimiter that decides while Redis is away; None if `unreachable` is anything else.
        self._memory: MemoryFallbackCore | None = None
        if isinstance(unreachable, MemoryFallback):
            # A limiter for asyncio needs a fallback for asyncio, and a synchronous one a synchronous fallback.
            unreachable = unreachable._with_same_keys(asynchronous)
            self._memory = unreachable._core
        _check_unreachable(unreachable, asynchronous)
        self.unreachable: Unreachable = unreachable
        self.deadline = _deadline_seconds(deadline)
        settings = find_pool(self.library, client).connection_kwargs
        self.encoding = settings.get("encoding", "utf-8"), settings.get("encoding_errors", "strict")
        self._client = client
        self.servers = make_servers(self, client)

    def server_of(self, key: Key) -> object:
        """Returns the server that has a key, as far as that is known without asking; otherwise this core."""
        return self.servers.server_of(key) or self

    def enter_loop(self) -> None:
        """Goes over to the connections of the running event loop. Threads share all connections."""

    def renew_servers(self) -> None:
        """Forgets all connections without closing them, because they belong to another process."""
        self.servers = make_servers(self, self._client)

    async def send(
        self,
        call: Call[T],
        name: str = "",
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> T:
        """Sends a call and returns its reply. While Redis is away, a fallback's method `name` is called with `args` and
        `kwargs`. Without a name, as for settling several reservations, there is no fallback."""
        self.enter_loop()
        call.check_key()
        memory = self._memory
        if memory is not None and call.key is not None and name in _SETTLING:
            # A reservation is settled where it was made.
            ids = cast("tuple[Id, ...]", call.words[2:] if name == "release" else call.words[2:3])
            in_memory = [id for id in ids if memory.holds(call.key, id)]
            if in_memory:
                others = [id for id in ids if id not in in_memory]
                return await self._settle_in_memory(memory, call, name, in_memory, others)
        # The call may be given up. What the server reserves for it then needs an id that the client knows.
        call, own = several.with_own_ids(call)
        attempt = self._new_attempt(call)
        try:
            return await self.io.bounded(self._send_call(call, attempt), attempt.until)
        except Exception as error:
            raised = self._record_error(error, call, attempt)
            if not (self.library.is_answer(error) or self.library.is_not_serving(error)):
                # A program that chose an id can try again with it.
                self._release_lost(own, call, attempt)
            decide = self._fallback_of(call, name, raised)
            # Without that the call cannot have been counted. LiteLLM's callback asks for it.
            raised.was_sent = attempt.is_sent  # type: ignore[attr-defined]
            if decide is None:
                raise raised from (None if raised is error else error)
        except BaseException:
            # The program gave the call up. What has an id that the program chose may be held by another worker.
            self._release_lost(own, call, attempt)
            raise
        return cast(T, as_unreachable(await await_if_needed(decide(*args, **kwargs))))

    def _fallback_of(self, call: Call[Any], name: str, error: Exception) -> Callable[..., Any] | None:
        """Returns what decides a call that failed with an error; None if the error is raised."""
        unreached, unreachable = call.unreached, self.unreachable
        if unreached is None or unreachable == "raise" or not self.is_away(error):
            return None
        if isinstance(unreachable, str):
            return lambda *_, **__: unreached(unreachable == "allow")
        return getattr(unreachable, name, None)

    def _release_lost(self, reserved: Sequence[Reserved], call: Call[Any], attempt: Attempt) -> None:
        """Starts to release what the server may have reserved for a call that got no reply. If that fails, the leases end by
        themselves."""
        if not reserved or not attempt.is_sent:
            return
        work = self._release(reserved, twice=call.block_ms is not None)
        try:
            self.start_settling(work)
        except RuntimeError:
            # No thread can be started, or the event loop has ended.
            work.close()

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits a settlement, which goes on even if the caller is cancelled. Threads cannot be cancelled."""
        return await work

    def start_settling(self, work: Coroutine[Any, Any, Any]) -> object:
        """Starts a settlement in the background."""
        return self.io.spawn(work, "settlement")

    async def _release(self, reserved: Sequence[Reserved], *, twice: bool) -> None:
        call = several.release_all(reserved)
        call.at_most_seconds = DEFAULT_SECONDS
        await self.try_to_send(call)
        if twice:
            await self.io.pause(SECOND_RELEASE_SECONDS)
            await self.try_to_send(call)

    def _new_attempt(self, call: Call[Any]) -> Attempt:
        began = monotonic()
        if call.block_ms == 0:
            return Attempt(began, FOREVER)
        seconds = self.deadline if call.at_most_seconds is None else min(self.deadline, call.at_most_seconds)
        return Attempt(began, began + seconds + (call.block_ms or 0) / 1000)

    async def _settle_in_memory(
        self, memory: MemoryFallbackCore, call: Call[T], name: str, in_memory: list[Id], others: list[Id]
    ) -> T:
        """Settles the reservations that the MemoryLimiter made while Redis was away. Sends the server the other ids."""
        if not others:
            return await memory.send(call)
        key = cast(Key, call.key)
        released = await memory.send(calls.release(key, *in_memory))
        return cast(T, released + await self.send(calls.release(key, *others), name))

    async def try_to_send(self, call: Call[T]) -> T | Failure:
        """Sends a call that has no fallback. Returns its reply, or why there is none."""
        attempt = self._new_attempt(call)
        try:
            return await self.io.bounded(self._send_call(call, attempt), attempt.until)
        except Exception as error:
            return self._make_failure(error, call, attempt)

    async def send_all(self, key: Key, commands: list[tuple[Word, ...]]) -> list[Any] | Failure:
        """Sends commands on one key together, in the background.

        Returns their replies, which may be errors, or why there are none.
        """
        self.enter_loop()
        call: Call[Any] = Call(commands[0], list, key, further_commands=tuple(commands[1:]))
        attempt = self._new_attempt(call)
        try:
            replies = await self.io.bounded(self._send_commands(call, attempt), attempt.until)
        except Exception as error:
            return self._make_failure(error, call, attempt)
        return [
            self._clearer_error(each, call, attempt.server) if isinstance(each, Exception) else each for each in replies
        ]

    def _make_failure(self, error: Exception, call: Call[Any], attempt: Attempt) -> Failure:
        error = self._record_error(error, call, attempt)
        return Failure(error, attempt.is_sent, is_temporary=isinstance(error, Busy) or self.is_away(error))

    def is_away(self, error: Exception) -> bool:
        """Returns whether an error means that Redis cannot be reached, so that `unreachable` decides."""
        library = self.library
        return library.is_late(error) or library.is_lost(error) or library.is_not_serving(error)

    def _record_error(self, error: Exception, call: Call[Any], attempt: Attempt) -> Exception:
        """Updates the breaker after an error. Returns the error that the call raises unless `unreachable` decides."""
        library, server = self.library, attempt.server
        busy = self._busy_error(error, attempt)
        if busy is not None:
            return busy
        if library.is_late(error) or library.is_lost(error):
            if type(error) is DeadlinePassed:
                waited = f"{monotonic() - attempt.began:.3f} s"
                error = library.timeout_error(f"{server or 'the cluster'} did not answer within {waited}")
            if server is not None and not isinstance(error, Unsent):
                self._count_failure(error, server, attempt)
        else:
            is_down = library.is_not_serving(error)
            if server is not None and (is_down or library.is_answer(error)):
                server.breaker.record_reply(monotonic())
            if not is_down:
                return self._clearer_error(error, call, server)
        return error

    def _busy_error(self, error: Exception, attempt: Attempt) -> Busy | None:
        """Returns Busy if the server is up but did not answer this call in time; otherwise None."""
        library, server = self.library, attempt.server
        is_late, is_full = library.is_late(error), library.is_full(error)
        if is_full or (is_late and attempt.is_full):
            return Busy(f"{server} has no connection to give: max number of clients reached")
        if is_late and server is not None and server.breaker.answered_at >= attempt.began:
            return Busy(f"{server} answers, but did not answer this call within {monotonic() - attempt.began:.3f} s")
        return None

    def _count_failure(self, error: Exception, server: Server, attempt: Attempt) -> None:
        self.servers.record_failure()
        if server.breaker.record_failure(attempt.began, monotonic(), error):
            self.give_up(server)

    def is_forgiven(self, error: Exception) -> bool:
        """Returns whether an error of settling is hidden, because the program chose not to see that Redis is away."""
        return self.unreachable != "raise" and self.is_away(error)

    def _clearer_error(self, error: Exception, call: Call[Any], server: Server | None) -> Exception:
        """Returns the error to raise for an error reply: a clearer one for an unknown command or policy, and
        for an id that is held."""
        text, code = str(error), self.library.code(error)
        # Redis has no code for this error.
        if code == "ERR" and text.lower().startswith("unknown command"):
            return MissingModule(f"{server} has no redis-ratelimit, or one that does not know this command: {text}")
        # With the setting ratelimit.policies-only, NOPOLICY also means that the call names no policy.
        words = [word for words in (call.words, *call.further_commands) for word in words]
        if code == "NOPOLICY" and any(isinstance(word, (str, bytes)) and word[:1] in ("@", b"@") for word in words):
            return self.library.unknown_policy(text)
        return self.library.duplicate(text) if code == "DUPLICATE" else error

    async def _send_call(self, call: Call[T], attempt: Attempt) -> T:
        """Sends a call to its server, follows redirections, and returns the reply."""
        servers = self.servers
        if isinstance(servers, ClusterServers):
            if call.key is None:
                return await self._send_to_each_node(servers, call, attempt)
            if call.further_commands and not servers.is_in_one_slot(call):
                raise self.library.reply_error("CROSSSLOT the keys of one step must lie in one slot")
        route = Route(servers.known_server(call) or await servers.find(call, attempt))
        redirects = 0
        while True:
            try:
                return read(call.read, call.words, await self._send_on_route(route, call, attempt))
            except Exception as error:
                elsewhere = servers.route_after(error, route.server)
                if elsewhere is None or redirects == REDIRECTS:
                    raise
            route = elsewhere
            redirects += 1

    async def _send_to_each_node(self, servers: ClusterServers, call: Call[T], attempt: Attempt) -> T:
        """Sends a call to all nodes of a cluster, and returns their merged replies."""
        nodes = await servers.serving_nodes(attempt)
        answers = [read(call.read, call.words, await self._send_on_route(Route(node), call, attempt)) for node in nodes]
        assert call.merge is not None
        return call.merge(answers)

    async def _send_commands(self, call: Call[Any], attempt: Attempt) -> list[Any]:
        """Returns the replies to the commands of a call. Commands that were redirected, and only those, are sent again."""
        servers = self.servers
        commands = [call.words, *call.further_commands]
        replies: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        route = Route(servers.known_server(call) or await servers.find(call, attempt))
        for redirects in range(REDIRECTS + 1):
            elsewhere: Route | None = None
            again = []
            try:
                answers = await self._send_commands_on_route(route, call, attempt, [commands[at] for at in left])
            except Exception as error:
                elsewhere = servers.route_after(error, route.server)
                if elsewhere is None or redirects == REDIRECTS:
                    raise
                route = elsewhere
                continue
            for at, reply in zip(left, answers, strict=True):
                replies[at] = reply
                if not isinstance(reply, Exception):
                    continue
                target = servers.route_after(reply, route.server)
                if target is not None and redirects < REDIRECTS:
                    elsewhere = target
                    again.append(at)
                elif not self._is_about_command(reply):
                    raise reply
            if elsewhere is None:
                break
            left, route = again, elsewhere
        return replies

    def _is_about_command(self, reply: Exception) -> bool:
        """Returns whether an error is about one command and not about the state of the server."""
        return isinstance(reply, self.library.reply_error) and not self.library.is_not_serving(reply)

    def _pack(self, commands: Sequence[tuple[Word, ...]]) -> list[bytes]:
        return [pack(words, self.encoding) for words in commands]

    async def _send_on_route(self, route: Route, call: Call[Any], attempt: Attempt) -> Any:
        """Sends a call to a server, and returns its reply. Several commands are a transaction, whose reply is a list."""
        attempt.server = route.server
        is_transaction = bool(call.further_commands)
        commands = [call.words, *call.further_commands]
        packed = self._pack([("MULTI",), *commands, ("EXEC",)] if is_transaction else commands)
        async with Borrowed(self, route.server, call, attempt) as connection:
            if route.asking:
                await self.io.exchange(connection, ASKING, attempt.until)
            if not is_transaction:
                return await self.io.exchange(connection, packed[0], attempt.until)
            replies = await self.io.exchange_all(connection, packed, attempt.until, self.library.reply_error)
            # If a command was refused before EXEC, its error says why nothing was executed. The error of EXEC does not.
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies[-1]

    async def _send_commands_on_route(
        self, route: Route, call: Call[Any], attempt: Attempt, commands: list[tuple[Word, ...]]
    ) -> list[Any]:
        """Sends some commands of a call to a server, and returns their replies, which may be errors."""
        attempt.server = route.server
        sent = self._pack(commands)
        if route.asking:
            # It is valid for one command.
            sent = [each for command in sent for each in (ASKING, command)]
        borrowed = Borrowed(self, route.server, call, attempt)
        async with borrowed as connection:
            replies = await self.io.exchange_all(connection, sent, attempt.until, self.library.reply_error)
            for reply in replies:
                if isinstance(reply, Exception):
                    borrowed.leave_if_read_only(reply)
        return replies[1::2] if route.asking else replies
