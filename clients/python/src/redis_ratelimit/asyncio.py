"""The limiter for asyncio: the twin of redis_ratelimit, with the same names."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from time import monotonic
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from . import calls
from .calls import Call, Key
from .core import Core, Unreachable
from .io import FOREVER, Address, pack
from .leases import Plan
from .libraries import Client, Late
from .local import InProcess
from .memory import MemoryBase, MemoryCore, plain_words
from .methods import like
from .parameters import Duration, Rate, Window, WindowLike, Word
from .replies import Id, Reply
from .reservation import Settle, Settling
from .servers import Servers

P = ParamSpec("P")
T = TypeVar("T")

#: For this long after a reply a connection is taken to be open without a look. A look lets the event loop turn, which
#: costs as much as a call, and the server cannot have closed it much earlier than the next command would arrive.
FRESH_SECONDS = 0.0001


class _Signal:
    """What a task waits for."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Watched:
    """Says whether the server accepted the connection. It comes before a connection class of the client library."""

    ratelimit_address: Address | None = None
    ratelimit_deadline: float | None = None
    ratelimit_accepted = False
    #: When the last reply was read.
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
    """Cancels a task when its time is over.

    An event loop that is busy sees late that a reply has come. So the time by which the alarm itself is late is waited
    for once more, and then some turns of the loop, in which replies that are there already are read.
    """

    __slots__ = ("_handle", "_loop", "_task", "_until", "has_rung")

    TURNS = 3
    #: The most that is waited for once more.
    GRACE_SECONDS = 0.02

    def __init__(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        self._loop = loop
        self._task = asyncio.current_task(loop)
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
        """After it has rung: whether somebody else cancelled the task as well."""
        uncancel = getattr(self._task, "uncancel", None)  # From Python 3.11 on.
        return uncancel is not None and uncancel() > 0


class _Awaiting:
    """I/O of asyncio."""

    signal = _Signal

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    # Time is kept by alarms.
    settings: dict[str, Any] = {"socket_timeout": None, "socket_connect_timeout": None}

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
                raise Late from None
            raise
        finally:
            alarm.cancel()

    async def connect(self, connection: Any, address: Address | None, until: float) -> None:
        connection.ratelimit_address = address
        if address is None:
            await connection.connect()
        else:
            await connection.connect_to(address)

    async def is_alive(self, connection: Any, until: float) -> bool:
        if monotonic() - connection.ratelimit_read_at < FRESH_SECONDS:
            return True
        try:
            # The loop sees in the first turn that the server has closed the connection, and tells it in the second.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if not connection.is_connected:
                return False
            if hasattr(connection, "can_read"):
                if await connection.can_read():
                    return False
            # An empty answer is the end of the stream. False is no data.
            elif await connection.can_read_destructive() is not False:
                return False
            if connection.health_check_interval:
                await connection.check_health()
        except Exception:
            return False
        return True

    async def exchange(self, connection: Any, words: tuple[Word, ...], until: float) -> Any:
        await connection.send_packed_command([pack(words, connection)], check_health=False)
        reply = await connection.read_response()
        connection.ratelimit_read_at = monotonic()
        return reply

    async def exchange_all(
        self, connection: Any, commands: list[tuple[Word, ...]], until: float, errors: type[Exception]
    ) -> list[Any]:
        await connection.send_packed_command(
            [b"".join([pack(words, connection) for words in commands])], check_health=False
        )
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except errors as error:
                replies.append(error)
        connection.ratelimit_read_at = monotonic()
        return replies

    async def drop(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)

    def abandon(self, connection: Any) -> None:
        self.spawn(connection.disconnect(nowait=True))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # The loop keeps no task alive by itself.
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel_spawned(self) -> None:
        """Ends what goes on by itself in the running loop."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait(self, signal: Any, until: float) -> None:
        await signal.future

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _LoopCore(Core[_Awaiting]):
    """A core with servers for each event loop, as a connection belongs to the loop that it was made in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Servers] = weakref.WeakKeyDictionary()
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        super().__init__(*args, **kwargs)

    def enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop() is loop:
            return
        if loop not in self._of_loop:
            self.renew_servers()
            self._of_loop[loop] = self.servers
        self.servers = self._of_loop[loop]
        self._loop = weakref.ref(loop)


def _method(
    make: Callable[P, Call[T]], name: str | None = None
) -> Callable[Concatenate[Limiter, P], Coroutine[Any, Any, T]]:
    """A method that sends the call which `make` makes."""
    chosen = name or make.__name__

    async def method(self: Limiter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._core.enter_loop()
        return await self._core.send(make(*args, **kwargs), chosen, args, kwargs)

    like(method, make, chosen)
    return method


class Limiter:
    """Asks limits of a server with redis-ratelimit.

    The limiter opens connections of its own, with the settings of `client`, that never send a call twice. `deadline` is
    the longest that a call takes, in seconds; None takes the socket_timeout of `client`. A call with block= takes that
    much longer. When as many calls run as there are connections (50, or the max_connections of `client`), others wait
    for one. `unreachable` says what a call answers while Redis does not answer: "raise" the error, "allow", "deny", or
    what another limiter answers. A call that a server does not answer in time which answers others raises Busy, so that
    a flood is not let through. Error replies are always raised. A cancelled call hangs up, and takes nothing if it still
    waits.

    A limiter may be made before there is an event loop, and used in several loops, one after the other.
    """

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: float | None = None) -> None:
        self._core = _LoopCore(_Awaiting(), client, asynchronous=True, unreachable=unreachable, deadline=deadline)

    async def aclose(self) -> None:
        """Closes the limiter's own connections."""
        self._core.enter_loop()
        await self._core.io.cancel_spawned()
        await self._core.close()
        # The transports close in the loop's next turn.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Limiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    throttle = _method(calls.throttle)
    throttle_ro = _method(calls.throttle_ro)
    window = _method(calls.window)
    window_ro = _method(calls.window_ro)
    reserve = _method(calls.reserve)
    acquire_ro = _method(calls.acquire_ro)
    apply = _method(calls.apply)
    release = _method(calls.release)
    renew = _method(calls.renew)
    held = _method(calls.held)
    all = _method(calls.every, "all")
    all_ro = _method(calls.every_ro, "all_ro")
    reset = _method(calls.reset)
    info = _method(calls.info)
    top = _method(calls.top)
    policies = _method(calls.policies)

    def local(self, key: Key, window: WindowLike, *, lease: Duration = "100ms", leave: int = 0) -> Local:
        """Decides a window in the process, in microseconds: the process reserves a part of the limit for the time of a
        lease, spends it by itself, and settles what it spent. All processes together never spend more than the limit.

        A process that dies burns what it holds for a whole period. `lease` is from 20 ms on; `leave` is as elsewhere.
        """
        return Local(self._core, key, window, lease, leave)

    def acquire(
        self,
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        lease: Duration | None = None,
        count_lapsed: bool = False,
        id: Id | None = None,
        block: Duration | None = None,
        settle: Settle | None = None,
    ) -> Reservation:
        """RL.ACQUIRE as an asynchronous context manager: reserves when it is entered, or raises Denied. An exception
        gives the reservation back; else it is applied, or given back if it is a semaphore's. `settle` says which."""
        more = {"quantity": quantity, "leave": leave, "lease": lease, "id": id, "block": block}
        if count_lapsed:
            more["count_lapsed"] = True
        return Reservation(self._core, key, window, settle, more)


class _TaskSignal:
    """What a task waits for. Any thread may wake it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.event = asyncio.Event()

    def wake(self) -> None:
        # A loop that was closed has nobody who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.event.set)


class _TaskCore(MemoryCore):
    def make_signal(self) -> _TaskSignal:
        return _TaskSignal()

    async def sleep(self, signal: Any, seconds: float | None) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(signal.event.wait(), seconds)
        signal.event.clear()


def _lean(
    command: str, kind: type[Any], make: Callable[Concatenate[Key, Any, P], Call[Reply]]
) -> Callable[Concatenate[MemoryLimiter, Key, Any, P], Coroutine[Any, Any, Reply]]:
    """A method for what is asked most, without what only other calls need."""
    name = make.__name__
    usual = cast("Callable[..., Coroutine[Any, Any, Reply]]", getattr(Limiter, name))

    async def method(self: MemoryLimiter, key: Key, limit: Any, quantity: Any = 1, **options: Any) -> Reply:
        words = None if options else plain_words(command, kind, key, limit, quantity)
        if words is None:
            return await usual(self, key, limit, quantity, **options)
        return self._memory.decide(words)

    like(method, make, name)
    return cast("Callable[Concatenate[MemoryLimiter, Key, Any, P], Coroutine[Any, Any, Reply]]", method)


class MemoryLimiter(MemoryBase, Limiter):
    """The twin of redis_ratelimit.MemoryLimiter: a limiter without a server, whose methods are awaited."""

    _core_class = _TaskCore

    async def aclose(self) -> None:
        """Nothing is open."""

    throttle = _lean("RL.THROTTLE", Rate, calls.throttle)  # type: ignore[assignment]
    window = _lean("RL.WINDOW", Window, calls.window)  # type: ignore[assignment]


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Local(InProcess):
    """A limit in the process, see Limiter.local. It may be used in several event loops, one after the other."""

    _core: _LoopCore

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._due: asyncio.Future[None] | None = None
        self._plan: Plan | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Another event loop ended in the middle of it.
            plan, self._plan = self._plan, None
            self._task, self._due, self._waiting = None, None, []
            self._loop = loop
            if plan is not None:
                self._leases.failed(plan, ConnectionError("the event loop ended"), True)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        elif self._due is not None:
            _finish(self._due)

    async def take(self, quantity: int = 1) -> Reply:
        """Decides like window(), in the process if it can. Where too little is held the server is asked."""
        leases = self._leases
        if os.getpid() != leases.pid:
            self._start_over()
        if type(quantity) is not int or quantity < 1:
            self._check(quantity)
        reply = leases.take(quantity)
        return await self._ask(quantity) if reply is None else reply

    async def _ask(self, quantity: int) -> Reply:
        leases = self._leases
        for _ in range(self.ROUNDS):
            with leases.lock:
                awaited = leases.want(quantity)
            while leases.rounds < awaited:
                await self._round()
            error = leases.error
            reply = leases.take(quantity, again=True)
            if reply is not None:
                return reply
            if error is not None:
                return await self._unanswered(error, quantity)
        return leases.outrun()

    async def _round(self) -> None:
        waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waited)
        await waited

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            _finish(each)

    async def _work(self) -> None:
        leases, loop = self._leases, asyncio.get_running_loop()
        while self._loop is loop:
            with leases.lock:
                plan = self._plan = leases.plan()
                at = leases.next_at() if plan is None else None
                if plan is None and at is None:
                    self._task = None
            if plan is None:
                self._tell()
                if at is None:
                    return
                due = self._due = loop.create_future()
                timer = loop.call_later(max(0.0, at - leases.monotonic()), _finish, due)
                try:
                    await due
                finally:
                    timer.cancel()
                    self._due = None
                continue
            self._core.enter_loop()
            replies, sent = await self._exchange(plan)
            with leases.lock:
                self._plan = None
                self._came(plan, replies, sent)
            self._tell()

    async def aclose(self) -> None:
        """Settles what is held. Raises if that is not possible and `unreachable` says nothing else; what was held then
        counts when its lease ends."""
        leases = self._leases
        if os.getpid() != leases.pid:
            self._start_over()
        with leases.lock:
            leases.close()
        last = leases.failures + self.TRIES
        while not leases.is_settled and leases.failures < last:
            await self._round()
        self._raise_unsettled()

    #: The name that the synchronous one has.
    close = aclose

    async def __aenter__(self) -> Local:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Reservation(Settling):
    """A reservation while its work is done, see Limiter.acquire."""

    async def apply(self, quantity: int | None = None) -> bool:
        """Settles now: counts the reservation, or what was really used; False if it had lapsed."""
        return await self._apply(quantity)

    async def release(self) -> bool:
        """Settles now: gives the reservation back; False if it had lapsed."""
        return await self._release()

    async def renew(self, lease: Duration | None = None) -> bool:
        """Starts the lease anew; False if it has lapsed."""
        return await self._renew(lease)

    async def __aenter__(self) -> Reservation:
        self._core.enter_loop()  # type: ignore[attr-defined]
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exit(error)
