"""A typed client of redis-ratelimit, for synchronous programs. redis_ratelimit.asyncio has the same classes for asyncio.

limiter = Limiter(redis.Redis(), unreachable="allow", deadline=0.25)
reply = limiter.throttle("user:1", Rate(burst=15, count=30, period=60))
if not reply:
    print("come back after", reply.retry_after)
"""

from ._internal.clauses import Clause
from ._internal.core import Fallback
from ._internal.limiter import Limiter, Local, Reservation
from ._internal.limits import Rate, Window, semaphore
from ._internal.memory import MemoryLimiter
from ._internal.options import AllOptions, LookOptions, ReserveOptions, SeveralOptions, ThrottleOptions, WindowOptions
from ._internal.replies import (
    AllReply,
    Busy,
    Closed,
    Denied,
    Duplicate,
    Held,
    Info,
    Lapsed,
    MissingModule,
    Policy,
    Reply,
    TopKey,
    UnexpectedReply,
    UnknownPolicy,
)
from .http.address import client_address
from .http.exchange import add_reply
from .http.headers import ReplyWithOptions, headers, merged_headers, problem, retry_after

__version__ = "0.1.0"

__all__ = [
    "AllOptions",
    "AllReply",
    "Busy",
    "Clause",
    "Closed",
    "Denied",
    "Duplicate",
    "Fallback",
    "Held",
    "Info",
    "Lapsed",
    "Limiter",
    "Local",
    "LookOptions",
    "MemoryLimiter",
    "MissingModule",
    "Policy",
    "Rate",
    "Reply",
    "ReplyWithOptions",
    "Reservation",
    "ReserveOptions",
    "SeveralOptions",
    "ThrottleOptions",
    "TopKey",
    "UnexpectedReply",
    "UnknownPolicy",
    "Window",
    "WindowOptions",
    "__version__",
    "add_reply",
    "client_address",
    "headers",
    "merged_headers",
    "problem",
    "retry_after",
    "semaphore",
]
