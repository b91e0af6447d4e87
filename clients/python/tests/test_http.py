"""HTTP responses: the headers and problem details of the tables, and several limits on one request."""

from __future__ import annotations

import json
import random
import unittest
from datetime import timedelta
from email.message import Message
from fractions import Fraction
from typing import Any
from unittest import mock

import httpx

from redis_ratelimit import (
    AllReply,
    Clause,
    Lapsed,
    Rate,
    Reply,
    ReplyWithOptions,
    Window,
    add_reply,
    client_address,
    headers,
    merged_headers,
    problem,
    retry_after,
    semaphore,
)
from redis_ratelimit.http.exchange import Exchange, Held

from .fixtures import ADDRESSES, HEADERS, HTTP, RETRY_AFTER, as_list, limit, reply

#: Limits of both kinds in one list, which type checkers must accept as it stands.
LIMITS = [Rate.per("60/min"), Window(1000, "1mo", fixed=True)]
DENIED = Reply(1, 5, 0, 1500, 2000)


class Headers(unittest.TestCase):
    def test_each_reply_has_the_headers_of_its_case(self) -> None:
        for case in HEADERS:
            with self.subTest(case=case):
                given = reply(case["reply"]), [*map(limit, case.get("limits", ()))], case.get("names", ())
                self.assertEqual(headers(*given, pk=case.get("pk")), case["headers"])

    def test_a_parser_of_structured_fields_reads_them(self) -> None:
        for case in [*HEADERS, *HTTP]:
            if "RateLimit" not in case["headers"]:
                continue
            with self.subTest(case=case):
                policies = as_list(case["headers"]["RateLimit-Policy"])
                standing = as_list(case["headers"]["RateLimit"])
                names = [name for name, _ in policies]
                self.assertEqual([name for name, _ in standing], names)
                self.assertEqual(len(set(names)), len(names))
                for (name, policy), (_, stands) in zip(policies, standing):
                    self.assertIs(type(name), str)
                    self.assertTrue(set(policy) <= {"q", "qu", "w", "pk"} and set(stands) <= {"r", "t", "pk"})
                    self.assertEqual(policy.get("pk"), stands.get("pk"))
                    self.assertIs(type(policy.get("qu", "")), str)
                    for value in (policy["q"], policy.get("w", 1), stands["r"], stands.get("t", 0)):
                        self.assertIs(type(value), int)
                        self.assertTrue(0 <= value < 10**15)
                    self.assertLessEqual(stands["r"], policy["q"])
                    self.assertGreater(policy.get("w", 1), 0)

    def test_each_kind_of_headers_can_be_left_out(self) -> None:
        self.assertEqual(headers(DENIED, standard=False, x_ratelimit=False), {"Retry-After": "2"})
        self.assertEqual(headers(DENIED, LIMITS), headers(DENIED, LIMITS[:1]))
        self.assertEqual(headers(DENIED, Rate(4, 1, timedelta(seconds=2)), "a")["RateLimit-Policy"], '"a";q=5;w=10')

    def test_wrong_arguments_are_refused(self) -> None:
        wrong: Any = 5
        for given, says in (
            (lambda: headers(DENIED, names="ä"), "printable ASCII"),
            (lambda: headers(DENIED, [wrong]), "each of limits must be a Rate, a Window, the name"),
            (lambda: headers(DENIED, version=7), "version must be one of 10, not 7"),
            (lambda: Window(5, 60, unit=wrong), "unit must be a text"),
            (lambda: Window(5, 60, unit="ü"), "unit must be printable ASCII"),
            (lambda: Window(5, 60, unit=""), "unit must be printable ASCII"),
            (lambda: client_address("::1", proxies=-1), "proxies must be at least 0"),
            (lambda: client_address("::1", proxies=True), "proxies must be an integer"),
            (lambda: client_address("::1", ipv6_prefix=0), "ipv6_prefix must be from 1 to 128"),
            (lambda: client_address("::1", ipv6_prefix=129), "ipv6_prefix must be from 1 to 128"),
        ):
            self.assertRaisesRegex((TypeError, ValueError), says, given)

    def test_the_headers_have_the_unit_and_the_partition_key(self) -> None:
        stands, window = Reply(0, 500, 499, None, 60_000), Window.per("500/min", unit='a "b"')
        for pk, sent in (b"\x00\xff", b"\x00\xff"), ("käufer", "käufer".encode()):
            found = headers(stands, window, pk=pk)
            self.assertEqual(
                as_list(found["RateLimit-Policy"]), [("default", {"q": 500, "qu": 'a "b"', "w": 60, "pk": sent})]
            )
            self.assertEqual(as_list(found["RateLimit"]), [("default", {"r": 499, "t": 60, "pk": sent})])
        # The unit is not sent to the server.
        self.assertEqual(Window(5, 60, unit="tokens").options(), ())

    def test_clauses_are_the_limits_and_names_of_their_reply(self) -> None:
        clauses: list[Clause | list[Clause]] = [
            Clause.window("{u}:minute", Window.per("60/min"), name="minute"),
            [Clause.throttle(b"{u}:plan", "@plan"), Clause.throttle("{u}:ü", Rate.per("5/min"), name='"ü"')],
            Clause.acquire("{u}:calls", semaphore(3)),
        ]
        one = Reply(0, 9, 8, None, 1000)
        answer = AllReply(**{**vars(one), "clause": 1, "answers": (one,) * 4})
        policies = '"minute";q=9;w=60, "plan";q=9, "\\"\\\\xfc\\"";q=9;w=60, "limit-4";q=9;qu="concurrent-requests"'
        self.assertEqual(headers(answer, clauses)["RateLimit-Policy"], policies)
        denied = AllReply(1, 9, 0, 1000, 1000, clause=1, answers=(Reply(1, 9, 0, 1000, 1000), *(one,) * 3))
        self.assertEqual(problem(denied, clauses)["violated-policies"], ["minute"])

    def test_the_headers_never_understate_a_rate(self) -> None:
        chance = random.Random(1)
        for _ in range(2000):
            rate = Rate(chance.choice([0, 1, 9, 99]), chance.randint(1, 200), f"{chance.randint(1, 90_000)}ms")
            full = Reply(0, rate.burst + 1, rate.burst + 1, None, 0)
            ((_, policy),) = as_list(headers(full, rate)["RateLimit-Policy"])
            true = Fraction(rate.count * 1000, int(str(rate.period)[:-2]))
            self.assertGreaterEqual(Fraction(policy["q"], policy["w"]), true, rate)
            self.assertGreaterEqual(policy["q"], rate.burst + 1, rate)
            # No more than one unit or one second away from it.
            most = max(Fraction(policy["q"] - 1, policy["w"]), Fraction(rate.burst + 1, max(1, policy["w"] - 1)))
            self.assertLessEqual(min(most, Fraction(policy["q"] - 1, policy["w"])), true, rate)


class SeveralLimits(unittest.TestCase):
    def test_they_end_in_one_set_of_headers(self) -> None:
        for case in HTTP:
            with self.subTest(case=case):
                request: dict[str, Any] = {}
                made = Exchange.of(request)
                for asked in case["asked"]:
                    limits, names = [*map(limit, asked.get("limits", ()))], asked.get("names", ())
                    add_reply(request, reply(asked["reply"]), limits, names, pk=asked.get("pk"))
                self.assertEqual(made.headers(), case["headers"])
                self.assertEqual(merged_headers(made.replies), case["headers"])
                self.assertEqual(made.status, case["status"])
                if case["status"] != 200:
                    self.assertEqual(made.problem()["violated-policies"], case["violated"])
                    self.assertEqual(json.loads(made.body())["status"], case["status"])

    def test_merged_headers_leave_out_what_each_reply_leaves_out(self) -> None:
        loose = Reply(0, 10, 9, None, 1000)
        told = [
            ReplyWithOptions(loose, Window(10, 1), "a", standard=False),
            ReplyWithOptions(DENIED, Window(5, 2), "a", x_ratelimit=False),
        ]
        self.assertEqual(merged_headers([]), {})
        found = merged_headers(told)
        self.assertEqual(found["RateLimit-Policy"], '"a-2";q=5;w=2')
        self.assertEqual((found["X-RateLimit-Limit"], found["Retry-After"]), ("10", "2"))

    def test_a_denial_has_problem_details_whoever_decided(self) -> None:
        kinds = "https://iana.org/assignments/http-problem-types#"
        quota = "Request cannot be satisfied as assigned quota has been exceeded"
        capacity = "Request cannot be satisfied due to temporary server capacity constraints"
        fallback = Reply(1, 5, 0, 1500, 2000, reachable=False)
        away = Reply(1, 0, 0, None, 0, reachable=False)
        # A limit of 0, in a call with several.
        closed = AllReply(1, 0, 0, None, 0, clause=1, answers=(Reply(1, 0, 0, None, 0),), reachable=False)
        cases: list[tuple[Reply | None, int, list[str], str | None]] = [
            (DENIED, 429, ["free"], "2"),
            (fallback, 429, ["free"], "2"),
            (closed, 429, ["free"], None),
            (away, 503, [], None),
            (None, 503, [], None),
        ]
        for answer, status, violated, header in cases:
            with self.subTest(answer=answer):
                kind, title = ("quota-exceeded", quota) if status == 429 else ("temporary-reduced-capacity", capacity)
                expected = {"type": kinds + kind, "title": title, "status": status, "violated-policies": violated}
                self.assertEqual(problem(answer, "@free"), expected)
                if answer is not None:
                    self.assertEqual(headers(answer, "@free").get("Retry-After"), header)

    def test_a_busy_limiter_is_503_whatever_others_say(self) -> None:
        made = Exchange()
        made.add(DENIED, None, ())
        made.is_busy = True
        self.assertEqual((made.status, made.problem()["status"], made.websocket_code), (503, 503, 1013))

    def test_what_cannot_be_settled_at_the_end_of_a_request_is_logged(self) -> None:
        for status in 200, 500:
            reservation = mock.MagicMock()
            reservation.__exit__.side_effect = Lapsed("a test")
            with self.assertLogs("redis_ratelimit", "WARNING") as logged, Held(reservation) as held:
                held.status = status
            self.assertIn("not settled: Lapsed: a test", logged.output[0])
            self.assertEqual(reservation.__exit__.call_args.args[1] is None, status == 200)


class Addresses(unittest.TestCase):
    def test_each_client_has_the_address_of_its_case(self) -> None:
        for case in ADDRESSES:
            with self.subTest(case=case):
                options = {"proxies": case.get("proxies", 0), "ipv6_prefix": case.get("prefix", 64)}
                found = client_address(case["peer"], case.get("forwarded_for"), **options)
                self.assertEqual(found, case["address"])


class RetryAfter(unittest.TestCase):
    def test_each_header_says_how_long_to_wait(self) -> None:
        for case in RETRY_AFTER:
            now = case.get("now_ms", 1_792_567_650_000) * 1_000_000
            expected = None if case["wait_ms"] is None else timedelta(milliseconds=case["wait_ms"])
            with self.subTest(case=case), mock.patch("time.time_ns", return_value=now):
                self.assertEqual(retry_after(case.get("headers", case.get("text"))), expected)

    def test_headers_of_each_library_are_read(self) -> None:
        message = Message()
        message["retry-after"] = "30"
        for each in message, httpx.Headers({"RETRY-AFTER": "30"}):
            self.assertEqual(retry_after(each), timedelta(seconds=30))
        # Python refuses to parse an integer with more than 4,300 digits.
        self.assertIsNone(retry_after("9" * 5000))
