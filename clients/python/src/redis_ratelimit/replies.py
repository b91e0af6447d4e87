"""What the commands answer, with names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Union

Id = Union[str, bytes]


def _timedelta(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


@dataclass(frozen=True)
class Reply:
    """The answer to a call that asks a limit."""

    #: 0 allowed, 1 denied; from acquire() also 2: denied only because others hold, or wait for, what they may give back.
    limited: int
    #: The most that can be had at once.
    limit: int
    #: What could still be had now, after this call.
    remaining: int
    #: The wait after which the same call is allowed if nobody else takes anything. None if it was allowed, or never can be.
    retry_after_ms: int | None
    #: The wait until the key is as good as new.
    reset_after_ms: int
    #: What was taken, with atmost=True.
    granted: int | None = None
    #: The id of the reservation, from acquire() and reserve(); None if nothing was reserved.
    id: Id | None = None
    #: The wait after which the caller may go on, with ahead=; None if denied.
    wait_ms: int | None = None
    #: False if Redis could not be reached and this answer was chosen instead of one of its own.
    reachable: bool = True

    @property
    def allowed(self) -> bool:
        return self.limited == 0

    @property
    def retry_after(self) -> timedelta | None:
        return _timedelta(self.retry_after_ms)

    @property
    def reset_after(self) -> timedelta:
        return timedelta(milliseconds=self.reset_after_ms)

    @property
    def wait(self) -> timedelta | None:
        return _timedelta(self.wait_ms)


@dataclass(frozen=True)
class AllReply(Reply):
    """The answer to all(): that of the clause that decides, and each clause's own."""

    #: The number of the clause that decides, from 1; 0 if Redis could not be reached.
    clause: int = 0
    #: Each clause's own answer, in their order; empty if Redis could not be reached.
    answers: tuple[Reply, ...] = ()


class Held(NamedTuple):
    """A live reservation."""

    id: Id
    quantity: int
    left_ms: int


class Denied(Exception):
    """A reservation was denied. `reply` says why, and when to try again."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"denied: {reply}")
        self.reply = reply


class Busy(Exception):
    """All connections of the limiter stayed in use by other calls. Redis can be reached, so nothing was allowed for it."""


class Lapsed(Exception):
    """The lease ended before the work did, so there was no reservation left to settle."""


def _id(value: Any) -> Id | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return None if value is None else str(value)


def _or_none(ms: int) -> int | None:
    return None if ms < 0 else ms


def five(reply: Sequence[Any]) -> Reply:
    limited, limit, remaining, retry_after, reset_after = map(int, reply[:5])
    return Reply(limited, limit, remaining, _or_none(retry_after), reset_after)


def _with(reply: Reply, **more: Any) -> Reply:
    return Reply(**{**vars(reply), **more})


def with_granted(reply: Sequence[Any]) -> Reply:
    return _with(five(reply), granted=int(reply[5]))


def with_wait(reply: Sequence[Any]) -> Reply:
    return _with(five(reply), wait_ms=_or_none(int(reply[5])))


def with_id(reply: Sequence[Any]) -> Reply:
    return _with(five(reply), id=_id(reply[5]))


def of_all(reply: Sequence[Any]) -> AllReply:
    # Only a clause of ACQUIRE answers a sixth element, its id.
    answers = tuple(with_id(answer) if len(answer) > 5 else five(answer) for answer in reply[6])
    return AllReply(**{**vars(five(reply)), "clause": int(reply[5]), "answers": answers})


def of_held(reply: Sequence[Any]) -> list[Held]:
    return [Held(_id(id) or "", int(quantity), int(left)) for id, quantity, left in reply]
