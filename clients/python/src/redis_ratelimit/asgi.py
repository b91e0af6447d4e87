"""Middleware for Starlette, FastAPI and any other ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Union

from .headers import AnyLimit, Limit, PartitionKey
from .http import PROBLEM, Exchange, Options
from .replies import Busy, Reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
PartitionKeyOf = Union[PartitionKey, Callable[[Scope], Union[PartitionKey, None]]]

#: The messages that begin a response, and so carry its headers.
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
#: How a WebSocket connection is refused where the server cannot send a response: a policy was violated, or try again later.
_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013


def client_address(scope: Scope) -> str:
    """The address of the peer. Behind a proxy let the server put the real one there, such as uvicorn --proxy-headers."""
    client = scope.get("client")
    return client[0] if client else ""


class RateLimitMiddleware:
    """Asks `check` before each HTTP request and WebSocket connection, and reports the limits in headers.

        async def check(scope):
            return await limiter.throttle(f"web:{client_address(scope)}", RATE)

        app.add_middleware(RateLimitMiddleware, check=check, limits=RATE)

    `check` answers a reply of the limiter, or None for a request without a limit. A denied request is answered 429, or
    503 if it was denied because Redis could not be reached, or if the limiter raised Busy, with problem details
    (application/problem+json). A denied WebSocket connection gets the same answer where the server can send it, else it is
    closed with 1008 or 1013. `denied` is an application that answers denials instead. `limits`, `names`, `pk`,
    `version`, `standard` and `x_ratelimit` are for the headers, see headers(); `pk` may be a function of the scope.

    Several limits on one request, such as a second middleware or a dependency of a route, end in one set of headers.
    Without `check` the middleware only writes what others ask.
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
                await answer(exchange, scope, receive, send)
                return
            if reply is not None:
                pk = self._pk(scope) if callable(self._pk) else self._pk
                exchange.add(reply, self._limits, self._names, pk=pk, options=self._options)
                if not reply.allowed:
                    respond = self._denied
                    if respond is None or scope["type"] == "websocket":
                        await answer(exchange, scope, receive, send)
                    else:
                        await respond(scope, receive, send_with_headers)
                    return
        await self._app(scope, receive, send_with_headers)


def with_headers(exchange: Exchange, present: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a response, with those of the limits of its request."""
    old: dict[str, str] = {}
    for name, value in present:
        text = name.decode("latin-1").lower()
        # What stands in several fields of one name is one list.
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
            code = _POLICY_VIOLATION if status == 429 else _TRY_AGAIN_LATER
            await send({"type": "websocket.close", "code": code, "reason": exchange.problem()["title"]})
            return
        prefix = "websocket."
    own = [(b"content-type", PROBLEM.encode("ascii")), (b"content-length", str(len(body)).encode("ascii"))]
    start = {"type": f"{prefix}http.response.start", "status": status, "headers": with_headers(exchange, own)}
    await send(start)
    await send({"type": f"{prefix}http.response.body", "body": body})
