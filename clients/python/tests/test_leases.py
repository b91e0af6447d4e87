"""Local limits without a server: the tests have their own clock and a server in memory."""

from __future__ import annotations

import asyncio
import builtins
import itertools
import os
import random
import re
import unittest
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any
from unittest import mock

import redis_ratelimit
from redis_ratelimit import MemoryLimiter, Rate, Reply, UnexpectedReply, Window, semaphore
from redis_ratelimit._internal.leases import RETRY_SECONDS, Leases, Round
from redis_ratelimit._internal.libraries import error_code

from .fixtures import LEASES, LIBRARIES, AsyncRecorder, Recorder, done, unexpected
from .fixtures import limit as limit_of
from .servers import until_soon

errors = import_module(f"{LIBRARIES[0]}.exceptions")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        #: How far the wall clock is ahead, in seconds.
        self.wall_ahead = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.wall_ahead


class Process:
    """A process that spends a limit of a server in memory."""

    def __init__(self, clock: Clock, carry_out: Callable[[tuple[Any, ...]], Any], window: Window, lease: int) -> None:
        #: Returns the server's reply to a command.
        self.carry_out = carry_out
        self.leases = Leases("k", window, lease, 0)
        self.leases.monotonic, self.leases.wall = clock.monotonic, clock.wall
        self.leases.start_over()


def processes(clock: Clock, limit: int, period: float, lease: int) -> Iterator[Process]:
    """Yields any number of processes that spend one limit."""
    ask = MemoryLimiter(clock.wall)._memory.ask
    while True:
        yield Process(clock, ask, Window(limit, f"{round(period * 1000)}ms"), lease)


def most_in_a_period(spent: list[tuple[float, int]], period: float) -> int:
    """Returns the most that was spent in any (t - period, t], in seconds. The server counts in microseconds."""
    spent, period = sorted((round(at * 1e6), quantity) for at, quantity in spent), round(period * 1e6)
    most = total = first = 0
    for at, quantity in spent:
        total += quantity
        while spent[first][0] <= at - period:
            total -= spent[first][1]
            first += 1
        most = max(most, total)
    return most


class InTheProcess(unittest.TestCase):
    def test_wrong_limits_and_leases_are_refused(self) -> None:
        for limiter in Recorder().limiter(), AsyncRecorder().limiter():
            for call, kind, text in [
                (lambda limiter: limiter.local("k", semaphore(3)), ValueError, "must not be 0"),
                (lambda limiter: limiter.local("k", Window(3, "0")), ValueError, "must not be 0"),
                (lambda limiter: limiter.local("k", Rate(1, 1, 1)), TypeError, "must be a Window"),
                (lambda limiter: limiter.local("k", Window(3, 60), lease=19), ValueError, "at least 20 ms"),
                (lambda limiter: limiter.local("k", Window(3, 60), lease=0.5), TypeError, "lease must be"),
                (lambda limiter: limiter.local("k", Window(3, 60), leave=-1), ValueError, "leave must be"),
                (lambda limiter: limiter.local(7, Window(3, 60)), TypeError, "must be str or bytes"),
            ]:
                with self.assertRaisesRegex(kind, text):
                    call(limiter)  # type: ignore[no-untyped-call]
        local = Recorder().limiter().local("k", Window(3, 60))
        self.assertRaisesRegex(ValueError, "at least 1", local.take, 0)
        self.assertRaisesRegex(TypeError, "integer", local.take, 1.5)

    def test_no_period_has_more_than_the_limit_whatever_is_lost_or_dies(self) -> None:
        seconds = float(os.environ.get("LEASES_SECONDS", "0"))
        spent = 0
        for seed in range(max(40, int(20 * seconds))):
            with self.subTest(seed=seed):
                spent += self.play(random.Random(seed))
        self.assertGreater(spent, 3000, "too little was tried")

    def play(self, chance: random.Random) -> int:
        """Processes that lose requests and replies, stop halfway, die and start again."""
        clock = Clock()
        limit, period = chance.choice([(5, 1.0), (40, 0.5), (200, 2.0)])
        made = processes(clock, limit, period, chance.choice([20, 50, 200]))
        crowd = [next(made) for _ in range(chance.randint(1, 5))]
        under_way: list[tuple[Process, Round, list[Any] | None, bool]] = []
        spent: list[tuple[float, int]] = []
        for _ in range(1500):
            clock.now += chance.choice([0.0, 0.0001, 0.001, 0.004, 0.03])
            if chance.random() < 0.002:
                clock.now += chance.random() * 3 * period
            at = chance.randrange(len(crowd))
            process = crowd[at]
            done = chance.random()
            if done < 0.6:
                quantity = chance.choice([1, 1, 1, 2, 3])
                # The process has read its clock, and may stop before it continues.
                moment = clock.now
                reply = process.leases.take(quantity)
                if reply is None:
                    process.leases.want(quantity)
                elif reply.allowed:
                    spent.append((moment, quantity))
            elif done < 0.75 and not any(each[0] is process for each in under_way):
                round_ = process.leases.next_round()
                if round_ is not None:
                    fate = chance.random()
                    arrives = fate < 0.9
                    # A lost message arrives late, or never.
                    answers = [process.carry_out(words) for words in round_.commands] if arrives else None
                    under_way.append((process, round_, answers, arrives and fate < 0.8))
            elif done < 0.98 and under_way:
                process, round_, answers, is_answered = under_way.pop(chance.randrange(len(under_way)))
                if is_answered:
                    assert answers is not None
                    process.leases.receive(round_, answers)
                else:
                    process.leases.fail(round_, ConnectionError("lost"), True)
                    if answers is None and chance.random() < 0.5:
                        for words in round_.commands:
                            process.carry_out(words)
            elif done > 0.997:
                crowd[at] = next(made)
                under_way = [each for each in under_way if each[0] is not process]
        self.assertLessEqual(most_in_a_period(spent, period), limit)
        return sum(quantity for _, quantity in spent)


class TheTable(unittest.TestCase):
    """clients/spec/leases.json, in which times are milliseconds."""

    def test_the_leases_of_each_client_send_the_same_after_the_same_events(self) -> None:
        for case in LEASES:
            clock = Clock()
            leases = Leases("k", limit_of(case["limit"]), **{"lease": 100, "leave": 0, **case["options"]})
            leases.monotonic, leases.wall, leases.wake = clock.monotonic, clock.wall, lambda: None
            leases.code = lambda error: error_code(str(error))
            leases.start_over()
            sent: list[Round] = []
            for at, step in enumerate(case["steps"]):
                with self.subTest(case["name"], at=at):
                    event, given = next(iter(step.items()))
                    found = self.carry_out(leases, clock, sent, event, given)
                    self.assertEqual(found, step.get("is", given), step)

    def carry_out(self, leases: Leases, clock: Clock, sent: list[Round], event: str, given: Any) -> Any:
        """Returns the outcome of an event; `given` if it has none."""
        if event == "take":
            try:
                reply = leases.take(given)
            except ValueError:
                return "refused"
            return reply and [
                *(reply.limited, reply.limit, reply.remaining),
                *(reply.retry_after_ms, reply.reset_after_ms),
            ]
        if event == "plan":
            round_ = leases.next_round()
            if round_ is None:
                return []
            sent.append(round_)
            return [re.sub(r"\S{16,}-(\d+)", r"#\1", " ".join(map(str, words))) for words in round_.commands]
        if event == "next_at":
            at = leases.next_at()
            return None if at is None else round((at - 1000) * 1000, 3)
        if event == "settled":
            return leases.is_settled
        if event == "failed":
            return leases.error is not None
        if event == "refused":
            return leases.refused and leases.code(leases.refused)
        if event in ("want", "wait"):
            leases.want(given, is_counted=event == "want")
        elif event == "receive":
            leases.receive(sent[-1], [Exception(each["error"]) if isinstance(each, dict) else each for each in given])
        elif event == "fail":
            leases.fail(sent[-1], ConnectionError("lost"), given)
        elif event == "close":
            leases.close()
        elif event == "pass":
            clock.now += given / 1000
        else:
            clock.wall_ahead += given / 1000
        return given


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
            recorder = Granting()
            local = recorder.limiter(unreachable=unreachable).local("k", Window(9, 60), lease="20ms")
            seconds = itertools.count()
            local._leases.monotonic = lambda seconds=seconds: float(next(seconds))  # type: ignore[misc]
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

    def test_a_fallback_keeps_the_reserve_of_the_limit(self) -> None:
        other = mock.Mock(spec=["throttle", "window", "reserve"])
        other.window.return_value = Reply(0, 3, 2, None, 1000)
        limiter = Recorder(errors.ConnectionError("refused")).limiter(unreachable=other)
        limiter.local("k", Window(3, 60), leave=2).take()
        other.window.assert_called_once_with("k", Window(3, 60), 1, leave=2)

    def closed(self, recorder: Recorder, unreachable: str) -> tuple[Leases, int, BaseException | None]:
        """Takes one of five units and closes. Returns the leases some time later, the number of calls of next_round(), and
        the error of close()."""

        async def run() -> tuple[Leases, int, BaseException | None]:
            local: Any = recorder.limiter(unreachable=unreachable).local("k", Window(9, 60), lease="1h")
            leases, raised = local._leases, None
            with mock.patch.object(leases, "next_round", wraps=leases.next_round) as asked:
                await done(local.take())
                try:
                    await done(local.close())
                except Exception as error:
                    raised = error
                await asyncio.sleep(3 * RETRY_SECONDS)
            return leases, asked.call_count, raised

        return asyncio.run(run())

    def test_close_gives_up_after_three_tries_and_nothing_is_sent_later(self) -> None:
        for kind in Recorder, AsyncRecorder:
            for unreachable, expected in ("raise", errors.ConnectionError), ("allow", type(None)):
                with self.subTest(kind=kind.__name__, unreachable=unreachable):
                    lost = [errors.ConnectionError("lost") for _ in range(3)]
                    recorder = kind([0, 9, 8, -1, 60000, b"id", 5, 1], *lost, 1)
                    leases, asked, raised = self.closed(recorder, unreachable)
                    self.assertIs(type(raised), expected)
                    self.assertEqual((recorder.replies, leases.next_at()), ([1], None))
                    self.assertLess(asked, 20)

    def test_close_raises_that_the_server_refused_whatever_unreachable_is(self) -> None:
        for kind in Recorder, AsyncRecorder:
            for unreachable in "raise", "allow":
                with self.subTest(kind=kind.__name__, unreachable=unreachable):
                    recorder = kind([0, 9, 8, -1, 60000, b"id", 5, 1], errors.ReadOnlyError("You can't write"))
                    *_, raised = self.closed(recorder, unreachable)
                    self.assertIs(type(raised), errors.ReadOnlyError)
                    self.assertRegex(recorder.sent[1], "^RL.APPLY k .* 1$")

    def test_a_limit_goes_on_after_all_tasks_were_cancelled(self) -> None:
        async def check(cancelled: int) -> None:
            recorder = AsyncRecorder([0, 9, 8, -1, 60000, b"id", 1, 1], 1, 1)
            limiter = recorder.limiter()
            send, sent = limiter._core.send_all, 0

            async def slow(*args: Any) -> Any:
                nonlocal sent
                sent += 1
                if sent == cancelled:
                    await asyncio.sleep(60)
                return await send(*args)

            with mock.patch.object(limiter._core, "send_all", slow):
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
