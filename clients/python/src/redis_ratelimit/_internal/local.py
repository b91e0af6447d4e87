"""The base class of the local limits of both limiters. The native extension decides, and says what to send."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from . import calls
from .calls import Call
from .core import Failure
from .extension import native
from .limits import Window, WindowLike, is_semaphore, limit_words
from .replies import Reply
from .servers import encode
from .words import Duration, Key, milliseconds, period_ms, whole

logger = logging.getLogger("redis_ratelimit")

#: The shortest lease. As leases are given up early, too little would be left of a shorter one.
MIN_LEASE_MS = 20
#: The greatest limit that the server accepts.
MAX_LIMIT = 2**63 - 1


class Terms(NamedTuple):
    """What leases need to know of their limit."""

    limit: int | None
    #: How long a settled event is certain to count.
    counted_ms: int
    lease_ms: int
    leave: int


def read_terms(window: WindowLike, lease: Duration, leave: int) -> Terms:
    """Raises TypeError or ValueError if the window cannot be leased on these terms."""
    limit_words(window, Window)
    if is_semaphore(window):
        raise ValueError("a lease is of a window, and not of a semaphore: the period must not be 0")
    lease_ms = milliseconds("lease", lease, MIN_LEASE_MS)
    if whole("leave", leave) < 0:
        raise ValueError(f"leave must be at least 0, not {leave}")
    if not isinstance(window, Window):
        return Terms(None, 0, lease_ms, leave)
    if not 0 <= window.limit <= MAX_LIMIT:
        raise ValueError(f"the limit must be at least 0, and at most {MAX_LIMIT}, not {window.limit}")
    # In a window of the calendar, a lapsed reservation may leave as early as the end of its lease.
    is_calendar = window.fixed and (window.start or "").lower() != "first"
    counted_ms = 0 if is_calendar else period_ms(window.period, least=True) or 0
    return Terms(window.limit, counted_ms, lease_ms, leave)


class LocalBase:
    """A limit that is decided in the process, from what the process has reserved."""

    #: The number of times that a take asks the server before it gives up because others spend what arrives.
    ROUNDS = 20

    def __init__(self, core: Any, key: Key, window: WindowLike, lease: Duration, leave: int) -> None:
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"a key must be str or bytes, not {key!r}")
        terms = read_terms(window, lease, leave)
        self._core = core
        self._key = key
        self._window = window
        self._leave = leave
        self._pid = 0
        self._forget_parent()
        options = window.options() if isinstance(window, Window) else ()
        # The leases do not keep the local limit alive.
        wake = weakref.WeakMethod(self._wake)
        self._leases: Any = native("local()").Leases(
            encode(key, core.encoding),
            [encode(word, core.encoding) for word in limit_words(window, Window)],
            [encode(word, core.encoding) for word in options],
            *terms,
            wake=lambda: (method := wake()) and method(),
            late_error=core.library.timeout_error,
            clocks=core.clock and (core.clock, core.clock),
        )

    def _wake(self) -> None:
        """Starts or wakes the thread or task that sends commands."""
        raise NotImplementedError

    def _reset(self) -> None:
        """Forgets the thread or the task, which belongs to another process."""
        raise NotImplementedError

    def _forget_parent(self) -> None:
        """Forgets what a forked child inherited."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._reset()

    def try_take(self, quantity: int = 1) -> Reply | None:
        """Decides as take() does, but at once and without waiting, also with asyncio. Returns None if the process holds too
        little. Then it begins to ask the server, so that a later call can decide."""
        reply: Reply | None = self._leases.take(quantity)
        if reply is None:
            # It counts as demand when it is decided: until then the caller may try any number of times.
            self._leases.want(quantity, True)
        return reply

    def _call(self, round_: Any) -> Call[list[Any]]:
        """Returns the call that sends the commands of a round."""
        return calls.several_on(self._key, round_.commands)

    def _report(self, round_: Any, replies: list[Any] | Failure) -> None:
        """Reports the outcome of a round."""
        if isinstance(replies, Failure):
            logger.warning("the leases of %r could not be settled or asked for: %s", self._key, replies.error)
            self._leases.fail(round_, replies.error, replies.is_sent)
        else:
            code = self._core.library.code
            self._leases.receive(
                round_, [(code(reply), reply) if isinstance(reply, Exception) else reply for reply in replies]
            )

    def _answer_instead(self, error: Exception, quantity: int) -> Callable[[], Any]:
        """Returns what decides a take that the server did not answer, or raises the error."""
        core, unreachable = self._core, self._core.unreachable
        if unreachable == "raise" or not core.is_away(error):
            raise error
        logger.info("a take from %r is decided without Redis: %s", self._key, error)
        if isinstance(unreachable, str):
            return lambda: calls.unreached(unreachable == "allow", quantity=quantity)
        options: dict[str, Any] = {"leave": self._leave} if self._leave else {}
        return lambda: unreachable.window(self._key, self._window, quantity, **options)

    def _raise_unsettled(self) -> None:
        """Raises the error because of which close() could not settle all that was held."""
        error: Exception | None = self._leases.unsettled()
        if error is not None and not self._core.is_forgiven(error):
            raise error
