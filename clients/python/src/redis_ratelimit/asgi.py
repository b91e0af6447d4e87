"""Middleware for Starlette, FastAPI and any other ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Union

from ._internal import address
from ._internal.headers import AnyLimit, Limit, PartitionKey
from ._internal.http import PROBLEM, Exchange, Options
from ._internal.replies import Busy, Reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
PartitionKeyOf = Union[PartitionKey, Callable[[Scope], Union[PartitionKey, None]]]

#: The messages that begin a response, and so carry its headers.
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


def client_address(scope: Scope, *, proxies: int = 0, ipv6_prefix: int = 64) -> str:
    """Returns the address of the client of a request or WebSocket, see redis_ratelimit.client_address()."""
    client = scope.get("client")
    fields = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name.lower() == b"x-forwarded-for"]
    return address.client_address(
        client[0] if client else None, ",".join(fields), proxies=proxies, ipv6_prefix=ipv6_prefix
    )


class RateLimitMiddleware:
    """Asks `check` before each HTTP request and WebSocket connection, and reports the limits in headers.

        async def check(scope):
            return await limiter.throttle(f"web:{client_address(scope)}", RATE)

        app.add_middleware(RateLimitMiddleware, check=check, limits=RATE)

    A denied request is answered 429, or 503 if Redis could not be reached or the limiter raised Busy, with problem details
    (application/problem+json). A denied WebSocket connection is answered the same way if the server can do so, and is closed
    with 1008 or 1013 if not. Several limits on one request, such as those of another middleware or a dependency of a route,
    share one set of headers.

    Args:
        check: Returns a reply of the limiter, or None for a request without a limit. Without it, the middleware only writes
            the headers of the limits that are checked elsewhere.
        denied: An application that answers denied requests instead, also those for which the limiter raised Busy.
        limits, names, pk, version, standard, x_ratelimit: See headers(). `pk` may be a function of the scope.
    """

    def __init__(
        self,
        app: App,
        check: Callable[[Scope], Awaitable[Reply | None]] | None = None,
        *,
        limits: Limit | Sequence[AnyLimit | None] | None = None,
        names: str | Sequence[str] = (),
        pk: PartitionKeyOf | None = None,
        version: int = 10,
        standard: bool = True,
        x_ratelimit: bool = True,
        denied: App | None = None,
    ) -> None:
        self._app = app
        self._check = check
        self._limits = limits
        self._names = names
        self._pk = pk
        self._options = Options(standard, x_ratelimit, version)
        self._denied = denied

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = Exchange.of(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] in _STARTS:
                message["headers"] = with_headers(exchange, message.get("headers", ()))
            await send(message)

        if self._check is not None:
            try:
                reply = await self._check(scope)
            except Busy:
                exchange.is_busy = True
                await self._deny(exchange, scope, receive, send, send_with_headers)
                return
            if reply is not None:
                pk = self._pk(scope) if callable(self._pk) else self._pk
                exchange.add(reply, self._limits, self._names, pk=pk, options=self._options)
                if not reply.allowed:
                    await self._deny(exchange, scope, receive, send, send_with_headers)
                    return
        await self._app(scope, receive, send_with_headers)

    async def _deny(
        self, exchange: Exchange, scope: Scope, receive: Receive, send: Send, send_with_headers: Send
    ) -> None:
        if self._denied is None or scope["type"] == "websocket":
            await answer(exchange, scope, receive, send)
        else:
            await self._denied(scope, receive, send_with_headers)


def with_headers(exchange: Exchange, present: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a response, with those of the limits of its request."""
    old: dict[str, str] = {}
    for name, value in present:
        text = name.decode("latin-1").lower()
        # Several fields with one name are one list.
        old[text] = f"{old[text]}, {value.decode('latin-1')}" if text in old else value.decode("latin-1")
    new = exchange.headers(old)
    replaced = {name.lower().encode("ascii") for name in new}
    kept = [(name, value) for name, value in present if name.lower() not in replaced]
    return [*kept, *((name.lower().encode("ascii"), value.encode("latin-1")) for name, value in new.items())]


async def answer(exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the answer to a denied request or WebSocket connection."""
    status, body = exchange.status, exchange.body()
    kind = scope["type"]
    prefix = ""
    if kind == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            reason = exchange.problem()["title"]
            await send({"type": "websocket.close", "code": exchange.websocket_code, "reason": reason})
            return
        prefix = "websocket."
    headers = [(b"content-type", PROBLEM.encode("ascii")), (b"content-length", str(len(body)).encode("ascii"))]
    start = {"type": f"{prefix}http.response.start", "status": status, "headers": with_headers(exchange, headers)}
    await send(start)
    await send({"type": f"{prefix}http.response.body", "body": body})
