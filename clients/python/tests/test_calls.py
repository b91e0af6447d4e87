"""What is sent, and what is made of the reply, without a server."""

from __future__ import annotations

import asyncio
import unittest
from datetime import timedelta
from typing import Any

import redis_ratelimit.asyncio
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    ResponseError,
    TimeoutError,
)
from redis_ratelimit import Clause, Denied, Lapsed, Limiter, Rate, Reply, Window, headers, semaphore

from .fixtures import CASES, HEADERS, arguments, differences, limit


class Recorder:
    """A cluster client, which the limiter uses as it is. Answers with what it is given, in turn."""

    connection_kwargs = {"socket_timeout": None}

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.sent: list[str] = []

    def execute_command(self, *words: Any, **options: Any) -> Any:
        self.sent.append(" ".join(map(str, words)))
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply


class AsyncRecorder(Recorder):
    async def execute_command(self, *words: Any, **options: Any) -> Any:
        return super().execute_command(*words, **options)


ALLOWED = [0, 5, 4, -1, 1000]
RESERVED = [0, 3, 2, -1, 20000, b"job"]
REFUSED = [2, 3, 0, 700, 20000, None]


class Calls(unittest.TestCase):
    def test_each_call_sends_the_words_of_its_case_and_reads_the_reply(self) -> None:
        for case in CASES:
            with self.subTest(words=case["words"]):
                recorder = Recorder(case["reply"])
                positional, options = arguments(case)
                found = getattr(Limiter(recorder), case["call"])(*positional, **options)
                self.assertEqual(recorder.sent, [case["words"]])
                self.assertEqual(differences(found, case["means"]), [])

    def test_asyncio_sends_the_same(self) -> None:
        async def check(case: dict[str, Any]) -> None:
            recorder = AsyncRecorder(case["reply"])
            positional, options = arguments(case)
            found = await getattr(redis_ratelimit.asyncio.Limiter(recorder), case["call"])(*positional, **options)
            self.assertEqual(recorder.sent, [case["words"]])
            self.assertEqual(differences(found, case["means"]), [])

        for case in CASES:
            with self.subTest(words=case["words"]):
                asyncio.run(check(case))

    def test_durations_may_be_timedeltas(self) -> None:
        recorder = Recorder(ALLOWED, RESERVED)
        limiter = Limiter(recorder)
        limiter.throttle("k", Rate(1, 2, timedelta(milliseconds=2500)), block=timedelta(seconds=3))
        limiter.reserve("k", Window(3, timedelta(days=1)), lease=timedelta(minutes=1))
        self.assertEqual(
            recorder.sent, ["RL.THROTTLE k 1 2 2500ms 1 BLOCK 3000 MS", "RL.ACQUIRE k 3 86400 1 LEASE 60000 MS"]
        )
        with self.assertRaisesRegex(ValueError, "whole number of milliseconds"):
            limiter.throttle("k", Rate(1, 2, timedelta(microseconds=1)))

    def test_limits_that_say_two_things_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "tz must be used with fixed"):
            Window(1, "1d", tz="UTC")
        with self.assertRaisesRegex(ValueError, "must not be used together"):
            Window(1, "1d", buckets=2, fixed=True)
        with self.assertRaisesRegex(ValueError, "must begin with @"):
            Limiter(Recorder()).throttle("k", "free")

    def test_an_id_that_is_no_text_stays_bytes(self) -> None:
        reply = Limiter(Recorder([0, 3, 2, -1, 20000, b"\xff"])).reserve("k", Window(3, 60), id=b"\xff")
        self.assertEqual(reply.id, b"\xff")

    def test_waits_are_timedeltas_as_well(self) -> None:
        reply = Limiter(Recorder([1, 5, 0, 1500, 2500])).window("k", Window(5, 60))
        self.assertEqual((reply.retry_after, reply.reset_after), (timedelta(seconds=1.5), timedelta(seconds=2.5)))
        reply = Limiter(Recorder([0, 5, 0, -1, 2500, 750])).throttle("k", Rate(1, 1, 1), ahead=1000)
        self.assertEqual((reply.retry_after, reply.wait), (None, timedelta(seconds=0.75)))

    def test_a_cluster_client_that_gives_up_sooner_than_block_is_refused(self) -> None:
        recorder = Recorder(ALLOWED)
        recorder.connection_kwargs = {"socket_timeout": 2}  # type: ignore[dict-item]
        for block in 0, 2000, 60_000:
            with self.assertRaisesRegex(ValueError, "socket_timeout of 2 s"):
                Limiter(recorder).throttle("k", "@free", block=block)
        Limiter(recorder).throttle("k", "@free", block=1999)
        self.assertEqual(recorder.sent, ["RL.THROTTLE k @free 1 BLOCK 1999 MS"])
        with self.assertRaisesRegex(ValueError, "time"):
            Limiter(recorder, deadline=1.0)


class Settling(unittest.TestCase):
    def sent(self, *replies: Any, window: Any = Window(3, "1d"), work: Any = lambda job: None, **options: Any) -> list[str]:
        """The words of one reservation, which both limiters must send alike."""
        recorder = Recorder(*replies)
        unreachable = options.pop("unreachable", "raise")

        def now() -> None:
            with Limiter(recorder, unreachable=unreachable).acquire("k", window, **options) as job:
                work(job)

        later = AsyncRecorder(*replies)

        async def soon() -> None:
            limiter = redis_ratelimit.asyncio.Limiter(later, unreachable=unreachable)
            async with limiter.acquire("k", window, **options) as job:
                done = work(job)
                if asyncio.iscoroutine(done):
                    await done

        outcomes = []
        for run in now, lambda: asyncio.run(soon()):
            try:
                run()
                outcomes.append("done")
            except Exception as error:
                outcomes.append(type(error).__name__)
        self.assertEqual(outcomes[0], outcomes[1])
        self.assertEqual(recorder.sent, later.sent)
        return [*recorder.sent[1:], outcomes[0]]

    def test_success_applies(self) -> None:
        self.assertEqual(self.sent(RESERVED, 1), ["RL.APPLY k job", "done"])

    def test_an_exception_releases(self) -> None:
        def fail(job: Any) -> None:
            raise KeyError("work")

        self.assertEqual(self.sent(RESERVED, 1, work=fail), ["RL.RELEASE k job", "KeyError"])
        # What goes wrong with giving back does not hide why the work failed.
        self.assertEqual(self.sent(RESERVED, ConnectionError(), work=fail), ["RL.RELEASE k job", "KeyError"])

    def test_a_semaphore_is_released_on_success_as_well(self) -> None:
        for window, options in [
            (semaphore(3), {}),
            (Window(3, "0"), {}),
            (Window(3, timedelta(0)), {}),
            ("@jobs", {"settle": "release"}),
        ]:
            with self.subTest(window=window):
                self.assertEqual(self.sent(RESERVED, 1, window=window, **options), ["RL.RELEASE k job", "done"])
        self.assertEqual(self.sent(RESERVED, 1, window="@day"), ["RL.APPLY k job", "done"])

    def test_what_was_used_is_applied_once(self) -> None:
        self.assertEqual(self.sent(RESERVED, 1, work=lambda job: job.apply(37)), ["RL.APPLY k job 37", "done"])
        self.assertEqual(self.sent(RESERVED, 1, work=lambda job: job.release()), ["RL.RELEASE k job", "done"])

    def test_the_lease_can_be_renewed(self) -> None:
        found = self.sent(RESERVED, 1, 1, work=lambda job: job.renew(timedelta(seconds=9)))
        self.assertEqual(found, ["RL.RENEW k job LEASE 9000", "RL.APPLY k job", "done"])

    def test_a_denial_is_raised_and_settles_nothing(self) -> None:
        self.assertEqual(self.sent(REFUSED), ["Denied"])
        with self.assertRaises(Denied) as raised:
            with Limiter(Recorder(REFUSED)).acquire("k", semaphore(3)):
                self.fail("entered")
        self.assertEqual((raised.exception.reply.limited, raised.exception.reply.retry_after_ms), (2, 700))

    def test_a_lease_that_ended_first_is_raised(self) -> None:
        self.assertEqual(self.sent(RESERVED, 0), ["RL.APPLY k job", "Lapsed"])
        self.assertEqual(self.sent(RESERVED, 0, window=semaphore(3)), ["RL.RELEASE k job", "Lapsed"])
        self.assertTrue(issubclass(Lapsed, Exception))

    def test_where_nothing_is_reserved_nothing_is_settled(self) -> None:
        self.assertEqual(self.sent([0, 3, 3, -1, 0, None], quantity=0), ["done"])

    def test_without_redis_the_work_runs_or_not_as_chosen(self) -> None:
        lost = ConnectionError("refused")
        self.assertEqual(self.sent(lost), ["ConnectionError"])
        self.assertEqual(self.sent(lost, unreachable="allow"), ["done"])
        self.assertEqual(self.sent(lost, unreachable="deny"), ["Denied"])
        # Lost after the work was done: the lease ends by itself.
        self.assertEqual(self.sent(RESERVED, lost, unreachable="allow"), ["RL.APPLY k job", "done"])
        self.assertEqual(self.sent(RESERVED, lost), ["RL.APPLY k job", "ConnectionError"])


class OutOfReach(unittest.TestCase):
    def ask(self, error: BaseException, unreachable: Any, call: Any = None) -> Reply:
        limiter = Limiter(Recorder(error), unreachable=unreachable)
        found: Reply = call(limiter) if call else limiter.throttle("k", "@free")
        return found

    def test_trouble_with_the_connection_is_answered_as_chosen(self) -> None:
        for error in (
            ConnectionError("refused"),
            TimeoutError("late"),
            OSError("no route"),
            BusyLoadingError("loading"),
            ClusterDownError("CLUSTERDOWN"),
        ):
            with self.subTest(error=error):
                self.assertRaises(type(error), self.ask, error, "raise")
                allowed, denied = self.ask(error, "allow"), self.ask(error, "deny")
                self.assertEqual((allowed.limited, allowed.reachable), (0, False))
                self.assertEqual((denied.limited, denied.reachable, denied.retry_after_ms), (1, False, None))

    def test_error_replies_are_raised_whatever_was_chosen(self) -> None:
        for error in (
            ResponseError("unknown command 'RL.THROTTLE'"),
            ResponseError("NOPOLICY no policy has this name"),
            NoPermissionError("NOPERM"),
            AuthenticationError("WRONGPASS"),
            TypeError("a mistake"),
        ):
            for unreachable in "raise", "allow", "deny":
                with self.subTest(error=error, unreachable=unreachable):
                    self.assertRaises(type(error), self.ask, error, unreachable)

    def test_the_sixth_element_is_there_as_well(self) -> None:
        def atmost(limiter: Any) -> Any:
            return limiter.throttle("k", "@free", 7, atmost=True)

        lost = ConnectionError()
        self.assertEqual(self.ask(lost, "allow", atmost).granted, 7)
        self.assertEqual(self.ask(lost, "deny", atmost).granted, 0)
        self.assertEqual(self.ask(lost, "allow", lambda limiter: limiter.throttle("k", "@free", ahead=5)).wait_ms, 0)
        reply = self.ask(lost, "deny", lambda limiter: limiter.all([Clause.throttle("k", "@free")]))
        self.assertEqual((reply.limited, getattr(reply, "clause"), getattr(reply, "answers")), (1, 0, ()))

    def test_what_redis_never_denies_is_not_denied(self) -> None:
        lost = ConnectionError()
        for call in (
            lambda limiter: limiter.throttle("k", "@free", -1),
            lambda limiter: limiter.window("k", "@day", 0),
            lambda limiter: limiter.window("k", "@day", 5, force=True),
        ):
            self.assertEqual(self.ask(lost, "deny", call).limited, 0)

    def test_to_settle_has_no_answer_without_redis(self) -> None:
        for call in (
            lambda limiter: limiter.apply("k", "a"),
            lambda limiter: limiter.release("k", "a"),
            lambda limiter: limiter.renew("k", "a"),
            lambda limiter: limiter.held("k"),
        ):
            self.assertRaises(ConnectionError, self.ask, ConnectionError(), "allow", call)


class Headers(unittest.TestCase):
    def test_each_reply_gives_the_headers_of_its_case(self) -> None:
        def reply(fields: dict[str, Any]) -> Reply:
            fields = dict(fields)
            if "answers" in fields:
                fields["answers"] = tuple(map(reply, fields["answers"]))
                return redis_ratelimit.AllReply(**fields)
            return Reply(**fields)

        for case in HEADERS:
            with self.subTest(case=case):
                found = headers(reply(case["reply"]), [limit(each) for each in case["limits"]], case.get("names", ()))
                self.assertEqual(found, case["headers"])

    def test_each_kind_can_be_left_out(self) -> None:
        reply = Reply(1, 5, 0, 1500, 2000)
        self.assertEqual(headers(reply, standard=False, x_ratelimit=False), {"Retry-After": "2"})
        self.assertEqual(headers(reply, Rate(4, 1, timedelta(seconds=2)), "a")["RateLimit-Policy"], '"a";q=5;w=10')
        with self.assertRaisesRegex(ValueError, "printable ASCII"):
            headers(reply, names="ä")
