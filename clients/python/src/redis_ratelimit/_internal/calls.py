"""Builds the words of each command, reads its reply, and decides when Redis cannot be reached. Does no I/O.

For each method of a limiter that sends a call, there is a function of the same name, which returns the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypedDict, TypeVar, Union, cast

from . import replies
from .parameters import (
    Duration,
    Rate,
    RateLike,
    Window,
    WindowLike,
    Word,
    duration_word,
    flag,
    is_semaphore,
    limit_words,
    milliseconds,
    text_word,
    whole,
)
from .replies import AllReply, Held, Id, Info, Policy, Reply, TopKey

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

T = TypeVar("T")
#: A key in Redis.
Key = Union[str, bytes]


class LookOptions(TypedDict, total=False):
    """The options of the methods that take nothing, such as throttle_ro()."""

    #: The quantity that must remain for others. Default 0.
    leave: int


class ThrottleOptions(LookOptions, total=False):
    """The options of throttle()."""

    #: Takes as much of the quantity as is available. The reply has `granted`.
    atmost: bool
    #: Counts the quantity even if that exceeds the limit.
    force: bool
    #: The longest time to wait until the call is allowed; 0 waits without limit. Default: the call does not wait.
    block: Duration | None
    #: Books what becomes available within this time. The reply has `wait`.
    ahead: Duration | None
    #: Closes the key for this time if the call is denied.
    ban: Duration | None


class WindowOptions(LookOptions, total=False):
    """The options of window()."""

    #: Takes as much of the quantity as is available. The reply has `granted`.
    atmost: bool
    #: Counts the quantity even if that exceeds the limit.
    force: bool
    #: Counts the call even if it is denied.
    count_denied: bool
    #: The longest time to wait until the call is allowed; 0 waits without limit. Default: the call does not wait.
    block: Duration | None
    #: Closes the key for this time if the call is denied.
    ban: Duration | None


class ReserveOptions(LookOptions, total=False):
    """The options of reserve() and acquire()."""

    #: Reserves as much of the quantity as is available. The reply has `granted` and `reservations`.
    atmost: bool
    #: The length of the lease, which ends unless the reservation is settled or renewed. Default: the server's
    #: ratelimit.lease.
    lease: Duration | None
    #: Counts the reservation if its lease ends before it is settled. Not with a semaphore.
    count_lapsed: bool
    #: The id of the reservation, 1 to 64 bytes. Default: one that the client or the server makes.
    id: Id | None
    #: The longest time to wait until the call is allowed; 0 waits without limit. Default: the call does not wait.
    block: Duration | None


class AllOptions(TypedDict, total=False):
    """The options of all()."""

    #: Counts what was already used, in one step, even if that exceeds a limit. All clauses must be rates and windows without
    #: options and groups.
    force: bool


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
    #: Merges the replies of all nodes of a cluster.
    merge: Callable[[list[T]], T] | None = None
    #: Further commands, on the same key or on keys of the same slot. Core.send sends all commands as one transaction, and
    #: reads the list of their replies, which may have error replies.
    further_commands: tuple[tuple[Word, ...], ...] = ()
    #: The clauses of all() if one of them reserves; else empty.
    reserving: Sequence[Clause] = ()
    #: The keys of the reservations that the call may make with ids that the program did not choose, and where the words of
    #: such ids would be inserted in `words`.
    without_ids: Sequence[tuple[Key, int]] = ()


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
        options = _options(rate, leave=leave, check=check, shadow=shadow, ban=ban)
        traits = Traits(0 if check else quantity, shadow, is_plain=not options)
        return _clause(key, (*words, *options), name, traits)

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
        options = _options(window, leave=leave, count_denied=count_denied, check=check, shadow=shadow, ban=ban)
        traits = Traits(0 if check else quantity, shadow, is_plain=options == _options(window))
        return _clause(key, (*words, *options), name, traits)

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
        options = _options(
            window, leave=leave, lease=lease, count_lapsed=count_lapsed, id=id, check=check, shadow=shadow
        )
        lease_ms = None if lease is None else milliseconds("lease", lease)
        traits = Traits(0 if check else quantity, shadow, is_semaphore=is_semaphore(window), lease_ms=lease_ms, id=id)
        return _clause(key, (*words, *options), name, traits)


def _clause(key: Key, words: tuple[Word, ...], name: str, traits: Traits) -> Clause:
    """Returns a clause. Checks the key and the name, which is the key by default."""
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"a key must be str or bytes, not {key!r}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {name!r}")
    key_text = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
    return Clause(key, words, name or key_text, traits)


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
}


def _options(limit: Rate | Window | str | None, **options: Any) -> list[Word]:
    """Returns the words of the options, except MS."""
    words: list[Word] = []
    if type(limit) is Window:
        words += limit.options()
    if not options:
        return words
    for name, (word, word_of_value) in _OPTIONS.items():
        value = options.get(name)
        if value is None:
            continue
        made = word_of_value(name, value)
        if made == 0 and word_of_value in (flag, whole):
            continue
        words.append(word)
        if word_of_value is not flag:
            words.append(made)
    return words


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


def _call_of_limit(
    command: str,
    key: Key,
    limit: Rate | Window | str | None,
    quantity: int,
    options: Mapping[str, Any],
    *,
    read: Callable[[Any], Reply],
) -> Call[Reply]:
    """Returns the call of a command that asks one limit."""
    kind = Rate if command.startswith("RL.THROTTLE") else Window
    block, is_ahead = options.get("block"), options.get("ahead") is not None
    force, atmost = options.get("force", False), options.get("atmost", False)
    return Call(
        (command, key, *limit_words(limit, kind), whole("quantity", quantity), *_options(limit, **options), "MS"),
        read,
        key,
        partial(unreached, quantity=quantity, force=force, atmost=atmost, ahead=is_ahead),
        None if block is None else milliseconds("block", block),
    )


def _check_names(method: str, options: Mapping[str, Any], known: Any) -> None:
    """Raises TypeError if a method got an option that it does not have. `known` is the TypedDict of its options."""
    for name in options:
        if name not in known.__optional_keys__:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")


def throttle(key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[ThrottleOptions]) -> Call[Reply]:
    _check_names("throttle", options, ThrottleOptions)
    is_ahead = options.get("ahead") is not None
    read = replies.read_granted if options.get("atmost") else replies.read_wait if is_ahead else replies.read_reply
    return _call_of_limit("RL.THROTTLE", key, rate, quantity, options, read=read)


def window(key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[WindowOptions]) -> Call[Reply]:
    _check_names("window", options, WindowOptions)
    read = replies.read_granted if options.get("atmost") else replies.read_reply
    return _call_of_limit("RL.WINDOW", key, window, quantity, options, read=read)


#: The limits of all(), and of reservations of several limits. A list in the place of a clause is a group.
Clauses = Sequence[Union[Clause, Sequence[Clause]]]


def reserve(
    key: Key | Clauses, window: WindowLike | None = None, quantity: int = 1, **options: Unpack[ReserveOptions]
) -> Call[Reply]:
    _check_names("reserve", options, ReserveOptions)
    if isinstance(key, (str, bytes)):
        read = replies.read_id_and_granted if options.get("atmost") else replies.read_id
        call = _call_of_limit("RL.ACQUIRE", key, window, quantity, options, read=read)
        if options.get("id") is None:
            call.without_ids = ((key, len(call.words) - 1),)
        return call
    if window is not None or quantity != 1 or _options(None, **options):
        raise ValueError("a reservation of several limits takes only their clauses, which have the options")
    return _reserve_several(key)


def with_own_ids(call: Call[T]) -> tuple[Call[T], Sequence[Reserved]]:
    """Returns a call with new ids for the reservations without one, and these reservations. The client can release what was
    granted in a reply that was lost."""
    if not call.without_ids:
        return call, ()
    words, own = list(call.words), []
    for key, at in reversed(call.without_ids):
        id = token_urlsafe(12)
        words[at:at] = "ID", id
        own.append(Reserved("", key, id))
    return replace(call, words=tuple(words)), own


def _reserve_several(clauses: Clauses) -> Call[Any]:
    if not isinstance(clauses, (list, tuple)):
        raise TypeError(f"a key must be str or bytes, and several limits a list of clauses, not {clauses!r}")
    call = _all("RL.ALL", clauses)
    if not call.reserving:
        raise ValueError("one limit at least must be made by Clause.acquire and take something")
    return call


def throttle_ro(key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Call[Reply]:
    _check_names("throttle_ro", options, LookOptions)
    return _call_of_limit("RL.THROTTLE_RO", key, rate, quantity, options, read=replies.read_reply)


def window_ro(key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Call[Reply]:
    _check_names("window_ro", options, LookOptions)
    return _call_of_limit("RL.WINDOW_RO", key, window, quantity, options, read=replies.read_reply)


def acquire_ro(key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Call[Reply]:
    _check_names("acquire_ro", options, LookOptions)
    return _call_of_limit("RL.ACQUIRE_RO", key, window, quantity, options, read=replies.read_id)


def _groups(clauses: Clauses) -> list[list[Clause]]:
    """Checks the clauses of all(), and returns their groups. A clause that is not in a list is a group of one."""
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


def _all_unreached(allow: bool) -> AllReply:
    return AllReply(**vars(unreached(allow, quantity=1)))


def _all(command: str, clauses: Clauses) -> Call[AllReply]:
    groups = _groups(clauses)
    flat = [clause for group in groups for clause in group]
    words: list[Word] = [command, len(flat), *(clause.key for clause in flat)]
    without_ids: list[tuple[Key, int]] = []
    for group in groups:
        for at, clause in enumerate(group):
            if at:
                words.append("ELSE")
            words += clause.words
            if command == "RL.ALL" and clause._reserves and clause._traits.id is None:
                without_ids.append((clause.key, len(words)))
    words.append("MS")
    reserving = flat if command == "RL.ALL" and any(clause._reserves for clause in flat) else ()

    def read(reply: Sequence[Any]) -> AllReply:
        answer = replies.read_all(reply)
        if len(answer.answers) != len(flat):
            raise ValueError
        return replace(answer, paid=tuple(_limits_that_took(groups, answer, command == "RL.ALL")))

    return Call(
        tuple(words),
        read,
        flat[0].key,
        _all_unreached,
        reserving=reserving,
        without_ids=without_ids,
    )


def _limits_that_took(groups: list[list[Clause]], reply: AllReply, has_taken: bool) -> Iterator[str]:
    """Yields the names of the limits that took something: the choice of each group, unless it only checks, or is in shadow
    and would have been denied."""
    answers = iter(reply.answers)
    for group in groups:
        pairs = list(zip(group, answers, strict=False))
        chosen = next((each for each in pairs if each[1].limited == 0 or each[0]._traits.shadow), None)
        if chosen is None or reply.limited != 0:
            continue
        clause, answer = chosen
        is_missing = has_taken and clause._reserves and answer.id is None
        if answer.limited == 0 and clause._traits.takes > 0 and not is_missing:
            yield clause.name


def _group(clauses: Sequence[Clause]) -> list[Clause]:
    if not isinstance(clauses, (list, tuple)):
        raise TypeError(
            "each clause must be made by Clause.throttle, Clause.window or Clause.acquire, or be a list of such clauses, "
            f"not {clauses!r}"
        )
    if not clauses:
        raise ValueError("a group must have at least one clause")
    return list(clauses)


def all(clauses: Clauses, **options: Unpack[AllOptions]) -> Call[AllReply]:
    _check_names("all", options, AllOptions)
    return _force_all(clauses) if flag("force", options.get("force", False)) else _all("RL.ALL", clauses)


def all_ro(clauses: Clauses) -> Call[AllReply]:
    return _all("RL.ALL_RO", clauses)


def _force_all(groups: Clauses) -> Call[AllReply]:
    """Counts each limit by RL.THROTTLE or RL.WINDOW with FORCE, in one transaction."""
    clauses = [clause for group in _groups(groups) for clause in group]
    if any(not isinstance(each, Clause) or not each._traits.is_plain for each in groups):
        raise ValueError("force must be used with rates and windows without options and groups")
    for clause in clauses:
        if clause._traits.takes < 0:
            raise ValueError(
                f"the quantity of {clause.name!r} must be at least 0 with force, not {clause._traits.takes}"
            )

    def read(raw: list[Any]) -> AllReply:
        answers = tuple(replies.read_reply(reply) for reply in _without_errors(clauses, raw))
        # As in RL.ALL, the limit with the least left in proportion to its quantity decides. A quantity of 0 comes last.
        ratios = [
            answer.remaining // clause._traits.takes if clause._traits.takes else float("inf")
            for clause, answer in zip(clauses, answers, strict=True)
        ]
        at = ratios.index(min(ratios))
        paid = tuple(clause.name for clause in clauses if clause._traits.takes)
        return AllReply(**{**vars(answers[at]), "clause": at + 1, "answers": answers, "paid": paid})

    commands = [("RL." + str(clause.words[0]), clause.key, *clause.words[1:], "FORCE", "MS") for clause in clauses]
    return _transaction(commands, read, lambda _: _all_unreached(True))


def _transaction(
    commands: Sequence[tuple[Word, ...]],
    read: Callable[[list[Any]], T],
    unreached: Callable[[bool], T] | None = None,
) -> Call[T]:
    """Returns the call of a transaction. `read` takes the list of replies, even for a single command."""
    first, *more = commands
    read_one = read if more else (lambda reply: read([reply]))
    return Call(first, read_one, cast(Key, first[1]), unreached, further_commands=tuple(more))


def _without_errors(limits: Sequence[Clause | Reserved], answers: Sequence[Any]) -> Sequence[Any]:
    """Returns the replies. If some are errors, raises the first of them, with the names and errors of all in its text."""
    failed = [
        (limit.name, answer) for limit, answer in zip(limits, answers, strict=True) if isinstance(answer, Exception)
    ]
    if failed:
        # The text must begin with the error code.
        text = "; ".join(f"{error} (limit {name})" for name, error in failed)
        error = failed[0][1]
        error.args = (text,)
        raise error
    return answers


class Reserved(NamedTuple):
    """A reservation of one limit, with the limit's name."""

    name: str
    key: Key
    id: Id
    is_semaphore: bool = False
    is_policy: bool = False


def _settle(reserved: Sequence[Reserved], commands_of: Callable[[Reserved], list[tuple[Word, ...]]]) -> Call[list[str]]:
    """Returns the call that sends the commands for each reservation in one transaction. It reads the names of the limits
    whose reservation had ended."""
    commands = [commands_of(each) for each in reserved]

    def read(answers: list[Any]) -> list[str]:
        rest = list(answers)
        answers_of_each = [[rest.pop(0) for _ in each] for each in commands]
        # If a policy is a semaphore, RL.APPLY fails and the RL.RELEASE after it releases the reservation.
        outcomes = [each[-1] if each[-1] == 1 else each[0] for each in answers_of_each]
        held = map(replies.read_is_found, _without_errors(reserved, outcomes))
        return [each.name for each, is_held in zip(reserved, held, strict=True) if not is_held]

    return _transaction([command for each in commands for command in each], read)


def apply_all(reserved: Sequence[Reserved], costs: Mapping[str, int]) -> Call[list[str]]:
    """RL.APPLY for each reservation, with its true cost if `costs` has it; RL.RELEASE for a semaphore's."""

    def commands_of(each: Reserved) -> list[tuple[Word, ...]]:
        cost = costs.get(each.name)
        applied, released = ("RL.APPLY", each.key, each.id), ("RL.RELEASE", each.key, each.id)
        if cost is not None:
            return [(*applied, cost)]
        if each.is_semaphore:
            return [released]
        # Only the server knows whether a policy is a semaphore. If it is not, RL.RELEASE finds nothing to release.
        return [applied, released] if each.is_policy else [applied]

    return _settle(reserved, commands_of)


def release_all(reserved: Sequence[Reserved]) -> Call[list[str]]:
    """RL.RELEASE for each reservation."""
    return _settle(reserved, lambda each: [("RL.RELEASE", each.key, each.id)])


def renew_all(reserved: Sequence[Reserved], lease: Duration | None) -> Call[list[str]]:
    """RL.RENEW for each reservation."""
    return _settle(reserved, lambda each: [renew(each.key, each.id, lease).words])


def apply(key: Key, id: Id, quantity: int | None = None) -> Call[bool]:
    words = () if quantity is None else (whole("quantity", quantity),)
    return Call(("RL.APPLY", key, text_word("id", id), *words), replies.read_is_found, key)


def release(key: Key, *ids: Id) -> Call[int]:
    return Call(("RL.RELEASE", key, *(text_word("id", id) for id in ids)), replies.read_count, key)


def renew(key: Key, id: Id, lease: Duration | None = None) -> Call[bool]:
    words = () if lease is None else ("LEASE", duration_word("lease", lease))
    return Call(("RL.RENEW", key, text_word("id", id), *words), replies.read_is_found, key)


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
