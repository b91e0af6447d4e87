"""Connections that suit a limiter, and which errors mean that Redis cannot be reached."""

from __future__ import annotations

import asyncio
import re
from importlib import import_module
from typing import Any, Literal, Protocol

Unreachable = Literal["raise", "allow", "deny"]

LIBRARIES = "redis", "valkey"


class Client(Protocol):
    """A client or cluster client of redis-py or valkey-py."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


def _classes(*names: str) -> tuple[type[BaseException], ...]:
    found = []
    for library in LIBRARIES:
        try:
            exceptions = import_module(f"{library}.exceptions")
        except ImportError:
            continue
        found += [getattr(exceptions, name) for name in names if hasattr(exceptions, name)]
    return tuple(found)


# A server that loads its data, a replica without its master, a cluster without a slot's master, and a slot that moves
# with only some of a call's keys answer, but nobody can be served: these count as out of reach. To log in with a wrong
# password is a mistake to be told of.
_OUT_OF_REACH = (
    *_classes("ConnectionError", "TimeoutError", "BusyLoadingError", "ClusterDownError", "MasterDownError", "TryAgainError"),
    OSError,
    TimeoutError,
    asyncio.TimeoutError,
)
# The server, or the pool of a cluster client, has no more connections to give: it is there, and a flood must not be let
# through.
_MISTAKES = _classes(
    "MaxConnectionsError", "AuthenticationError", "AuthenticationWrongNumberOfArgsError", "AuthorizationError"
)
# Not every client has classes for them.
_REPLIES = _classes("ResponseError")
_NOBODY_SERVED = "LOADING ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN "
_NO_MORE = re.compile("too many connections|max number of clients reached", re.IGNORECASE)

#: Connections of a limiter, beside those of calls that wait.
MOST_CONNECTIONS = 50


def out_of_reach(error: BaseException) -> bool:
    """Whether an error means that Redis cannot be reached. Any other error reply is a mistake in the program or setup."""
    if isinstance(error, _REPLIES) and str(error).startswith(_NOBODY_SERVED):
        return True
    if isinstance(error, _MISTAKES) or _NO_MORE.search(str(error)):
        return False
    return isinstance(error, _OUT_OF_REACH)


def library(client: Client) -> str:
    for base in type(client).__mro__:
        name = base.__module__.partition(".")[0]
        if name in LIBRARIES:
            return name
    raise TypeError(f"{client!r} must be a client of redis-py or valkey-py")


def is_cluster(client: Client) -> bool:
    return not hasattr(client, "connection_pool")


def refuse_short_timeout(cluster: Client, block_ms: int) -> None:
    """ValueError if the connections of a cluster client give up before a call may end that waits."""
    settings = getattr(cluster, "connection_kwargs", None)
    if settings is None:
        settings = getattr(cluster, "nodes_manager").connection_kwargs
    if "socket_timeout" in settings:
        timeout = settings["socket_timeout"]
    else:
        timeout = import_module(f"{library(cluster)}.connection").Connection().socket_timeout
    if timeout is not None and (block_ms == 0 or block_ms >= timeout * 1000):
        raise ValueError(f"block must be shorter than the cluster client's socket_timeout of {timeout} s")


def _settings(pool: Any) -> dict[str, Any]:
    # What a pool adds to its own connections by itself is left out.
    own = "maint_notifications", "oss_cluster_maint_notifications", "orig_", "event_dispatcher", "retry", "himport_registry"
    return {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(own)}


def socket_timeout(client: Client) -> float | None:
    """The socket_timeout of a client's connections."""
    pool: Any = getattr(client, "connection_pool")
    timeout: float | None = pool.connection_class(**_settings(pool)).socket_timeout
    return timeout


def most_connections(client: Client) -> int:
    """How many connections calls that do not wait may have."""
    pool: Any = getattr(client, "connection_pool")
    return min(MOST_CONNECTIONS, int(pool.max_connections))


def own_client(client: Client, folder: str, **timeouts: Any) -> Any:
    """A client with the same settings and connections of its own, which never send a call twice: a call that was counted
    and whose reply was lost would be counted again. `folder` is "" or ".asyncio"."""
    name = library(client)
    pool: Any = getattr(client, "connection_pool")
    retry = import_module(f"{name}{folder}.retry").Retry(import_module(f"{name}.backoff").NoBackoff(), 0)
    own_pool = import_module(f"{name}{folder}.connection").ConnectionPool(
        connection_class=pool.connection_class,
        **{**_settings(pool), **timeouts, "retry": retry},
    )
    main = import_module(f"{name}{folder}.client")
    return (main.Redis if name == "redis" else main.Valkey)(connection_pool=own_pool)
