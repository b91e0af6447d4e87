"""HTTP headers that report the state of limits, or that other services send, and the problem details of denials."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.message import Message
from email.utils import parsedate_to_datetime
from fractions import Fraction
from itertools import chain, count, repeat
from math import ceil
from typing import Any, NamedTuple, Union

from .._internal.clauses import Clause
from .._internal.limits import Rate, TypedLimit, Window, is_semaphore
from .._internal.replies import AllReply, Reply
from .._internal.words import period_ms

#: A limit of any kind: a rate, a window, or the name of a policy.
Limit = Union[Rate, Window, str]
#: A limit in a list, which may have rates, windows, clauses, and groups of clauses.
AnyLimit = Union[TypedLimit, str, Clause, Sequence[Clause]]
#: A partition key: who or what the quota is kept for.
PartitionKey = Union[str, bytes]
#: The versions of draft-ietf-httpapi-ratelimit-headers that can be chosen.
VERSIONS = (10,)
#: The longest wait for what others hold.
HELD_WAIT_MS = 1000
#: The longest ban of a key: a year of 365.25 days.
_LONGEST_BAN = timedelta(days=365.25)
# The largest integer of RFC 9651.
_MAX_INTEGER = 999_999_999_999_999
_PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"


def seconds(ms: int | Fraction) -> int:
    """Returns a duration in whole seconds, rounded up, so that waiting that long is enough."""
    return max(0, ceil(Fraction(ms) / 1000))


def is_decided(reply: Reply) -> bool:
    """Returns False if nobody decided: Redis did not answer, and `unreachable` allows or denies all calls."""
    return reply.reachable or reply.limit > 0 or bool(getattr(reply, "answers", ()))


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


def _has_denied(reply: Reply, at: int) -> bool:
    """Returns whether the limit of this answer denied the call. Another one that is in shadow, or in a group whose other
    limit could have paid, may have a denial as its answer."""
    if not isinstance(reply, AllReply):
        return not reply.allowed
    if reply.names:
        return reply.names[at] in reply.denied
    # A reply that the program made itself need not have the names.
    return not reply.allowed and not reply.answers[at].allowed


def _string(text: str) -> str:
    """Returns a text as a String of RFC 9651."""
    if not all(" " <= letter <= "~" for letter in text):
        raise ValueError(f"the name {text!r} must be printable ASCII")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Item(NamedTuple):
    """One limit in the headers."""

    name: str
    limit: Limit | None
    reply: Reply
    pk: PartitionKey | None
    #: True if this limit denied the call.
    has_denied: bool

    def policy(self) -> str:
        """Returns the item of the limit in RateLimit-Policy."""
        quota, window = self._quota()
        unit = self.limit.unit if isinstance(self.limit, Window) else None
        if unit is None and is_semaphore(self.limit):
            unit = "concurrent-requests"
        return self._with_pk(q=quota, qu=unit and _string(unit), w=window)

    def service_limit(self) -> str:
        """Returns the item of the limit in RateLimit."""
        return self._with_pk(r=self.reply.remaining, t=seconds(self._more_in_ms()) or None)

    def _with_pk(self, **parameters: int | str | None) -> str:
        if self.pk is not None:
            pk = self.pk.encode() if isinstance(self.pk, str) else self.pk
            parameters["pk"] = f":{b64encode(pk).decode('ascii')}:"
        numbers = {name: min(each, _MAX_INTEGER) for name, each in parameters.items() if isinstance(each, int)}
        shown = {name: each for name, each in (parameters | numbers).items() if each is not None}
        return ";".join([_string(self.name), *(f"{name}={each}" for name, each in shown.items())])

    def _quota(self) -> tuple[int, int | None]:
        """Returns a quantity and in how many seconds it is available. Their quotient is never below the true rate."""
        limit, most = self.limit, self.reply.limit
        ms = None if limit is None or isinstance(limit, str) else period_ms(limit.period)
        if not ms:
            return most, None
        if not isinstance(limit, Rate):
            # The draft's windows are whole seconds.
            return most, None if ms % 1000 else ms // 1000
        # The time in which the empty bucket fills, in whole seconds. A bucket of 1 that gets 3 a second is full after a
        # third of a second, but "1 in a second" would be too little.
        window = seconds(Fraction((limit.burst + 1) * ms, limit.count))
        return max(most, ceil(Fraction(limit.count * window * 1000, ms))), window

    def _more_in_ms(self) -> int | Fraction:
        """Returns the wait until more is available, as exactly as the reply allows; 0 if all is available."""
        limit, reply = self.limit, self.reply
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


def _limit_and_name(limit: Any) -> tuple[Limit | None, str | None]:
    """Returns a limit of a list, and its name if it has one."""
    name = None
    if isinstance(limit, Clause):
        key = limit.key if isinstance(limit.key, str) else limit.key.decode("utf-8", "backslashreplace")
        # Clients do not get to see keys, after which clauses are named by default.
        if limit.name != key:
            name = limit.name if limit.name.isascii() and limit.name.isprintable() else ascii(limit.name)[1:-1]
        limit = limit.limit
    if limit is not None and not isinstance(limit, (Rate, Window, str)):
        raise TypeError(
            f"each of limits must be a Rate, a Window, the name of a policy, a Clause or None, not {limit!r}"
        )
    return limit, limit.removeprefix("@") if name is None and isinstance(limit, str) else name


def _padded(values: Any, *single: type) -> Iterator[Any]:
    return chain([values] if isinstance(values, single) else values, repeat(None))


@dataclass(frozen=True)
class ReplyWithOptions:
    """A reply with the other arguments of headers()."""

    reply: Reply
    limits: Limit | Sequence[AnyLimit | None] | None = None
    names: str | Sequence[str] = ()
    pk: PartitionKey | Sequence[PartitionKey | None] | None = field(default=None, kw_only=True)
    version: int = field(default=10, kw_only=True)
    standard: bool = field(default=True, kw_only=True)
    x_ratelimit: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise ValueError(f"version must be one of {', '.join(map(str, VERSIONS))}, not {self.version!r}")

    def _items(self) -> Iterator[Item]:
        """Yields the limits of the reply. Their names need not be unique."""
        reply = self.reply
        answers = reply.answers if isinstance(reply, AllReply) else (reply,)
        # A list among the limits is a group.
        listed: Any = self.limits if isinstance(self.limits, (list, tuple)) else [self.limits]
        limits = [each for group in listed for each in (group if isinstance(group, (list, tuple)) else [group])]
        keys = repeat(self.pk) if isinstance(self.pk, (str, bytes)) else _padded(self.pk or ())
        for at, (answer, limit, name, pk) in enumerate(
            zip(answers, _padded(limits), _padded(self.names, str), keys, strict=False)
        ):
            kind, own = _limit_and_name(limit)
            shown = name or own or ("default" if len(answers) == 1 else f"limit-{at + 1}")
            yield Item(shown, kind, answer, pk, _has_denied(reply, at))


def _named(replies: Iterable[ReplyWithOptions]) -> list[tuple[ReplyWithOptions, Item]]:
    """Returns the limits that were decided, with unique names: the second of a name is called name-2, and so on."""
    used: set[str] = set()
    result = []
    for each in replies:
        for item in each._items() if is_decided(each.reply) else ():
            more = (f"{item.name}-{number}" for number in count(2))
            name = next(name for name in chain([item.name], more) if name not in used)
            used.add(name)
            result.append((each, item._replace(name=name)))
    return result


def headers(
    reply: Reply,
    limits: Limit | Sequence[AnyLimit | None] | None = None,
    names: str | Sequence[str] = (),
    *,
    pk: PartitionKey | Sequence[PartitionKey | None] | None = None,
    version: int = 10,
    standard: bool = True,
    x_ratelimit: bool = True,
) -> dict[str, str]:
    """Returns the headers for a reply; none if nobody decided, because Redis did not answer.

    RateLimit and RateLimit-Policy (`standard`) are those of draft-ietf-httpapi-ratelimit-headers in `version`, with one
    item for each limit; X-RateLimit-Limit, -Remaining and -Reset (`x_ratelimit`) are of the limit that decides, the last
    in seconds from now. Retry-After comes with a denial that has an end: it is 1 if others hold what is missing, because
    they may give it back at any time. `limits` are those that were asked, or their clauses, for the window and the unit of
    the policy. The name of a policy or a clause names its item, or `names` do, and the second of a name is called name-2.
    `pk` is the partition key: who or what the quota is for. Every recipient of the response can read it.
    """
    options: dict[str, Any] = {"pk": pk, "version": version, "standard": standard, "x_ratelimit": x_ratelimit}
    return merged_headers([ReplyWithOptions(reply, limits, names, **options)])


def merged_headers(replies: Iterable[ReplyWithOptions]) -> dict[str, str]:
    """Returns one set of headers for all limits of a request, such as those of a middleware and of a route.

    RateLimit and RateLimit-Policy have an item for each limit, no two with one name. X-RateLimit-* are of the tightest: the
    one that denies the longest, else the one with the least left. Retry-After comes with a denial that has an end: after
    this many seconds all limits that deny have room. A reply that nobody decided adds nothing.
    """
    named = _named(replies := [each for each in replies if is_decided(each.reply)])
    result: dict[str, str] = {}
    if shown := [item for each, item in named if each.standard]:
        result["RateLimit-Policy"] = ", ".join(item.policy() for item in shown)
        result["RateLimit"] = ", ".join(item.service_limit() for item in shown)
    if counted := [each.reply for each in replies if each.x_ratelimit]:
        tightest = _tightest(counted)
        result["X-RateLimit-Limit"] = str(tightest.limit)
        result["X-RateLimit-Remaining"] = str(tightest.remaining)
        result["X-RateLimit-Reset"] = str(seconds(tightest.reset_after_ms))
    waits = [wait_ms(each.reply) for each in replies if not each.reply.allowed]
    if waits and None not in waits:
        result["Retry-After"] = str(max(seconds(each) for each in waits if each is not None))
    return result


def _tightest(replies: list[Reply]) -> Reply:
    """Returns the reply that a client must obey: the one that denies the longest, or else the one with the least left."""
    denied = [(wait_ms(reply), reply) for reply in replies if not reply.allowed]
    if denied:
        return max(denied, key=lambda each: float("inf") if each[0] is None else each[0])[1]
    return min(replies, key=lambda reply: reply.remaining)


def problem(
    reply: Reply | None = None, limits: Limit | Sequence[AnyLimit | None] | None = None, names: str | Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the problem details (RFC 9457) of a denial, to be sent as application/problem+json with their status.

    A denial by a limit is 429 and quota-exceeded, with the names of the limits that denied in violated-policies, whoever
    decided: the server, or a fallback while Redis did not answer. If nobody decided, and for Busy (no reply), it is 503 and
    temporary-reduced-capacity. The arguments are those of headers().
    """
    return merged_problem([] if reply is None else [ReplyWithOptions(reply, limits, names)])


def merged_problem(replies: Sequence[ReplyWithOptions]) -> dict[str, Any]:
    """Returns the problem details of a request with these replies; without any, those for Busy."""
    if not replies or not all(each.reply.allowed or is_decided(each.reply) for each in replies):
        kind, title, status = "temporary-reduced-capacity", "due to temporary server capacity constraints", 503
    else:
        kind, title, status = "quota-exceeded", "as assigned quota has been exceeded", 429
    return {
        "type": f"{_PROBLEM_TYPES}{kind}",
        "title": f"Request cannot be satisfied {title}",
        "status": status,
        "violated-policies": [item.name for _, item in _named(replies) if item.has_denied] if status == 429 else [],
    }


def retry_after(headers: Mapping[str, str] | Message | str | None) -> timedelta | None:
    """Returns how long another service asks to wait, for Limiter.close(): reads Retry-After, which has seconds or a date,
    from the headers of its response, or from the text of that header.

    Returns None if there is nothing to wait for: no such header, a text that cannot be read, 0, or a date in the past. A
    wait of more than a year is a year of 365.25 days, the longest that a key can be closed.
    """
    if headers is not None and not isinstance(headers, str):
        headers = next((value for name, value in headers.items() if name.lower() == "retry-after"), None)
    text = (headers or "").strip()
    try:
        if re.fullmatch("[0-9]+", text):
            wait = timedelta(seconds=min(int(text), _LONGEST_BAN.total_seconds()))
        else:
            # One of the three forms of RFC 9110 has no zone. The wait is in whole milliseconds, rounded up.
            date = parsedate_to_datetime(text)
            now = datetime.fromtimestamp(time.time_ns() // 1_000_000 / 1000, timezone.utc)
            wait = date.replace(tzinfo=date.tzinfo or timezone.utc) - now
    except ValueError:
        return None
    return min(wait, _LONGEST_BAN) if wait > timedelta() else None
