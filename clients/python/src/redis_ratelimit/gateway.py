"""Limits of the calls of a gateway to language models, as its configuration has them. See litellm.py for the calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from .calls import Clause
from .headers import headers, seconds
from .parameters import Duration, Window, WindowLike, milliseconds, semaphore
from .replies import AllReply, Policy

T = TypeVar("T")

#: What a limit may count. Dollars are kept in millionths. `calls` are those that run at the same time.
UNITS = "requests", "tokens", "input_tokens", "output_tokens", "dollars", "calls"
#: What the unit of a window is called in HTTP headers.
_HEADER_UNITS = {
    "tokens": "tokens",
    "input_tokens": "input-tokens",
    "output_tokens": "output-tokens",
    "dollars": "microdollars",
}
#: What a limit may count by.
DIMENSIONS = "key", "user", "team", "organization", "end_user", "model"
#: What has fields, such as key.plan. Those of metadata are what the client sends.
_OWNERS = "key", "user", "team", "organization", "end_user", "metadata"
#: RL.ALL takes as many.
MOST_LIMITS = 64
MILLION = 1_000_000
#: A request that says it needs more asks for this much, which no limit has.
MOST_QUANTITY = 2**62
#: A value that is longer stands in keys as its hash.
LONGEST_VALUE = 200

#: Where something stands in the configuration: the keys and the indices that lead there.
Path: TypeAlias = "tuple[str | int, ...]"
#: The value of a dimension of a call; None if the call has none.
ValueOf = Callable[[str], "str | None"]


class ConfigurationError(ValueError):
    """The configuration has a mistake. The text says where, and what is allowed."""


class _Mistake(Exception):
    def __init__(self, path: Path, text: str) -> None:
        super().__init__(text)
        self.path = path


@dataclass(frozen=True)
class Usage:
    """What a call costs: an estimate, or what it did cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    #: In millionths.
    dollars: int = 0
    #: As the provider counts them; by default the sum.
    total_tokens: int | None = None

    def of(self, unit: str) -> int:
        """How much of a unit."""
        if unit == "tokens":
            return self.input_tokens + self.output_tokens if self.total_tokens is None else self.total_tokens
        if unit in ("requests", "calls"):
            return 1
        amount: int = getattr(self, unit)
        return amount


def microdollars(dollars: float) -> int:
    """Dollars in whole millionths, rounded up."""
    # Sums of prices are not exact: 0.000225 may come as 0.00022500000000000002.
    exact = Decimal(repr(round(dollars, 12)))
    return max(0, int((exact * MILLION).to_integral_value(ROUND_CEILING)))


@dataclass(frozen=True)
class Limit:
    """One limit of the configuration."""

    name: str
    unit: str
    window: WindowLike
    #: Each combination of their values has a count of its own.
    per: tuple[str, ...]
    #: Patterns, one of which the value of each dimension must match.
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()
    shadow: bool = False
    #: The field that has the limit, if it is not the same for all.
    field: str | None = None

    def of_call(self, value_of: ValueOf) -> Limit | None:
        """The limit that a call has; None if its field is empty. ValueError if the field is no number."""
        if self.field is None:
            return self
        value = value_of(self.field)
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
        """The values of its dimensions; None if the limit is not for the call."""
        for dimension, patterns in self.only:
            value = value_of(dimension)
            if value is None or not any(fnmatchcase(value, pattern) for pattern in patterns):
                return None
        values = [value_of(dimension) for dimension in self.per]
        return None if None in values else [value for value in values if value is not None]

    @property
    def most(self) -> int | None:
        """What is available at most; None if only the server knows."""
        return self.window.limit if isinstance(self.window, Window) else None

    def amount(self, quantity: int) -> str:
        """A quantity as a person reads it."""
        if self.unit != "dollars":
            return str(quantity)
        return f"${Decimal(quantity) / MILLION:{'.2f' if quantity % 10_000 == 0 else 'f'}}"


@dataclass(frozen=True)
class Asked:
    """A limit that a call is asked for, and what it takes of it at most."""

    limit: Limit
    key: str
    quantity: int

    def clause(self, lease: Duration) -> Clause:
        """The clause of RL.ALL that reserves it."""
        limit = self.limit
        return Clause.acquire(self.key, limit.window, self.quantity, name=limit.name, lease=lease, shadow=limit.shadow)


@dataclass(frozen=True)
class Settings:
    """The whole configuration."""

    limits: tuple[Limit, ...]
    url: str = "redis://localhost:6379"
    prefix: str = "llm"
    #: Limits are kept for each value of these by itself, in one slot of a cluster.
    tag: tuple[str, ...] = ()
    lease: Duration = "30s"
    #: Seconds.
    deadline: float = 5.0
    unreachable: str | Fraction = "deny"
    #: What is reserved for an answer where the call sets no maximum; None is what the model can give at most.
    max_tokens: int | None = None

    def asked(self, value_of: ValueOf) -> list[tuple[Limit, str]]:
        """The limits that are for a call, and their keys."""
        tag = ":".join([self.prefix, *(_quoted(value_of(dimension) or "") for dimension in self.tag)])
        found = []
        for limit in self.limits:
            values = limit.values(value_of)
            own = None if values is None else limit.of_call(value_of)
            if values is not None and own is not None:
                found.append((own, ":".join([f"{{{tag}}}", limit.name, *map(_quoted, values)])))
        return found


def _quoted(value: str) -> str:
    if len(value) > LONGEST_VALUE:
        value = "sha256-" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    # Neither ":" nor a brace, which have a meaning in a key.
    return quote(value, safe="@ ", errors="surrogatepass")


def reserve(limits: Sequence[tuple[Limit, str]], estimate: Usage, least: Usage | None) -> list[Asked]:
    """What a call reserves. `least` is what a call that names no maximum for its answer uses at least, its input: such a
    call asks for no more than a limit has, unless `least` is more. None if the call names a maximum."""
    asked = []
    for limit, key in limits:
        quantity = min(max(1, estimate.of(limit.unit)), MOST_QUANTITY)
        if least is not None and limit.most is not None and least.of(limit.unit) <= limit.most:
            quantity = min(quantity, max(1, limit.most))
        asked.append(Asked(limit, key, quantity))
    return asked


def read_settings(section: Any, where: Callable[[Path], str]) -> Settings:
    """The settings of a section of a configuration. `where` names a place in it, for errors."""
    try:
        return _settings(section)
    except _Mistake as mistake:
        raise ConfigurationError(f"{where(mistake.path)}: {mistake}") from None


def check_policies(settings: Settings, policies: Sequence[Policy], where: Callable[[Path], str]) -> None:
    """ConfigurationError for a limit whose policy the server does not have, or has of another kind."""
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


def _known(given: Any, allowed: Sequence[str], path: Path, what: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _Mistake(path, f"{what} must be a mapping, not {given!r}")
    for name in given:
        if name not in allowed:
            raise _Mistake((*path, name), f"there is no {name!r}; {what} has {', '.join(allowed)}")
    return given


def _settings(section: Any) -> Settings:
    allowed = "limits", "url", "prefix", "tag", "lease", "deadline", "unreachable", "max_tokens"
    given = _known(section, allowed, (), "the section")
    entries = given.get("limits")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_LIMITS:
        raise _Mistake(("limits",) if "limits" in given else (), f"limits must be a list of 1 to {MOST_LIMITS} limits")
    limits: dict[str, Limit] = {}
    for at, entry in enumerate(entries):
        limit = _limit(entry, ("limits", at))
        if limit.name in limits:
            raise _Mistake(("limits", at), f"there are two limits {limit.name!r}: give one of them another name")
        limits[limit.name] = limit
    made: dict[str, Any] = {"limits": tuple(limits.values())}
    for name in ("url", "prefix"):
        if name in given:
            made[name] = _text(given[name], (name,))
    if "tag" in given:
        made["tag"] = _dimensions(given["tag"], ("tag",))
    if "lease" in given:
        made["lease"] = given["lease"]
        if _checked(("lease",), lambda: milliseconds("lease", given["lease"])) < 1:
            raise _Mistake(("lease",), "lease must be at least 1 ms")
    if "deadline" in given:
        made["deadline"] = _number(given["deadline"], ("deadline",), "a number of seconds above 0")
    if "max_tokens" in given:
        if type(given["max_tokens"]) is not int or given["max_tokens"] < 1:
            raise _Mistake(("max_tokens",), f"max_tokens must be an integer from 1, not {given['max_tokens']!r}")
        made["max_tokens"] = given["max_tokens"]
    if "unreachable" in given:
        made["unreachable"] = _unreachable(given["unreachable"])
    return Settings(**made)


def _checked(path: Path, make: Callable[[], T]) -> T:
    """What is made of a value of the configuration."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise _Mistake(path, str(error)) from None


def _text(given: Any, path: Path) -> str:
    if not isinstance(given, str) or not given:
        raise _Mistake(path, f"{path[-1]} must be a text, in quotes if it is not read as one, not {given!r}")
    return given


def _number(given: Any, path: Path, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < float("inf"):
        raise _Mistake(path, f"{path[-1]} must be {what}, not {given!r}")
    return given


def _unreachable(given: Any) -> str | Fraction:
    if given in ("allow", "deny"):
        return str(given)
    share = None
    if isinstance(given, dict) and [*given] == ["share"]:
        try:
            share = Fraction(str(given["share"]))
        except (ValueError, ZeroDivisionError):
            share = None
    if share is None or not 0 < share <= 1:
        raise _Mistake(
            ("unreachable",), f"unreachable must be allow, deny or a share such as {{share: 1/4}}, not {given!r}"
        )
    return share


def _dimensions(given: Any, path: Path) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names:
        raise _Mistake(path, f"{path[-1]} must be one or a list of {', '.join(DIMENSIONS)}, not {given!r}")
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


_OPTIONS = "name", "per", "only", "fixed", "start", "tz", "buckets", "shadow"


def _limit(entry: Any, path: Path) -> Limit:
    given = _known(entry, (*UNITS, *_OPTIONS), path, "a limit")
    units = [unit for unit in UNITS if unit in given]
    if len(units) != 1:
        raise _Mistake(path, f"a limit must have one of {', '.join(UNITS)}, not {' and '.join(units) or 'none'}")
    unit = units[0]
    per = _dimensions(given["per"], (*path, "per")) if "per" in given else ()
    for flag in ("fixed", "shadow"):
        if not isinstance(given.get(flag, False), bool):
            raise _Mistake((*path, flag), f"{flag} must be true or false, not {given[flag]!r}")
    amount, field = _reference(given[unit])
    window = _window(unit, amount, given, path)
    name = _text(given["name"], (*path, "name")) if "name" in given else _name(unit, per, window)
    if not all(" " <= letter <= "~" and letter not in "{}:" for letter in name):
        raise _Mistake((*path, "name"), f"name must be printable ASCII without braces and colons, not {name!r}")
    only = _only(given.get("only", {}), (*path, "only"))
    return Limit(name, unit, window, per, only, given.get("shadow", False), field)


_REFERENCE = re.compile(rf"\s*((?:{'|'.join(_OWNERS[:-1])})\.[\w-]+)\s*(/.*)?", re.ASCII)


def _reference(amount: Any) -> tuple[Any, str | None]:
    """A limit with 1 in the place of the field that has the amount, such as key.tpm_limit/min, and the field."""
    found = _REFERENCE.fullmatch(amount) if isinstance(amount, str) else None
    if found is None:
        return amount, None
    return f"1{found[2]}" if found[2] else 1, found[1]


def _name(unit: str, per: tuple[str, ...], window: WindowLike) -> str:
    """A name that stays when other limits come and go, as it is part of the keys."""
    period = window if isinstance(window, str) else "" if unit == "calls" else str(window.period)
    return "-".join(part for part in (*per, unit, period) if part)


def _only(given: Any, path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(given, dict):
        raise _Mistake(path, f"only must be a mapping of what is counted by and values, not {given!r}")
    found = []
    for name, values in given.items():
        _dimension(name, (*path, name))
        patterns = values if isinstance(values, list) else [values]
        if not patterns or any(isinstance(each, (dict, list)) or each is None for each in patterns):
            raise _Mistake((*path, name), f"{name} must be one or a list of values, not {values!r}")
        found.append((name, tuple(map(written, patterns))))
    return tuple(found)


def written(value: Any) -> str:
    """A value of metadata as a text. Booleans are as YAML and JSON write them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _window(unit: str, amount: Any, given: dict[str, Any], path: Path) -> WindowLike:
    place = (*path, unit)
    calendar = [name for name in ("fixed", "start", "tz", "buckets") if name in given]
    if (isinstance(amount, str) and amount.startswith("@")) or unit == "calls":
        if calendar:
            raise _Mistake((*path, calendar[0]), f"{calendar[0]} must be used with a limit that has a period")
        if isinstance(amount, str) and amount.startswith("@"):
            if not amount[1:]:
                raise _Mistake(place, "a policy must have a name, such as '@free'")
            return amount
        if type(amount) is not int or amount < 0:
            raise _Mistake(place, f"calls must be how many may run at the same time, or a policy, not {amount!r}")
        return semaphore(amount)
    text = _checked(place, lambda: _in_millionths(amount)) if unit == "dollars" else amount
    options = {name: given[name] for name in calendar}
    if "start" in options:
        options["start"] = _start(options["start"], (*path, "start"))
    if "tz" in options:
        options["tz"] = _text(options["tz"], (*path, "tz"))
    window = _checked(place, lambda: Window.per(text, unit=_HEADER_UNITS.get(unit)))
    return _checked(
        (*path, calendar[0]) if calendar else place,
        lambda: Window(window.limit, window.period, unit=window.unit, **options),
    )


def _start(given: Any, path: Path) -> str:
    # YAML reads a day of the month as a number, and a date as one, with or without a time of day.
    if isinstance(given, datetime):
        if given.tzinfo is not None or given.microsecond:
            raise _Mistake(
                path, f"start must be a date and time without a zone, such as 2026-11-02 09:00:00, not {given}"
            )
        return given.isoformat("@")
    if isinstance(given, date):
        return given.isoformat()
    if type(given) is int and 1 <= given <= 31:
        return str(given)
    return _text(given, path)


def _in_millionths(amount: Any) -> str:
    text = str(amount)
    found = re.match(r"\s*\$?\s*(\d+(?:\.\d+)?)", text, re.ASCII)
    try:
        millionths = Decimal(found[1]) * MILLION if found else None
    except InvalidOperation:
        millionths = None
    if found is None or millionths is None or millionths != millionths.to_integral_value():
        raise ValueError(f"{text!r} must be dollars with six decimals at most, / and a period, such as '0.50/1d'")
    return f"{int(millionths)}{text[found.end() :]}"


def denial(asked: Sequence[Asked], reply: AllReply) -> str:
    """Why a call is denied, in a sentence."""
    one = asked[reply.clause - 1]
    own, limit = reply.answers[reply.clause - 1], one.limit
    text = (
        f"Rate limit {limit.name!r} reached: {_described(limit, own.limit)}, of which {limit.amount(own.remaining)} "
        f"{'is' if limit.unit == 'dollars' else 'are'} left."
    )
    if limit.unit not in ("requests", "calls"):
        text += f" This request may take {limit.amount(one.quantity)}."
    if reply.retry_after_ms is None:
        return f"{text} It can never be allowed."
    return f"{text} Try again in {seconds(reply.retry_after_ms)} s."


def _described(limit: Limit, most: int) -> str:
    text = limit.amount(most) if limit.unit == "dollars" else f"{most} {limit.unit.replace('_', ' ')}"
    if limit.unit == "calls":
        text += " at the same time"
    elif isinstance(limit.window, Window):
        text += f" in {limit.window.period}"
    return text + (f" for each {' and '.join(limit.per)}" if limit.per else "")


def headers_of(asked: Sequence[Asked], reply: AllReply) -> dict[str, str]:
    """The headers of the response to a call: those of redis_ratelimit.headers(), and those that the SDKs of OpenAI know."""
    found = headers(reply, [each.limit.window for each in asked], [each.limit.name for each in asked])
    found = {name.lower(): value for name, value in found.items()}
    for unit in ("requests", "tokens"):
        own = [answer for each, answer in zip(asked, reply.answers, strict=False) if each.limit.unit == unit]
        if own:
            tightest = min(own, key=lambda answer: answer.remaining)
            found[f"x-ratelimit-limit-{unit}"] = str(tightest.limit)
            found[f"x-ratelimit-remaining-{unit}"] = str(tightest.remaining)
            found[f"x-ratelimit-reset-{unit}"] = go_duration(tightest.reset_after_ms)
    if not reply.allowed and reply.reachable:
        if reply.retry_after_ms is None:
            found["x-should-retry"] = "false"
        else:
            found["retry-after-ms"] = str(reply.retry_after_ms)
    return found


def go_duration(ms: int) -> str:
    """A duration as OpenAI's headers write it, such as 6m0s or 120ms."""
    if ms < 1000:
        return f"{ms}ms"
    left, ms = divmod(ms, 1000)
    minutes, second = divmod(left, 60)
    hours, minute = divmod(minutes, 60)
    text = f"{second}.{ms:03d}".rstrip("0").rstrip(".") if ms else str(second)
    return (f"{hours}h" if hours else "") + (f"{minute}m" if hours or minute else "") + f"{text}s"
