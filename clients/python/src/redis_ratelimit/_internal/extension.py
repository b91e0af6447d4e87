"""The native extension, which decides in the process: for MemoryLimiter and local limits."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def native(what: str) -> Any:
    """Imports the extension module. `what` needs it."""
    try:
        return import_module("redis_ratelimit._engine")
    except ImportError as error:
        raise ImportError(
            f"{what} needs the native extension of redis-ratelimit-client, which this installation lacks ({error}). Where"
            " there are a Rust compiler (cargo, from 1.85) and a linker (cc), it is built by pip install --force-reinstall"
            " ./clients/python, in a checkout of redis-ratelimit. With -v, pip shows why it could not be built"
        ) from error
