"""The core of a limiter for asyncio. See core.py, which has the same steps with threads."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine, Sequence
from time import monotonic
from typing import Any, TypeVar, cast

from . import calls, several
from .breaker import Breaker
from .calls import Call
from .core import (
    DEFAULT_SECONDS,
    PING,
    SECOND_RELEASE_SECONDS,
    SLOTS,
    CoreBase,
    Failure,
    as_unreachable,
    await_if_needed,
)
from .libraries import DeadlinePassed
from .replies import Id
from .servers import Attempt, ClusterServers, Delivery, Server, SingleServer
from .several import Reserved

T = TypeVar("T")


class _Alarm:
    """Cancels a task when its time is up.

    A busy event loop reads replies late. So if the alarm itself is late, it waits for that much longer, and then for some
    turns of the loop, in which replies that have already arrived are read.
    """

    __slots__ = ("_cancellations", "_handle", "_loop", "_task", "_until", "has_rung")

    TURNS = 3
    #: The longest additional wait.
    GRACE_SECONDS = 0.02

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._loop)
        #: The number of times that the program had cancelled the task before, for example if this call is a part of its
        #: cleanup. Python counts them from version 3.11 on.
        self._cancellations: int = getattr(self._task, "cancelling", lambda: 0)()
        self._until = monotonic() + seconds
        self.has_rung = False
        self._handle: asyncio.Handle = self._loop.call_later(seconds, self._due)

    def _due(self) -> None:
        late = monotonic() - self._until
        if late > 0.002:
            self._handle = self._loop.call_later(min(late, self.GRACE_SECONDS), self._turn, 0)
        else:
            self._turn(0)

    def _turn(self, turns: int) -> None:
        if turns < self.TURNS:
            self._handle = self._loop.call_soon(self._turn, turns + 1)
        elif self._task is not None:
            self.has_rung = True
            self._task.cancel()

    def cancel(self) -> None:
        self._handle.cancel()

    def was_cancelled_otherwise(self) -> bool:
        """Returns whether the task was cancelled by the program as well, after the alarm had rung."""
        uncancel = getattr(self._task, "uncancel", None)
        return uncancel is not None and uncancel() > self._cancellations


async def bounded(work: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """Runs a coroutine. Raises DeadlinePassed when the time is up."""
    if seconds is None:
        return await work
    alarm = _Alarm(seconds)
    try:
        return await work
    except asyncio.CancelledError:
        if alarm.has_rung and not alarm.was_cancelled_otherwise():
            raise DeadlinePassed from None
        raise
    finally:
        alarm.cancel()


class AsyncCore(CoreBase):
    """The core of a limiter for asyncio. The deadline is the longest that a call takes. It has servers for each event loop,
    because a connection belongs to the loop in which it was made."""

    _make_places = asyncio.Semaphore
    _make_lock = asyncio.Lock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._servers_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SingleServer | ClusterServers] = (
            weakref.WeakKeyDictionary()
        )
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        #: Settlements and other work in the background. The event loop does not keep tasks alive.
        self._settling: set[asyncio.Task[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        super().__init__(*args, **kwargs)

    def enter_loop(self) -> None:
        """Goes over to the servers of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop() is loop:
            return
        if loop not in self._servers_of_loop:
            self.renew_servers()
            self._servers_of_loop[loop] = self.servers
        self.servers = self._servers_of_loop[loop]
        self._loop = weakref.ref(loop)

    async def send(self, call: Call[T]) -> T:
        """Sends a call and returns its reply, or what `unreachable` decides."""
        self.enter_loop()
        call.check_key()
        if held := self._held_in_memory(call):
            return cast(T, await self._settle_in_memory(call, held))
        # The call may be given up. What the server reserves for it then needs an id that the client knows.
        call, own = several.with_own_ids(call)
        attempt = self._new_attempt(call)
        try:
            return self._read(call, await bounded(self._deliver(call, attempt), attempt.seconds), attempt)
        except BaseException as error:
            # Before the release, whose reply says that the server answers.
            raised = self._record_error(error, call, attempt) if isinstance(error, Exception) else error
            if self._has_lost(own, error, attempt):
                # A program that chose an id can try again with it, or another worker holds it.
                self._spawn(self._release(own, call.block_ms is not None), self._settling)
            if not isinstance(raised, Exception):
                raise
            raised.was_sent = self._may_be_executed(call, raised, attempt)  # type: ignore[attr-defined]
            decide = self._decision(call, raised)
            if decide is None:
                raise raised from (None if raised is error else error)
        answer: T = as_unreachable(await await_if_needed(decide()))
        return answer

    async def try_to_send(self, call: Call[T]) -> T | Failure:
        """Sends a call that has no fallback. Returns its reply, or why there is none."""
        self.enter_loop()
        attempt = self._new_attempt(call)
        try:
            return self._read(call, await bounded(self._deliver(call, attempt), attempt.seconds), attempt)
        except Exception as error:
            return self._make_failure(error, call, attempt)

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits a settlement, which goes on even if the caller is cancelled."""
        # anyio cancels a task again at every await.
        return await asyncio.shield(self._spawn(work, self._settling))

    def settle_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Settles in the background."""
        self._spawn(work, self._settling)

    async def close(self) -> None:
        """Waits for the settlements of the running loop, but not long, and closes the idle connections."""
        self.enter_loop()
        loop = asyncio.get_running_loop()
        if settling := [task for task in self._settling if task.get_loop() is loop]:
            await asyncio.wait(settling, timeout=DEFAULT_SECONDS)
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self.servers.known():
            await server.pool.disconnect(inuse_connections=False)
        # The transports close in the loop's next turn.
        await asyncio.sleep(0)

    def _spawn(self, work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name="redis-ratelimit")
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _settle_in_memory(self, call: Call[Any], held: list[Id]) -> Any:
        """Settles a reservation where it was made. Only RL.RELEASE has several ids."""
        others = [id for id in call.settles if id not in held]
        if not others:
            return await self._memory.send(call)
        key: Any = call.key
        released = await self._memory.send(calls.release(key, *held))
        return released + await self.send(calls.release(key, *others))

    async def _release(self, reserved: Sequence[Reserved], twice: bool) -> None:
        call = several.release_all(reserved)
        call.at_most_seconds = DEFAULT_SECONDS
        await self.try_to_send(call)
        if twice:
            await asyncio.sleep(SECOND_RELEASE_SECONDS)
            await self.try_to_send(call)

    async def _deliver(self, call: Call[Any], attempt: Attempt) -> list[Delivery]:
        """Sends a call to the server that has its key; without a key, to each node of a cluster."""
        commands = self._packed(call)
        deliveries = [Delivery(commands, server, call.is_atomic) for server in await self._find(call)]
        for delivery in deliveries:
            while delivery.left:
                replies = await self._exchange(delivery.server, delivery.commands(), attempt)
                delivery.receive(iter(replies), self.servers, self.library)
        return deliveries

    async def _find(self, call: Call[Any]) -> list[Server]:
        """Returns the servers to send a call to."""
        servers = self.servers
        if isinstance(servers, SingleServer):
            return servers.known()
        if servers.must_be_read():
            async with servers.lock:
                if servers.must_be_read():
                    await self._read_table(servers)
        if call.key is None:
            return servers.serving_any()
        self._check_slots(call, servers)
        return [servers.serving(call.key)]

    async def _read_table(self, servers: ClusterServers) -> None:
        nodes = servers.known()
        for server in servers.to_ask(self.deadline):
            # One that hangs leaves time to ask the others.
            attempt = Attempt(self.deadline / (len(nodes) + 1), False)
            try:
                (table,) = await bounded(self._exchange(server, self._packed(SLOTS), attempt), attempt.seconds)
                servers.read_table(table, server)
                break
            except Exception as error:
                servers.record_no_table(self._record_error(error, SLOTS, attempt))

    async def _exchange(self, server: Server, commands: list[bytes], attempt: Attempt) -> list[Any]:
        """Sends commands to a server. Returns their replies, which may be error replies."""
        attempt.server = server
        if server.breaker.is_open:
            await self._probe(server)
        if attempt.may_wait:
            server.count(1)
            try:
                return await self._use_connection(server, commands, attempt)
            finally:
                server.count(-1)
        async with server.places:
            if server.breaker.is_open:
                raise self._unavailable(server)
            return await self._use_connection(server, commands, attempt)

    async def _probe(self, server: Server) -> None:
        """Asks a server whose breaker is open whether it answers again. Raises an error if it does not.

        The call that started the probe ends at its deadline like any other. The probe continues: connecting may take longer
        than a deadline, and later calls can use its connection.
        """
        if server.breaker.may_probe(monotonic()):
            await asyncio.shield(self._spawn(self._probe_to_the_end(server), self._tasks))
        if server.breaker.is_open:
            raise self._unavailable(server)

    async def _probe_to_the_end(self, server: Server) -> None:
        # PING, not the call itself: a server that hangs may still execute it when it continues.
        attempt = Attempt(Breaker.PROBE_SECONDS, False)
        attempt.server = server
        try:
            await bounded(self._use_connection(server, self._packed(PING), attempt), attempt.seconds)
        except Exception as error:
            self._record_error(error, PING, attempt)
        finally:
            server.breaker.end_probe(monotonic())

    async def _use_connection(self, server: Server, commands: list[bytes], attempt: Attempt) -> list[Any]:
        library = self.library
        attempt.pool = pool = server.pool
        # A call that may wait forever for its grant does not wait forever for a connection.
        connection = await bounded(
            pool.get_connection(*library.to_get_connection), self.deadline if attempt.seconds is None else None
        )
        replies: list[Any] = []
        try:
            attempt.is_sent = True
            await connection.send_packed_command([b"".join(commands)])
            for _ in commands:
                try:
                    replies.append(await connection.read_response())
                except library.reply_error as error:
                    replies.append(error)
            server.breaker.record_reply(monotonic())
            return replies
        finally:
            if len(replies) < len(commands) or not server.keeps(attempt):
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    def _close_idle(self, pool: Any) -> None:
        self._spawn(pool.disconnect(inuse_connections=False), self._tasks)
