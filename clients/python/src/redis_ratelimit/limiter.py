"""The synchronous limiter."""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from time import monotonic
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from . import calls
from .calls import Call, Key
from .core import Core, Unreachable
from .io import FOREVER, Address, pack, run
from .libraries import Client, Late
from .local import InProcess
from .methods import like
from .parameters import Duration, WindowLike, Word
from .replies import Id, Reply
from .reservation import Settle, Settling

P = ParamSpec("P")
T = TypeVar("T")

#: How much longer than its deadline a call may take at most where that saves a look at the connection.
NEARLY_SECONDS = 0.01


class _Signal:
    """What a thread waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=-1 if seconds == FOREVER else max(0.0, seconds))


class _Bounded:
    """A connection whose every step ends at `ratelimit_until`. It comes before a connection class of the client library.

    The library reads its time-outs from these attributes when it connects, and waits for replies in read_response.
    """

    ratelimit_address: Address | None = None
    ratelimit_deadline: float | None = None
    ratelimit_until = FOREVER
    #: Whether the time-outs asked for are those of connecting.
    ratelimit_connecting = False
    #: Whether the server accepted the connection.
    ratelimit_accepted = False
    #: Whether read_response of the library takes a time-out.
    ratelimit_takes_timeout = False

    def _left(self) -> float | None:
        # Not 0, which would be a socket that does not block.
        return None if self.ratelimit_until == FOREVER else max(0.001, self.ratelimit_until - monotonic())

    @property
    def socket_connect_timeout(self) -> float | None:
        return self._left()

    @socket_connect_timeout.setter
    def socket_connect_timeout(self, _: float | None) -> None:
        pass

    @property
    def socket_timeout(self) -> float | None:
        # What is read when the connection stands is kept for later calls.
        return self._left() if self.ratelimit_connecting else self.ratelimit_deadline

    @socket_timeout.setter
    def socket_timeout(self, _: float | None) -> None:
        pass

    def on_connect(self) -> None:
        self.ratelimit_accepted, self.ratelimit_connecting = True, False
        super().on_connect()  # type: ignore[misc]

    def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        self.ratelimit_accepted, self.ratelimit_connecting = True, False
        super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if self.ratelimit_until != FOREVER:
            left = self.ratelimit_until - monotonic()
            # The socket's own time-out is the deadline. It will do for a call that has just begun.
            if self.ratelimit_deadline is None or not 0 <= self.ratelimit_deadline - left < NEARLY_SECONDS:
                if not self.can_read(max(0.0, left)):  # type: ignore[attr-defined]
                    self.disconnect()  # type: ignore[attr-defined]
                    raise Late
                if self.ratelimit_takes_timeout:
                    kwargs.setdefault("timeout", max(0.001, self.ratelimit_until - monotonic()))
        elif self.ratelimit_deadline is not None:
            self.can_read(None)  # type: ignore[attr-defined]
        return super().read_response(*args, **kwargs)  # type: ignore[misc]


@cache
def _bounded_class(base: Any) -> type[Any]:
    # Where the library takes a time-out with each reply, one that stops in its middle ends in time, too.
    takes_timeout = "timeout" in inspect.signature(base.read_response).parameters
    return type(f"Bounded{base.__name__}", (_Bounded, base), {"ratelimit_takes_timeout": takes_timeout})


class _Blocking:
    """I/O of threads."""

    signal = _Signal
    settings: dict[str, Any] = {}

    def connection_class(self, base: Any) -> type[Any]:
        return _bounded_class(base)

    def bounded(self, work: Coroutine[Any, Any, T], until: float) -> Awaitable[T]:
        return work

    async def connect(self, connection: Any, address: Address | None, until: float) -> None:
        connection.ratelimit_until = until
        connection.ratelimit_connecting = True
        connection.ratelimit_address = address
        if address is None:
            connection.connect()
        else:
            connection.connect_to(address)

    async def is_alive(self, connection: Any, until: float) -> bool:
        connection.ratelimit_until = until
        try:
            if connection.can_read(0):
                return False
            if connection.health_check_interval:
                connection.check_health()
        except Exception:
            return False
        return True

    async def exchange(self, connection: Any, words: tuple[Word, ...], until: float) -> Any:
        connection.ratelimit_until = until
        connection.send_packed_command([pack(words, connection)], check_health=False)
        return connection.read_response()

    async def exchange_all(
        self, connection: Any, commands: list[tuple[Word, ...]], until: float, errors: type[Exception]
    ) -> list[Any]:
        connection.ratelimit_until = until
        connection.send_packed_command([b"".join([pack(words, connection) for words in commands])], check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except errors as error:
                replies.append(error)
        return replies

    async def drop(self, connection: Any) -> None:
        connection.disconnect()

    def abandon(self, connection: Any) -> None:
        connection.disconnect()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        threading.Thread(target=run, args=[work], name="redis-ratelimit probe", daemon=True).start()

    async def wait(self, signal: Any, until: float) -> None:
        if not signal.wait(until - monotonic()):
            raise Late

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251


def _method(make: Callable[P, Call[T]], name: str | None = None) -> Callable[Concatenate[Limiter, P], T]:
    """A method that sends the call which `make` makes."""
    chosen = name or make.__name__

    def method(self: Limiter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self._core.send(make(*args, **kwargs), chosen, args, kwargs))

    like(method, make, chosen)
    return method


_limiters: weakref.WeakSet[Limiter] = weakref.WeakSet()
_locals: weakref.WeakSet[Local] = weakref.WeakSet()


def remember(limiter: Limiter) -> None:
    """A forked child begins anew with it."""
    _limiters.add(limiter)


class Limiter:
    """Asks limits of a server with redis-ratelimit.

    The limiter opens connections of its own, with the settings of `client`, that never send a call twice. `deadline` is
    the longest that a call takes, in seconds; None takes the socket_timeout of `client`. A call with block= takes that
    much longer. When as many calls run as there are connections (50, or the max_connections of `client`), others wait
    for one. `unreachable` says what a call answers while Redis does not answer: "raise" the error, "allow", "deny", or
    what another limiter answers. A call that a server does not answer in time which answers others raises Busy, so that
    a flood is not let through. Error replies are always raised.
    """

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: float | None = None) -> None:
        self._core = Core(_Blocking(), client, asynchronous=False, unreachable=unreachable, deadline=deadline)
        remember(self)

    def close(self) -> None:
        """Closes the limiter's own connections."""
        run(self._core.close())

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        """RL.ACQUIRE as a context manager: reserves when it is entered, or raises Denied. An exception gives the
        reservation back; else it is applied, or given back if it is a semaphore's. `settle` says which of the two."""
        more = {"quantity": quantity, "leave": leave, "lease": lease, "id": id, "block": block}
        if count_lapsed:
            more["count_lapsed"] = True
        return Reservation(self._core, key, window, settle, more)


class Local(InProcess):
    """A limit in the process, see Limiter.local. Several threads may use it."""

    #: A background thread without work ends after so long.
    LINGER_SECONDS = 1.0

    def _reset(self) -> None:
        self._due = threading.Condition(self._leases.lock)
        self._answered = threading.Condition(self._leases.lock)
        self._thread: threading.Thread | None = None
        _locals.add(self)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="redis-ratelimit leases", daemon=True)
            self._thread.start()
        else:
            self._due.notify()

    def take(self, quantity: int = 1) -> Reply:
        """Decides like window(), in the process if it can. Where too little is held the server is asked."""
        leases = self._leases
        if os.getpid() != leases.pid:
            self._start_over()
        if type(quantity) is not int or quantity < 1:
            self._check(quantity)
        reply = leases.take(quantity)
        return self._ask(quantity) if reply is None else reply

    def _ask(self, quantity: int) -> Reply:
        leases = self._leases
        for _ in range(self.ROUNDS):
            with leases.lock:
                awaited = leases.want(quantity)
                while leases.rounds < awaited:
                    self._answered.wait()
                error = leases.error
            reply = leases.take(quantity, again=True)
            if reply is not None:
                return reply
            if error is not None:
                return run(self._unanswered(error, quantity))
        return leases.outrun()

    def _work(self) -> None:
        leases, due, answered = self._leases, self._due, self._answered
        lingered = False
        while True:
            with leases.lock:
                plan = leases.plan()
                if plan is None:
                    answered.notify_all()
                    at = leases.next_at()
                    if at is None and lingered:
                        self._thread = None
                        return
                    was_notified = due.wait(self.LINGER_SECONDS if at is None else max(0.0, at - leases.monotonic()))
                    lingered = at is None and not was_notified
                    continue
            replies, sent = run(self._exchange(plan))
            with leases.lock:
                self._came(plan, replies, sent)
                answered.notify_all()

    def close(self) -> None:
        """Settles what is held. Raises if that is not possible and `unreachable` says nothing else; what was held then
        counts when its lease ends."""
        leases = self._leases
        if os.getpid() != leases.pid:
            self._start_over()
        with leases.lock:
            leases.close()
            last = leases.failures + self.TRIES
            while not leases.is_settled and leases.failures < last:
                self._answered.wait()
        self._raise_unsettled()

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reservation(Settling):
    """A reservation while its work is done, see Limiter.acquire."""

    def apply(self, quantity: int | None = None) -> bool:
        """Settles now: counts the reservation, or what was really used; False if it had lapsed."""
        return run(self._apply(quantity))

    def release(self) -> bool:
        """Settles now: gives the reservation back; False if it had lapsed."""
        return run(self._release())

    def renew(self, lease: Duration | None = None) -> bool:
        """Starts the lease anew; False if it has lapsed."""
        return run(self._renew(lease))

    def __enter__(self) -> Reservation:
        run(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run(self._exit(error))


def _forget_inherited_connections() -> None:
    for limiter in list(_limiters):
        limiter._core.renew_servers()
    for local in list(_locals):
        local._start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited_connections)
