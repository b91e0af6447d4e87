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
from functools import lru_cache
from importlib import import_module
from math import ceil, floor
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import limits.aio.storage
import limits.limits
import limits.storage
from limits.errors import ConfigurationError

from . import asyncio
from ._internal import uris
from ._internal.core import Deadline, Unreachable
from ._internal.io import await_if_needed, blocking
from ._internal.limiter import Limiter
from ._internal.parameters import Window
from ._internal.replies import Busy, MissingModule, Reply, UnexpectedReply

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


@lru_cache(1000)
def _fixed(expiry: int) -> Window:
    return Window(ENDLESS_LIMIT, expiry, fixed=True, start="first")


@lru_cache(1000)
def _moving(limit: int, expiry: int) -> Window:
    return Window(limit, expiry)


@lru_cache(1000)
def _counter(limit: int, expiry: int) -> Window:
    return Window(limit, expiry, buckets=BUCKETS)


class _LastUsed(Generic[T]):
    """A cache with a value for each of the keys that were used last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: OrderedDict[str, T] = OrderedDict()

    def put(self, key: str, value: T) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > REMEMBERED:
                self._values.popitem(last=False)

    def get(self, key: str) -> T | None:
        return self._values.get(key)


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


def _is_unknown(reply: Reply) -> bool:
    return not reply.reachable and reply.limit == 0


def _count(reply: Reply) -> int:
    if _is_unknown(reply):
        return 0 if reply.allowed else ENDLESS_LIMIT
    return reply.limit - reply.remaining


class _Oldest(NamedTuple):
    """The number of entries of a window, and the seconds until the oldest of them leaves."""

    entries: int
    leaves_in: float


def _plain(uri: str) -> str:
    """Returns the URI without the prefixes of this storage."""
    return uri.removeprefix("async+").removeprefix("ratelimit+")


def _error_of(uri: str) -> type[Exception]:
    name = uris.parts(_plain(uri))[0]
    error: type[Exception] = getattr(import_module(f"{name}.exceptions"), f"{name.capitalize()}Error")
    return error


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
        self._uri, self._options = uri, options
        self.storage = self._make_client()
        self.limiter = self._limiter_class(self.storage, unreachable=unreachable, deadline=deadline)
        self.key_prefix = key_prefix
        self._error = _error_of(uri)
        self._periods: _LastUsed[int] = _LastUsed()
        self._remaining: _LastUsed[int] = _LastUsed()

    def _make_client(self) -> Any:
        is_asynchronous = self._limiter_class is asyncio.Limiter
        try:
            return uris.make_client(_plain(self._uri), self._options, asynchronous=is_asynchronous)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(str(error)) from error

    def _prefixed_key(self, key: str) -> str:
        """Returns the key in Redis."""
        return f"{self.key_prefix}:{key}"

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        """The errors that `limits` wraps with wrap_exceptions."""
        return self._error, Busy, MissingModule, UnexpectedReply

    def _remember(self, key: str, expiry: int) -> None:
        """Remembers the period of a key whose name does not have it."""
        if _period_in(key) != expiry:
            self._periods.put(key, expiry)

    def _window_of(self, key: str) -> Window:
        """Returns the fixed window of a key, for methods of the interface that have no parameter for the period."""
        period = self._periods.get(key) or _period_in(key)
        if period is None:
            raise LookupError(
                f"the period of {key!r} is not known: it has none in its name, as the keys of rate limit items have, and "
                "this process has not counted it"
            )
        return _fixed(period)

    @property
    def _pattern(self) -> str:
        """The pattern of all keys of the storage, for SCAN."""
        prefix = "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in self.key_prefix)
        return f"{prefix}:*"

    async def _oldest(self, key: str, window: Window) -> _Oldest:
        """Returns when the oldest event of a window leaves: after the wait of a call that asks for one more than is left.

        The last call on the key has reported how much is left. So one call is enough, unless others came in between.
        """
        left = None if window.limit == ENDLESS_LIMIT else self._remaining.get(key)
        left = window.limit if left is None else left
        for _ in range(LOOKS):
            reply: Reply = await self._ask("window_ro", self._prefixed_key(key), window, left + 1)
            if _is_unknown(reply):
                return _Oldest(0 if reply.allowed else window.limit, 0.0)
            if reply.remaining == reply.limit:
                return _Oldest(0, 0.0)
            if reply.remaining == left:
                break
            left = reply.remaining
        wait_ms = reply.reset_after_ms if reply.retry_after_ms is None else reply.retry_after_ms
        return _Oldest(reply.limit - reply.remaining, wait_ms / 1000)

    async def _ask(self, name: str, *args: Any) -> Any:
        return await await_if_needed(getattr(self.limiter, name)(*args))


class _AsyncMethods(_Storage):
    """The methods of the storage for asyncio, from which those of the synchronous one are made."""

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts in a fixed window that starts with its first hit. Returns its count."""
        self._remember(key, expiry)
        return _count(await self._ask("window", self._prefixed_key(key), _fixed(expiry), amount))

    async def get(self, key: str) -> int:
        """Returns the count of a fixed window."""
        # Asks for 1, because a call for 0 is never denied, not even while Redis is away.
        return _count(await self._ask("window_ro", self._prefixed_key(key), self._window_of(key), 1))

    async def get_expiry(self, key: str) -> float:
        """Returns when a fixed window ends, in Unix seconds by the clock of this machine, up to a second late."""
        reply: Reply = await self._ask("window_ro", self._prefixed_key(key), self._window_of(key), 0)
        return _end_in(reply.reset_after_ms / 1000) if reply.reset_after_ms else time.time()

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes entries of a moving window, all or none of them."""
        reply: Reply = await self._ask("window", self._prefixed_key(key), _moving(limit, expiry), amount)
        if reply.reachable:
            self._remaining.put(key, reply.remaining)
        return reply.allowed

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns the time of the oldest entry of a moving window, in Unix seconds by the clock of this machine, up to a
        second late, and the number of entries."""
        oldest = await self._oldest(key, _moving(limit, expiry))
        return (_end_in(oldest.leaves_in) - expiry, oldest.entries) if oldest.entries else (time.time(), 0)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes entries of a moving window of 64 steps, all or none of them."""
        reply: Reply = await self._ask("window", self._prefixed_key(key), _counter(limit, expiry), amount)
        return reply.allowed

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns 0 for the previous window, and the count of the last period for the current window."""
        oldest = await self._oldest(key, _counter(ENDLESS_LIMIT, expiry))
        if not oldest.entries:
            return 0, 0.0, 0, 0.0
        leaves_in = _end_in(oldest.leaves_in) - time.time()
        # `limits` takes a whole period for nothing, so the time is kept below it.
        return 0, 0.0, oldest.entries, min(leaves_in, expiry - 0.000_001)

    async def check(self) -> bool:
        """Returns whether the server answers and has redis-ratelimit."""
        try:
            reply: Reply = await self._ask("window_ro", self._prefixed_key("check"), _moving(1, 1), 0)
        except self.base_exceptions:
            return False
        return reply.reachable

    async def clear(self, key: str) -> None:
        """Takes back all hits of a key."""
        # Unlike DEL, this needs no right to delete keys.
        reply: Reply = await self._ask("window", self._prefixed_key(key), _EVERYTHING, -ENDLESS_LIMIT)
        if not reply.reachable:
            raise self._error("Redis cannot be reached")

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Takes back all hits of a key."""
        await _AsyncMethods.clear(self, key)


class RateLimitStorage(
    _Storage,
    limits.storage.Storage,
    limits.storage.MovingWindowSupport,
    limits.storage.SlidingWindowCounterSupport,
):
    """The storage for synchronous programs: fixed windows, moving windows, and moving windows of 64 steps instead of the
    sliding window counter.

    All keys begin with `key_prefix`. `unreachable` and `deadline` are those of redis_ratelimit.Limiter. All other options
    are options of the client, such as socket_timeout, connection_pool and, with Sentinel, service_name and sentinel_kwargs.
    """

    STORAGE_SCHEME = list(_SCHEMES)
    _limiter_class = Limiter

    incr = blocking(_AsyncMethods.incr)
    get = blocking(_AsyncMethods.get)
    get_expiry = blocking(_AsyncMethods.get_expiry)
    acquire_entry = blocking(_AsyncMethods.acquire_entry)
    get_moving_window = blocking(_AsyncMethods.get_moving_window)
    acquire_sliding_window_entry = blocking(_AsyncMethods.acquire_sliding_window_entry)
    get_sliding_window = blocking(_AsyncMethods.get_sliding_window)
    clear_sliding_window = blocking(_AsyncMethods.clear_sliding_window)
    check = blocking(_AsyncMethods.check)
    clear = blocking(_AsyncMethods.clear)

    def reset(self) -> int | None:
        """Deletes all keys of the storage. Returns their number."""
        keys = list(self.storage.scan_iter(match=self._pattern, count=PAGE))
        return sum(int(self.storage.delete(*keys[at : at + PAGE])) for at in range(0, len(keys), PAGE))


class AsyncRateLimitStorage(
    _AsyncMethods,
    limits.aio.storage.Storage,
    limits.aio.storage.MovingWindowSupport,
    limits.aio.storage.SlidingWindowCounterSupport,
):
    """The storage for programs with asyncio: RateLimitStorage with methods that are awaited. It may be created when a module
    is imported, and used in several event loops, one after the other."""

    STORAGE_SCHEME = [f"async+{scheme}" for scheme in _SCHEMES]
    _limiter_class = asyncio.Limiter

    async def reset(self) -> int | None:
        """Deletes all keys of the storage. Returns their number."""
        # A client for asyncio belongs to the event loop in which it is used first.
        client = self._make_client()
        try:
            keys = [key async for key in client.scan_iter(match=self._pattern, count=PAGE)]
            return sum([int(await client.delete(*keys[at : at + PAGE])) for at in range(0, len(keys), PAGE)])
        finally:
            await client.aclose()
