"""The parts that both limiters share: how methods are made from the functions of calls.py, and the methods that send more
than one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, Protocol, TypeVar, get_args, get_type_hints, overload

from . import calls
from .calls import Call, Clause, Clauses, Key
from .core import Core
from .local import InProcess
from .parameters import Duration, WindowLike
from .replies import Id
from .reservation import Settle, Settling

LocalType = TypeVar("LocalType", bound=InProcess)
ReservationType = TypeVar("ReservationType", bound=Settling)
ReplyType_co = TypeVar("ReplyType_co", covariant=True)
AllReplyType_co = TypeVar("AllReplyType_co", covariant=True)


def name_of(make: Callable[..., Call[Any]]) -> str:
    """Returns the name of the method that sends the call of `make`: that of the function, but all for calls.all_."""
    return make.__name__.removesuffix("_")


class Reserve(Protocol[ReplyType_co, AllReplyType_co]):
    """The type of the method reserve(), which returns another reply for a list of clauses."""

    @overload
    def __call__(
        self,
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        atmost: bool = False,
        lease: Duration | None = None,
        count_lapsed: bool = False,
        id: Id | None = None,
        block: Duration | None = None,
    ) -> ReplyType_co: ...

    @overload
    def __call__(self, key: Clauses) -> AllReplyType_co: ...


def describe(method: Any, make: Callable[..., Call[Any]]) -> None:
    """Gives a method the name, the parameters and the docstring of the function that makes its call."""
    update_wrapper(method, make)
    method.__name__ = name_of(make)
    method.__qualname__ = f"Limiter.{method.__name__}"
    signature = inspect.signature(make)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    # The method returns what the call reads: the T of Call[T].
    (result,) = get_args(get_type_hints(make)["return"])
    method.__signature__ = signature.replace(
        parameters=[itself, *signature.parameters.values()], return_annotation=result
    )


class Methods(Generic[LocalType, ReservationType]):
    """The base class of both limiters. Each sets the classes of its local limits and its reservations."""

    _core: Core[Any]
    _local: type[LocalType]
    _reservation: type[ReservationType]

    def local(self, key: Key, window: WindowLike, *, lease: Duration = "100ms", leave: int = 0) -> LocalType:
        """Returns a limit that is decided in the process, in microseconds. The process reserves a batch of the window for a
        lease, spends it by itself, and settles what it spent. All processes together never spend more than the limit.

        If a process dies, its batch counts as spent for a whole period. `lease` is at least 20 ms.
        """
        return self._local(self._core, key, window, lease, leave)

    @overload
    def acquire(
        self,
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        atmost: bool = False,
        lease: Duration | None = None,
        count_lapsed: bool = False,
        id: Id | None = None,
        block: Duration | None = None,
        settle: Settle | None = None,
    ) -> ReservationType: ...

    @overload
    def acquire(self, key: Clauses) -> ReservationType: ...

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
        """RL.ACQUIRE as a context manager: entering it reserves, or raises Denied. An exception in the block releases the
        reservation. Otherwise the end of the block applies it, or releases a semaphore's; `settle` chooses one of the two.
        With `atmost` the reply's `granted` says how much was reserved.

        A list of clauses instead of the key reserves several limits by RL.ALL. They are settled in one step, and their
        leases are renewed while the block runs.
        """
        options: dict[str, Any] = {"quantity": quantity, "leave": leave, "lease": lease, "id": id, "block": block}
        # A fallback of the caller's own need not know these.
        if atmost:
            options["atmost"] = True
        if count_lapsed:
            options["count_lapsed"] = True
        call = calls.reserve(key, window, **options)
        if not isinstance(key, (str, bytes)):
            if settle is not None:
                raise TypeError("settle must be used with a single limit")
            return self._acquire_several(key)
        assert window is not None  # calls.reserve refuses it.
        limit = Clause.acquire(key, window)
        return self._reservation(self._core, [limit], call, (key, window), kwargs=options, settle=settle)

    def _acquire_several(self, clauses: Clauses) -> ReservationType:
        clauses = calls.with_own_ids(clauses)
        call = calls.reserve(clauses)
        return self._reservation(self._core, call.reserving, call, (clauses,))
