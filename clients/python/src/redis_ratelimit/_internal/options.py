"""The options of calls and clauses, and their words in a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict

from .limits import Rate, Window
from .replies import Id
from .words import Duration, Key, Word, duration_word, flag, text_word, whole


class _WaitOptions(TypedDict, total=False):
    #: The longest time to wait until the call is allowed; "0s" waits without limit. Default: the call does not wait.
    block: Duration | None
    #: The caller, 1 to 64 bytes. Those who wait take turns by caller instead of by arrival.
    by: str | bytes | None
    #: The share of the caller, from 1 to 1000: with 2 it is granted twice as much as one with 1. Default 1.
    weight: int | None


class LookOptions(TypedDict, total=False):
    """The options of the methods that take nothing, such as throttle_ro()."""

    #: The quantity that must remain for others. Default 0.
    leave: int


class _BanOptions(TypedDict, total=False):
    #: Closes the key for this time if the call is denied, or with `force` in any case.
    ban: Duration | None


class _TakeOptions(LookOptions, _WaitOptions, _BanOptions, total=False):
    #: Takes as much of the quantity as is available. The reply has `granted`.
    atmost: bool
    #: Counts the quantity even if that exceeds the limit.
    force: bool


class ThrottleOptions(_TakeOptions, total=False):
    """The options of throttle()."""

    #: Books what becomes available within this time. The reply has `wait`.
    ahead: Duration | None


class _WindowOptions(TypedDict, total=False):
    #: Counts the call even if it is denied.
    count_denied: bool


class WindowOptions(_TakeOptions, _WindowOptions, total=False):
    """The options of window()."""


class _LeaseOptions(TypedDict, total=False):
    #: The length of the lease, which ends unless the reservation is settled or renewed. Default: the server's
    #: ratelimit.lease.
    lease: Duration | None
    #: Counts the reservation if its lease ends before it is settled. Not with a semaphore.
    count_lapsed: bool
    #: The id of the reservation, 1 to 64 bytes. Default: one that the client or the server makes.
    id: Id | None


class ReserveOptions(LookOptions, _WaitOptions, _LeaseOptions, total=False):
    """The options of reserve() and acquire()."""

    #: Reserves as much of the quantity as is available. The reply has `granted` and `reservations`.
    atmost: bool


class _ClauseOptions(LookOptions, total=False):
    #: The limit must allow the call, but nothing is taken from it.
    check: bool
    #: The limit is decided and reported, but never denies the call.
    shadow: bool


class ThrottleClauseOptions(_ClauseOptions, _BanOptions, total=False):
    """The options of Clause.throttle()."""


class WindowClauseOptions(_ClauseOptions, _BanOptions, _WindowOptions, total=False):
    """The options of Clause.window()."""


class AcquireClauseOptions(_ClauseOptions, _LeaseOptions, total=False):
    """The options of Clause.acquire()."""


class SeveralOptions(_WaitOptions, total=False):
    """The options of reserve() and acquire() with several limits."""

    #: The key of a hash of limits. The limit of a clause that says "@name" is then the field `name` of that hash, such as
    #: "WINDOW 500 1min"; without such a field, it is the policy.
    limits: Key | None


class AllOptions(SeveralOptions, total=False):
    """The options of all()."""

    #: Counts what was already used, in one step, even if that exceeds a limit. All clauses must be rates and windows without
    #: options and groups.
    force: bool


def _caller(name: str, value: Any) -> Word:
    word = text_word(f"value of {name}", value)
    if not 1 <= len(value.encode() if isinstance(value, str) else value) <= 64:
        raise ValueError(f"{name} must have 1 to 64 bytes, not {value!r}")
    return word


def _weight(name: str, value: object) -> int:
    weight = whole(name, value)
    if not 1 <= weight <= 1000:
        raise ValueError(f"{name} must be from 1 to 1000, not {weight}")
    return weight


#: The options of calls and clauses in the order in which they are sent, their words, and what checks a value and makes its
#: word. A flag has no value.
_OPTIONS: dict[str, tuple[str, Callable[[str, Any], Word]]] = {
    "leave": ("LEAVE", whole),
    "lease": ("LEASE", duration_word),
    "count_lapsed": ("COUNTLAPSED", flag),
    "id": ("ID", text_word),
    "atmost": ("ATMOST", flag),
    "force": ("FORCE", flag),
    "count_denied": ("COUNTDENIED", flag),
    "check": ("CHECK", flag),
    "shadow": ("SHADOW", flag),
    "ban": ("BAN", duration_word),
    "ahead": ("AHEAD", duration_word),
    "block": ("BLOCK", partial(duration_word, min_ms=0)),
    "by": ("BY", _caller),
    "weight": ("WEIGHT", _weight),
}
#: The options that are only used with another one.
_NEEDED = {"by": "block", "weight": "by"}


def option_words(limit: Rate | Window | str | None, **options: Any) -> list[Word]:
    """Returns the words of the options, except LIMITS and MS."""
    words: list[Word] = []
    if type(limit) is Window:
        words += limit.options()
    if not options:
        return words
    for name, (word, word_of_value) in _OPTIONS.items():
        value = options.get(name)
        if value is None:
            continue
        if name in _NEEDED and options.get(_NEEDED[name]) is None:
            raise ValueError(f"{name} must be used with {_NEEDED[name]}")
        made = word_of_value(name, value)
        if made == 0 and word_of_value in (flag, whole):
            continue
        words.append(word)
        if word_of_value is not flag:
            words.append(made)
    return words


def check_names(method: str, options: Mapping[str, Any], known: Any) -> None:
    """Raises TypeError if a method got an option that it does not have. `known` is the TypedDict of its options."""
    for name in options:
        if name not in known.__optional_keys__:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
