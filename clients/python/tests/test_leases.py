"""Limits in the process, without a server: with a clock and a server of the test's own."""

from __future__ import annotations

import asyncio
import os
import random
import unittest
from importlib import import_module
from typing import Any

import redis_ratelimit
from redis_ratelimit import Rate, Reply, Window, semaphore
from redis_ratelimit.leases import Leases, Plan

from .fixtures import LIBRARIES, AsyncRecorder, Recorder

errors = import_module(f"{LIBRARIES[0]}.exceptions")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        #: By how much the wall clock is ahead.
        self.wall_ahead = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.wall_ahead


class Model:
    """A server with one sliding window, written from what the commands promise."""

    def __init__(self, clock: Clock, limit: int, period: float) -> None:
        self.clock = clock
        self.limit = limit
        self.period = period
        self.events: list[tuple[float, int]] = []
        self.held: dict[str, tuple[int, float]] = {}
        self.sent: list[str] = []

    def counted(self) -> int:
        now = self.clock.now
        self.events = [event for event in self.events if event[0] + self.period > now]
        return sum(quantity for _, quantity in self.events)

    def hold(self) -> int:
        now = self.clock.now
        self.held = {id: hold for id, hold in self.held.items() if hold[1] + self.period > now}
        return sum(quantity for quantity, _ in self.held.values())

    def carry_out(self, words: tuple[Any, ...]) -> Any:
        self.sent.append(" ".join(map(str, words)))
        now = self.clock.now
        command = words[0]
        free = max(0, self.limit - self.counted() - self.hold())
        if command == "RL.APPLY":
            if words[2] not in self.held:
                return 0
            del self.held[words[2]]
            if words[3]:
                self.events.append((now, words[3]))
            return 1
        if command == "RL.RELEASE":
            return int(self.held.pop(words[2], None) is not None)
        if command == "RL.WINDOW":
            self.events.append((now, words[4]))
            return [0, self.limit, max(0, free - words[4]), -1, 1000]
        ends = sorted(
            [(at, quantity) for at, quantity in self.events] + [(at, each) for each, at in self.held.values()]
        )

        def wait(quantity: int) -> int:
            for at, each in ends:
                quantity -= each
                if quantity <= free:
                    return int((at + self.period - now) * 1000) + 1
            return -1

        lease_ms, id = (words[words.index(name) + 1] for name in ("LEASE", "ID"))
        assert command == "RL.ACQUIRE" and "COUNTLAPSED" in words
        running = sum(at > now for _, at in self.held.values())
        if "ATMOST" not in words:
            if words[4] > free:
                return [1, self.limit, free, wait(words[4]), 1000, None]
            granted, more = words[4], []
        else:
            granted = min(words[4], free)
            if not granted:
                return [1, self.limit, 0, wait(1), 1000, None, 0, running]
            more = [granted, running + 1]
        self.held[id] = granted, now + lease_ms / 1000
        return [0, self.limit, free - granted, -1, 1000, id.encode(), *more]


class Process:
    """A process with a part of the model's limit."""

    def __init__(self, model: Model, *, lease: Any = 100, leave: int = 0) -> None:
        self.model = model
        self.leases = Leases("k", Window(model.limit, f"{round(model.period * 1000)}ms"), lease, leave)
        self.leases.monotonic = model.clock.monotonic
        self.leases.wall = model.clock.wall
        self.leases.wake = lambda: None
        self.leases.start_over()

    def exchange(self) -> Plan | None:
        """Sends what is due, and reads the answer."""
        plan = self.leases.plan()
        if plan is not None:
            self.leases.answered(plan, [self.model.carry_out(words) for words in plan.commands])
        return plan

    def take(self, quantity: int = 1) -> Reply:
        for _ in range(5):
            reply = self.leases.take(quantity)
            if reply is not None:
                return reply
            self.leases.want(quantity)
            self.exchange()
        raise AssertionError("no answer")

    def sent(self) -> list[str]:
        sent, self.model.sent = self.model.sent, []
        return [" ".join(word for word in words.split() if "-" not in word) for words in sent]


def most_in_a_period(spent: list[tuple[float, int]], period: float) -> int:
    """The most that was spent in any (t - period, t]."""
    spent = sorted(spent)
    most = total = first = 0
    for at, quantity in spent:
        total += quantity
        while spent[first][0] <= at - period:
            total -= spent[first][1]
            first += 1
        most = max(most, total)
    return most


class InTheProcess(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def process(self, limit: int = 100, period: float = 1.0, **options: Any) -> Process:
        return Process(Model(self.clock, limit, period), **options)

    def demand(self, process: Process, per_second: float, seconds: float) -> list[Reply]:
        """Takes at an even pace, with everything sent that is due."""
        replies = []
        for _ in range(round(per_second * seconds)):
            self.clock.now += 1 / per_second
            replies.append(process.take())
            process.exchange()
        return replies

    def test_a_batch_is_spent_without_a_call(self) -> None:
        process = self.process()
        self.hold(process, 30)
        process.sent()
        replies = [process.leases.take(1) for _ in range(10)]
        self.assertTrue(all(reply is not None and reply.allowed for reply in replies))
        self.assertEqual(process.sent(), [])

    def test_what_is_spent_is_settled_together_with_the_next(self) -> None:
        process = self.process(10_000)
        self.demand(process, 100, 1)
        found = []
        for _ in range(50):
            self.clock.now += 0.01
            process.take()
            plan = process.exchange()
            found.append([words[0] for words in plan.commands] if plan else [])
        self.assertIn(["RL.APPLY", "RL.ACQUIRE"], found)

    def test_the_batch_follows_demand(self) -> None:
        process = self.process(1_000_000, lease=100)
        self.demand(process, 2000, 1)
        sizes = [int(words.split()[4]) for words in process.sent() if words.startswith("RL.ACQUIRE")]
        # Half a lease is 50 ms.
        self.assertTrue(80 <= sizes[-1] <= 110, sizes)
        self.demand(process, 100, 1)
        sizes = [int(words.split()[4]) for words in process.sent() if words.startswith("RL.ACQUIRE")]
        self.assertTrue(3 <= sizes[-1] <= 7, sizes)

    def test_the_batch_is_no_more_than_its_share_and_no_less_than_what_is_asked(self) -> None:
        process = self.process(1000)
        for at in range(9):
            process.model.held[f"other-{at}"] = 0, self.clock.now + 1000
        process.take()
        process.leases._demand.rate = 1e6
        process.exchange()
        self.assertIn("RL.ACQUIRE k 1000 1000ms 200 LEASE 100 ID ATMOST COUNTLAPSED MS", process.sent())
        process = self.process(100)
        process.take(37)
        self.assertEqual(process.sent()[-1], "RL.ACQUIRE k 100 1000ms 37 LEASE 100 ID ATMOST COUNTLAPSED MS")

    def test_the_lease_ends_early_by_either_clock(self) -> None:
        for lease, early in (100, 0.010), (20, 0.002), (1000, 0.1):
            for wall in False, True:
                process = self.process(lease=lease)
                self.hold(process, 5)
                start = self.clock.now
                almost = lease / 1000 - early - 1e-6
                self.clock.now = start + (0 if wall else almost)
                self.clock.wall_ahead = almost if wall else 0
                self.assertIsNotNone(process.leases.take(1))
                self.clock.now += 0 if wall else 2e-6
                self.clock.wall_ahead += 2e-6 if wall else 0
                self.assertIsNone(process.leases.take(1))
                self.clock.wall_ahead = 0

    def hold(self, process: Process, quantity: int) -> None:
        process.leases.want(quantity)
        process.exchange()

    def test_a_batch_counts_from_before_it_was_asked_for(self) -> None:
        process = self.process()
        process.leases.want(5)
        plan = process.leases.plan()
        assert plan is not None
        self.clock.now += 0.089
        process.leases.answered(plan, [process.model.carry_out(words) for words in plan.commands])
        self.assertIsNotNone(process.leases.take(1))
        self.clock.now += 0.002
        self.assertIsNone(process.leases.take(1))

    def test_what_is_not_spent_is_given_back_at_the_end_of_the_lease(self) -> None:
        process = self.process()
        self.hold(process, 5)
        process.take(2)
        process.sent()
        at = process.leases.next_at()
        self.assertTrue(at and self.clock.now < at <= self.clock.now + 0.0901, at)
        self.clock.now += 0.0901
        process.exchange()
        self.assertEqual(process.sent(), ["RL.APPLY k 2"])
        self.assertEqual((process.model.counted(), process.model.hold()), (2, 0))
        self.assertTrue(process.leases.is_settled and process.leases.next_at() is None)

    def test_without_demand_nothing_is_asked_for(self) -> None:
        process = self.process(10_000)
        self.demand(process, 1000, 0.5)
        process.sent()
        for _ in range(300):
            self.clock.now += 0.01
            process.exchange()
        self.assertLess(len(process.sent()), 20)
        self.assertTrue(process.leases.is_settled)

    def test_a_denial_is_remembered_until_its_retry_after_and_100_ms_at_most(self) -> None:
        process = self.process(5, 10.0)
        self.assertTrue(process.take(5).allowed)
        process.exchange()
        reply = process.take()
        self.assertTrue(not reply.allowed and 9_990 <= (reply.retry_after_ms or 0) <= 10_001, reply)
        process.sent()
        self.clock.now += 0.099
        again = process.leases.take(1)
        assert again is not None and again.retry_after_ms is not None and reply.retry_after_ms is not None
        self.assertEqual(reply.retry_after_ms - again.retry_after_ms, 99)
        self.assertEqual(process.sent(), [])
        self.clock.now += 0.002
        self.assertIsNone(process.leases.take(1))
        self.clock.now += 9.87
        reply = process.take()
        self.assertTrue(not reply.allowed and 1 <= (reply.retry_after_ms or 0) <= 30, reply)
        self.clock.now += (reply.retry_after_ms or 0) / 1000
        self.assertTrue(process.take().allowed)

    def test_all_or_nothing_is_taken(self) -> None:
        process = self.process(10, 10.0)
        self.assertTrue(process.take(4).allowed)
        process.sent()
        reply = process.take(7)
        self.assertTrue(not reply.allowed and 9_990 <= (reply.retry_after_ms or 0) <= 10_001, reply)
        self.assertEqual(
            [words for words in process.sent() if words.startswith("RL.ACQUIRE")],
            [
                "RL.ACQUIRE k 10 10000ms 7 LEASE 100 ID ATMOST COUNTLAPSED MS",
                # What is missing, all of it or nothing: the denial says when it is available.
                "RL.ACQUIRE k 10 10000ms 1 LEASE 100 ID COUNTLAPSED MS",
            ],
        )
        self.assertTrue(process.take(6).allowed)
        process.sent()
        reply = process.take(11)
        self.assertEqual((reply.limited, reply.limit, reply.retry_after_ms), (1, 10, None))
        self.assertEqual(process.sent(), [], "more than the limit is never available")

    def test_more_than_the_limit_of_a_policy_is_asked_for_again_as_the_policy_may_change(self) -> None:
        leases = Leases("k", "@day", "1min", 0)
        leases.wake = lambda: None

        def take(quantity: int, *answers: Any) -> tuple[Reply | None, tuple[Any, ...]]:
            leases.want(quantity)
            plan = leases.plan()
            assert plan is not None
            leases.answered(plan, list(answers))
            return leases.take(quantity), plan.commands[-1]

        reply, _ = take(2, [0, 5, 3, -1, 1000, b"id", 2, 1])
        self.assertTrue(reply is not None and reply.allowed)
        reply, words = take(6, 1, [1, 5, 3, -1, 1000, None])
        self.assertTrue(reply is not None and reply.limited == 1 and reply.retry_after_ms is None)
        self.assertEqual((words[3], "ATMOST" in words), (6, False))
        leases._denial = None
        reply, words = take(6, [0, 9, 1, -1, 1000, b"id"])
        self.assertTrue(reply is not None and reply.allowed)

    def test_leave_is_sent_with_each_reservation(self) -> None:
        process = self.process(10, leave=3)
        process.leases.want(2)
        plan = process.leases.plan()
        assert plan is not None
        self.assertEqual(plan.commands[0][:8], ("RL.ACQUIRE", "k", 10, "1000ms", 2, "LEAVE", 3, "LEASE"))

    def test_a_batch_whose_answer_was_lost_is_given_back(self) -> None:
        for arrives in "before", "after":
            process = self.process()
            process.leases.want(5)
            plan = process.leases.plan()
            assert plan is not None
            if arrives == "before":
                process.model.carry_out(plan.commands[0])
            process.leases.failed(plan, ConnectionError("lost"), True)
            self.assertIsNone(process.leases.plan(), "not before a pause")
            self.clock.now += 0.11
            process.exchange()
            if arrives == "after":
                process.model.carry_out(plan.commands[0])
                self.assertEqual(process.model.hold(), 5)
                self.clock.now = process.leases.next_at() or 0
                process.exchange()
            self.assertEqual(process.model.hold(), 0)
            self.assertTrue(process.leases.is_settled)

    def test_a_settlement_is_repeated_until_it_is_answered(self) -> None:
        process = self.process()
        self.hold(process, 5)
        process.take(5)
        for turn in range(3):
            plan = process.leases.plan()
            assert plan is not None
            if turn == 1:
                process.model.carry_out(plan.commands[0])
            process.leases.failed(plan, ConnectionError("lost"), True)
            self.clock.now += 0.11
        process.exchange()
        # The second one was carried out, so the last answers 0 and adds nothing.
        self.assertEqual([words for words in process.sent() if "FORCE" in words], [])
        self.assertEqual(process.model.counted(), 5)
        self.assertTrue(process.leases.is_settled)

    def test_what_the_server_lost_is_counted(self) -> None:
        process = self.process()
        self.hold(process, 5)
        process.take(3)
        process.take(2)
        process.model.held.clear()
        process.exchange()
        process.exchange()
        self.assertEqual(process.sent()[-1], "RL.WINDOW k 100 1000ms 5 FORCE MS")
        # It may be ended when its window is over, and then it counts no more.
        process = self.process()
        self.hold(process, 5)
        process.take(5)
        self.clock.now += 1.2
        process.exchange()
        self.assertTrue(process.leases.is_settled)
        self.assertEqual([words for words in process.sent() if "FORCE" in words], [])

    def test_a_child_process_has_nothing_of_its_parent(self) -> None:
        process = self.process()
        self.hold(process, 5)
        prefix = process.leases._prefix
        process.leases.start_over()
        self.assertIsNone(process.leases.take(1))
        self.assertTrue(process.leases.is_settled)
        self.assertNotEqual(process.leases._prefix, prefix)

    def test_what_cannot_be_leased_is_refused(self) -> None:
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

    def test_a_policy_of_a_semaphore_is_refused_once_the_server_says_so(self) -> None:
        leases = Leases("k", "@jobs", "1min", 0)
        leases.wake = lambda: None
        leases.code = lambda error: str(error).split(" ")[0]

        def exchange(*answers: Any) -> list[tuple[Any, ...]]:
            plan = leases.plan()
            assert plan is not None
            leases.answered(plan, list(answers))
            return plan.commands

        leases.want(1)
        exchange([0, 5, 4, -1, 0, b"id", 1, 1])
        taken = leases.take(1)
        self.assertTrue(taken is not None and taken.allowed)
        # The next batch comes with the settlement that is refused.
        leases.want(1)
        refused = Exception("ERR the reservation is a semaphore's and must be given back with RL.RELEASE")
        sent = exchange(refused, [0, 5, 3, -1, 0, b"id", 1, 2])
        self.assertEqual([words[0] for words in sent], ["RL.APPLY", "RL.ACQUIRE"])
        for _ in range(2):
            self.assertRaisesRegex(ValueError, "'@jobs' is a semaphore", leases.take, 1)
            self.assertRaisesRegex(ValueError, "'@jobs' is a semaphore", leases.want, 1)
        # Both are given back, and nothing more is reserved.
        sent = exchange(1, 1)
        self.assertEqual([words[0] for words in sent], ["RL.RELEASE", "RL.RELEASE"])
        self.assertEqual((leases.plan(), leases.is_settled), (None, True))

    def test_whatever_is_lost_or_dies_no_period_has_more_than_the_limit(self) -> None:
        seconds = float(os.environ.get("LEASES_SECONDS", "0"))
        spent = 0
        for seed in range(max(40, int(20 * seconds))):
            with self.subTest(seed=seed):
                spent += self.play(random.Random(seed))
        self.assertGreater(spent, 3000, "too little was tried")

    def play(self, chance: random.Random) -> int:
        """Some processes that lose requests and answers, stop in the middle, die and begin anew."""
        clock = self.clock = Clock()
        limit, period = chance.choice([(5, 1.0), (40, 0.5), (200, 2.0)])
        model = Model(clock, limit, period)
        lease = chance.choice([20, 50, 200])
        processes = [Process(model, lease=lease) for _ in range(chance.randint(1, 5))]
        under_way: list[tuple[Process, Plan, list[Any] | None, bool]] = []
        spent: list[tuple[float, int]] = []
        for _ in range(1500):
            clock.now += chance.choice([0.0, 0.0001, 0.001, 0.004, 0.03])
            if chance.random() < 0.002:
                clock.now += chance.random() * 3 * period
            at = chance.randrange(len(processes))
            process = processes[at]
            done = chance.random()
            if done < 0.6:
                quantity = chance.choice([1, 1, 1, 2, 3])
                # Its clock was read now. The process may stop before it goes on.
                moment = clock.now
                reply = process.leases.take(quantity)
                if reply is None:
                    process.leases.want(quantity)
                elif reply.allowed:
                    spent.append((moment, quantity))
            elif done < 0.75 and not any(each[0] is process for each in under_way):
                plan = process.leases.plan()
                if plan is not None:
                    fate = chance.random()
                    arrives = fate < 0.9
                    # What is lost on its way arrives late, or never.
                    answers = [model.carry_out(words) for words in plan.commands] if arrives else None
                    under_way.append((process, plan, answers, arrives and fate < 0.8))
            elif done < 0.98 and under_way:
                process, plan, answers, is_answered = under_way.pop(chance.randrange(len(under_way)))
                if is_answered:
                    assert answers is not None
                    process.leases.answered(plan, answers)
                else:
                    process.leases.failed(plan, ConnectionError("lost"), True)
                    if answers is None and chance.random() < 0.5:
                        for words in plan.commands:
                            model.carry_out(words)
            elif done > 0.997:
                processes[at] = Process(model, lease=lease)
                under_way = [each for each in under_way if each[0] is not process]
        self.assertLessEqual(most_in_a_period(spent, period), limit)
        return sum(quantity for _, quantity in spent)

    def test_a_settlement_that_is_refused_gives_back_nothing_that_was_spent(self) -> None:
        process = self.process()
        self.assertTrue(process.take(3).allowed)
        plan = process.leases.plan()
        assert plan is not None
        # Such as by a server that has just become a replica. Its reservation is known to the new master.
        process.leases.answered(plan, [Exception("READONLY") for _ in plan.commands])
        for _ in range(3):
            self.clock.now += 0.2
            process.exchange()
        self.assertEqual((process.model.counted(), process.model.hold()), (3, 0))
        # One that is refused for as long as the server may know it is not asked for any more: it has lapsed.
        self.assertTrue(process.take(3).allowed)
        for _ in range(20):
            if (plan := process.leases.plan()) is not None:
                process.leases.answered(plan, [Exception("READONLY") for _ in plan.commands])
            self.clock.now += 0.2
        self.assertTrue(process.leases.is_settled)


class Answering(unittest.TestCase):
    """How the limiters carry it."""

    def take(self, recorder: Recorder, unreachable: Any = "raise", count: int = 1) -> list[Any]:
        """What takes answer, one after the other; exceptions among them."""
        options = {"unreachable": unreachable}
        window = Window(9, 60)

        def now() -> list[Any]:
            local = recorder.limiter(**options).local("k", window)
            found: list[Any] = []
            for _ in range(count):
                try:
                    found.append(local.take())
                except Exception as error:
                    found.append(error)
            return found

        async def soon() -> list[Any]:
            local: Any = recorder.limiter(**options).local("k", window)
            found: list[Any] = []
            for _ in range(count):
                try:
                    found.append(await local.take())
                except Exception as error:
                    found.append(error)
            return found

        return asyncio.run(soon()) if isinstance(recorder, AsyncRecorder) else now()

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

    def test_error_replies_are_raised_whatever_was_chosen(self) -> None:
        for kind in Recorder, AsyncRecorder:
            refused = errors.ResponseError("WRONGTYPE")
            self.assertIsInstance(self.take(kind(refused), "allow")[0], errors.ResponseError)
            unknown = errors.ResponseError("unknown command 'RL.ACQUIRE'")
            self.assertIsInstance(self.take(kind(unknown), "allow")[0], redis_ratelimit.MissingModule)

    def test_after_close_there_is_nothing_to_take(self) -> None:
        local = Recorder([0, 9, 8, -1, 60000, b"id", 1, 1], 1).limiter().local("k", Window(9, 60), lease="1h")
        local.take()
        local.close()
        self.assertRaisesRegex(RuntimeError, "closed", local.take)
