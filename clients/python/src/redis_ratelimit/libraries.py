"""The client libraries: which of them a client belongs to, and what their errors mean."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeAlias

from .replies import UnknownPolicy

LIBRARIES = "redis", "valkey"


#: A connection of a client library. The libraries have no common type for it.
Connection: TypeAlias = Any


class Client(Protocol):
    """A client or cluster client of redis-py or valkey-py."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


Errors = tuple[type[BaseException], ...]

NOT_SERVING = "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"


class Redirect(NamedTuple):
    """The address that a cluster redirects a key to. With `asking`, only this call goes there, after ASKING."""

    slot: int
    host: str
    port: int
    asking: bool


class Late(Exception):
    """The deadline of a call passed."""


class Unsent(Exception):
    """Marks the errors of calls that were not sent because others had failed."""


def code_of(text: str) -> str:
    """Returns the code of an error reply: its first word, or ERR, which the client libraries take off."""
    code, space, _ = text.partition(" ")
    return code if space and code.isalpha() and code.isupper() else "ERR"


def unknown_policy_of(reply_error: type[Exception]) -> type[Exception]:
    """Returns the class of UnknownPolicy that is an error reply as well. `reply_error` is the class of error replies."""
    return type(UnknownPolicy.__name__, (UnknownPolicy, reply_error), {"__module__": UnknownPolicy.__module__})


class Library:
    """One of the client libraries, sync or asyncio."""

    def __init__(self, name: str, asynchronous: bool) -> None:
        self.name = name
        self.asynchronous = asynchronous
        self.errors = import_module(f"{name}.exceptions")
        #: An error reply. The connection that brought it is as good as before.
        self.reply_error: type[Exception] = self.errors.ResponseError
        self.unknown_policy = unknown_policy_of(self.reply_error)
        self.timeout_error: type[Exception] = self.errors.TimeoutError
        self.connection_error: type[Exception] = self.errors.ConnectionError
        #: A ConnectionError, as programs catch it, that says that nothing was sent.
        self.unsent_error: type[Exception] = type(
            "ConnectionError", (self.connection_error, Unsent), {"__module__": self.errors.__name__}
        )
        self.no_retry: Any = import_module(f"{name}{'.asyncio' if asynchronous else ''}.retry").Retry(
            import_module(f"{name}.backoff").NoBackoff(), 0
        )
        # A wrong password is a mistake in the program, so it is raised although it is a ConnectionError.
        self._mistakes = self._classes(
            "AuthenticationError", "AuthenticationWrongNumberOfArgsError", "AuthorizationError"
        )
        self._not_serving = self._classes("BusyLoadingError", "ClusterDownError", "MasterDownError", "TryAgainError")

    def _classes(self, *names: str) -> Errors:
        return tuple(getattr(self.errors, name) for name in names if hasattr(self.errors, name))

    def code(self, error: BaseException) -> str | None:
        """Returns the code of an error reply that the client library has no class for; None for any other error."""
        return code_of(str(error)) if type(error) is self.reply_error else None

    def is_late(self, error: BaseException) -> bool:
        """Returns whether an error means that time was over."""
        return isinstance(error, (Late, self.timeout_error, TimeoutError))

    def is_lost(self, error: BaseException) -> bool:
        """Returns whether an error means that there is no connection, or no longer."""
        return isinstance(error, (self.connection_error, OSError)) and not isinstance(
            error, (*self._mistakes, *self._not_serving)
        )

    def is_answer(self, error: BaseException) -> bool:
        """Returns whether an error is what the server answered, to a call or to a login."""
        return isinstance(error, (self.reply_error, *self._mistakes))

    def is_not_serving(self, error: BaseException) -> bool:
        """Returns whether an error reply means that no call can be served now: a server that loads its data, a replica
        without its master, a cluster without a slot's master, a slot that moves with only some of a call's keys."""
        return isinstance(error, self._not_serving) or self.code(error) in NOT_SERVING

    def is_full(self, error: BaseException) -> bool:
        """Returns whether the server accepts no more connections. It is up, so an overload must not be let through."""
        # The code is ERR, and older versions of the libraries have no class for it.
        return "max number of clients reached" in str(error)

    def is_read_only(self, error: BaseException) -> bool:
        """Returns whether the server is a replica now. Connections found by Sentinel turn this reply into a
        ConnectionError."""
        read_only: type[BaseException] = self.errors.ReadOnlyError
        return isinstance(error, read_only) or isinstance(error.__context__, read_only)

    def redirect(self, error: BaseException) -> Redirect | None:
        """What MOVED and ASK say; None for other errors."""
        text = {"MovedError": "MOVED ", "AskError": "ASK "}.get(type(error).__name__, "") + str(error)
        found = re.match(r"(MOVED|ASK) (\d+) (.*):(\d+)", text)
        return Redirect(int(found[2]), found[3], int(found[4]), found[1] == "ASK") if found else None


@cache
def _library(name: str, asynchronous: bool) -> Library:
    return Library(name, asynchronous)


def library_of(client: Any, *, asynchronous: bool) -> Library:
    """Returns the library of a client. Raises TypeError for anything but a client of the wanted kind."""
    if isinstance(client, (str, bytes)):
        raise TypeError(f"a limiter takes a client, not the URL {client!r}: give it Redis.from_url({client!r})")
    for base in type(client).__mro__:
        name = base.__module__.partition(".")[0]
        if name in LIBRARIES and hasattr(client, "execute_command"):
            is_asynchronous = base.__module__.startswith(f"{name}.asyncio")
            if is_asynchronous and not asynchronous:
                raise TypeError(f"{client!r} is a client for asyncio: use redis_ratelimit.asyncio.Limiter")
            if asynchronous and not is_asynchronous:
                raise TypeError(
                    f"{client!r} is no client for asyncio: use one of {name}.asyncio, or redis_ratelimit.Limiter"
                )
            return _library(name, asynchronous)
    raise TypeError(f"{client!r} must be a client of redis-py or valkey-py")
