"""What a limiter answers, and after how long, while Redis does not answer: by each client library that is installed, with
threads and with asyncio, on a single server, behind Sentinel and in a cluster.

It prints the figures of the table in clients/README.md. With OUTAGES_TABLE it measures them with short deadlines.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
import unittest
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from importlib import import_module
from itertools import product
from typing import Any

from redis_ratelimit import Clause, Rate, Window, semaphore
from redis_ratelimit._internal.calls import several_on
from redis_ratelimit._internal.servers import ClusterServers

from .fixtures import LIBRARIES, done, make
from .machine import unless_stopped
from .servers import Cluster, Proxy, Sentinel, Server, Wire, until

DEADLINE = 0.25
#: True if the figures of the table are measured.
IS_MEASURED = "OUTAGES_TABLE" in os.environ
#: The deadline of calls that a server must answer. On a busy machine none may arrive within a short one, and the server is
#: unreachable.
PATIENT = DEADLINE if IS_MEASURED else 8 * DEADLINE
#: True in make test-clients. Otherwise slow tests are shorter.
EVERYTHING = os.environ.get("CLIENTS") == "all"
#: The seconds that a call may take beyond its deadline, as the machine may be busy.
SLACK = 1.0
RATE = Rate(10**9, 10**6, 1)


class Answers:
    """The outcomes of calls, and their durations in seconds."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.seconds: list[float] = []

    def add(self, answer: Any, seconds: float) -> None:
        if isinstance(answer, BaseException):
            kind = type(answer).__name__
        else:
            kind = "decided" if answer.reachable else "allowed" if answer.allowed else "denied"
        self.kinds[kind] += 1
        self.seconds.append(seconds)

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds)

    @property
    def max(self) -> float:
        return max(self.seconds)

    def __repr__(self) -> str:
        return f"{dict(self.kinds)} p50 {1000 * self.p50:.2f} ms max {1000 * self.max:.2f} ms"


def with_answers(work: Callable[..., Awaitable[None]]) -> Callable[..., Answers]:
    """Makes a method of an async one: calls it while the event loop runs, and returns the answers that it collects."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Answers:
        answers = Answers()
        self.run(work, self, answers, *args, **kwargs)
        return answers

    return run


class Threads:
    """A synchronous limiter, used in threads."""

    name = "sync"
    folder = ""

    def __init__(self, client: Any, **options: Any) -> None:
        self.limiter = import_module(f"redis_ratelimit{self.folder}").Limiter(client, **options)
        self.loop = asyncio.new_event_loop()
        self.threads = ThreadPoolExecutor(600)

    def run(self, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function while the event loop runs."""

        async def work() -> Any:
            return await done(do(*args, **kwargs))

        return self.loop.run_until_complete(work())

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.run(getattr(self.limiter, method), *args, **kwargs)

    async def ask(self, answers: Answers, method: str, *args: Any, **kwargs: Any) -> None:
        begin = time.perf_counter()
        try:
            answer = await done(getattr(self.limiter, method)(*args, **kwargs))
        except Exception as error:
            answer = error
        answers.add(answer, time.perf_counter() - begin)

    def begin(self, answers: Answers, *args: Any, **kwargs: Any) -> asyncio.Future[None]:
        """Begins to ask."""
        work = self.ask(answers, *args, **kwargs)

        def ask() -> None:
            # Nothing in it waits for the event loop.
            with suppress(StopIteration):
                work.send(None)

        return self.loop.run_in_executor(self.threads, ask)

    @with_answers
    async def one_by_one(self, answers: Answers, times: int, *args: Any, **kwargs: Any) -> None:
        for _ in range(times):
            await self.ask(answers, *args, **kwargs)

    @with_answers
    async def each_second(self, answers: Answers, times: int, seconds: float, *args: Any) -> None:
        begin, begun = time.monotonic(), []
        for at in range(int(times * seconds)):
            await asyncio.sleep(max(0.0, begin + at / times - time.monotonic()))
            begun.append(self.begin(answers, *args))
        await asyncio.gather(*begun)

    @with_answers
    async def at_once(self, answers: Answers, times: int, *args: Any) -> None:
        await asyncio.gather(*[self.begin(answers, *args) for _ in range(times)])

    def close(self) -> None:
        self.call("aclose" if self.folder else "close")
        self.threads.shutdown()
        self.loop.close()


class Tasks(Threads):
    """A limiter for asyncio, used from outside its event loop."""

    name = "asyncio"
    folder = ".asyncio"

    def begin(self, answers: Answers, *args: Any, **kwargs: Any) -> asyncio.Future[None]:
        return self.loop.create_task(self.ask(answers, *args, **kwargs))


Kind = type[Threads]


def sentinel_of(library: str, kind: Kind, ports: list[int], **settings: Any) -> Any:
    module = import_module(f"{library}{kind.folder}.sentinel")
    return module.Sentinel([("127.0.0.1", port) for port in ports], **settings).master_for("limits")


def for_each_kind(test: Callable[[Any, str, Kind], None]) -> Callable[[Any], None]:
    """A test for each library, with threads and with asyncio."""

    @wraps(test)
    def run(self: Any) -> None:
        for library, kind in product(LIBRARIES if EVERYTHING else LIBRARIES[:1], (Threads, Tasks)):
            with self.subTest(library=library, kind=kind.name):
                unless_stopped(test, self, library, kind)

    del run.__wrapped__
    return run


def until_decided(limiter: Any, times: int, key: str) -> None:
    """Calls until the server decides this many calls at once. On a busy machine some may not connect in time at first."""
    until(lambda: limiter.at_once(times, "throttle", key, RATE).kinds == {"decided": times}, "decisions")


class WithLimiter(unittest.TestCase):
    @contextmanager
    def given(self, kind: Kind, client: Any, **options: Any) -> Iterator[Any]:
        made = kind(client, **{"unreachable": "allow", "deadline": DEADLINE, **options})
        try:
            yield made
        finally:
            made.close()

    def assert_decided_again(self, limiter: Any, key: str = "k", within: float = 2.0) -> None:
        """Asserts that the server decides again within this many seconds."""
        begin = time.monotonic()
        while not limiter.call("throttle", key, RATE).reachable:
            self.assertLess(time.monotonic() - begin, within + SLACK)
            time.sleep(0.01)
        print(f"  decided again after {time.monotonic() - begin:.3f} s", flush=True)

    def assert_kinds(self, answers: Answers, kinds: dict[str, int]) -> None:
        """Asserts which outcomes calls had, by their deadline."""
        self.assertEqual(answers.kinds, kinds)
        self.assertLess(answers.max, DEADLINE + SLACK, answers)


class Outages(WithLimiter):
    @contextmanager
    def limiter(self, library: str, kind: Kind, port: int, **options: Any) -> Iterator[Any]:
        own = {name: options.pop(name) for name in ("unreachable", "deadline") if name in options}
        with self.given(kind, make(library, kind.folder, host="127.0.0.1", port=port, **options), **own) as made:
            yield made

    def row(self, name: str, library: str, kind: Kind, answers: Answers) -> None:
        print(f"{name:32} {library:7} {kind.name:8} {answers}", flush=True)

    def assert_unreachable(self, answers: Answers) -> None:
        self.assert_kinds(answers, {"allowed": len(answers.seconds)})

    def assert_open(self, limiter: Any) -> Answers:
        """Asserts that the breaker is open: calls return at once, except probes. A busy machine gets five tries."""
        for _ in range(5):
            answers: Answers = limiter.one_by_one(2000, "throttle", "k", RATE)
            self.assertEqual(set(answers.kinds), {"allowed"}, answers)
            if answers.p50 < 0.001:
                return answers
        raise AssertionError(f"not within 1 ms: {answers}")

    def away(
        self,
        library: str,
        kind: Kind,
        name: str,
        begin: Callable[[Server, Proxy], None],
        end: Callable[[Server, Proxy], None],
    ) -> None:
        """Makes calls while a server is away, and after it has come back."""
        with Server() as server, Proxy(server.port) as proxy:
            port = proxy.port if name == "packets dropped" else server.port
            with self.limiter(library, kind, port) as limiter:
                until_decided(limiter, 20, "k")
                begin(server, proxy)
                # The event loop notices that idle connections were closed.
                limiter.run(asyncio.sleep, 0.01)
                answers = limiter.one_by_one(3, "throttle", "k", RATE)
                self.assert_unreachable(answers)
                self.row(name, library, kind, answers)
                opened = self.assert_open(limiter)
                self.row(f"{name}, breaker open", library, kind, opened)
                for times in 200, 600:
                    self.assertEqual(set(limiter.at_once(times, "throttle", "k", RATE).kinds), {"allowed"})
                end(server, proxy)
                self.assert_decided_again(limiter)
                until_decided(limiter, 50, "k")

    @for_each_kind
    def test_killed(self, library: str, kind: Kind) -> None:
        self.away(library, kind, "killed", lambda server, _: server.kill(), lambda server, _: server.start())

    @for_each_kind
    def test_stopped(self, library: str, kind: Kind) -> None:
        self.away(library, kind, "stopped (SIGSTOP)", lambda server, _: server.stop(), lambda server, _: server.go_on())

    @for_each_kind
    def test_packets_dropped(self, library: str, kind: Kind) -> None:
        drop, let_pass = (lambda _, proxy, drops=drops: setattr(proxy, "drops", drops) for drops in (True, False))
        self.away(library, kind, "packets dropped", drop, let_pass)

    @for_each_kind
    def test_many_calls_at_once_on_a_server_that_stopped(self, library: str, kind: Kind) -> None:
        for times in 200, 600:
            with Server() as server, self.limiter(library, kind, server.port) as limiter:
                limiter.at_once(20, "throttle", "k", RATE)
                server.stop()
                answers = limiter.at_once(times, "throttle", "k", RATE)
                self.row(f"stopped, {times} calls at once", library, kind, answers)
                self.assertEqual(set(answers.kinds), {"allowed"}, answers)
                server.go_on()

    def first_calls(
        self, library: str, kind: Kind, name: str, happen: Callable[[Server], None], *arguments: str
    ) -> None:
        """1,000 first calls after something that closed the idle connections: the server decides each, once."""
        if kind is Tasks and import_module(library).__version__ == "5.0.1":
            return  # This version does not notice it. Then each of these calls is one that got no reply.
        rounds, each = (20, 50) if EVERYTHING else (4, 50)
        with Server(*arguments) as server, self.limiter(library, kind, server.port, deadline=5) as limiter:
            answers = Answers()
            counted = 0
            limit = Window(10**6, "1d")
            for _ in range(rounds):
                server.ask("DEL", "w")
                limiter.at_once(each, "throttle", "k", RATE)
                happen(server)
                server.ask("DEL", "w")
                # The event loop of a program runs while connections are idle, and so learns that they are closed.
                limiter.run(asyncio.sleep, 0.01)
                found = limiter.at_once(each, "window", "w", limit)
                answers.kinds += found.kinds
                answers.seconds += found.seconds
                counted += 10**6 - limiter.call("window_ro", "w", limit).remaining
            self.row(name, library, kind, answers)
            self.assertEqual(answers.kinds, {"decided": rounds * each})
            self.assertEqual(counted, rounds * each)

    @for_each_kind
    def test_a_server_that_became_a_replica_is_left(self, library: str, kind: Kind) -> None:
        """The new connections may lead to another master."""
        for ask in "one", "all":
            with Server() as first, Server() as second, Proxy(first.port) as proxy:
                with self.limiter(library, kind, proxy.port, unreachable="raise", deadline=5) as limiter:
                    until_decided(limiter, 20, "k")
                    first.ask("REPLICAOF", "127.0.0.1", second.port)
                    proxy.lead_to(second.port, hang_up=False)
                    if ask == "all":
                        commands = [("RL.RELEASE", "k", "1"), ("RL.THROTTLE", "k", 1, 1, 1)]
                        replies = limiter.run(limiter.limiter._core.try_to_send, several_on("k", commands))
                        self.assertEqual([type(reply).__name__ for reply in replies], ["ReadOnlyError"] * 2)
                    else:
                        self.assertEqual(limiter.one_by_one(1, "throttle", "k", RATE).kinds, {"ReadOnlyError": 1})
                    self.assertEqual(limiter.at_once(20, "throttle", "k", RATE).kinds, {"decided": 20})

    @for_each_kind
    def test_a_connection_that_is_lent_when_its_server_is_left_is_not_used_again(
        self, library: str, kind: Kind
    ) -> None:
        with Server() as first, Server() as second, Proxy(first.port) as proxy:
            with self.limiter(library, kind, proxy.port, unreachable="raise", deadline=5) as limiter:
                until_decided(limiter, 20, "k")
                first.ask("REPLICAOF", "127.0.0.1", second.port)
                proxy.lead_to(second.port, hang_up=False)

                async def work() -> None:
                    # A read, which the replica answers after the limiter has left it.
                    proxy.delay = 0.5
                    read = limiter.begin(Answers(), "throttle_ro", "k", RATE)
                    await asyncio.sleep(0.1)
                    proxy.delay = 0.0
                    await limiter.ask(found, "throttle", "k", RATE)
                    await read

                found = Answers()
                limiter.run(work)
                self.assertEqual(found.kinds, {"ReadOnlyError": 1})
                self.assertEqual(limiter.one_by_one(5, "throttle", "k", RATE).kinds, {"decided": 5})

    @for_each_kind
    def test_a_lease_is_settled_on_the_new_master(self, library: str, kind: Kind) -> None:
        window = Window(100, "1d")
        with Server() as first, Server("--replicaof", f"127.0.0.1 {first.port}") as second, Proxy(first.port) as proxy:
            until(lambda: "master_link_status:up" in second.ask("INFO", "replication"), "a replica")
            with self.limiter(library, kind, proxy.port, unreachable="raise", deadline=5) as limiter:
                local = limiter.limiter.local("w", window, lease="2s")
                self.assertIsNone(limiter.run(local.try_take, 10))
                until(
                    lambda: limiter.run(asyncio.sleep, 0.01) or second.ask("RL.HELD", "w"), "a copy of the reservation"
                )
                # A part is left, so the batch is settled when its lease ends.
                self.assertTrue(limiter.run(local.take, 3).allowed)
                second.ask("REPLICAOF", "NO", "ONE")
                first.ask("REPLICAOF", "127.0.0.1", second.port)
                proxy.lead_to(second.port, hang_up=False)
                begin = time.monotonic()
                while second.ask("RL.HELD", "w") and time.monotonic() < begin + 5:
                    limiter.run(asyncio.sleep, 0.05)
                self.assertEqual(second.ask("RL.HELD", "w"), [])
                self.assertEqual(second.ask("RL.WINDOW_RO", "w", 100, "1d")[2], 97)
                limiter.run(local.close)

    @for_each_kind
    def test_restarted(self, library: str, kind: Kind) -> None:
        self.first_calls(library, kind, "restarted", lambda server: server.restart())

    @for_each_kind
    def test_idle_connections_closed(self, library: str, kind: Kind) -> None:
        def idle(server: Server) -> None:
            wire = Wire(server.port)
            until(lambda: wire.ask("CLIENT", "LIST", "TYPE", "normal").count("\n") <= 1, "idle closing")
            wire.close()

        self.first_calls(library, kind, "idle connections closed (timeout 1)", idle, "--timeout", "1", "--hz", "100")

    @for_each_kind
    def test_client_kill(self, library: str, kind: Kind) -> None:
        self.first_calls(library, kind, "CLIENT KILL", lambda server: server.ask("CLIENT", "KILL", "TYPE", "normal"))

    @for_each_kind
    def test_maxclients(self, library: str, kind: Kind) -> None:
        with Server("--maxclients", "4") as server, self.limiter(library, kind, server.port) as limiter:
            until_decided(limiter, 1, "k")
            others = [Wire(server.port) for _ in range(3)]
            for other in others:
                other.ask("PING")
            answers = limiter.at_once(8, "throttle", "k", RATE)
            self.row("maxclients", library, kind, answers)
            self.assertEqual(set(answers.kinds), {"decided", "Busy"}, answers)
            self.assertLess(answers.max, DEADLINE + SLACK)
            for other in others:
                other.close()
            self.assert_decided_again(limiter)

    @for_each_kind
    def test_loading(self, library: str, kind: Kind) -> None:
        with Server("--enable-debug-command", "yes") as server, self.limiter(library, kind, server.port) as limiter:
            limiter.one_by_one(1, "throttle", "k", RATE)
            server.ask("DEBUG", "POPULATE", "20000")
            server.ask("SAVE")
            server.kill()
            server.start("--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024", wait=False)
            until(lambda: "LOADING" in str(server.ask("PING")), "a server that loads")
            answers = limiter.one_by_one(20, "throttle", "k", RATE)
            self.row("LOADING", library, kind, answers)
            self.assert_unreachable(answers)
            server.ask("CONFIG", "SET", "key-load-delay", "0")
            until(lambda: server.ask("PING") == "PONG", "the end of loading")
            self.assert_decided_again(limiter)

    @for_each_kind
    def test_pool_full_on_a_slow_server(self, library: str, kind: Kind) -> None:
        delay = 0.04 if IS_MEASURED else 0.1
        with Server() as server, Proxy(server.port, delay=delay) as proxy:
            with self.limiter(library, kind, proxy.port, deadline=PATIENT, max_connections=4) as limiter:
                limiter.one_by_one(1, "throttle", "k", RATE, block="1000ms")
                answers = limiter.at_once(200, "throttle", "k", RATE)
                self.row("pool full on a slow server", library, kind, answers)
                self.assertEqual(set(answers.kinds), {"decided", "Busy"}, answers)
                busy = sorted(answers.seconds)[-answers.kinds["Busy"] :]
                self.assertGreaterEqual(busy[0], PATIENT - 0.01)
                self.assertLess(answers.max, PATIENT + SLACK)
                self.assert_decided_again(limiter)

    @for_each_kind
    def test_a_healthy_server_that_is_busy_lets_no_flood_through(self, library: str, kind: Kind) -> None:
        with Server() as server, self.limiter(library, kind, server.port, deadline=PATIENT) as limiter:
            for times in 200, 600:
                answers = limiter.at_once(times, "throttle", "k", RATE)
                self.row(f"healthy, {times} calls at once", library, kind, answers)
                self.assertLessEqual(set(answers.kinds), {"decided", "Busy"}, answers)
            answers = limiter.each_second(600, 2, "throttle", "k", RATE)
            self.row("healthy, 600 calls a second", library, kind, answers)
            self.assertLessEqual(set(answers.kinds), {"decided", "Busy"}, answers)

    @for_each_kind
    def test_a_server_so_far_away_that_connecting_takes_longer_than_a_deadline(self, library: str, kind: Kind) -> None:
        # CLIENT SETNAME, so that there are steps to wait for with each version.
        with Server() as server, Proxy(server.port, delay=0.1) as proxy:
            with self.limiter(library, kind, proxy.port, client_name="far") as limiter:
                # With threads each step has the deadline. With asyncio only the probe has the time to connect.
                if kind is Tasks:
                    self.assert_unreachable(limiter.one_by_one(4, "throttle", "k", RATE))
                until(lambda: limiter.one_by_one(5, "throttle", "k", RATE).kinds == {"decided": 5}, "decisions")

    @for_each_kind
    def test_a_reply_that_stops_halfway_is_given_up(self, library: str, kind: Kind) -> None:
        with Server() as server, Proxy(server.port) as proxy, self.limiter(library, kind, proxy.port) as limiter:
            limiter.one_by_one(1, "throttle", "k", RATE)
            proxy.cut = 7
            answers = limiter.one_by_one(1, "throttle", "k", RATE)
            self.assertEqual(answers.kinds, {"allowed": 1})
            self.assertLess(answers.max, 2 * DEADLINE + SLACK)

    @for_each_kind
    def test_a_call_that_waits_has_that_much_more_time(self, library: str, kind: Kind) -> None:
        with Server() as server, self.limiter(library, kind, server.port) as limiter:
            limiter.call("reserve", "s", semaphore(1))
            begin = time.monotonic()
            self.assertEqual(limiter.call("reserve", "s", semaphore(1), block="400ms").limited, 2)
            self.assertTrue(0.39 < time.monotonic() - begin < 0.4 + DEADLINE + SLACK)
            server.stop()
            begin = time.monotonic()
            self.assertFalse(limiter.call("reserve", "s", semaphore(1), block="400ms").reachable)
            self.assertTrue(0.64 < time.monotonic() - begin < 0.4 + DEADLINE + SLACK)
            server.go_on()

    @for_each_kind
    def test_a_server_that_hangs_while_a_call_waits_is_unreachable(self, library: str, kind: Kind) -> None:
        with Server() as server, self.limiter(library, kind, server.port) as limiter:
            limiter.call("reserve", "s", semaphore(1))
            waiting, other = Answers(), Answers()

            async def hang() -> None:
                wait = limiter.begin(waiting, "reserve", "s", semaphore(1), block="600ms")
                # A server that answers others as the wait begins may hang when the wait ends.
                await asyncio.sleep(0.1)
                await limiter.ask(other, "throttle", "k", RATE)
                server.stop()
                await wait

            limiter.run(hang)
            server.go_on()
            self.assertEqual((waiting.kinds, other.kinds), ({"allowed": 1}, {"decided": 1}))

    @for_each_kind
    def test_a_call_that_may_wait_forever_does_not_wait_forever_for_a_connection(
        self, library: str, kind: Kind
    ) -> None:
        with Server() as server, self.limiter(library, kind, server.port) as limiter:
            server.stop()
            self.assert_unreachable(limiter.one_by_one(1, "reserve", "s", semaphore(1), block="0s"))
            server.go_on()

    @for_each_kind
    def test_unreachable_raises_or_denies(self, library: str, kind: Kind) -> None:
        with Server() as server:
            server.stop()
            with self.limiter(library, kind, server.port, unreachable="deny") as limiter:
                self.assertEqual(limiter.one_by_one(5, "throttle", "k", RATE).kinds, {"denied": 5})
            with self.limiter(library, kind, server.port, unreachable="raise") as limiter:
                found = limiter.one_by_one(5, "throttle", "k", RATE).kinds
                self.assertEqual(found, {"TimeoutError": 3, "ConnectionError": 2})
            server.go_on()


class WithSentinel(WithLimiter):
    @for_each_kind
    def test_calls_go_to_the_new_master_after_a_failover(self, library: str, kind: Kind) -> None:
        with (
            Server() as master,
            Server("--replicaof", f"127.0.0.1 {master.port}") as replica,
            Sentinel(master) as sentinel,
        ):
            until(lambda: "master_link_status:up" in replica.ask("INFO", "replication"), "a replica")
            until(lambda: len(sentinel.ask("SENTINEL", "REPLICAS", "limits")) == 1, "a Sentinel that knows the replica")
            with self.given(kind, sentinel_of(library, kind, [sentinel.port])) as limiter:
                until_decided(limiter, 20, "k")
                master.stop()
                self.assert_kinds(limiter.one_by_one(4, "throttle", "k", RATE), {"allowed": 4})
                until(lambda: "role:master" in replica.ask("INFO", "replication"), "a failover")
                self.assert_decided_again(limiter, within=4)
                master.go_on()

    @for_each_kind
    def test_a_sentinel_that_hangs_is_given_up_at_the_deadline(self, library: str, kind: Kind) -> None:
        with Server() as master, Sentinel(master) as sentinel:
            sentinel.stop()
            with self.given(kind, sentinel_of(library, kind, [sentinel.port])) as limiter:
                self.assert_kinds(limiter.one_by_one(3, "throttle", "k", RATE), {"allowed": 3})
                sentinel.go_on()

    @for_each_kind
    def test_a_master_that_became_a_replica_is_left(self, library: str, kind: Kind) -> None:
        with Server() as first, Server() as second, Sentinel(first) as sentinel:
            client = sentinel_of(library, kind, [sentinel.port])
            with self.given(kind, client, unreachable="raise", deadline=5) as limiter:
                self.assertTrue(limiter.call("throttle", "k", RATE).reachable)
                # The same as a failover, but all at once.
                sentinel.ask("SENTINEL", "REMOVE", "limits")
                sentinel.ask("SENTINEL", "MONITOR", "limits", "127.0.0.1", second.port, 1)
                first.ask("REPLICAOF", "127.0.0.1", second.port)
                self.assertEqual(limiter.one_by_one(1, "throttle", "k", RATE).kinds, {"ReadOnlyError": 1})
                self.assertEqual(limiter.at_once(20, "throttle", "k", RATE).kinds, {"decided": 20})
                self.assertEqual(second.ask("EXISTS", "k"), 1)


def cluster_client(library: str, kind: Kind, cluster: Cluster, **settings: Any) -> Any:
    return make(library, kind.folder, cluster=True, host="127.0.0.1", port=cluster.nodes[1].port, **settings)


class InACluster(WithLimiter):
    @for_each_kind
    def test_a_node_that_is_away_holds_up_no_other_node_and_its_replica_takes_over(
        self, library: str, kind: Kind
    ) -> None:
        with Cluster() as cluster, self.given(kind, cluster_client(library, kind, cluster)) as limiter:
            # "b" lies in the first third of the slots, "a" in the last.
            for key in "a", "b":
                until_decided(limiter, 20, key)
            cluster.nodes[0].stop()
            self.assert_kinds(limiter.one_by_one(5, "throttle", "b", RATE), {"allowed": 5})
            until_decided(limiter, 20, "a")
            until(lambda: "role:master" in cluster.nodes[3].ask("INFO", "replication"), "a failover")
            self.assert_decided_again(limiter, "b", within=4)
            cluster.nodes[0].go_on()

    @for_each_kind
    def test_a_node_that_answers_as_a_replica_is_left_and_the_table_of_slots_is_read_again(
        self, library: str, kind: Kind
    ) -> None:
        with Cluster() as cluster, Server() as replica, Proxy(cluster.nodes[0].port) as proxy:
            replica.ask("REPLICAOF", "127.0.0.1", 1)
            moved = "127.0.0.1", cluster.nodes[0].port

            def remap(address: tuple[str, int]) -> tuple[str, int]:
                return ("127.0.0.1", proxy.port) if address == moved else address

            def readings() -> int:
                found = [node.ask("INFO", "commandstats") for node in cluster.nodes]
                return sum(
                    int(calls) for text in found for calls in re.findall(r"cluster(?:\|slots)?:calls=(\d+)", text)
                )

            client = cluster_client(library, kind, cluster, address_remap=remap)
            with self.given(kind, client, unreachable="raise", deadline=5) as limiter:
                until_decided(limiter, 20, "b")
                # Now the address of the node leads to a replica, as may happen with the address of a service.
                proxy.lead_to(replica.port, hang_up=True)
                limiter.one_by_one(1, "throttle", "b", RATE)
                before, begin = readings(), time.monotonic()
                self.assertEqual(limiter.one_by_one(50, "throttle", "b", RATE).kinds, {"ReadOnlyError": 50})
                pauses = (time.monotonic() - begin) / ClusterServers.PAUSE_SECONDS
                self.assertLessEqual(readings() - before, pauses + 2, "not for each call")
                self.assertEqual(cluster.nodes[3].ask("CLUSTER", "FAILOVER"), "OK")
                until(lambda: "role:master" in cluster.nodes[3].ask("INFO", "replication"), "a failover")
                begin = time.monotonic()
                while limiter.one_by_one(1, "throttle", "b", RATE).kinds != {"decided": 1}:
                    self.assertLess(time.monotonic() - begin, 4 * ClusterServers.PAUSE_SECONDS + SLACK)
                    time.sleep(0.01)

    @for_each_kind
    def test_a_slot_that_moved_is_followed_and_no_call_is_lost(self, library: str, kind: Kind) -> None:
        with Cluster() as cluster, self.given(kind, cluster_client(library, kind, cluster), deadline=5) as limiter:
            window = Window(1000, "1d")
            self.assertEqual(limiter.call("window", "b", window).remaining, 999)
            reply = limiter.call("all", [Clause.acquire(key, window) for key in ("{b}1", "{b}2")])
            source, target = cluster.nodes[0], cluster.nodes[1]
            slot = source.ask("CLUSTER", "KEYSLOT", "b")
            ids = [node.ask("CLUSTER", "MYID") for node in (source, target)]
            target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
            source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", "b", "{b}1", "{b}2")
            # ASK redirects one call.
            self.assertEqual(limiter.call("window", "b", window).remaining, 998)
            for node in target, source:
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
            # MOVED redirects all calls, here a transaction first.
            self.assertIs(limiter.run(reply.reservation.apply), True)
            self.assertEqual(limiter.call("window", "b", window).remaining, 997)
