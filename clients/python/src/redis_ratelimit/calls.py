"""Each command as words to send, a reply to read, and an answer for when Redis cannot be reached. No I/O is done here.

The functions have the names and arguments of the limiters' methods, which are made of them. Only all() and all_ro() are
every() and every_ro() here, so that Python's own all() stays within reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, Union

from . import replies
from .parameters import (
    Duration,
    Rate,
    RateLike,
    Window,
    WindowLike,
    Word,
    duration_word,
    limit_words,
    milliseconds,
    whole,
)
from .replies import AllReply, Held, Id, Info, Policy, Reply, TopKey

T = TypeVar("T")
Key = Union[str, bytes]


@dataclass(slots=True)
class Call(Generic[T]):
    """What is sent for a call of a method, and how its answer is read."""

    words: tuple[Word, ...]
    read: Callable[[Any], T]
    #: Where a cluster sends it; None for a call that every node answers for itself.
    key: Key | None
    #: The answer if Redis cannot be reached: to allow (True) or to deny (False). None: there is no such answer.
    unreached: Callable[[bool], T] | None = None
    #: How long the server may let the call wait; 0 is without end, None is not at all.
    block_ms: int | None = None
    #: Makes one answer of those of all nodes of a cluster.
    merge: Callable[[list[T]], T] | None = None
    #: Commands on the same key that are sent with the first.
    more: tuple[tuple[Word, ...], ...] = ()


@dataclass(frozen=True)
class Clause:
    """One limit of all(): made by Clause.throttle, Clause.window or Clause.acquire."""

    key: Key
    words: tuple[Word, ...]

    @staticmethod
    def throttle(
        key: Key,
        rate: RateLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        check: bool = False,
        shadow: bool = False,
        ban: Duration | None = None,
    ) -> Clause:
        """A rate. `check` must be allowed and takes nothing; `shadow` is decided and reported, but never denies a call."""
        options = _options(rate, leave=leave, check=check, shadow=shadow, ban=ban)
        return Clause(key, ("THROTTLE", *limit_words(rate, Rate), whole("quantity", quantity), *options))

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
        ban: Duration | None = None,
    ) -> Clause:
        """A window. `check` must be allowed and takes nothing; `shadow` is decided and reported, but never denies a call."""
        options = _options(window, leave=leave, count_denied=count_denied, check=check, shadow=shadow, ban=ban)
        return Clause(key, ("WINDOW", *limit_words(window, Window), whole("quantity", quantity), *options))

    @staticmethod
    def acquire(
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        lease: Duration | None = None,
        count_lapsed: bool = False,
        id: Id | None = None,
        check: bool = False,
        shadow: bool = False,
    ) -> Clause:
        """A reservation in a window, or of a semaphore. It is settled with the limiter's apply() and release()."""
        options = _options(
            window, leave=leave, lease=lease, count_lapsed=count_lapsed, id=id, check=check, shadow=shadow
        )
        return Clause(key, ("ACQUIRE", *limit_words(window, Window), whole("quantity", quantity), *options))


def _options(
    limit: Rate | Window | str,
    *,
    leave: int = 0,
    atmost: bool = False,
    force: bool = False,
    count_denied: bool = False,
    lease: Duration | None = None,
    count_lapsed: bool = False,
    id: Id | None = None,
    ahead: Duration | None = None,
    block: Duration | None = None,
    check: bool = False,
    shadow: bool = False,
    ban: Duration | None = None,
) -> list[Word]:
    """What follows the quantity, MS apart. Only what was asked for is sent."""
    words: list[Word] = []
    if type(limit) is Window:
        words += limit.options()
    if leave:
        words += "LEAVE", whole("leave", leave)
    if lease is not None:
        words += "LEASE", duration_word("lease", lease)
    if count_lapsed:
        words.append("COUNTLAPSED")
    if id is not None:
        words += "ID", id
    if atmost:
        words.append("ATMOST")
    if force:
        words.append("FORCE")
    if count_denied:
        words.append("COUNTDENIED")
    if check:
        words.append("CHECK")
    if shadow:
        words.append("SHADOW")
    if ban is not None:
        words += "BAN", duration_word("ban", ban)
    if ahead is not None:
        words += "AHEAD", duration_word("ahead", ahead)
    if block is not None:
        words += "BLOCK", duration_word("block", block)
    return words


def unreached(allow: bool, *, quantity: int, force: bool = False, atmost: bool = False, ahead: bool = False) -> Reply:
    """The answer to a call while Redis cannot be reached."""
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
    quantity: int = 1,
    *,
    leave: int = 0,
    atmost: bool = False,
    force: bool = False,
    block: Duration | None = None,
    ahead: Duration | None = None,
    ban: Duration | None = None,
) -> Call[Reply]:
    """RL.THROTTLE: a steady rate with bursts. A negative quantity gives back. `ban` closes the key for so long when the
    call is denied."""
    options = _options(rate, leave=leave, atmost=atmost, force=force, block=block, ahead=ahead, ban=ban)
    return Call(
        ("RL.THROTTLE", key, *limit_words(rate, Rate), whole("quantity", quantity), *options, "MS"),
        replies.with_granted if atmost else replies.five if ahead is None else replies.with_wait,
        key,
        partial(unreached, quantity=quantity, force=force, atmost=atmost, ahead=ahead is not None),
        None if block is None else milliseconds("block", block),
    )


def window(
    key: Key,
    window: WindowLike,
    quantity: int = 1,
    *,
    leave: int = 0,
    atmost: bool = False,
    force: bool = False,
    count_denied: bool = False,
    block: Duration | None = None,
    ban: Duration | None = None,
) -> Call[Reply]:
    """RL.WINDOW: at most so many in any period. A negative quantity gives back the oldest. `ban` closes the key for so long
    when the call is denied."""
    options = _options(window, leave=leave, atmost=atmost, force=force, count_denied=count_denied, block=block, ban=ban)
    return Call(
        ("RL.WINDOW", key, *limit_words(window, Window), whole("quantity", quantity), *options, "MS"),
        replies.with_granted if atmost else replies.five,
        key,
        partial(unreached, quantity=quantity, force=force, atmost=atmost),
        None if block is None else milliseconds("block", block),
    )


def reserve(
    key: Key,
    window: WindowLike,
    quantity: int = 1,
    *,
    leave: int = 0,
    atmost: bool = False,
    lease: Duration | None = None,
    count_lapsed: bool = False,
    id: Id | None = None,
    block: Duration | None = None,
) -> Call[Reply]:
    """RL.ACQUIRE: reserves, for the caller to settle with apply() or release(). With `count_lapsed` a reservation that
    nobody settles counts when its lease ends."""
    options = _options(window, leave=leave, atmost=atmost, lease=lease, count_lapsed=count_lapsed, id=id, block=block)
    return Call(
        ("RL.ACQUIRE", key, *limit_words(window, Window), whole("quantity", quantity), *options, "MS"),
        replies.with_id_and_granted if atmost else replies.with_id,
        key,
        partial(unreached, quantity=quantity, atmost=atmost),
        None if block is None else milliseconds("block", block),
    )


def _look(command: str, key: Key, limit: Rate | Window | str, quantity: int, leave: int) -> Call[Reply]:
    kind = Rate if command == "RL.THROTTLE_RO" else Window
    read = replies.with_id if command == "RL.ACQUIRE_RO" else replies.five
    options = _options(limit, leave=leave)
    words = (command, key, *limit_words(limit, kind), whole("quantity", quantity), *options, "MS")
    return Call(words, read, key, partial(unreached, quantity=quantity))


def throttle_ro(key: Key, rate: RateLike, quantity: int = 1, *, leave: int = 0) -> Call[Reply]:
    """RL.THROTTLE_RO: what throttle() would answer now."""
    return _look("RL.THROTTLE_RO", key, rate, quantity, leave)


def window_ro(key: Key, window: WindowLike, quantity: int = 1, *, leave: int = 0) -> Call[Reply]:
    """RL.WINDOW_RO: what window() would answer now."""
    return _look("RL.WINDOW_RO", key, window, quantity, leave)


def acquire_ro(key: Key, window: WindowLike, quantity: int = 1, *, leave: int = 0) -> Call[Reply]:
    """RL.ACQUIRE_RO: what reserve() would find now."""
    return _look("RL.ACQUIRE_RO", key, window, quantity, leave)


def _every(command: str, clauses: Sequence[Clause | Sequence[Clause]]) -> Call[AllReply]:
    groups = [[each] if isinstance(each, Clause) else _group(each) for each in clauses]
    flat = [clause for group in groups for clause in group]
    for clause in flat:
        if not isinstance(clause, Clause):
            raise TypeError(
                f"each clause must be made by Clause.throttle, Clause.window or Clause.acquire, not {clause!r}"
            )
        if not isinstance(clause.key, (str, bytes)):
            raise TypeError(f"a key must be str or bytes, not {clause.key!r}")
    if not flat:
        raise ValueError("there must be at least one clause")
    words: list[Word] = [command, len(flat), *(clause.key for clause in flat)]
    for group in groups:
        for at, clause in enumerate(group):
            if at:
                words.append("ELSE")
            words += clause.words
    words.append("MS")

    def all_unreached(allow: bool) -> AllReply:
        return AllReply(**vars(unreached(allow, quantity=1)))

    return Call(tuple(words), replies.of_all, flat[0].key, all_unreached)


def _group(clauses: Sequence[Clause]) -> list[Clause]:
    if not isinstance(clauses, (list, tuple)):
        raise TypeError(
            "each clause must be made by Clause.throttle, Clause.window or Clause.acquire, or be a list of such clauses, "
            f"not {clauses!r}"
        )
    if not clauses:
        raise ValueError("a group must have at least one clause")
    return list(clauses)


def every(clauses: Sequence[Clause | Sequence[Clause]]) -> Call[AllReply]:
    """RL.ALL: several limits, all or nothing. A list in the place of a clause is a group, joined by ELSE: the first of its
    clauses that would be allowed is the one that takes."""
    return _every("RL.ALL", clauses)


def every_ro(clauses: Sequence[Clause | Sequence[Clause]]) -> Call[AllReply]:
    """RL.ALL_RO: what all() would answer now."""
    return _every("RL.ALL_RO", clauses)


def apply(key: Key, id: Id, quantity: int | None = None) -> Call[bool]:
    """RL.APPLY: counts a reservation, or what was really used; False if it is not held."""
    words = () if quantity is None else (whole("quantity", quantity),)
    return Call(("RL.APPLY", key, id, *words), bool, key)


def release(key: Key, *ids: Id) -> Call[int]:
    """RL.RELEASE: gives reservations back, and answers how many were held."""
    return Call(("RL.RELEASE", key, *ids), int, key)


def renew(key: Key, id: Id, lease: Duration | None = None) -> Call[bool]:
    """RL.RENEW: restarts the lease; False if the reservation is not held."""
    words = () if lease is None else ("LEASE", duration_word("lease", lease))
    return Call(("RL.RENEW", key, id, *words), bool, key)


def held(key: Key) -> Call[list[Held]]:
    """RL.HELD: the live reservations, oldest first."""
    return Call(("RL.HELD", key), replies.of_held, key)


def reset(key: Key) -> Call[bool]:
    """DEL: forgets everything that is known about a key; False if there was nothing."""
    return Call(("DEL", key), bool, key)


def info(key: Key) -> Call[Info | None]:
    """RL.INFO: what lies under a key, for a person who asks why it is limited; None if there is nothing."""
    return Call(("RL.INFO", key), replies.of_info, key)


def top(count: int = 10, *, reset: bool = False) -> Call[list[TopKey]]:
    """RL.TOP: the keys that were denied most in the last 10 to 20 minutes, most first. `reset` forgets them.

    Each node of a cluster counts its own denials: all nodes are asked.
    """
    words = ("RL.TOP", "COUNT", whole("count", count), *(("RESET",) if reset else ()))

    def merge(answers: list[list[TopKey]]) -> list[TopKey]:
        keys = [key for answer in answers for key in answer]
        return sorted(keys, key=lambda key: -key.denials)[:count]

    return Call(words, replies.of_top, None, merge=merge)


def policies() -> Call[list[Policy]]:
    """RL.POLICIES: the server's policies by name, with what was allowed and denied by them.

    Each node of a cluster has its own: all nodes are asked, and the counts of equal policies are added up.
    """

    def merge(answers: list[list[Policy]]) -> list[Policy]:
        sums: dict[tuple[str, str], list[int]] = {}
        for policy in (policy for answer in answers for policy in answer):
            sum_ = sums.setdefault(policy[:2], [0, 0, 0])
            for at, count in enumerate(policy[2:]):
                sum_[at] += count
        return [Policy(*policy, *counts) for policy, counts in sorted(sums.items())]

    return Call(("RL.POLICIES",), replies.of_policies, None, merge=merge)
