"""Middleware for Starlette, FastAPI and any other ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from .headers import Limit, headers
from .replies import Busy, Reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def client_address(scope: Scope) -> str:
    """The address of the peer. Behind a proxy let the server put the real one there, such as uvicorn --proxy-headers."""
    client = scope.get("client")
    return client[0] if client else ""


class RateLimitMiddleware:
    """Asks `check` before each HTTP request, and tells the client how it stands.

        async def check(scope):
            return await limiter.throttle(f"web:{client_address(scope)}", RATE)

        app.add_middleware(RateLimitMiddleware, check=check, limits=RATE)

    `check` answers a reply of the limiter, or None for a request without a limit. A denied request is answered 429, or
    503 if it was denied because Redis could not be reached, or if the limiter raised Busy. `denied` is an application
    that answers denials instead. `limits` and `names` are for the headers, see headers().
    """

    def __init__(
        self,
        app: App,
        check: Callable[[Scope], Awaitable[Reply | None]],
        *,
        limits: Limit | Sequence[Limit | None] | None = None,
        names: str | Sequence[str] = (),
        standard: bool = True,
        x_ratelimit: bool = True,
        denied: App | None = None,
    ) -> None:
        self._app = app
        self._check = check
        self._headers = {"limits": limits, "names": names, "standard": standard, "x_ratelimit": x_ratelimit}
        self._denied = denied

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._check(scope) if scope["type"] == "http" else None
        except Busy:
            await _answer(send, 503)
            return
        if reply is None:
            await self._app(scope, receive, send)
            return
        more = [
            (name.lower().encode("ascii"), value.encode("ascii"))
            for name, value in headers(reply, **self._headers).items()  # type: ignore[arg-type]
        ]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        if reply.allowed:
            await self._app(scope, receive, send_with_headers)
        elif self._denied is not None:
            await self._denied(scope, receive, send_with_headers)
        else:
            await _answer(send_with_headers, 429 if reply.reachable else 503)


async def _answer(send: Send, status: int) -> None:
    text = b"Too many requests\n" if status == 429 else b"Try again later\n"
    plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode("ascii"))]
    await send({"type": "http.response.start", "status": status, "headers": plain})
    await send({"type": "http.response.body", "body": text})
