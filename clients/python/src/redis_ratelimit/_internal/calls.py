"""The calls of one limit, and those that settle, list or inspect: the words of each command, how its reply is read, and the
reply while Redis cannot be reached. Does no I/O.

Each method of a limiter that sends a call has a function here or in several.py, which returns the call: ask() for those that
ask one limit, and one of the same name for each of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from . import replies
from .clauses import Clause
from .limits import Rate, Window, limit_words, method_of, refuse_semaphore
from .options import LookOptions, ReserveOptions, ThrottleOptions, WindowOptions, check_names, option_words
from .replies import Held, Id, Info, Policy, Reply, TopKey
from .words import Duration, Key, Word, duration_word, flag, milliseconds, text_word, whole

T = TypeVar("T")


@dataclass(slots=True)
class Call(Generic[T]):
    """The commands that a method sends, and the functions that read their replies."""

    words: tuple[Word, ...]
    read: Callable[[Any], T]
    #: The key that determines the node of a cluster. None: the call is sent to every node.
    key: Key | None
    #: Returns the reply while Redis cannot be reached; its argument is whether to allow. None: such a call raises an error.
    unreached: Callable[[bool], T] | None = None
    #: The longest that the call may wait on the server, in milliseconds. 0: no limit. None: it does not wait.
    block_ms: int | None = None
    #: The longest that the call takes, in seconds, if the limiter's deadline is not shorter.
    at_most_seconds: float | None = None
    #: Merges the replies of all nodes of a cluster. None: the call is for one node.
    merge: Callable[[list[T]], T] | None = None
    #: Further commands, on the same key or on keys of the same slot. Then `read` gets the list of the replies, which may
    #: have error replies.
    further_commands: tuple[tuple[Word, ...], ...] = ()
    #: False: the commands are not a transaction. Then `read` gets a list of the replies even to a single one.
    is_atomic: bool = True
    #: The clauses of all() if one of them reserves; else empty.
    reserving: Sequence[Clause] = ()
    #: The keys of the reservations that the call may make with ids that the program did not choose, and where the words of
    #: such ids would be inserted in `words`.
    without_ids: Sequence[tuple[Key, int]] = ()
    #: The method of a fallback that decides instead, and its arguments and options.
    method: str = ""
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The ids of the reservations that the call settles or renews for the program.
    settles: tuple[Id, ...] = ()

    @property
    def commands(self) -> tuple[tuple[Word, ...], ...]:
        """All commands of the call."""
        return self.words, *self.further_commands

    def check_key(self) -> None:
        """Raises TypeError unless the key is a str or bytes. A call to every node has none."""
        if self.merge is None and not isinstance(self.key, (str, bytes)):
            raise TypeError(f"a key must be str or bytes, not {self.key!r}")


def unreached(allow: bool, *, quantity: int, force: bool = False, atmost: bool = False, ahead: bool = False) -> Reply:
    """Returns the reply to a call while Redis cannot be reached."""
    # A call that Redis would never deny is allowed in any case.
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


#: The methods that ask one limit: the command, the kind of limit, and the options.
_METHODS: dict[str, tuple[str, type[Rate] | type[Window], Any]] = {
    "throttle": ("RL.THROTTLE", Rate, ThrottleOptions),
    "throttle_ro": ("RL.THROTTLE_RO", Rate, LookOptions),
    "window": ("RL.WINDOW", Window, WindowOptions),
    "window_ro": ("RL.WINDOW_RO", Window, LookOptions),
    "reserve": ("RL.ACQUIRE", Window, ReserveOptions),
    "acquire_ro": ("RL.ACQUIRE_RO", Window, LookOptions),
}


def ask(
    method: str, key: Key, limit: Rate | Window | str | None, quantity: int, options: Mapping[str, Any]
) -> Call[Reply]:
    """Returns the call of a method that asks one limit: throttle, window, throttle_ro, window_ro, reserve or acquire_ro."""
    command, kind, known = _METHODS[method]
    check_names(method, options, known)
    if command in ("RL.WINDOW", "RL.WINDOW_RO"):
        refuse_semaphore(limit)
    block, is_ahead = options.get("block"), options.get("ahead") is not None
    force, atmost = options.get("force", False), options.get("atmost", False)
    # Redis never denies a quantity of 0 or below, but one below 0 of RL.ACQUIRE is an error there.
    wanted = 1 if command == "RL.ACQUIRE" and quantity < 0 else quantity
    words = command, key, *limit_words(limit, kind), whole("quantity", quantity), *option_words(limit, **options), "MS"
    return Call(
        words,
        replies.reader(is_reservation="ACQUIRE" in command, atmost=atmost, ahead=is_ahead),
        key,
        partial(unreached, quantity=wanted, force=force, atmost=atmost, ahead=is_ahead),
        None if block is None else milliseconds("block", block),
        without_ids=((key, len(words) - 1),) if method == "reserve" and options.get("id") is None else (),
        method=method,
        args=(key, limit, quantity),
        options=options,
    )


def close(key: Any, limit: Any, duration: Any, kind: str | None) -> Call[Reply]:
    duration_word("duration", duration)
    return ask(method_of(limit, kind), key, limit, 0, {"force": True, "ban": duration})


def apply(key: Key, id: Id, quantity: int | None = None) -> Call[bool]:
    words = () if quantity is None else (whole("quantity", quantity),)
    return Call(("RL.APPLY", key, text_word("id", id), *words), replies.read_is_found, key, settles=(id,))


def release(key: Key, *ids: Id) -> Call[int]:
    return Call(("RL.RELEASE", key, *(text_word("id", id) for id in ids)), replies.read_count, key, settles=ids)


def renew(key: Key, id: Id, lease: Duration | None = None) -> Call[bool]:
    words = () if lease is None else ("LEASE", duration_word("lease", lease))
    return Call(("RL.RENEW", key, text_word("id", id), *words), replies.read_is_found, key, settles=(id,))


def several_on(key: Key, commands: Sequence[tuple[Word, ...]]) -> Call[list[Any]]:
    """Returns the call that sends commands on one key together, but not as one step."""
    return Call(commands[0], list, key, further_commands=tuple(commands[1:]), is_atomic=False)


def held(key: Key) -> Call[list[Held]]:
    return Call(("RL.HELD", key), replies.read_held, key)


def reset(key: Key) -> Call[bool]:
    return Call(("DEL", key), replies.read_is_found, key)


def info(key: Key) -> Call[Info | None]:
    return Call(("RL.INFO", key), replies.read_info, key)


def top(count: int = 10, *, reset: bool = False) -> Call[list[TopKey]]:
    words = ("RL.TOP", "COUNT", whole("count", count), *(("RESET",) if flag("reset", reset) else ()))

    def merge(answers: list[list[TopKey]]) -> list[TopKey]:
        keys = [key for answer in answers for key in answer]
        return sorted(keys, key=lambda key: -key.denials)[:count]

    return Call(words, replies.read_top, None, merge=merge)


def policies() -> Call[list[Policy]]:

    def merge(answers: list[list[Policy]]) -> list[Policy]:
        sums: dict[tuple[str, str], list[int]] = {}
        for policy in (policy for answer in answers for policy in answer):
            sum_ = sums.setdefault(policy[:2], [0, 0, 0])
            for at, count in enumerate(policy[2:]):
                sum_[at] += count
        return [Policy(*policy, *counts) for policy, counts in sorted(sums.items())]

    return Call(("RL.POLICIES",), replies.read_policies, None, merge=merge)
