"""Limits of views for Django: a decorator, which is a middleware as well.

@RateLimit(limiter, Rate.per("30/min"), key=lambda request: f"search:{client_address(request)}")
def search(request): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar, cast

from django.http import HttpRequest, HttpResponse

from . import asyncio
from ._internal.address import address_in
from ._internal.headers import Limit, PartitionKey
from ._internal.http import PROBLEM, Exchange, Options, Rule

__all__ = ["RateLimit", "client_address"]

View = TypeVar("View", bound=Callable[..., Any])


def client_address(request: HttpRequest, *, proxies: int = 0, ipv6_prefix: int = 64) -> str:
    """Returns the address of the client of a request, see redis_ratelimit.client_address()."""
    return address_in(request.META, proxies, ipv6_prefix)


def _with_headers(exchange: Exchange, response: HttpResponse) -> HttpResponse:
    present = {name.lower(): value for name, value in response.items()}
    for name, value in exchange.headers(present).items():
        response[name] = value
    return response


class RateLimit:
    """A decorator that asks a limit before a view, also with method_decorator. It is a middleware if MIDDLEWARE names it.

    `limiter` is a redis_ratelimit.Limiter, or for views that are coroutine functions a redis_ratelimit.asyncio.Limiter.
    `limit` is a Rate, a Window or the name of a policy. A policy needs its `kind`, "throttle" or "window". `key` returns the
    key in Redis for a request, or None if the request has no limit. Limits with the same key share their count. `quantity`
    is the quantity that a request takes. `name` is the name of the limit in the headers. `pk` is the partition key, or a
    function that returns it for a request.

    A denied request is answered 429, or 503 if no server could decide.
    """

    #: As a middleware it is synchronous. Under ASGI, Django runs it in a thread.
    async_capable = False
    sync_capable = True

    def __init__(
        self,
        limiter: Any,
        limit: Limit,
        *,
        key: Callable[[HttpRequest], str | bytes | None],
        quantity: int = 1,
        name: str | None = None,
        kind: str | None = None,
        pk: PartitionKey | Callable[[HttpRequest], PartitionKey | None] | None = None,
        version: int = 10,
        standard: bool = True,
        x_ratelimit: bool = True,
    ) -> None:
        self._rule = Rule(limiter, limit, key, quantity, name, kind, pk, Options(standard, x_ratelimit, version))

    def _denied(self, exchange: Exchange, key: Any) -> HttpResponse | None:
        if key is None or exchange.status == 200:
            return None
        return _with_headers(exchange, HttpResponse(exchange.body(), content_type=PROBLEM, status=exchange.status))

    def __call__(self, view: View) -> View:
        is_asynchronous = isinstance(self._rule.limiter, asyncio.Limiter)
        if inspect.iscoroutinefunction(view):
            if not is_asynchronous:
                raise TypeError("the limiter of a view with async def must be one of redis_ratelimit.asyncio")
            return cast(View, self._limited_async(view))
        if is_asynchronous:
            raise TypeError("the limiter must be a redis_ratelimit.Limiter, as the view is no coroutine function")
        return cast(View, self._limited(view))

    def _limited(self, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        rule = self._rule

        @wraps(view)
        def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            exchange = Exchange.of(request.META)
            key = rule.key(request)
            if key is not None:
                with exchange.noting_busy():
                    rule.note(exchange, key, rule.ask(key), request)
            denied = self._denied(exchange, key)
            return _with_headers(exchange, view(request, *args, **kwargs)) if denied is None else denied

        return limited

    def _limited_async(self, view: Callable[..., Awaitable[HttpResponse]]) -> Callable[..., Awaitable[HttpResponse]]:
        rule = self._rule

        @wraps(view)
        async def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            exchange = Exchange.of(request.META)
            key = rule.key(request)
            if key is not None:
                with exchange.noting_busy():
                    rule.note(exchange, key, await rule.ask(key), request)
            denied = self._denied(exchange, key)
            return _with_headers(exchange, await view(request, *args, **kwargs)) if denied is None else denied

        return limited
