"""The limiter for asyncio, with the same names as redis_ratelimit."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ._internal.core import Core, Deadline, Unreachable
from ._internal.io import DEFAULT_SECONDS
from ._internal.io_asyncio import AsyncioIO
from ._internal.libraries import Client
from ._internal.local import LocalBase
from ._internal.memory import MemoryBase, MemoryCore, plain_words
from ._internal.methods import AsyncMethods
from ._internal.options import ThrottleOptions, WindowOptions
from ._internal.parameters import Duration, Key, Rate, RateLike, Window, WindowLike
from ._internal.replies import Reply
from ._internal.reservation import AsyncReservationMethods
from ._internal.servers import Servers

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

T = TypeVar("T")


class _LoopCore(Core[AsyncioIO]):
    """A core that has servers for each event loop, because a connection belongs to the loop in which it was made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._servers_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Servers] = (
            weakref.WeakKeyDictionary()
        )
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        #: Settlements that are under way. The event loop does not keep tasks alive.
        self._settling: set[asyncio.Task[Any]] = set()
        super().__init__(*args, **kwargs)

    def start_settling(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name="redis-ratelimit settlement")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        # anyio cancels a task again at every await.
        return await asyncio.shield(self.start_settling(work))

    async def settled(self) -> None:
        """Waits for the settlements of the running loop, but not long."""
        loop = asyncio.get_running_loop()
        if settling := [task for task in self._settling if task.get_loop() is loop]:
            await asyncio.wait(settling, timeout=DEFAULT_SECONDS)

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


class Local(LocalBase):
    """A limit that is decided in the process, see Limiter.local. Several event loops may use it, one after the other."""

    _core: _LoopCore

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._due: asyncio.Future[None] | None = None
        self._round: Any = None
        self._waiting: list[asyncio.Future[None]] = []

    def _wake(self) -> None:
        self._forget_parent()
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
        """Decides as window() does, but in the process if possible. Asks the server if the process holds too little.

        `remaining` and `reset_after` of the reply date from the last reply of the server. Raises Closed after close(),
        except for takes above the limit, or within 100 ms after a denial, which are still denied.
        """
        reply: Reply | None = self._leases.take(quantity)
        return await self._ask(quantity) if reply is None else reply

    async def _ask(self, quantity: int) -> Reply:
        leases = self._leases
        reply: Reply | None
        for turn in range(self.ROUNDS):
            awaited = leases.want(quantity, turn > 0)
            while leases.rounds < awaited:
                await self._wait_for_round()
            error = leases.error_since(awaited)
            reply = leases.take(quantity, True)
            if reply is not None:
                return reply
            if error is not None:
                return await self._answer_instead(error, quantity)
        reply = leases.outrun_reply()
        return reply

    async def _wait_for_round(self) -> None:
        waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waited)
        await waited

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            _finish(each)

    async def _work(self) -> None:
        try:
            await self._send_rounds()
        except BaseException:
            # The program may cancel all tasks of the event loop, and go on.
            round_, self._round = self._round, None
            if round_ is not None:
                self._leases.fail(round_, ConnectionError("the task that sends was cancelled"), True)
            self._wake_waiting()
            raise

    async def _send_rounds(self) -> None:
        leases, loop = self._leases, asyncio.get_running_loop()
        while self._loop is loop:
            round_ = self._round = leases.next_round()
            if round_ is None:
                seconds = leases.next_in()
                if seconds is None:
                    self._task = None
                self._wake_waiting()
                if seconds is None:
                    return
                await self._sleep(seconds)
                continue
            replies = await self._exchange(round_)
            self._round = None
            self._report(round_, replies)
            self._wake_waiting()

    async def _sleep(self, seconds: float) -> None:
        """Waits until _wake() is called or the time is up."""
        loop = asyncio.get_running_loop()
        due = self._due = loop.create_future()
        timer = loop.call_later(seconds, _finish, due)
        try:
            await due
        finally:
            timer.cancel()
            self._due = None

    async def aclose(self) -> None:
        """Settles what is held. What the server refuses to settle, or does not answer for, counts when its lease ends. The
        error is raised, unless the server does not answer and `unreachable` is not "raise"."""
        leases = self._leases
        leases.close()
        while not leases.is_settled:
            if self._task is None or self._task.done():
                self._wake()
            await self._wait_for_round()
        self._raise_unsettled()

    #: The name of the method in the synchronous class.
    close = aclose

    async def __aenter__(self) -> Local:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Reservation(AsyncReservationMethods):
    """A reservation of one limit or of several limits, from Limiter.acquire or the reply to Limiter.all."""

    _core: _LoopCore
    _timer: asyncio.TimerHandle | None = None
    #: The task in the background, as the event loop does not keep it alive.
    _renewal: asyncio.Future[None] | None = None

    def _renew_later(self, seconds: float) -> None:
        self._stop_renewing()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._begin_renewal)

    def _stop_renewing(self) -> None:
        # A renewal that has been sent is not cancelled. It has no effect on what was settled before it.
        if self._timer is not None:
            self._timer.cancel()

    def _begin_renewal(self) -> None:
        self._renewal = asyncio.ensure_future(self._renew_while_work_runs())

    async def __aenter__(self) -> Reservation:
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._core.settle(self._exit(error))


class Limiter(AsyncMethods[Reservation]):
    """A limiter whose limits are kept by a server with redis-ratelimit, for asyncio. It raises the same errors, and uses
    connections in the same way, as redis_ratelimit.Limiter.

    A call that is cancelled closes its connection. It takes nothing if it was still waiting, and what was reserved for it is
    released, unless you chose the id. But apply, release and the end of a reservation's block go on in the background.

    A limiter may be created before there is an event loop, and used in several loops, one after the other. Threads that run
    loops at the same time need a limiter each.

    Args:
        client: A client of redis-py or valkey-py, for a server, a Sentinel service or a cluster.
        unreachable: The outcome of calls while Redis does not answer. "raise" raises the error, "allow" allows and "deny"
            denies all calls, and another limiter decides in place of this one.
        deadline: The longest that a call takes, plus its block=: seconds, a text such as "250ms", or a timedelta. If
            another limiter decides then, its time is added.
    """

    _core: _LoopCore
    _reservation_class = Reservation

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: Deadline = 1.0) -> None:
        self._core = _LoopCore(AsyncioIO(), client, asynchronous=True, unreachable=unreachable, deadline=deadline)

    def local(self, key: Key, window: WindowLike, *, lease: Duration = "100ms", leave: int = 0) -> Local:
        """Returns a limit that is decided in the process, in microseconds. The process reserves a batch of the window for a
        lease, spends it by itself, and settles what it spent. All processes together never spend more than the limit.

        If a process dies, its batch counts as spent for a whole period. `lease` is at least 20 ms.
        """
        return Local(self._core, key, window, lease, leave)

    async def aclose(self) -> None:
        """Closes the limiter's idle connections, not those of the client. A later call opens new ones."""
        self._core.enter_loop()
        await self._core.settled()
        await self._core.io.cancel_spawned()
        await self._core.close()
        # The transports close in the loop's next turn.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Limiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


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


class MemoryLimiter(MemoryBase, Limiter):
    """A limiter without a server, whose methods are awaited. See redis_ratelimit.MemoryLimiter."""

    _core_class = _TaskCore

    async def aclose(self) -> None:
        """Does nothing, because no connection is open."""

    async def throttle(self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[ThrottleOptions]) -> Reply:
        words = None if options else plain_words("RL.THROTTLE", Rate, key, rate, quantity)
        return await super().throttle(key, rate, quantity, **options) if words is None else self._memory.decide(words)

    async def window(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[WindowOptions]) -> Reply:
        words = None if options else plain_words("RL.WINDOW", Window, key, window, quantity)
        return await super().window(key, window, quantity, **options) if words is None else self._memory.decide(words)
