"""Limits of views for Flask: a decorator.

@app.get("/search")
@RateLimit(limiter, Rate.per("30/min"), key=lambda: f"search:{client_address()}")
def search(): ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import flask

from . import asyncio
from ._internal.address import address_in
from ._internal.headers import Limit, PartitionKey
from ._internal.http import PROBLEM, Exchange, Options, Rule

__all__ = ["RateLimit", "client_address"]

View = TypeVar("View", bound=Callable[..., Any])


def client_address(*, proxies: int = 0, ipv6_prefix: int = 64) -> str:
    """Returns the address of the client of the current request, see redis_ratelimit.client_address()."""
    return address_in(flask.request.environ, proxies, ipv6_prefix)


def _with_headers(response: flask.Response) -> flask.Response:
    exchange = Exchange.of(flask.request.environ)
    present = {name.lower(): ", ".join(response.headers.getlist(name)) for name in response.headers.keys()}  # noqa: SIM118
    for name, value in exchange.headers(present).items():
        response.headers[name] = value
    return response


class RateLimit:
    """A decorator that asks a limit before a view.

    `limiter` is a redis_ratelimit.Limiter. `limit` is a Rate, a Window or the name of a policy. A policy needs its `kind`,
    "throttle" or "window". `key` returns the key in Redis for the current request, or None if the request has no limit.
    Limits with the same key share their count. `quantity` is the quantity that a request takes. `name` is the name of the
    limit in the headers. `pk` is the partition key, or a function that returns it for the current request.

    A denied request is answered 429, or 503 if no server could decide. `app.before_request(RateLimit(...).check)` asks
    before every view.
    """

    def __init__(
        self,
        limiter: Any,
        limit: Limit,
        *,
        key: Callable[[], str | bytes | None],
        quantity: int = 1,
        name: str | None = None,
        kind: str | None = None,
        pk: PartitionKey | Callable[[], PartitionKey | None] | None = None,
        version: int = 10,
        standard: bool = True,
        x_ratelimit: bool = True,
    ) -> None:
        if isinstance(limiter, asyncio.Limiter):
            raise TypeError("the limiter must be a redis_ratelimit.Limiter, not one for asyncio")
        self._rule = Rule(limiter, limit, key, quantity, name, kind, pk, Options(standard, x_ratelimit, version))

    def check(self) -> flask.Response | None:
        """Asks the limit of the current request. Returns the response to a denied one, or None."""
        rule = self._rule
        key = rule.key()
        if key is None:
            return None
        environ = flask.request.environ
        is_first = Exchange.NAME not in environ
        exchange = Exchange.of(environ)
        if is_first:
            flask.after_this_request(_with_headers)
        with exchange.noting_busy():
            rule.note(exchange, key, rule.ask(key))
        if exchange.status == 200:
            return None
        return flask.Response(exchange.body(), exchange.status, content_type=PROBLEM)

    def __call__(self, view: View) -> View:
        @wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            denied = self.check()
            return flask.current_app.ensure_sync(view)(*args, **kwargs) if denied is None else denied

        return cast(View, limited)
