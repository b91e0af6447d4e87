"""Creates clients of redis-py and valkey-py from URIs."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit


def parts(uri: str) -> tuple[str, str, SplitResult]:
    """Returns the library, the kind of server ("", "s", "unix", "sentinel" or "cluster"), and the parts of a URI."""
    split = urlsplit(uri)
    library = "valkey" if split.scheme.startswith("valkey") else "redis"
    kind = split.scheme.removeprefix(library).lstrip("+")
    return library, kind, split


def _addresses(split: SplitResult) -> list[tuple[str, int]]:
    addresses = []
    for text in split.netloc.rpartition("@")[2].split(","):
        parsed = urlsplit(f"//{text.strip()}")
        if not parsed.hostname or not parsed.port:
            raise ValueError(f"a URI of {split.scheme} must have hosts with ports, such as host:26379, not {text!r}")
        addresses.append((parsed.hostname, parsed.port))
    return addresses


def make_client(uri: str, options: dict[str, Any], *, asynchronous: bool) -> Any:
    """Returns a client of redis-py or valkey-py. Raises ValueError for a URI without a server, and ImportError if the
    library is not installed."""
    name, kind, split = parts(uri)
    folder = f"{name}.asyncio" if asynchronous else name
    try:
        library = import_module(folder)
    except ImportError as error:
        raise ImportError(f"a URI of {split.scheme} needs the package {name}") from error
    client = {"redis": "Redis", "valkey": "Valkey"}[name]
    if kind in ("", "s", "unix"):
        if "connection_pool" in options:
            return getattr(library, client)(**options)
        scheme = "unix" if kind == "unix" else split.scheme
        return library.from_url(f"{scheme}://{uri.partition('://')[2]}", **options)
    auth = {
        setting: unquote(value)
        for setting, value in (("username", split.username), ("password", split.password))
        if value
    }
    if kind == "cluster":
        node = import_module(f"{folder}.cluster").ClusterNode
        startup = {} if "startup_nodes" in options else {"startup_nodes": [node(*it) for it in _addresses(split)]}
        return getattr(library, f"{client}Cluster")(**{**startup, **auth, **options})
    options = dict(options)
    service = split.path.strip("/") or options.pop("service_name", None)
    options.pop("service_name", None)
    # All calls decide or must see the latest decisions, so replicas are never asked.
    options.pop("use_replicas", None)
    if not service:
        raise ValueError(
            f"a URI of {split.scheme} must name the service, such as /mymaster, or service_name must be given"
        )
    sentinel_options = {**auth, **options.pop("sentinel_kwargs", {})}
    sentinel = import_module(f"{folder}.sentinel").Sentinel
    sentinels = sentinel(_addresses(split), sentinel_kwargs=sentinel_options, **{**auth, **options})
    return sentinels.master_for(service)
