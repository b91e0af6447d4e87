"""Limits, and how they are written in a command."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Union

Word = Union[str, bytes, int]

#: Seconds, a number with a unit ("500ms", "10s", "5min", "2h", "1d", "1w", "1mo", "1y"), or a timedelta.
Period = Union[int, str, timedelta]

#: Milliseconds, or a timedelta.
Duration = Union[int, timedelta]


def milliseconds(duration: Duration) -> int:
    """A duration in whole milliseconds; ValueError if it is no whole number of them."""
    if isinstance(duration, int):
        return duration
    whole, rest = divmod(duration, timedelta(milliseconds=1))
    if rest:
        raise ValueError(f"{duration!r} must be a whole number of milliseconds")
    return whole


def period_word(period: Period) -> Word:
    if isinstance(period, timedelta):
        ms = milliseconds(period)
        return f"{ms}ms" if ms % 1000 else ms // 1000
    return period


@dataclass(frozen=True)
class Rate:
    """`count` for each `period` in the long run, and up to `burst` + 1 at once. RL.THROTTLE takes it."""

    burst: int
    count: int
    period: Period

    def words(self) -> tuple[Word, ...]:
        return self.burst, self.count, period_word(self.period)


@dataclass(frozen=True)
class Window:
    """At most `limit` in any `period`. RL.WINDOW and RL.ACQUIRE take it.

    `buckets` is the number of entries that the window keeps at most. `fixed` uses the windows of the calendar, in the
    time zone `tz` if given. The period 0 has no window and is a semaphore, see semaphore().
    """

    limit: int
    period: Period
    buckets: int | None = None
    fixed: bool = False
    tz: str | None = None

    def __post_init__(self) -> None:
        if self.tz is not None and not self.fixed:
            raise ValueError("tz must be used with fixed=True")
        if self.buckets is not None and self.fixed:
            raise ValueError("buckets and fixed must not be used together")

    def words(self) -> tuple[Word, ...]:
        return self.limit, period_word(self.period)

    def options(self) -> tuple[Word, ...]:
        words: tuple[Word, ...] = ()
        if self.buckets is not None:
            words += ("BUCKETS", self.buckets)
        if self.fixed:
            words += ("FIXED",)
        if self.tz is not None:
            words += ("TZ", self.tz)
        return words


def semaphore(limit: int) -> Window:
    """At most `limit` held at one time."""
    return Window(limit, 0)


#: A rate, or the name of a policy of the server with its "@", such as "@free".
RateLike = Union[Rate, str]
#: A window, or the name of a policy of the server with its "@".
WindowLike = Union[Window, str]


def _policy(name: str) -> tuple[Word, ...]:
    if not name.startswith("@"):
        raise ValueError(f"the policy {name!r} must begin with @")
    return (name,)


def limit_words(limit: Rate | Window | str) -> tuple[Word, ...]:
    """What stands in the limit's place."""
    return _policy(limit) if isinstance(limit, str) else limit.words()


def limit_options(limit: Rate | Window | str) -> tuple[Word, ...]:
    """What the limit adds to the options."""
    return limit.options() if isinstance(limit, Window) else ()
