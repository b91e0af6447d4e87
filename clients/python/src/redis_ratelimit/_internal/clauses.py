"""The limits of all(): clauses, and groups of clauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from .limits import Rate, RateLike, Window, WindowLike, is_semaphore, limit_words, refuse_semaphore
from .options import AcquireClauseOptions, ThrottleClauseOptions, WindowClauseOptions, check_names, option_words
from .words import Key, Word, milliseconds, whole

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack


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
    #: The quantity that the clause takes; 0 if it only checks.
    _takes: int = field(repr=False)
    _options: Mapping[str, Any] = field(repr=False, hash=False)

    @property
    def _reserves(self) -> bool:
        """True if the clause makes a reservation, which has to be settled."""
        return self.words[0] == "ACQUIRE" and self._takes > 0

    @property
    def _is_semaphore(self) -> bool:
        """True if the reservation can only be released, not applied. Only the server knows this about a policy."""
        return is_semaphore(self.limit)

    @property
    def _lease_ms(self) -> int | None:
        """The lease of the reservation. None: the server's default."""
        lease = self._options.get("lease")
        return None if lease is None else milliseconds("lease", lease)

    @property
    def _is_policy(self) -> bool:
        """True if the limit is a policy."""
        return str(self.words[1]).startswith("@")

    @staticmethod
    def throttle(
        key: Key, rate: RateLike, quantity: int = 1, *, name: str = "", **options: Unpack[ThrottleClauseOptions]
    ) -> Clause:
        """Returns the clause of a rate. With `check` it must be allowed, but takes nothing; with `shadow` it is decided and
        reported, but never denies a call."""
        check_names("Clause.throttle", options, ThrottleClauseOptions)
        return _clause("THROTTLE", key, rate, quantity, name=name, **options)

    @staticmethod
    def window(
        key: Key, window: WindowLike, quantity: int = 1, *, name: str = "", **options: Unpack[WindowClauseOptions]
    ) -> Clause:
        """Returns the clause of a window. With `check` it must be allowed, but takes nothing; with `shadow` it is decided
        and reported, but never denies a call."""
        check_names("Clause.window", options, WindowClauseOptions)
        return _clause("WINDOW", key, window, quantity, name=name, **options)

    @staticmethod
    def acquire(
        key: Key, window: WindowLike, quantity: int = 1, *, name: str = "", **options: Unpack[AcquireClauseOptions]
    ) -> Clause:
        """Returns the clause of a reservation in a window or of a semaphore. All reservations of a call are settled in one
        step, see Limiter.acquire."""
        check_names("Clause.acquire", options, AcquireClauseOptions)
        return _clause("ACQUIRE", key, window, quantity, name=name, **options)


def _clause(command: str, key: Key, limit: Rate | Window | str, quantity: int, *, name: str, **options: Any) -> Clause:
    """Returns a clause, whose name is the key by default."""
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"a key must be str or bytes, not {key!r}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {name!r}")
    if command == "WINDOW":
        refuse_semaphore(limit)
    kind = Rate if command == "THROTTLE" else Window
    words = command, *limit_words(limit, kind), whole("quantity", quantity), *option_words(limit, **options)
    key_text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
    return Clause(key, words, name or key_text, limit, 0 if options.get("check") else quantity, options)


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
