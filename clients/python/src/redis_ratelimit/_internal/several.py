"""Calls with several limits: all(), reserve(), and the settling of what they reserved. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from . import calls, replies
from .calls import Call, unreached
from .clauses import Clause, Clauses, checked_groups
from .limits import WindowLike
from .options import AllOptions, ReserveOptions, SeveralOptions, check_names, option_words
from .replies import AllReply, Id, Reply
from .words import Duration, Key, Word, flag, milliseconds

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

T = TypeVar("T")


def reserve(key: Key | Clauses, window: WindowLike | None = None, quantity: int = 1, **options: Any) -> Call[Reply]:
    if isinstance(key, (str, bytes)):
        return calls.ask("reserve", key, window, quantity, options)
    if not isinstance(key, (list, tuple)):
        raise TypeError(f"a key must be str or bytes, and several limits a list of clauses, not {key!r}")
    own: Any = {name: value for name, value in options.items() if name in SeveralOptions.__optional_keys__}
    others = {name: value for name, value in options.items() if name not in own}
    check_names("reserve", others, ReserveOptions)
    if window is not None or quantity != 1 or option_words(None, **others):
        raise ValueError(
            "a reservation of several limits takes block, by, weight and limits: the clauses have the rest"
        )
    call: Call[Any] = _all("RL.ALL", key, **own)
    call.method, call.args, call.options = "reserve", (key,), own
    if not call.reserving:
        raise ValueError("one limit at least must be made by Clause.acquire and take something")
    return call


def all(clauses: Clauses, **options: Unpack[AllOptions]) -> Call[AllReply]:
    check_names("all", options, AllOptions)
    others: Any = {name: value for name, value in options.items() if name != "force"}
    if not flag("force", options.get("force", False)):
        call = _all("RL.ALL", clauses, **others)
    elif any(value is not None for value in others.values()):
        raise ValueError("force must not be used with block, by, weight or limits")
    else:
        call = _force_all(clauses)
    call.method, call.args, call.options = "all", (clauses,), options
    return call


def all_ro(clauses: Clauses, *, limits: Key | None = None) -> Call[AllReply]:
    call = _all("RL.ALL_RO", clauses, limits=limits)
    call.method, call.args, call.options = "all_ro", (clauses,), {} if limits is None else {"limits": limits}
    return call


def _all(command: str, clauses: Clauses, *, limits: Key | None = None, **wait: Any) -> Call[AllReply]:
    """Returns the call of RL.ALL or RL.ALL_RO. `wait` has the options block, by and weight."""
    groups = checked_groups(clauses)
    flat = [clause for group in groups for clause in group]
    block = wait.get("block")
    if block is not None and (
        len(groups) < len(flat) or any(clause._options.get("ban") is not None for clause in flat)
    ):
        raise ValueError("block must not be used with groups or with the ban of a clause")
    keys: list[Key] = [clause.key for clause in flat]
    if limits is not None:
        if not isinstance(limits, (str, bytes)):
            raise TypeError(f"limits must be the key of a hash of limits, not {limits!r}")
        keys.append(limits)
    words: list[Word] = [command, len(keys), *keys]
    without_ids: list[tuple[Key, int]] = []
    for group in groups:
        for at, clause in enumerate(group):
            if at:
                words.append("ELSE")
            words += clause.words
            if command == "RL.ALL" and clause._reserves and clause._options.get("id") is None:
                without_ids.append((clause.key, len(words)))
    if limits is not None:
        words.append("LIMITS")
    words += [*option_words(None, **wait), "MS"]
    reserving = flat if command == "RL.ALL" and any(clause._reserves for clause in flat) else ()

    def read(reply: Sequence[Any]) -> AllReply:
        answer = replies.read_all(reply)
        if len(answer.answers) != len(flat):
            raise ValueError
        paid, denied = _paid_and_denied(groups, answer, command == "RL.ALL")
        return replace(answer, paid=paid, denied=denied, names=tuple(clause.name for clause in flat))

    return Call(
        tuple(words),
        read,
        flat[0].key,
        _all_unreached,
        None if block is None else milliseconds("block", block),
        reserving=reserving,
        without_ids=without_ids,
    )


def _all_unreached(allow: bool) -> AllReply:
    return AllReply(**vars(unreached(allow, quantity=1)))


def _paid_and_denied(
    groups: list[list[Clause]], reply: AllReply, has_taken: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the limits that took something, and of those that denied the call. Of each group its choice took
    something, unless it only checks, or is in shadow and would have been denied. A group without a choice denied."""
    answers = iter(reply.answers)
    paid: list[str] = []
    denied: list[str] = []
    for group in groups:
        pairs = list(zip(group, answers, strict=False))
        chosen = next((each for each in pairs if each[1].limited == 0 or each[0]._options.get("shadow")), None)
        if chosen is None:
            denied += [clause.name for clause in group]
            continue
        clause, answer = chosen
        is_missing = has_taken and clause._reserves and answer.id is None
        if answer.limited == 0 and clause._takes > 0 and not is_missing:
            paid.append(clause.name)
    return (tuple(paid), ()) if reply.allowed else ((), tuple(denied))


def _force_all(groups: Clauses) -> Call[AllReply]:
    """Counts each limit by RL.THROTTLE or RL.WINDOW with FORCE, in one transaction."""
    clauses = [clause for group in checked_groups(groups) for clause in group]
    if any(
        not isinstance(each, Clause) or each.words[0] == "ACQUIRE" or any(each._options.values()) for each in groups
    ):
        raise ValueError("force must be used with rates and windows without options and groups")
    for clause in clauses:
        if clause._takes < 0:
            raise ValueError(f"the quantity of {clause.name!r} must be at least 0 with force, not {clause._takes}")

    def read(raw: list[Any]) -> AllReply:
        answers = tuple(replies.read_reply(reply) for reply in _without_errors(clauses, raw))
        # As in RL.ALL, the limit with the least left in proportion to its quantity decides. A quantity of 0 comes last.
        ratios = [
            answer.remaining // clause._takes if clause._takes else float("inf")
            for clause, answer in zip(clauses, answers, strict=True)
        ]
        at = ratios.index(min(ratios))
        paid = tuple(clause.name for clause in clauses if clause._takes)
        names = tuple(clause.name for clause in clauses)
        return AllReply(**{**vars(answers[at]), "clause": at + 1, "answers": answers, "names": names, "paid": paid})

    commands = [("RL." + str(clause.words[0]), clause.key, *clause.words[1:], "FORCE", "MS") for clause in clauses]
    return _transaction(commands, read, lambda _: _all_unreached(True))


def _transaction(
    commands: Sequence[tuple[Word, ...]], read: Callable[[list[Any]], T], unreached: Callable[[bool], T] | None = None
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
    return _settle(reserved, lambda each: [calls.renew(each.key, each.id, lease).words])
