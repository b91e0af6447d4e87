"""The synchronous limiter."""

from __future__ import annotations

import os
import threading
import time
import weakref
from copy import copy
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from . import calls, several
from .calls import Call
from .clauses import Clauses
from .core import Core, Deadline, Unreachable, as_unreachable
from .libraries import Client
from .limits import RateLike, WindowLike
from .local import LocalBase
from .options import AllOptions, LookOptions, ReserveOptions, SeveralOptions, ThrottleOptions, WindowOptions
from .replies import AllReply, Held, Id, Info, Policy, Reply, TopKey
from .reservation import Cost, ReservationBase, Settle, Step
from .words import Duration, Key

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

T = TypeVar("T")

_limiters: weakref.WeakSet[Limiter] = weakref.WeakSet()
_locals: weakref.WeakSet[Local] = weakref.WeakSet()


def remember(limiter: Limiter) -> None:
    """Adds a limiter to those that forget their connections in a forked child."""
    _limiters.add(limiter)


class Local(LocalBase):
    """A limit that is decided in the process, see Limiter.local. Several threads may use it."""

    #: A background thread ends after this time without work.
    LINGER_SECONDS = 1.0

    def _reset(self) -> None:
        lock = threading.RLock()
        self._due = threading.Condition(lock)
        self._answered = threading.Condition(lock)
        self._thread: threading.Thread | None = None
        _locals.add(self)

    def _wake(self) -> None:
        with self._due:
            if self._thread is None:
                # The thread waits for the lock. It is not stored before it has started: otherwise a failure to start would
                # leave later takes without one.
                thread = threading.Thread(target=self._work, name="redis-ratelimit leases", daemon=True)
                thread.start()
                self._thread = thread
            else:
                self._due.notify()

    def take(self, quantity: int = 1) -> Reply:
        """Decides as window() does, but in the process if possible. Asks the server if the process holds too little.

        `remaining` and `reset_after` of the reply date from the last reply of the server. Raises Closed after close(),
        except for takes above the limit, or within 100 ms after a denial, which are still denied.
        """
        reply: Reply | None = self._leases.take(quantity)
        return self._ask(quantity) if reply is None else reply

    def _ask(self, quantity: int) -> Reply:
        leases = self._leases
        reply: Reply | None
        for turn in range(self.ROUNDS):
            awaited = leases.want(quantity, turn > 0)
            with self._answered:
                while leases.rounds < awaited:
                    self._answered.wait()
            error = leases.error_since(awaited)
            reply = leases.take(quantity, True)
            if reply is not None:
                return reply
            if error is not None:
                return as_unreachable(self._answer_instead(error, quantity)())  # type: ignore[no-any-return]
        reply = leases.outrun_reply()
        return reply

    def _work(self) -> None:
        leases, due, answered = self._leases, self._due, self._answered
        lingered = False
        while True:
            with due:
                round_ = leases.next_round()
                if round_ is None:
                    answered.notify_all()
                    seconds = leases.next_in()
                    if seconds is None and lingered:
                        self._thread = None
                        return
                    was_notified = due.wait(self.LINGER_SECONDS if seconds is None else seconds)
                    lingered = seconds is None and not was_notified
                    continue
            replies = self._core.try_to_send(self._call(round_))
            self._report(round_, replies)
            with answered:
                answered.notify_all()

    def close(self) -> None:
        """Settles what is held. What the server refuses to settle, or does not answer for, counts when its lease ends. The
        error is raised, unless the server does not answer and `unreachable` is not "raise"."""
        self._leases.close()
        with self._answered:
            while not self._leases.is_settled:
                self._answered.wait()
        self._raise_unsettled()

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reservation(ReservationBase):
    """A reservation of one limit or of several limits, from Limiter.acquire or the reply to Limiter.all."""

    lost: threading.Event
    _make_event = threading.Event

    def apply(self, cost: Cost | None = None, *, quantity: Cost | None = None) -> bool:
        """Settles the reservation now: counts what was reserved, or what was really used, which is `cost`. Returns False if
        the lease had ended or it was settled before.

        For several limits, `cost` maps their names to what was used. For a limit that it does not name, all that was
        reserved counts. A semaphore is released. `quantity` is another name of `cost`.
        """
        self._prepare(cost, quantity)
        return not self._carry_out(self._steps("apply"))

    def release(self) -> bool:
        """Gives the reservation back now. Returns False if the lease had ended or it was settled before."""
        self._settled = True
        return not self._carry_out(self._steps("release"))

    def renew(self, lease: Duration | None = None) -> bool:
        """Restarts the lease. Returns False if it has ended or the reservation was settled."""
        self._check_entered()
        began, pause = self._begin_lease(lease)
        return self._end_lease(began, pause, self._carry_out(self._steps("renew", lease)))

    def _carry_out(self, steps: list[Step]) -> list[str]:
        return self._note_lapsed(steps, [step.do() for step in steps])

    def __enter__(self) -> Reservation:
        self._begin_block()
        try:
            if self._call is not None:
                self._check_granted(self._core.send(self._call))
            self._is_entered = True
            try:
                self._begin_renewing()
            except RuntimeError as error:
                # No thread can be started.
                self._end(error)
                raise
        except BaseException:
            self._block.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        finally:
            self._block.release()

    def _end(self, error: BaseException | None) -> None:
        how = self._end_block(error)
        outcome = self._try_to_settle(how) if how else []
        try:
            if self._is_unsent(outcome):
                # A copy, because this one may be entered again meanwhile.
                threading.Thread(target=copy(self)._retry, args=(how, outcome), daemon=True).start()
            else:
                self._warn_unsettled(outcome)
        except RuntimeError:  # No thread can be started.
            self._warn_unsettled(outcome)
        self._check_settled(outcome, error)

    def _try_to_settle(self, how: str) -> list[str] | Exception:
        outcome = self._try(self._steps(how))
        if how == "apply" and self._is_of_a_semaphore(outcome):
            outcome = self._try(self._steps("release"))
        return outcome

    def _retry(self, how: str, outcome: list[str] | Exception) -> None:
        """Settles what could not be settled at the end of the block, because no server executed anything."""
        for seconds in self._pauses():
            time.sleep(seconds)
            outcome = self._try_to_settle(how)
            if not self._is_unsent(outcome):
                break
        self._end_retries(how, outcome)

    def _try(self, steps: list[Step]) -> list[str] | Exception:
        try:
            return self._carry_out(steps)
        except Exception as error:
            return error

    def _renew_later(self, seconds: float) -> None:
        server = self._core.server_of(self._reserved[0].key) if self.reply.reachable else self._core
        _Renewals.add(server, self, seconds)

    def _stop_renewing(self) -> None:
        _Renewals.remove(self)

    def _renew(self) -> None:
        """Restarts the leases while the block runs."""
        if self._settled:
            return
        began = monotonic()
        self._end_renewal(began, self._try(self._renewal()))


class _Renewals:
    """Renews the leases of reservations on one server while their work runs. It has its own thread, so that a server that
    hangs does not let the leases on other servers end."""

    #: The thread ends after this time without work.
    LINGER_SECONDS = 1.0

    _lock = threading.Lock()
    #: The renewals of each server that has a thread.
    _of_server: ClassVar[dict[object, _Renewals]] = {}

    def __init__(self, server: object) -> None:
        self._server = server
        self._changed = threading.Condition(self._lock)
        #: The reservations, and when the renewal of each is due.
        self._due: dict[Reservation, float] = {}
        #: When the thread wakes up.
        self._next = 0.0

    @classmethod
    def start_over(cls) -> None:
        """Forgets all reservations. For a forked child, which does not have the threads."""
        cls._lock = threading.Lock()
        cls._of_server = {}

    @classmethod
    def add(cls, server: object, reservation: Reservation, seconds: float) -> None:
        cls.remove(reservation)
        with cls._lock:
            renewals = cls._of_server.get(server)
            if renewals is None:
                renewals = cls(server)
                threading.Thread(target=renewals._work, name="redis-ratelimit renewals", daemon=True).start()
                cls._of_server[server] = renewals
            renewals._due[reservation] = at = monotonic() + seconds
            if at < renewals._next:
                renewals._changed.notify()

    @classmethod
    def remove(cls, reservation: Reservation) -> None:
        with cls._lock:
            for renewals in cls._of_server.values():
                renewals._due.pop(reservation, None)

    def _work(self) -> None:
        while (reservation := self._wait()) is not None:
            reservation._renew()

    def _wait(self) -> Reservation | None:
        """Waits until the renewal of a reservation is due, and returns the reservation; None after a time without work."""
        with self._changed:
            while True:
                now = monotonic()
                self._next = now + self.LINGER_SECONDS
                first = min(self._due, key=self._due.__getitem__, default=None)
                if first is not None:
                    self._next = min(self._next, self._due[first])
                    if self._next <= now:
                        del self._due[first]
                        return first
                if not self._changed.wait(self._next - now) and not self._due:
                    del self._of_server[self._server]
                    return None


class Limiter:
    """A limiter whose limits are kept by a server with redis-ratelimit.

    A call that is denied returns a reply whose `allowed` is False; only acquire() raises Denied. Arguments of a wrong type,
    and wrong values that the client checks, raise TypeError or ValueError before anything is sent. The server checks the
    rest. Error replies are always raised: as UnknownPolicy, as MissingModule, or as the client library's ResponseError. If
    Redis does not answer, `unreachable` decides. But calls that settle, list or inspect, which are apply, release, renew,
    held, info, top, policies and reset, then raise the client library's ConnectionError or TimeoutError.

    The limiter opens its own connections, with the settings of `client`, and never sends a call twice. If all connections
    to a server are in use (50, or the max_connections of `client` if that is less), a call waits for one. If the server
    answers other calls but not this one before the deadline, the call raises Busy, so that `unreachable="allow"` does not
    let an overload through.

    Args:
        client: A client of redis-py or valkey-py, for a server, a Sentinel service or a cluster.
        unreachable: The outcome of calls while Redis does not answer. "raise" raises the error, "allow" allows and "deny"
            denies all calls, and another limiter decides in place of this one.
        deadline: The longest that each step of a call takes: waiting for a free connection, connecting, and the reply, to
            which its block= is added. Usually only one of them has to wait. Seconds, a text such as "250ms", or a
            timedelta. If another limiter decides then, its time is added.
    """

    _core: Core

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: Deadline = 1.0) -> None:
        self._core = Core(client, asynchronous=False, unreachable=unreachable, deadline=deadline)
        remember(self)

    def throttle(self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[ThrottleOptions]) -> Reply:
        """RL.THROTTLE: takes a quantity from a rate. Returns whether that was allowed, what remains, and when to try again.
        A negative quantity gives back."""
        return self._core.send(calls.ask("throttle", key, rate, quantity, options))

    def throttle_ro(self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Reply:
        """RL.THROTTLE_RO: returns what throttle() would return now, and takes nothing."""
        return self._core.send(calls.ask("throttle_ro", key, rate, quantity, options))

    def window(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[WindowOptions]) -> Reply:
        """RL.WINDOW: counts a quantity in a window, so that no period has more than the limit. Returns what throttle()
        returns. A negative quantity gives back the oldest events."""
        return self._core.send(calls.ask("window", key, window, quantity, options))

    def window_ro(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Reply:
        """RL.WINDOW_RO: returns what window() would return now, and takes nothing."""
        return self._core.send(calls.ask("window_ro", key, window, quantity, options))

    @overload
    def reserve(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[ReserveOptions]) -> Reply: ...

    @overload
    def reserve(self, key: Clauses, **options: Unpack[SeveralOptions]) -> AllReply[Reservation]: ...

    def reserve(self, key: Key | Clauses, window: WindowLike | None = None, quantity: int = 1, **options: Any) -> Reply:
        """RL.ACQUIRE: reserves a quantity. Returns a Reply with an `id`, which is None if the call was denied. The caller
        passes it to apply() or release() before the lease ends.

        A list of clauses instead of the key reserves several limits, and returns the AllReply of all().
        """
        return self._reserve(several.reserve(key, window, quantity, **options))

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

    def acquire_ro(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Reply:
        """RL.ACQUIRE_RO: returns what reserve() would return now, without an id, and reserves nothing."""
        return self._core.send(calls.ask("acquire_ro", key, window, quantity, options))

    def apply(self, key: Key, id: Id, quantity: int | None = None) -> bool:
        """RL.APPLY: counts a reservation, or the `quantity` that was really used, which may be more. Returns False if it is
        not held, because its lease has ended or it was settled before."""
        return self._core.send(calls.apply(key, id, quantity))

    def release(self, key: Key, *ids: Id) -> int:
        """RL.RELEASE: gives reservations back, so that they count as nothing. Returns how many of them were held."""
        return self._core.send(calls.release(key, *ids))

    def renew(self, key: Key, id: Id, lease: Duration | None = None) -> bool:
        """RL.RENEW: restarts the lease, with a new length if `lease` is given. Returns False if the reservation is not
        held."""
        return self._core.send(calls.renew(key, id, lease))

    def held(self, key: Key) -> list[Held]:
        """RL.HELD: returns the live reservations of a key, oldest first."""
        return self._core.send(calls.held(key))

    def all(self, clauses: Clauses, **options: Unpack[AllOptions]) -> AllReply[Reservation]:
        """RL.ALL: takes from several limits, or from none of them if one denies. A list of clauses in the place of a clause
        is a group, joined by ELSE: only the first of its clauses that would be allowed takes. The reply's `paid` names the
        limits that took, and its `reservation` settles all that was reserved."""
        return self._reserve(several.all(clauses, **options))

    def all_ro(self, clauses: Clauses, *, limits: Key | None = None) -> AllReply[Reservation]:
        """RL.ALL_RO: returns what all() would return now, and takes nothing."""
        return self._core.send(several.all_ro(clauses, limits=limits))

    def reset(self, key: Key) -> bool:
        """DEL: resets the limit of a key. Returns False if the key did not exist."""
        return self._core.send(calls.reset(key))

    def info(self, key: Key) -> Info | None:
        """RL.INFO: returns the state of a key, which shows why it is limited; None if the key does not exist."""
        return self._core.send(calls.info(key))

    def top(self, count: int = 10, *, reset: bool = False) -> list[TopKey]:
        """RL.TOP: returns the `count` keys with the most denials in the last 10 to 20 minutes, most first. `reset` resets
        the counts.

        In a cluster all nodes are asked, as each counts its own denials.
        """
        return self._core.send(calls.top(count, reset=reset))

    def policies(self) -> list[Policy]:
        """RL.POLICIES: returns the server's policies in the order of their names, with how many calls each allowed and
        denied.

        In a cluster all nodes are asked, and the counts of equal policies are added up.
        """
        return self._core.send(calls.policies())

    def _reserve(self, call: Call[T]) -> T:
        """Sends a call that may reserve several limits, which the reply's `reservation` settles then."""
        reply = self._core.send(call)
        if isinstance(reply, AllReply) and call.reserving:
            Reservation(self._core, call.reserving)._hold(reply)
        return reply

    def local(self, key: Key, window: WindowLike, *, lease: Duration = "100ms", leave: int = 0) -> Local:
        """Returns a limit that is decided in the process, in microseconds. The process reserves a batch of the window for a
        lease, spends it by itself, and settles what it spent. All processes together never spend more than the limit.

        If a process dies, its batch counts as spent for a whole period. `lease` is at least 20 ms.
        """
        return Local(self._core, key, window, lease, leave)

    @overload
    def close(self) -> None: ...

    @overload
    def close(
        self, key: Key, limit: RateLike | WindowLike, duration: Duration, *, kind: str | None = None
    ) -> Reply: ...

    def close(
        self,
        key: Key | None = None,
        limit: RateLike | WindowLike | None = None,
        duration: Duration | None = None,
        *,
        kind: str | None = None,
    ) -> Reply | None:
        """Closes a key for `duration` from now, for example because another service replied that all have to wait, see
        retry_after(). Calls that take are denied until then, and those that wait go on waiting. `kind` is that of a policy,
        "throttle" or "window".

        Without arguments, closes the limiter's idle connections, not those of the client. A later call opens new ones.
        """
        if key is None and limit is None and duration is None:
            self._core.close()
            return None
        return self._core.send(calls.close(key, limit, duration, kind))

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _forget_inherited_connections() -> None:
    for limiter in list(_limiters):
        limiter._core.renew_servers()
    for local in list(_locals):
        local._forget_parent()
    _Renewals.start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited_connections)
