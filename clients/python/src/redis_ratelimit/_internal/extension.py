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
            f"{what} needs the native extension of redis-ratelimit-client, which this installation lacks"
            f" ({error}). It is in the wheels for Linux on amd64 and arm64. From its source the package builds it where"
            " there are a Rust compiler (cargo, from 1.85) and a linker (cc): pip install --force-reinstall"
            " redis-ratelimit-client, or pip install --force-reinstall ./clients/python in a checkout. With -v, pip shows"
            " why it could not be built"
        ) from error
