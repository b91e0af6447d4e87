"""The words of values in a command, and the checks of these values."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Union

Word = Union[str, bytes, int]
#: A key in Redis.
Key = Union[str, bytes]

#: Seconds, a number with a unit ("500ms", "10s", "5min", "2h", "1d", "1w", "1mo", "1y"), or a timedelta.
Period = Union[int, str, timedelta]

#: A number with a unit ("500ms", "10s", "5min", "2h", "1d", "1w"), or a timedelta.
Duration = Union[str, timedelta]

#: The units of periods, and other names of each.
UNITS = {
    "ms": ("millisecond", "milliseconds"),
    "s": ("sec", "second", "seconds"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "d": ("day", "days"),
    "w": ("week", "weeks"),
    "mo": ("month", "months"),
    "y": ("year", "years"),
}


def whole(name: str, value: object) -> int:
    """Returns `value` if it is an integer. Raises TypeError for anything else, including True and False."""
    if type(value) is int or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{name} must be an integer, not {value!r}")


def text_word(name: str, value: object) -> Word:
    """Returns `value` if it is a str or bytes that can be sent. Raises TypeError or ValueError for anything else."""
    if isinstance(value, str):
        value.encode()  # Raises ValueError for half of a surrogate pair.
    elif not isinstance(value, bytes):
        raise TypeError(f"the {name} must be str or bytes, not {value!r}")
    return value


def flag(name: str, value: object) -> bool:
    """Returns `value` if it is True or False. Raises TypeError for anything else."""
    if isinstance(value, bool):
        return value
    raise TypeError(f"{name} must be True or False, not {value!r}")


#: The lengths of the units, in milliseconds. Months and years have no fixed length.
UNIT_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


#: The shortest month and the shortest year.
_MIN_MS = {"mo": 28 * UNIT_MS["d"], "y": 365 * UNIT_MS["d"]}


def length_ms(text: str, units: dict[str, int] = UNIT_MS) -> int | None:
    """Returns the length of a text such as "5min" whose unit is one of `units`; None for any other text."""
    match = re.fullmatch(r"(\d+)([a-z]*)", text, re.IGNORECASE | re.ASCII)
    unit = units.get(match[2].lower()) if match else None
    return None if match is None or unit is None else int(match[1]) * unit


def period_ms(period: Period, least: bool = False) -> int | None:
    """Returns the length of a period in milliseconds. Months and years have no fixed length: it is the shortest one with
    `least`, and None without. It is also None for a text that is not a period, which the server refuses."""
    if isinstance(period, timedelta):
        return milliseconds("period", period)
    return length_ms(str(period), {"": UNIT_MS["s"], **UNIT_MS, **(_MIN_MS if least else {})})


def milliseconds(name: str, duration: Duration, min_ms: int = 0) -> int:
    """Returns a duration in whole milliseconds.

    Raises TypeError unless it is a str or a timedelta, and ValueError if it is shorter than `min_ms` milliseconds, not a
    whole number of them, or has an unknown unit. A bare number might be seconds, as in a period, or milliseconds.
    """
    if isinstance(duration, str):
        length = length_ms(duration, UNIT_MS)
        if length is None:
            raise ValueError(f"{name} must be a number with a unit of {', '.join(UNIT_MS)}, not {duration!r}")
    elif isinstance(duration, timedelta):
        length, rest = divmod(duration, timedelta(milliseconds=1))
        if rest:
            raise ValueError(f"{name} must be a whole number of milliseconds, not {duration!r}")
    elif type(duration) is int:
        raise TypeError(f"{name} must have a unit: write '{duration}ms' or '{duration}s', not {duration}")
    else:
        raise TypeError(f"{name} must be a text such as '5s' or '250ms' or a timedelta, not {duration!r}")
    if length < min_ms:
        raise ValueError(f"{name} must be at least {min_ms} ms, not {duration!r}")
    return length


def duration_word(name: str, duration: Duration, min_ms: int = 1) -> Word:
    """Returns the word of a duration in a command. A text is sent as it is."""
    ms = milliseconds(name, duration, min_ms)
    return duration if isinstance(duration, str) else ms


def period_word(period: Period) -> Word:
    if isinstance(period, timedelta):
        ms = milliseconds("period", period)
        return f"{ms}ms" if ms % 1000 else ms // 1000
    if isinstance(period, bool) or not isinstance(period, (int, str)):
        raise TypeError(f"period must be an integer of seconds, a text such as '5min' or a timedelta, not {period!r}")
    # The server checks the unit. Its error for "1m" says that it may mean min or mo.
    if isinstance(period, str) and not re.fullmatch(r"\d+[a-z]*", period, re.IGNORECASE | re.ASCII):
        raise ValueError(f"period must be seconds, or a number with a unit of {', '.join(UNITS)}, not {period!r}")
    return period
