"""The commands of calls, and how their replies are read. No server is needed."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import re
import socket
import unittest
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import Enum, IntEnum
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any
from unittest import mock

import redis_ratelimit.asyncio
import redis_ratelimit.types
from redis_ratelimit import (
    AllReply,
    Clause,
    Denied,
    Duplicate,
    Info,
    Limiter,
    MemoryLimiter,
    MissingModule,
    Rate,
    Reply,
    Reservation,
    ReserveOptions,
    UnexpectedReply,
    UnknownPolicy,
    Window,
    semaphore,
)
from redis_ratelimit._internal.words import milliseconds, period_ms

from .fixtures import (
    CASES,
    LIBRARIES,
    SPOKEN,
    AsyncRecorder,
    Recorder,
    arguments,
    close,
    differences,
    done,
    entered,
    limit,
    make,
    settled,
    unexpected,
)
from .servers import PATIENCE, until, until_soon

if TYPE_CHECKING:
    from typing_extensions import Unpack, assert_type

    from redis_ratelimit.types import Client, Key

errors = import_module(f"{LIBRARIES[0]}.exceptions")
ConnectionError = errors.ConnectionError
ResponseError = errors.ResponseError

ALLOWED = [0, 5, 4, -1, 1000]
RESERVED = [0, 3, 2, -1, 20000, b"job"]
REFUSED = [2, 3, 0, 700, 20000, None]


class Calls(unittest.TestCase):
    def test_each_call_sends_the_words_of_its_case_and_reads_the_reply(self) -> None:
        async def check(case: dict[str, Any], recorder: Recorder) -> None:
            positional, options = arguments(case)
            found = await done(getattr(recorder.limiter(), case["call"])(*positional, **options))
            self.assertEqual(recorder.sent, [case["words"]])
            self.assertEqual(differences(found, case["means"]), [])

        for case in CASES:
            for kind in Recorder, AsyncRecorder:
                with self.subTest(words=case["words"], kind=kind):
                    asyncio.run(check(case, kind(case["reply"])))

    def test_info_is_read_from_a_map_of_resp3_and_a_key_without_state_has_none(self) -> None:
        bucket = {b"kind": b"bucket", b"full_in": 1500, b"debt": 0, b"ban": 7, b"waiting": 0, b"ttl": 2000, b"new": 1}
        limiter = Recorder(bucket, {}).limiter()
        self.assertEqual(
            limiter.info("k"), Info("bucket", full_in_ms=1500, debt_ms=0, ban_ms=7, waiting=0, ttl_ms=2000)
        )
        self.assertIsNone(limiter.info("k"))

    def test_the_classes_for_asyncio_have_the_same_methods_signatures_and_docstrings(self) -> None:
        def public(cls: type) -> set[str]:
            return {name for name in dir(cls) if not name.startswith("_")} - {"LINGER_SECONDS"}

        for name in "Limiter", "Local", "MemoryLimiter", "Reservation":
            one, twin = getattr(redis_ratelimit, name), getattr(redis_ratelimit.asyncio, name)
            # The client libraries call it aclose, too.
            self.assertEqual(public(one), public(twin) - {"aclose"})
            for each in public(one) & public(twin):
                method, other = getattr(one, each), getattr(twin, each)
                # Without a key, that of a synchronous limiter closes connections.
                if callable(method) and (each != "close" or name == "Local"):
                    with self.subTest(cls=name, method=each):
                        self.assertEqual(str(inspect.signature(method)), str(inspect.signature(other)))
                        self.assertEqual(method.__doc__, other.__doc__)

    def test_the_types_in_signatures_can_be_imported(self) -> None:
        makers = Limiter, MemoryLimiter, redis_ratelimit.ReplyWithOptions, Rate, Window
        functions: list[Any] = [getattr(redis_ratelimit, name) for name in ("headers", "merged_headers", "problem")]
        functions += [cls.__init__ for cls in makers]
        for cls in Limiter, redis_ratelimit.Local, Reservation, Clause, redis_ratelimit.Fallback:
            functions += [getattr(cls, name) for name in dir(cls) if not name.startswith("_")]
        annotations = {
            str(annotation)
            for function in functions
            if inspect.isfunction(function)
            for annotation in function.__annotations__.values()
        }
        standard = {"Any", "Awaitable", "Fraction", "Iterable", "Mapping", "None", "Sequence", "Unpack"}
        named = {name for each in annotations for name in re.findall(r"\b[A-Z]\w*", each)} - standard
        self.assertIn("Duration", named)
        self.assertEqual(named - {*redis_ratelimit.__all__, *redis_ratelimit.types.__all__}, set())

    def test_a_reply_that_is_not_one_of_the_command_is_an_error(self) -> None:
        for case in CASES:
            positional, options = arguments(case)
            has_numbers = isinstance(case["reply"], list) and case["reply"][:1] in ([0], [1], [2])
            for reply in [None, "1", -1, [7], *(unexpected(case["reply"]) if has_numbers else [])]:
                # A semaphore's or a denied reservation, and a policy in shadow, have no id.
                with self.subTest(words=case["words"], reply=reply), self.assertRaises(UnexpectedReply) as raised:
                    getattr(Recorder(reply).limiter(), case["call"])(*positional, **options)
                self.assertIn(f"unexpected reply to {case['words'].split()[0]}", str(raised.exception))

    def test_a_reply_outside_the_protocol_is_an_error(self) -> None:
        error = errors.InvalidResponse("Protocol Error: b'HTTP/1.1 400 Bad Request'")
        with self.assertRaises(errors.InvalidResponse):
            Recorder(error).limiter(unreachable="allow").throttle("k", "@free")

    def test_values_that_only_the_server_checks_are_sent(self) -> None:
        rate, window = Rate(1, 2, 3), Window(3, 60)
        calls: list[tuple[str, Callable[[Any], Any]]] = [
            ("RL.THROTTLE k -1 0 -1 1 MS", lambda it: it.throttle("k", Rate(-1, 0, -1))),
            (
                "RL.THROTTLE k 1 2 3 1 AHEAD 5ms BLOCK 5ms MS",
                lambda it: it.throttle("k", rate, ahead="5ms", block="5ms"),
            ),
            (f"RL.THROTTLE k 1 2 3 {2**70} MS", lambda it: it.throttle("k", rate, 2**70)),
            ("RL.WINDOW k -1 60 1 MS", lambda it: it.window("k", Window(-1, 60))),
            ("RL.WINDOW k 3 60 1 ATMOST FORCE MS", lambda it: it.window("k", window, atmost=True, force=True)),
            ("RL.TOP COUNT 0", lambda it: it.top(0)),
            ("RL.RELEASE k", lambda it: it.release("k")),
        ]
        for words, call in calls:
            recorder = Recorder(ResponseError("refused by the server"))
            with self.subTest(words=words), self.assertRaisesRegex(ResponseError, "refused by the server"):
                call(recorder.limiter(unreachable="allow"))
            self.assertEqual(recorder.sent, [words])

    def test_durations_can_be_timedeltas(self) -> None:
        recorder = Recorder(ALLOWED, RESERVED)
        limiter = recorder.limiter()
        limiter.throttle("k", Rate(1, 2, timedelta(milliseconds=2500)), block=timedelta(seconds=3))
        limiter.reserve("k", Window(3, timedelta(days=1)), lease=timedelta(minutes=1))
        self.assertEqual(
            recorder.sent, ["RL.THROTTLE k 1 2 2500ms 1 BLOCK 3000 MS", "RL.ACQUIRE k 3 86400 1 LEASE 60000 MS"]
        )
        with self.assertRaisesRegex(ValueError, "whole number of milliseconds"):
            limiter.throttle("k", Rate(1, 2, timedelta(microseconds=1)))

    def test_a_period_has_a_length_in_milliseconds(self) -> None:
        day = 86_400_000
        cases: list[tuple[Any, int | None, int | None]] = [
            (5, 5000, 5000),
            ("5", 5000, 5000),
            ("0", 0, 0),
            ("250ms", 250, 250),
            ("2H", 7_200_000, 7_200_000),
            (timedelta(minutes=1), 60_000, 60_000),
            ("2mo", None, 56 * day),
            ("1y", None, 365 * day),
            ("5parsecs", None, None),
            ("soon", None, None),
        ]
        for period, length, least in cases:
            with self.subTest(period=period):
                self.assertEqual((period_ms(period), period_ms(period, least=True)), (length, least))

    def test_durations_can_be_texts_with_a_unit(self) -> None:
        self.assertEqual([milliseconds("block", text) for text in ("5S", "3w")], [5000, 1_814_400_000])
        for text in "1mo", "1y", "5m", "5", "s", "-5s", "1.5s", "":
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, "a unit of ms, s, min, h, d, w"):
                Recorder().limiter().throttle("k", Rate(1, 2, 3), ban=text)

    def test_an_id_that_is_not_utf8_stays_bytes(self) -> None:
        reply = Recorder([0, 3, 2, -1, 20000, b"\xff"]).limiter().reserve("k", Window(3, 60), id=b"\xff")
        self.assertEqual(reply.id, b"\xff")

    def test_waits_are_timedeltas_too(self) -> None:
        reply = Recorder([1, 5, 0, 1500, 2500]).limiter().window("k", Window(5, 60))
        self.assertEqual((reply.retry_after, reply.reset_after), (timedelta(seconds=1.5), timedelta(seconds=2.5)))
        reply = Recorder([0, 5, 0, -1, 2500, 750]).limiter().throttle("k", Rate(1, 1, 1), ahead="1000ms")
        self.assertEqual((reply.retry_after, reply.wait), (None, timedelta(seconds=0.75)))

    def test_a_limit_can_be_written_in_words(self) -> None:
        for case in SPOKEN:
            options = case.get("options", {})
            with self.subTest(case=case):
                if "error" in case:
                    self.assertRaisesRegex(ValueError, "'30/min'|at least 1|above 0|months", Rate.per, case["say"])
                if "rate" in case:
                    self.assertEqual(Rate.per(case["say"], **options), Rate(*case["rate"]))
                if "window" in case:
                    self.assertEqual(Window.per(case["say"], **options), limit({"window": case["window"]}))
        mistakes: list[tuple[str, Callable[..., Any], list[Any]]] = [
            ("min or mo", Window.per, ["30/m"]),
            ("'30/min'", Window.per, ["30"]),
            *(("must be above 0, not as in '30/0s'", per, ["30/0s"]) for per in (Rate.per, Window.per)),
            *(("must not be in months or years", Rate.per, [say]) for say in ("30/month", "30/2 years")),
            *(("must not be in months or years", Rate, [0, 30, month]) for month in ("1MO", "1y")),
            *(("period of a rate must be above 0", Rate, [0, 30, nothing]) for nothing in (0, "0s", timedelta())),
        ]
        for text, make_it, given in mistakes:
            self.assertRaisesRegex(ValueError, text, make_it, *given)
        self.assertRaisesRegex(ValueError, "at least 1", Rate.per, "30/min", capacity=0)
        fixed = Window.per("5/d", fixed=True, tz="Asia/Shanghai")
        self.assertEqual(fixed, Window(5, "1d", fixed=True, tz="Asia/Shanghai"))
        self.assertEqual(Window.per("5/d", buckets=3), Window(5, "1d", buckets=3))
        self.assertRaisesRegex(TypeError, "a limit must be a text", Rate.per, 30)

    def test_an_argument_of_the_wrong_kind_is_an_error_and_nothing_is_sent(self) -> None:
        """With texts that say what is right. The table of all clients has more cases."""
        rate, window = Rate(1, 1, 1), Window(3, 60)
        of_rate: Any = Rate
        of_window: Any = Window
        clause: Any = Clause
        in_words = "^for a limit in words use {}.per\\('5/min'\\)$"
        cases: list[tuple[type[Exception], str, list[Callable[[Any], Any]]]] = [
            (TypeError, "be a Rate", [lambda _: clause.throttle("k", window)]),
            (TypeError, "must be a Window", [lambda it: it.acquire("k", rate), lambda it: it.window("k", (3, 60))]),
            (TypeError, "must be a Window", [lambda _: clause.window("k", rate), lambda _: clause.acquire("k", rate)]),
            (TypeError, "quantity must be an integer", [lambda it: it.throttle("k", rate, "2")]),
            (TypeError, "block must be a text such as '5s'", [lambda it: it.throttle("k", rate, block=0.5)]),
            (TypeError, "a unit: write '5ms' or '5s', not 5$", [lambda it: it.throttle("k", rate, block=5)]),
            (TypeError, "a unit", [lambda it: it.renew("k", "a", 9), lambda it: it.local("k", window, lease=9)]),
            (TypeError, "must be str or bytes, not 7", [lambda it: it.throttle(7, rate)]),
            (TypeError, "be str or bytes, not None", [lambda it: it.throttle(None, rate), lambda it: it.reset(None)]),
            (TypeError, "a key must be str or bytes", [lambda it: it.acquire(None, window)]),
            (TypeError, "Clause", [lambda it: it.all([window]), lambda it: it.all([[window]])]),
            (TypeError, "burst must be an integer", [lambda _: of_rate(1.5, 1, 1)]),
            (TypeError, "period must be", [lambda _: of_window(3, 0.5)]),
            (ValueError, in_words.format("Rate"), [lambda it: it.throttle("k", "5/min")]),
            (ValueError, in_words.format("Window"), [lambda it: it.window("k", "5/min")]),
            (ValueError, "a semaphore has no", [lambda it: it.close("k", semaphore(3), "30s")]),
            (ValueError, "a semaphore has no", [lambda it: it.window("k", semaphore(3))]),
            (ValueError, "a semaphore has no", [lambda _: MemoryLimiter().window("k", semaphore(3))]),
            (ValueError, "a semaphore has no", [lambda _: clause.window("k", semaphore(3))]),
            (ValueError, "the policy 'free' must begin with @", [lambda it: it.window("k", "free")]),
        ]
        for text in "1 hours", "5 per minute", "hour", "", "-1s", "1.5s":
            self.assertRaisesRegex(ValueError, "period must be seconds, or a number with a unit", Window, 3, text)
            self.assertRaisesRegex(ValueError, "period must be seconds, or a number with a unit", Rate, 3, 1, text)

        async def ask(call: Callable[[Any], Any], recorder: Recorder) -> None:
            await done(call(recorder.limiter()))

        for kind, text, calls in cases:
            for call, recorder in product(calls, (Recorder(), AsyncRecorder())):
                with self.subTest(text=text), self.assertRaisesRegex(kind, text):
                    asyncio.run(ask(call, recorder))
                self.assertEqual(recorder.sent, [])

    def test_an_id_that_cannot_be_sent_is_refused_before_anything_is_sent(self) -> None:
        limiter = Recorder().limiter(unreachable="allow")
        id: Any
        for id, error in (17, TypeError), (object(), TypeError), ("\ud800", ValueError):
            for call in (
                lambda it: limiter.reserve("k", Window(9, 60), id=it),
                lambda it: Clause.acquire("k", Window(9, 60), id=it),
                lambda it: limiter.apply("k", it),
                lambda it: limiter.release("k", "a", it),
                lambda it: limiter.renew("k", it),
            ):
                with self.subTest(id=id):
                    self.assertRaises(error, call, id)

    def test_a_text_that_cannot_be_encoded_is_refused_before_a_connection_is_borrowed(self) -> None:
        half, window = "user:\udcff", Window(3, "1d", fixed=True, tz="\udcff")
        texts: list[Callable[[Any], Any]] = [
            lambda limiter: limiter.throttle(half, "@free"),
            lambda limiter: limiter.throttle("k", f"@{half}"),
            lambda limiter: limiter.window("k", window),
            lambda limiter: limiter.reserve(half, "@day", id="a"),
            lambda limiter: limiter.apply(half, "a"),
            lambda limiter: limiter.all([Clause.throttle("k", "@free"), Clause.throttle(half, "@free")]),
            lambda limiter: limiter.all([Clause.throttle(key, "@free") for key in ("k", half)], force=True),
            lambda limiter: limiter.local(half, Window(3, 60)).take(),
        ]

        async def check(kind: type[Recorder]) -> None:
            recorder = kind(ALLOWED, ALLOWED)
            limiter: Any = recorder.limiter(unreachable="allow", deadline=PATIENCE)
            await done(limiter.throttle("k", "@free"))
            for call in texts:
                with self.assertRaisesRegex(ValueError, r"\\udcff' cannot be sent in utf-8: surrogates not allowed"):
                    await done(call(limiter))
                self.assertEqual((len(recorder.sent), recorder.released), (1, []))
            await done(limiter.throttle("k", "@free"))
            self.assertEqual((len(recorder.sent), recorder.connections), (2, 1))

        for kind in Recorder, AsyncRecorder:
            with self.subTest(kind=kind.__name__):
                asyncio.run(check(kind))

    def test_texts_and_integers_of_derived_classes_are_sent(self) -> None:
        class Key(str, Enum):
            USERS = "users"

        class Cost(IntEnum):
            TWO = 2

        recorder = Recorder(ALLOWED)
        recorder.limiter().window(Key.USERS, Window(3, 60), Cost.TWO)
        self.assertEqual(recorder.sent, ["RL.WINDOW users 3 60 2 MS"])
        self.assertEqual(MemoryLimiter().window(Key.USERS, Window(3, 60), Cost.TWO).remaining, 1)

    def test_a_limiter_refuses_other_clients_and_unknown_options(self) -> None:
        for library in LIBRARIES:
            now, soon = make(library), make(library, ".asyncio")
            for client, limiter, text in [
                ("redis://:secret@localhost", Limiter, "^a limiter takes a client, not a URL: give it Redis.from_url"),
                (soon, Limiter, rf"^{library}.asyncio.client.\w+ is a .* use redis_ratelimit.asyncio.Limiter$"),
                (now, redis_ratelimit.asyncio.Limiter, rf"^{library}.client.\w+ is no client for asyncio"),
                (object(), Limiter, "^object must be a client of redis-py or valkey-py$"),
            ]:
                self.assertRaisesRegex(TypeError, text, limiter, client)
            replicas = import_module(f"{library}.sentinel").Sentinel([("127.0.0.1", 1)]).slave_for("limits")
            self.assertRaisesRegex(ValueError, "needs the master", Limiter, replicas)
            self.assertRaisesRegex(ValueError, "unreachable must be", Limiter, now, unreachable="alow")
            self.assertRaisesRegex(
                TypeError, rf"unreachable must be .* not {library}.client.\w+$", Limiter, now, unreachable=now
            )
            fallback = redis_ratelimit.asyncio.Limiter(soon)
            self.assertRaisesRegex(TypeError, "limiter for asyncio", Limiter, now, unreachable=fallback)
            self.assertRaisesRegex(TypeError, "deadline must be a number of seconds", Limiter, now, deadline=None)
            self.assertRaisesRegex(ValueError, "deadline must be a number with a unit", Limiter, now, deadline="1")
            for deadline in 0, "0s", timedelta(0), float("nan"), float("inf"), 1e10:
                self.assertRaisesRegex(ValueError, "above 0 seconds, and at most", Limiter, now, deadline=deadline)
            self.assertRaisesRegex(TypeError, "timeout", Limiter, now, timeout=1)

    def test_the_deadline_is_a_second_if_none_is_given(self) -> None:
        for library in LIBRARIES:
            for folder, limiter in ("", Limiter), (".asyncio", redis_ratelimit.asyncio.Limiter):
                client = make(library, folder, socket_timeout=3)
                self.assertEqual(limiter(client)._core.deadline, 1)
                for deadline in 0.5, "500ms", timedelta(seconds=0.5):
                    self.assertEqual(limiter(client, deadline=deadline)._core.deadline, 0.5)

    def test_an_option_that_a_method_does_not_have_is_a_type_error(self) -> None:
        recorder = Recorder()
        limiter: Any = recorder.limiter()
        window, clauses = Window(3, 60), [Clause.window("k", Window(3, 60))]
        clause: Any = Clause
        for method, taken, option in (
            (limiter.throttle, ("k", Rate(1, 2, 3)), "count_denied"),
            (limiter.window, ("k", window), "ahead"),
            (limiter.reserve, ("k", window), "force"),
            (limiter.acquire, ("k", window), "ban"),
            (clause.acquire, ("k", window), "ban"),
            (limiter.throttle_ro, ("k", Rate(1, 2, 3)), "block"),
            (limiter.window_ro, ("k", window), "atmost"),
            (limiter.acquire_ro, ("k", window), "lease"),
            (limiter.all, (clauses,), "leave"),
        ):
            with self.subTest(method=method.__name__), self.assertRaisesRegex(TypeError, option):
                method(*taken, **{option: 1})
        self.assertEqual(recorder.sent, [])

    def test_an_unknown_command_names_the_server_and_an_unknown_policy_is_named(self) -> None:
        unknown = ResponseError("unknown command 'RL.THROTTLE', with args beginning with: 'k'")
        with self.assertRaisesRegex(MissingModule, "localhost:6379 has no redis-ratelimit.*RL.THROTTLE"):
            Recorder(unknown).limiter(unreachable="allow").throttle("k", "@free")
        with self.assertRaisesRegex(UnknownPolicy, "NOPOLICY .*free") as raised:
            Recorder(ResponseError("NOPOLICY no policy has the name free")).limiter().throttle("k", "@free")
        self.assertIsInstance(raised.exception, ResponseError)
        copied = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual([type(copied), str(copied)], [UnknownPolicy, str(raised.exception)])
        with self.assertRaises(ResponseError) as refused:
            Recorder(ResponseError("NOPOLICY limits must be given as @policy")).limiter().throttle("k", Rate(1, 2, 3))
        self.assertNotIsInstance(refused.exception, UnknownPolicy)

    def test_an_id_that_is_held_is_an_error_of_its_own(self) -> None:
        held = ResponseError("DUPLICATE the id is already held or waiting: use another id")
        with self.assertRaisesRegex(Duplicate, "^DUPLICATE the id") as raised:
            Recorder(held).limiter(unreachable="allow").reserve("k", Window(3, 60), id="job")
        self.assertIsInstance(raised.exception, ResponseError)
        self.assertIs(type(pickle.loads(pickle.dumps(raised.exception))), Duplicate)

    def test_a_reply_is_true_if_the_call_was_allowed(self) -> None:
        replies = [Reply(limited, 9, 8, None, 0) for limited in (0, 1, 2)]
        replies += [AllReply(limited, 9, 8, None, 0, clause=1) for limited in (0, 1, 2)]
        self.assertEqual([bool(reply) for reply in replies], 2 * [True, False, False])


class Settling(unittest.TestCase):
    def test_the_end_of_the_block_settles(self) -> None:
        def fail(job: Any) -> None:
            raise KeyError("work")

        lost, busy = ConnectionError("refused"), ConnectionError("max number of clients reached")
        of_semaphore = ResponseError("the reservation is a semaphore's and must be given back with RL.RELEASE")
        applied, released = "RL.APPLY k job", "RL.RELEASE k job"
        place, policy = {"window": semaphore(3)}, {"window": "@jobs"}
        allow, deny = {"unreachable": "allow"}, {"unreachable": "deny"}
        cases: list[tuple[list[Any], dict[str, Any], list[str]]] = [
            ([RESERVED, 1], {}, [applied, "done"]),
            ([RESERVED, 1], {"window": "@day"}, [applied, "done"]),
            # An error of releasing, or a lease that ended, does not hide the error of the work.
            ([RESERVED, 1], {"work": fail}, [released, "KeyError"]),
            ([RESERVED, lost], {"work": fail}, [released, "KeyError"]),
            ([RESERVED, 0], {"work": fail}, [released, "KeyError"]),
            ([RESERVED, 0], {"work": fail, **place}, [released, "KeyError"]),
            # A semaphore is released on success too, also if only its policy or the server says so.
            ([RESERVED, 1], place, [released, "done"]),
            ([RESERVED, 1], {"settle": "release", **policy}, [released, "done"]),
            ([RESERVED, of_semaphore, 1], policy, [applied, released, "done"]),
            # Any other error releases nothing, whatever its text says.
            ([RESERVED, errors.ReadOnlyError("no semaphore")], policy, [applied, "ReadOnlyError"]),
            ([RESERVED, ResponseError("WRONGTYPE no semaphore")], policy, [applied, "ResponseError"]),
            ([RESERVED, of_semaphore], {"settle": "apply", **policy}, [applied, "ResponseError"]),
            # What the work has settled is not settled again.
            ([RESERVED, 1], {"work": lambda job: job.apply(37)}, ["RL.APPLY k job 37", "done"]),
            ([RESERVED, 1], {"work": lambda job: job.release()}, [released, "done"]),
            ([RESERVED, 1], {"work": lambda job: job.set(2)}, ["RL.APPLY k job 2", "done"]),
            (
                [RESERVED, 1, 1],
                {"work": lambda job: job.renew(timedelta(seconds=9))},
                ["RL.RENEW k job LEASE 9000", applied, "done"],
            ),
            ([REFUSED], {}, ["Denied"]),
            ([[0, 3, 3, -1, 0, None]], {"quantity": 0}, ["done"]),
            ([RESERVED, 0], {}, [applied, "Lapsed"]),
            ([RESERVED, 0], place, [released, "Lapsed"]),
            # Without Redis `unreachable` decides whether the work runs, and later the lease ends by itself.
            ([lost], {}, ["ConnectionError"]),
            ([lost], allow, ["done"]),
            ([lost], deny, ["Denied"]),
            ([RESERVED, lost], allow, [applied, "done"]),
            ([RESERVED, lost], {}, [applied, "ConnectionError"]),
            *(([RESERVED, busy], each, [applied, "Busy"]) for each in ({}, allow, deny)),
        ]
        for replies, options, sent in cases:
            with self.subTest(replies=replies, options=options):
                options = {"window": Window(3, "1d"), **options}
                self.assertEqual(settled(replies, "k", **options), sent)

    def test_a_settlement_that_no_server_executed_is_tried_again_while_its_lease_lasts(self) -> None:
        async def check(recorder: Recorder, fails: bool, unreachable: str, *sent: str, lease: str = "1h") -> None:
            limiter: Any = recorder.limiter(unreachable=unreachable, deadline=PATIENCE)
            refused = [ConnectionError("Error 111 connecting to h:1. Connection refused.") for _ in range(2)]

            def get_connection(*args: Any) -> Any:
                if refused:
                    raise refused.pop()
                return get(*args)

            with suppress(KeyError, ConnectionError):
                async with entered(limiter.acquire("k", Window(9, 60), lease=lease)):
                    pool = limiter._core.servers.known()[0].pool
                    get, pool.get_connection = pool.get_connection, get_connection
                    if fails:
                        raise KeyError
            await until_soon(lambda: recorder.sent[1:] == [*sent], "a settlement")
            await close(limiter)

        for kind in Recorder, AsyncRecorder:
            with self.subTest(kind=kind.__name__):
                loading = import_module(LIBRARIES[0]).ResponseError("LOADING the data")
                apply, release = "RL.APPLY k job", "RL.RELEASE k job"
                asyncio.run(check(kind(RESERVED, loading, 1), False, "allow", apply, apply))
                asyncio.run(check(kind(RESERVED, loading, 1), False, "raise", apply, apply))
                asyncio.run(check(kind(RESERVED, loading, 1), True, "raise", release, release))
                with self.assertLogs("redis_ratelimit") as logged:
                    asyncio.run(check(kind(RESERVED), True, "allow", lease="20ms"))
                    until(lambda: "could not be settled" in "; ".join(logged.output), "a warning")
                # Its lease has ended meanwhile.
                with self.assertLogs("redis_ratelimit") as logged:
                    asyncio.run(check(kind(RESERVED, 0), False, "allow", apply))
                    until(lambda: "'k' had lapsed before" in "; ".join(logged.output), "a warning")

    def test_what_happens_without_redis_is_logged(self) -> None:
        lost, window = ConnectionError("refused"), Window(9, 60)
        # The second reserves nothing.
        several = [Clause.acquire("a", window), Clause.window("b", window)]
        one = [0, 9, 8, -1, 60000, b"id", 1, 1]

        def take_and_close(limiter: Limiter) -> None:
            with limiter.local("k", window, lease="1h") as local:
                local.take()

        cases: list[tuple[list[Any], Callable[[Any], Any], str]] = [
            ([lost], lambda it: it.throttle("k", "@free"), "RL.THROTTLE is decided without Redis: refused"),
            (
                [RESERVED, lost],
                lambda it: it.acquire("k", window).__enter__().__exit__(None, None, None),
                "of 'k' could not be settled: refused",
            ),
            (
                [[*ALLOWED, 1, [RESERVED, ALLOWED]], lost],
                lambda it: it.acquire(several).__enter__().__exit__(None, None, None),
                "of 'a' could not be settled: refused",
            ),
            ([lost], lambda it: it.local("k", window).take(), "a take from 'k' is decided without Redis: refused"),
            ([one, lost, 1], take_and_close, "the leases of 'k' could not be"),
        ]
        for replies, call, text in cases:
            with self.subTest(text=text), self.assertLogs("redis_ratelimit", "INFO") as logged:
                call(Recorder(*replies).limiter(unreachable="allow"))
                self.assertIn(text, "; ".join(logged.output))

    def test_a_denial_is_raised_with_its_reply(self) -> None:
        with self.assertRaises(Denied) as raised, Recorder(REFUSED).limiter().acquire("k", semaphore(3)):
            self.fail("entered")
        self.assertEqual((raised.exception.reply.limited, raised.exception.reply.retry_after_ms), (2, 700))
        copied = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((str(copied), copied.reply), (str(raised.exception), raised.exception.reply))
        with self.assertRaisesRegex(ValueError, "settle must be"):
            Recorder().limiter().acquire("k", "@jobs", settle="no")  # type: ignore[call-overload]

    def test_a_semaphore_is_not_applied(self) -> None:
        for window in semaphore(3), Window(3, "0"), Window(3, timedelta(0)):
            recorder = Recorder(RESERVED)
            for limiter in recorder.limiter(), redis_ratelimit.asyncio.Limiter(make(LIBRARIES[0], ".asyncio")):
                with self.assertRaisesRegex(ValueError, "settle must not be 'apply' for a semaphore"):
                    limiter.acquire("k", window, settle="apply")
            self.assertEqual(recorder.sent, [])
            outcome = settled([RESERVED, 1], "k", window, work=lambda job: job.apply())
            self.assertEqual(outcome, ["RL.RELEASE k job", "ValueError"])

    def test_a_settlement_goes_on_if_its_task_is_cancelled_at_every_await(self) -> None:
        async def leave(limiter: Any, ready: asyncio.Event) -> None:
            async with limiter.acquire("k", Window(9, 60)):
                ready.set()
                await asyncio.sleep(PATIENCE)

        async def release(limiter: Any, ready: asyncio.Event) -> None:
            async with limiter.acquire("k", Window(9, 60)) as job:
                ready.set()
                await job.release()

        async def apply_by_id(limiter: Any, ready: asyncio.Event) -> None:
            reply = await limiter.reserve("k", Window(9, 60))
            ready.set()
            await limiter.apply("k", reply.id)

        async def release_by_id(limiter: Any, ready: asyncio.Event) -> None:
            reply = await limiter.reserve("k", Window(9, 60))
            ready.set()
            await limiter.release("k", reply.id)

        async def check(work: Any) -> None:
            limiter, memory, ready = AsyncRecorder().limiter(), MemoryLimiter(), asyncio.Event()

            async def slow(*args: Any) -> Any:
                await asyncio.sleep(0.001)
                return memory._core.send(*args)

            with mock.patch.object(limiter._core, "send", slow):
                task = asyncio.ensure_future(work(limiter, ready))
                await ready.wait()
                while not task.done():
                    task.cancel()
                    await asyncio.sleep(0)
                await limiter.aclose()
                self.assertEqual(memory.held("k"), [])

        for work in leave, release, apply_by_id, release_by_id:
            with self.subTest(work.__name__):
                asyncio.run(check(work))

    def test_without_a_thread_for_renewals_the_reservations_are_released(self) -> None:
        limiter = MemoryLimiter()
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            with self.assertRaisesRegex(RuntimeError, "start new thread"):
                limiter.acquire([Clause.acquire("k", Window(9, 60))]).__enter__()
        self.assertEqual(limiter.held("k"), [])

    def test_a_reservation_is_not_used_before_its_block(self) -> None:
        async def check(kind: type[Recorder]) -> None:
            for limits in ("k", Window(9, 60)), ([Clause.acquire("k", Window(9, 60))],):
                recorder = kind(ConnectionError("refused"))
                job: Any = recorder.limiter().acquire(*limits)
                uses: list[Callable[[], Any]] = [
                    *(lambda: job.reply, lambda: job.id, lambda: job.set(3)),
                    *(job.apply, lambda: job.apply(3), job.release, job.renew, lambda: job.renew("5s")),
                ]
                for use in uses:
                    with self.assertRaisesRegex(RuntimeError, r"use `with limiter.acquire\(..\) as job:`"):
                        await done(use())
                self.assertRaisesRegex(ValueError, "at least 0", job.set, -1)
                self.assertEqual(recorder.sent, [])
                with self.assertRaises(ConnectionError):
                    async with entered(job):
                        self.fail("entered")
                self.assertRaisesRegex(RuntimeError, "reserving failed", getattr, job, "reply")
                # A program may release in a `finally`, whatever happened.
                self.assertTrue(await done(job.release()))

        for kind in Recorder, AsyncRecorder:
            with self.subTest(kind=kind.__name__):
                asyncio.run(check(kind))

    def test_a_reservation_has_another_id_each_time_it_is_entered(self) -> None:
        recorder = Recorder(RESERVED, 1, RESERVED, 1)
        job = recorder.limiter().acquire("k", Window(9, 60))
        for count in 1, 2:
            with job:
                self.assertEqual(len(recorder.made), count)

    def test_a_reservation_whose_reply_was_lost_is_released_unless_the_program_chose_its_id(self) -> None:
        def check(recorder: Recorder, call: str, *args: Any, **options: Any) -> None:
            limiter: Any = recorder.limiter(unreachable="allow", deadline=PATIENCE)

            async def run() -> None:
                await done(getattr(limiter, call)(*args, **options))
                await close(limiter)

            asyncio.run(run())

        own = [Clause.acquire("a", Window(9, 60)), Clause.acquire("b", Window(9, 60), id="job")]
        for kind in Recorder, AsyncRecorder:
            for error in ConnectionError("lost"), errors.TimeoutError("late"):
                with self.subTest(kind=kind.__name__, error=error):
                    recorder = kind(error)
                    check(recorder, "reserve", "k", Window(9, 60))
                    until(lambda: recorder.released == [f"RL.RELEASE k {id}" for id in recorder.made], "a release")
                    recorder = kind(error)
                    check(recorder, "all", own)
                    until(lambda: recorder.released == [f"RL.RELEASE a {id}" for id in recorder.made], "a release")
                    # The server may grant a call that waits between the release and the end of the connection.
                    recorder = kind(error)
                    check(recorder, "reserve", "k", Window(9, 60), block="1000ms")
                    until(
                        lambda: recorder.released == 2 * [f"RL.RELEASE k {id}" for id in recorder.made], "two releases"
                    )
                    recorder = kind(error)
                    check(recorder, "reserve", "k", Window(9, 60), id="job")
                    self.assertEqual(len(recorder.sent), 1)


class OutOfReach(unittest.TestCase):
    def ask(self, error: BaseException, unreachable: Any, call: Any = None) -> Reply:
        limiter = Recorder(error).limiter(unreachable=unreachable)
        found: Reply = call(limiter) if call else limiter.throttle("k", "@free")
        return found

    def test_errors_of_the_connection_are_answered_by_unreachable(self) -> None:
        for error in (
            ConnectionError("refused"),
            errors.TimeoutError("late"),
            OSError("no route"),
            errors.BusyLoadingError("loading"),
        ):
            with self.subTest(error=error):
                self.assertRaises(type(error), self.ask, error, "raise")
                allowed, denied = self.ask(error, "allow"), self.ask(error, "deny")
                self.assertEqual((allowed.limited, allowed.reachable), (0, False))
                self.assertEqual((denied.limited, denied.reachable, denied.retry_after_ms), (1, False, None))

    def test_replies_that_the_server_cannot_serve_now_reset_the_breaker(self) -> None:
        for error in (
            errors.BusyLoadingError("Redis is loading the dataset in memory"),
            errors.MasterDownError("Link with MASTER is down"),
            errors.ClusterDownError("The cluster is down"),
            errors.TryAgainError("Multiple keys request during rehashing of slot"),
            ResponseError("LOADING Redis is loading the dataset in memory"),
        ):
            for kind in Recorder, AsyncRecorder:
                with self.subTest(error=error, kind=kind):
                    lost = ConnectionError("lost")
                    recorder = kind(*[error] * 5, lost, lost, error, lost, lost, lost)
                    limiter = recorder.limiter(unreachable="allow")

                    async def run(limiter: Any = limiter) -> None:
                        # Between two calls that get no answer and three more, it resets the count of failures.
                        for _ in range(12):
                            reply = await done(limiter.throttle("k", "@free"))
                            self.assertEqual((reply.allowed, reply.reachable), (True, False))

                    asyncio.run(run())
                    self.assertEqual(len(recorder.sent), 11, "the last call finds the breaker open")

    def test_a_call_in_the_cleanup_of_a_cancelled_task_ends_at_its_deadline(self) -> None:
        async def check(port: int) -> None:
            client = make(LIBRARIES[0], ".asyncio", port=port)
            limiter = redis_ratelimit.asyncio.Limiter(client, unreachable="allow", deadline=0.1)
            replies: list[Reply] = []

            async def work() -> None:
                try:
                    await asyncio.sleep(PATIENCE)
                finally:
                    replies.append(await limiter.throttle("k", "@free"))

            for is_cancelled_again in False, True:
                task = asyncio.ensure_future(work())
                await asyncio.sleep(0.01)
                task.cancel()
                if is_cancelled_again:
                    await asyncio.sleep(0.01)
                    task.cancel()
                await asyncio.wait([task])
                self.assertTrue(task.cancelled())
                self.assertEqual([reply.reachable for reply in replies], [False])
            await limiter.aclose()

        # It accepts connections, and says nothing.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            asyncio.run(check(silent.getsockname()[1]))

    def test_a_server_that_answered_and_now_hangs_up_on_connections_is_busy(self) -> None:
        """It may have too many, but its error may be lost."""
        cases = [
            ("Connection closed by server.", "Busy"),
            ("Error while reading from h:1 : (104, 'Connection reset by peer')", "Busy"),
            ("Error 104 connecting to h:1. Connection reset by peer.", "Busy"),
            ("Error 32 connecting to h:1. Broken pipe.", "Busy"),
            ("Error 111 connecting to h:1. Connection refused.", "Reply"),
            ("Error -2 connecting to h:1. Name or service not known.", "Reply"),
            # What asyncio raises if a name has several addresses.
            ("Error Multiple exceptions: [Errno 111] .. connecting to h:1.", "Reply"),
        ]
        for text, expected in cases:
            with self.subTest(text=text):
                recorder = Recorder(ALLOWED)
                limiter = recorder.limiter(unreachable="allow")
                limiter.throttle("k", "@free")
                error = ConnectionError(text)
                with mock.patch.object(limiter._core.servers.known()[0], "pool") as pool:
                    pool.get_connection.side_effect = error
                    try:
                        outcome: Any = limiter.throttle("k", "@free")
                    except redis_ratelimit.Busy as busy:
                        outcome = busy
                self.assertEqual(type(outcome).__name__, expected)

    def test_error_replies_are_raised_whatever_unreachable_is(self) -> None:
        for error in (
            ResponseError("NOPOLICY no policy has this name"),
            errors.NoPermissionError("NOPERM"),
            errors.AuthenticationError("WRONGPASS"),
            TypeError("a mistake"),
        ):
            for unreachable in "raise", "allow", "deny":
                with self.subTest(error=error, unreachable=unreachable):
                    self.assertRaises(type(error), self.ask, error, unreachable)

    def test_replies_without_redis_have_the_sixth_element_too(self) -> None:
        def atmost(limiter: Any) -> Any:
            return limiter.throttle("k", "@free", 7, atmost=True)

        lost = ConnectionError()
        self.assertEqual(self.ask(lost, "allow", atmost).granted, 7)
        self.assertEqual(self.ask(lost, "deny", atmost).granted, 0)
        self.assertEqual(
            self.ask(lost, "allow", lambda limiter: limiter.throttle("k", "@free", ahead="5ms")).wait_ms, 0
        )
        reply = self.ask(lost, "deny", lambda limiter: limiter.all([Clause.throttle("k", "@free")]))
        self.assertEqual((reply.limited, getattr(reply, "clause"), getattr(reply, "answers")), (1, 0, ()))

    def test_a_call_that_another_limiter_cannot_decide_raises_the_error_of_the_client_library(self) -> None:
        other = mock.Mock(spec=["throttle", "window", "reserve"])
        with self.assertRaises(errors.TimeoutError):
            Recorder(errors.TimeoutError("late")).limiter(unreachable=other).all([Clause.throttle("k", "@free")])
        with self.assertRaises(ConnectionError):
            Recorder(ConnectionError("refused")).limiter(unreachable=other).window_ro("k", Window(3, 60))
        self.assertEqual(other.mock_calls, [])

    def test_calls_that_redis_never_denies_are_allowed(self) -> None:
        lost = ConnectionError()
        for call in (
            lambda limiter: limiter.throttle("k", "@free", -1),
            lambda limiter: limiter.window("k", "@day", 0),
            lambda limiter: limiter.window("k", "@day", 5, force=True),
        ):
            self.assertEqual(self.ask(lost, "deny", call).limited, 0)
        # This is an error of the server.
        self.assertEqual(self.ask(lost, "deny", lambda limiter: limiter.reserve("k", "@day", -1)).limited, 1)
        booked = self.ask(lost, "deny", lambda limiter: limiter.throttle("k", "@free", 0, ahead="5ms"))
        self.assertEqual((booked.limited, booked.wait_ms), (0, 0))

    def test_settling_raises_without_redis(self) -> None:
        for call in (
            lambda limiter: limiter.apply("k", "a"),
            lambda limiter: limiter.release("k", "a"),
            lambda limiter: limiter.renew("k", "a"),
            lambda limiter: limiter.held("k"),
        ):
            self.assertRaises(ConnectionError, self.ask, ConnectionError(), "allow", call)


if TYPE_CHECKING:
    # This never runs. mypy checks the types, and that each ignored error is one.

    def the_synchronous_limiter(limiter: Limiter, memory: MemoryLimiter) -> None:
        window, clauses = Window(3, 60), [Clause.acquire("a", Window(3, 60)), Clause.window("b", "@day")]
        for each in limiter, memory:
            assert_type(each.window("k", window), Reply)
            assert_type(each.throttle("k", Rate.per("5/min"), block="5s"), Reply)
        assert_type(limiter.reserve("k", window, atmost=True), Reply)
        assert_type(limiter.reserve(clauses), AllReply[Reservation])
        assert_type(limiter.all(clauses), AllReply[Reservation])
        assert_type(limiter.all([clauses]).reservation, "Reservation | None")
        a_program_that_names_no_reservation(limiter.all(clauses))
        with limiter.acquire(clauses, limits="l") as several, limiter.acquire("k", window, settle="apply") as one:
            assert_type(several, Reservation)
            assert_type(one.apply(2), bool)
        assert_type(limiter.close("k", window, "30s"), Reply)
        limiter.close("k", window)  # type: ignore[call-overload]
        limiter.throttle("k", window)  # type: ignore[arg-type]
        limiter.window("k", window, blok=5)  # type: ignore[call-arg]
        limiter.reserve("k")  # type: ignore[arg-type]
        limiter.reserve(clauses, window)  # type: ignore[call-overload]
        limiter.acquire("k")  # type: ignore[arg-type]
        limiter.acquire(clauses, lease="5s")  # type: ignore[call-overload]
        limiter.all(clauses).reservation.apply()  # type: ignore[union-attr]

    class Explicit:
        """A fallback that names its options."""

        def throttle(
            self, key: Key, rate: Rate | str, quantity: int = 1, *, leave: int = 0, atmost: bool = False, **more: Any
        ) -> Reply: ...

        async def window(self, key: Key, window: Window | str, quantity: int = 1, **options: Any) -> Reply: ...

        def reserve(
            self, key: Key, window: Window | str, quantity: int = 1, **options: Unpack[ReserveOptions]
        ) -> Reply: ...

    class WithoutOptions(Explicit):
        def throttle(self, key: Key, rate: Rate | str, quantity: int = 1) -> Reply: ...  # type: ignore[override]

    class WithoutReply(Explicit):
        def reserve(self, key: Key, window: Window | str, quantity: int = 1, **options: Any) -> bool: ...  # type: ignore[override]

    def fallbacks(client: Client, other: Limiter, memory: MemoryLimiter) -> None:
        for unreachable in other, memory, Explicit():
            Limiter(client, unreachable=unreachable)
            redis_ratelimit.asyncio.Limiter(client, unreachable=unreachable)
        Limiter(client, unreachable=WithoutOptions())  # type: ignore[arg-type]
        Limiter(client, unreachable=WithoutReply())  # type: ignore[arg-type]

    def a_program_that_names_no_reservation(reply: AllReply) -> None:
        assert_type(reply.reservation, "Any | None")

    async def the_limiter_for_asyncio(
        limiter: redis_ratelimit.asyncio.Limiter, memory: redis_ratelimit.asyncio.MemoryLimiter
    ) -> None:
        window, clauses = Window(3, 60), [Clause.acquire("a", Window(3, 60))]
        for each in limiter, memory:
            assert_type(await each.window("k", window), Reply)
        assert_type(await limiter.reserve("k", window), Reply)
        reply = await limiter.reserve(clauses)
        assert_type(reply, AllReply[redis_ratelimit.asyncio.Reservation])
        assert_type(await limiter.all(clauses), AllReply[redis_ratelimit.asyncio.Reservation])
        if reply.reservation is not None:
            assert_type(await reply.reservation.apply({"a": 2}), bool)
        a_program_that_names_no_reservation(reply)
        async with limiter.acquire(clauses) as several:
            assert_type(several, redis_ratelimit.asyncio.Reservation)
        await limiter.reserve("k")  # type: ignore[arg-type]
        limiter.acquire("k")  # type: ignore[arg-type]
