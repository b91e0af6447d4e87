"""The limiter for asyncio: the twin of redis_ratelimit, with the same names."""

from __future__ import annotations

from asyncio import Semaphore, wait_for
from asyncio import TimeoutError as AsyncTimeoutError
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, TypeVar

from . import calls
from .calls import Call, Clause, Key
from .connections import (
    Client,
    Unreachable,
    is_cluster,
    most_connections,
    out_of_reach,
    own_client,
    refuse_short_timeout,
    socket_timeout,
)
from .limits import Duration, RateLike, WindowLike
from .replies import AllReply, Busy, Denied, Held, Id, Lapsed, Reply

T = TypeVar("T")


class Limiter:
    """Asks limits of a server with redis-ratelimit.

    The limiter opens connections of its own, with the settings of `client`, that never send a call twice. `deadline` is
    the longest that a call takes, in seconds; None keeps the time-outs of `client`. A call with block= takes that much
    longer. When as many calls run as there are connections (50, or the max_connections of `client`), others wait as
    long for one, and then raise Busy: Redis is there, so a flood is not let through. `unreachable` says what a call
    answers while Redis cannot be reached: "raise" the error, "allow" or "deny". Error replies are always raised. A
    cancelled call hangs up, and takes nothing if it still waits.

    A RedisCluster is used as it is, with its own retries.
    """

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: float | None = None) -> None:
        self._unreachable = unreachable
        self._cluster = is_cluster(client)
        self._client: Any = client
        self._deadline = deadline
        if not self._cluster:
            # Time is kept here, so that a call that waits may have more of it than its connection has.
            self._deadline = socket_timeout(client) if deadline is None else deadline
            self._client = own_client(client, ".asyncio", socket_timeout=None)
            self._places = Semaphore(most_connections(client))

    async def aclose(self) -> None:
        """Closes the limiter's own connections."""
        if not self._cluster:
            await self._client.connection_pool.disconnect()

    async def __aenter__(self) -> Limiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _place(self, call: Call[T]) -> AsyncIterator[None]:
        """One of the connections for calls that do not wait."""
        if self._cluster or call.block_ms is not None:
            yield
            return
        try:
            await wait_for(self._places.acquire(), self._deadline)
        except AsyncTimeoutError:
            raise Busy(f"all connections of the limiter were in use for {self._deadline} s") from None
        try:
            yield
        finally:
            self._places.release()

    async def _send(self, call: Call[T]) -> T:
        deadline = self._deadline
        if call.block_ms is not None:
            if self._cluster:
                refuse_short_timeout(self._client, call.block_ms)
            if deadline is not None:
                deadline = None if call.block_ms == 0 else deadline + call.block_ms / 1000
        try:
            async with self._place(call):
                return call.read(await wait_for(self._client.execute_command(*call.words), deadline))
        except Exception as error:
            if call.unreached is None or self._unreachable == "raise" or not out_of_reach(error):
                raise
            return call.unreached(self._unreachable == "allow")

    async def throttle(
        self,
        key: Key,
        rate: RateLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        atmost: bool = False,
        force: bool = False,
        block: Duration | None = None,
        ahead: Duration | None = None,
    ) -> Reply:
        """RL.THROTTLE: a steady rate with bursts. A negative quantity gives back."""
        return await self._send(
            calls.throttle(key, rate, quantity, leave=leave, atmost=atmost, force=force, block=block, ahead=ahead)
        )

    async def throttle_ro(self, key: Key, rate: RateLike, quantity: int = 1, *, leave: int = 0) -> Reply:
        """RL.THROTTLE_RO: what throttle() would answer now."""
        return await self._send(calls.look("RL.THROTTLE_RO", key, rate, quantity, leave=leave))

    async def window(
        self,
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        atmost: bool = False,
        force: bool = False,
        count_denied: bool = False,
        block: Duration | None = None,
    ) -> Reply:
        """RL.WINDOW: at most so many in any period. A negative quantity gives back the oldest."""
        return await self._send(
            calls.window(
                key, window, quantity, leave=leave, atmost=atmost, force=force, count_denied=count_denied, block=block
            )
        )

    async def window_ro(self, key: Key, window: WindowLike, quantity: int = 1, *, leave: int = 0) -> Reply:
        """RL.WINDOW_RO: what window() would answer now."""
        return await self._send(calls.look("RL.WINDOW_RO", key, window, quantity, leave=leave))

    def acquire(
        self,
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        lease: Duration | None = None,
        id: Id | None = None,
        block: Duration | None = None,
        settle: Literal["apply", "release"] | None = None,
    ) -> Reservation:
        """RL.ACQUIRE as an asynchronous context manager: reserves when it is entered, or raises Denied. An exception gives the
        reservation back; else it is applied, or given back if it is a semaphore's. `settle` says which of the two;
        a policy that is a semaphore needs settle="release"."""
        call = calls.reserve(key, window, quantity, leave=leave, lease=lease, id=id, block=block)
        return Reservation(self, key, call, settle or ("release" if calls.is_semaphore(window) else "apply"))

    async def reserve(
        self,
        key: Key,
        window: WindowLike,
        quantity: int = 1,
        *,
        leave: int = 0,
        lease: Duration | None = None,
        id: Id | None = None,
        block: Duration | None = None,
    ) -> Reply:
        """RL.ACQUIRE: reserves, for the caller to settle with apply() or release()."""
        return await self._send(calls.reserve(key, window, quantity, leave=leave, lease=lease, id=id, block=block))

    async def acquire_ro(self, key: Key, window: WindowLike, quantity: int = 1, *, leave: int = 0) -> Reply:
        """RL.ACQUIRE_RO: what acquire() would find now."""
        return await self._send(calls.look("RL.ACQUIRE_RO", key, window, quantity, leave=leave))

    async def apply(self, key: Key, id: Id, quantity: int | None = None) -> bool:
        """RL.APPLY: counts a reservation, or what was really used; False if it is not held."""
        return await self._send(calls.apply(key, id, quantity))

    async def release(self, key: Key, *ids: Id) -> int:
        """RL.RELEASE: gives reservations back, and answers how many were held."""
        return await self._send(calls.release(key, ids))

    async def renew(self, key: Key, id: Id, lease: Duration | None = None) -> bool:
        """RL.RENEW: starts the lease anew; False if the reservation is not held."""
        return await self._send(calls.renew(key, id, lease))

    async def held(self, key: Key) -> list[Held]:
        """RL.HELD: the live reservations, oldest first."""
        return await self._send(calls.held(key))

    async def all(self, clauses: Sequence[Clause]) -> AllReply:
        """RL.ALL: several limits, all or nothing."""
        return await self._send(calls.every("RL.ALL", clauses))

    async def all_ro(self, clauses: Sequence[Clause]) -> AllReply:
        """RL.ALL_RO: what all() would answer now."""
        return await self._send(calls.every("RL.ALL_RO", clauses))


class Reservation:
    """A reservation while its work is done, see Limiter.acquire."""

    #: The answer to RL.ACQUIRE, from when the context is entered.
    reply: Reply

    def __init__(self, limiter: Limiter, key: Key, call: Call[Reply], settle: Literal["apply", "release"]) -> None:
        self._limiter = limiter
        self._key = key
        self._call = call
        self._settle = settle
        self._settled = False

    @property
    def id(self) -> Id | None:
        """None if nothing is reserved: of quantity 0, by a policy's SHADOW, or while Redis cannot be reached."""
        return self.reply.id

    async def apply(self, quantity: int | None = None) -> bool:
        """Settles now: counts the reservation, or what was really used; False if it had lapsed."""
        self._settled = True
        return self.id is None or await self._limiter.apply(self._key, self.id, quantity)

    async def release(self) -> bool:
        """Settles now: gives the reservation back; False if it had lapsed."""
        self._settled = True
        return self.id is None or (await self._limiter.release(self._key, self.id)) == 1

    async def renew(self, lease: Duration | None = None) -> bool:
        """Starts the lease anew; False if it has lapsed."""
        return self.id is None or await self._limiter.renew(self._key, self.id, lease)

    async def __aenter__(self) -> Reservation:
        self._settled = False
        self.reply = await self._limiter._send(self._call)
        if not self.reply.allowed:
            raise Denied(self.reply)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._settled:
            return
        try:
            held = await (self.release() if error is not None or self._settle == "release" else self.apply())
        except Exception as trouble:
            # The work's own exception says more, and the lease ends by itself.
            if error is not None or (self._limiter._unreachable != "raise" and out_of_reach(trouble)):
                return
            raise
        if not held and error is None:
            raise Lapsed(f"the reservation {self.id!r} had lapsed when its work was done")
