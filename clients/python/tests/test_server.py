"""Every method on a real server, synchronous and with asyncio, by redis-py and valkey-py.

RATELIMIT_PORT is the port of a server with the module, RATELIMIT_CLUSTER_PORT that of a node of a cluster; all keys are
flushed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import unittest
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any
from unittest import mock

import redis_ratelimit
import redis_ratelimit.asyncio
from redis_ratelimit import Rate, UnknownPolicy, Window, semaphore

from .fixtures import LIBRARIES, Awaited, close, done, make
from .servers import Server, until, until_soon

PORT = int(os.environ["RATELIMIT_PORT"])
CLUSTER_PORT = int(os.environ["RATELIMIT_CLUSTER_PORT"])


def kinds() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields functions that create a limiter of each kind from the settings of its client and its own."""
    for library, folder in product(LIBRARIES, ("", ".asyncio")):

        def limiter(library: str = library, folder: str = folder, **settings: Any) -> Any:
            own = {"deadline": 30}
            own |= {name: settings.pop(name) for name in ("unreachable", "deadline") if name in settings}
            # The limiter has settings of its own for replies.
            client = make(library, folder, **{"port": PORT, "protocol": 3, "decode_responses": True, **settings})
            made = import_module(f"redis_ratelimit{folder}").Limiter(client, **own)
            return made if folder else Awaited(made)

        yield f"{library}{folder}", limiter


plain = make(LIBRARIES[0], port=PORT, decode_responses=True)


def waiting() -> int:
    return int(plain.info("ratelimit")["ratelimit_waiting"])


async def until_waiting(count: int) -> None:
    await until_soon(lambda: waiting() == count, f"{count} waiting calls")


class Each(unittest.TestCase):
    def each(self, body: Callable[[Any], Awaitable[None]], **settings: Any) -> None:
        """Runs a test with a limiter of each kind."""
        for name, limiter in kinds():
            with self.subTest(client=name):
                plain.flushall()

                async def run() -> None:
                    made = limiter(**settings)
                    try:
                        await body(made)
                    finally:
                        await close(made)

                asyncio.run(run())


class OnAServer(Each):
    def test_a_reservation_is_settled_by_hand(self) -> None:
        async def body(limiter: Any) -> None:
            window = Window(10, "1h")
            one = await limiter.reserve("k", window, 4, lease="60000ms")
            two = await limiter.reserve("k", window, 3, id="two")
            self.assertEqual((len(one.id), two.id, two.remaining), (16, "two", 3))
            held = await limiter.held("k")
            self.assertEqual([(each.id, each.quantity) for each in held], [(one.id, 4), ("two", 3)])
            self.assertTrue(50_000 < held[0].left_ms <= 60_000 and held[1].left_ms <= 20_000, held)
            self.assertTrue(await limiter.renew("k", "two", "90s"))
            self.assertTrue((await limiter.held("k"))[1].left_ms > 80_000)
            self.assertTrue(await limiter.apply("k", one.id, 6))
            self.assertFalse(await limiter.apply("k", one.id))
            self.assertEqual(await limiter.release("k", "two", "three"), 1)
            self.assertFalse(await limiter.renew("k", "two"))
            reply = await limiter.acquire_ro("k", window, 5)
            self.assertEqual((reply.limited, reply.remaining, reply.id), (1, 4, None))
            self.assertEqual(await limiter.held("k"), [])

        self.each(body)

    def test_a_call_may_wait_longer_than_the_socket_timeout(self) -> None:
        async def body(limiter: Any) -> None:
            begin = time.monotonic()
            await limiter.throttle("k", Rate(0, 1, "1200ms"))
            reply = await limiter.throttle("k", Rate(0, 1, "1200ms"), block="30000ms")
            self.assertTrue(reply.allowed)
            self.assertTrue(1.19 < time.monotonic() - begin < 15)
            # It is denied when its time is up.
            await limiter.reserve("job", semaphore(1), id="first")
            begin = time.monotonic()
            self.assertEqual((await limiter.reserve("job", semaphore(1), block="1300ms")).limited, 2)
            self.assertTrue(1.29 < time.monotonic() - begin < 15)
            # It is granted when another gives back, however long that takes.
            second = asyncio.create_task(limiter.reserve("job", semaphore(1), id="second", block="0s"))
            await until_waiting(1)
            self.assertEqual(await limiter.release("job", "first"), 1)
            self.assertEqual((await second).id, "second")

        self.each(body, socket_timeout=1.0)

    def test_a_cancelled_call_takes_nothing(self) -> None:
        async def body(limiter: Any) -> None:
            if isinstance(limiter, Awaited):
                return  # A thread cannot be cancelled.
            await limiter.reserve("job", semaphore(1), id="first")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(limiter.reserve("job", semaphore(1), block="60000ms"), 0.2)
            await until_waiting(0)
            await limiter.release("job", "first")
            self.assertEqual(await limiter.held("job"), [])

        self.each(body)

    def test_calls_that_waited_leave_few_connections(self) -> None:
        async def body(limiter: Any) -> None:
            await limiter.reserve("job", semaphore(1))
            before = len(plain.client_list())
            with mock.patch("redis_ratelimit._internal.servers.PLACES", 3):
                waits = [limiter.reserve("job", semaphore(1), block="500ms") for _ in range(10)]
                replies = await asyncio.gather(*waits)
            self.assertEqual({reply.limited for reply in replies}, {2})
            await until_soon(lambda: len(plain.client_list()) <= before + 3, "the end of connections")

        self.each(body)

    def test_a_key_is_inspected_and_reset_and_top_has_what_was_denied(self) -> None:
        async def body(limiter: Any) -> None:
            self.assertIsNone(await limiter.info("k"))
            await limiter.top(reset=True)
            rate, window = Rate(0, 1, "10s"), Window(5, "1h")
            for _ in range(2):
                await limiter.throttle("k", rate, ban="1h")
            found = await limiter.info("k")
            self.assertTrue(found.kind == "bucket" and 0 < found.full_in_ms <= 10_000, found)
            self.assertTrue(3_590_000 < found.ban_ms <= 3_600_000, found)
            await limiter.window("w", window, 3)
            await limiter.reserve("w", window, 2)
            found = await limiter.info("w")
            self.assertEqual((found.kind, found.events, found.held, found.reservations), ("window", 3, 2, 1))
            self.assertEqual([(each.key, each.db, each.denials) for each in await limiter.top()], [("k", 0, 1)])
            self.assertEqual([await limiter.reset("k"), await limiter.reset("k")], [True, False])
            self.assertTrue((await limiter.throttle("k", rate)).allowed)

        self.each(body)

    def test_the_health_checks_of_the_client_run(self) -> None:
        async def body(limiter: Any) -> None:
            await limiter.throttle("k", Rate(4, 1, "1h"))
            pings = int(plain.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"])
            await asyncio.sleep(1.1)
            await limiter.throttle("k", Rate(4, 1, "1h"))
            self.assertEqual(int(plain.info("commandstats")["cmdstat_ping"]["calls"]), pings + 1)

        self.each(body, health_check_interval=1)

    def test_a_limiter_for_asyncio_works_in_several_event_loops(self) -> None:
        for library in LIBRARIES:
            plain.flushall()
            limiter = redis_ratelimit.asyncio.Limiter(make(library, ".asyncio", port=PORT), deadline=30)
            found = [asyncio.run(limiter.throttle("k", Rate(9, 1, "1h"))).remaining for _ in range(5)]
            self.assertEqual(found, [9, 8, 7, 6, 5])
            asyncio.run(limiter.aclose())

    def test_a_forked_child_opens_its_own_connections(self) -> None:
        for library in LIBRARIES:
            plain.flushall()
            limiter = redis_ratelimit.Limiter(make(library, port=PORT), deadline=30)
            limiter.throttle("k", Rate(99, 1, "1h"))
            child = os.fork()
            if child == 0:
                for _ in range(20):
                    limiter.throttle("k", Rate(99, 1, "1h"))
                os._exit(0)
            for _ in range(20):
                self.assertTrue(limiter.throttle("k", Rate(99, 1, "1h")).allowed)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(limiter.throttle_ro("k", Rate(99, 1, "1h")).remaining, 59)
            limiter.close()

    def test_a_local_limit_keeps_the_limit_of_the_server(self) -> None:
        async def body(limiter: Any) -> None:
            window = Window(20, "1h")
            made = limiter.limiter if isinstance(limiter, Awaited) else limiter
            local: Any = made.local("k", window, lease="1min")
            for at in range(25):
                reply = await done(local.take())
                self.assertEqual((reply.limited > 0, reply.limit), (at >= 20, 20))
            self.assertTrue(3_590_000 < reply.retry_after_ms <= 3_600_000, reply)
            await done(local.close())
            self.assertEqual(await limiter.held("k"), [])
            self.assertEqual((await limiter.info("k")).events, 20)

        self.each(body)

    def test_threads_share_a_local_limit(self) -> None:
        plain.flushall()
        limiter = redis_ratelimit.Limiter(make(LIBRARIES[0], port=PORT), deadline=30)
        with limiter.local("k", Window(1000, "1h"), lease="1min") as local, ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: local.take().allowed, range(1500)))
        self.assertEqual(sum(found), 1000)
        self.assertEqual(limiter.held("k"), [])
        limiter.close()

    def test_a_local_limit_works_in_several_event_loops(self) -> None:
        plain.flushall()
        limiter = redis_ratelimit.asyncio.Limiter(make(LIBRARIES[0], ".asyncio", port=PORT), deadline=30)
        local = limiter.local("k", Window(100, "1min"), lease="10s")

        async def take(close: bool) -> None:
            for _ in range(40):
                self.assertTrue((await local.take()).allowed)
            if close:
                await local.aclose()
            await limiter.aclose()

        asyncio.run(take(False))
        asyncio.run(take(True))
        self.assertEqual(int(redis_ratelimit.Limiter(plain).window_ro("k", Window(100, "1min")).remaining), 20)

    def test_a_forked_child_spends_nothing_of_its_parent(self) -> None:
        for folder in "", ".asyncio":
            plain.flushall()
            module: Any = import_module(f"redis_ratelimit{folder}")
            limiter = module.Limiter(make(LIBRARIES[0], folder, port=PORT), deadline=30)
            local = limiter.local("k", Window(10, "1min"), lease="1min")

            async def hold(local: Any = local) -> None:
                self.assertIsNone(local.try_take(7))
                await until_soon(lambda: local.try_take(4), "a batch")

            async def take_all(local: Any = local) -> int:
                found: int = sum([(await done(local.take())).allowed for _ in range(12)])
                await done(local.close())
                return found

            # Three are held here, and three are left on the server.
            asyncio.run(hold())
            child = os.fork()
            if child == 0:
                os._exit(asyncio.run(take_all()))
            with self.subTest(folder=folder):
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)
                self.assertEqual(asyncio.run(take_all()), 3)

    def test_a_held_batch_is_spent_while_the_server_is_away(self) -> None:
        with Server() as server:
            limiter = redis_ratelimit.Limiter(make(LIBRARIES[0], port=server.port), unreachable="deny", deadline=2)
            local = limiter.local("k", Window(100, "1h"), lease="1min")
            self.assertIsNone(local.try_take(10))
            until(lambda: local.try_take(1), "a batch")
            server.stop()
            held = [local.take() for _ in range(9)]
            self.assertTrue(all(reply.allowed and reply.reachable for reply in held))
            reply = local.take()
            self.assertEqual((reply.limited, reply.reachable), (1, False))
            server.go_on()
            local.close()
            self.assertEqual(limiter.held("k"), [])
            limiter.close()

    def test_a_policy_can_replace_any_limit(self) -> None:
        plain.config_set("ratelimit.policies", "free THROTTLE 15 30 60; day WINDOW 3 1d FIXED; jobs WINDOW 2 0")

        async def body(limiter: Any) -> None:
            self.assertEqual((await limiter.throttle("r", "@free", 3)).remaining, 13)
            self.assertEqual((await limiter.throttle_ro("r", "@free")).limit, 16)
            self.assertEqual((await limiter.window("w", "@day")).remaining, 2)
            async with limiter.acquire("w", "@day"):
                pass
            self.assertEqual((await limiter.window_ro("w", "@day")).remaining, 1)
            for settle in None, "release":
                async with limiter.acquire("s", "@jobs", settle=settle):
                    self.assertEqual(len(await limiter.held("s")), 1)
                self.assertEqual(await limiter.held("s"), [])
            # Only the server knows that it is a semaphore, which cannot be leased.
            local: Any = getattr(limiter, "limiter", limiter).local("j", "@jobs")
            with self.assertRaisesRegex(ValueError, "'@jobs' is a semaphore"):
                for _ in range(3000):
                    await done(local.take())
                    await asyncio.sleep(0.01)
            await done(local.close())
            self.assertEqual(await limiter.held("j"), [])
            self.assertEqual([policy.name for policy in await limiter.policies()], ["day", "free", "jobs"])
            with self.assertRaisesRegex(UnknownPolicy, "NOPOLICY .*none"):
                await limiter.throttle("r", "@none")

        try:
            self.each(body, unreachable="allow")
        finally:
            plain.config_set("ratelimit.policies", "")


@contextmanager
def a_server_that(answer: Callable[[bytes], bytes | None]) -> Iterator[tuple[int, list[bytes]]]:
    """Runs a server that replies to RL.* as `answer` says: b"" is no reply, and None closes the connection. Yields its port
    and the list of these calls."""
    calls: list[bytes] = []

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            while data := self.request.recv(65536):
                reply: bytes | None = b"".join(
                    b"-ERR unknown command\r\n" if b"HELLO" in each else b"+OK\r\n" for each in data.split(b"*")[1:]
                )
                if b"RL." in data:
                    calls.append(data)
                    reply = answer(data)
                if reply is None:
                    break
                self.request.sendall(reply)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], calls
        server.shutdown()


class WithoutAServer(Each):
    def test_a_call_whose_reply_was_lost_is_not_sent_again(self) -> None:
        async def body(limiter: Any) -> None:
            with self.assertRaisesRegex(Exception, "(?i)connection|closed|reset"):
                await limiter.throttle("k", "@free")

        with a_server_that(lambda _: None) as (port, calls):
            self.each(body, port=port)
            self.assertEqual(len(calls), 2 * len(LIBRARIES))

    def test_a_server_that_cannot_serve_now_is_unreachable(self) -> None:
        async def body(limiter: Any) -> None:
            self.assertFalse((await limiter.throttle("k", "@free")).reachable)

        for error in [
            b"-LOADING Redis is loading the dataset in memory\r\n",
            b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            b"-CLUSTERDOWN The cluster is down\r\n",
            b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        ]:
            with a_server_that(lambda _: error) as (port, _):
                self.each(body, port=port, unreachable="allow")


class InACluster(unittest.TestCase):
    # The cluster is not flushed, so each run has its own keys.
    run_id = f"{os.getpid()}:{time.time_ns()}"

    def test_the_settings_are_those_of_a_client_of_one_server(self) -> None:
        """The number of connections to a node."""
        cases: list[tuple[dict[str, Any], int]] = [({}, 50), ({"max_connections": 7}, 7), ({"max_connections": 99}, 50)]
        for library, folder, (settings, places) in product(LIBRARIES, ("", ".asyncio"), cases):
            limiter = redis_ratelimit.asyncio.Limiter if folder else redis_ratelimit.Limiter
            with self.subTest(library=library, folder=folder, settings=settings):
                cluster = make(library, folder, cluster=True, host="127.0.0.1", port=CLUSTER_PORT, **settings)
                cores: list[Any] = [limiter(client)._core for client in (make(library, folder, **settings), cluster)]
                servers = [server for core in cores for server in core.servers.known()]
                self.assertEqual({server.places._value for server in servers}, {places})

    def test_another_task_reads_the_slots_if_the_one_that_does_is_cancelled(self) -> None:
        async def run() -> None:
            client = make(LIBRARIES[0], ".asyncio", cluster=True, host="127.0.0.1", port=CLUSTER_PORT)
            limiter = redis_ratelimit.asyncio.Limiter(client, deadline=30.0)
            read = limiter._core._read_table

            async def late(*args: Any) -> None:
                await asyncio.sleep(0.01)
                await read(*args)

            with mock.patch.object(limiter._core, "_read_table", late):
                tasks = [asyncio.ensure_future(limiter.throttle(self.run_id, Rate(4, 1, "1h"))) for _ in range(3)]
                await asyncio.sleep(0.001)
                tasks[0].cancel()
                self.assertTrue((await tasks[1]).allowed and (await tasks[2]).allowed)
            await limiter.aclose()

        asyncio.run(run())
