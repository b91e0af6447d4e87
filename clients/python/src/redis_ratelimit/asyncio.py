"""The limiter for asyncio, with the same names as redis_ratelimit."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from ._internal import calls
from ._internal.calls import Call, Key, Reserved
from ._internal.core import Core, Unreachable
from ._internal.io_asyncio import Awaiting
from ._internal.leases import Round
from ._internal.libraries import Client
from ._internal.local import InProcess
from ._internal.memory import MemoryBase, MemoryCore, plain_words
from ._internal.methods import Methods, Reserve, describe, name_of
from ._internal.parameters import Duration, Rate, TypedLimit, Window
from ._internal.replies import AllReply, Reply
from ._internal.reservation import Cost, Settling
from ._internal.servers import Servers

P = ParamSpec("P")
T = TypeVar("T")


class _LoopCore(Core[Awaiting]):
    """A core that has servers for each event loop, because a connection belongs to the loop in which it was made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._servers_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Servers] = (
            weakref.WeakKeyDictionary()
        )
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        super().__init__(*args, **kwargs)

    def enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop() is loop:
            return
        if loop not in self._servers_of_loop:
            self.renew_servers()
            self._servers_of_loop[loop] = self.servers
        self.servers = self._servers_of_loop[loop]
        self._loop = weakref.ref(loop)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Local(InProcess):
    """A limit that is decided in the process, see Limiter.local. Several event loops may use it, one after the other."""

    _core: _LoopCore

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._due: asyncio.Future[None] | None = None
        self._round: Round | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # The event loop before this one may have ended while a round was under way.
            round_, self._round = self._round, None
            self._task, self._due, self._waiting = None, None, []
            self._loop = loop
            if round_ is not None:
                self._leases.fail(round_, ConnectionError("the event loop ended"), True)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        elif self._due is not None:
            _finish(self._due)

    async def take(self, quantity: int = 1) -> Reply:
        """Decides as window() does, but in the process if possible. Asks the server if the process holds too little."""
        leases = self._leases
        if os.getpid() != leases.pid:
            self._start_over()
        if type(quantity) is not int or quantity < 1:
            self._check(quantity)
        reply = leases.take(quantity)
        return await self._ask(quantity) if reply is None else reply

    async def _ask(self, quantity: int) -> Reply:
        leases = self._leases
        for turn in range(self.ROUNDS):
            with leases.lock:
                awaited = leases.want(quantity, is_counted=turn > 0)
            while leases.rounds < awaited:
                await self._wait_for_round()
            error = leases.error_since(awaited)
            reply = leases.take(quantity, is_counted=True)
            if reply is not None:
                return reply
            if error is not None:
                return await self._answer_instead(error, quantity)
        return leases.outrun_reply()

    async def _wait_for_round(self) -> None:
        waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waited)
        await waited

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            _finish(each)

    async def _work(self) -> None:
        leases, loop = self._leases, asyncio.get_running_loop()
        while self._loop is loop:
            with leases.lock:
                round_ = self._round = leases.next_round()
                at = leases.next_at() if round_ is None else None
                if round_ is None and at is None:
                    self._task = None
            if round_ is None:
                self._wake_waiting()
                if at is None:
                    return
                await self._sleep(at - leases.monotonic())
                continue
            self._core.enter_loop()
            replies = await self._exchange(round_)
            with leases.lock:
                self._round = None
                self._report(round_, replies)
            self._wake_waiting()

    async def _sleep(self, seconds: float) -> None:
        """Waits until _wake() is called or the time is up."""
        loop = asyncio.get_running_loop()
        due = self._due = loop.create_future()
        timer = loop.call_later(max(0.0, seconds), _finish, due)
        try:
            await due
        finally:
            timer.cancel()
            self._due = None

    async def aclose(self) -> None:
        """Settles what is held. If the server does not answer, what is held counts when its lease ends, and the error is
        raised if `unreachable` is "raise"."""
        leases = self._leases
        if os.getpid() != leases.pid:
            self._start_over()
        with leases.lock:
            leases.close()
        last = leases.failures + self.TRIES
        while not leases.is_settled and leases.failures < last:
            await self._wait_for_round()
        self._raise_unsettled()

    #: The name of the method in the synchronous class.
    close = aclose

    async def __aenter__(self) -> Local:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


#: The tasks that release reservations of calls which were cancelled.
_giving_back: set[asyncio.Future[None]] = set()


class Reservation(Settling):
    """A reservation of one limit or of several limits, from Limiter.acquire or the reply to Limiter.all."""

    _timer: asyncio.TimerHandle | None = None
    #: The task in the background, as the event loop does not keep it alive.
    _renewal: asyncio.Future[None] | None = None

    async def apply(self, cost: Cost | None = None, *, quantity: Cost | None = None) -> bool:
        """Settles the reservation now: counts what was reserved, or what was really used, which is `cost`. Returns False if
        the lease had ended.

        For several limits, `cost` maps their names to what was used. For a limit that it does not name, all that was
        reserved counts. A semaphore is released. `quantity` is another name of `cost`.
        """
        return await self._apply(cost if quantity is None else quantity)

    async def release(self) -> bool:
        """Gives the reservation back now. Returns False if the lease had ended."""
        return await self._release()

    async def renew(self, lease: Duration | None = None) -> bool:
        """Restarts the lease. Returns False if it has ended."""
        return await self._renew(lease)

    def _renew_later(self, seconds: float) -> None:
        self._stop_renewing()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, lambda: setattr(self, "_renewal", loop.create_task(self._renew_again())))

    def _stop_renewing(self) -> None:
        # A renewal that has been sent is not cancelled. It has no effect on what was settled before it.
        if self._timer is not None:
            self._timer.cancel()

    async def _renew_again(self) -> None:
        if await self._renew_while_work_runs():
            self._begin_renewing()

    async def __aenter__(self) -> Reservation:
        self._core.enter_loop()  # type: ignore[attr-defined]
        try:
            await self._enter()
        except asyncio.CancelledError:
            # A grant that comes too late is given back.
            self._renewal = asyncio.ensure_future(self._give_back())
            _giving_back.add(self._renewal)
            self._renewal.add_done_callback(_giving_back.discard)
            raise
        return self

    async def _give_back(self) -> None:
        """Releases what may have been reserved for a call that was cancelled."""
        self._reserved = [
            Reserved(limit.name, limit.key, limit._traits.id, False, False)
            for limit in self._limits.values()
            if self._is_several and limit._traits.id is not None
        ]
        if self._reserved:
            with suppress(Exception):
                await self._core.send(calls.release_all(self._reserved))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exit(error)


def _method(make: Callable[P, Call[T]]) -> Callable[Concatenate[Limiter, P], Coroutine[Any, Any, T]]:
    """Returns a method that sends the call which `make` returns. The method has the parameters and docstring of `make`."""
    name = name_of(make)

    async def method(self: Limiter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._core.enter_loop()
        call = make(*args, **kwargs)
        reply = await self._core.send(call, name, args, kwargs)
        if call.reserving and isinstance(reply, Reply):
            Reservation(self._core, call.reserving)._hold(reply)
        return reply

    describe(method, make)
    return method


def _method_of_several(
    make: Callable[P, Call[AllReply]],
) -> Callable[Concatenate[Limiter, P], Coroutine[Any, Any, AllReply[Reservation]]]:
    return _method(make)


class Limiter(Methods[Local, Reservation]):
    """A limiter whose limits are kept by a server with redis-ratelimit.

    The limiter opens its own connections, with the settings of `client`, and never sends a call twice. If all connections
    are in use (50, or the max_connections of `client`), a call waits for one. Error replies are always raised. If the server
    answers other calls but not this one before the deadline, the call raises Busy, so that `unreachable="allow"` does not
    let an overload through. A call that is cancelled closes its connection, and takes nothing if it was still waiting.

    A limiter may be created before there is an event loop, and used in several loops, one after the other.

    Args:
        client: A client of redis-py or valkey-py, for a server, a Sentinel service or a cluster.
        unreachable: The outcome of calls while Redis does not answer. "raise" raises the error, "allow" allows and "deny"
            denies all calls, and another limiter decides in place of this one.
        deadline: The longest that a call takes, in seconds, plus its block=. By default the socket_timeout of `client`.
    """

    _core: _LoopCore
    _local = Local
    _reservation = Reservation

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: float | None = None) -> None:
        self._core = _LoopCore(Awaiting(), client, asynchronous=True, unreachable=unreachable, deadline=deadline)

    throttle = _method(calls.throttle)
    throttle_ro = _method(calls.throttle_ro)
    window = _method(calls.window)
    window_ro = _method(calls.window_ro)
    reserve = cast(
        "Reserve[Coroutine[Any, Any, Reply], Coroutine[Any, Any, AllReply[Reservation]]]", _method(calls.reserve)
    )
    acquire_ro = _method(calls.acquire_ro)
    apply = _method(calls.apply)
    release = _method(calls.release)
    renew = _method(calls.renew)
    held = _method(calls.held)
    all = _method_of_several(calls.all_)
    all_ro = _method(calls.all_ro)
    reset = _method(calls.reset)
    info = _method(calls.info)
    top = _method(calls.top)
    policies = _method(calls.policies)

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


#: A method that asks one limit.
Method = Callable[Concatenate[Limiter, P], Coroutine[Any, Any, Reply]]


class _TaskSignal:
    """Wakes a task that waits. Any thread may do so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.event = asyncio.Event()

    def wake(self) -> None:
        # If the loop was closed, no call waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.event.set)


class _TaskCore(MemoryCore):
    def make_signal(self) -> _TaskSignal:
        return _TaskSignal()

    async def sleep(self, signal: Any, seconds: float | None) -> None:
        # Not asyncio.wait_for, which up to Python 3.11 may lose a cancellation.
        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, signal.event.set)
        try:
            await signal.event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        signal.event.clear()


def _fast_method(command: str, kind: type[TypedLimit], method: Method[P]) -> Method[P]:
    """Returns a faster throttle() or window() for the usual arguments. It passes all others on to `method`."""
    usual: Callable[..., Any] = method

    @wraps(usual)
    async def fast(self: MemoryLimiter, key: Key, limit: Any, quantity: Any = 1, **options: Any) -> Any:
        words = None if options else plain_words(command, kind, key, limit, quantity)
        if words is None:
            return await usual(self, key, limit, quantity, **options)
        return self._memory.decide(words)

    return cast("Method[P]", fast)


class MemoryLimiter(MemoryBase, Limiter):
    """A limiter without a server, whose methods are awaited. See redis_ratelimit.MemoryLimiter."""

    _core_class = _TaskCore

    async def aclose(self) -> None:
        """Does nothing, because no connection is open."""

    throttle = _fast_method("RL.THROTTLE", Rate, Limiter.throttle)
    window = _fast_method("RL.WINDOW", Window, Limiter.window)
