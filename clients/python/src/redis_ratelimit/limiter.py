"""The synchronous limiter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import BoundedSemaphore
from types import TracebackType
from typing import Any, Literal, TypeVar

from . import calls
from .calls import Call, Clause, Key
from .connections import (
    Client,
    Unreachable,
    is_cluster,
    library,
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
    the longest that it waits for the network at each step, in seconds; None keeps the time-outs of `client`. A call
    with block= waits that much longer. When as many calls run as there are connections (50, or the max_connections of
    `client`), others wait as long for one, and then raise Busy: Redis is there, so a flood is not let through.
    `unreachable` says what a call answers while Redis cannot be reached: "raise" the error, "allow" or "deny". Error
    replies are always raised.

    A RedisCluster is used as it is, with its own time-outs and retries.
    """

    def __init__(self, client: Client, *, unreachable: Unreachable = "raise", deadline: float | None = None) -> None:
        self._unreachable = unreachable
        self._cluster = is_cluster(client)
        self._client: Any = client
        if self._cluster:
            if deadline is not None:
                raise ValueError("a cluster client has its own socket_timeout and socket_connect_timeout: set those")
            return
        self._places = BoundedSemaphore(most_connections(client))
        self._patience = socket_timeout(client) if deadline is None else deadline
        timeouts = {} if deadline is None else {"socket_timeout": deadline, "socket_connect_timeout": deadline}
        self._client = own_client(client, "", **timeouts)
        read = self._client.parse_response
        timeout_error = import_module(f"{library(client)}.exceptions").TimeoutError

        # A waiting call is answered later than a connection's own time-out allows.
        def parse_response(connection: Any, command_name: Any, **options: Any) -> Any:
            block_ms = options.pop("ratelimit_block_ms", None)
            if block_ms is not None:
                timeout = connection.socket_timeout
                wait = None if block_ms == 0 or timeout is None else timeout + block_ms / 1000
                if not connection.can_read(wait):
                    connection.disconnect()
                    raise timeout_error("no reply in time to a call that waits")
            return read(connection, command_name, **options)

        self._client.parse_response = parse_response

    def close(self) -> None:
        """Closes the limiter's own connections."""
        if not self._cluster:
            self._client.connection_pool.disconnect()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _place(self, call: Call[T]) -> Iterator[None]:
        """One of the connections for calls that do not wait."""
        if self._cluster or call.block_ms is not None:
            yield
            return
        if not self._places.acquire(timeout=self._patience):
            raise Busy(f"all connections of the limiter were in use for {self._patience} s")
        try:
            yield
        finally:
            self._places.release()

    def _send(self, call: Call[T]) -> T:
        options = {}
        if call.block_ms is not None:
            if self._cluster:
                refuse_short_timeout(self._client, call.block_ms)
            else:
                options = {"ratelimit_block_ms": call.block_ms}
        try:
            with self._place(call):
                return call.read(self._client.execute_command(*call.words, **options))
        except Exception as error:
            if call.unreached is None or self._unreachable == "raise" or not out_of_reach(error):
                raise
            return call.unreached(self._unreachable == "allow")

    def throttle(
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
        return self._send(
            calls.throttle(key, rate, quantity, leave=leave, atmost=atmost, force=force, block=block, ahead=ahead)
        )

    def throttle_ro(self, key: Key, rate: RateLike, quantity: int = 1, *, leave: int = 0) -> Reply:
        """RL.THROTTLE_RO: what throttle() would answer now."""
        return self._send(calls.look("RL.THROTTLE_RO", key, rate, quantity, leave=leave))

    def window(
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
        return self._send(
            calls.window(
                key, window, quantity, leave=leave, atmost=atmost, force=force, count_denied=count_denied, block=block
            )
        )

    def window_ro(self, key: Key, window: WindowLike, quantity: int = 1, *, leave: int = 0) -> Reply:
        """RL.WINDOW_RO: what window() would answer now."""
        return self._send(calls.look("RL.WINDOW_RO", key, window, quantity, leave=leave))

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
        """RL.ACQUIRE as a context manager: reserves when it is entered, or raises Denied. An exception gives the
        reservation back; else it is applied, or given back if it is a semaphore's. `settle` says which of the two;
        a policy that is a semaphore needs settle="release"."""
        call = calls.reserve(key, window, quantity, leave=leave, lease=lease, id=id, block=block)
        return Reservation(self, key, call, settle or ("release" if calls.is_semaphore(window) else "apply"))

    def reserve(
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
        return self._send(calls.reserve(key, window, quantity, leave=leave, lease=lease, id=id, block=block))

    def acquire_ro(self, key: Key, window: WindowLike, quantity: int = 1, *, leave: int = 0) -> Reply:
        """RL.ACQUIRE_RO: what acquire() would find now."""
        return self._send(calls.look("RL.ACQUIRE_RO", key, window, quantity, leave=leave))

    def apply(self, key: Key, id: Id, quantity: int | None = None) -> bool:
        """RL.APPLY: counts a reservation, or what was really used; False if it is not held."""
        return self._send(calls.apply(key, id, quantity))

    def release(self, key: Key, *ids: Id) -> int:
        """RL.RELEASE: gives reservations back, and answers how many were held."""
        return self._send(calls.release(key, ids))

    def renew(self, key: Key, id: Id, lease: Duration | None = None) -> bool:
        """RL.RENEW: starts the lease anew; False if the reservation is not held."""
        return self._send(calls.renew(key, id, lease))

    def held(self, key: Key) -> list[Held]:
        """RL.HELD: the live reservations, oldest first."""
        return self._send(calls.held(key))

    def all(self, clauses: Sequence[Clause]) -> AllReply:
        """RL.ALL: several limits, all or nothing."""
        return self._send(calls.every("RL.ALL", clauses))

    def all_ro(self, clauses: Sequence[Clause]) -> AllReply:
        """RL.ALL_RO: what all() would answer now."""
        return self._send(calls.every("RL.ALL_RO", clauses))


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

    def apply(self, quantity: int | None = None) -> bool:
        """Settles now: counts the reservation, or what was really used; False if it had lapsed."""
        self._settled = True
        return self.id is None or self._limiter.apply(self._key, self.id, quantity)

    def release(self) -> bool:
        """Settles now: gives the reservation back; False if it had lapsed."""
        self._settled = True
        return self.id is None or self._limiter.release(self._key, self.id) == 1

    def renew(self, lease: Duration | None = None) -> bool:
        """Starts the lease anew; False if it has lapsed."""
        return self.id is None or self._limiter.renew(self._key, self.id, lease)

    def __enter__(self) -> Reservation:
        self._settled = False
        self.reply = self._limiter._send(self._call)
        if not self.reply.allowed:
            raise Denied(self.reply)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._settled:
            return
        try:
            held = self.release() if error is not None or self._settle == "release" else self.apply()
        except Exception as trouble:
            # The work's own exception says more, and the lease ends by itself.
            if error is not None or (self._limiter._unreachable != "raise" and out_of_reach(trouble)):
                return
            raise
        if not held and error is None:
            raise Lapsed(f"the reservation {self.id!r} had lapsed when its work was done")
