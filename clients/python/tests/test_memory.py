"""MemoryLimiter, and the examples of Python in docs/testing.md. RATELIMIT_HELD_PORT is the port of a server with a held
clock, to compare it with."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import build_backend
import redis_ratelimit
import redis_ratelimit.asyncio
from redis_ratelimit import Clause, Duplicate, Limiter, MemoryLimiter, Rate, Reply, UnknownPolicy, Window, semaphore

from . import servers
from .fixtures import CASES, LIBRARIES, Recorder, arguments, close, done, make
from .servers import PATIENCE, Server, until

#: A time that is not close to midnight in any time zone.
NOON = 1_795_238_388.0
POLICIES = "free THROTTLE 15 30 60; day WINDOW 1000 1d; rpm WINDOW 9 1min; tpm WINDOW 1000 1min; jobs WINDOW 5 0"
#: The hash of limits of each case that has one.
LIMITS = {"rpm": "WINDOW 500 1min", "credits": "WINDOW 7 1y BAN 1s"}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def comparable(found: Any) -> Any:
    """Returns a reply as a value that can be compared, without an id that the server made."""
    if isinstance(found, list):
        return [comparable(each) for each in found]
    if isinstance(found, Reply):
        fields = {**vars(found), "answers": comparable(list(getattr(found, "answers", ())))}
        return {**fields, "id": found.id if found.id is None or len(str(found.id)) < 16 else "made"}
    return found


class Answers(unittest.TestCase):
    def test_every_case_is_answered_as_by_a_server(self) -> None:
        """Asks by each client library over RESP2 and RESP3, with threads and with asyncio."""
        # Its clock stands still, so that both decide at the same time.
        port = int(os.environ["RATELIMIT_HELD_PORT"])
        plain = make(LIBRARIES[0], port=port)
        plain.config_set("ratelimit.policies", POLICIES)

        async def check(library: str, folder: str, protocol: int) -> None:
            kind: Any = redis_ratelimit.asyncio.Limiter if folder else Limiter
            limiter = kind(make(library, folder, port=port, protocol=protocol), deadline=PATIENCE)
            for case in CASES:
                plain.flushall()
                plain.execute_command("RL.TOP", "RESET")
                if limits := case.get("options", {}).get("limits"):
                    plain.hset(limits, mapping=LIMITS)
                with self.subTest(library=library + folder, protocol=protocol, words=case["words"]):
                    await self.compare(case, limiter)
            await close(limiter)

        try:
            for each in itertools.product(LIBRARIES, ("", ".asyncio"), (2, 3)):
                asyncio.run(check(*each))
        finally:
            plain.config_set("ratelimit.policies", "")
            plain.close()

    async def compare(self, case: dict[str, Any], limiter: Any) -> None:
        module: Any = redis_ratelimit if isinstance(limiter, Limiter) else redis_ratelimit.asyncio
        memory = module.MemoryLimiter(clock=lambda: NOON, policies=POLICIES)
        positional, options = arguments(case)
        for name, definition in LIMITS.items():
            memory.define(options.get("limits", "limits"), name, definition)
        # Neither clock moves, so a call that has to wait would wait forever.
        for turn in range(1 if "block" in options else 3):
            answers: list[Any] = []
            for each in limiter, memory:
                try:
                    answers.append(await done(getattr(each, case["call"])(*positional, **options)))
                except Exception as error:
                    answers.append((type(error).__name__, str(error)))
            self.assertFalse(turn == 0 and isinstance(answers[0], tuple), answers[0])
            found = [comparable(answer) for answer in answers]
            if case["call"] == "policies":
                # The counts of the server are those of all cases so far.
                found = [[policy[:2] for policy in answer] for answer in answers]
            self.assertEqual(found[1], found[0], f"turn {turn}")

    def test_without_a_clock_it_follows_a_patched_time(self) -> None:
        """Libraries such as freezegun patch it."""
        limiter = MemoryLimiter()
        window = Window(1, "1h")
        self.assertTrue(limiter.window("k", window).allowed)
        with mock.patch("time.time", return_value=time.time() + 3601):
            self.assertTrue(limiter.window("k", window).allowed)
            self.assertFalse(limiter.window("k", window).allowed)
            self.assertTrue(limiter.throttle("t", Rate(0, 1, "1min")).allowed)
        with mock.patch("time.time", return_value=time.time() + 3661):
            self.assertTrue(limiter.throttle("t", Rate(0, 1, "1min")).allowed)

    def test_error_replies_are_those_of_the_client_libraries(self) -> None:
        limiter = MemoryLimiter()
        with self.assertRaisesRegex(Exception, "^max_burst ") as caught:
            limiter.throttle("k", Rate(-1, 2, 3))
        for library in LIBRARIES:
            errors = __import__(f"{library}.exceptions").exceptions
            self.assertIsInstance(caught.exception, errors.ResponseError)
        limiter.reserve("held", Window(5, 60), id="job")
        with self.assertRaisesRegex(Duplicate, "^DUPLICATE the id"):
            limiter.reserve("held", Window(5, 60), id="job")
        with self.assertRaisesRegex(UnknownPolicy, "^NOPOLICY no policy has the name gold$"):
            limiter.window("k", "@gold")
        key: Any
        for key in 5, None:
            with self.assertRaisesRegex(TypeError, "a key must be"):
                limiter.window(key, Window(1, 2))
        with self.assertRaisesRegex(TypeError, "limit must be a Rate"):
            limiter.throttle("k", Window(1, 2))  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "quantity must be an integer"):
            limiter.throttle("k", Rate(1, 2, 3), True)
        with self.assertRaisesRegex(TypeError, "nonsense"):
            limiter.throttle("k", Rate(1, 2, 3), nonsense=1)  # type: ignore[call-arg]

    def test_wrong_clocks_shares_and_settings_are_refused(self) -> None:
        wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (TypeError, "clock must be a function", {"clock": 5}),
            (TypeError, "share must be a number", {"share": "1/4"}),
            (TypeError, "share must be a number", {"share": True}),
            (ValueError, "share must be above 0", {"share": 0}),
            (ValueError, "share must be above 0", {"share": 1.5}),
            (ValueError, "share must be above 0", {"share": float("nan")}),
            (TypeError, "policies must be a text or a mapping", {"policies": ["free THROTTLE 1 30 60"]}),
            (TypeError, "settings must be a mapping", {"settings": "timezone Asia/Tokyo"}),
            (ValueError, "polic", {"policies": "free THROTTLE 1"}),
            (ValueError, "no-such", {"settings": {"no-such": "1"}}),
        ]
        for kind, text, options in wrong:
            with self.subTest(**options), self.assertRaisesRegex(kind, text):
                MemoryLimiter(**options)
        for now in -1.0, float("nan"), "5":
            with self.subTest(now=now), self.assertRaisesRegex(ValueError, "clock must return seconds"):
                MemoryLimiter(clock=lambda now=now: now).throttle("k", Rate(1, 2, 3))  # type: ignore[misc]

    def test_policies_are_given_by_name_or_as_in_the_setting(self) -> None:
        for policies in (
            "free THROTTLE 1 30 60; day WINDOW 3 1d",
            {"free": "THROTTLE 1 30 60", "day": "WINDOW 3 1d"},
            {"@free": "THROTTLE 1 30 60", "@day": "WINDOW 3 1d"},
        ):
            limiter = MemoryLimiter(Clock(), policies=policies)
            self.assertEqual(limiter.throttle("k", "@free").limit, 2)
            self.assertEqual(limiter.window("w", "@day", 4).allowed, False)
            found = [(policy.name, policy.definition, policy.allowed, policy.denied) for policy in limiter.policies()]
            self.assertEqual(found, [("day", "WINDOW 3 1d", 0, 1), ("free", "THROTTLE 1 30 60", 1, 0)])

    def test_leases_are_decided_in_the_process_too(self) -> None:
        limiter = MemoryLimiter()
        with limiter.local("k", Window(5, "1h")) as local:
            self.assertEqual([local.take().allowed for _ in range(6)], [True] * 5 + [False])
        self.assertEqual(limiter.window_ro("k", Window(5, "1h")).remaining, 0)


class Waiting(unittest.TestCase):
    def test_calls_wait_in_order_until_another_gives_back(self) -> None:
        limiter = MemoryLimiter(Clock())
        limiter.reserve("s", semaphore(1), id="first")
        order: list[str] = []

        def wait(name: str) -> None:
            limiter.reserve("s", semaphore(1), id=name, block="1min")
            order.append(name)

        threads = []
        for name in "second", "third":
            threads.append(threading.Thread(target=wait, args=[name]))
            threads[-1].start()
            until(lambda: self.waiting(limiter) == len(threads), "a waiting call")
        self.assertEqual(order, [])
        limiter.release("s", "first")
        threads[0].join(60)
        self.assertEqual(order, ["second"])
        limiter.release("s", "second")
        threads[1].join(60)
        self.assertEqual(order, ["second", "third"])

    @staticmethod
    def waiting(limiter: Any, key: str = "s") -> int:
        info = limiter.info(key)
        return (info.waiting or 0) if info else 0

    def test_a_call_waits_by_the_system_clock(self) -> None:
        limiter = MemoryLimiter()
        rate = Rate(0, 10, "1s")
        began = time.monotonic()
        limiter.throttle("k", rate)
        self.assertTrue(limiter.throttle("k", rate, block="1min").allowed)
        self.assertGreaterEqual(time.monotonic() - began, 0.08)
        # A call that cannot be allowed in time is denied at once.
        hourly = Rate(0, 1, "1h")
        limiter.throttle("hourly", hourly)
        began = time.monotonic()
        self.assertFalse(limiter.throttle("hourly", hourly, block="10min").allowed)
        self.assertLess(time.monotonic() - began, 60)

    def test_a_call_waits_by_the_clock_of_a_test(self) -> None:
        clock = Clock()
        limiter = MemoryLimiter(clock)
        rate = Rate(0, 1, "1h")
        limiter.throttle("k", rate)
        replies: list[Reply] = []
        thread = threading.Thread(target=lambda: replies.append(limiter.throttle("k", rate, block="2h")))
        thread.start()
        until(lambda: self.waiting(limiter, "k") == 1, "a waiting call")
        self.assertEqual(replies, [])
        clock.now += 3600
        thread.join(60)
        self.assertTrue(replies[0].allowed)

    def test_a_call_that_is_interrupted_after_its_grant_gives_it_back(self) -> None:
        limiter = MemoryLimiter(Clock())
        limiter.reserve("s", semaphore(1), id="first")

        def interrupted(waiter: Any, seconds: float | None) -> None:
            # The release grants the place to the call that waits, which has not seen it yet.
            limiter.release("s", "first")
            raise KeyboardInterrupt

        with mock.patch.object(limiter._core, "sleep", interrupted), self.assertRaises(KeyboardInterrupt):
            limiter.reserve("s", semaphore(1), id="second", block="0s")
        self.assertEqual(limiter.held("s"), [])

    def test_the_engine_never_calls_python_while_it_is_locked(self) -> None:
        # os.urandom lets another thread run. If that thread called the engine, both would wait forever.
        ask = MemoryLimiter()._memory.ask
        with mock.patch("os.urandom") as urandom:
            ids = {ask(("RL.ACQUIRE", "k", 9, 60, 1, "MS"))[5] for _ in range(2)}
        urandom.assert_not_called()
        self.assertEqual(len(ids), 2)

    def test_a_forked_child_continues_with_a_copy(self) -> None:
        limiter = MemoryLimiter(Clock())
        window = Window(2, "1h")
        limiter.window("k", window)
        limiter.reserve("s", semaphore(1), id="first")
        thread = threading.Thread(target=lambda: limiter.reserve("s", semaphore(1), id="second", block="1min"))
        thread.start()
        until(lambda: self.waiting(limiter) == 1, "a waiting call")
        child = os.fork()
        if child == 0:
            try:
                right = limiter.window("k", window).allowed and not limiter.window("k", window).allowed
                # The child does not have the thread that waited.
                right = right and limiter.release("s", "first") == 1 and limiter.held("s") == []
                os._exit(0 if right else 1)
            except BaseException:
                os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertTrue(limiter.window("k", window).allowed)
        limiter.release("s", "first")
        thread.join(60)
        self.assertEqual([held.id for held in limiter.held("s")], ["second"])


class Asyncio(unittest.TestCase):
    def test_tasks_wait_in_line_and_one_that_is_cancelled_takes_nothing(self) -> None:
        async def check() -> None:
            limiter = redis_ratelimit.asyncio.MemoryLimiter(Clock())
            await limiter.reserve("s", semaphore(1), id="first")
            tasks = []
            for name in "second", "third", "fourth":
                tasks.append(asyncio.ensure_future(limiter.reserve("s", semaphore(1), id=name, block="0s")))
                await asyncio.sleep(0.01)
            tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)
            await limiter.release("s", "first")
            self.assertEqual((await asyncio.wait_for(tasks[1], 60)).id, "third")
            self.assertFalse(tasks[2].done())
            await limiter.release("s", "third")
            self.assertEqual((await asyncio.wait_for(tasks[2], 60)).id, "fourth")

        asyncio.run(check())

    def test_a_task_that_is_cancelled_after_its_grant_gives_it_back_to_the_next(self) -> None:
        async def check() -> None:
            limiter = redis_ratelimit.asyncio.MemoryLimiter(Clock())
            day = Window(2, "1d")
            await limiter.reserve("s", semaphore(1), id="first")
            await limiter.window("w", day, 2)
            waiting: list[asyncio.Future[Reply]] = []
            for call in (
                limiter.reserve("s", semaphore(1), id="second", block="0s"),
                limiter.reserve("s", semaphore(1), id="third", block="0s"),
                limiter.window("w", day, 2, block="0s"),
            ):
                waiting.append(asyncio.ensure_future(call))
                await asyncio.sleep(0.01)
            # Each of these grants a call whose task is cancelled before it runs.
            await limiter.release("s", "first")
            await limiter.reset("w")
            for task in waiting[0], waiting[2]:
                task.cancel()
            await asyncio.gather(waiting[0], waiting[2], return_exceptions=True)
            self.assertEqual([task.cancelled() for task in waiting], [True, False, True])
            self.assertEqual((await asyncio.wait_for(waiting[1], 60)).id, "third")
            self.assertEqual([held.id for held in await limiter.held("s")], ["third"])
            self.assertEqual((await limiter.window_ro("w", day)).remaining, 2)

        asyncio.run(check())

    def test_a_limiter_made_at_import_works_in_several_event_loops(self) -> None:
        limiter = redis_ratelimit.asyncio.MemoryLimiter()

        async def check() -> None:
            await limiter.throttle("k", Rate(0, 20, "1s"))
            self.assertTrue((await limiter.throttle("k", Rate(0, 20, "1s"), block="1min")).allowed)

        asyncio.run(check())
        asyncio.run(check())


class Share(unittest.TestCase):
    def test_a_share_scales_what_is_available(self) -> None:
        limiter = MemoryLimiter(Clock(), share=1 / 4, policies={"day": "WINDOW 10 1d"})
        self.assertEqual(limiter.window("w", Window(10, 60)).limit, 2)
        self.assertEqual(limiter.window("few", Window(3, 60)).limit, 1)
        self.assertEqual(limiter.window("none", Window(0, 60)).allowed, False)
        self.assertEqual(limiter.window("d", "@day").limit, 2)
        reply = limiter.throttle("t", Rate(15, 30, 60), 4)
        # A quarter of 30 a minute is one every 8 s.
        self.assertEqual((reply.limit, reply.remaining, reply.reset_after_ms), (4, 0, 32_000))
        every = limiter.all([Clause.window("{u}a", Window(8, 60)), Clause.acquire("{u}b", semaphore(4))])
        self.assertEqual([answer.limit for answer in every.answers], [2, 1])


class Fallback(unittest.TestCase):
    async def check(self, server: Server, limiter: Any) -> None:
        """Checks the decisions with a server, without it, and with it again."""
        window, rate = Window(8, "1h"), Rate(7, 8, "1h")
        replies = [await done(limiter.window("w", window)) for _ in range(8)]
        self.assertTrue(all(reply.allowed and reply.reachable and reply.limit == 8 for reply in replies))
        self.assertFalse((await done(limiter.window("w", window))).allowed)
        await done(limiter.reserve("s", Window(8, "1h"), id="theirs"))
        server.kill()

        replies = [await done(limiter.window("w", window)) for _ in range(4)]
        self.assertEqual(
            [(reply.allowed, reply.limit, reply.reachable) for reply in replies],
            [(True, 2, False)] * 2 + [(False, 2, False)] * 2,
        )
        self.assertEqual(sum([(await done(limiter.throttle("t", rate))).allowed for _ in range(5)]), 2)
        every = await done(limiter.all([Clause.window("{u}", Window(8, 60))]))
        self.assertEqual((every.limit, every.reachable, every.clause), (2, False, 1))
        ours = await done(limiter.reserve("s", Window(8, "1h"), id="ours"))
        self.assertEqual((ours.id, ours.reachable), ("ours", False))
        both = [await done(limiter.reserve("s2", Window(8, "1h"))) for _ in range(2)]

        server.start()
        end = time.monotonic() + PATIENCE
        while not (await done(limiter.window_ro("w", window))).reachable:
            self.assertLess(time.monotonic(), end)
            await asyncio.sleep(0.02)
        # The server decides again, and each reservation is settled where it was made.
        self.assertEqual((await done(limiter.window("w", window))).limit, 8)
        self.assertEqual(await done(limiter.renew("s", "ours")), True)
        self.assertEqual([await done(limiter.apply("s", "ours")) for _ in range(2)], [True, False])
        await done(limiter.reserve("s2", Window(8, "1h"), id="there"))
        self.assertEqual(await done(limiter.release("s2", "there", *(reply.id for reply in both))), 3)
        self.assertEqual(await done(limiter.held("s2")), [])
        await close(limiter)

    def test_it_decides_while_redis_is_away(self) -> None:
        """Checks both limiters, each with both kinds of MemoryLimiter."""
        for folder, kind in ("", Limiter), (".asyncio", redis_ratelimit.asyncio.Limiter):
            for fallback in MemoryLimiter, redis_ratelimit.asyncio.MemoryLimiter:
                with self.subTest(folder=folder, fallback=fallback), Server() as server:
                    client, memory = make(LIBRARIES[0], folder, port=server.port), fallback(share=1 / 4)
                    asyncio.run(self.check(server, kind(client, unreachable=memory, deadline=30)))

    def test_a_policy_that_is_a_semaphore_is_released_in_the_fallback(self) -> None:
        memory = MemoryLimiter(policies={"jobs": "WINDOW 3 0"})
        limiter = Recorder(ConnectionError("refused")).limiter(unreachable=memory)
        with limiter.acquire("k", "@jobs"):
            self.assertEqual(len(memory.held("k")), 1)
        self.assertEqual(memory.held("k"), [])

    def test_a_call_that_waits_in_the_fallback_does_not_block_the_event_loop(self) -> None:
        async def check() -> None:
            client = make(LIBRARIES[0], ".asyncio", port=1)
            limiter = redis_ratelimit.asyncio.Limiter(client, unreachable=MemoryLimiter(), deadline=0.5)
            await limiter.reserve("s", semaphore(1), id="first")
            task = asyncio.ensure_future(limiter.reserve("s", semaphore(1), id="second", block="1min"))
            await asyncio.sleep(0.05)
            self.assertFalse(task.done())
            self.assertEqual(await limiter.release("s", "first"), 1)
            self.assertEqual((await asyncio.wait_for(task, 60)).id, "second")
            await limiter.aclose()

        asyncio.run(check())


class Missing(unittest.TestCase):
    def test_without_the_extension_only_memory_and_local_limiters_fail(self) -> None:
        program = (
            "import sys; sys.modules['redis_ratelimit._engine'] = None\n"
            "import redis_ratelimit, redis_ratelimit.asyncio\n"
            f"import {LIBRARIES[0]} as redis, {LIBRARIES[0]}.asyncio\n"
            "window = redis_ratelimit.Window(9, 60)\n"
            "for module, client in (redis_ratelimit, redis.Redis()), (redis_ratelimit.asyncio, redis.asyncio.Redis()):\n"
            "    for use in module.MemoryLimiter, lambda: module.Limiter(client).local('k', window):\n"
            "        try: use()\n"
            "        except ImportError as error: print(error)\n"
        )
        command = [sys.executable, "-c", program]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        for line, what in zip(shown, 2 * ["MemoryLimiter", r"local\(\)"], strict=True):
            self.assertRegex(
                line, f"^{what} needs the native extension .* pip install --force-reinstall ./clients/python,"
            )

    def test_the_package_is_built_without_the_extension_where_cargo_cannot_build_it(self) -> None:
        # Without PURE=1, and with a cargo. maturin exits if cargo fails.
        maturin = mock.Mock(build_wheel=mock.Mock(side_effect=SystemExit(1)))
        hatchling = mock.Mock(build_wheel=lambda *_: "pure.whl")
        modules = {"maturin": maturin, "hatchling": hatchling, "hatchling.build": hatchling}
        with (
            mock.patch.dict("os.environ", {"PURE": "0"}),
            mock.patch("shutil.which", lambda name: f"/usr/bin/{name}"),
            mock.patch.dict("sys.modules", modules),
            contextlib.redirect_stderr(io.StringIO()) as shown,
        ):
            self.assertIn(build_backend.HATCHLING, build_backend.get_requires_for_build_wheel())
            self.assertEqual(build_backend.build_wheel("folder"), "pure.whl")
        self.assertRegex(shown.getvalue(), "^cargo could not build it: .* without its native extension\n$")

    def test_no_client_library_is_needed(self) -> None:
        program = (
            "import sys; sys.modules['redis'] = sys.modules['valkey'] = None\n"
            "from redis_ratelimit import MemoryLimiter, Rate\n"
            "limiter = MemoryLimiter(clock=lambda: 5.0)\n"
            "print(limiter.throttle('k', Rate(0, 1, 1)).allowed, limiter.throttle('k', Rate(0, 1, 1)).allowed)\n"
            "try: limiter.throttle('k', Rate(-1, 1, 1))\n"
            "except Exception as error: print(type(error).__name__)\n"
        )
        shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        self.assertEqual(shown.stdout.split(), ["True", "False", "ResponseError"])


PAGE = Path(__file__).parents[3] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def names_of(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "testing"}
    exec(compile(block, "testing.md", "exec"), names)
    return names


class Testing(unittest.TestCase):
    def test_the_tests_of_an_application_pass(self) -> None:
        tests = {name: each for name, each in names_of(BLOCKS[0]).items() if name.startswith("test_")}
        self.assertEqual(len(tests), 2)
        for test in tests.values():
            test()

    def test_the_clock_of_a_server_is_held(self) -> None:
        self.assertEqual(len(BLOCKS), 2, "each block has a test here")
        if shutil.which("cc") is None:
            self.skipTest("no cc")
        set_clock = names_of(BLOCKS[1])["set_clock"]
        client: Any = functools.partial(make, LIBRARIES[0])
        with servers.Clock() as clock, Server() as server, Limiter(client(port=server.port), deadline=30) as limiter:
            set_clock(1_700_000_000, clock.file)
            window = Window(1, "1h")
            self.assertTrue(limiter.window("k", window).allowed)
            self.assertEqual(limiter.window("k", window).retry_after_ms, 3_600_000)
            set_clock(1_700_003_600, clock.file)
            self.assertTrue(limiter.window("k", window).allowed)
