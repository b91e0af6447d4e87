"""The base class of the synchronous reservation and that of asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any, Literal, TypeVar, Union

from . import calls, several
from .calls import Call
from .clauses import Clause, Clauses
from .core import Core
from .io import DEFAULT_SECONDS, await_if_needed
from .options import ReserveOptions
from .parameters import Duration, Key, WindowLike, milliseconds, whole
from .replies import AllReply, Denied, Id, Lapsed, Reply
from .several import Reserved

ReservationType = TypeVar("ReservationType", bound="ReservationBase")

#: How the end of a block settles a reservation, see Limiter.acquire.
Settle = Literal["apply", "release"]

#: The true cost of some work: a quantity, or for several limits their quantities by name.
Cost = Union[int, Mapping[str, int]]

#: The number of renewals in the time of one lease, while work runs.
RENEWALS_PER_LEASE = 3
#: The default of the server's setting ratelimit.lease, which is assumed for reservations without a lease of their own.
DEFAULT_LEASE_MS = 20_000
#: The shortest pause between two renewals.
MIN_RENEWAL_MS = 5


class ReservationBase:
    """A reservation of one limit, or the reservations of several limits as one."""

    def __init__(
        self,
        core: Core[Any],
        limits: Sequence[Clause],
        call: Call[Any] | None = None,
        args: tuple[Any, ...] = (),
        *,
        kwargs: dict[str, Any] | None = None,
        settle: Settle | None = None,
    ) -> None:
        """`call` is sent when the context is entered. `args` and `kwargs` are the arguments of a fallback's reserve()."""
        if settle not in (None, "apply", "release"):
            raise ValueError(f"settle must be 'apply' or 'release', not {settle!r}")
        self._core = core
        self._limits = {limit.name: limit for limit in limits}
        self._call = call
        self._args = args
        self._kwargs = kwargs or {}
        self._settle = settle
        #: True if the reservations are those of RL.ALL, which are settled as one.
        self._is_several = call is None or bool(call.reserving)
        #: The reservations that were made.
        self._reserved: list[Reserved] = []
        #: The fallback's own reservation of several limits, if the fallback reserved.
        self._fallback_reservation: Any = None
        self._costs: dict[str, int] = {}
        #: The names of the limits whose lease had ended before they were last settled or renewed.
        self.lapsed: tuple[str, ...] = ()
        self._settled = False
        self._reply: Reply | None = None
        #: True until a reservation from acquire() is entered for the first time.
        self._is_new = call is not None
        self._is_entered = False
        #: Locked while the block runs.
        self._block = Lock()
        self._renewal_seconds = 0.0

    @classmethod
    def _for_acquire(
        cls: type[ReservationType],
        core: Core[Any],
        key: Key | Clauses,
        window: WindowLike | None,
        quantity: int,
        *,
        settle: Settle | None,
        options: ReserveOptions,
    ) -> ReservationType:
        """Returns what acquire() returns for these arguments. Nothing is sent before the context is entered."""
        call = several.reserve(key, window, quantity, **options)
        if isinstance(key, (str, bytes)):
            assert window is not None  # several.reserve refuses it.
            limits = [Clause.acquire(key, window)]
            if settle == "apply" and limits[0]._traits.is_semaphore:
                raise ValueError("settle must not be 'apply' for a semaphore, which is only given back")
            return cls(core, limits, call, (key, window), kwargs={"quantity": quantity, **options}, settle=settle)
        if settle is not None:
            raise ValueError("settle must be used with a single limit")
        return cls(core, call.reserving, call, (key,))

    def _hold(self, reply: Reply) -> None:
        """Stores the reply and the reservations that it made."""
        self._reply = reply
        self._settled, self._costs = False, {}
        answers: Sequence[Reply] = [reply]
        if isinstance(reply, AllReply):
            answers = reply.answers
            self._fallback_reservation = reply.reservation
            reply._keep_reservation(self if reply.allowed else None)
        self._reserved = [
            Reserved(limit.name, limit.key, answer.id, limit._traits.is_semaphore, limit._is_policy)
            for limit, answer in zip(self._limits.values(), answers, strict=False)
            if answer.id is not None
        ]
        self._renew_within(
            min((self._limits[name]._traits.lease_ms or DEFAULT_LEASE_MS for name in self.ids), default=0)
        )

    def _renew_within(self, lease_ms: int) -> None:
        self._renewal_seconds = max(lease_ms / RENEWALS_PER_LEASE, MIN_RENEWAL_MS) / 1000

    def _check_entered(self) -> None:
        if self._is_new:
            raise RuntimeError(
                "acquire() reserves at the start of a block: use `with limiter.acquire(..) as job:`, with asyncio "
                "`async with`, or reserve() without a block"
            )

    @property
    def reply(self) -> Reply:
        """The reply of RL.ACQUIRE or RL.ALL. Raises RuntimeError before the block, because nothing was sent yet."""
        self._check_entered()
        if self._reply is None:
            raise RuntimeError("there is no reply, because reserving failed with an error")
        return self._reply

    @property
    def id(self) -> Id | None:
        """The id of a single reservation. None if nothing is reserved: the quantity is 0, the SHADOW of a policy allowed the
        call, or Redis could not be reached and no limiter decided in its place."""
        return self.reply.id

    @property
    def ids(self) -> dict[str, Id]:
        """The ids of all reservations, by the names of their limits."""
        return {each.name: each.id for each in self._reserved}

    def set(self, cost: Cost) -> None:
        """Sets what was really used, which counts when the block ends. A later call replaces what an earlier one set for the
        same limit. Raises RuntimeError before the block.

        For several limits, `cost` maps their names to what was used. For a limit that no call names, all that was reserved
        counts.
        """
        costs = self._checked_costs(cost)
        self._check_entered()
        self._costs.update(costs)

    def _checked_costs(self, cost: Cost) -> dict[str, int]:
        if not isinstance(cost, Mapping):
            if len(self._limits) > 1:
                raise TypeError(f"the cost of several limits must be a quantity for each name, not {cost!r}")
            cost = dict.fromkeys(self._limits, cost)
        for name, quantity in cost.items():
            limit = self._limits.get(name)
            if limit is None:
                raise ValueError(f"there is no limit {name!r}, but {', '.join(map(repr, self._limits))}")
            if not limit._reserves:
                raise ValueError(f"the limit {name!r} reserves nothing: it was counted when it was asked")
            if limit._traits.is_semaphore:
                raise ValueError(f"the limit {name!r} is a semaphore, which is only given back")
            if whole(f"the cost of {name!r}", quantity) < 0:
                raise ValueError(f"the cost of {name!r} must be at least 0, not {quantity}")
        return dict(cost)

    async def _settle_or_renew(
        self, name: str, lease: Duration | None = None, at_most_seconds: float | None = None
    ) -> list[str]:
        """Applies, releases or renews all reservations, as `name` says. Returns the names of the limits whose reservation
        had ended."""
        self._check_entered()
        reserved = self._reserved
        if not reserved:
            return []
        fallback = self._fallback_reservation
        if not self._is_several or not (self.reply.reachable or fallback):
            return [each.name for each in reserved if not await self._settle_or_renew_one(name, each, lease)]
        if fallback is not None:
            # The fallback settles what it reserved.
            arguments: dict[str, list[Any]] = {"apply": [self._costs], "release": [], "renew": [lease]}
            return [] if await await_if_needed(getattr(fallback, name)(*arguments[name])) else list(self.ids)
        call = self._call_for(name, lease)
        call.at_most_seconds = at_most_seconds
        lapsed: list[str] = await self._core.send(call)
        return lapsed

    def _call_for(self, name: str, lease: Duration | None = None) -> Call[list[str]]:
        """Returns the call that applies, releases or renews all reservations."""
        if name == "apply":
            return several.apply_all(self._reserved, self._costs)
        return several.renew_all(self._reserved, lease) if name == "renew" else several.release_all(self._reserved)

    async def _settle_or_renew_one(self, name: str, each: Reserved, lease: Duration | None) -> bool:
        """Applies, releases or renews one reservation, through the fallback if that made it. Returns whether it was held."""
        if name == "apply" and self._is_several and each.is_semaphore:
            name = "release"
        arguments: dict[str, list[Any]] = {"apply": [self._costs.get(each.name)], "release": [], "renew": [lease]}
        args = each.key, each.id, *arguments[name]
        if self.reply.reachable:
            call: Call[Any] = getattr(calls, name)(*args)
            return bool(await self._core.send(call, name, args, {}) == 1)
        return bool(await await_if_needed(getattr(self._core.unreachable, name)(*args)) == 1)

    async def _apply(self, cost: Cost | None, quantity: Cost | None) -> bool:
        if quantity is not None:
            if cost is not None:
                raise ValueError("cost and quantity must not be used together")
            cost = quantity
        if not self._is_several and next(iter(self._limits.values()))._traits.is_semaphore:
            raise ValueError("apply must not be used for a semaphore, which is only given back")
        if cost is not None:
            self.set(cost)
        self._settled = True
        return not await self._note_lapsed("apply")

    async def _release(self) -> bool:
        self._settled = True
        return not await self._note_lapsed("release")

    async def _note_lapsed(self, name: str, lease: Duration | None = None) -> tuple[str, ...]:
        self.lapsed = tuple(await self._settle_or_renew(name, lease))
        return self.lapsed

    async def _renew(self, lease: Duration | None) -> bool:
        if lease is None:
            return not await self._note_lapsed("renew")
        before = self._renewal_seconds
        self._renew_within(milliseconds("lease", lease, 1))
        after = self._renewal_seconds
        # Until the server has replied, either of the two leases may be in force.
        self._renewal_seconds = min(before, after)
        self._begin_renewing()
        is_held = not await self._note_lapsed("renew", lease)
        self._renewal_seconds = after
        return is_held

    async def _renew_while_work_runs(self) -> None:
        """Restarts the leases, and goes on with that unless all have ended."""
        if self._settled:
            return
        # After an error there will be another try before the leases end. So a renewal may not last forever either, and
        # the pause until the next one begins with this one. In a thread, the other renewals on the server wait for it.
        began = monotonic()
        lapsed: Sequence[str] = ()
        with suppress(Exception):
            lapsed = await self._settle_or_renew("renew", at_most_seconds=min(DEFAULT_SECONDS, self._renewal_seconds))
        if len(lapsed) < len(self._reserved):
            self._begin_renewing(began)

    async def _enter(self) -> None:
        if not self._block.acquire(blocking=False):
            raise RuntimeError("a reservation must not be entered while it is entered: call acquire() for each block")
        self._is_new = False
        try:
            if self._call is not None:
                self._hold(await self._core.send(self._call, "reserve", self._args, self._kwargs))
                if not self.reply.allowed:
                    raise Denied(self.reply)
            self._is_entered = True
            try:
                self._begin_renewing()
            except RuntimeError as error:
                # No thread can be started.
                await self._settle_at_the_end(error)
                raise
        except BaseException:
            self._block.release()
            raise

    def _begin_renewing(self, last: float | None = None) -> None:
        """Starts to renew the leases of several limits, if the block runs. `last` is when the last renewal began, by the
        monotonic clock."""
        if self._is_entered and self._is_several and self._reserved and not self._settled:
            passed = 0.0 if last is None else monotonic() - last
            self._renew_later(max(0.0, self._renewal_seconds - passed))

    def _renew_later(self, seconds: float) -> None:
        raise NotImplementedError

    def _stop_renewing(self) -> None:
        raise NotImplementedError

    async def _settle_after_success(self) -> list[str]:
        limit = next(iter(self._limits.values()))
        is_sure = self._is_several or self._settle is not None
        self._settled = True
        if self._settle == "release" or (not is_sure and limit._traits.is_semaphore):
            return await self._settle_or_renew("release")
        # The errors of a fallback are those of its own library.
        made_by = self._core if self.reply.reachable else getattr(self._core.unreachable, "_core", self._core)
        library = made_by.library
        try:
            return await self._settle_or_renew("apply")
        except library.reply_error as error:
            # RL.APPLY without a quantity has the code ERR only if the reservation is a semaphore's.
            if is_sure or self._costs or not limit._is_policy or library.code(error) != "ERR":
                raise
            return await self._settle_or_renew("release")

    async def _exit(self, error: BaseException | None) -> None:
        try:
            await self._settle_at_the_end(error)
        finally:
            self._block.release()

    async def _settle_at_the_end(self, error: BaseException | None) -> None:
        self._is_entered = False
        self._stop_renewing()
        if self._settled:
            return
        try:
            if error is None:
                lapsed = await self._settle_after_success()
            else:
                await self._release()
                return
        except Exception as failure:
            # The exception of the block is more important, and the lease ends by itself.
            if error is not None or self._core.is_forgiven(failure):
                return
            raise
        if lapsed:
            which = (
                f"the reservation {self.id!r}" if self.id else f"what was reserved of {', '.join(map(repr, lapsed))}"
            )
            raise Lapsed(f"{which} had lapsed when its work was done")


class AsyncReservationMethods(ReservationBase):
    """The methods of the reservation for asyncio. Those of the synchronous one are made from them."""

    async def apply(self, cost: Cost | None = None, *, quantity: Cost | None = None) -> bool:
        """Settles the reservation now: counts what was reserved, or what was really used, which is `cost`. Returns False if
        the lease had ended or it was settled before.

        For several limits, `cost` maps their names to what was used. For a limit that it does not name, all that was
        reserved counts. A semaphore is released. `quantity` is another name of `cost`.
        """
        return await self._core.settle(self._apply(cost, quantity))

    async def release(self) -> bool:
        """Gives the reservation back now. Returns False if the lease had ended or it was settled before."""
        return await self._core.settle(self._release())

    async def renew(self, lease: Duration | None = None) -> bool:
        """Restarts the lease. Returns False if it has ended or the reservation was settled."""
        return await self._renew(lease)
