"""Local limits without a server."""

from __future__ import annotations

import asyncio
import builtins
import itertools
import unittest
from importlib import import_module
from typing import Any
from unittest import mock

import redis_ratelimit
from redis_ratelimit import Rate, Reply, UnexpectedReply, Window, semaphore
from redis_ratelimit._internal.extension import native

from .fixtures import LIBRARIES, AsyncRecorder, Recorder, done, unexpected
from .servers import until_soon

errors = import_module(f"{LIBRARIES[0]}.exceptions")


class InTheProcess(unittest.TestCase):
    def test_wrong_limits_and_leases_are_refused(self) -> None:
        for limiter in Recorder().limiter(), AsyncRecorder().limiter():
            for call, kind, text in [
                (lambda limiter: limiter.local("k", semaphore(3)), ValueError, "must not be 0"),
                (lambda limiter: limiter.local("k", Window(3, "0")), ValueError, "must not be 0"),
                (lambda limiter: limiter.local("k", Rate(1, 1, 1)), TypeError, "must be a Window"),
                (lambda limiter: limiter.local("k", Window(3, 60), lease="19ms"), ValueError, "at least 20 ms"),
                (lambda limiter: limiter.local("k", Window(3, 60), lease=0.5), TypeError, "lease must be"),
                (lambda limiter: limiter.local("k", Window(3, 60), leave=-1), ValueError, "leave must be"),
                (lambda limiter: limiter.local(7, Window(3, 60)), TypeError, "must be str or bytes"),
            ]:
                with self.assertRaisesRegex(kind, text):
                    call(limiter)  # type: ignore[no-untyped-call]
        local = Recorder().limiter().local("k", Window(3, 60))
        self.assertRaisesRegex(ValueError, "at least 1", local.take, 0)
        self.assertRaisesRegex(TypeError, "integer", local.take, 1.5)


class Answering(unittest.TestCase):
    """Local limits of both limiters."""

    def take(self, recorder: Recorder, unreachable: Any = "raise", count: int = 1) -> list[Any]:
        """Returns the replies to takes, one after the other, with exceptions among them."""

        async def run() -> list[Any]:
            local: Any = recorder.limiter(unreachable=unreachable).local("k", Window(9, 60), lease="1h")
            found: list[Any] = []
            for _ in range(count):
                try:
                    found.append(await done(local.take()))
                except Exception as error:
                    found.append(error)
            return found

        return asyncio.run(run())

    def test_without_redis_unreachable_decides(self) -> None:
        class Other:
            def window(self, key: Any, window: Any, quantity: int = 1, **more: Any) -> Reply:
                return Reply(0, 3, 2, None, 1000)

            throttle = reserve = window

        for kind in Recorder, AsyncRecorder:
            for unreachable, expected in ("allow", 0), ("deny", 1), (Other(), 0):
                reply = self.take(kind(errors.ConnectionError("refused")), unreachable)[0]
                self.assertEqual((reply.limited, reply.reachable), (expected, False))
            self.assertIsInstance(self.take(kind(errors.ConnectionError("refused")))[0], errors.ConnectionError)

    def test_error_replies_are_raised_whatever_unreachable_is(self) -> None:
        for kind in Recorder, AsyncRecorder:
            refused = errors.ResponseError("WRONGTYPE")
            self.assertIsInstance(self.take(kind(refused), "allow")[0], errors.ResponseError)
            unknown = errors.ResponseError("unknown command 'RL.ACQUIRE'")
            self.assertIsInstance(self.take(kind(unknown), "allow")[0], redis_ratelimit.MissingModule)

    def test_batches_that_arrive_too_late_count_as_no_answer(self) -> None:
        class Granting(Recorder):
            answered = 0

            def answer(self) -> Any:
                self.answered += 1
                is_asked = self.sent[self.answered - 1].startswith("RL.ACQUIRE")
                return [0, 9, 8, -1, 60000, b"id", 1, 1] if is_asked else 1

        for unreachable in "allow", "raise":
            limiter = Granting().limiter(unreachable=unreachable)
            limiter._core.clock = itertools.count(0.0, 1.0).__next__
            local = limiter.local("k", Window(9, 60), lease="20ms")
            if unreachable == "allow":
                self.assertFalse(local.take().reachable)
            else:
                self.assertRaisesRegex(errors.TimeoutError, "no batch arrived within its lease of 20 ms", local.take)

    def test_an_unexpected_reply_is_an_error_and_later_takes_are_answered(self) -> None:
        granted = [0, 9, 8, -1, 60000, b"id", 1, 1]
        for kind, reply in [(kind, reply) for kind in (Recorder, AsyncRecorder) for reply in unexpected(granted)]:
            with self.subTest(kind=kind.__name__, reply=reply):
                # What the server may have reserved is released.
                recorder = kind(reply, 1, granted)
                refused, allowed = self.take(recorder, "allow", count=2)
                self.assertIsInstance(refused, UnexpectedReply)
                self.assertTrue(allowed.allowed)
                self.assertRegex(recorder.sent[1], "^RL.RELEASE k ")

    def test_a_take_works_again_after_a_thread_could_not_be_started(self) -> None:
        local = Recorder([0, 9, 8, -1, 60000, b"id", 1, 1]).limiter().local("k", Window(9, 60), lease="1h")
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            self.assertRaisesRegex(RuntimeError, "start new thread", local.take)
        self.assertTrue(local.take().allowed)

    def test_an_error_that_takes_from_its_limit_when_it_is_dropped_does_not_stop_it(self) -> None:
        class Taking(Exception):
            def __del__(self) -> None:
                dropped.append(leases.take(1))

        dropped: list[Reply] = []
        terms: Any = b"k", [b"9", b"60"], [], 9, 60_000, 60_000, 0
        leases = native("this").Leases(*terms, wake=lambda: None, late_error=TimeoutError)
        leases.want(1)
        leases.fail(leases.next_round(), Taking("lost"), True)
        leases.want(1)
        leases.receive(leases.next_round(), [1, [0, 9, 8, -1, 60000, b"id", 1, 1]])
        self.assertEqual([reply.allowed for reply in dropped], [True])

    def test_a_fallback_keeps_the_reserve_of_the_limit(self) -> None:
        other = mock.Mock(spec=["throttle", "window", "reserve"])
        other.window.return_value = Reply(0, 3, 2, None, 1000)
        limiter = Recorder(errors.ConnectionError("refused")).limiter(unreachable=other)
        limiter.local("k", Window(3, 60), leave=2).take()
        other.window.assert_called_once_with("k", Window(3, 60), 1, leave=2)

    def closed(self, recorder: Recorder, unreachable: str) -> tuple[Any, BaseException | None]:
        """Takes one of five units and closes. Returns the leases some time later, and the error of close()."""

        async def run() -> tuple[Any, BaseException | None]:
            local: Any = recorder.limiter(unreachable=unreachable).local("k", Window(9, 60), lease="1h")
            raised = None
            await done(local.take())
            try:
                await done(local.close())
            except Exception as error:
                raised = error
            await asyncio.sleep(0.3)
            return local._leases, raised

        return asyncio.run(run())

    def test_close_gives_up_after_three_tries_and_nothing_is_sent_later(self) -> None:
        for kind in Recorder, AsyncRecorder:
            for unreachable, expected in ("raise", errors.ConnectionError), ("allow", type(None)):
                with self.subTest(kind=kind.__name__, unreachable=unreachable):
                    lost = [errors.ConnectionError("lost") for _ in range(3)]
                    recorder = kind([0, 9, 8, -1, 60000, b"id", 5, 1], *lost, 1)
                    leases, raised = self.closed(recorder, unreachable)
                    self.assertIs(type(raised), expected)
                    self.assertEqual((recorder.replies, leases.next_in()), ([1], None))

    def test_close_raises_that_the_server_refused_whatever_unreachable_is(self) -> None:
        for kind in Recorder, AsyncRecorder:
            for unreachable in "raise", "allow":
                with self.subTest(kind=kind.__name__, unreachable=unreachable):
                    recorder = kind([0, 9, 8, -1, 60000, b"id", 5, 1], errors.ReadOnlyError("You can't write"))
                    _, raised = self.closed(recorder, unreachable)
                    self.assertIs(type(raised), errors.ReadOnlyError)
                    self.assertRegex(recorder.sent[1], "^RL.APPLY k .* 1$")

    def test_a_limit_goes_on_after_all_tasks_were_cancelled(self) -> None:
        async def check(cancelled: int) -> None:
            recorder = AsyncRecorder([0, 9, 8, -1, 60000, b"id", 1, 1], 1, 1)
            limiter = recorder.limiter()
            send, sent = limiter._core.try_to_send, 0

            async def slow(*args: Any) -> Any:
                nonlocal sent
                sent += 1
                if sent == cancelled:
                    await asyncio.sleep(60)
                return await send(*args)

            with mock.patch.object(limiter._core, "try_to_send", slow):
                local = limiter.local("k", Window(9, 60), lease="1h")
                if cancelled == 2:
                    await local.take()
                waits = asyncio.ensure_future(local.take() if cancelled == 1 else local.aclose())
                await asyncio.sleep(0.01)
                local._task.cancel()
                await asyncio.wait([waits], timeout=5)
                self.assertTrue(waits.done())
                if cancelled == 1:
                    self.assertIsInstance(waits.exception(), builtins.ConnectionError)
                else:
                    self.assertTrue(local._leases.is_settled)

        for cancelled in 1, 2:
            with self.subTest(cancelled):
                asyncio.run(check(cancelled))

    def test_a_try_returns_nothing_until_the_server_has_granted(self) -> None:
        async def check(kind: type[Recorder]) -> None:
            recorder = kind([0, 9, 8, -1, 60000, b"id", 5, 1], 1)
            local: Any = recorder.limiter().local("k", Window(9, 60), lease="1h")
            self.assertRaisesRegex(ValueError, "at least 1", local.try_take, 0)
            self.assertIsNone(local.try_take(2))
            await until_soon(lambda: local.try_take(2), "a batch")
            self.assertEqual(len(recorder.sent), 1)
            await done(local.close())
            self.assertRegex(recorder.sent[1], "^RL.APPLY k .* 2$")
            self.assertRaisesRegex(redis_ratelimit.Closed, "closed", local.try_take)

        for kind in Recorder, AsyncRecorder:
            asyncio.run(check(kind))

    def test_nothing_is_taken_after_close(self) -> None:
        local = Recorder([0, 9, 8, -1, 60000, b"id", 1, 1], 1).limiter().local("k", Window(9, 60), lease="1h")
        local.take()
        local.close()
        self.assertRaisesRegex(redis_ratelimit.Closed, "closed", local.take)
