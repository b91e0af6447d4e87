"""The limits that an HTTP request was checked against, and their headers, for the adapters of all frameworks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .headers import (
    AnyLimit,
    Item,
    Limit,
    PartitionKey,
    check_version,
    items_of,
    quota_exceeded,
    reduced_capacity,
    seconds,
    standard_headers,
    structured_string,
    unique_name,
    wait_ms,
    with_unique_names,
    x_headers,
)
from .libraries import kind_of
from .parameters import Rate, Window, check_policy, is_semaphore
from .replies import Busy, Reply

#: The content type of problem details.
PROBLEM = "application/problem+json"


@dataclass(frozen=True)
class Options:
    """Options of the headers, see headers()."""

    standard: bool = True
    x_ratelimit: bool = True
    version: int = 10

    def __post_init__(self) -> None:
        check_version(self.version)


@dataclass
class _Asked:
    reply: Reply
    items: list[Item]
    options: Options
    #: Two calls with the same identity are about the same limit of the same key.
    identity: object


@dataclass
class Exchange:
    """The limits that a request was checked against, in order, and the headers that report them in its response."""

    #: The name under which an ASGI scope, a WSGI environment or the META of a Django request has the exchange.
    NAME = "redis_ratelimit.exchange"

    _asked: list[_Asked] = field(default_factory=list)
    #: The headers that headers() returned last.
    _written: dict[str, str] = field(default_factory=dict)
    #: The headers of the same names that the application had set, which are merged into ours.
    _foreign: dict[str, str] = field(default_factory=dict)
    #: True if the limiter raised Busy.
    is_busy: bool = False

    @staticmethod
    def of(mapping: Any) -> Exchange:
        """Returns the exchange in a mapping. Adds a new one if there is none."""
        exchange = mapping.get(Exchange.NAME)
        if exchange is None:
            exchange = mapping[Exchange.NAME] = Exchange()
        return exchange  # type: ignore[no-any-return]

    def add(
        self,
        reply: Reply,
        limits: Limit | Sequence[AnyLimit | None] | None = None,
        names: str | Sequence[str] = (),
        *,
        pk: PartitionKey | Sequence[PartitionKey | None] | None = None,
        options: Options | None = None,
        identity: object = None,
    ) -> None:
        """Adds a reply. It replaces an earlier reply about the same limit of the same key."""
        items = items_of(reply, limits, names, pk)
        asked = _Asked(reply, items, options or Options(), object() if identity is None else identity)
        for at, other in enumerate(self._asked):
            if other.identity == asked.identity:
                self._asked[at] = asked
                return
        self._asked.append(asked)

    @contextmanager
    def noting_busy(self) -> Iterator[None]:
        """Runs a block that asks a limiter. If it raises Busy, the request is denied, and the error is not raised."""
        try:
            yield
        except Busy:
            self.is_busy = True

    @property
    def status(self) -> int:
        """The status of the response: 200, 429 if a limit denies the request, or 503 if no server could decide."""
        denied = [asked.reply for asked in self._asked if not asked.reply.allowed]
        if self.is_busy or any(not reply.reachable for reply in denied):
            return 503
        return 429 if denied else 200

    @property
    def websocket_code(self) -> int:
        """The code that closes a WebSocket connection: 1008, policy violated, or 1013, try again later, instead of 503."""
        return 1008 if self.status == 429 else 1013

    def headers(self, present: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the headers that replace those of the same names in a response. `present` are the headers that the
        response has, with names in lower case: what the application has set is kept."""
        reached = [asked for asked in self._asked if asked.reply.reachable]
        foreign = {}
        for name, value in (present or {}).items():
            foreign_value = self._foreign.get(name) if self._written.get(name) == value else value
            if foreign_value:
                foreign[name] = foreign_value
        self._foreign = foreign
        result: dict[str, str] = {}
        named = self._named()
        if items := [item for asked, item in named if asked.options.standard]:
            foreign_items = {name: _split(foreign.get(name.lower(), "")) for name in ("RateLimit-Policy", "RateLimit")}
            renamed = _renamed(foreign_items, {item.name for _, item in named})
            for name, value in standard_headers(items).items():
                result[name] = ", ".join([value, *renamed[name]])
        if decided := [asked.reply for asked in reached if asked.options.x_ratelimit]:
            result |= _tighter(x_headers(_tightest(decided)), foreign)
        waits = [wait_ms(asked.reply) for asked in reached if not asked.reply.allowed]
        if waits and None not in waits:
            wait = max(seconds(each) for each in waits if each is not None)
            other = foreign.get("retry-after", "")
            result["Retry-After"] = str(max(wait, int(other))) if other.isdecimal() else str(wait)
        self._written = {name.lower(): value for name, value in result.items()}
        return result

    def problem(self) -> dict[str, Any]:
        """Returns the problem details of a denial."""
        if self.status != 429:
            return reduced_capacity()
        return quota_exceeded([item for _, item in self._named()])

    def _named(self) -> list[tuple[_Asked, Item]]:
        """Returns the limits that have replies, with unique names."""
        pairs = [(asked, item) for asked in self._asked if asked.reply.reachable for item in asked.items]
        names = with_unique_names([item for _, item in pairs])
        return [(asked, item) for (asked, _), item in zip(pairs, names, strict=True)]

    def body(self) -> bytes:
        """Returns the problem details as they are sent."""
        return json.dumps(self.problem()).encode()


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
    """Returns the headers for a reply; none if Redis could not be reached.

    RateLimit and RateLimit-Policy (`standard`) are those of draft-ietf-httpapi-ratelimit-headers in `version`, with one
    item for each limit; X-RateLimit-Limit, -Remaining and -Reset (`x_ratelimit`) are of the limit that decides, the last
    in seconds from now. Retry-After comes with a denial that has an end: it is 1 if others hold what is missing, because
    they may give it back at any time. `limits` are those that were asked, for the window and the unit of the policy; a
    policy's name names its item, or `names` do, and the second of a name is called name-2. `pk` is the partition key: who or
    what the quota is for. Every recipient of the response can read it.
    """
    options: dict[str, Any] = {"pk": pk, "version": version, "standard": standard, "x_ratelimit": x_ratelimit}
    return merged_headers([ReplyWithOptions(reply, limits, names, **options)])


def problem(
    reply: Reply | None = None,
    limits: Limit | Sequence[AnyLimit | None] | None = None,
    names: str | Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the problem details (RFC 9457) of a denial, to be sent as application/problem+json with their status.

    A denial by a limit is 429 and quota-exceeded, with the names of the limits that denied in violated-policies. If Redis
    could not be reached, and for Busy (no reply), it is 503 and temporary-reduced-capacity. The arguments are those of
    headers().
    """
    if reply is None or not reply.reachable:
        return reduced_capacity()
    return quota_exceeded(with_unique_names(items_of(reply, limits, names)))


def merged_headers(replies: Iterable[ReplyWithOptions]) -> dict[str, str]:
    """Returns one set of headers for all limits of a request, such as those of a middleware and of a route.

    RateLimit and RateLimit-Policy have an item for each limit, no two with one name. X-RateLimit-* are of the tightest: the
    one that denies the longest, else the one with the least left. Retry-After comes with a denial that has an end: after
    this many seconds all limits that deny have room. A reply from when Redis could not be reached adds nothing.
    """
    exchange = Exchange()
    for each in replies:
        options = Options(each.standard, each.x_ratelimit, each.version)
        exchange.add(each.reply, each.limits, each.names, pk=each.pk, options=options)
    return exchange.headers()


def _tightest(replies: list[Reply]) -> Reply:
    """Returns the reply that a client must obey: the one that denies the longest, or else the one with the least left."""
    denied = [reply for reply in replies if not reply.allowed]
    if denied:
        waits = [(wait_ms(reply), reply) for reply in denied]
        return max(waits, key=lambda each: float("inf") if each[0] is None else each[0])[1]
    return min(replies, key=lambda reply: reply.remaining)


def _tighter(ours: dict[str, str], foreign: Mapping[str, str]) -> dict[str, str]:
    """Returns our X-RateLimit-* headers, or those of the application if it has less left."""
    names = list(ours)
    theirs = [foreign.get(name.lower(), "") for name in names]
    if not all(value.isdecimal() for value in theirs):
        return ours
    mine = [int(value) for value in ours.values()]
    other = [int(value) for value in theirs]
    return dict(zip(names, theirs, strict=True)) if other[1] < mine[1] else ours


_MEMBER = re.compile(r'\s*((?:"(?:[^"\\]|\\.)*"|[^",])+)\s*(?:,|$)')
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _split(text: str) -> list[str]:
    """Returns the members of a list of structured fields."""
    return [member.strip() for member in _MEMBER.findall(text) if member.strip()]


def _renamed(foreign_items: dict[str, list[str]], taken: set[str]) -> dict[str, list[str]]:
    """Returns the items of the application, renamed where their names are taken."""
    names: dict[str, str] = {}
    used = set(taken)
    result: dict[str, list[str]] = {}
    for header, members in foreign_items.items():
        result[header] = []
        for member in members:
            quoted = _NAME.match(member)
            if quoted is None:
                result[header].append(member)
                continue
            old = re.sub(r"\\(.)", r"\1", quoted[1])
            if old not in names:
                names[old] = unique_name(old, used)
            result[header].append(structured_string(names[old]) + member[quoted.end() :])
    return result


def asking_method(limit: Limit, kind: str | None) -> str:
    """Returns the name of the method that asks a limit. For a policy, only the caller knows it."""
    if kind is not None and kind not in ("throttle", "window"):
        raise ValueError(f"kind must be 'throttle' or 'window', not {kind!r}")
    if isinstance(limit, str):
        check_policy(limit, "Rate", "Window")
        if kind is None:
            raise ValueError(f"kind must be 'throttle' or 'window' with the policy {limit!r}")
        return kind
    if not isinstance(limit, (Rate, Window)):
        raise TypeError(f"the limit must be a Rate, a Window or the name of a policy, not {limit!r}")
    if is_semaphore(limit):
        raise ValueError("the limit must not be a semaphore: reserve it with acquire() in the view or route")
    name = "throttle" if isinstance(limit, Rate) else "window"
    if kind not in (None, name):
        raise ValueError(f"a {type(limit).__name__} is asked by {name}, not by {kind}")
    return name


@dataclass(frozen=True)
class Rule:
    """A limit, and how it is asked for a request. The decorators and dependencies share it."""

    limiter: Any
    limit: Limit
    key: Any
    quantity: int = 1
    name: str | None = None
    kind: str | None = None
    #: The partition key, or a function that makes it from the argument of `key`.
    pk: Any = None
    options: Options = Options()

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", asking_method(self.limit, self.kind))
        if not callable(getattr(self.limiter, str(self.kind), None)):
            raise TypeError(f"the limiter must be one of redis_ratelimit, not {kind_of(self.limiter)}")
        if not callable(self.key):
            raise TypeError(f"key must be a function that makes a key, not {self.key!r}")

    def ask(self, key: Any) -> Any:
        """Returns the reply to a request with this key, or an awaitable of it."""
        return getattr(self.limiter, str(self.kind))(key, self.limit, self.quantity)

    def note(self, exchange: Exchange, key: Any, reply: Reply, *request: Any) -> None:
        """Adds the reply to the exchange. `request` is the argument of `key`, if it has one."""
        names = () if self.name is None else self.name
        pk = self.pk(*request) if callable(self.pk) else self.pk
        exchange.add(reply, self.limit, names, pk=pk, options=self.options, identity=(self.name, key, self.limit))
