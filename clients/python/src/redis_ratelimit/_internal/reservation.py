"""The base class of the synchronous reservation and that of asyncio."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from threading import Lock
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeVar, Union

from . import several
from .calls import Call
from .clauses import Clause, Clauses
from .core import DEFAULT_SECONDS
from .limits import WindowLike
from .replies import AllReply, Denied, Id, Lapsed, Reply
from .several import Reserved
from .words import Duration, Key, milliseconds, whole

ReservationType = TypeVar("ReservationType", bound="ReservationBase")

#: How the end of a block settles a reservation, see Limiter.acquire.
Settle = Literal["apply", "release"]

#: The true cost of some work: a quantity, or for several limits their quantities by name.
Cost = Union[int, Mapping[str, int]]

#: The number of renewals in the time of one lease, while work runs.
RENEWALS_PER_LEASE = 3
#: The default of the server's setting ratelimit.lease, which is assumed for reservations without a lease of their own.
DEFAULT_LEASE_MS = 20_000
#: The pauses before each further try of a settlement that no server executed and that nobody waits for.
RETRY_SECONDS = 0.0, 0.05, 0.25, 1.0, 4.0, 15.0
#: The shortest pause between two renewals.
MIN_RENEWAL_MS = 5


logger = logging.getLogger("redis_ratelimit")


class Step(NamedTuple):
    """A part of settling or renewing."""

    #: Returns the names of the limits whose reservation had ended, or whether there was a reservation.
    do: Callable[[], Any]
    #: The names of the limits that it is about.
    names: tuple[str, ...]


class ReservationBase:
    """A reservation of one limit, or the reservations of several limits as one."""

    _make_event: Any

    def __init__(
        self, core: Any, limits: Sequence[Clause], call: Call[Any] | None = None, *, settle: Settle | None = None
    ) -> None:
        """`call` is sent when the context is entered."""
        if settle not in (None, "apply", "release"):
            raise ValueError(f"settle must be 'apply' or 'release', not {settle!r}")
        self._core = core
        self._limits = {limit.name: limit for limit in limits}
        self._call = call
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
        #: The lease, if the program chose it, and when the last renewal that succeeded began.
        self._lease_seconds: float | None = None
        self._renewed_at = 0.0
        #: Set while the block runs if a lease was lost, so that others may take what was reserved: the server said so, or
        #: could not be reached until the lease had ended. A threading.Event; with asyncio an asyncio.Event.
        self.lost = self._make_event()

    @classmethod
    def _for_acquire(
        cls: type[ReservationType],
        core: Any,
        key: Key | Clauses,
        window: WindowLike | None,
        quantity: int,
        *,
        settle: Settle | None,
        options: Mapping[str, Any],
    ) -> ReservationType:
        """Returns what acquire() returns for these arguments. Nothing is sent before the context is entered."""
        call = several.reserve(key, window, quantity, **options)
        if isinstance(key, (str, bytes)):
            assert window is not None  # several.reserve refuses it.
            limits = [Clause.acquire(key, window, lease=options.get("lease"))]
            if settle == "apply" and limits[0]._is_semaphore:
                raise ValueError("settle must not be 'apply' for a semaphore, which is only given back")
            return cls(core, limits, call, settle=settle)
        if settle is not None:
            raise ValueError("settle must be used with a single limit")
        return cls(core, call.reserving, call)

    def _hold(self, reply: Reply) -> None:
        """Stores the reply and the reservations that it made."""
        self._reply = reply
        self._settled, self._costs = False, {}
        self.lost.clear()
        answers: Sequence[Reply] = [reply]
        if isinstance(reply, AllReply):
            answers = reply.answers
            self._fallback_reservation = reply.reservation
            reply._keep_reservation(self if reply.allowed else None)
        self._reserved = [
            Reserved(limit.name, limit.key, answer.id, limit._is_semaphore, self._is_several and limit._is_policy)
            for limit, answer in zip(self._limits.values(), answers, strict=False)
            if answer.id is not None
        ]
        leases = [self._limits[name]._lease_ms for name in self.ids]
        self._renew_within(min((lease or DEFAULT_LEASE_MS for lease in leases), default=0))
        self._lease_seconds = min((lease / 1000 for lease in leases if lease), default=None)
        self._renewed_at = monotonic()

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
            if limit._is_semaphore:
                raise ValueError(f"the limit {name!r} is a semaphore, which is only given back")
            if whole(f"the cost of {name!r}", quantity) < 0:
                raise ValueError(f"the cost of {name!r} must be at least 0, not {quantity}")
        return dict(cost)

    def _steps(self, name: str, lease: Duration | None = None, at_most_seconds: float | None = None) -> list[Step]:
        """Returns what applies, releases or renews all reservations, as `name` says."""
        self._check_entered()
        reserved, core, fallback = self._reserved, self._core, self._fallback_reservation
        names = tuple(each.name for each in reserved)
        if not reserved:
            return []
        if fallback is not None:
            # The fallback settles what it reserved.
            arguments: dict[str, list[Any]] = {"apply": [self._costs], "release": [], "renew": [lease]}
            return [Step(lambda: getattr(fallback, name)(*arguments[name]), names)]
        if self.reply.reachable:
            call = self._call_for(name, lease)
            call.at_most_seconds = at_most_seconds
            return [Step(lambda: core.send(call), ())]
        return [self._step_of_fallback(name, each, lease) for each in reserved]

    def _call_for(self, name: str, lease: Duration | None = None) -> Call[list[str]]:
        """Returns the call that applies, releases or renews all reservations."""
        if name == "apply":
            return several.apply_all(self._reserved, self._costs)
        return several.renew_all(self._reserved, lease) if name == "renew" else several.release_all(self._reserved)

    def _step_of_fallback(self, name: str, each: Reserved, lease: Duration | None) -> Step:
        """Returns what settles or renews a single reservation of the fallback."""
        if name == "apply" and each.is_semaphore:
            name = "release"
        arguments: dict[str, list[Any]] = {"apply": [self._costs.get(each.name)], "release": [], "renew": [lease]}
        return Step(lambda: getattr(self._core.unreachable, name)(each.key, each.id, *arguments[name]), (each.name,))

    def _carry_out(self, steps: list[Step]) -> Any:
        """Takes steps. Returns the names of the limits whose reservation had ended; with asyncio, what returns them."""
        raise NotImplementedError

    def _note_lapsed(self, steps: list[Step], answers: list[Any]) -> list[str]:
        """Returns the names of the limits whose reservation had ended, from the answers of steps."""
        lapsed: list[str] = []
        for step, answer in zip(steps, answers, strict=True):
            lapsed += answer if isinstance(answer, list) else () if answer else step.names
        self.lapsed = tuple(lapsed)
        return lapsed

    def _prepare(self, cost: Cost | None, quantity: Cost | None) -> None:
        """Checks and stores the arguments of apply()."""
        if quantity is not None:
            if cost is not None:
                raise ValueError("cost and quantity must not be used together")
            cost = quantity
        if not self._is_several and next(iter(self._limits.values()))._is_semaphore:
            raise ValueError("apply must not be used for a semaphore, which is only given back")
        if cost is not None:
            self.set(cost)
        self._settled = True

    def _begin_lease(self, lease: Duration | None) -> tuple[float, float]:
        """Prepares a renewal by the program. Returns when it began, and the pause between renewals from its reply on."""
        began = monotonic()
        if lease is None:
            return began, self._renewal_seconds
        before = self._renewal_seconds
        lease_ms = milliseconds("lease", lease, 1)
        self._renew_within(lease_ms)
        after = self._renewal_seconds
        self._lease_seconds = max(self._lease_seconds or 0, lease_ms / 1000)
        # Until the server has replied, either of the two leases may be in force.
        self._renewal_seconds = min(before, after)
        self._begin_renewing()
        return began, after

    def _end_lease(self, began: float, renewal_seconds: float, lapsed: list[str]) -> bool:
        """Records the reply to a renewal by the program. Returns whether all reservations were held."""
        self._renewal_seconds = renewal_seconds
        if not lapsed:
            self._renewed_at = began
        return not lapsed

    def _begin_renewing(self, seconds: float | None = None) -> None:
        """Starts to renew the leases after this time, or the usual pause, if the block runs."""
        if self._is_entered and self._reserved and not self._settled:
            self._renew_later(self._renewal_seconds if seconds is None else seconds)

    def _renewal(self) -> list[Step]:
        # After an error there will be another try before the leases end, so a renewal must not last forever.
        return self._steps("renew", at_most_seconds=min(DEFAULT_SECONDS, self._renewal_seconds))

    def _end_renewal(self, began: float, outcome: list[str] | Exception) -> None:
        """Goes on with renewing unless all leases have ended. `began` is when this renewal began."""
        if self._settled:
            return
        now, lapsed = monotonic(), len(self._reserved)
        if isinstance(outcome, Exception):
            is_lost = self._lease_seconds is not None and now - self._renewed_at >= self._lease_seconds
            lapsed = 0
        else:
            is_lost, lapsed = bool(outcome), len(outcome)
            self._renewed_at = self._renewed_at if outcome else began
        if is_lost and not self.lost.is_set():
            self.lost.set()
            cause = outcome if isinstance(outcome, Exception) else "it had ended"
            logger.warning("a lease of %s was lost while its work ran: %s", self._names(outcome), cause)
        if lapsed < len(self._reserved):
            # The pause begins with this renewal. In a thread, the other renewals on the server wait for it.
            self._begin_renewing(max(0.0, self._renewal_seconds - (now - began)))

    def _renew_later(self, seconds: float) -> None:
        raise NotImplementedError

    def _stop_renewing(self) -> None:
        raise NotImplementedError

    def _begin_block(self) -> None:
        if not self._block.acquire(blocking=False):
            raise RuntimeError("a reservation must not be entered while it is entered: call acquire() for each block")
        self._is_new = False

    def _check_granted(self, reply: Reply) -> None:
        self._hold(reply)
        if not reply.allowed:
            raise Denied(reply, tuple(self._limits.values()))

    def _end_block(self, error: BaseException | None) -> str:
        """Ends the renewals. Returns how the end of the block settles, "apply" or "release"; nothing if the block did."""
        self._is_entered = False
        self._stop_renewing()
        if self._settled:
            return ""
        self._settled = True
        limit = next(iter(self._limits.values()))
        is_semaphore = not self._is_several and limit._is_semaphore
        return "release" if error is not None or self._settle == "release" or is_semaphore else "apply"

    def _is_of_a_semaphore(self, outcome: list[str] | Exception) -> bool:
        """Returns whether a single reservation could not be applied because its policy is a semaphore."""
        limit = next(iter(self._limits.values()))
        if self._is_several or self._settle is not None or self._costs or not limit._is_policy:
            return False
        # The errors of a fallback are those of its own library.
        made_by = self._core if self.reply.reachable else getattr(self._core.unreachable, "_core", self._core)
        # RL.APPLY without a quantity has the code ERR only if the reservation is a semaphore's.
        is_err: bool = isinstance(outcome, Exception) and made_by.library.code(outcome) == "ERR"
        return is_err

    def _names(self, outcome: list[str] | Exception) -> str:
        """Returns the names of the limits whose reservations had ended, or could not be settled or renewed."""
        return ", ".join(map(repr, self.ids if isinstance(outcome, Exception) else outcome))

    def _is_unsent(self, outcome: list[str] | Exception) -> bool:
        """Returns whether a settlement is tried again in the background, because no server executed it."""
        return isinstance(outcome, Exception) and not getattr(outcome, "was_sent", True)

    def _pauses(self) -> Iterator[float]:
        """Returns the pauses before each further try to settle, in seconds, while the leases last: after that others may
        reserve by the same ids."""
        ends_at = self._renewed_at + (self._lease_seconds or DEFAULT_LEASE_MS / 1000)
        return takewhile(lambda seconds: monotonic() + seconds < ends_at, RETRY_SECONDS)

    def _warn_unsettled(self, outcome: list[str] | Exception) -> None:
        if isinstance(outcome, Exception):
            # The lease ends by itself.
            logger.warning("what was reserved of %s could not be settled: %s", self._names(outcome), outcome)

    def _end_retries(self, how: str, outcome: list[str] | Exception) -> None:
        """Warns if what was tried again in the background, which nobody waits for, is not settled."""
        self._warn_unsettled(outcome)
        if how == "apply" and isinstance(outcome, list) and outcome:
            logger.warning("what was reserved of %s had lapsed before it could be applied", self._names(outcome))

    def _check_settled(self, outcome: list[str] | Exception, error: BaseException | None) -> None:
        """Raises what the end of a block raises. `error` is the exception of the block, which is more important."""
        if not outcome or error is not None:
            return
        if not isinstance(outcome, Exception):
            names = self._names(outcome)
            raise Lapsed(
                f"{f'the reservation {self.id!r}' if self.id else f'what was reserved of {names}'} had lapsed when its "
                "work was done"
            )
        if not self._core.is_forgiven(outcome):
            raise outcome
