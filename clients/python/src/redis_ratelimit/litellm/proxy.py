"""The callback for the configuration of the running proxy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import litellm
import yaml
from litellm._logging import verbose_proxy_logger as logger

from .. import Limiter, MissingModule, _uris
from . import costs
from .callback import MISSING_MODULE, RateLimiter
from .gateway import ConfigurationError, Path, Settings, check_policies, read_settings

#: The section of the proxy's configuration that has the settings.
SECTION = "callback_settings", "redis_ratelimit"
#: How often it is asked, when the proxy starts, whether LiteLLM has read its models.
START_SECONDS = 0.5


def configured() -> RateLimiter:
    """Returns the callback that the configuration of the running proxy describes."""
    sections = getattr(litellm, SECTION[0], None)
    section = sections.get(SECTION[1]) if isinstance(sections, dict) else None
    file = getattr(sys.modules.get("litellm.proxy.proxy_server"), "user_config_file_path", None)
    if section is None:
        raise ConfigurationError(f"{file or 'the configuration'}: {'.'.join(SECTION)} is missing")

    def where(path: Path) -> str:
        return _place(file, path)

    settings = read_settings(section, where)
    _check_server(settings, where)
    return _callback(settings)


@lru_cache(maxsize=1)
def _callback(settings: Settings) -> RateLimiter:
    """Returns the callback for the settings of the proxy, which is created only once."""
    if any(limit.unit == "dollars" for limit in settings.limits):
        _name_unpriced()
    return RateLimiter(settings)


def _name_unpriced(tries: int = 60) -> None:
    """Logs for what limits in dollars can reserve nothing, as soon as LiteLLM has read its models."""
    with suppress(RuntimeError):
        if costs.router() is None and tries:
            asyncio.get_running_loop().call_later(START_SECONDS, _name_unpriced, tries - 1)
            return
    if names := ", ".join(costs.unpriced()):
        logger.warning(
            "redis_ratelimit: limits in dollars reserve nothing for %s: their price is not known before", names
        )


def _check_server(settings: Settings, where: Callable[[Path], str]) -> None:
    """Raises ConfigurationError if the server lacks the module or one of the policies."""
    place = where(("url",))
    try:
        client = _uris.make_client(settings.url, {}, asynchronous=False)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{place}: {error}") from None
    with Limiter(client, deadline=settings.deadline) as limiter:
        try:
            policies = limiter.policies()
        except MissingModule as error:
            raise ConfigurationError(f"{place}: {error}. {MISSING_MODULE}") from None
        except Exception as error:
            # The server may be away when the proxy starts, and its user may not be allowed to list the policies.
            logger.warning("redis_ratelimit: the policies of the server were not checked: %s", error)
            return
    check_policies(settings, policies, where)


def _place(file: str | None, path: Path) -> str:
    """Returns the name of a place in the section, with the file and the line if the section is in the file."""
    whole: Path = (*SECTION, *path)
    name = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in whole).lstrip(".")
    with suppress(OSError, yaml.YAMLError):
        line = _line(yaml.compose(FilePath(file or "").read_text("utf-8"), yaml.SafeLoader), whole)
        if line is not None:
            return f"{file}, line {line}: {name}"
    return name


def _line(node: Any, path: Path) -> int | None:
    """Returns the line of the last key or item of a path; None if the section is not in the document."""
    line = None
    for at, step in enumerate(path):
        items: dict[Any, Any] = {}
        if isinstance(node, yaml.MappingNode):
            items = {key.value: (key, value) for key, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            items = {number: (value, value) for number, value in enumerate(node.value)}
        if step not in items:
            return line if at >= len(SECTION) else None
        key, node = items[step]
        line = key.start_mark.line + 1
    return line
