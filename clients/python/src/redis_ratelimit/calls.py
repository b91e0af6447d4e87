"""Each command as words to send, a reply to read, and an answer for when Redis cannot be reached. No I/O is done here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, Union

from . import replies
from .limits import (
    Duration,
    Rate,
    RateLike,
    Window,
    WindowLike,
    Word,
    limit_options,
    limit_words,
    milliseconds,
)
from .replies import AllReply, Held, Id, Reply

T = TypeVar("T")
Key = Union[str, bytes]


@dataclass(frozen=True)
class Call(Generic[T]):
    words: tuple[Word, ...]
    read: Callable[[Any], T]
    #: The answer if Redis cannot be reached: to allow (True) or to deny (False). None: there is no such answer.
    unreached: Callable[[bool], T] | None = None
    #: How long the server may let the call wait; 0 is without end, None is not at all.
    block_ms: int | None = None


@dataclass(frozen=True)
class Clause:
    """One limit of all(): made by Clause.throttle, Clause.window or Clause.acquire."""

    key: Key
    words: tuple[Word, ...]

    @staticmethod
    def throttle(
        key: Key, rate: RateLike, quantity: int = 1, *, leave: int = 0, check: bool = False, shadow: bool = False
    ) -> Clause:
        options = _options(rate, leave=leave, check=check, shadow=shadow)
        return Clause(key, ("THROTTLE", *limit_words(rate), quantity, *options))

    @staticmethod
    def window(
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        count_denied: bool = False,
        check: bool = False,
        shadow: bool = False,
    ) -> Clause:
        options = _options(window, leave=leave, count_denied=count_denied, check=check, shadow=shadow)
        return Clause(key, ("WINDOW", *limit_words(window), quantity, *options))

    @staticmethod
    def acquire(
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        lease: Duration | None = None,
        id: Id | None = None,
        check: bool = False,
        shadow: bool = False,
    ) -> Clause:
        options = _options(window, leave=leave, lease=lease, id=id, check=check, shadow=shadow)
        return Clause(key, ("ACQUIRE", *limit_words(window), quantity, *options))


def _options(
    limit: Rate | Window | str,
    *,
    leave: int = 0,
    atmost: bool = False,
    force: bool = False,
    count_denied: bool = False,
    lease: Duration | None = None,
    id: Id | None = None,
    ahead: Duration | None = None,
    block: Duration | None = None,
    check: bool = False,
    shadow: bool = False,
) -> tuple[Word, ...]:
    """What follows the quantity, MS apart. Only what was asked for is sent."""
    words = list(limit_options(limit))
    if leave:
        words += ["LEAVE", leave]
    if lease is not None:
        words += ["LEASE", milliseconds(lease)]
    if id is not None:
        words += ["ID", id]
    for wanted, word in (
        (atmost, "ATMOST"),
        (force, "FORCE"),
        (count_denied, "COUNTDENIED"),
        (check, "CHECK"),
        (shadow, "SHADOW"),
    ):
        if wanted:
            words.append(word)
    if ahead is not None:
        words += ["AHEAD", milliseconds(ahead)]
    if block is not None:
        words += ["BLOCK", milliseconds(block)]
    return tuple(words)


def _unreached(allow: bool, *, quantity: int, force: bool = False, atmost: bool = False, ahead: bool = False) -> Reply:
    # What Redis would never deny is not denied here either.
    allow = allow or force or quantity <= 0
    return Reply(
        limited=0 if allow else 1,
        limit=0,
        remaining=0,
        retry_after_ms=None,
        reset_after_ms=0,
        granted=(quantity if allow else 0) if atmost else None,
        wait_ms=0 if ahead and allow else None,
        reachable=False,
    )


def throttle(
    key: Key,
    rate: RateLike,
    quantity: int,
    *,
    leave: int,
    atmost: bool,
    force: bool,
    block: Duration | None,
    ahead: Duration | None,
) -> Call[Reply]:
    options = _options(rate, leave=leave, atmost=atmost, force=force, block=block, ahead=ahead)
    return Call(
        ("RL.THROTTLE", key, *limit_words(rate), quantity, *options, "MS"),
        replies.with_granted if atmost else replies.five if ahead is None else replies.with_wait,
        partial(_unreached, quantity=quantity, force=force, atmost=atmost, ahead=ahead is not None),
        None if block is None else milliseconds(block),
    )


def window(
    key: Key,
    window: WindowLike,
    quantity: int,
    *,
    leave: int,
    atmost: bool,
    force: bool,
    count_denied: bool,
    block: Duration | None,
) -> Call[Reply]:
    options = _options(window, leave=leave, atmost=atmost, force=force, count_denied=count_denied, block=block)
    return Call(
        ("RL.WINDOW", key, *limit_words(window), quantity, *options, "MS"),
        replies.with_granted if atmost else replies.five,
        partial(_unreached, quantity=quantity, force=force, atmost=atmost),
        None if block is None else milliseconds(block),
    )


def reserve(
    key: Key,
    window: WindowLike,
    quantity: int,
    *,
    leave: int,
    lease: Duration | None,
    id: Id | None,
    block: Duration | None,
) -> Call[Reply]:
    options = _options(window, leave=leave, lease=lease, id=id, block=block)
    return Call(
        ("RL.ACQUIRE", key, *limit_words(window), quantity, *options, "MS"),
        replies.with_id,
        partial(_unreached, quantity=quantity),
        None if block is None else milliseconds(block),
    )


def look(command: str, key: Key, limit: Rate | Window | str, quantity: int, *, leave: int) -> Call[Reply]:
    """RL.THROTTLE_RO, RL.WINDOW_RO and RL.ACQUIRE_RO."""
    read = replies.with_id if command == "RL.ACQUIRE_RO" else replies.five
    words = (command, key, *limit_words(limit), quantity, *_options(limit, leave=leave), "MS")
    return Call(words, read, partial(_unreached, quantity=quantity))


def every(command: str, clauses: Sequence[Clause]) -> Call[AllReply]:
    """RL.ALL and RL.ALL_RO."""
    words: list[Word] = [command, len(clauses), *(clause.key for clause in clauses)]
    for clause in clauses:
        words += clause.words
    words.append("MS")

    def unreached(allow: bool) -> AllReply:
        return AllReply(**vars(_unreached(allow, quantity=1)))

    return Call(tuple(words), replies.of_all, unreached)


def apply(key: Key, id: Id, quantity: int | None) -> Call[bool]:
    return Call(("RL.APPLY", key, id, *(() if quantity is None else (quantity,))), bool)


def release(key: Key, ids: Sequence[Id]) -> Call[int]:
    return Call(("RL.RELEASE", key, *ids), int)


def renew(key: Key, id: Id, lease: Duration | None) -> Call[bool]:
    return Call(("RL.RENEW", key, id, *(() if lease is None else ("LEASE", milliseconds(lease)))), bool)


def held(key: Key) -> Call[list[Held]]:
    return Call(("RL.HELD", key), replies.of_held)


def is_semaphore(window: WindowLike) -> bool:
    """Whether a reservation can only be released. What a policy is, only the server knows."""
    return isinstance(window, Window) and window.words()[1] in (0, "0")
