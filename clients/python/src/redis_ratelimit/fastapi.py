"""Limits of routes for FastAPI: a dependency.

app = FastAPI()
setup(app)

@app.get("/search", dependencies=[Depends(RateLimit(limiter, Rate.per("30/min"), key=client_address))])
async def search(): ...
"""

# Without `from __future__ import annotations`, because FastAPI reads the annotations of dependencies.

from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException, Request, Response, WebSocket, WebSocketException
from fastapi.requests import HTTPConnection

from . import Reply, asgi
from .http.exchange import PROBLEM, Exchange
from .http.rule import Rule

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
    """Sets `app` up: denials are answered with problem details, also Denied and Busy that a route raises, and all responses
    report the limits of their requests in headers, except the 500 of an unhandled exception. Call it once, when the
    application is created."""
    app.add_exception_handler(RateLimited, answer_denied)
    app.add_middleware(asgi.RateLimitMiddleware)


class RateLimit(Rule[[HTTPConnection]]):
    """A dependency that asks limits, for a route, a router or the whole application.

    `limiter` is a redis_ratelimit.asyncio.Limiter. `key` and `limit` may be coroutine functions of the request. A denied
    request is answered 429, or 503 if nobody could decide; a WebSocket connection is closed with 1008 or 1013.
    The other arguments are those of redis_ratelimit.asgi.RateLimit.
    """

    _is_asynchronous = True

    async def __call__(self, request: HTTPConnection, response: Response) -> AsyncIterator[Reply | None]:
        """Asks the limits of a request, and holds what they reserve until its end; raises RateLimited if it is denied. The
        value of the dependency is the reply, or None if the request has no limit."""
        exchange = Exchange.of(request)
        asked = len(exchange.replies)
        async with await self._ask_async(exchange, request):
            if exchange.status != 200:
                if isinstance(request, WebSocket):
                    raise WebSocketException(exchange.websocket_code, exchange.problem()["title"])
                raise RateLimited(exchange)
            if not exchange.has_writer:
                response.headers.update(exchange.headers())
            yield next((each.reply for each in exchange.replies[asked:]), None)
