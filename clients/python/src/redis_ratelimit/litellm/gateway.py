"""Limits for a gateway to language models: their configuration, and what clients are told."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from fractions import Fraction
from math import ceil
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from .. import AllReply, Clause, Policy, Window, headers, semaphore
from .._internal.core import deadline_seconds
from .._internal.words import milliseconds
from ..http.headers import is_decided, seconds, wait_ms
from ..types import Deadline, Duration, WindowLike

T = TypeVar("T")

#: The units that a limit may count. Dollars are counted in millionths. `calls` are calls that run at the same time.
UNITS = "requests", "tokens", "input_tokens", "output_tokens", "dollars", "calls"
#: The names of units in HTTP headers.
_HEADER_UNITS = {unit: unit.replace("_", "-") for unit in UNITS if "tokens" in unit} | {"dollars": "microdollars"}
#: The dimensions by which a limit may count.
DIMENSIONS = "key", "user", "team", "organization", "end_user", "model"
#: The owners of fields, such as key.plan. Fields of metadata are set by the client.
_OWNERS = "key", "user", "team", "organization", "end_user", "metadata"
#: The most limits that RL.ALL takes.
MAX_LIMITS = 64
MILLION = 1_000_000
#: The most keys for which a process remembers what rounding added.
MAX_ROUNDED_KEYS = 10_000
#: The most that a call asks for. It is more than any limit has.
MAX_QUANTITY = 2**62
#: Longer values are replaced by their hash in keys.
LONGEST_VALUE = 200

#: A place in the configuration: the keys and the indices that lead there.
Path: TypeAlias = "tuple[str | int, ...]"
#: Returns the values of a dimension of a call: the first is that by which it counts.
ValueOf = Callable[[str], Sequence[str]]


class ConfigurationError(ValueError):
    """The configuration has a mistake. The text says where, and what is allowed."""


class _Mistake(Exception):
    def __init__(self, path: Path, text: str) -> None:
        super().__init__(text)
        self.path = path


@dataclass(frozen=True)
class Usage:
    """The usage of a call, or an estimate of it."""

    input_tokens: int = 0
    output_tokens: int = 0
    #: In millionths of a dollar.
    dollars: Decimal = Decimal(0)
    #: The total that the provider reports; None if that is the sum of both.
    total_tokens: int | None = None

    def count(self, unit: str) -> int:
        """Returns the usage of a unit, rounded up."""
        if unit == "tokens":
            return self.input_tokens + self.output_tokens if self.total_tokens is None else self.total_tokens
        if unit in ("requests", "calls"):
            return 1
        amount: Decimal | int = getattr(self, unit)
        return ceil(amount)


def microdollars(dollars: float) -> Decimal:
    """Returns dollars in millionths."""
    # Sums of prices are not exact: 0.000225 may come as 0.00022500000000000002.
    return max(Decimal(0), Decimal(repr(round(dollars, 12))) * MILLION)


class Rounding:
    """Rounds quantities up. What that adds to a quantity of a key is taken off the key's next quantity, so that many small
    quantities do not count more than their sum."""

    def __init__(self) -> None:
        self._added: dict[str, Decimal] = {}

    def whole(self, key: str, quantity: Decimal) -> int:
        """Returns the whole quantity that counts for a key."""
        exact = quantity - self._added.pop(key, 0)
        whole = max(0, ceil(exact))
        if whole > exact:
            self._added[key] = whole - exact
            if len(self._added) > MAX_ROUNDED_KEYS:
                del self._added[next(iter(self._added))]
        return whole


@dataclass(frozen=True)
class Limit:
    """One limit of the configuration."""

    name: str
    unit: str
    window: WindowLike
    #: The dimensions, each combination of whose values has a count of its own.
    per: tuple[str, ...]
    #: For each of these dimensions, the patterns of which one of its values must match one.
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()
    shadow: bool = False
    #: The field that has the number of the limit, if that differs from call to call.
    field: str | None = None

    def of_call(self, value_of: ValueOf) -> Limit | None:
        """Returns the limit with the number that a call has; None if its field is empty. Raises ValueError if the field is
        not a number."""
        if self.field is None:
            return self
        value = next(iter(value_of(self.field)), None)
        if value is None:
            return None
        try:
            amount = Decimal(value) * (MILLION if self.unit == "dollars" else 1)
        except InvalidOperation:
            raise ValueError(f"{self.field} must be a number, not {value!r}") from None
        if not amount.is_finite() or not 0 <= amount < 2**63:
            raise ValueError(f"{self.field} must be from 0, not {value!r}")
        assert isinstance(self.window, Window)
        return replace(self, window=replace(self.window, limit=int(amount)))

    def values(self, value_of: ValueOf) -> list[str] | None:
        """Returns the values of the limit's dimensions; None if the limit does not apply to the call."""
        for dimension, patterns in self.only:
            if not any(fnmatchcase(value, pattern) for value in value_of(dimension) for pattern in patterns):
                return None
        values = [value for dimension in self.per for value in value_of(dimension)[:1]]
        return values if len(values) == len(self.per) else None

    @property
    def most(self) -> int | None:
        """The number of the limit; None if only the server knows it."""
        return self.window.limit if isinstance(self.window, Window) else None

    def amount(self, quantity: int) -> str:
        """Returns a quantity as a person reads it."""
        if self.unit != "dollars":
            return str(quantity)
        return f"${Decimal(quantity) / MILLION:{'.2f' if quantity % 10_000 == 0 else 'f'}}"


@dataclass(frozen=True)
class Asked:
    """A limit that applies to a call, and the most that the call may take of it."""

    limit: Limit
    key: str
    quantity: int

    def clause(self, settings: Settings) -> Clause:
        """Returns the clause of RL.ALL that reserves it."""
        limit = self.limit
        return Clause.acquire(
            self.key,
            limit.window,
            self.quantity,
            name=limit.name,
            lease=settings.lease,
            # A place that a call occupies is free again: it has no period in which it could count.
            count_lapsed=settings.count_lapsed and limit.unit != "calls",
            shadow=limit.shadow,
        )


@dataclass(frozen=True)
class Settings:
    """The settings of a gateway."""

    limits: tuple[Limit, ...]
    url: str = "redis://localhost:6379"
    prefix: str = "llm"
    #: Each combination of the values of these dimensions has limits of its own, in one slot of a cluster.
    tag: tuple[str, ...] = ()
    lease: Duration = "30s"
    deadline: Deadline = 1.0
    unreachable: Literal["allow", "deny"] | Fraction = "deny"
    #: The tokens that are reserved for an answer if the call sets no maximum. None: the maximum of the model.
    max_tokens: int | None = None
    #: True if a reservation whose lease ends unsettled counts for the period of its limit.
    count_lapsed: bool = False

    def asked(self, value_of: ValueOf) -> list[tuple[Limit, str]]:
        """Returns the limits that apply to a call, and their keys."""
        tag = ":".join([self.prefix, *(_quoted(next(iter(value_of(each)), "")) for each in self.tag)])
        applicable = []
        for limit in self.limits:
            values = limit.values(value_of)
            limit_of_call = None if values is None else limit.of_call(value_of)
            if values is not None and limit_of_call is not None:
                applicable.append((limit_of_call, ":".join([f"{{{tag}}}", limit.name, *map(_quoted, values)])))
        return applicable


def _quoted(value: str) -> str:
    if len(value) > LONGEST_VALUE:
        value = "sha256-" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    # Colons and braces have a meaning in keys.
    return quote(value, safe="@ ", errors="surrogatepass")


def reserve(limits: Sequence[tuple[Limit, str]], estimate: Usage, least: Usage | None) -> list[Asked]:
    """Returns what a call reserves of each limit. `least` is the least that a call without a maximum for its answer uses,
    which is its input: the call asks for no more than a limit has, unless `least` is more. None if there is a maximum."""
    asked = []
    for limit, key in limits:
        quantity = min(max(1, estimate.count(limit.unit)), MAX_QUANTITY)
        if least is not None and limit.most is not None and least.count(limit.unit) <= limit.most:
            quantity = min(quantity, max(1, limit.most))
        asked.append(Asked(limit, key, quantity))
    return asked


def read_settings(section: Any, where: Callable[[Path], str]) -> Settings:
    """Returns the settings in a section of a configuration. `where` names a place in it, for errors."""
    try:
        return _settings(section)
    except _Mistake as mistake:
        raise ConfigurationError(f"{where(mistake.path)}: {mistake}") from None


def check_policies(settings: Settings, policies: Sequence[Policy], where: Callable[[Path], str]) -> None:
    """Raises ConfigurationError if the server lacks the policy of a limit, or the policy is not a window."""
    kinds = {policy.name: policy.definition.split()[0] for policy in policies}
    for at, limit in enumerate(settings.limits):
        if not isinstance(limit.window, str):
            continue
        kind = kinds.get(limit.window[1:])
        place = where(("limits", at, limit.unit))
        if kind is None:
            raise ConfigurationError(f"{place}: the server has no policy {limit.window!r}")
        if kind != "WINDOW":
            raise ConfigurationError(f"{place}: the policy {limit.window!r} must be a WINDOW, not a {kind}")


def _check(is_right: object, value: Any, path: Path, what: str) -> None:
    """Raises _Mistake unless a value of the configuration is right."""
    if not is_right:
        raise _Mistake(path, f"{path[-1]} must be {what}, not {value!r}")


def _checked(path: Path, make: Callable[[], T]) -> T:
    """Returns what `make` makes of a value of the configuration. An error of it is a mistake at `path`."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise _Mistake(path, str(error)) from None


def _mapping(value: Any, allowed: Sequence[str], path: Path, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Mistake(path, f"{what} must be a mapping, not {value!r}")
    for name in value:
        if name not in allowed:
            raise _Mistake((*path, name), f"there is no {name!r}; {what} has {', '.join(allowed)}")
    return value


def _text(value: Any, path: Path) -> str:
    _check(isinstance(value, str) and value, value, path, "a text, in quotes if it is not read as one")
    return str(value)


def _flag(value: Any, path: Path) -> bool:
    _check(isinstance(value, bool), value, path, "true or false")
    return bool(value)


def _duration(value: Any, path: Path) -> Any:
    _checked(path, lambda: milliseconds(str(path[-1]), value, 1))
    return value


def _deadline(value: Any, path: Path) -> Any:
    _checked(path, lambda: deadline_seconds(value))
    return value


def _positive(value: Any, path: Path) -> int:
    _check(type(value) is int and value >= 1, value, path, "an integer from 1")
    return int(value)


def _unreachable(value: Any, path: Path) -> str | Fraction:
    if value in ("allow", "deny"):
        return str(value)
    share = Fraction(0)
    if isinstance(value, dict) and [*value] == ["share"]:
        with suppress(ValueError, ZeroDivisionError):
            share = Fraction(str(value["share"]))
    _check(0 < share <= 1, value, path, "allow, deny or a share such as {share: 1/4}")
    return share


def _dimensions(value: Any, path: Path) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    _check(isinstance(names, list) and names, value, path, f"one or a list of {', '.join(DIMENSIONS)}")
    for name in names:
        _dimension(name, path)
    if len(set(names)) < len(names):
        raise _Mistake(path, f"{path[-1]} must not name anything twice")
    return tuple(names)


def _dimension(name: Any, path: Path) -> None:
    first, dot, field = str(name).partition(".")
    if name not in DIMENSIONS and not (dot and field and first in _OWNERS):
        raise _Mistake(
            path,
            f"there is no {name!r} to count by, but {', '.join(DIMENSIONS)}, and fields such as "
            f"{', '.join(f'{each}.plan' for each in _OWNERS)}",
        )


#: The settings besides the limits, and what reads each.
_READERS: dict[str, Callable[[Any, Path], Any]] = {
    "url": _text,
    "prefix": _text,
    "tag": _dimensions,
    "lease": _duration,
    "deadline": _deadline,
    "unreachable": _unreachable,
    "max_tokens": _positive,
    "count_lapsed": _flag,
}


def _settings(section: Any) -> Settings:
    fields = _mapping(section, ("limits", *_READERS), (), "the section")
    entries = fields.get("limits")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_LIMITS:
        raise _Mistake(("limits",) if "limits" in fields else (), f"limits must be a list of 1 to {MAX_LIMITS} limits")
    limits: dict[str, Limit] = {}
    for at, entry in enumerate(entries):
        limit = _limit(entry, ("limits", at))
        if limit.name in limits:
            raise _Mistake(("limits", at), f"there are two limits {limit.name!r}: give one of them another name")
        limits[limit.name] = limit
    settings = {name: read(fields[name], (name,)) for name, read in _READERS.items() if name in fields}
    return Settings(tuple(limits.values()), **settings)


#: The options of a window.
_WINDOW = "fixed", "start", "tz", "buckets"


def _limit(entry: Any, path: Path) -> Limit:
    fields = _mapping(entry, (*UNITS, "name", "per", "only", *_WINDOW, "shadow"), path, "a limit")
    units = [unit for unit in UNITS if unit in fields]
    if len(units) != 1:
        raise _Mistake(path, f"a limit must have one of {', '.join(UNITS)}, not {' and '.join(units) or 'none'}")
    unit = units[0]
    per = _dimensions(fields["per"], (*path, "per")) if "per" in fields else ()
    for flag in ("fixed", "shadow"):
        _flag(fields.get(flag, False), (*path, flag))
    amount, field = _reference(fields[unit])
    window = _window(unit, amount, fields, path)
    name = _text(fields["name"], (*path, "name")) if "name" in fields else _name(unit, per, window)
    is_plain = all(" " <= letter <= "~" and letter not in "{}:" for letter in name)
    _check(is_plain, name, (*path, "name"), "printable ASCII without braces and colons")
    only = _only(fields.get("only", {}), (*path, "only"))
    return Limit(name, unit, window, per, only, fields.get("shadow", False), field)


_REFERENCE = re.compile(rf"\s*((?:{'|'.join(_OWNERS[:-1])})\.[\w-]+)\s*(/.*)?", re.ASCII)


def _reference(amount: Any) -> tuple[Any, str | None]:
    """Returns a limit with its number, and the field that has the number of each call: 1/min and key.tpm_limit for
    key.tpm_limit/min."""
    match = _REFERENCE.fullmatch(amount) if isinstance(amount, str) else None
    if match is None:
        return amount, None
    return f"1{match[2]}" if match[2] else 1, match[1]


def _name(unit: str, per: tuple[str, ...], window: WindowLike) -> str:
    """Returns the default name of a limit. It does not depend on other limits, as it is part of the keys."""
    period = window if isinstance(window, str) else "" if unit == "calls" else str(window.period)
    return "-".join(part for part in (*per, unit, period) if part)


def _only(value: Any, path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    _check(isinstance(value, dict), value, path, "a mapping of dimensions to values")
    conditions = []
    for name, values in value.items():
        _dimension(name, (*path, name))
        patterns = values if isinstance(values, list) else [values]
        is_plain = not any(isinstance(each, (dict, list)) or each is None for each in patterns)
        _check(patterns and is_plain, values, (*path, name), "one or a list of values")
        conditions.append((name, tuple(map(written, patterns))))
    return tuple(conditions)


def written(value: Any) -> str:
    """Returns a value of metadata as a text. Booleans are written as in YAML and JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _window(unit: str, amount: Any, fields: dict[str, Any], path: Path) -> WindowLike:
    place = (*path, unit)
    options = {name: fields[name] for name in _WINDOW if name in fields}
    of_options = (*path, next(iter(options), unit))
    if (isinstance(amount, str) and amount.startswith("@")) or unit == "calls":
        if options:
            raise _Mistake(of_options, f"{of_options[-1]} must be used with a limit that has a period")
        if isinstance(amount, str) and amount.startswith("@"):
            if not amount[1:]:
                raise _Mistake(place, "a policy must have a name, such as '@free'")
            return amount
        is_number = type(amount) is int and amount >= 0
        _check(is_number, amount, place, "how many may run at the same time, or a policy")
        return semaphore(int(amount))
    if "start" in options:
        options["start"] = _start(options["start"], (*path, "start"))
    if "tz" in options:
        _text(options["tz"], (*path, "tz"))
    text = _checked(place, lambda: _in_millionths(amount)) if unit == "dollars" else amount
    window = _checked(place, lambda: Window.per(text, unit=_HEADER_UNITS.get(unit)))
    return _checked(of_options, lambda: replace(window, **options))


def _start(value: Any, path: Path) -> str:
    # YAML reads a day of the month as an integer, and a date, with or without a time of day, as a date.
    if isinstance(value, datetime):
        what = "a date and time without a zone, such as 2026-11-02 09:00:00"
        _check(value.tzinfo is None and not value.microsecond, value, path, what)
        return value.isoformat("@")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if type(value) is int and 1 <= value <= 31 else _text(value, path)


def _in_millionths(amount: Any) -> str:
    text = str(amount)
    match = re.match(r"\s*\$?\s*(\d+(?:\.\d{1,6})?)(?![\d.])", text, re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} must be dollars with six decimals at most, / and a period, such as '0.50/1d'")
    return f"{int(Decimal(match[1]) * MILLION)}{text[match.end() :]}"


def denial(asked: Sequence[Asked], reply: AllReply) -> str:
    """Returns the text that tells a client why its call is denied."""
    decisive, answer = asked[reply.clause - 1], reply.answers[reply.clause - 1]
    limit = decisive.limit
    quantity, described = limit.amount(decisive.quantity), _described(limit, answer.limit)
    wait = wait_ms(reply)
    if wait is None:
        return (
            f"Rate limit {limit.name!r} can never allow this request: the request may take {quantity}, and the limit is "
            f"{described}."
        )
    left = f"{limit.amount(answer.remaining)} {'is' if limit.unit == 'dollars' else 'are'} left"
    text = f"Rate limit {limit.name!r} reached: {described}, of which {left}"
    # The calls that run may give back what they do not use.
    text += ", as running requests reserve the most that they may use." if reply.limited == 2 else "."
    if limit.unit not in ("requests", "calls"):
        text += f" This request may take {quantity}."
    return f"{text} Try again in {seconds(wait)} s."


def _described(limit: Limit, most: int) -> str:
    text = limit.amount(most) if limit.unit == "dollars" else f"{most} {limit.unit.replace('_', ' ')}"
    if limit.unit == "calls":
        text += " at the same time"
    elif isinstance(limit.window, Window):
        text += f" in {limit.window.period}"
    return text + (f" for each {' and '.join(limit.per)}" if limit.per else "")


def headers_of(asked: Sequence[Asked], reply: AllReply) -> dict[str, str]:
    """Returns the headers of the response to a call: those of redis_ratelimit.headers(), and those that OpenAI's SDKs
    know."""
    result = headers(reply, [each.limit.window for each in asked], [each.limit.name for each in asked])
    result = {name.lower(): value for name, value in result.items()}
    for unit in ("requests", "tokens"):
        answers = [answer for each, answer in zip(asked, reply.answers, strict=False) if each.limit.unit == unit]
        if answers:
            tightest = min(answers, key=lambda answer: answer.remaining)
            result[f"x-ratelimit-limit-{unit}"] = str(tightest.limit)
            result[f"x-ratelimit-remaining-{unit}"] = str(tightest.remaining)
            result[f"x-ratelimit-reset-{unit}"] = go_duration(tightest.reset_after_ms)
    if not reply.allowed and is_decided(reply):
        wait = wait_ms(reply)
        if wait is None:
            result["x-should-retry"] = "false"
        else:
            result["retry-after-ms"] = str(wait)
    return result


def go_duration(ms: int) -> str:
    """Returns a duration as OpenAI's headers write it, such as 6m0s or 120ms."""
    if ms < 1000:
        return f"{ms}ms"
    left, ms = divmod(ms, 1000)
    minutes, second = divmod(left, 60)
    hours, minute = divmod(minutes, 60)
    text = f"{second}.{ms:03d}".rstrip("0").rstrip(".") if ms else str(second)
    return (f"{hours}h" if hours else "") + (f"{minute}m" if hours or minute else "") + f"{text}s"
