"""The synchronous limiter."""

from __future__ import annotations

import os
import threading
import weakref
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, overload

from . import several
from .clauses import Clauses
from .core import Core, Deadline, Unreachable
from .io import blocking, run
from .io_threads import ThreadIO
from .libraries import Client
from .local import LocalBase
from .methods import AsyncMethods, LimiterBase
from .options import ReserveOptions
from .parameters import Duration, Key, WindowLike
from .replies import AllReply, Reply
from .reservation import AsyncReservationMethods, ReservationBase

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

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
                return run(self._answer_instead(error, quantity))
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
            replies = run(self._exchange(round_))
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

    apply = blocking(AsyncReservationMethods.apply)
    release = blocking(AsyncReservationMethods.release)
    renew = blocking(AsyncReservationMethods.renew)

    def _renew_later(self, seconds: float) -> None:
        server = self._core.server_of(self._reserved[0].key) if self.reply.reachable else self._core
        _Renewals.add(server, self, seconds)

    def _stop_renewing(self) -> None:
        _Renewals.remove(self)

    def __enter__(self) -> Reservation:
        run(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run(self._exit(error))


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
            run(reservation._renew_while_work_runs())

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


class Limiter(LimiterBase[Reservation]):
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
        deadline: The longest that a call takes, plus its block=: seconds, a text such as "250ms", or a timedelta. If
            another limiter decides then, its time is added.
    """

    _reservation_class = Reservation

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: Deadline = 1.0) -> None:
        self._core = Core(ThreadIO(), client, asynchronous=False, unreachable=unreachable, deadline=deadline)
        remember(self)

    throttle = blocking(AsyncMethods.throttle)
    throttle_ro = blocking(AsyncMethods.throttle_ro)
    window = blocking(AsyncMethods.window)
    window_ro = blocking(AsyncMethods.window_ro)

    @overload
    def reserve(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[ReserveOptions]) -> Reply: ...

    @overload
    def reserve(self, key: Clauses) -> AllReply[Reservation]: ...

    def reserve(
        self,
        key: Key | Clauses,
        window: WindowLike | None = None,
        quantity: int = 1,
        **options: Unpack[ReserveOptions],
    ) -> Reply:
        """RL.ACQUIRE: reserves a quantity. Returns a Reply with an `id`, which is None if the call was denied. The caller
        passes it to apply() or release() before the lease ends.

        A list of clauses instead of the key reserves several limits, and returns the AllReply of all().
        """
        return run(self._send(several.reserve, key, window, quantity, **options))

    acquire_ro = blocking(AsyncMethods.acquire_ro)
    apply = blocking(AsyncMethods.apply)
    release = blocking(AsyncMethods.release)
    renew = blocking(AsyncMethods.renew)
    held = blocking(AsyncMethods.held)
    all = blocking(AsyncMethods[Reservation].all)
    all_ro = blocking(AsyncMethods[Reservation].all_ro)
    reset = blocking(AsyncMethods.reset)
    info = blocking(AsyncMethods.info)
    top = blocking(AsyncMethods.top)
    policies = blocking(AsyncMethods.policies)

    def local(self, key: Key, window: WindowLike, *, lease: Duration = "100ms", leave: int = 0) -> Local:
        """Returns a limit that is decided in the process, in microseconds. The process reserves a batch of the window for a
        lease, spends it by itself, and settles what it spent. All processes together never spend more than the limit.

        If a process dies, its batch counts as spent for a whole period. `lease` is at least 20 ms.
        """
        return Local(self._core, key, window, lease, leave)

    def close(self) -> None:
        """Closes the limiter's idle connections, not those of the client. A later call opens new ones."""
        run(self._core.close())

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
