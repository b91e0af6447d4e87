"""Several limits that are reserved, settled and charged as one.

RATELIMIT_PORT is the port of a server with the module, RATELIMIT_CLUSTER_PORT that of a node of a cluster; all keys of the
server are flushed.
"""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import threading
import time
import unittest
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from itertools import product
from typing import Any
from unittest import mock

import redis_ratelimit
import redis_ratelimit.asyncio
from redis_ratelimit import (
    Clause,
    Denied,
    Lapsed,
    Limiter,
    MemoryLimiter,
    Rate,
    UnexpectedReply,
    UnknownPolicy,
    Window,
    semaphore,
)
from redis_ratelimit._internal import calls

from .fixtures import (
    LIBRARIES,
    MISTAKES,
    SEVERAL,
    AsyncRecorder,
    Recorder,
    arguments,
    close,
    differences,
    done,
    entered,
    make,
    settled,
)
from .servers import PATIENCE, Proxy, Server, until, until_soon

PORT = int(os.environ["RATELIMIT_PORT"])
CLUSTER_PORT = int(os.environ["RATELIMIT_CLUSTER_PORT"])

errors = import_module(f"{LIBRARIES[0]}.exceptions")

TOKENS, DOLLARS = Window(1000, "1h"), Window(5000, "1d")
#: Two reservations, x in the key a and y in b.
RESERVED: list[Any] = [0, 9, 8, -1, 20000, 1, [[0, 9, 8, -1, 20000, "x"], [0, 9, 8, -1, 20000, "y"]]]
PAIR = [Clause.acquire("a", Window(9, 60)), Clause.acquire("b", Window(9, 60))]
FOUR = [*PAIR, Clause.acquire("c", semaphore(2)), Clause.window("d", Window(9, 60))]
FOUR_RESERVED = [*RESERVED[:6], [*RESERVED[6], [0, 9, 8, -1, 20000, "z"], [0, 9, 8, -1, 20000]]]
QUEUED = ["OK", "QUEUED", "QUEUED"]


def reply_of(answer: Any) -> Any:
    return errors.ResponseError(answer["error"]) if isinstance(answer, dict) else answer


def replies_of(case: dict[str, Any]) -> list[Any]:
    """Returns the replies of a server to the commands of a case."""
    answers = [reply_of(each) for each in case["replies"]]
    return answers if len(answers) == 1 else ["OK", *["QUEUED"] * len(answers), answers]


def llm_call(tag: str, tokens: int = 400, dollars: int = 900) -> list[Clause]:
    """Returns the limits of a call of a language model, which reserve its estimated cost."""
    return [
        Clause.window(f"{tag}:rpm", Window(60, "1min"), name="requests"),
        Clause.acquire(f"{tag}:tpm", TOKENS, tokens, name="tokens"),
        Clause.acquire(f"{tag}:usd", DOLLARS, dollars, name="dollars"),
        Clause.acquire(f"{tag}:calls", semaphore(2), name="calls"),
    ]


class Words(unittest.TestCase):
    def test_each_case_sends_its_commands(self) -> None:
        for case in SEVERAL:
            for kind in Recorder, AsyncRecorder:
                with self.subTest(says=case["says"], kind=kind):
                    asyncio.run(self.check(case, kind))

    async def check(self, case: dict[str, Any], kind: type[Recorder]) -> None:
        recorder = kind(*([case["reply"]] if "reply" in case else []), *(replies_of(case) if "sent" in case else []))
        limiter = recorder.limiter()
        positional, options = arguments(case)
        reply = await done(limiter.all(*positional, **options))
        if "force" in case:
            self.assertEqual(differences(reply, case["means"]), [])
            self.assertEqual((reply.paid, recorder.sent), (tuple(case["paid"]), case["sent"]))
            return
        self.assertEqual((list(reply.paid), list(reply.denied)), (case["paid"], case.get("denied", [])))
        if "then" not in case:
            self.assertIsNone(reply.reservation)
            return
        self.assertEqual(reply.reservation.ids, case["ids"])
        recorder.sent.clear()
        given = [case[name] for name in ("cost", "lease") if name in case]
        settle = getattr(reply.reservation, case["then"])
        if "raises" in case:
            with self.assertRaises(errors.ResponseError) as raised:
                await done(settle(*given))
            self.assertEqual(str(raised.exception), case["raises"])
        else:
            self.assertIs(await done(settle(*given)), case["means"])
        self.assertEqual(recorder.sent, case["sent"])

    def test_the_end_of_the_block_settles_all(self) -> None:
        def fail(job: Any) -> None:
            job.set({"a": 7})
            raise KeyError

        cost, applied, released = {"b": 3}, ["RL.APPLY a x", "RL.APPLY b y"], ["RL.RELEASE a x", "RL.RELEASE b y"]
        costs = ["RL.APPLY a x", "RL.APPLY b y 3"]
        cases: list[tuple[list[Any], Any, list[str], str]] = [
            # A later call of set() replaces what an earlier one set for the same limit.
            ([1, 1], lambda job: [job.set({"a": 1}), job.set({"a": 7})], ["RL.APPLY a x 7", "RL.APPLY b y"], "done"),
            ([1, 1], lambda job: [job.set({"a": 1}), job.set({"b": 2})], ["RL.APPLY a x 1", "RL.APPLY b y 2"], "done"),
            ([1, 0], lambda job: None, applied, "Lapsed"),
            # An exception releases whatever was set.
            ([1, 0], fail, released, "KeyError"),
            # What was settled in the block is not settled again.
            ([1, 1], lambda job: job.apply(cost), costs, "done"),
            ([1, 1], lambda job: job.apply(cost=cost), costs, "done"),
            ([1, 1], lambda job: job.apply(quantity=cost), costs, "done"),
        ]
        for answers, work, sent, outcome in cases:
            with self.subTest(sent=sent, outcome=outcome):
                found = settled([RESERVED, *QUEUED, answers], PAIR, work=work)
                self.assertEqual(found, ["MULTI", *sent, "EXEC", outcome])
        # A settlement whose reply was lost is not sent again. The error is that of the command refused before EXEC.
        refused = errors.NoPermissionError("no permissions"), errors.ExecAbortError("Transaction discarded")
        for replies, outcome in (
            (["OK", errors.ConnectionError("lost")], "ConnectionError"),
            ([errors.TimeoutError("late")], "TimeoutError"),
            (["OK", "QUEUED", *refused], "NoPermissionError"),
        ):
            self.assertEqual(settled([RESERVED, *replies], PAIR), ["MULTI", *applied, "EXEC", outcome])

    def test_a_lease_that_ended_first_is_raised_with_its_limit(self) -> None:
        with self.assertRaisesRegex(Lapsed, "what was reserved of 'b' had lapsed"):
            with Recorder(RESERVED, *QUEUED, [1, 0]).limiter().acquire(PAIR):
                pass

    def test_an_unexpected_reply_to_a_settlement_is_an_error(self) -> None:
        for reply in None, "OK", [], [1], [1, None], [1, 2]:
            job = Recorder(RESERVED, *QUEUED, reply).limiter().all(PAIR).reservation
            assert job is not None
            self.assertRaises(UnexpectedReply, job.apply)
        self.assertRaises(UnexpectedReply, Recorder([*RESERVED[:6], RESERVED[6][:1]]).limiter().all, PAIR)

    def test_an_unknown_policy_is_named(self) -> None:
        with self.assertRaisesRegex(UnknownPolicy, r"NOPOLICY .*gold \(limit b\)"):
            clauses = [Clause.window("a", Window(1, 60)), Clause.window("b", "@gold")]
            missing = errors.ResponseError("NOPOLICY no policy has the name gold")
            Recorder(*QUEUED, [[0, 1, 0, -1, 60000], missing]).limiter().all(clauses, force=True)

    def test_each_mistake_raises_its_error_before_anything_is_sent(self) -> None:
        for case in MISTAKES:
            error = {"type": TypeError, "value": ValueError}[case["error"]]
            recorder = Recorder(FOUR_RESERVED)
            limiter: Any = recorder.limiter()
            if "cost" in case:
                job = limiter.all(FOUR).reservation
                calls = [lambda: job.set(case["cost"]), lambda: job.apply(case["cost"])]
            else:
                method = getattr(limiter, case.get("call", "all"))
                calls = [lambda: (lambda given: method(*given[0], **given[1]))(arguments(case))]
            sent = len(recorder.sent)
            for call in calls:
                with self.subTest(says=case["says"]):
                    self.assertRaises(error, call)
                    self.assertEqual(len(recorder.sent), sent)

    def test_a_mistake_raises_before_anything_is_sent(self) -> None:
        recorder = Recorder(FOUR_RESERVED)
        limiter: Any = recorder.limiter()
        window = Window(9, 60)
        mistakes: list[tuple[Callable[[], Any], type[Exception], str]] = [
            (lambda: limiter.acquire([Clause.window("a", window)]), ValueError, "made by Clause.acquire"),
            (lambda: limiter.reserve([Clause.acquire("a", window, check=True)]), ValueError, "made by Clause.acquire"),
            (lambda: limiter.acquire(PAIR, lease="5s"), ValueError, "takes block, by, weight and limits"),
            (lambda: limiter.acquire(PAIR, settle="apply"), ValueError, "single limit"),
            (lambda: limiter.reserve(PAIR, window), ValueError, "takes block, by, weight and limits"),
            (lambda: limiter.reserve(7), TypeError, "a key must be str or bytes"),
            (lambda: limiter.all(iter(PAIR)), TypeError, "clauses must be a list"),
            (lambda: limiter.all(iter(PAIR), force=True), TypeError, "clauses must be a list"),
            (lambda: limiter.all_ro("k"), TypeError, "clauses must be a list"),
            (lambda: limiter.reserve("k"), TypeError, "must be a Window"),
            (lambda: Clause.window("a", window, name=7), TypeError, "name must be a str"),  # type: ignore[arg-type]
        ]
        for call, error, text in mistakes:
            with self.subTest(text=text), self.assertRaisesRegex(error, text):
                call()
        self.assertEqual(recorder.sent, [])
        job = limiter.all(FOUR).reservation
        self.assertRaisesRegex(TypeError, "must be an integer", job.apply, {"a": 0.5})
        self.assertRaisesRegex(ValueError, "must not be used together", job.apply, {"a": 1}, quantity={"a": 2})
        interval = job._renewal_seconds
        self.assertRaisesRegex(ValueError, "lease must be at least 1 ms, not .0s.", job.renew, "0s")
        self.assertEqual((len(recorder.sent), job._renewal_seconds), (1, interval))

    def test_a_reservation_is_entered_once_at_a_time(self) -> None:
        async def check(limiter: Any) -> None:
            for limits in ("k", semaphore(5)), ([Clause.acquire("k", semaphore(5))],):
                job = limiter.acquire(*limits)
                await done(limiter.reserve("k", semaphore(5), 5, id="other"))
                with self.assertRaises(Denied):
                    async with entered(job):
                        self.fail("entered")
                await done(limiter.release("k", "other"))
                for _ in range(2):
                    async with entered(job):
                        with self.assertRaisesRegex(RuntimeError, "acquire.* for each block"):
                            async with entered(job):
                                self.fail("entered")
                        self.assertEqual(len(await done(limiter.held("k"))), 1)
                    self.assertEqual(await done(limiter.held("k")), [])

        for module in redis_ratelimit, redis_ratelimit.asyncio:
            asyncio.run(check(module.MemoryLimiter()))

    def test_replies_with_reservations_can_be_compared_and_copied(self) -> None:
        one, other = (Recorder(RESERVED).limiter().all(PAIR) for _ in range(2))
        self.assertEqual(one, other)
        copied = pickle.loads(pickle.dumps(one))
        self.assertEqual((copied, copied.reservation), (one, None))

    def test_without_redis_unreachable_decides_several_limits(self) -> None:
        lost = errors.ConnectionError("refused")
        with Recorder(lost).limiter(unreachable="allow").acquire(PAIR) as job:
            job.set({"a": 5})
            self.assertEqual((job.reply.reachable, job.ids, job.renew()), (False, {}, True))
        with self.assertRaises(Denied), Recorder(lost).limiter(unreachable="deny").acquire(PAIR):
            self.fail("entered")
        with self.assertRaises(errors.ConnectionError), Recorder(lost).limiter().acquire(PAIR):
            self.fail("entered")
        # What was used is always counted, and a lease that cannot be settled ends by itself.
        charged = Recorder(lost).limiter(unreachable="deny").all([Clause.window("a", Window(9, 60))], force=True)
        self.assertEqual((charged.allowed, charged.reachable), (True, False))
        with Recorder(RESERVED, lost).limiter(unreachable="allow").acquire(PAIR):
            pass

    def test_reservations_of_a_memory_limiter_are_settled_there(self) -> None:
        memory = MemoryLimiter()
        lost = errors.ConnectionError("refused")

        async def check(recorder: Recorder) -> None:
            limiter = recorder.limiter(unreachable=memory)
            async with entered(limiter.acquire(llm_call("u"))) as job:
                self.assertEqual((job.reply.reachable, sorted(job.ids)), (False, ["calls", "dollars", "tokens"]))
                self.assertTrue(await done(job.renew("1min")))
                job.set({"tokens": 100})
            self.assertEqual((len(recorder.sent), memory.held("u:tpm"), memory.held("u:calls")), (1, [], []))

        asyncio.run(check(Recorder(lost)))
        asyncio.run(check(AsyncRecorder(lost)))
        self.assertEqual(memory.window_ro("u:tpm", TOKENS).remaining, 800)

    def test_a_memory_limiter_takes_limits_from_its_own_hash_and_closes_its_own_keys(self) -> None:
        memory = MemoryLimiter()
        memory.define("limits", "rpm", "WINDOW 3 1min")

        async def check(recorder: Recorder) -> None:
            limiter: Any = recorder.limiter(unreachable=memory)
            clauses, options = [Clause.acquire("k", "@rpm", 0)], {"limits": "limits"}
            wait = {**options, "block": "1ms", "by": "acme"}
            for reply in (
                await done(limiter.all(clauses, **wait)),
                await done(limiter.all_ro(clauses, **options)),
                await done(limiter.reserve([Clause.acquire("k", "@rpm")], **wait)),
            ):
                self.assertEqual((reply.limit, reply.allowed, reply.reachable), (3, True, False))
            await done(limiter.close("k", TOKENS, "30s"))

        for kind in Recorder, AsyncRecorder:
            asyncio.run(check(kind(*[errors.ConnectionError("refused")] * 4)))
            self.assertFalse(memory.window("k", TOKENS).allowed)
            memory.reset("k")

    def test_a_fallback_without_reservations_settles_limit_by_limit(self) -> None:
        class Own:
            """Has the methods of a limiter, but no reservations of several limits."""

            def __init__(self) -> None:
                self.memory = MemoryLimiter()

            def __getattr__(self, name: str) -> Any:
                if name.startswith("_"):
                    raise AttributeError(name)
                return getattr(self.memory, name)

            def reserve(self, *args: Any) -> Any:
                return copy.copy(self.memory.reserve(*args))

        own = Own()
        with Recorder(errors.ConnectionError()).limiter(unreachable=own).acquire(llm_call("u")) as job:
            job.set({"tokens": 7})
        self.assertEqual((own.window_ro("u:tpm", TOKENS).remaining, own.held("u:calls")), (993, []))


plain = make(LIBRARIES[0], port=PORT, decode_responses=True)


class OnAServer(unittest.TestCase):
    def each(self, body: Callable[[Any, str], Awaitable[None]]) -> None:
        """Runs a test with both limiters on a server, in a cluster and in memory."""
        for place, library, folder in self.kinds():
            with self.subTest(library=library, folder=folder, place=place):
                plain.flushall()
                asyncio.run(self.run_in(place, library, folder, body))

    def at_once(self, body: Callable[[Any, str], Awaitable[None]]) -> None:
        """Runs a test that takes long with all of them at the same time."""

        async def run() -> None:
            await asyncio.gather(*(self.run_in(*kind, body) for kind in self.kinds()))

        plain.flushall()
        asyncio.run(run())

    def kinds(self) -> list[tuple[str, str, str]]:
        places = product(("server", "cluster"), LIBRARIES, ("", ".asyncio"))
        return [*places, *(("memory", LIBRARIES[0], folder) for folder in ("", ".asyncio"))]

    async def run_in(self, place: str, library: str, folder: str, body: Callable[[Any, str], Awaitable[None]]) -> None:
        module = import_module(f"redis_ratelimit{folder}")
        if place == "memory":
            limiter = module.MemoryLimiter()
        elif place == "cluster":
            limiter = module.Limiter(
                make(library, folder, cluster=True, host="127.0.0.1", port=CLUSTER_PORT), deadline=30.0
            )
        else:
            limiter = module.Limiter(make(library, folder, port=PORT), deadline=30.0)
        # The cluster is not flushed, so each run has its own keys.
        tag = f"{{{place}:{os.getpid()}:{time.time_ns()}}}"
        try:
            await body(limiter, tag)
        finally:
            await close(limiter)

    async def left(self, limiter: Any, tag: str) -> list[int]:
        """Returns the tokens and the dollars that are left, and the number of running calls."""
        tokens = await done(limiter.window_ro(f"{tag}:tpm", TOKENS))
        dollars = await done(limiter.window_ro(f"{tag}:usd", DOLLARS))
        return [tokens.remaining, dollars.remaining, len(await done(limiter.held(f"{tag}:calls")))]

    def test_the_true_cost_of_each_limit_is_counted_by_name(self) -> None:
        async def body(limiter: Any, tag: str) -> None:
            async with entered(limiter.acquire(llm_call(tag))) as job:
                self.assertEqual(await self.left(limiter, tag), [600, 4100, 1])
                # More than was reserved counts in full.
                job.set({"tokens": 1300})
            self.assertEqual(await self.left(limiter, tag), [0, 4100, 0])
            self.assertEqual((await done(limiter.window_ro(f"{tag}:tpm", Window(2000, "1h")))).remaining, 700)

        self.each(body)

    def test_all_and_reserve_return_the_same_reservation(self) -> None:
        async def body(limiter: Any, tag: str) -> None:
            for ask in limiter.all, limiter.reserve:
                reply = await done(ask(llm_call(tag, tokens=10, dollars=10)))
                self.assertEqual(reply.paid, ("requests", "tokens", "dollars", "calls"))
                self.assertIs(await done(reply.reservation.renew("1min")), True)
                self.assertIs(await done(reply.reservation.apply({"tokens": 3, "dollars": 0})), True)
                # A second time there is nothing left to settle, and nothing is counted.
                self.assertIs(await done(reply.reservation.apply({"tokens": 3})), False)
                self.assertIs(await done(reply.reservation.release()), False)
            self.assertEqual(await self.left(limiter, tag), [994, 5000, 0])
            reply = await done(limiter.all(llm_call(tag, tokens=10)))
            async with entered(reply.reservation) as job:
                job.set({"tokens": 4})
            self.assertEqual(await self.left(limiter, tag), [990, 4100, 0])

        self.each(body)

    def test_a_closed_key_keeps_everybody_away(self) -> None:
        async def body(limiter: Any, tag: str) -> None:
            for method, limit in ("throttle", Rate(8, 9, "1min")), ("window", TOKENS):
                key = f"{tag}:{method}"
                closed = await done(limiter.close(key, limit, "30s"))
                self.assertEqual((closed.allowed, closed.remaining), (True, 0))
                for options in {}, {"block": "1s"}:
                    reply = await done(getattr(limiter, method)(key, limit, **options))
                    self.assertTrue(not reply.allowed and 20_000 < reply.retry_after_ms <= 30_000, reply)
                # A shorter time does not open it earlier.
                reply = await done(limiter.close(key, limit, "1s"))
                self.assertGreater(reply.reset_after_ms, 20_000)

        self.each(body)

    def test_leases_are_renewed_while_the_work_runs(self) -> None:
        async def body(limiter: Any, tag: str) -> None:
            clauses = [
                Clause.acquire(f"{tag}:tpm", TOKENS, 10, name="tokens", lease="3s"),
                Clause.acquire(f"{tag}:calls", semaphore(2), name="calls"),
            ]
            # The place is free when the first lease ends. Then the call that waits for it is granted.
            await done(limiter.reserve(f"{tag}:one", semaphore(1), lease="200ms"))
            alone = limiter.acquire(f"{tag}:one", semaphore(1), lease="3s", block="1min")
            async with entered(limiter.acquire(clauses)) as job, entered(alone) as one:
                await asyncio.sleep(4)
                self.assertEqual(len(await done(limiter.held(f"{tag}:tpm"))), 1)
                self.assertEqual([held.id for held in await done(limiter.held(f"{tag}:one"))], [one.id])
                self.assertFalse(job.lost.is_set() or one.lost.is_set())
                job.set({"tokens": 4})
            self.assertEqual((await done(limiter.window_ro(f"{tag}:tpm", TOKENS))).remaining, 996)
            # Nothing is renewed after the block, or without one.
            reply = await done(limiter.all(clauses))
            await asyncio.sleep(4)
            self.assertIs(await done(reply.reservation.apply({"tokens": 4})), False)

        self.at_once(body)

    def test_a_block_learns_that_its_lease_is_lost(self) -> None:
        async def body(limiter: Any, tag: str) -> None:
            clause = Clause.acquire(f"{tag}:k", TOKENS, lease="4s")
            for limits, options in (([clause],), {}), ((f"{tag}:k", TOKENS), {"lease": "4s"}):
                with self.assertRaises(Lapsed):
                    async with entered(limiter.acquire(*limits, **options)) as job:
                        self.assertEqual(await done(limiter.release(f"{tag}:k", *job.ids.values())), 1)
                        await until_soon(job.lost.is_set, "the loss")

        with self.assertLogs("redis_ratelimit", "WARNING"):
            self.at_once(body)

    def test_a_lease_is_lost_when_redis_could_not_be_reached_until_its_end(self) -> None:
        async def check(folder: str) -> None:
            module = import_module(f"redis_ratelimit{folder}")
            with Server() as server:
                client = make(LIBRARIES[0], folder, port=server.port)
                limiter = module.Limiter(client, unreachable="allow", deadline=1)

                async def is_reached() -> bool:
                    return bool((await done(limiter.window_ro("k", TOKENS))).reachable)

                await until_soon(is_reached, "a connection")
                begin = time.monotonic()
                with suppress(Lapsed):
                    async with entered(limiter.acquire("k", TOKENS, lease="600ms")) as job:
                        server.stop()
                        await until_soon(job.lost.is_set, "the loss")
                        self.assertTrue(0.6 <= time.monotonic() - begin < PATIENCE)
                        server.go_on()
                await close(limiter)

        for folder in "", ".asyncio":
            with self.subTest(folder=folder):
                asyncio.run(check(folder))

    def test_a_server_that_hangs_delays_the_renewals_on_no_other(self) -> None:
        """Synchronous limiters renew in threads."""
        cluster = Limiter(make(LIBRARIES[0], cluster=True, host="127.0.0.1", port=CLUSTER_PORT), deadline=30)
        one = [*RESERVED[:6], RESERVED[6][:1]]
        away = Recorder(one, one, errors.ConnectionError(), 1, 1, 1).limiter(unreachable=MemoryLimiter())
        # "b" lies in the first third of the slots, "a" in the last.
        slow = [Clause.acquire(f"{{b}}:{os.getpid()}", Window(9, 60), lease="2500ms")]
        fast = [Clause.acquire(f"{{a}}:{os.getpid()}", Window(9, 60), lease="2500ms")]

        def threads() -> int:
            return sum(thread.name == "redis-ratelimit renewals" for thread in threading.enumerate())

        for name, hangs, other in [
            ("limiters", MemoryLimiter(), MemoryLimiter()),
            ("nodes of a cluster", cluster, cluster),
            ("a server and the fallback", away, away),
        ]:
            until(lambda: not threads(), "the end of threads that have nothing to do")
            answer, send = threading.Event(), hangs._core.send

            def hang(call: calls.Call[Any], send: Any = send, answer: Any = answer) -> Any:
                if call.words[0] == "RL.RENEW" and call.key == slow[0].key:
                    answer.wait(PATIENCE)
                return send(call)

            with self.subTest(name), mock.patch.object(hangs._core, "send", hang):
                with suppress(Lapsed), hangs.acquire(slow), hangs.acquire(slow), other.acquire(fast) as job:
                    time.sleep(4)
                    self.assertEqual(threads(), 2)
                    answer.set()
                    self.assertTrue(job.renew())

    def test_a_renewal_that_hangs_does_not_stop_the_renewals(self) -> None:
        async def check(folder: str) -> None:
            module = import_module(f"redis_ratelimit{folder}")
            limiter = module.Limiter(make(LIBRARIES[0], folder, port=proxy.port), deadline=60)
            names = [f"{folder}:{at}" for at in range(2)]
            one, other = (limiter.acquire([Clause.acquire(name, TOKENS, lease="3s")]) for name in names)
            async with entered(one), entered(other):
                # The renewals are due after a second. What is sent before the connections are whole again gets no reply.
                proxy.drops = True
                await asyncio.sleep(1.5)
                proxy.drops = False
                await asyncio.sleep(2.5)
                self.assertEqual([len(plain.execute_command("RL.HELD", name)) for name in names], [1, 1])
            await close(limiter)

        with Proxy(PORT) as proxy:
            for folder in "", ".asyncio":
                with self.subTest(folder=folder):
                    asyncio.run(check(folder))

    def test_until_a_renewal_is_answered_the_shorter_lease_sets_the_interval(self) -> None:
        async def check(module: Any, before: str, after: str, executed_first: bool) -> None:
            limiter, answer = module.MemoryLimiter(), threading.Event()
            send, renewals = limiter._core.send, 0

            def slow(call: calls.Call[Any]) -> Any:
                """Sends a call. The reply to a renewal with a lease is late, or the renewal itself is."""
                nonlocal renewals
                renewals += call.words[0] == "RL.RENEW"
                if "LEASE" not in call.words:
                    return send(call)
                reply = send(call) if executed_first and module is redis_ratelimit else None
                if module is redis_ratelimit.asyncio:
                    return slow_task(call)
                answer.wait(PATIENCE)
                return reply if executed_first else send(call)

            async def slow_task(call: calls.Call[Any]) -> Any:
                reply = await send(call) if executed_first else None
                while not answer.is_set():
                    await asyncio.sleep(0.01)
                return reply if executed_first else await send(call)

            async with entered(limiter.acquire([Clause.acquire("a", TOKENS, lease=before)])) as job:
                with mock.patch.object(limiter._core, "send", slow):
                    synchronous = module is redis_ratelimit
                    renewal = asyncio.to_thread(job.renew, after) if synchronous else job.renew(after)
                    renewing = asyncio.ensure_future(renewal)
                    try:
                        await asyncio.sleep(3.3)
                        self.assertEqual(len(await done(limiter.held("a"))), 1, (before, after))
                    finally:
                        answer.set()
                    self.assertIs(await renewing, True, (before, after))
                    renewals = 0
                    await asyncio.sleep(2.2)
            # After that the new lease does, once the renewal that was already planned is done.
            if after == "1min":
                self.assertLessEqual(renewals, 1)
            else:
                self.assertGreaterEqual(renewals, 2)

        async def run() -> None:
            modules = redis_ratelimit, redis_ratelimit.asyncio
            longer = [check(module, "2s", "1min", False) for module in modules]
            shorter = [check(module, "1min", "2s", True) for module in modules]
            await asyncio.gather(*longer, *shorter)

        asyncio.run(run())

    def test_a_reservation_is_settled_in_another_event_loop(self) -> None:
        limiter = redis_ratelimit.asyncio.Limiter(make(LIBRARIES[0], ".asyncio", port=PORT), deadline=30)
        for settle in "renew", "apply", "release":
            plain.flushall()
            reply: Any = asyncio.run(limiter.all(llm_call("u")))
            with self.subTest(settle=settle):
                self.assertIs(asyncio.run(getattr(reply.reservation, settle)()), True)

    def test_callers_that_wait_for_several_limits_take_turns(self) -> None:
        async def body(limiter: Any, tag: str) -> None:
            clauses = [Clause.window(f"{tag}:rpm", TOKENS), Clause.acquire(f"{tag}:jobs", semaphore(1))]
            granted: list[str] = []

            async def work(caller: str) -> None:
                async with entered(limiter.acquire(clauses, block="1min", by=caller)):
                    granted.append(caller)

            works = []
            async with entered(limiter.acquire(clauses)):
                for caller in "acme", "acme", "acme", "other":
                    works.append(asyncio.ensure_future(work(caller)))
                    await self.until_waiting(limiter, f"{tag}:jobs", len(works))
            await asyncio.gather(*works)
            self.assertEqual(granted, ["acme", "other", "acme", "acme"])

        self.each(body)

    async def until_waiting(self, limiter: Any, key: str, count: int) -> None:
        end = time.monotonic() + PATIENCE
        while (state := await done(limiter.info(key))) is None or state.waiting != count:
            self.assertLess(time.monotonic(), end, state)
            await asyncio.sleep(0.005)

    def test_a_call_that_is_cancelled_while_it_waits_for_several_limits_holds_nothing(self) -> None:
        async def body(limiter: Any, tag: str) -> None:
            if isinstance(limiter, Limiter):
                return  # A thread cannot be cancelled.
            async with limiter.acquire(f"{tag}:calls", semaphore(2), 2):
                waits = [asyncio.ensure_future(limiter.all(llm_call(tag), block="1min", by="acme")) for _ in range(2)]
                await self.until_waiting(limiter, f"{tag}:calls", 2)
                waits[0].cancel()
                await self.until_waiting(limiter, f"{tag}:calls", 1)
                self.assertEqual(await self.left(limiter, tag), [1000, 5000, 1])
            # The other is granted, and reserves for both limits.
            reply = await waits[1]
            self.assertEqual(await self.left(limiter, tag), [600, 4100, 1])
            await reply.reservation.release()
            self.assertEqual(await self.left(limiter, tag), [1000, 5000, 0])
            self.assertTrue(waits[0].cancelled())

        self.each(body)

    def test_a_hash_of_limits_counts_from_the_next_call(self) -> None:
        cluster = make(LIBRARIES[0], cluster=True, host="127.0.0.1", port=CLUSTER_PORT)

        async def body(limiter: Any, tag: str) -> None:
            limits, clauses = f"{tag}:limits", [Clause.window(f"{tag}:rpm", "@rpm", 2)]
            client = cluster if tag.startswith("{cluster") else plain
            hset, hdel = getattr(limiter, "define", client.hset), getattr(limiter, "define", client.hdel)
            for definition, limit in ("WINDOW 5 1min", 5), ("WINDOW 3 1min", 3):
                hset(limits, "rpm", definition)
                self.assertEqual((await done(limiter.all_ro(clauses, limits=limits))).limit, limit)
                reply = await done(limiter.all(clauses, limits=limits, block="1ms"))
                self.assertEqual((reply.limit, reply.allowed), (limit, limit == 5))
            hdel(limits, "rpm", *((None,) if hdel == hset else ()))
            with self.assertRaisesRegex(UnknownPolicy, "rpm"):
                await done(limiter.reserve([Clause.acquire(f"{tag}:rpm", "@rpm")], limits=limits))

        self.each(body)
        cluster.close()

    def test_keys_of_several_slots_are_not_charged_as_one_step(self) -> None:
        with make(LIBRARIES[0], cluster=True, host="127.0.0.1", port=CLUSTER_PORT) as cluster:
            limiter = Limiter(cluster, deadline=30)
            run_id = f"{os.getpid()}:{time.time_ns()}"
            clauses = [Clause.window(f"{run_id}:{name}", TOKENS) for name in "abcdef"]
            with self.assertRaisesRegex(errors.ResponseError, "^CROSSSLOT"):
                limiter.all(clauses, force=True)
            self.assertEqual([limiter.info(clause.key) for clause in clauses], [None] * 6)
            limiter.close()

    def test_a_grant_after_the_deadline_is_given_back(self) -> None:
        clauses = [Clause.acquire("k", Window(9, "1h"), lease="1h"), Clause.window("w", TOKENS)]
        with Server() as server:
            limiter = Limiter(make(LIBRARIES[0], port=server.port), deadline=1)
            waiting: dict[str, Any] = {"block": "1ms", "by": "acme"}
            for options, left in ({}, 999), ({}, 998), (waiting, 997):
                # Opens a connection for the call. The second time there is another one for the release.
                until(lambda: limiter.window("other", TOKENS), "a connection")
                server.stop()
                try:
                    with self.assertRaises(errors.TimeoutError):
                        limiter.all(clauses, **options)
                finally:
                    server.go_on()
                # The server executes the call when it continues, and the lease lasts.
                until(lambda: limiter.window_ro("w", TOKENS).remaining == left, "the late call")
                until(lambda: not limiter.held("k"), "a release")
            limiter.close()

    def test_a_late_grant_to_a_cancelled_task_is_given_back(self) -> None:
        async def run(server: Server) -> None:
            limiter = redis_ratelimit.asyncio.Limiter(make(LIBRARIES[0], ".asyncio", port=server.port), deadline=30.0)
            # A connection for each of the five calls.
            tags = "u", "v", "w", "x", "y"
            await asyncio.gather(*(limiter.window(f"{tag}:rpm", Window(60, "1min")) for tag in tags))

            async def enter(*args: Any) -> None:
                async with limiter.acquire(*args):
                    self.fail("entered")

            server.stop()
            alone = "alone", semaphore(9)
            works: list[Awaitable[Any]] = [enter(llm_call("u")), enter(*alone), limiter.reserve(*alone)]
            works += [limiter.all(llm_call("v")), limiter.all(llm_call("w"), block="1min")]
            tasks = [asyncio.ensure_future(work) for work in works]
            await asyncio.sleep(0.3)
            for task in tasks:
                task.cancel()
            for task in tasks:
                with self.assertRaises(asyncio.CancelledError):
                    await task
            server.go_on()
            # The server executed the calls when it continued, and the leases last for 20 seconds.
            begin = time.monotonic()

            def are_counted() -> bool:
                return all(server.ask("RL.WINDOW_RO", f"{tag}:rpm", 60, "1min")[2] == 58 for tag in ("u", "v", "w"))

            def are_held() -> bool:
                return any(server.ask("RL.HELD", key) for key in ("u:tpm", "v:tpm", "w:tpm", "alone"))

            await until_soon(are_counted, "the late calls")
            await until_soon(lambda: not are_held(), "their release")
            self.assertLess(time.monotonic() - begin, 10)
            for tag in "u", "v", "w":
                self.assertEqual(await self.left(limiter, tag), [1000, 5000, 0])
            await limiter.aclose()

        with Server() as server:
            asyncio.run(run(server))
