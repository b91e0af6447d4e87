"""Replaces conftest.py in the tests of `limits`: they use the servers of RATELIMIT_PORT and RATELIMIT_CLUSTER_PORT, and our
storages instead of those for Redis. The tests themselves are unchanged."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import limits.aio.storage
import limits.storage
import pytest
import redis
import valkey
from limits._storage_scheme import SCHEMES

import redis_ratelimit.limits

PORTS = {"": int(os.environ["RATELIMIT_PORT"]), "+cluster": int(os.environ["RATELIMIT_CLUSTER_PORT"])}

#: Who empties the servers. Our storages have only the rights that docs/commands.md lists.
ADMIN: dict[str, Any] = {"username": "admin", "password": "admin"}


def here(uri: str) -> str:
    """Returns the URI of our storage on the server of the same kind."""
    return re.sub(r"(async\+)?(redis|valkey)(\+cluster)?://.*", _ours, uri)


def _ours(found: re.Match[str]) -> str:
    prefix, library, kind = (each or "" for each in found.groups())
    return f"{prefix}ratelimit+{library}{kind}://127.0.0.1:{PORTS[kind]}"


def storage(base: Any) -> Any:
    class Storage(base):  # type: ignore[misc]
        STORAGE_SCHEME = None

        def __init__(self, uri: str, *args: Any, **kwargs: Any) -> None:
            super().__init__(here(uri), *args, **kwargs)

    return Storage


NOW, SOON = storage(redis_ratelimit.limits.RateLimitStorage), storage(redis_ratelimit.limits.AsyncRateLimitStorage)
for scheme in "redis", "redis+cluster", "valkey", "valkey+cluster":
    SCHEMES[scheme] = NOW
    SCHEMES[f"async+{scheme}"] = SOON
for name in "RedisStorage", "RedisClusterStorage":
    setattr(limits.storage, name, NOW)
    setattr(limits.aio.storage, name, SOON)


def flushed(make: Callable[[], Any]) -> Any:
    """Returns a fixture: a client of a server whose keys were deleted."""

    @pytest.fixture
    def client() -> Iterator[Any]:
        with make() as made:
            made.flushall()
            yield made

    return client


redis_basic = flushed(lambda: redis.Redis(port=PORTS[""], **ADMIN))
redis_cluster = flushed(lambda: redis.RedisCluster(host="127.0.0.1", port=PORTS["+cluster"], **ADMIN))
valkey_basic = flushed(lambda: valkey.Valkey(port=PORTS[""], **ADMIN))
valkey_cluster = flushed(lambda: valkey.ValkeyCluster(host="127.0.0.1", port=PORTS["+cluster"], **ADMIN))
