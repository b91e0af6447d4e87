"""Rate limits and budgets for the proxy of LiteLLM, counted by redis-ratelimit.

litellm_settings:
  callbacks: [redis_ratelimit.litellm.limiter]
callback_settings:
  redis_ratelimit:
    url: redis://localhost:6379
    limits:
      - {per: key, tokens: 100000/min}
      - {per: team, dollars: 50/1mo, fixed: true}

The limits and the other settings are described in docs/litellm.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .gateway import ConfigurationError

if TYPE_CHECKING:
    from .callback import RateLimiter

__all__ = ["ConfigurationError", "RateLimiter"]


def __getattr__(name: str) -> Any:
    # Without LiteLLM, configurations can still be read.
    if name == "limiter":
        # LiteLLM looks the callback up by this name after it has read its configuration.
        from .proxy import configured

        return configured()
    if name != "RateLimiter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .callback import RateLimiter

    return RateLimiter
