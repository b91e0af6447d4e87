"""Limits of routes for FastAPI: a dependency.

app = FastAPI()
setup(app)

@app.get("/search", dependencies=[Depends(RateLimit(limiter, Rate.per("30/min"), key=client_address))])
async def search(): ...
"""

# Without `from __future__ import annotations`, because FastAPI reads the annotations of dependencies.

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response, WebSocket, WebSocketException
from fastapi.requests import HTTPConnection

from . import asgi
from ._internal import limiter as synchronous
from ._internal.headers import Limit, PartitionKey
from ._internal.http import PROBLEM, Exchange, Options, Rule
from ._internal.io import await_if_needed

__all__ = ["RateLimit", "RateLimited", "client_address", "setup"]


def client_address(request: HTTPConnection, *, proxies: int = 0, ipv6_prefix: int = 64) -> str:
    """Returns the address of the client of a request or WebSocket, see redis_ratelimit.client_address()."""
    return asgi.client_address(request.scope, proxies=proxies, ipv6_prefix=ipv6_prefix)


class RateLimited(HTTPException):
    """Raised for a denied request. Without setup() FastAPI sends its status and headers; `detail` is the problem."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        super().__init__(exchange.status, exchange.problem(), exchange.headers())


async def answer_denied(request: Request, denied: Exception) -> Response:
    """Handles RateLimited: returns problem details with the headers."""
    assert isinstance(denied, RateLimited)
    exchange = denied.exchange
    return Response(exchange.body(), exchange.status, exchange.headers(), media_type=PROBLEM)


def setup(app: FastAPI) -> None:
    """Sets `app` up: denials are answered with problem details, and all responses report the limits of their requests in
    headers, except the 500 of an unhandled exception. Call it once, when the application is created."""
    app.add_exception_handler(RateLimited, answer_denied)
    app.add_middleware(asgi.RateLimitMiddleware)


class RateLimit:
    """A dependency that asks a limit, for a route, a router or the whole application.

    `limiter` is a redis_ratelimit.asyncio.Limiter. `limit` is a Rate, a Window or the name of a policy. A policy needs its
    `kind`, "throttle" or "window". `key` returns the key in Redis for a request, or None if the request has no limit; it may
    be a coroutine function. Limits with the same key share their count. `quantity` is the quantity that a request takes.
    `name` is the name of the limit in the headers. `pk` is the partition key, or a function that returns it for a request.

    A denied request is answered 429, or 503 if no server could decide; a WebSocket connection is closed with 1008 or 1013.
    """

    def __init__(
        self,
        limiter: Any,
        limit: "Limit",
        *,
        key: "Callable[[HTTPConnection], str | bytes | Awaitable[str | bytes | None] | None]",
        quantity: int = 1,
        name: "str | None" = None,
        kind: "str | None" = None,
        pk: "PartitionKey | Callable[[HTTPConnection], PartitionKey | None] | None" = None,
        version: int = 10,
        standard: bool = True,
        x_ratelimit: bool = True,
    ) -> None:
        if isinstance(limiter, synchronous.Limiter):
            raise TypeError("the limiter must be one of redis_ratelimit.asyncio: another would stop the event loop")
        self._rule = Rule(limiter, limit, key, quantity, name, kind, pk, Options(standard, x_ratelimit, version))

    async def __call__(self, request: HTTPConnection, response: Response) -> None:
        """Asks the limit of a request; raises RateLimited if it is denied."""
        rule = self._rule
        key = await await_if_needed(rule.key(request))
        if key is None:
            return
        exchange = Exchange.of(request.scope)
        with exchange.noting_busy():
            rule.note(exchange, key, await await_if_needed(rule.ask(key)), request)
        if exchange.status == 200:
            response.headers.update(exchange.headers(dict(response.headers)))
        elif isinstance(request, WebSocket):
            raise WebSocketException(exchange.websocket_code, exchange.problem()["title"])
        else:
            raise RateLimited(exchange)
