"""The client libraries redis-py and valkey-py, and the meaning of their errors."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeAlias

from .replies import Duplicate, UnknownPolicy

LIBRARIES = "redis", "valkey"


#: A connection of a client library. The libraries have no common type for it.
Connection: TypeAlias = Any


class Client(Protocol):
    """A client or cluster client of redis-py or valkey-py."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Executes a command. A limiter does not call this: it opens its own connections."""


Errors = tuple[type[BaseException], ...]

NOT_SERVING = "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"


class Redirect(NamedTuple):
    """The address that a cluster redirects a key to. With `asking`, only this call goes there, after ASKING."""

    slot: int
    host: str
    port: int
    asking: bool


class DeadlinePassed(Exception):
    """The deadline of a call has passed."""


class Unsent(Exception):
    """Marks the errors of calls that were not sent because others had failed."""


def error_code(text: str) -> str:
    """Returns the code of an error reply: its first word, or ERR, which the client libraries remove."""
    code, space, _ = text.partition(" ")
    return code if space and code.isalpha() and code.isupper() else "ERR"


def make_reply_error(kind: type[Exception], reply_error: type[Exception]) -> type[Exception]:
    """Returns a class that is a `kind` and an error reply. `reply_error` is the class of error replies."""
    return type(kind.__name__, (kind, reply_error), {"__module__": kind.__module__})


class Library:
    """One of the client libraries, sync or asyncio."""

    def __init__(self, name: str, asynchronous: bool) -> None:
        self.name = name
        self.asynchronous = asynchronous
        self.errors = import_module(f"{name}.exceptions")
        #: The class of error replies. After such an error a connection can still be used.
        self.reply_error: type[Exception] = self.errors.ResponseError
        self.unknown_policy = make_reply_error(UnknownPolicy, self.reply_error)
        self.duplicate = make_reply_error(Duplicate, self.reply_error)
        self.timeout_error: type[Exception] = self.errors.TimeoutError
        self.connection_error: type[Exception] = self.errors.ConnectionError
        #: The ConnectionError of a call that was not sent.
        self.unsent_error: type[Exception] = type(
            "ConnectionError", (self.connection_error, Unsent), {"__module__": self.errors.__name__}
        )
        self.no_retry: Any = import_module(f"{name}{'.asyncio' if asynchronous else ''}.retry").Retry(
            import_module(f"{name}.backoff").NoBackoff(), 0
        )
        # A wrong password is a mistake in the setup, so it is raised, although it is a ConnectionError.
        self._mistakes = self._classes(
            "AuthenticationError", "AuthenticationWrongNumberOfArgsError", "AuthorizationError"
        )
        self._not_serving = self._classes("BusyLoadingError", "ClusterDownError", "MasterDownError", "TryAgainError")

    def _classes(self, *names: str) -> Errors:
        return tuple(getattr(self.errors, name) for name in names if hasattr(self.errors, name))

    def code(self, error: BaseException) -> str | None:
        """Returns the code of an error reply that the client library has no class for; None for any other error."""
        return error_code(str(error)) if type(error) is self.reply_error else None

    def is_late(self, error: BaseException) -> bool:
        """Returns whether an error means that the time was up."""
        return isinstance(error, (DeadlinePassed, self.timeout_error, TimeoutError))

    def is_lost(self, error: BaseException) -> bool:
        """Returns whether an error means that a connection could not be made, or was lost."""
        return isinstance(error, (self.connection_error, OSError)) and not isinstance(
            error, (*self._mistakes, *self._not_serving)
        )

    def is_answer(self, error: BaseException) -> bool:
        """Returns whether an error is an answer of the server, to a call or to a login."""
        return isinstance(error, (self.reply_error, *self._mistakes))

    def is_not_serving(self, error: BaseException) -> bool:
        """Returns whether an error reply means that the server cannot serve the call now: it loads its data, it is a replica
        without its master, the slot has no master, or only some of the call's keys have moved with their slot."""
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
        """Returns the redirection of an error MOVED or ASK; None for other errors."""
        text = {"MovedError": "MOVED ", "AskError": "ASK "}.get(type(error).__name__, "") + str(error)
        match = re.match(r"(MOVED|ASK) (\d+) (.*):(\d+)", text)
        return Redirect(int(match[2]), match[3], int(match[4]), match[1] == "ASK") if match else None


def kind_of(value: object) -> str:
    """Returns the class of a value for an error. The repr of a client has all its settings, such as the password."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


@cache
def _library(name: str, asynchronous: bool) -> Library:
    return Library(name, asynchronous)


def find_library(client: Any, *, asynchronous: bool) -> Library:
    """Returns the library of a client. Raises TypeError unless it is a client of the wanted kind."""
    if isinstance(client, (str, bytes)):
        # It may have a password.
        raise TypeError("a limiter takes a client, not a URL: give it Redis.from_url(url)")
    kind = kind_of(client)
    for base in type(client).__mro__:
        name = base.__module__.partition(".")[0]
        if name in LIBRARIES and hasattr(client, "execute_command"):
            is_asynchronous = base.__module__.startswith(f"{name}.asyncio")
            if is_asynchronous and not asynchronous:
                raise TypeError(f"{kind} is a client for asyncio: use redis_ratelimit.asyncio.Limiter")
            if asynchronous and not is_asynchronous:
                raise TypeError(
                    f"{kind} is no client for asyncio: use one of {name}.asyncio, or redis_ratelimit.Limiter"
                )
            return _library(name, asynchronous)
    raise TypeError(f"{kind} must be a client of redis-py or valkey-py")
