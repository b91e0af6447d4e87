"""The leases of one key: the batches that a process has reserved of a limit, how it spends them, and how it settles them.
This file does no I/O and starts no threads, see local.py.

A batch is a reservation with COUNTLAPSED. The server holds it until it is settled, and counts all of it if its lease ends
first. So it can be spent without the server while the lease lasts. Whatever a process has not settled when it dies counts
as spent, so no period ever has more than the limit.

    reserve        spend, without the server        settle
    |--------------------------------------|---|
    ACQUIRE 20     take take take .. take    ^   APPLY 17
                                             the margin: the lease ends on the server, not here

The states of a batch:

    requested ---granted---> held ---spent, ended or idle---> settling ---answered---> gone
        |                                                      |    ^
        | no reply                                    no reply |    | after RETRY_SECONDS
        v                                                      +----+
      lost ---released twice---> gone

- Requested: RL.ACQUIRE is in the round that is under way.
- Held: it is in _batches, oldest first, and take() spends it.
- Settling: it is in _settling, or in the round that is under way. RL.APPLY counts what was spent; RL.RELEASE is sent if that
  is nothing. If the reply is 0 although the reservation cannot have ended, the server has lost the reservation, and
  RL.WINDOW with FORCE counts what was spent. After close(), a settlement is given up if the server refuses it or does not
  answer CLOSE_TRIES rounds. Then the batch counts when its lease ends.
- Lost: it is in _lost. The server may have executed the RL.ACQUIRE, or may still do so. So RL.RELEASE is sent now, and again
  LOST_SECONDS after the end of the lease.

Invariants: a unit is spent only if the clock, read first, says that the lease lasts. A batch leaves _batches before it is
settled, so nothing more is spent of it. Each RL.APPLY of a batch has the same quantity.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from math import ceil, exp
from threading import Lock
from typing import Any, NamedTuple, Union

from .options import option_words
from .parameters import (
    Duration,
    Key,
    Window,
    WindowLike,
    Word,
    is_semaphore,
    limit_words,
    milliseconds,
    period_ms,
    whole,
)
from .replies import (
    Closed,
    Reply,
    UnexpectedReply,
    make_reply,
    read,
    read_id,
    read_id_and_granted,
    read_is_found,
    read_reply,
)

#: The shortest lease. As leases are given up early, too little would be left of a shorter one.
MIN_LEASE_MS = 20
#: The longest that a denial is remembered.
DENIAL_SECONDS = 0.1
#: The pause between a settlement that got no reply and the next try.
RETRY_SECONDS = 0.1
#: A reservation whose reply was lost is released at once, and again this long after its lease, as the command may have been
#: executed in between.
LOST_SECONDS = 1.0
#: The part at the end of a lease that is not used, and its least length. It allows for clocks that differ in speed.
MARGIN = 0.1
MIN_MARGIN_SECONDS = 0.002
#: The next batch is fetched this many round trips plus this many seconds before it is needed, but no earlier than this part
#: of a lease.
AHEAD_ROUND_TRIPS = 2
AHEAD_SECONDS = 0.002
MAX_AHEAD = 0.25
#: The number of rounds after close() that may fail. Then nothing more is sent.
CLOSE_TRIES = 3
#: A take fails after this many batches in a row that arrived when their leases were over.
MAX_LATE = 3


def batch_size(expected: float, needed: int, limit: int | None, reservations: int) -> int:
    """Returns the quantity of the next batch: what is `expected` to be spent within half a lease, and at least what is
    `needed`.

    Apart from what is needed, it is at most the limit, and at most twice the limit divided by the `reservations` in the key.
    Before the first reply (`limit` is None) that number is unknown, and only what is needed is reserved.
    """
    if limit is None:
        return max(1, needed)
    return max(1, needed, min(ceil(expected), 2 * limit // max(1, reservations), limit))


class Batch:
    """A reservation that the process spends."""

    __slots__ = ("granted", "id", "left", "low", "tried", "until", "wall_until")

    def __init__(self, id: str | None, granted: int, until: float, wall_until: float, low: int) -> None:
        #: The id of the reservation. None: nothing is reserved, because the policy is in shadow and allows everything.
        self.id = id
        self.granted = granted
        self.left = granted
        #: The times when the process stops spending it, by the monotonic and by the wall clock.
        self.until = until
        self.wall_until = wall_until
        #: The next batch is fetched when no more than this is left.
        self.low = low
        #: True if its settlement was sent but not answered.
        self.tried = False

    @property
    def spent(self) -> int:
        return self.granted - self.left

    def has_ended(self, now: float, wall: float) -> bool:
        """Returns whether the batch has ended. By the wall clock, a later batch may end before an earlier one."""
        return now >= self.until or wall >= self.wall_until


class LostReservation(NamedTuple):
    """A reservation that may have been made, as its reply was lost. It is released twice."""

    id: str
    #: The time of the second release; None before the first.
    again_at: float | None = None


class Request(NamedTuple):
    """A reservation to make."""

    id: str
    quantity: int
    #: The part of the quantity that a take waits for.
    needed: int
    #: True if less than all would not help. A denial then says when all is available.
    exactly: bool = False


class ForcedCount(NamedTuple):
    """The quantity that was spent of a reservation which the server has lost. It is counted with FORCE."""

    quantity: int


Item = Union[LostReservation, Batch, ForcedCount, Request]


class Round(NamedTuple):
    """Commands to send together, one for each item."""

    sent_at: float
    wall_sent_at: float
    items: list[Item]
    commands: list[tuple[Word, ...]]


def _read_reply_to(item: Item, words: tuple[Word, ...], reply: Any) -> Any:
    """Reads the reply to the command of an item. Returns an error as it is."""
    if isinstance(reply, Exception):
        return reply
    reader: Callable[[Any], Any] = read_is_found
    if isinstance(item, Request):
        reader = read_id if item.exactly else read_id_and_granted
    elif isinstance(item, ForcedCount):
        reader = read_reply
    return read(reader, words, reply)


class Demand:
    """The demand for a limit, as a moving average over a lease."""

    def __init__(self, lease: float, now: float) -> None:
        self._lease = lease
        #: The average, in units for each second.
        self.rate = 0.0
        self._updated_at = now
        #: The quantity that was asked for since the last update.
        self.asked = 0
        #: The time of the last take.
        self.asked_at = float("-inf")

    def update(self, now: float) -> None:
        """Brings the average up to date."""
        # A test may set its clock back.
        passed = max(0.0, now - self._updated_at)
        kept = exp(-passed / self._lease)
        self.rate = self.rate * kept + (self.asked * (1 - kept) / passed if passed else self.asked / self._lease)
        self.asked = 0
        self._updated_at = now


class Denial(NamedTuple):
    """A denial while it is remembered."""

    reply: Reply
    #: The least quantity, in addition to what is held, that was denied.
    short: int
    at: float
    until: float


class Leases:
    """The batches of one key. The lock must be held when a method is called, except for start_over(), take() and
    outrun_reply(), which must be called without it. is_settled may be read without it.

    A caller tries take(). If that returns None, the caller calls want() and tries again after the next round. The thread or
    task that does the I/O sends what next_round() returns and reports the outcome with receive() or fail(), until
    next_round() returns None. Then it waits until next_at() or until wake() is called.
    """

    def __init__(
        self,
        key: Key,
        window: WindowLike,
        lease: Duration,
        leave: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"a key must be str or bytes, not {key!r}")
        limit_words(window, Window)
        if is_semaphore(window):
            raise ValueError("a lease is of a window, and not of a semaphore: the period must not be 0")
        lease_ms = milliseconds("lease", lease, MIN_LEASE_MS)
        if whole("leave", leave) < 0:
            raise ValueError(f"leave must be at least 0, not {leave}")
        self.key = key
        self.window = window
        self.leave = leave
        self.lease_ms = lease_ms
        self.lease = lease_ms / 1000
        #: The clocks. A test may replace both.
        self.monotonic = clock or time.monotonic
        self.wall = clock or time.time
        #: Called when next_round() has something to do, with the lock held. It must not block.
        self.wake: Callable[[], None] = lambda: None
        #: Returns the code of an error reply.
        self.code: Callable[[Exception], str | None] = lambda _: None
        #: The class of the error of a take whose batches arrive too late.
        self.late_error: type[Exception] = TimeoutError
        self._spendable_seconds = self.lease - max(self.lease * MARGIN, MIN_MARGIN_SECONDS)
        # In a fixed window, a lapsed reservation may leave as early as the end of its lease.
        least_ms = period_ms(window.period, least=True) if isinstance(window, Window) else None
        calendar = isinstance(window, Window) and window.fixed and (window.start or "").lower() != "first"
        #: A reservation cannot have ended by itself within this time after it was asked for.
        self.held_seconds = self.lease + (0.0 if calendar else (least_ms or 0) / 1000)
        self.start_over()

    def start_over(self) -> None:
        """Forgets everything, because it belongs to another process."""
        self.lock = Lock()
        self.pid = os.getpid()
        self._prefix = secrets.token_hex(12)
        self._requests = 0
        self._batches: deque[Batch] = deque()
        #: The batches to settle.
        self._settling: list[Batch] = []
        self._lost: list[LostReservation] = []
        self._forced: list[ForcedCount] = []
        #: The largest quantity of a take that waits for the server.
        self._wanted = 0
        #: The quantity that a take still lacks after the server has granted less than it needs.
        self._short = 0
        self._closing = False
        #: True once the server has said that the policy is a semaphore. From then on nothing is reserved.
        self._is_semaphore = False
        #: Increases each time that waiting takes should try again.
        self.rounds = 0
        #: The number of rounds that may still fail after close().
        self._tries_left = CLOSE_TRIES
        #: True if what was to be settled was given up, because the server did not answer after close(). It counts when its
        #: lease ends.
        self.has_given_up = False
        #: The last error, and the round in which it occurred. A thread that waited for that round may read it a round later.
        self.error: Exception | None = None
        self._error_round = 0
        #: The last error reply to a settlement that was given up because of it after close(). What was to be settled counts
        #: when its lease ends.
        self.refused: Exception | None = None
        self._under_way = False
        self._retry_at = float("-inf")
        self._demand = Demand(self.lease, self.monotonic())
        self._round_trip_seconds = 0.001
        #: True if the server last granted less than was asked for. Then nothing is fetched ahead.
        self._is_full = False
        #: The number of batches in a row that arrived when their leases were over.
        self._late = 0
        self._denial: Denial | None = None
        # From the server's last reply: the limit, the reservations in the key, and what is available beyond those.
        self._limit: int | None = None
        self._reservations = 1
        self._remaining = 0
        self._reset_ms = 0
        #: Until this time the limit of a policy is taken from the last reply. Later it may have been changed.
        self._limit_until = float("-inf")

    # Spending.

    def take(self, quantity: int, is_counted: bool = False) -> Reply | None:
        """Returns a decision; None if the server must be asked. Counts the quantity as demand, unless want() did."""
        with self.lock:
            # The clock is read with the lock held, so that nothing is settled before the decision.
            now = self.monotonic()
            demand = self._demand
            demand.asked_at = now
            batches = self._batches
            if batches:
                batch = batches[0]
                if quantity <= batch.left and now < batch.until and self.wall() < batch.wall_until:
                    if not is_counted:
                        demand.asked += quantity
                    left = batch.left = batch.left - quantity
                    if left <= batch.low:
                        self._refill(batch)
                    return make_reply(0, self._limit or 0, self._remaining + left, None, self._reset_ms)
            reply = self._take_slowly(quantity, now)
            if reply is not None and not is_counted:
                self._count(quantity, now)
            return reply

    def _refill(self, batch: Batch) -> None:
        """Settles a batch if it is spent, and wakes the thread or task that fetches the next one."""
        if batch.left == 0:
            self._batches.popleft()
            self._settle(batch)
        self.wake()

    def _refuse_semaphore(self) -> None:
        if self._is_semaphore:
            raise ValueError(f"a lease is of a window, and {self.window!r} is a semaphore")

    def _take_slowly(self, quantity: int, now: float) -> Reply | None:
        self._refuse_semaphore()
        if self._drop_ended(now):
            self.wake()
        left = self._left()
        if quantity <= left:
            rest = quantity
            while rest:
                batch = self._batches[0]
                taken = min(rest, batch.left)
                batch.left -= taken
                rest -= taken
                if batch.left <= batch.low:
                    self._refill(batch)
            return Reply(0, self._limit or 0, self._remaining + left - quantity, None, self._reset_ms)
        if self._is_too_much(quantity, now):
            limit = self.window.limit if isinstance(self.window, Window) else self._limit or 0
            return Reply(1, limit, self._remaining + left, None, self._reset_ms)
        denial = self._denial
        if denial is not None and now < denial.until and quantity - left >= denial.short:
            return self._denied(denial, quantity, left, now)
        return None

    def _denied(self, denial: Denial, quantity: int, left: int, now: float) -> Reply:
        """Returns the reply to a take by a remembered denial, while `left` is held."""
        reply = denial.reply
        passed_ms = int((now - denial.at) * 1000)
        retry_ms = reply.retry_after_ms
        if retry_ms is not None:
            retry_ms = None if quantity + self.leave > reply.limit else max(1, retry_ms - passed_ms)
        return Reply(reply.limited, reply.limit, left, retry_ms, max(0, reply.reset_after_ms - passed_ms))

    def _left(self) -> int:
        return sum(batch.left for batch in self._batches)

    def _is_too_much(self, quantity: int, now: float) -> bool:
        """Returns whether a take can never be allowed."""
        limit = self._limit if now < self._limit_until else None
        if isinstance(self.window, Window):
            limit = self.window.limit
        return limit is not None and quantity + self.leave > limit

    def _count(self, quantity: int, now: float) -> None:
        # A quantity that can never be allowed must not make batches larger.
        if not self._is_too_much(quantity, now):
            self._demand.asked += quantity

    def _drop_ended(self, now: float) -> bool:
        """Stops spending the batches that have ended. Returns whether there were any."""
        if not self._batches:
            return False
        wall = self.wall()
        ended = [batch for batch in self._batches if batch.has_ended(now, wall)]
        for batch in ended:
            self._batches.remove(batch)
            self._settle(batch)
        return bool(ended)

    def _settle(self, batch: Batch) -> None:
        if batch.id is not None:
            self._settling.append(batch)

    def want(self, quantity: int, is_counted: bool = False) -> int:
        """Records that a take waits for the server. Returns the value of `rounds` at which it tries again."""
        if self._closing:
            raise Closed("the limit in the process is closed")
        self._refuse_semaphore()
        if not is_counted:
            self._count(quantity, self.monotonic())
        self._wanted = max(self._wanted, quantity)
        self.wake()
        return self.rounds + 1

    def outrun_reply(self) -> Reply:
        """Returns the reply to a take whose batches were always spent by others."""
        return Reply(2, self._limit or 0, 0, 1, self._reset_ms)

    def close(self) -> None:
        """Starts to settle what is held. From then on nothing more is reserved."""
        self._closing = True
        if self.is_settled:
            return
        self._retry_at = float("-inf")
        self._end_round()
        self.wake()

    @property
    def is_settled(self) -> bool:
        """True if nothing is held, and no round is under way."""
        return not (self._batches or self._settling or self._lost or self._forced or self._under_way)

    # Rounds.

    def _ahead_seconds(self) -> float:
        return min(AHEAD_ROUND_TRIPS * self._round_trip_seconds + AHEAD_SECONDS, self.lease * MAX_AHEAD)

    def next_round(self) -> Round | None:
        """Returns what to send now; None if there is nothing to send."""
        now, wall = self.monotonic(), self.wall()
        self._demand.update(now)
        self._drop_ended(now)
        is_idle = now - self._demand.asked_at >= self.lease
        if self._closing or (is_idle and not self._wanted):
            while self._batches:
                self._settle(self._batches.popleft())
        request = self._next_request(now, is_idle)
        items: list[Item] = []
        if request is not None or now >= self._retry_at:
            items += [lost for lost in self._lost if self._closing or lost.again_at is None or now >= lost.again_at]
            items += [*self._settling, *self._forced]
        if request is not None:
            items.append(request)
        if not items:
            self._end_round()
            return None
        self._settling = []
        self._forced = []
        self._lost = [lost for lost in self._lost if lost not in items]
        self._wanted = 0
        self._under_way = True
        return Round(now, wall, items, [self._command(item) for item in items])

    def _command(self, item: Item) -> tuple[Word, ...]:
        if isinstance(item, LostReservation):
            return "RL.RELEASE", self.key, item.id
        if isinstance(item, Batch):
            assert item.id is not None
            return ("RL.APPLY", self.key, item.id, item.spent) if item.spent else ("RL.RELEASE", self.key, item.id)
        words = (self.key, *limit_words(self.window, Window), item.quantity)
        if isinstance(item, ForcedCount):
            return ("RL.WINDOW", *words, *option_words(self.window, force=True), "MS")
        options = option_words(self.window, leave=self.leave, lease=self.lease_ms, id=item.id, atmost=not item.exactly)
        return ("RL.ACQUIRE", *words, *options, "COUNTLAPSED", "MS")

    def _end_round(self) -> None:
        # A take that still waits now finds what it needs, or will not get it.
        if self._wanted:
            self._wanted = 0
            self.error = None
            self.rounds += 1

    def _next_request(self, now: float, is_idle: bool) -> Request | None:
        """Returns the reservation to request now, if any."""
        if self._closing or self._is_semaphore:
            return None
        left = self._left()
        if self._wanted <= left:
            return self._request(0) if self._is_needed_soon(left, now, is_idle) else None
        if self._limit is not None and self._wanted + self.leave > self._limit:
            # The limit is that of a policy, which may have been raised.
            return self._request(self._wanted, exactly=True)
        is_rest, self._short = self._short > 0, 0
        return self._request(self._wanted - left, exactly=is_rest)

    def _is_needed_soon(self, left: int, now: float, is_idle: bool) -> bool:
        """Returns whether to fetch the next batch while the last one is being spent."""
        denied_until = float("-inf") if self._denial is None else self._denial.until
        if is_idle or self._expected() < 1 or self._is_full or now < max(denied_until, self._retry_at):
            return False
        soon = self._ahead_seconds()
        ends = max((batch.until for batch in self._batches), default=now)
        return left <= self._low() or ends - now <= soon

    def _low(self) -> int:
        """Returns the quantity that is expected to be spent until the next batch arrives."""
        return int(self._demand.rate * self._ahead_seconds())

    def _expected(self) -> float:
        """Returns the quantity that is expected to be asked for within half a lease."""
        return self._demand.rate * self.lease / 2

    def _request(self, needed: int, exactly: bool = False) -> Request:
        self._requests += 1
        size = needed if exactly else batch_size(self._expected(), needed, self._limit, self._reservations)
        return Request(f"{self._prefix}-{self._requests}", size, needed, exactly)

    def next_at(self) -> float | None:
        """Returns when next_round() will have something to do even if nothing is taken; None if never."""
        now = self.monotonic()
        times = [self._retry_at if lost.again_at is None else lost.again_at for lost in self._lost]
        if self._settling or self._forced:
            times.append(max(now, self._retry_at))
        if self._batches:
            # By the wall clock a batch may end earlier. Then take() notices it and spends no more.
            ends = [batch.until for batch in self._batches]
            soon = max(ends) - self._ahead_seconds()
            times += [min(ends), self._demand.asked_at + self.lease, *([soon] if soon > now else [])]
        return min(times, default=None)

    # The outcome of a round.

    def receive(self, round_: Round, replies: list[Any]) -> None:
        """Reads the replies to a round, some of which may be errors. If one cannot be read, all count as lost."""
        try:
            replies = [_read_reply_to(*each) for each in zip(round_.items, round_.commands, replies, strict=True)]
        except UnexpectedReply as error:
            self.fail(round_, error, True)
            return
        now = self.monotonic()
        self._round_trip_seconds += (now - round_.sent_at - self._round_trip_seconds) / 8
        if isinstance(round_.items[-1], Request):
            self.error = None
        for item, reply in zip(round_.items, replies, strict=True):
            if isinstance(reply, Exception):
                self._keep_error(reply)
                if isinstance(item, Batch):
                    self._keep_refused(item, reply, now)
                elif self._closing and not isinstance(item, Request):
                    self.refused = reply
            elif isinstance(item, LostReservation):
                if not reply and item.again_at is None:
                    self._lost.append(LostReservation(item.id, now + self.lease + LOST_SECONDS))
            elif isinstance(item, Batch):
                if not reply and item.spent and not item.tried and self._is_held(item, now):
                    self._forced.append(ForcedCount(item.spent))
            elif isinstance(item, Request):
                self._read(round_, item, reply, now)
        if self._is_semaphore:
            # A semaphore's reservations can only be released.
            self._lost += [
                LostReservation(batch.id) for batch in (*self._batches, *self._settling) if batch.id is not None
            ]
            self._batches.clear()
            self._settling = []
        self._finish_round()

    def _is_held(self, batch: Batch, now: float) -> bool:
        """Returns whether the reservation of a batch cannot have ended by itself."""
        margin = self.held_seconds - self._spendable_seconds
        return now < batch.until + margin and self.wall() < batch.wall_until + margin

    def _keep_refused(self, batch: Batch, error: Exception, now: float) -> None:
        """Handles an error reply to a settlement."""
        if isinstance(self.window, str) and self.code(error) == "ERR":
            # A correct RL.APPLY has the code ERR only if the reservation is a semaphore's.
            self._is_semaphore = True
            self._settling.append(batch)
        elif not batch.spent:
            assert batch.id is not None
            self._lost.append(LostReservation(batch.id))
        elif self._closing:
            self.refused = error
        elif self._is_held(batch, now):
            # The server may have just become a replica, for example. What was spent is not given back: it is settled
            # later, or the server counts it when the lease has ended.
            self._settling.append(batch)
            self._retry_at = now + RETRY_SECONDS

    def _read(self, round_: Round, request: Request, reply: Reply, now: float) -> None:
        """Reads the reply to a request."""
        granted = (request.quantity if reply.allowed else 0) if request.exactly else reply.granted or 0
        self._limit = reply.limit
        self._limit_until = now + DENIAL_SECONDS
        if not request.exactly:
            self._reservations = max(1, reply.reservations or 0)
        self._remaining = reply.remaining
        self._reset_ms = reply.reset_after_ms
        self._is_full = granted < request.quantity
        # A take that got less than it needs then asks for exactly the rest.
        self._short = max(0, request.needed - granted) if granted else 0
        if not reply.allowed:
            # With ATMOST, a denial means that not even one unit is available.
            short = request.quantity if request.exactly else 1
            retry = DENIAL_SECONDS if reply.retry_after_ms is None else reply.retry_after_ms / 1000
            self._denial = Denial(reply, short, now, now + min(DENIAL_SECONDS, retry))
        elif granted:
            self._hold(round_, request, reply, granted, now)

    def _hold(self, round_: Round, request: Request, reply: Reply, granted: int, now: float) -> None:
        batch = Batch(
            None if reply.id is None else request.id,
            granted,
            round_.sent_at + self._spendable_seconds,
            round_.wall_sent_at + self._spendable_seconds,
            0 if self._is_full else min(granted - 1, self._low()),
        )
        self._denial = None
        self._late = self._late + 1 if batch.has_ended(now, self.wall()) else 0
        if self._late == MAX_LATE:
            self._late = 0
            self._keep_error(self.late_error(f"no batch arrived within its lease of {self.lease_ms} ms"))
        if self._is_too_much(request.needed, now):
            # It was reserved for a take that can never be allowed.
            self._settle(batch)
            return
        for each in self._batches:
            each.low = 0
        self._batches.append(batch)

    def fail(self, round_: Round, error: Exception, is_sent: bool) -> None:
        """Records that a round got no replies. `is_sent` is true if the server may have received it."""
        self._keep_error(error)
        self._retry_at = self.monotonic() + RETRY_SECONDS
        for item in round_.items:
            if isinstance(item, Batch):
                item.tried = item.tried or is_sent
                self._settling.append(item)
            elif isinstance(item, LostReservation):
                self._lost.append(item)
            elif isinstance(item, ForcedCount):
                # If it was sent, it may have been counted.
                if not is_sent:
                    self._forced.append(item)
            elif is_sent:
                self._lost.append(LostReservation(item.id))
        if self._closing:
            self._tries_left -= 1
            if self._tries_left == 0:
                self._give_up()
        self._finish_round()

    def _give_up(self) -> None:
        self.has_given_up = True
        self._settling, self._lost, self._forced = [], [], []

    def _keep_error(self, error: Exception) -> None:
        self.error, self._error_round = error, self.rounds + 1

    def error_since(self, awaited: int) -> Exception | None:
        """Returns the last error, if it occurred in the round `awaited` or later."""
        return self.error if self._error_round >= awaited else None

    def _finish_round(self) -> None:
        self._under_way = False
        self.rounds += 1
