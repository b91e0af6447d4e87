"""How the middleware, decorators and dependencies of all frameworks ask the limits of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, ClassVar, Generic, ParamSpec, Union

from .. import Clause, Limiter, Reply, asyncio
from .._internal.limits import is_semaphore, method_of
from ..types import Clauses, Key
from .exchange import Exchange, Held
from .headers import Limit, PartitionKey, ReplyWithOptions

P = ParamSpec("P")

#: The limits of a request: one limit, or clauses, which are asked by all().
RequestLimits = Union[Limit, Clause, Clauses]


async def _awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value


class Rule(Generic[P]):
    """The base class of what asks the limits of requests. `P` are the parameters of functions of a request. The arguments
    are those of redis_ratelimit.asgi.RateLimit."""

    #: True if the limiter must be one for asyncio, False if it must not be. None: either.
    _is_asynchronous: ClassVar[bool | None] = None

    def __init__(
        self,
        limiter: Any,
        limit: RequestLimits | Callable[P, RequestLimits | Awaitable[RequestLimits | None] | None],
        *,
        key: Callable[P, Key | Awaitable[Key | None] | None] | None = None,
        quantity: int = 1,
        name: str | None = None,
        kind: str | None = None,
        pk: PartitionKey | Callable[P, PartitionKey | None] | None = None,
        version: int = 10,
        standard: bool = True,
        x_ratelimit: bool = True,
    ) -> None:
        if kind not in (None, "throttle", "window"):
            raise ValueError(f"kind must be 'throttle' or 'window', not {kind!r}")
        if not all(callable(getattr(limiter, each, None)) for each in ("throttle", "window")):
            raise TypeError(f"the limiter must be one of redis_ratelimit, not {type(limiter).__name__}")
        if self._is_asynchronous is not None:
            self._check_kind(limiter, self._is_asynchronous)
        if not callable(key) and (
            key is not None or (not isinstance(limit, (list, tuple, Clause)) and not callable(limit))
        ):
            raise TypeError(f"key must be a function that makes a key, not {key!r}")
        self._limiter, self._quantity, self._name, self._kind = limiter, quantity, name, kind
        self._limit: Any = limit if callable(limit) else lambda *_: limit
        self._key: Any = key or (lambda *_: None)
        self._pk: Any = pk
        self._options: Any = {"version": version, "standard": standard, "x_ratelimit": x_ratelimit}
        ReplyWithOptions(Reply(0, 0, 0, None, 0), version=version)
        if not callable(limit):
            self._call(limit, "")

    @staticmethod
    def _check_kind(limiter: Any, asynchronous: bool) -> None:
        if isinstance(limiter, Limiter) and asynchronous:
            raise TypeError("the limiter must be one of redis_ratelimit.asyncio: another would stop the event loop")
        if isinstance(limiter, asyncio.Limiter) and not asynchronous:
            raise TypeError("the limiter must be a redis_ratelimit.Limiter, not one for asyncio")

    def _call(self, limit: Any, key: Any) -> tuple[Callable[[], Any], Any] | None:
        """Returns the call that asks the limits of a request, and the limits for its headers; None if it has none."""
        if isinstance(limit, Clause):
            limit = [limit]
        if not isinstance(limit, (list, tuple)):
            if limit is None or key is None:
                return None
            if is_semaphore(limit):
                return partial(self._limiter.all, [Clause.acquire(key, limit, self._quantity)]), limit
            return partial(getattr(self._limiter, method_of(limit, self._kind)), key, limit, self._quantity), limit
        return (partial(self._limiter.all, limit), limit) if limit else None

    def _note(self, exchange: Exchange, reply: Reply, limits: Any, request: tuple[Any, ...]) -> Held:
        names = () if self._name is None or isinstance(limits, (list, tuple)) else self._name
        pk = self._pk(*request) if callable(self._pk) else self._pk
        return exchange.add(reply, limits, names, pk=pk, **self._options)

    def _ask(self, exchange: Exchange, *request: Any) -> Held:
        """Asks the limits of a request, and adds the reply to the exchange. Returns what the request holds."""
        with exchange.noting_denials():
            if call := self._call(self._limit(*request), self._key(*request)):
                return self._note(exchange, call[0](), call[1], request)
        return Held()

    async def _ask_async(self, exchange: Exchange, *request: Any) -> Held:
        """Asks a limiter for asyncio, as _ask() does."""
        with exchange.noting_denials():
            limit, key = await _awaited(self._limit(*request)), await _awaited(self._key(*request))
            if call := self._call(limit, key):
                return self._note(exchange, await call[0](), call[1], request)
        return Held()
