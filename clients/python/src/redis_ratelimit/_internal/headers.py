"""HTTP headers that report the state of limits, and the problem details of denials."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Union

from .parameters import Rate, TypedLimit, Window, is_semaphore, period_ms
from .replies import AllReply, Reply

#: A limit of any kind: a rate, a window, or the name of a policy.
Limit = Union[Rate, Window, str]
#: A limit in a list, which may have rates and windows.
AnyLimit = Union[TypedLimit, str]
#: A partition key: who or what the quota is kept for.
PartitionKey = Union[str, bytes]
#: The versions of draft-ietf-httpapi-ratelimit-headers that can be chosen.
VERSIONS = (10,)
#: The longest wait for what others hold.
HELD_WAIT_MS = 1000
# The largest integer of RFC 9651.
_MAX_INTEGER = 999_999_999_999_999
_PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"


def seconds(ms: int | Fraction) -> int:
    """Returns a duration in whole seconds, rounded up, so that waiting that long is enough."""
    return max(0, ceil(Fraction(ms) / 1000))


def _quota(limit: Limit | None, reply: Reply) -> tuple[int, int | None]:
    """Returns a quantity and in how many seconds it is available. Their quotient is never below the true rate."""
    ms = None if limit is None or isinstance(limit, str) else period_ms(limit.period)
    if not ms:
        return reply.limit, None
    if isinstance(limit, Window):
        # The draft's windows are whole seconds.
        return reply.limit, None if ms % 1000 else ms // 1000
    assert isinstance(limit, Rate)
    # The time in which the empty bucket fills, in whole seconds. A bucket of 1 that gets 3 a second is full after a third of
    # a second, but "1 in a second" would be too little.
    window = seconds(Fraction((limit.burst + 1) * ms, limit.count))
    return max(reply.limit, ceil(Fraction(limit.count * window * 1000, ms))), window


def _more_in_ms(limit: Limit | None, reply: Reply) -> int | Fraction:
    """Returns the wait until more is available, as exactly as the reply allows; 0 if all is available."""
    retry, reset = reply.retry_after_ms, reply.reset_after_ms
    # A ban is a long wait for everything.
    is_banned = retry is not None and reply.remaining == 0 and retry >= reset
    ms = period_ms(limit.period) if isinstance(limit, Rate) else None
    if not isinstance(limit, Rate) or ms is None or is_banned:
        return reset if retry is None else retry
    if reply.remaining >= reply.limit:
        return 0
    # The bucket is full in reset_after. The next unit comes earlier by the time that all other missing units need. Both
    # times are rounded up, so one may be a millisecond behind the other.
    others = reply.limit - reply.remaining - 1
    exact = max(Fraction(1), reset - Fraction(others * ms, limit.count))
    # The denied call may have asked for more than one.
    return exact if retry is None or exact < retry else retry


def structured_string(text: str) -> str:
    """Returns a text as a String of RFC 9651."""
    if not all(" " <= letter <= "~" for letter in text):
        raise ValueError(f"the name {text!r} must be printable ASCII")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bytes(pk: PartitionKey) -> str:
    return ":" + b64encode(pk.encode() if isinstance(pk, str) else pk).decode("ascii") + ":"


@dataclass(frozen=True)
class Item:
    """One limit in the headers."""

    name: str
    limit: Limit | None
    reply: Reply
    pk: PartitionKey | None = None
    #: True if this limit denied the call.
    has_denied: bool = False

    def policy(self) -> str:
        """Returns the item of the limit in RateLimit-Policy."""
        quota, window = _quota(self.limit, self.reply)
        unit = self.limit.unit if isinstance(self.limit, Window) else None
        if unit is None and is_semaphore(self.limit):
            unit = "concurrent-requests"
        text = f"{structured_string(self.name)};q={min(quota, _MAX_INTEGER)}"
        if unit is not None:
            text += f";qu={structured_string(unit)}"
        if window is not None:
            text += f";w={min(window, _MAX_INTEGER)}"
        return text if self.pk is None else f"{text};pk={_bytes(self.pk)}"

    def service_limit(self) -> str:
        """Returns the item of the limit in RateLimit."""
        text = f"{structured_string(self.name)};r={min(self.reply.remaining, _MAX_INTEGER)}"
        wait = min(seconds(_more_in_ms(self.limit, self.reply)), _MAX_INTEGER)
        if wait:
            text += f";t={wait}"
        return text if self.pk is None else f"{text};pk={_bytes(self.pk)}"


def _list(value: Any, *single: type) -> list[Any]:
    return [value] if isinstance(value, single) else list(value)


def items_of(
    reply: Reply,
    limits: Limit | Sequence[AnyLimit | None] | None = None,
    names: str | Sequence[str] = (),
    pk: PartitionKey | Sequence[PartitionKey | None] | None = None,
) -> list[Item]:
    """Returns the limits in a reply. Their names need not be unique."""
    of_limits: list[Any] = []
    if isinstance(limits, Sequence) and not isinstance(limits, str):
        of_limits = list(limits)
    elif limits is not None:
        of_limits = [limits]
    of_names = _list(names, str)
    of_keys = [] if pk is None else _list(pk, str, bytes)
    answers = reply.answers if isinstance(reply, AllReply) else (reply,)
    if isinstance(pk, (str, bytes)):
        of_keys = [pk] * len(answers)
    items = []
    for at, answer in enumerate(answers):
        limit = of_limits[at] if at < len(of_limits) else None
        if limit is not None and not isinstance(limit, (Rate, Window, str)):
            raise TypeError(f"each of limits must be a Rate, a Window, the name of a policy or None, not {limit!r}")
        if at < len(of_names):
            name = of_names[at]
        elif isinstance(limit, str):
            name = limit.removeprefix("@")
        else:
            name = "default" if len(answers) == 1 else f"limit-{at + 1}"
        pk = of_keys[at] if at < len(of_keys) else None
        items.append(Item(name, limit, answer, pk, _has_denied(reply, at)))
    return items


def _has_denied(reply: Reply, at: int) -> bool:
    """Returns whether the limit of this answer denied the call. Another one that is in shadow, or in a group whose other
    limit could have paid, may have a denial as its answer."""
    if not isinstance(reply, AllReply):
        return not reply.allowed
    if reply.names:
        return reply.names[at] in reply.denied
    # A reply that the program made itself need not have the names.
    return not reply.allowed and not reply.answers[at].allowed


def wait_ms(reply: Reply) -> int | None:
    """Returns how long a denied client should wait; None if waiting does not help. That is at most a second if only others
    hold what is missing: they may give it back at any time."""
    wait = reply.retry_after_ms
    if wait is None:
        return None
    if reply.limited == 2:
        return min(wait, HELD_WAIT_MS)
    answers = reply.answers if isinstance(reply, AllReply) else ()
    waits = [wait_ms(answer) for at, answer in enumerate(answers) if _has_denied(reply, at)]
    # An answer without a wait may be that of a group whose other limit can be waited for.
    return min(wait, max(wait if each is None else each for each in waits)) if waits else wait


def with_unique_names(items: Sequence[Item]) -> list[Item]:
    """Returns the items with unique names: the second of a name is called name-2, and so on."""
    used: set[str] = set()
    return [replace(item, name=unique_name(item.name, used)) for item in items]


def unique_name(name: str, used: set[str]) -> str:
    """Returns a name that is not used, and adds it to `used`."""
    unique, number = name, 1
    while unique in used:
        number += 1
        unique = f"{name}-{number}"
    used.add(unique)
    return unique


def check_version(version: int) -> None:
    """Raises ValueError for an unknown version of the draft."""
    if version not in VERSIONS:
        raise ValueError(f"version must be one of {', '.join(map(str, VERSIONS))}, not {version!r}")


def standard_headers(items: Sequence[Item]) -> dict[str, str]:
    """Returns RateLimit-Policy and RateLimit."""
    if not items:
        return {}
    return {
        "RateLimit-Policy": ", ".join(item.policy() for item in items),
        "RateLimit": ", ".join(item.service_limit() for item in items),
    }


def x_headers(reply: Reply) -> dict[str, str]:
    """Returns X-RateLimit-Limit, -Remaining and -Reset."""
    return {
        "X-RateLimit-Limit": str(reply.limit),
        "X-RateLimit-Remaining": str(reply.remaining),
        "X-RateLimit-Reset": str(seconds(reply.reset_after_ms)),
    }


def quota_exceeded(items: Sequence[Item]) -> dict[str, Any]:
    """Returns the problem of a request that was checked against these limits, and denied."""
    return {
        "type": f"{_PROBLEM_TYPES}quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": [item.name for item in items if item.has_denied],
    }


def reduced_capacity() -> dict[str, Any]:
    """Returns the problem of a request that no server could decide."""
    return {
        "type": f"{_PROBLEM_TYPES}temporary-reduced-capacity",
        "title": "Request cannot be satisfied due to temporary server capacity constraints",
        "status": 503,
        "violated-policies": [],
    }
