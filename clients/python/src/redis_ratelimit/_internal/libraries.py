"""The client libraries redis-py and valkey-py: their errors, and copies of their clients for a limiter."""

from __future__ import annotations

import copy
import inspect
import re
from errno import ECONNRESET, EPIPE
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from .replies import Duplicate, UnknownPolicy

LIBRARIES = "redis", "valkey"


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
        folder = f"{name}.asyncio" if asynchronous else name
        self.pool_class: Any = import_module(f"{folder}.connection").ConnectionPool
        self.no_retry: Any = import_module(f"{folder}.retry").Retry(import_module(f"{name}.backoff").NoBackoff(), 0)
        self.key_slot: Any = import_module(f"{name}.crc").key_slot
        needs_name = inspect.signature(self.pool_class.get_connection).parameters["command_name"]
        #: The arguments of a pool's get_connection(), which older versions want and newer ones warn about.
        self.to_get_connection = ("RL",) if needs_name.default is inspect.Parameter.empty else ()
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

    def has_hung_up(self, error: Exception) -> bool:
        """Returns whether an error of connecting means that the server accepted the connection, and closed it. It may have
        too many, but the client may not see the error that says so, because it was sending at that moment."""
        # The context of the error may be that of an idle connection, which the library has looked at before it connected.
        unconnected = re.match(r"Error (?:(.*) )?connecting to ", str(error))
        is_reset = unconnected is None or unconnected[1] in (str(ECONNRESET), str(EPIPE))
        return type(error) is self.connection_error and is_reset and not self.is_full(error)

    def read_only(self, error: BaseException) -> Exception | None:
        """Returns the error reply of a server that is a replica now; None for other errors. Connections found by Sentinel
        turn it into a ConnectionError."""
        kind: type[Exception] = self.errors.ReadOnlyError
        return next((each for each in (error, error.__context__) if isinstance(each, kind)), None)

    def redirect(self, error: object) -> Redirect | None:
        """Returns the redirection of an error MOVED or ASK; None for other replies."""
        if not isinstance(error, self.reply_error):
            return None
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


class Copy:
    """A copy of a client's connections for a limiter. They take no longer than the deadline, and never retry by themselves:
    a call whose reply was lost may have been counted."""

    #: Settings of a connection that belong to its pool.
    _OF_THE_POOL = "cache", "connection_pool", "event_dispatcher", "himport_registry", "maint_", "orig_", "oss_"

    def __init__(self, library: Library, client: Any, deadline: float) -> None:
        self._library = library
        self._deadline = deadline
        #: The nodes of a cluster; None without one.
        self.nodes: Any = getattr(client, "nodes_manager", None)
        pool: Any = getattr(client, "connection_pool", None)
        if pool is None and self.nodes is not None:
            node: Any = next(iter(self.nodes.startup_nodes.values()))
            # With asyncio, a node of a cluster is itself a pool.
            is_pool = library.asynchronous
            pool = node if is_pool else getattr(client, f"get_{library.name}_connection")(node).connection_pool
        self._pool = pool
        self.settings: dict[str, Any] = pool.connection_kwargs
        #: The greatest number of connections that the client may have to a server.
        self.max_connections = int(pool.max_connections)
        if self.service and not pool.is_master:
            raise ValueError("a limiter writes, so it needs the master: use Sentinel.master_for")

    @property
    def service(self) -> str | None:
        """The name of the service that Sentinels watch; None without Sentinels."""
        return getattr(self._pool, "service_name", None)

    def _settings(self, pool: Any, seconds: float | None) -> dict[str, Any]:
        kept = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(self._OF_THE_POOL)}
        return {
            **kept,
            "retry": self._library.no_retry,
            "retry_on_timeout": False,
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "decode_responses": False,
            "protocol": 2,
            "connection_class": pool.connection_class,
            # Server.places has the limit.
            "max_connections": 2**31,
        }

    def make_pool(self, **address: Any) -> Any:
        """Returns a new pool, for the node of a cluster at an address."""
        # With asyncio, the deadline of the whole call ends each step.
        settings = self._settings(self._pool, None if self._library.asynchronous else self._deadline)
        if not self.service:
            return self._library.pool_class(**{**settings, **address})
        sentinels = copy.copy(self._pool.sentinel_manager)
        # One that hangs leaves time to ask the others.
        seconds = self._deadline / (len(sentinels.sentinels) + 1)
        sentinels.sentinels = [
            type(each)(connection_pool=self._library.pool_class(**self._settings(each.connection_pool, seconds)))
            for each in sentinels.sentinels
        ]
        return type(self._pool)(self.service, sentinels, check_connection=self._pool.check_connection, **settings)
