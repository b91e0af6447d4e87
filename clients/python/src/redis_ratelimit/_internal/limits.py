"""Limits, and their words in a command."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Union

from .words import UNITS, Period, Word, flag, period_ms, period_word, whole

_UNIT_OF = {word: unit for unit, words in UNITS.items() for word in (unit, *words)}


def _check_unit(unit: str | None) -> None:
    if unit is None:
        return
    if not isinstance(unit, str):
        raise TypeError(f"unit must be a text such as 'tokens', not {unit!r}")
    if not unit or not all(" " <= letter <= "~" for letter in unit):
        raise ValueError(f"unit must be printable ASCII such as 'tokens', not {unit!r}")


def _per(text: str) -> tuple[int, str]:
    """Returns the count and the period of a text such as "30/min"."""
    if not isinstance(text, str):
        raise TypeError(f"a limit must be a text such as '30/min', not {text!r}")
    match = re.fullmatch(r"\s*(\d+)\s*(?:/|\s+per\s+)\s*(\d*)\s*([a-z]+)\s*", text, re.IGNORECASE | re.ASCII)
    unit = _UNIT_OF.get(match[3].lower()) if match else None
    if match is None or unit is None:
        hint = ", and not m, which may be min or mo" if match and match[3].lower() == "m" else ""
        raise ValueError(
            f"{text!r} must be a count, / and a period, such as '30/min' or '5/10s', with a unit of "
            f"{', '.join(UNITS)}{hint}"
        )
    number = int(match[2] or 1)
    if number == 0:
        raise ValueError(f"the period must be above 0, not as in {text!r}")
    return int(match[1]), f"{number}{unit}"


class TypedLimit:
    """The base class of Rate and Window. With it, type checkers infer the type of a list of both."""


@dataclass(frozen=True)
class Rate(TypedLimit):
    """A rate: `count` for each `period` in the long run, and up to `burst` + 1 at once. The limit of RL.THROTTLE."""

    burst: int
    count: int
    period: Period

    def __post_init__(self) -> None:
        whole("burst", self.burst)
        whole("count", self.count)
        word = period_word(self.period)
        if re.fullmatch(r"\d+(mo|y)", str(word), re.IGNORECASE | re.ASCII):
            raise ValueError(f"the period of a rate must not be in months or years, which differ in length: {word!r}")
        if period_ms(self.period) == 0:
            raise ValueError(f"the period of a rate must be above 0, not {self.period!r}")
        # Cached, because a rate is created once and used often.
        object.__setattr__(self, "_words", (self.burst, self.count, word))

    @staticmethod
    def per(text: str, *, capacity: int | None = None) -> Rate:
        """Returns the rate in a text: "30/min" is 30 a minute, "5/10s" is 5 in 10 seconds.

        `capacity`, at least 1, is the quantity that is available at once. By default it is the count.
        """
        count, period = _per(text)
        if count < 1:
            raise ValueError(f"the count of a rate must be at least 1, not {text!r}")
        if capacity is None:
            capacity = count
        if whole("capacity", capacity) < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        return Rate(capacity - 1, count, period)

    def words(self) -> tuple[Word, ...]:
        """Returns the words of the limit in a command."""
        words: tuple[Word, ...] = self.__dict__["_words"]
        return words


@dataclass(frozen=True)
class Window(TypedLimit):
    """A window: at most `limit` in any `period`. The limit of RL.WINDOW and RL.ACQUIRE.

    `buckets` is the greatest number of entries that the window keeps. With `fixed`, windows follow the calendar, in the time
    zone `tz` if there is one. `start` says when they start: at a time of day ("09:00"), on a day of the week, the month or
    the year, with or without a time of day ("sun", "15@09:00", "04-06"), on a date ("2026-11-02"), or with the first event
    ("first"). The period 0 makes a semaphore, see semaphore(). `unit` is the name of the counted unit in HTTP headers, such
    as "tokens". Without it, requests are counted.
    """

    limit: int
    period: Period
    buckets: int | None = None
    fixed: bool = False
    tz: str | None = None
    start: str | None = None
    unit: str | None = None

    def __post_init__(self) -> None:
        whole("limit", self.limit)
        _check_unit(self.unit)
        period_word(self.period)
        if self.buckets is not None:
            whole("buckets", self.buckets)
        flag("fixed", self.fixed)
        for name, example, value in ("tz", "Asia/Tokyo", self.tz), ("start", "09:00", self.start):
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a text such as {example!r}, not {value!r}")
            if not self.fixed:
                raise ValueError(f"{name} must be used with fixed=True")
        if self.tz is not None and (self.start or "").lower() == "first":
            raise ValueError("tz and start='first' must not be used together")
        if self.buckets is not None and self.fixed:
            raise ValueError("buckets and fixed must not be used together")

    @staticmethod
    def per(
        text: str,
        *,
        buckets: int | None = None,
        fixed: bool = False,
        tz: str | None = None,
        start: str | None = None,
        unit: str | None = None,
    ) -> Window:
        """Returns the window in a text: "5/min" is at most 5 in any minute, "3/10s" at most 3 in any 10 seconds."""
        limit, period = _per(text)
        return Window(limit, period, buckets, fixed, tz, start, unit)

    def words(self) -> tuple[Word, ...]:
        """Returns the words of the limit in a command."""
        return self.limit, period_word(self.period)

    def options(self) -> tuple[Word, ...]:
        """Returns the options that the window adds to a command."""
        words: tuple[Word, ...] = ()
        if self.buckets is not None:
            words += ("BUCKETS", self.buckets)
        if self.fixed:
            words += ("FIXED",)
        if self.start is not None:
            words += ("FROM", self.start)
        if self.tz is not None:
            words += ("TZ", self.tz)
        return words


def semaphore(limit: int) -> Window:
    """Returns a semaphore, of which at most `limit` units are held at one time."""
    return Window(limit, 0)


def is_semaphore(limit: Rate | Window | str | None) -> bool:
    """Returns whether a limit is a semaphore, whose reservations can only be released. It returns False for a policy, of
    which only the server knows that."""
    return isinstance(limit, Window) and limit.words()[1] in (0, "0")


def refuse_semaphore(limit: Rate | Window | str | None) -> None:
    """Raises ValueError for a semaphore where something is counted or closed."""
    if is_semaphore(limit):
        raise ValueError("a semaphore has no period to count in, and cannot be closed: use reserve or acquire")


#: A rate, or the name of a policy of the server with its "@", such as "@free".
RateLike = Union[Rate, str]
#: A window, or the name of a policy of the server with its "@".
WindowLike = Union[Window, str]


def check_policy(name: str, *kinds: str) -> None:
    """Raises ValueError unless a name begins with "@". For a limit in words, such as "5/min", the error says how to create
    one of these kinds."""
    if name.startswith("@"):
        return
    if re.match(r"\s*\d", name):
        raise ValueError(f"for a limit in words use {' or '.join(f'{kind}.per({name!r})' for kind in kinds)}")
    raise ValueError(f"the policy {name!r} must begin with @")


def limit_words(limit: Rate | Window | str | None, kind: type[Rate] | type[Window]) -> tuple[Word, ...]:
    """Returns the words of a limit in a command. Raises TypeError if the command does not take this kind of limit."""
    if isinstance(limit, kind):
        return limit.words()
    if isinstance(limit, str):
        check_policy(limit, kind.__name__)
        return (limit,)
    raise TypeError(f"the limit must be a {kind.__name__} or the name of a policy, such as '@free', not {limit!r}")


def method_of(limit: Any, kind: str | None) -> str:
    """Returns the name of the method that asks a limit. For a policy, only the program knows it: it is `kind`."""
    if isinstance(limit, str):
        check_policy(limit, "Rate", "Window")
        if kind not in ("throttle", "window"):
            raise ValueError(f"kind must be 'throttle' or 'window' with the policy {limit!r}, not {kind!r}")
        return kind
    if not isinstance(limit, (Rate, Window)):
        raise TypeError(f"the limit must be a Rate, a Window or the name of a policy, not {limit!r}")
    method = "throttle" if isinstance(limit, Rate) else "window"
    if kind not in (None, method):
        raise ValueError(f"a {type(limit).__name__} is asked by {method}, not by {kind}")
    return method
