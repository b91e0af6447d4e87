"""The replies of the commands, and the errors of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Union

if TYPE_CHECKING:
    # Type checkers know this module even if it is not installed. typing.TypeVar has defaults only from Python 3.13 on.
    from typing_extensions import TypeVar

    from .clauses import Clause

    #: The id of a reservation, 1 to 64 bytes.
    Id = Union[str, bytes]
    ReservationType_co = TypeVar("ReservationType_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    # Litestar injects a reply by the types of its fields. It refuses a field that may be str or bytes.
    Id = Any
    ReservationType_co = TypeVar("ReservationType_co", covariant=True)


T = TypeVar("T")


def _timedelta(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


@dataclass(frozen=True)
class Reply:
    """The reply to a call that asks a limit. It is true if the call was allowed."""

    #: 0: allowed. 1: denied. 2, where reservations are asked for: denied because others hold the capacity, or wait for it,
    #: and may return it.
    limited: int
    #: The greatest quantity that is available at once.
    limit: int
    #: The quantity that is left after this call.
    remaining: int
    #: The wait after which this call would be allowed if no other takes anything. None if it was allowed, or never can be.
    retry_after_ms: int | None
    #: The wait until the limit is unused again.
    reset_after_ms: int
    #: The quantity that was taken, with atmost=True.
    granted: int | None = None
    #: The number of live reservations of the key, from reserve() with atmost=True.
    reservations: int | None = None
    #: The id of the reservation, from acquire() and reserve(); None if nothing was reserved.
    id: Id | None = None
    #: The wait after which the caller may continue, with ahead=; None if denied.
    wait_ms: int | None = None
    #: False if Redis could not be reached, so that `unreachable` decided.
    reachable: bool = True

    @property
    def allowed(self) -> bool:
        """True if `limited` is 0."""
        return self.limited == 0

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after(self) -> timedelta | None:
        """`retry_after_ms` as a timedelta."""
        return _timedelta(self.retry_after_ms)

    @property
    def reset_after(self) -> timedelta:
        """`reset_after_ms` as a timedelta."""
        return timedelta(milliseconds=self.reset_after_ms)

    @property
    def wait(self) -> timedelta | None:
        """`wait_ms` as a timedelta."""
        return _timedelta(self.wait_ms)


def make_reply(limited: int, limit: int, remaining: int, retry_after_ms: int | None, reset_after_ms: int) -> Reply:
    """Returns a reply with the fields that every command has.

    It bypasses __init__, which sets each field of a frozen dataclass by a separate call. Thus a reply takes 0.6 µs instead
    of 3.4 µs, which matters because a take of a local limit takes little more than that.
    """
    reply = object.__new__(Reply)
    reply.__dict__.update(
        limited=limited, limit=limit, remaining=remaining, retry_after_ms=retry_after_ms, reset_after_ms=reset_after_ms
    )
    return reply


@dataclass(frozen=True)
class AllReply(Reply, Generic[ReservationType_co]):
    """The reply to all(): the reply of the clause that decides, and the replies of all clauses.

    For type checkers it is generic in the class of its `reservation`. An annotation may leave that out.
    """

    #: The number of the clause that decides, from 1; 0 if Redis could not be reached.
    clause: int = 0
    #: The replies of all clauses, in order. Of a group, the first clause whose `limited` is 0 took. Empty if Redis could not
    #: be reached.
    answers: tuple[Reply, ...] = ()
    #: The names of the limits that took, in order, at most one of each group. Empty if the call was denied, or Redis could
    #: not be reached.
    paid: tuple[str, ...] = ()
    #: The names of the limits that denied the call, in order; of a group that denied, those of all its limits. Empty if the
    #: call was allowed. A policy that is in shadow on the server is named too, because the client cannot tell.
    denied: tuple[str, ...] = ()
    #: The names of all limits, in the order of `answers`.
    names: tuple[str, ...] = ()

    # Not a field, so that it is neither compared nor copied.
    __slots__ = ("_reservation",)

    @property
    def reservation(self) -> ReservationType_co | None:
        """The Reservation that settles all that was reserved, of the same kind as the limiter. None if the call was denied,
        or no limit reserves."""
        return getattr(self, "_reservation", None)

    def _keep_reservation(self, reservation: Any) -> None:
        object.__setattr__(self, "_reservation", reservation)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)


class Held(NamedTuple):
    """A live reservation."""

    id: Id
    quantity: int
    left_ms: int


@dataclass(frozen=True)
class Info:
    """The state of a key, from info(). Fields that its kind does not have are None."""

    #: "bucket" or "window".
    kind: str
    #: The time until the bucket is full.
    full_in_ms: int | None = None
    #: The debt of the bucket, as a time, when it was last written.
    debt_ms: int | None = None
    #: The number of events in the window, including events that have left it but are still stored.
    events: int | None = None
    #: The number of events that are denied calls, which are counted only with count_denied. top() counts all denials.
    denied: int | None = None
    #: The number of entries that keep the events.
    entries: int | None = None
    #: The age of the oldest event; None without events.
    oldest_ms: int | None = None
    #: The age of the newest event; None without events.
    newest_ms: int | None = None
    #: The units that reservations hold.
    held: int | None = None
    #: The number of reservations.
    reservations: int | None = None
    #: The rest of the ban; 0 without one.
    ban_ms: int | None = None
    #: The number of calls that wait for the key.
    waiting: int | None = None
    #: The rest of the key's time to live.
    ttl_ms: int | None = None


class TopKey(NamedTuple):
    """A key with many denials, from top()."""

    key: Id
    db: int
    #: The number of denials. It is at most `over` too high, and never too low.
    denials: int
    over: int


class Policy(NamedTuple):
    """A policy of the server, from policies()."""

    name: str
    definition: str
    allowed: int
    denied: int
    shadow_denied: int


class Denied(Exception):
    """Raised when a reservation is denied. `reply` says why, and when to try again; `limits` are the clauses that were
    asked, for headers() and problem()."""

    def __init__(self, reply: Reply, limits: Sequence[Clause] = ()) -> None:
        super().__init__(f"denied: {reply}")
        self.reply, self.limits = reply, limits

    # By default the text would be passed as the reply.
    def __reduce__(self) -> tuple[type[Denied], tuple[Reply, Sequence[Clause]]]:
        return Denied, (self.reply, self.limits)


class Busy(Exception):
    """Raised if the server answers other calls, but not this one before its deadline. `unreachable` does not apply, so that
    an overload is not let through. Answer an HTTP request with status 503."""


class Lapsed(Exception):
    """Raised if a lease ended before the work did, so that no reservation was left to settle."""


class Closed(RuntimeError):
    """Raised if a limit in the process is used after close()."""


class MissingModule(Exception):
    """Raised if the server does not know the command: it does not have redis-ratelimit, or only an older version."""


class UnknownPolicy(Exception):
    """Raised if the server has no policy with this name. The error is also a ResponseError of the client library."""

    # The class of the raised error is made for the client library, so pickle could not find it.
    def __reduce__(self) -> tuple[type[UnknownPolicy], tuple[Any, ...]]:
        return UnknownPolicy, self.args


class Duplicate(Exception):
    """Raised if the id of a reservation is held already, or its call waits: what is tried again was counted the first time.
    The error is also a ResponseError of the client library."""

    # As for UnknownPolicy.
    def __reduce__(self) -> tuple[type[Duplicate], tuple[Any, ...]]:
        return Duplicate, self.args


class UnexpectedReply(Exception):
    """Raised if the server sends a reply that is not one of redis-ratelimit. The call may have been counted."""


def read(reader: Callable[[Any], T], words: Sequence[object], reply: Any) -> T:
    """Reads the reply to a command. Raises UnexpectedReply if `reader` cannot read it."""
    try:
        return reader(reply)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UnexpectedReply(f"unexpected reply to {words[0]}: {reply!r}") from error


def read_count(reply: object) -> int:
    """Reads a number that is at least 0."""
    if type(reply) is not int or reply < 0:
        raise ValueError
    return reply


def read_is_found(reply: object) -> bool:
    """Reads 1 or 0: whether there was what the command names."""
    if type(reply) is not int or reply not in (0, 1):
        raise ValueError
    return reply == 1


def _id(value: object) -> Id | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return None if value is None else str(value)


def _or_none(ms: int) -> int | None:
    return None if ms < 0 else ms


def read_reply(reply: Sequence[Any]) -> Reply:
    limited, limit, remaining, retry_after, reset_after = reply[:5]
    # Raises TypeError if one is no integer. The result is negative if one is.
    if limited | limit | remaining | reset_after < 0:
        raise ValueError
    return make_reply(limited, limit, remaining, None if retry_after < 0 else retry_after, reset_after)


def _with(reply: Reply, **fields: Any) -> Reply:
    return Reply(**{**vars(reply), **fields})


def read_granted(reply: Sequence[Any]) -> Reply:
    return _with(read_reply(reply), granted=read_count(reply[5]))


def read_wait(reply: Sequence[Any]) -> Reply:
    return _with(read_reply(reply), wait_ms=_or_none(int(reply[5])))


def read_id(reply: Sequence[Any]) -> Reply:
    return _with(read_reply(reply), id=_id(reply[5]))


def read_id_and_granted(reply: Sequence[Any]) -> Reply:
    return _with(read_id(reply), granted=read_count(reply[6]), reservations=read_count(reply[7]))


def reader(*, is_reservation: bool, atmost: bool, ahead: bool) -> Callable[[Sequence[Any]], Reply]:
    """Returns what reads the reply of a command that asks one limit."""
    if is_reservation:
        return read_id_and_granted if atmost else read_id
    return read_granted if atmost else read_wait if ahead else read_reply


def read_all(reply: Sequence[Any]) -> AllReply:
    # Only the reply of an ACQUIRE clause has a sixth element, its id.
    answers = tuple(read_id(answer) if len(answer) > 5 else read_reply(answer) for answer in reply[6])
    return AllReply(**{**vars(read_reply(reply)), "clause": read_count(reply[5]), "answers": answers})


def read_held(reply: Sequence[Any]) -> list[Held]:
    return [Held(_id(id) or "", int(quantity), int(left)) for id, quantity, left in reply]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


#: The fields of RL.INFO, and their names in Info, which have the unit.
_INFO = {each.name.removesuffix("_ms"): each.name for each in fields(Info) if each.name != "kind"}


def read_info(reply: Any) -> Info | None:
    """Reads a map, or the flat array of RESP2. Returns None if the key does not exist."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    values = {_text(name): value for name, value in pairs}
    if not values:
        return None
    numbers: dict[str, int | None] = {_INFO[name]: int(value) for name, value in values.items() if name in _INFO}
    for age in "oldest_ms", "newest_ms":
        # It is -1 without events.
        if numbers.get(age) == -1:
            numbers[age] = None
    return Info(_text(values["kind"]), **numbers)


def read_top(reply: Sequence[Any]) -> list[TopKey]:
    return [TopKey(_id(key) or "", int(db), int(denials), int(over)) for key, db, denials, over in reply]


def read_policies(reply: Sequence[Any]) -> list[Policy]:
    return [Policy(_text(name), _text(definition), *map(int, counts)) for name, definition, *counts in reply]
