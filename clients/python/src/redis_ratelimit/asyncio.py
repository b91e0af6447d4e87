"""The limiter for asyncio, with the same names as redis_ratelimit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from copy import copy
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ._internal import calls, several
from ._internal.calls import Call
from ._internal.clauses import Clauses
from ._internal.core import Deadline, Unreachable, as_unreachable, await_if_needed
from ._internal.core_asyncio import AsyncCore
from ._internal.libraries import Client
from ._internal.limits import Rate, RateLike, Window, WindowLike
from ._internal.local import LocalBase
from ._internal.memory import MemoryBase, MemoryCoreBase, Waiter, plain_words
from ._internal.options import AllOptions, LookOptions, ReserveOptions, SeveralOptions, ThrottleOptions, WindowOptions
from ._internal.replies import AllReply, Held, Id, Info, Policy, Reply, TopKey
from ._internal.reservation import Cost, ReservationBase, Settle, Step
from ._internal.words import Duration, Key

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

T = TypeVar("T")


async def _sleep(event: asyncio.Event, seconds: float | None) -> None:
    """Waits until an event is set or the time is up, and clears the event."""
    # Not asyncio.wait_for, which up to Python 3.11 may lose a cancellation.
    timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        if timer is not None:
            timer.cancel()
    event.clear()


class Local(LocalBase):
    """A limit that is decided in the process, see Limiter.local. Several event loops may use it, one after the other."""

    _core: AsyncCore

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._round: Any = None
        self._renew_events()

    def _renew_events(self) -> None:
        # An event belongs to the event loop in which it was first waited for.
        self._due, self._answered = asyncio.Event(), asyncio.Event()

    def _wake(self) -> None:
        self._forget_parent()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # The event loop before this one may have ended while a round was under way.
            round_, self._round = self._round, None
            self._task, self._loop = None, loop
            self._renew_events()
            if round_ is not None:
                self._leases.fail(round_, ConnectionError("the event loop ended"), True)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        self._due.set()

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
                await self._answered.wait()
            error = leases.error_since(awaited)
            reply = leases.take(quantity, True)
            if reply is not None:
                return reply
            if error is not None:
                return as_unreachable(await await_if_needed(self._answer_instead(error, quantity)()))  # type: ignore[no-any-return]
        reply = leases.outrun_reply()
        return reply

    def _wake_waiting(self) -> None:
        answered, self._answered = self._answered, asyncio.Event()
        answered.set()

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
                await _sleep(self._due, seconds)
                continue
            replies = await self._core.try_to_send(self._call(round_))
            self._round = None
            self._report(round_, replies)
            self._wake_waiting()

    async def aclose(self) -> None:
        """Settles what is held. What the server refuses to settle, or does not answer for, counts when its lease ends. The
        error is raised, unless the server does not answer and `unreachable` is not "raise"."""
        leases = self._leases
        leases.close()
        while not leases.is_settled:
            if self._task is None or self._task.done():
                self._wake()
            await self._answered.wait()
        self._raise_unsettled()

    #: The name of the method in the synchronous class.
    close = aclose

    async def __aenter__(self) -> Local:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Reservation(ReservationBase):
    """A reservation of one limit or of several limits, from Limiter.acquire or the reply to Limiter.all."""

    _core: AsyncCore
    lost: asyncio.Event
    _make_event = asyncio.Event
    _timer: asyncio.TimerHandle | None = None
    #: The task in the background, as the event loop does not keep it alive.
    _renewal_task: asyncio.Future[None] | None = None

    async def apply(self, cost: Cost | None = None, *, quantity: Cost | None = None) -> bool:
        """Settles the reservation now: counts what was reserved, or what was really used, which is `cost`. Returns False if
        the lease had ended or it was settled before.

        For several limits, `cost` maps their names to what was used. For a limit that it does not name, all that was
        reserved counts. A semaphore is released. `quantity` is another name of `cost`.
        """
        self._prepare(cost, quantity)
        return not await self._core.settle(self._carry_out(self._steps("apply")))

    async def release(self) -> bool:
        """Gives the reservation back now. Returns False if the lease had ended or it was settled before."""
        self._settled = True
        return not await self._core.settle(self._carry_out(self._steps("release")))

    async def renew(self, lease: Duration | None = None) -> bool:
        """Restarts the lease. Returns False if it has ended or the reservation was settled."""
        self._check_entered()
        began, pause = self._begin_lease(lease)
        return self._end_lease(began, pause, await self._carry_out(self._steps("renew", lease)))

    async def _carry_out(self, steps: list[Step]) -> list[str]:
        return self._note_lapsed(steps, [await await_if_needed(step.do()) for step in steps])

    async def __aenter__(self) -> Reservation:
        self._begin_block()
        try:
            if self._call is not None:
                self._check_granted(await self._core.send(self._call))
            self._is_entered = True
            self._begin_renewing()
        except BaseException:
            self._block.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._core.settle(self._end(error))
        finally:
            self._block.release()

    async def _end(self, error: BaseException | None) -> None:
        how = self._end_block(error)
        outcome = await self._try_to_settle(how) if how else []
        if self._is_unsent(outcome):
            # A copy, because this one may be entered again meanwhile.
            self._core.settle_later(copy(self)._retry(how, outcome))
        else:
            self._warn_unsettled(outcome)
        self._check_settled(outcome, error)

    async def _try_to_settle(self, how: str) -> list[str] | Exception:
        outcome = await self._try(self._steps(how))
        if how == "apply" and self._is_of_a_semaphore(outcome):
            outcome = await self._try(self._steps("release"))
        return outcome

    async def _retry(self, how: str, outcome: list[str] | Exception) -> None:
        """Settles what could not be settled at the end of the block, because no server executed anything."""
        for seconds in self._pauses():
            await asyncio.sleep(seconds)
            outcome = await self._try_to_settle(how)
            if not self._is_unsent(outcome):
                break
        self._end_retries(how, outcome)

    async def _try(self, steps: list[Step]) -> list[str] | Exception:
        try:
            return await self._carry_out(steps)
        except Exception as error:
            return error

    def _renew_later(self, seconds: float) -> None:
        self._stop_renewing()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start_renewal)

    def _stop_renewing(self) -> None:
        # A renewal that has been sent is not cancelled. It has no effect on what was settled before it.
        if self._timer is not None:
            self._timer.cancel()

    def _start_renewal(self) -> None:
        self._renewal_task = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        """Restarts the leases while the block runs."""
        if self._settled:
            return
        began = monotonic()
        self._end_renewal(began, await self._try(self._renewal()))


class Limiter:
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

    _core: AsyncCore

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: Deadline = 1.0) -> None:
        self._core = AsyncCore(client, asynchronous=True, unreachable=unreachable, deadline=deadline)

    async def throttle(self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[ThrottleOptions]) -> Reply:
        """RL.THROTTLE: takes a quantity from a rate. Returns whether that was allowed, what remains, and when to try again.
        A negative quantity gives back."""
        return await self._core.send(calls.ask("throttle", key, rate, quantity, options))

    async def throttle_ro(self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Reply:
        """RL.THROTTLE_RO: returns what throttle() would return now, and takes nothing."""
        return await self._core.send(calls.ask("throttle_ro", key, rate, quantity, options))

    async def window(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[WindowOptions]) -> Reply:
        """RL.WINDOW: counts a quantity in a window, so that no period has more than the limit. Returns what throttle()
        returns. A negative quantity gives back the oldest events."""
        return await self._core.send(calls.ask("window", key, window, quantity, options))

    async def window_ro(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Reply:
        """RL.WINDOW_RO: returns what window() would return now, and takes nothing."""
        return await self._core.send(calls.ask("window_ro", key, window, quantity, options))

    @overload
    async def reserve(
        self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[ReserveOptions]
    ) -> Reply: ...

    @overload
    async def reserve(self, key: Clauses, **options: Unpack[SeveralOptions]) -> AllReply[Reservation]: ...

    async def reserve(
        self, key: Key | Clauses, window: WindowLike | None = None, quantity: int = 1, **options: Any
    ) -> Reply:
        """RL.ACQUIRE: reserves a quantity. Returns a Reply with an `id`, which is None if the call was denied. The caller
        passes it to apply() or release() before the lease ends.

        A list of clauses instead of the key reserves several limits, and returns the AllReply of all().
        """
        return await self._reserve(several.reserve(key, window, quantity, **options))

    @overload
    def acquire(
        self,
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        settle: Settle | None = None,
        **options: Unpack[ReserveOptions],
    ) -> Reservation: ...

    @overload
    def acquire(self, key: Clauses, **options: Unpack[SeveralOptions]) -> Reservation: ...

    def acquire(
        self,
        key: Key | Clauses,
        window: WindowLike | None = None,
        quantity: int = 1,
        *,
        settle: Settle | None = None,
        **options: Any,
    ) -> Reservation:
        """RL.ACQUIRE as a context manager: entering it reserves, or raises Denied. An exception in the block releases the
        reservation. Otherwise the end of the block applies it, or releases a semaphore's; `settle` chooses one of the two,
        but "apply" is refused for a semaphore.

        The lease is renewed while the block runs. If it is lost nevertheless, because Redis could not be reached for so long
        or somebody released it, the event `lost` is set, and the end of the block raises Lapsed.

        A list of clauses instead of the key reserves several limits by RL.ALL, which are settled in one step.

        What acquire() returns can be entered again, and reserves again, but not while its block runs (RuntimeError). So
        threads and tasks call acquire() for each block. Before the first block nothing is reserved: then `reply`, `id`,
        set(), apply(), release() and renew() raise RuntimeError. reserve() does without a block.
        """
        return Reservation._for_acquire(self._core, key, window, quantity, settle=settle, options=options)

    async def acquire_ro(
        self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[LookOptions]
    ) -> Reply:
        """RL.ACQUIRE_RO: returns what reserve() would return now, without an id, and reserves nothing."""
        return await self._core.send(calls.ask("acquire_ro", key, window, quantity, options))

    async def apply(self, key: Key, id: Id, quantity: int | None = None) -> bool:
        """RL.APPLY: counts a reservation, or the `quantity` that was really used, which may be more. Returns False if it is
        not held, because its lease has ended or it was settled before."""
        return await self._core.settle(self._core.send(calls.apply(key, id, quantity)))

    async def release(self, key: Key, *ids: Id) -> int:
        """RL.RELEASE: gives reservations back, so that they count as nothing. Returns how many of them were held."""
        return await self._core.settle(self._core.send(calls.release(key, *ids)))

    async def renew(self, key: Key, id: Id, lease: Duration | None = None) -> bool:
        """RL.RENEW: restarts the lease, with a new length if `lease` is given. Returns False if the reservation is not
        held."""
        return await self._core.send(calls.renew(key, id, lease))

    async def held(self, key: Key) -> list[Held]:
        """RL.HELD: returns the live reservations of a key, oldest first."""
        return await self._core.send(calls.held(key))

    async def all(self, clauses: Clauses, **options: Unpack[AllOptions]) -> AllReply[Reservation]:
        """RL.ALL: takes from several limits, or from none of them if one denies. A list of clauses in the place of a clause
        is a group, joined by ELSE: only the first of its clauses that would be allowed takes. The reply's `paid` names the
        limits that took, and its `reservation` settles all that was reserved."""
        return await self._reserve(several.all(clauses, **options))

    async def all_ro(self, clauses: Clauses, *, limits: Key | None = None) -> AllReply[Reservation]:
        """RL.ALL_RO: returns what all() would return now, and takes nothing."""
        return await self._core.send(several.all_ro(clauses, limits=limits))

    async def reset(self, key: Key) -> bool:
        """DEL: resets the limit of a key. Returns False if the key did not exist."""
        return await self._core.send(calls.reset(key))

    async def info(self, key: Key) -> Info | None:
        """RL.INFO: returns the state of a key, which shows why it is limited; None if the key does not exist."""
        return await self._core.send(calls.info(key))

    async def top(self, count: int = 10, *, reset: bool = False) -> list[TopKey]:
        """RL.TOP: returns the `count` keys with the most denials in the last 10 to 20 minutes, most first. `reset` resets
        the counts.

        In a cluster all nodes are asked, as each counts its own denials.
        """
        return await self._core.send(calls.top(count, reset=reset))

    async def policies(self) -> list[Policy]:
        """RL.POLICIES: returns the server's policies in the order of their names, with how many calls each allowed and
        denied.

        In a cluster all nodes are asked, and the counts of equal policies are added up.
        """
        return await self._core.send(calls.policies())

    async def _reserve(self, call: Call[T]) -> T:
        """Sends a call that may reserve several limits, which the reply's `reservation` settles then."""
        reply = await self._core.send(call)
        if isinstance(reply, AllReply) and call.reserving:
            Reservation(self._core, call.reserving)._hold(reply)
        return reply

    def local(self, key: Key, window: WindowLike, *, lease: Duration = "100ms", leave: int = 0) -> Local:
        """Returns a limit that is decided in the process, in microseconds. The process reserves a batch of the window for a
        lease, spends it by itself, and settles what it spent. All processes together never spend more than the limit.

        If a process dies, its batch counts as spent for a whole period. `lease` is at least 20 ms.
        """
        return Local(self._core, key, window, lease, leave)

    async def close(
        self, key: Key, limit: RateLike | WindowLike, duration: Duration, *, kind: str | None = None
    ) -> Reply:
        """Closes a key for `duration` from now, for example because another service replied that all have to wait, see
        retry_after(). Calls that take are denied until then, and those that wait go on waiting. `kind` is that of a policy,
        "throttle" or "window".
        """
        return await self._core.send(calls.close(key, limit, duration, kind))

    async def aclose(self) -> None:
        """Closes the limiter's idle connections, not those of the client. A later call opens new ones."""
        await self._core.close()

    async def __aenter__(self) -> Limiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _TaskWaiter(Waiter):
    """Wakes a task that waits. Any thread may do so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.event = asyncio.Event()

    def wake(self) -> None:
        # If the loop was closed, no call waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.event.set)


class _TaskCore(MemoryCoreBase):
    make_waiter = _TaskWaiter

    async def send(self, call: Call[T]) -> T:
        """Returns the reply to a call."""
        reply = self._begin(call)
        if type(reply) is not tuple:
            return self._read(call, reply)
        ticket, waiter = reply
        try:
            while not waiter.is_over:
                seconds = self.memory.sleep_seconds(waiter)
                if not waiter.is_over:
                    await _sleep(waiter.event, seconds)
            return self._read(call, self.memory.take_reply(ticket))
        except BaseException:
            self.memory.withdraw(ticket)
            raise

    async def try_to_send(self, call: Call[T]) -> T:
        return await self.send(call)

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits a settlement. It cannot be cancelled, because it never suspends."""
        return await work


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
