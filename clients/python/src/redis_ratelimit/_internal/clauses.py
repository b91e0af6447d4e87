"""The limits of all(): clauses, and groups of clauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Union

from .options import option_words
from .parameters import (
    Duration,
    Key,
    Rate,
    RateLike,
    Window,
    WindowLike,
    Word,
    is_semaphore,
    limit_words,
    milliseconds,
    whole,
)
from .replies import Id


class Traits(NamedTuple):
    """Properties of a clause that the client needs after the clause was sent."""

    #: The quantity that the clause takes; 0 if it only checks.
    takes: int
    #: True if the clause never denies a call.
    shadow: bool
    #: True if the clause has no options.
    is_plain: bool = False
    #: True if the reservation can only be released, not applied. Only the server knows this about a policy.
    is_semaphore: bool = False
    #: True if the clause closes its key when it denies a call.
    bans: bool = False
    #: The lease of the reservation. None: the server's default.
    lease_ms: int | None = None
    #: The id of the reservation, if the client has chosen it.
    id: Id | None = None


@dataclass(frozen=True)
class Clause:
    """One limit of all(): made by Clause.throttle, Clause.window or Clause.acquire.

    Its `name` identifies the limit in replies, errors and true costs. By default it is the key.
    """

    key: Key
    words: tuple[Word, ...]
    name: str
    #: The limit: a Rate, a Window or the name of a policy.
    limit: RateLike | WindowLike
    _traits: Traits = field(repr=False)

    @property
    def _reserves(self) -> bool:
        """True if the clause makes a reservation, which has to be settled."""
        return self.words[0] == "ACQUIRE" and self._traits.takes > 0

    @property
    def _is_policy(self) -> bool:
        """True if the limit is a policy."""
        return str(self.words[1]).startswith("@")

    @staticmethod
    def throttle(
        key: Key,
        rate: RateLike,
        quantity: int = 1,
        *,
        name: str = "",
        leave: int = 0,
        check: bool = False,
        shadow: bool = False,
        ban: Duration | None = None,
    ) -> Clause:
        """Returns the clause of a rate. With `check` it must be allowed, but takes nothing; with `shadow` it is decided and
        reported, but never denies a call."""
        words = "THROTTLE", *limit_words(rate, Rate), whole("quantity", quantity)
        options = option_words(rate, leave=leave, check=check, shadow=shadow, ban=ban)
        traits = Traits(0 if check else quantity, shadow, is_plain=not options, bans=ban is not None)
        return _clause(key, rate, (*words, *options), name, traits)

    @staticmethod
    def window(
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        name: str = "",
        leave: int = 0,
        count_denied: bool = False,
        check: bool = False,
        shadow: bool = False,
        ban: Duration | None = None,
    ) -> Clause:
        """Returns the clause of a window. With `check` it must be allowed, but takes nothing; with `shadow` it is decided
        and reported, but never denies a call."""
        words = "WINDOW", *limit_words(window, Window), whole("quantity", quantity)
        options = option_words(window, leave=leave, count_denied=count_denied, check=check, shadow=shadow, ban=ban)
        is_plain = options == option_words(window)
        traits = Traits(0 if check else quantity, shadow, is_plain=is_plain, bans=ban is not None)
        return _clause(key, window, (*words, *options), name, traits)

    @staticmethod
    def acquire(
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        name: str = "",
        leave: int = 0,
        lease: Duration | None = None,
        count_lapsed: bool = False,
        id: Id | None = None,
        check: bool = False,
        shadow: bool = False,
    ) -> Clause:
        """Returns the clause of a reservation in a window or of a semaphore. All reservations of a call are settled in one
        step, see Limiter.acquire."""
        words = "ACQUIRE", *limit_words(window, Window), whole("quantity", quantity)
        options = option_words(
            window, leave=leave, lease=lease, count_lapsed=count_lapsed, id=id, check=check, shadow=shadow
        )
        lease_ms = None if lease is None else milliseconds("lease", lease)
        traits = Traits(0 if check else quantity, shadow, is_semaphore=is_semaphore(window), lease_ms=lease_ms, id=id)
        return _clause(key, window, (*words, *options), name, traits)


def _clause(key: Key, limit: RateLike | WindowLike, words: tuple[Word, ...], name: str, traits: Traits) -> Clause:
    """Returns a clause. Checks the key and the name, which is the key by default."""
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"a key must be str or bytes, not {key!r}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {name!r}")
    key_text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
    return Clause(key, words, name or key_text, limit, traits)


#: The limits of all(), and of reservations of several limits. A list in the place of a clause is a group.
Clauses = Sequence[Union[Clause, Sequence[Clause]]]


def checked_groups(clauses: Clauses) -> list[list[Clause]]:
    """Checks the clauses of all(), and returns their groups. A clause that is not in a list is a group of one."""
    if not isinstance(clauses, (list, tuple)):
        raise TypeError(f"clauses must be a list of clauses and groups, not {clauses!r}")
    groups = [[each] if isinstance(each, Clause) else _group(each) for each in clauses]
    names = set()
    for clause in (clause for group in groups for clause in group):
        if not isinstance(clause, Clause):
            raise TypeError(
                f"each clause must be made by Clause.throttle, Clause.window or Clause.acquire, not {clause!r}"
            )
        if clause.name in names:
            raise ValueError(f"two limits must not have the same name, which is {clause.name!r}")
        names.add(clause.name)
    if not groups:
        raise ValueError("there must be at least one clause")
    return groups


def _group(clauses: Sequence[Clause]) -> list[Clause]:
    if not isinstance(clauses, (list, tuple)):
        raise TypeError(
            "each clause must be made by Clause.throttle, Clause.window or Clause.acquire, or be a list of such clauses, "
            f"not {clauses!r}"
        )
    if not clauses:
        raise ValueError("a group must have at least one clause")
    return list(clauses)
