"""Middleware for Starlette, FastAPI and any other ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import nullcontext
from typing import Any

from . import Reply
from .http import address
from .http.exchange import PROBLEM, Exchange, Held
from .http.headers import AnyLimit, Limit, PartitionKey
from .http.rule import Rule

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The messages that begin a response, and so carry its headers.
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


def client_address(scope: Scope, *, proxies: int = 0, ipv6_prefix: int = 64) -> str:
    """Returns the address of the client of a request or WebSocket, see redis_ratelimit.client_address()."""
    client = scope.get("client")
    fields = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name.lower() == b"x-forwarded-for"]
    return address.client_address(
        client[0] if client else None, ",".join(fields), proxies=proxies, ipv6_prefix=ipv6_prefix
    )


class RateLimit(Rule[[Scope]]):
    """Limits for RateLimitMiddleware. `limiter` is a redis_ratelimit.asyncio.Limiter. A request is its scope, and the
    functions `limit` and `key` may be coroutine functions.

    Args:
        limiter: A limiter of redis_ratelimit.asyncio.
        limit: A Rate, a Window, the name of a policy, or clauses; or a function that returns one of these for a request, or
            None if it has no limit. Clauses are asked as by all(). A semaphore, and clauses that reserve, are held for the
            request. At its end they are applied, or released if it ends with an error.
        key: Returns the key in Redis for a request, or None if the request has no limit. Limits with the same key share
            their count. Clauses have keys of their own.
        quantity: The quantity that a request takes.
        name: The name of the limit in the headers. Clauses have names of their own.
        kind: "throttle" or "window", which only a policy needs.
        pk: The partition key, or a function that returns it for a request.
        version, standard, x_ratelimit: See headers().
    """

    _is_asynchronous = True


class RateLimitMiddleware:
    """Asks limits before each HTTP request and WebSocket connection, and reports them in headers.

        def of_address(scope):
            return f"web:{client_address(scope)}"

        app.add_middleware(RateLimitMiddleware, check=RateLimit(limiter, Rate.per("30/min"), key=of_address))

    A denied request is answered 429, or 503 if nobody could decide or the limiter raised Busy, with problem details
    (application/problem+json). A denied WebSocket connection is answered the same way if the server can do so, and is closed
    with 1008 or 1013 if not. Several limits on one request, such as those of another middleware or a dependency of a route,
    share one set of headers, which replaces what the application has set. If the application raises Denied or Busy before it
    responds, as by acquire(), the request is answered in the same way.

    Args:
        check: A RateLimit, or a function that asks a limiter itself: it returns the reply, or None for a request without a
            limit. What the reply has reserved is held for the request. Without `check`, the middleware only writes the
            headers of the limits that are asked elsewhere.
        limits, names, pk, version, standard, x_ratelimit: See headers(), for a function. `pk` may be a function of the
            scope.
        denied: An application that answers denied requests instead, also those for which the limiter raised Busy.
    """

    def __init__(
        self,
        app: App,
        check: RateLimit | Callable[[Scope], Awaitable[Reply | None]] | None = None,
        *,
        limits: Limit | Sequence[AnyLimit | None] | None = None,
        names: str | Sequence[str] = (),
        pk: PartitionKey | Callable[[Scope], PartitionKey | None] | None = None,
        version: int = 10,
        standard: bool = True,
        x_ratelimit: bool = True,
        denied: App | None = None,
    ) -> None:
        self._app, self._check, self._limits, self._names, self._pk = app, check, limits, names, pk
        self._options: dict[str, Any] = {"version": version, "standard": standard, "x_ratelimit": x_ratelimit}
        self._denied = denied

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = Exchange.of(scope)
        is_writer = exchange.begin_writing()

        async def send_with_headers(message: Message) -> None:
            held.status = message.get("status", held.status)
            exchange.has_begun |= message["type"] in _STARTS
            if is_writer and message["type"] in _STARTS:
                message["headers"] = with_headers(exchange, message.get("headers", ()))
            await send(message)

        async with await self._ask(exchange, scope) as held:
            if exchange.status == 200:
                with exchange.noting_denials() if scope["type"] == "http" else nullcontext():
                    await self._app(scope, receive, send_with_headers)
                    return
            if self._denied is None or scope["type"] == "websocket":
                await answer(exchange, scope, receive, send_with_headers)
            else:
                await self._denied(scope, receive, send_with_headers)

    async def _ask(self, exchange: Exchange, scope: Scope) -> Held:
        if isinstance(self._check, RateLimit):
            return await self._check._ask_async(exchange, scope)
        with exchange.noting_denials():
            if self._check is not None and (reply := await self._check(scope)) is not None:
                pk = self._pk(scope) if callable(self._pk) else self._pk
                return exchange.add(reply, self._limits, self._names, pk=pk, **self._options)
        return Held()


def with_headers(exchange: Exchange, present: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a response, with those of the limits of its request."""
    new = {name.lower().encode("ascii"): value.encode("latin-1") for name, value in exchange.headers().items()}
    return [*((name, value) for name, value in present if name.lower() not in new), *new.items()]


async def answer(exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the answer to a denied request or WebSocket connection."""
    body, prefix = exchange.body(), ""
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            reason = exchange.problem()["title"]
            await send({"type": "websocket.close", "code": exchange.websocket_code, "reason": reason})
            return
        prefix = "websocket."
    headers = [(b"content-type", PROBLEM.encode("ascii")), (b"content-length", str(len(body)).encode("ascii"))]
    await send({"type": f"{prefix}http.response.start", "status": exchange.status, "headers": headers})
    await send({"type": f"{prefix}http.response.body", "body": body})
