"""A storage for the package `limits`, and so for slowapi and Flask-Limiter, in which redis-ratelimit counts.

import redis_ratelimit.limits  # registers the schemes of the URIs

storage = limits.storage.storage_from_string("ratelimit+redis://localhost:6379")

The URIs are those of the storage for Redis in `limits`, with `ratelimit+` in front: ratelimit+redis, ratelimit+rediss,
ratelimit+redis+unix, ratelimit+redis+sentinel, ratelimit+redis+cluster, and the same with valkey instead of redis. For
asyncio, `async+` stands in front of that.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from inspect import isawaitable
from math import ceil, floor
from threading import Lock
from typing import Any, TypeVar

import limits.aio.storage
import limits.limits
import limits.storage
from limits.errors import ConfigurationError

from .. import Busy, Limiter, MissingModule, Reply, UnexpectedReply, Window, _uris, asyncio
from ..http.headers import is_decided
from ..types import Deadline, Key, Unreachable

__all__ = ["AsyncRateLimitStorage", "RateLimitStorage"]

T = TypeVar("T")

#: A limit that is never reached, for methods of the interface that ask for a count without a limit.
ENDLESS_LIMIT = 10**15
#: The entries of a window that replaces a sliding window counter. It is exact to a 64th of its period.
BUCKETS = 64
#: A window in which everything counts that a key holds. Its period is the longest of the server.
_EVERYTHING = Window(ENDLESS_LIMIT, "36525d")
#: The number of keys that are remembered.
REMEMBERED = 10_000
#: The number of keys that are looked up or deleted by one command.
PAGE = 1000
#: The most calls to find the oldest event of a window that other calls change at the same time.
LOOKS = 3
#: The most seconds that may pass until a package has computed the wait from the end of a window.
MOST_LATE = 0.1
_SCHEMES = [
    f"ratelimit+{library}{kind}"
    for library in ("redis", "valkey")
    for kind in ("", "s", "+unix", "+sentinel", "+cluster")
]


#: A window, which is created once.
_window = lru_cache(1000)(Window)


def _fixed(expiry: int) -> Window:
    return _window(ENDLESS_LIMIT, expiry, fixed=True, start="first")


class _LastUsed:
    """A cache with a number for each of the keys that were used last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: OrderedDict[str, int] = OrderedDict()
        self.get = self._values.get

    def put(self, key: str, value: int) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > REMEMBERED:
                self._values.popitem(last=False)


def _period_in(key: str) -> int | None:
    """Returns the period of a key that an item of `limits` made, which ends in amount/multiples/granularity; None for
    other keys."""
    parts = key.rsplit("/", 3)
    item = limits.limits.GRANULARITIES.get(parts[-1])
    if len(parts) < 3 or item is None or not parts[-2].isdecimal():
        return None
    return int(item.GRANULARITY.seconds) * int(parts[-2])


def _end_in(seconds: float) -> float:
    """Returns a time that is at least this many seconds from now, by the clock of this machine.

    Flask-Limiter answers a denial with `Retry-After: int(int(end + 1) - now)`, a little later. To get no less than the
    seconds from that, the end is moved to the next whole second where necessary.
    """
    now = time.time()
    return max(now + seconds, floor(now + MOST_LATE + ceil(seconds)))


def _expiry(reply: Reply) -> float:
    return _end_in(reply.reset_after_ms / 1000) if reply.reset_after_ms else time.time()


def _count(reply: Reply) -> int:
    if is_decided(reply):
        return reply.limit - reply.remaining
    return 0 if reply.allowed else ENDLESS_LIMIT


class _Storage:
    """What both storages share. It must be the first base class of a storage."""

    _limiter_class: type[Any]

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        *,
        key_prefix: str = "ratelimit",
        unreachable: Unreachable = "raise",
        deadline: Deadline = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)  # type: ignore[call-arg]
        # The storage for asyncio in `limits` has this argument to choose a client library.
        options.pop("implementation", None)
        self._uri, self._options = uri.removeprefix("async+").removeprefix("ratelimit+"), options
        self.storage = self._make_client()
        self.limiter = self._limiter_class(self.storage, unreachable=unreachable, deadline=deadline)
        self.key_prefix = key_prefix
        library = _uris.parts(self._uri)[0]
        self._error: type[Exception] = getattr(import_module(f"{library}.exceptions"), f"{library.capitalize()}Error")
        self._periods, self._remaining = _LastUsed(), _LastUsed()

    def _make_client(self) -> Any:
        is_asynchronous = self._limiter_class is asyncio.Limiter
        try:
            return _uris.make_client(self._uri, self._options, asynchronous=is_asynchronous)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(str(error)) from error

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        """The errors that `limits` wraps with wrap_exceptions."""
        return self._error, Busy, MissingModule, UnexpectedReply

    @property
    def _pattern(self) -> str:
        """The pattern of all keys of the storage, for SCAN."""
        prefix = "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in self.key_prefix)
        return f"{prefix}:*"

    def _key(self, key: str) -> Key:
        """Returns the key in Redis."""
        return f"{self.key_prefix}:{key}"

    def _then(self, reply: Any, read: Callable[[Reply], T]) -> T:
        """Returns what `read` makes of a reply of the limiter, which is awaited in the storage for asyncio."""
        return read(reply)

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts in a fixed window that starts with its first hit. Returns its count."""
        if _period_in(key) != expiry:
            self._periods.put(key, expiry)
        return self._then(self.limiter.window(self._key(key), _fixed(expiry), amount), _count)

    def get(self, key: str) -> int:
        """Returns the count of a fixed window."""
        # Asks for 1, because a call for 0 is never denied, not even while Redis is away.
        return self._then(self.limiter.window_ro(self._key(key), self._fixed_of(key), 1), _count)

    def get_expiry(self, key: str) -> float:
        """Returns when a fixed window ends, in Unix seconds by the clock of this machine, up to a second late."""
        return self._then(self.limiter.window_ro(self._key(key), self._fixed_of(key), 0), _expiry)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes entries of a moving window, all or none of them."""

        def read(reply: Reply) -> bool:
            if reply.reachable:
                self._remaining.put(key, reply.remaining)
            return reply.allowed

        return self._then(self.limiter.window(self._key(key), _window(limit, expiry), amount), read)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns the time of the oldest entry of a moving window, in Unix seconds by the clock of this machine, up to a
        second late, and the number of entries."""

        def read(entries: int, leaves_in: float) -> tuple[float, int]:
            return (_end_in(leaves_in) - expiry, entries) if entries else (time.time(), 0)

        # If no other process has taken anything since, one call is enough.
        left = self._remaining.get(key)
        return self._oldest(key, _window(limit, expiry), limit if left is None else left, read)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes entries of a moving window of 64 steps, all or none of them."""
        window = _window(limit, expiry, BUCKETS)
        return self._then(self.limiter.window(self._key(key), window, amount), bool)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns 0 for the previous window, and the count of the last period for the current window."""

        def read(entries: int, leaves_in: float) -> tuple[int, float, int, float]:
            if not entries:
                return 0, 0.0, 0, 0.0
            # `limits` takes a whole period for nothing, so the time is kept below it.
            return 0, 0.0, entries, min(_end_in(leaves_in) - time.time(), expiry - 0.000_001)

        window = _window(ENDLESS_LIMIT, expiry, BUCKETS)
        return self._oldest(key, window, ENDLESS_LIMIT, read)

    def clear(self, key: str) -> None:
        """Takes back all hits of a key."""

        def read(reply: Reply) -> None:
            if not reply.reachable:
                raise self._error("Redis cannot be reached")

        # Unlike DEL, this needs no right to delete keys.
        return self._then(self.limiter.window(self._key(key), _EVERYTHING, -ENDLESS_LIMIT), read)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Takes back all hits of a key."""
        return self.clear(key)

    def _fixed_of(self, key: str) -> Window:
        """Returns the fixed window of a key, for methods of the interface that have no parameter for the period."""
        period = self._periods.get(key) or _period_in(key)
        if period is None:
            raise LookupError(
                f"the period of {key!r} is not known: it has none in its name, as the keys of rate limit items have, and "
                "this process has not counted it"
            )
        return _fixed(period)

    def _oldest(self, key: str, window: Window, left: int, read: Callable[[int, float], T], looks: int = LOOKS) -> T:
        """Returns what `read` makes of the number of entries of a window, and the seconds until the oldest of them leaves:
        the wait of a call that asks for one more than is left."""

        def read_or_look(reply: Reply) -> T:
            if not is_decided(reply):
                return read(0 if reply.allowed else window.limit, 0.0)
            if reply.remaining not in (left, reply.limit) and looks > 1:
                return self._oldest(key, window, reply.remaining, read, looks - 1)
            wait_ms = reply.reset_after_ms if reply.retry_after_ms is None else reply.retry_after_ms
            return read(reply.limit - reply.remaining, wait_ms / 1000)

        return self._then(self.limiter.window_ro(self._key(key), window, left + 1), read_or_look)


class RateLimitStorage(
    _Storage, limits.storage.Storage, limits.storage.MovingWindowSupport, limits.storage.SlidingWindowCounterSupport
):
    """The storage for synchronous programs: fixed windows, moving windows, and moving windows of 64 steps instead of the
    sliding window counter.

    All keys begin with `key_prefix`. `unreachable` and `deadline` are those of redis_ratelimit.Limiter. All other options
    are options of the client, such as socket_timeout, connection_pool and, with Sentinel, service_name and sentinel_kwargs.
    """

    STORAGE_SCHEME = list(_SCHEMES)
    _limiter_class = Limiter

    def check(self) -> bool:
        """Returns whether the server answers and has redis-ratelimit."""
        try:
            reply: Reply = self.limiter.window_ro(self._key("check"), _window(1, 1), 0)
        except self.base_exceptions:
            return False
        return reply.reachable

    def reset(self) -> int | None:
        """Deletes all keys of the storage. Returns their number."""
        keys = list(self.storage.scan_iter(match=self._pattern, count=PAGE))
        return sum(int(self.storage.delete(*keys[at : at + PAGE])) for at in range(0, len(keys), PAGE))


class AsyncRateLimitStorage(  # type: ignore[misc]  # Its methods are awaited.
    _Storage,
    limits.aio.storage.Storage,
    limits.aio.storage.MovingWindowSupport,
    limits.aio.storage.SlidingWindowCounterSupport,
):
    """The storage for programs with asyncio: RateLimitStorage with methods that are awaited. It may be created when a module
    is imported, and used in several event loops, one after the other."""

    STORAGE_SCHEME = [f"async+{scheme}" for scheme in _SCHEMES]
    _limiter_class = asyncio.Limiter

    async def _then(self, reply: Any, read: Callable[[Reply], Any]) -> Any:  # type: ignore[override]
        result = read(await reply)
        return await result if isawaitable(result) else result

    async def check(self) -> bool:
        """Returns whether the server answers and has redis-ratelimit."""
        try:
            reply: Reply = await self.limiter.window_ro(self._key("check"), _window(1, 1), 0)
        except self.base_exceptions:
            return False
        return reply.reachable

    async def reset(self) -> int | None:
        """Deletes all keys of the storage. Returns their number."""
        # A client for asyncio belongs to the event loop in which it is used first.
        client = self._make_client()
        try:
            keys = [key async for key in client.scan_iter(match=self._pattern, count=PAGE)]
            return sum([int(await client.delete(*keys[at : at + PAGE])) for at in range(0, len(keys), PAGE)])
        finally:
            await client.aclose()
