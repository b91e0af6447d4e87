"""A limiter without a server: the engine of the server's module, with keys in memory.

It takes the commands that are sent to Redis. A call with block= waits in a line of the engine until another call gives
something back or enough time has passed. One of the waiting calls, the timekeeper, sleeps until the next wait ends, and
then wakes the calls whose wait is over.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, Union

from . import limiter
from .calls import Call
from .extension import native
from .libraries import LIBRARIES, error_code, make_reply_error
from .limiter import Limiter
from .limits import Rate, RateLike, Window, WindowLike, is_semaphore
from .options import ThrottleOptions, WindowOptions
from .replies import Duplicate, Id, Reply, UnknownPolicy, read_reply
from .words import Key, Word

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

T = TypeVar("T")

#: A function that returns the seconds since 1970, as time.time does.
Clock = Callable[[], float]
#: The setting ratelimit.policies as it is written, or a definition for each name.
Policies = Union[str, Mapping[str, str]]

#: The pause between two readings of a clock that a test sets, while a call waits.
POLL_SECONDS = 0.003
#: The longest sleep of the timekeeper, as the system's clock may be set while it sleeps.
LONGEST_SLEEP_SECONDS = 1.0
#: The shortest sleep of the timekeeper, so that it does not spin until a call that was granted has taken its reply.
SHORTEST_SLEEP_SECONDS = 0.001


@cache
def reply_error() -> type[Exception]:
    """Returns the class of error replies, derived from the ResponseError of each client library that is installed."""
    bases = [import_module(f"{name}.exceptions").ResponseError for name in LIBRARIES if find_spec(name)]
    return type("ResponseError", tuple(bases) or (Exception,), {"__module__": __name__})


@cache
def reply_error_of(code: str | None) -> type[Exception]:
    """Returns the class of error replies with a code."""
    kind = {"NOPOLICY": UnknownPolicy, "DUPLICATE": Duplicate}.get(code or "")
    return reply_error() if kind is None else make_reply_error(kind, reply_error())


def make_error(text: str) -> Exception:
    """Returns an error reply as the limiters raise it, without the code ERR."""
    return reply_error_of(error_code(text))(text.removeprefix("ERR "))


def checked_share(share: object) -> float:
    """Returns a share as a float. Raises TypeError if it is not a number; the engine checks its range."""
    if isinstance(share, bool) or not isinstance(share, (int, float, Fraction)):
        raise TypeError(f"share must be a number above 0 and at most 1, such as 1/4, not {share!r}")
    return float(share)


class Waiter:
    """A call that waits. Once its wait is over, it takes its reply from the engine."""

    is_over = False
    #: Set by wake().
    event: Any

    def wake(self) -> None:
        """Wakes the call. Any thread may do so, more than once."""
        raise NotImplementedError


class Memory:
    """A server in memory: its keys, the commands on them, and the calls that wait.

    A grant stays with the engine until the call takes its reply. So a call that is cancelled after its grant can still give
    it back.
    """

    def __init__(
        self,
        clock: Clock | None,
        share: float | Fraction,
        policies: Policies | None,
        settings: Mapping[str, str] | None,
    ) -> None:
        if clock is not None and not callable(clock):
            raise TypeError(
                f"clock must be a function that returns seconds since 1970, as time.time does, not {clock!r}"
            )
        if policies is not None and not isinstance(policies, (str, Mapping)):
            raise TypeError(f"policies must be a text or a mapping from names to definitions, not {policies!r}")
        if settings is not None and not isinstance(settings, Mapping):
            raise TypeError(f"settings must be a mapping from names to values, not {settings!r}")
        module = native("MemoryLimiter")
        self.clock = clock
        self.engine = module.Engine(checked_share(share))
        self.call = self.engine.call
        self.error_reply = module.ErrorReply
        self._waits = module.Waits
        #: Guards `waiting` and the timekeeper. It is held while a ticket is issued, its reply is taken, or it is withdrawn.
        self._lock = threading.Lock()
        #: The calls that wait or have not taken their replies yet, by ticket.
        self.waiting: dict[int, Waiter] = {}
        self._timekeeper: Waiter | None = None
        #: When the timekeeper will wake up.
        self._wake_us: int | None = None
        for name, value in (settings or {}).items():
            self.set(name, value)
        if policies is not None:
            self.set("policies", policies if isinstance(policies, str) else _written(policies))

    def set(self, name: str, value: str) -> None:
        """Changes a setting, as CONFIG SET does for one of ratelimit.*."""
        reply = self.call(("CONFIG", "SET", f"ratelimit.{name.removeprefix('ratelimit.')}", value), self.now_us())
        if type(reply) is self.error_reply:
            raise ValueError(reply.text.removeprefix("ERR "))

    def now_us(self) -> int:
        """Returns the time in Unix microseconds. Without a clock it looks up time.time, which a test may patch."""
        clock = self.clock
        if clock is None:
            return int(time.time() * 1_000_000)
        now = clock()
        if not (isinstance(now, (int, float)) and math.isfinite(now) and now >= 0):
            raise ValueError(f"clock must return seconds since 1970, not {now!r}")
        return round(now * 1_000_000)

    def ask(self, words: tuple[Word, ...]) -> Any:
        """Returns the reply to a command that does not wait."""
        reply = self.call(words, self.now_us())
        if self.waiting:
            self.wake_ended()
        return reply

    def decide(self, words: tuple[Word, ...]) -> Reply:
        """Returns the Reply to a command that does not wait and whose reply is five integers."""
        return read_reply(self.checked(self.ask(words)))

    def checked(self, reply: Any) -> Any:
        """Returns a reply. Raises an error reply."""
        if type(reply) is self.error_reply:
            raise make_error(reply.text)
        return reply

    def begin(self, words: tuple[Word, ...], make_waiter: Callable[[], Waiter]) -> Any:
        """Returns the reply to a command that may wait. If it waits, returns its ticket and its Waiter instead."""
        with self._lock:
            reply = self.call(words, self.now_us())
            if type(reply) is self._waits:
                waiter = self.waiting[reply.ticket] = make_waiter()
                return reply.ticket, waiter
        if self.waiting:
            self.wake_ended()
        return reply

    def wake_ended(self) -> None:
        """Wakes the calls whose wait is over, and the timekeeper if it would wake up at the wrong time."""
        with self._lock:
            self._wake_ended()
            if self._timekeeper is not None and self.engine.next_us() != self._wake_us:
                self._timekeeper.wake()

    def _wake_ended(self) -> None:
        for ticket in self.engine.ended(self.now_us()):
            waiter = self.waiting.get(ticket)
            if waiter is not None and not waiter.is_over:
                waiter.is_over = True
                waiter.wake()
                self._hand_over(waiter)

    def sleep_seconds(self, waiter: Waiter) -> float | None:
        """Wakes the calls whose wait is over. Returns how long a call that still waits sleeps; None until it is woken."""
        with self._lock:
            self._wake_ended()
            if self._timekeeper is None and not waiter.is_over:
                self._timekeeper = waiter
            if self._timekeeper is not waiter:
                return None
            next_us = self._wake_us = self.engine.next_us()
            if self.clock is not None:
                return POLL_SECONDS
            seconds = LONGEST_SLEEP_SECONDS if next_us is None else next_us / 1_000_000 - time.time()
            return min(max(SHORTEST_SLEEP_SECONDS, seconds), LONGEST_SLEEP_SECONDS)

    def take_reply(self, ticket: int) -> Any:
        """Returns the reply to a call whose wait is over."""
        with self._lock:
            reply = self.engine.take_reply(ticket, self.now_us())
            del self.waiting[ticket]
            return reply

    def withdraw(self, ticket: int) -> None:
        """Ends the wait of a call that was cancelled. What it was granted meanwhile is given back."""
        with self._lock:
            waiter = self.waiting.pop(ticket, None)
            if waiter is not None:
                self.engine.withdraw(ticket, self.now_us())
                self._hand_over(waiter)
        if self.waiting:
            self.wake_ended()

    def _hand_over(self, waiter: Waiter) -> None:
        """Makes another waiting call the timekeeper if `waiter` was it."""
        if self._timekeeper is waiter:
            self._timekeeper = None
            for other in self.waiting.values():
                if not other.is_over:
                    other.wake()
                    break

    def start_over_after_fork(self) -> None:
        """Ends all waits in a forked child, which does not have their threads. It continues with a copy of the keys."""
        self._lock = threading.Lock()
        tickets, self.waiting, self._timekeeper = list(self.waiting), {}, None
        for ticket in tickets:
            self.engine.withdraw(ticket, self.now_us())


def _written(policies: Mapping[str, str]) -> str:
    return "; ".join(f"{name.removeprefix('@')} {definition}" for name, definition in policies.items())


class _Library:
    """Stands for the client library of a core without a server."""

    timeout_error: type[Exception] = TimeoutError

    @property
    def reply_error(self) -> type[Exception]:
        return reply_error()

    def code(self, error: BaseException) -> str | None:
        return error_code(str(error)) if isinstance(error, self.reply_error) else None


class MemoryCoreBase:
    """The core of a limiter without a server. A subclass makes calls wait as its limiter does."""

    unreachable = "raise"
    library = _Library()
    encoding = "utf-8", "strict"
    make_waiter: Callable[[], Waiter]

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.clock = memory.clock

    def _begin(self, call: Call[Any]) -> Any:
        """Returns the reply to a call; if it waits, its ticket and its Waiter."""
        call.check_key()
        if call.further_commands or not call.is_atomic:
            replies = [self.memory.ask(words) for words in call.commands]
            return [make_error(each.text) if type(each) is self.memory.error_reply else each for each in replies]
        return self.memory.ask(call.words) if call.block_ms is None else self.memory.begin(call.words, self.make_waiter)

    def _read(self, call: Call[T], reply: Any) -> T:
        return call.read(self.memory.checked(reply))

    def holds(self, key: Key, id: Id) -> bool:
        """Returns whether a reservation is held in memory."""
        reply = self.memory.call(("RL.HELD", key), self.memory.now_us())
        wanted = id.encode() if isinstance(id, str) else id
        return type(reply) is list and any(held[0] == wanted for held in reply)

    def is_forgiven(self, error: Exception) -> bool:
        return False

    def server_of(self, key: Key) -> object:
        return self

    def renew_servers(self) -> None:
        self.memory.start_over_after_fork()


class _ThreadWaiter(Waiter):
    def __init__(self) -> None:
        self.event = threading.Event()

    def wake(self) -> None:
        self.event.set()


class MemoryCore(MemoryCoreBase):
    """The core of a synchronous limiter without a server."""

    make_waiter = _ThreadWaiter

    def send(self, call: Call[T]) -> T:
        """Returns the reply to a call."""
        reply = self._begin(call)
        return self._read(call, self._wait(*reply) if type(reply) is tuple else reply)

    def try_to_send(self, call: Call[T]) -> T:
        return self.send(call)

    def _wait(self, ticket: int, waiter: Waiter) -> Any:
        memory = self.memory
        try:
            while not waiter.is_over:
                seconds = memory.sleep_seconds(waiter)
                if not waiter.is_over:
                    self.sleep(waiter, seconds)
            return memory.take_reply(ticket)
        except BaseException:
            memory.withdraw(ticket)
            raise

    def sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Waits until the call is woken or the time is up."""
        waiter.event.wait(seconds)
        waiter.event.clear()

    def close(self) -> None:
        pass


def plain_words(command: str, kind: type[Any], key: object, limit: Any, quantity: object) -> tuple[Word, ...] | None:
    """Returns the words of a call whose arguments are of the usual types; None for any other call."""
    if type(key) is not str or type(quantity) is not int or type(limit) is not kind:
        return None
    if kind is Rate:
        burst, count, period = limit.__dict__["_words"]
        return command, key, burst, count, period, quantity, "MS"
    if limit.buckets is not None or limit.fixed or is_semaphore(limit):
        return None
    return command, key, *limit.words(), quantity, "MS"


class MemoryBase:
    """The base class of both limiters without a server: this one and that of asyncio."""

    _core: Any
    _core_class: type[MemoryCoreBase]

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        share: float | Fraction = 1,
        policies: Policies | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._use(Memory(clock, share, policies, settings))

    def _use(self, memory: Memory) -> None:
        self._memory = memory
        self._core = self._core_class(memory)

    def define(self, limits: Key, name: str, definition: str | None) -> None:
        """Sets a limit in the hash of limits that the option `limits` of all() names, as HSET does on a server: for example
        define("limits", "rpm", "WINDOW 500 1min"). Without a definition, removes it, as HDEL does."""
        name = name.removeprefix("@")
        words = ("HDEL", limits, name) if definition is None else ("HSET", limits, name, definition)
        self._memory.checked(self._memory.ask(words))

    def _with_same_keys(self, asynchronous: bool) -> Any:
        """Returns a limiter for asyncio, or a synchronous one, on the same keys."""
        from ..asyncio import MemoryLimiter as Asynchronous

        wanted = Asynchronous if asynchronous else MemoryLimiter
        if isinstance(self, wanted):
            return self
        other = object.__new__(wanted)
        other._use(self._memory)
        return other


class MemoryLimiter(MemoryBase, Limiter):
    """A limiter without a server: the engine of the server's module decides in the process.

    It returns what a server would. A test passes a `clock` and sets the time instead of sleeping. As `unreachable=` of a
    Limiter it decides while Redis is away: then each process keeps the limit by itself, or a `share` of it.

    Several threads may use it. A forked child continues with a copy.

    Args:
        clock: Returns the time in seconds, as time.time does. By default the time of the system.
        share: The part of each limit that this process has, above 0 and at most 1. With 1/4, what is available at once (a
            window's limit, a rate's burst + 1, a semaphore's places) is a quarter, rounded down but at least 1, so that four
            processes together never admit more than a limit of 4 or more. What a rate gives in each period is exactly a
            quarter. `leave` is rounded up. A limit of 0 stays 0.
        policies: The policies, as the setting ratelimit.policies is written, or a definition for each name, which may have
            its "@".
        settings: Other settings of the module, such as {"timezone": "Asia/Tokyo"}.
    """

    _core_class = MemoryCore

    def _use(self, memory: Memory) -> None:
        super()._use(memory)
        limiter.remember(self)

    def throttle(self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[ThrottleOptions]) -> Reply:
        words = None if options else plain_words("RL.THROTTLE", Rate, key, rate, quantity)
        return super().throttle(key, rate, quantity, **options) if words is None else self._memory.decide(words)

    def window(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[WindowOptions]) -> Reply:
        words = None if options else plain_words("RL.WINDOW", Window, key, window, quantity)
        return super().window(key, window, quantity, **options) if words is None else self._memory.decide(words)
