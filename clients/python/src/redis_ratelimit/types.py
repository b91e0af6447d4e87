"""The types in the signatures of redis_ratelimit, for the annotations of programs.

def at_most(limiter: Limiter, key: Key, window: WindowLike, wait: Duration) -> Reply:
    return limiter.window(key, window, block=wait)
"""

from ._internal.clauses import Clauses
from ._internal.core import Deadline, Unreachable
from ._internal.libraries import Client
from ._internal.limits import RateLike, WindowLike
from ._internal.memory import Clock, Policies
from ._internal.options import AcquireClauseOptions, ThrottleClauseOptions, WindowClauseOptions
from ._internal.replies import Id
from ._internal.reservation import Cost, Settle
from ._internal.words import Duration, Key, Period
from .http.headers import AnyLimit, Limit, PartitionKey

__all__ = [
    "AcquireClauseOptions",
    "AnyLimit",
    "Clauses",
    "Client",
    "Clock",
    "Cost",
    "Deadline",
    "Duration",
    "Id",
    "Key",
    "Limit",
    "PartitionKey",
    "Period",
    "Policies",
    "RateLike",
    "Settle",
    "ThrottleClauseOptions",
    "Unreachable",
    "WindowClauseOptions",
    "WindowLike",
]
