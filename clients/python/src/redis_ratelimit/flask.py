"""Limits of views for Flask: a decorator.

setup(app)

@app.get("/search")
@RateLimit(limiter, Rate.per("30/min"), key=lambda: f"search:{client_address()}")
def search(): ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

import flask

from . import Busy, Denied
from .http.address import address_in
from .http.exchange import PROBLEM, Exchange, Held
from .http.rule import Rule

__all__ = ["RateLimit", "client_address", "setup"]

View = TypeVar("View", bound=Callable[..., Any])
#: The name under which the environment of a request has what it holds.
_HELD = "redis_ratelimit.held"


def client_address(*, proxies: int = 0, ipv6_prefix: int = 64) -> str:
    """Returns the address of the client of the current request, see redis_ratelimit.client_address()."""
    return address_in(flask.request.environ, proxies, ipv6_prefix)


def setup(app: flask.Flask) -> None:
    """Writes the headers of replies that any view of `app` adds with add_reply(), and answers Denied and Busy that it
    raises, as by acquire(), with 429 or 503 and problem details. For views with the decorator that is done without it.
    Call it once, when the application is created."""
    app.before_request(_begin)
    for error in Denied, Busy:
        app.register_error_handler(error, _answer)


def _begin() -> None:
    _exchange()


class RateLimit(Rule[[]]):
    """A decorator that asks limits before a view.

    `limiter` is a redis_ratelimit.Limiter. The functions `limit`, `key` and `pk` have no argument: they look at
    flask.request. A denied request is answered 429, or 503 if nobody could decide, also if the view raises Denied or Busy.
    `app.before_request(RateLimit(...).check)` asks before every view. The other arguments are those of
    redis_ratelimit.asgi.RateLimit.
    """

    _is_asynchronous = False

    def check(self) -> flask.Response | None:
        """Asks the limits of the current request. Returns the response to a denied one, or None."""
        exchange = _exchange()
        flask.request.environ.setdefault(_HELD, []).append(self._ask(exchange).__enter__())
        return None if exchange.status == 200 else _denial(exchange)

    def __call__(self, view: View) -> View:
        @wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if (denied := self.check()) is not None:
                return denied
            try:
                return flask.current_app.ensure_sync(view)(*args, **kwargs)
            except (Busy, Denied) as error:
                return _answer(error)

        return cast(View, limited)


def _exchange() -> Exchange:
    """Returns the exchange of the current request, whose headers will be written."""
    exchange = Exchange.of(flask.request.environ)
    if exchange.begin_writing():
        flask.after_this_request(_finish)
    return exchange


def _denial(exchange: Exchange) -> flask.Response:
    return flask.Response(exchange.body(), exchange.status, content_type=PROBLEM)


def _answer(error: Any) -> flask.Response:
    """Returns the response to a request whose view raised Busy or Denied."""
    exchange = _exchange()
    exchange.note(error)
    return _denial(exchange)


def _finish(response: flask.Response) -> flask.Response:
    """Writes the headers, and lets go of what the request holds when the response has been sent."""
    environ = flask.request.environ
    response.headers.update(Exchange.of(environ).headers())
    for held in environ.get(_HELD, ()):
        held.status = response.status_code
        response.call_on_close(partial(held.__exit__, None, None, None))
    return response


@flask.request_tearing_down.connect
def _release(_: Any, exc: BaseException | None = None, **__: Any) -> None:
    """Lets go of what a request held that ended with an exception, and perhaps without a response."""
    held: list[Held] = flask.request.environ.get(_HELD, ()) if exc is not None else []
    for each in held:
        each.__exit__(type(exc), exc, None)
