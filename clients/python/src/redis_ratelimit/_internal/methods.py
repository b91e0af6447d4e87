"""The methods of both limiters that send calls. The limiter for asyncio inherits them, and the synchronous limiter makes its
own from them with blocking()."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from . import calls, several
from .calls import Call
from .clauses import Clauses
from .core import Core
from .options import AllOptions, LookOptions, ReserveOptions, ThrottleOptions, WindowOptions
from .parameters import Duration, Key, RateLike, WindowLike
from .replies import AllReply, Held, Id, Info, Policy, Reply, TopKey
from .reservation import ReservationBase, Settle

if TYPE_CHECKING:
    # typing has Unpack only from Python 3.11 on.
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")
#: The class of the reservations of a limiter.
Reservation = TypeVar("Reservation", bound=ReservationBase)


class LimiterBase(Generic[Reservation]):
    """The base class of both limiters."""

    _core: Core[Any]
    _reservation_class: type[Reservation]

    async def _send(self, make: Callable[P, Call[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Sends the call that `make` returns for the arguments of the method of the same name."""
        call = make(*args, **kwargs)
        reply = await self._core.send(call, make.__name__, args, kwargs)
        if call.reserving and isinstance(reply, Reply):
            self._reservation_class(self._core, call.reserving)._hold(reply)
        return reply

    @overload
    def acquire(
        self,
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        settle: Settle | None = None,
        **options: Unpack[ReserveOptions],
    ) -> Reservation: ...

    @overload
    def acquire(self, key: Clauses) -> Reservation: ...

    def acquire(
        self,
        key: Key | Clauses,
        window: WindowLike | None = None,
        quantity: int = 1,
        *,
        settle: Settle | None = None,
        **options: Unpack[ReserveOptions],
    ) -> Reservation:
        """RL.ACQUIRE as a context manager: entering it reserves, or raises Denied. An exception in the block releases the
        reservation. Otherwise the end of the block applies it, or releases a semaphore's; `settle` chooses one of the two,
        but "apply" is refused for a semaphore. If the lease ended before the block did, its end raises Lapsed: pass a
        `lease` that is long enough, or renew().

        A list of clauses instead of the key reserves several limits by RL.ALL. They are settled in one step, and their
        leases are renewed while the block runs.

        What acquire() returns can be entered again, and reserves again, but not while its block runs (RuntimeError). So
        threads and tasks call acquire() for each block. Before the first block nothing is reserved: then `reply`, `id`,
        set(), apply(), release() and renew() raise RuntimeError. reserve() does without a block.
        """
        return self._reservation_class._for_acquire(self._core, key, window, quantity, settle=settle, options=options)


class AsyncMethods(LimiterBase[Reservation]):
    """The methods of the limiter for asyncio. Those of the synchronous limiter are made from them."""

    async def throttle(self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[ThrottleOptions]) -> Reply:
        """RL.THROTTLE: takes a quantity from a rate. Returns whether that was allowed, what remains, and when to try again.
        A negative quantity gives back."""
        return await self._send(calls.throttle, key, rate, quantity, **options)

    async def throttle_ro(self, key: Key, rate: RateLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Reply:
        """RL.THROTTLE_RO: returns what throttle() would return now, and takes nothing."""
        return await self._send(calls.throttle_ro, key, rate, quantity, **options)

    async def window(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[WindowOptions]) -> Reply:
        """RL.WINDOW: counts a quantity in a window, so that no period has more than the limit. Returns what throttle()
        returns. A negative quantity gives back the oldest events."""
        return await self._send(calls.window, key, window, quantity, **options)

    async def window_ro(self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[LookOptions]) -> Reply:
        """RL.WINDOW_RO: returns what window() would return now, and takes nothing."""
        return await self._send(calls.window_ro, key, window, quantity, **options)

    @overload
    async def reserve(
        self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[ReserveOptions]
    ) -> Reply: ...

    @overload
    async def reserve(self, key: Clauses) -> AllReply[Reservation]: ...

    async def reserve(
        self,
        key: Key | Clauses,
        window: WindowLike | None = None,
        quantity: int = 1,
        **options: Unpack[ReserveOptions],
    ) -> Reply:
        """RL.ACQUIRE: reserves a quantity. Returns a Reply with an `id`, which is None if the call was denied. The caller
        passes it to apply() or release() before the lease ends.

        A list of clauses instead of the key reserves several limits, and returns the AllReply of all().
        """
        return await self._send(several.reserve, key, window, quantity, **options)

    async def acquire_ro(
        self, key: Key, window: WindowLike, quantity: int = 1, **options: Unpack[LookOptions]
    ) -> Reply:
        """RL.ACQUIRE_RO: returns what reserve() would return now, without an id, and reserves nothing."""
        return await self._send(calls.acquire_ro, key, window, quantity, **options)

    async def apply(self, key: Key, id: Id, quantity: int | None = None) -> bool:
        """RL.APPLY: counts a reservation, or the `quantity` that was really used, which may be more. Returns False if it is
        not held, because its lease has ended or it was settled before."""
        return await self._core.settle(self._send(calls.apply, key, id, quantity))

    async def release(self, key: Key, *ids: Id) -> int:
        """RL.RELEASE: gives reservations back, so that they count as nothing. Returns how many of them were held."""
        return await self._core.settle(self._send(calls.release, key, *ids))

    async def renew(self, key: Key, id: Id, lease: Duration | None = None) -> bool:
        """RL.RENEW: restarts the lease, with a new length if `lease` is given. Returns False if the reservation is not
        held."""
        return await self._send(calls.renew, key, id, lease)

    async def held(self, key: Key) -> list[Held]:
        """RL.HELD: returns the live reservations of a key, oldest first."""
        return await self._send(calls.held, key)

    async def all(self, clauses: Clauses, **options: Unpack[AllOptions]) -> AllReply[Reservation]:
        """RL.ALL: takes from several limits, or from none of them if one denies. A list of clauses in the place of a clause
        is a group, joined by ELSE: only the first of its clauses that would be allowed takes. The reply's `paid` names the
        limits that took, and its `reservation` settles all that was reserved."""
        return await self._send(several.all, clauses, **options)

    async def all_ro(self, clauses: Clauses) -> AllReply[Reservation]:
        """RL.ALL_RO: returns what all() would return now, and takes nothing."""
        return await self._send(several.all_ro, clauses)

    async def reset(self, key: Key) -> bool:
        """DEL: resets the limit of a key. Returns False if the key did not exist."""
        return await self._send(calls.reset, key)

    async def info(self, key: Key) -> Info | None:
        """RL.INFO: returns the state of a key, which shows why it is limited; None if the key does not exist."""
        return await self._send(calls.info, key)

    async def top(self, count: int = 10, *, reset: bool = False) -> list[TopKey]:
        """RL.TOP: returns the `count` keys with the most denials in the last 10 to 20 minutes, most first. `reset` resets
        the counts.

        In a cluster all nodes are asked, as each counts its own denials.
        """
        return await self._send(calls.top, count, reset=reset)

    async def policies(self) -> list[Policy]:
        """RL.POLICIES: returns the server's policies in the order of their names, with how many calls each allowed and
        denied.

        In a cluster all nodes are asked, and the counts of equal policies are added up.
        """
        return await self._send(calls.policies)
