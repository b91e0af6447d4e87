"""The limits that an HTTP request was checked against, and what it holds until its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from types import TracebackType
from typing import Any

from .._internal.replies import Busy, Denied, Reply
from .headers import AnyLimit, Limit, PartitionKey, ReplyWithOptions, merged_headers, merged_problem

#: The content type of problem details.
PROBLEM = "application/problem+json"

logger = getLogger("redis_ratelimit")


class Exchange:
    """The limits that a request was checked against, in order, and its response."""

    #: The name under which an ASGI scope, a WSGI environment or the META of a Django request has the exchange.
    NAME = "redis_ratelimit.exchange"

    def __init__(self) -> None:
        self.replies: list[ReplyWithOptions] = []
        #: True if the limiter raised Busy.
        self.is_busy = False
        #: True if the response has begun, so that its status is decided.
        self.has_begun = False
        #: True if somebody writes the headers when the response begins: the outermost middleware or decorator.
        self.has_writer = False

    @staticmethod
    def of(request: Any) -> Exchange:
        """Returns the exchange of a request: an object of a framework, or the mapping that stands for it. Adds a new one if
        there is none."""
        # An ASGI request of Django has a scope as well.
        found = (getattr(request, name, None) for name in ("META", "environ", "scope"))
        mapping = next((each for each in found if each is not None), request)
        exchange: Exchange = mapping.setdefault(Exchange.NAME, Exchange())
        return exchange

    def begin_writing(self) -> bool:
        """Returns whether the caller is the one that writes the headers, which is the first that asks."""
        is_first, self.has_writer = not self.has_writer, True
        return is_first

    def add(self, reply: Reply, limits: Any, names: Any, **options: Any) -> Held:
        """Adds a reply. Returns what it reserved, to be held until the end of the request."""
        self.replies.append(ReplyWithOptions(reply, limits, names, **options))
        return Held(getattr(reply, "reservation", None))

    @contextmanager
    def noting_denials(self) -> Iterator[None]:
        """Runs a block that asks a limiter. If it raises Busy or Denied, the request is denied, and the error is not raised
        unless the response has begun."""
        try:
            yield
        except (Busy, Denied) as error:
            if self.has_begun:
                raise
            self.note(error)

    def note(self, error: Busy | Denied) -> None:
        """Denies the request, because a limiter raised this."""
        if isinstance(error, Denied):
            self.add(error.reply, error.limits, ())
        else:
            self.is_busy = True

    @property
    def status(self) -> int:
        """The status of the response: 200, 429 if a limit denies the request, or 503 if nobody could decide."""
        if not self.is_busy and all(each.reply.allowed for each in self.replies):
            return 200
        status: int = self.problem()["status"]
        return status

    @property
    def websocket_code(self) -> int:
        """The code that closes a WebSocket connection: 1008, policy violated, or 1013, try again later, instead of 503."""
        return 1008 if self.status == 429 else 1013

    def headers(self) -> dict[str, str]:
        """Returns the headers that report all limits. They replace those of the same names in a response."""
        headers = merged_headers(self.replies)
        if self.is_busy:
            headers.setdefault("Retry-After", "1")
        return headers

    def problem(self) -> dict[str, Any]:
        """Returns the problem details of a denial."""
        return merged_problem([] if self.is_busy else self.replies)

    def body(self) -> bytes:
        """Returns the problem details as they are sent."""
        return json.dumps(self.problem()).encode()


def add_reply(
    request: Any,
    reply: Reply,
    limits: Limit | Sequence[AnyLimit | None] | None = None,
    names: str | Sequence[str] = (),
    *,
    pk: PartitionKey | Sequence[PartitionKey | None] | None = None,
    version: int = 10,
    standard: bool = True,
    x_ratelimit: bool = True,
) -> None:
    """Adds a reply to the headers of the response to a request, for a route that asks a limiter itself.

    They are written by the middleware or decorator of redis_ratelimit that is around the route, in one set for all limits.
    `request` is that of FastAPI, Starlette, Flask, Django or Litestar, an ASGI scope or a WSGI environment. The other
    arguments are those of headers().
    """
    options: dict[str, Any] = {"pk": pk, "version": version, "standard": standard, "x_ratelimit": x_ratelimit}
    Exchange.of(request).add(reply, limits, names, **options)


class Held:
    """Holds what the limits of a request reserved until the end of a block: then it is applied, or released if the block
    raises an error or the response has a status of 500 or more."""

    def __init__(self, reservation: Any = None) -> None:
        self._reservation = reservation
        #: The status of the response.
        self.status = 200

    def moved(self) -> Held:
        """Returns what is held, for another block to let go of."""
        moved, self._reservation = Held(self._reservation), None
        moved.status = self.status
        return moved

    def _end(self, error: BaseException | None) -> tuple[Any, BaseException | None]:
        """Returns the reservation unless it was settled before, and the error to settle it with."""
        reservation, self._reservation = self._reservation, None
        status = self.status if error is None else getattr(error, "status_code", 500)
        return reservation, (error or RuntimeError(f"status {status}")) if status >= 500 else None

    def __enter__(self) -> Held:
        if self._reservation is not None:
            self._reservation.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        reservation, failure = self._end(error)
        if reservation is not None:
            with _logging_failures():
                reservation.__exit__(failure and type(failure), failure, traceback)

    async def __aenter__(self) -> Held:
        if self._reservation is not None:
            await self._reservation.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        reservation, failure = self._end(error)
        if reservation is not None:
            with _logging_failures():
                await reservation.__aexit__(failure and type(failure), failure, traceback)


@contextmanager
def _logging_failures() -> Iterator[None]:
    # The response has been sent, and the lease ends by itself.
    try:
        yield
    except Exception as error:
        logger.warning("what a request reserved was not settled: %s: %s", type(error).__name__, error)
