"""HTTP headers that tell a client how it stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from fractions import Fraction
from math import ceil

from .limits import Period, Rate, Window, milliseconds
from .replies import AllReply, Reply

Limit = Rate | Window | str
_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
# The largest integer of RFC 9651.
_MOST = 999_999_999_999_999


def _seconds(ms: int | Fraction) -> int:
    return max(0, ceil(Fraction(ms) / 1000))


def _period_ms(period: Period) -> int | None:
    """None for months and years, which have no fixed length."""
    if isinstance(period, timedelta):
        return milliseconds("period", period)
    found = re.fullmatch(r"(\d+)([a-z]*)", str(period).lower())
    unit = _UNITS.get(found[2] or "s") if found else None
    return int(found[1]) * unit if found and unit else None


def _window_seconds(limit: Limit | None) -> int | None:
    """The time in which the whole quota comes back."""
    if limit is None or isinstance(limit, str):
        return None
    ms = _period_ms(limit.period)
    if not ms:
        return None
    if isinstance(limit, Rate):
        return _seconds(Fraction((limit.burst + 1) * ms, limit.count))
    # The draft's windows are whole seconds.
    return None if ms % 1000 else ms // 1000


def _string(text: str) -> str:
    if not all(" " <= letter <= "~" for letter in text):
        raise ValueError(f"the name {text!r} must be printable ASCII")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _policy(name: str, limit: Limit | None, reply: Reply) -> str:
    item = f"{_string(name)};q={min(reply.limit, _MOST)}"
    if isinstance(limit, Window) and limit.words()[1] in (0, "0"):
        item += ';qu="concurrent-requests"'
    window = _window_seconds(limit)
    return item if window is None else f"{item};w={window}"


def _service_limit(name: str, reply: Reply) -> str:
    item = f"{_string(name)};r={min(reply.remaining, _MOST)}"
    wait = reply.reset_after_ms if reply.retry_after_ms is None else reply.retry_after_ms
    return f"{item};t={_seconds(wait)}" if wait else item


def _named(reply: Reply, limits: Sequence[Limit | None], names: Sequence[str]) -> list[tuple[str, Limit | None, Reply]]:
    answers = reply.answers if isinstance(reply, AllReply) else (reply,)
    named = []
    for at, answer in enumerate(answers):
        limit = limits[at] if at < len(limits) else None
        if at < len(names):
            name = names[at]
        elif isinstance(limit, str):
            name = limit.removeprefix("@")
        else:
            name = "default" if len(answers) == 1 else f"limit-{at + 1}"
        named.append((name, limit, answer))
    return named


def headers(
    reply: Reply,
    limits: Limit | Sequence[Limit | None] | None = None,
    names: str | Sequence[str] = (),
    *,
    standard: bool = True,
    x_ratelimit: bool = True,
) -> dict[str, str]:
    """The headers for an answer; none if Redis could not be reached.

    RateLimit and RateLimit-Policy are those of draft-ietf-httpapi-ratelimit-headers-10 (`standard`), with one
    item for each limit; X-RateLimit-Limit, -Remaining and -Reset (`x_ratelimit`) are of the limit that decides, the last
    in seconds from now. Retry-After comes with a denial that has an end. `limits` are those that were asked, for the
    window of the policy; a policy's name names its item, or `names` do.
    """
    if not reply.reachable:
        return {}
    found: dict[str, str] = {}
    if standard:
        of_limits = [limits] if limits is None or isinstance(limits, (str, Rate, Window)) else list(limits)
        named = _named(reply, of_limits, [names] if isinstance(names, str) else list(names))
        found["RateLimit-Policy"] = ", ".join(_policy(*each) for each in named)
        found["RateLimit"] = ", ".join(_service_limit(name, answer) for name, _, answer in named)
    if x_ratelimit:
        found["X-RateLimit-Limit"] = str(reply.limit)
        found["X-RateLimit-Remaining"] = str(reply.remaining)
        found["X-RateLimit-Reset"] = str(_seconds(reply.reset_after_ms))
    if not reply.allowed and reply.retry_after_ms is not None:
        found["Retry-After"] = str(_seconds(reply.retry_after_ms))
    return found
