"""Limits of views for Django: a decorator, which is a middleware as well.

@RateLimit(limiter, Rate.per("30/min"), key=lambda request: f"search:{client_address(request)}")
def search(request): ...
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from functools import wraps
from typing import Any, TypeVar, cast

from django.http import HttpRequest, HttpResponse

from . import Busy, Denied
from .http.address import address_in
from .http.exchange import PROBLEM, Exchange, Held
from .http.rule import Rule

__all__ = ["RateLimit", "client_address"]

View = TypeVar("View", bound=Callable[..., Any])


def client_address(request: HttpRequest, *, proxies: int = 0, ipv6_prefix: int = 64) -> str:
    """Returns the address of the client of a request, see redis_ratelimit.client_address()."""
    return address_in(request.META, proxies, ipv6_prefix)


class RateLimit(Rule[[HttpRequest]]):
    """A decorator that asks limits before a view, also with method_decorator. It is a middleware if MIDDLEWARE names it.

    `limiter` is a redis_ratelimit.Limiter, or for views that are coroutine functions a redis_ratelimit.asyncio.Limiter. A
    denied request is answered 429, or 503 if nobody could decide, also if the view raises Denied or Busy. The other
    arguments are those of redis_ratelimit.asgi.RateLimit.
    """

    #: As a middleware it is synchronous. Under ASGI, Django runs it in a thread.
    async_capable = False
    sync_capable = True

    def __call__(self, view: View) -> View:
        if inspect.iscoroutinefunction(view):
            self._check_kind(self._limiter, True)
            return cast(View, self._limited_async(view))
        self._check_kind(self._limiter, False)

        @wraps(view)
        def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            exchange = Exchange.of(request)
            is_writer = exchange.begin_writing()
            with self._ask(exchange, request) as held:
                try:
                    response: Any = view(request, *args, **kwargs) if exchange.status == 200 else _denial(exchange)
                except (Busy, Denied) as error:
                    response = _answer(request, error)
                held.status = response.status_code
                if response.streaming:
                    # The server closes each response when it has been sent.
                    stack = ExitStack()
                    stack.push(held.moved())
                    stack.callback(response.close)
                    response.close = stack.close
            return _with_headers(exchange, response) if is_writer else response

        # Of a middleware, Django calls this for what a view raises.
        limited.process_exception = _answer  # type: ignore[attr-defined]
        return cast(View, limited)

    def _limited_async(self, view: Any) -> Any:
        @wraps(view)
        async def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            exchange = Exchange.of(request)
            is_writer = exchange.begin_writing()
            async with await self._ask_async(exchange, request) as held:
                try:
                    response: Any = (
                        await view(request, *args, **kwargs) if exchange.status == 200 else _denial(exchange)
                    )
                except (Busy, Denied) as error:
                    response = _answer(request, error)
                held.status = response.status_code
                if response.streaming and response.is_async:
                    response.streaming_content = _streamed(held.moved(), response.streaming_content)
            return _with_headers(exchange, response) if is_writer else response

        return limited


async def _streamed(held: Held, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with AsyncExitStack() as stack:
        stack.push_async_exit(held)
        async for part in parts:
            yield part


def _answer(request: HttpRequest, error: Exception) -> HttpResponse | None:
    """Returns the response to a request whose view raised Busy or Denied; None for other errors."""
    if not isinstance(error, (Busy, Denied)):
        return None
    exchange = Exchange.of(request)
    exchange.note(error)
    return _denial(exchange)


def _denial(exchange: Exchange) -> HttpResponse:
    return HttpResponse(exchange.body(), content_type=PROBLEM, status=exchange.status)


def _with_headers(exchange: Exchange, response: HttpResponse) -> HttpResponse:
    for name, value in exchange.headers().items():
        response[name] = value
    return response
