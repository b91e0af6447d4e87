"""The methods of both limiters, made of the functions of calls.py: those of one answer, those of the other are awaited."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from . import calls
from .calls import Call, Clause, Clauses, Key
from .local import InProcess
from .parameters import Duration, WindowLike
from .replies import Id
from .reservation import Settle, Settling

if TYPE_CHECKING:
    from . import asyncio, limiter

P = ParamSpec("P")
T = TypeVar("T")
LocalType = TypeVar("LocalType", bound=InProcess)
ReservationType = TypeVar("ReservationType", bound=Settling)


def like(method: Any, make: Callable[..., Any], name: str) -> None:
    """Gives a method the name, the arguments and the description of the function that it was made of."""
    method.__name__ = name
    method.__qualname__ = f"Limiter.{name}"
    method.__doc__ = make.__doc__
    signature = inspect.signature(make)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    # The method answers what the call reads.
    answers = str(signature.return_annotation).removeprefix("Call[").removesuffix("]")
    method.__signature__ = signature.replace(
        parameters=[itself, *signature.parameters.values()], return_annotation=answers
    )


class Method(Generic[P, T]):
    """A method that sends the call which `make` makes. Its place is taken by a function, see Methods."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self.make = make

    @overload
    def __get__(self, instance: limiter.Limiter, owner: Any) -> Callable[P, T]: ...

    @overload
    def __get__(self, instance: asyncio.Limiter, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[..., Any]: ...

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self


class Methods(Generic[LocalType, ReservationType]):
    """What both limiters have in common: all methods that ask a server. Each limiter says of which function a method is
    made, and of which classes it makes local limits and reservations."""

    _core: Any
    _local: type[LocalType]
    _reservation: type[ReservationType]

    def __init_subclass__(cls, *, method: Callable[[Callable[..., Call[Any]], str], Any] | None = None) -> None:
        super().__init_subclass__()
        if method is not None:
            for name, value in vars(Methods).items():
                if isinstance(value, Method):
                    setattr(cls, name, method(value.make, name))

    throttle = Method(calls.throttle)
    throttle_ro = Method(calls.throttle_ro)
    window = Method(calls.window)
    window_ro = Method(calls.window_ro)
    reserve = Method(calls.reserve)
    acquire_ro = Method(calls.acquire_ro)
    apply = Method(calls.apply)
    release = Method(calls.release)
    renew = Method(calls.renew)
    held = Method(calls.held)
    all = Method(calls.every)
    all_ro = Method(calls.every_ro)
    reset = Method(calls.reset)
    info = Method(calls.info)
    top = Method(calls.top)
    policies = Method(calls.policies)

    def local(self, key: Key, window: WindowLike, *, lease: Duration = "100ms", leave: int = 0) -> LocalType:
        """Decides a window in the process, in microseconds: the process reserves a batch of the limit for the time of a
        lease, spends it by itself, and settles what it spent. All processes together never spend more than the limit.

        If a process dies, its batch counts as spent for a whole period. `lease` is from 20 ms on; `leave` is as elsewhere.
        """
        return self._local(self._core, key, window, lease, leave)

    def acquire(
        self,
        key: Key | Clauses,
        window: WindowLike | None = None,
        quantity: int = 1,
        *,
        leave: int = 0,
        atmost: bool = False,
        lease: Duration | None = None,
        count_lapsed: bool = False,
        id: Id | None = None,
        block: Duration | None = None,
        settle: Settle | None = None,
    ) -> ReservationType:
        """RL.ACQUIRE as a context manager: reserves when it is entered, or raises Denied. An exception gives the
        reservation back; else it is applied, or given back if it is a semaphore's. `settle` says which of the two. With
        `atmost` the reply's `granted` says how much was reserved.

        A list of clauses in the place of the key reserves several limits as one, by RL.ALL. They are settled in one step,
        and their leases are renewed while the block runs.
        """
        if not isinstance(key, (str, bytes)):
            calls.several("acquire", key, (window, quantity, leave, atmost, lease, count_lapsed, id, block))
            if settle is not None:
                raise TypeError("settle must be used with a single limit")
            own = calls.with_own_ids(key)
            call = calls.every(own)
            return self._reservation(self._core, call.reserving, call, (own,))
        kwargs: dict[str, Any] = {"quantity": quantity, "leave": leave, "lease": lease, "id": id, "block": block}
        # A fallback of the caller's own need not know these.
        if atmost:
            kwargs["atmost"] = True
        if count_lapsed:
            kwargs["count_lapsed"] = True
        made = calls.reserve(key, window, **kwargs)
        limit = Clause.acquire(key, cast("WindowLike", window))
        return self._reservation(self._core, [limit], made, (key, window), kwargs=kwargs, settle=settle)
