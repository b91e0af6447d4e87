"""HTTP responses: the headers and problem details of the tables, and several limits on one request."""

from __future__ import annotations

import json
import random
import unittest
from datetime import timedelta
from fractions import Fraction
from typing import Any

from redis_ratelimit import (
    Clause,
    Rate,
    Reply,
    ReplyWithOptions,
    Window,
    client_address,
    headers,
    merged_headers,
    problem,
)
from redis_ratelimit._internal.http import Exchange, Options

from .fixtures import ADDRESSES, HEADERS, HTTP, as_list, limit, reply

#: Limits of both kinds in one list, which type checkers must accept as it stands.
LIMITS = [Rate.per("60/min"), Window(1000, "1mo", fixed=True)]


class Headers(unittest.TestCase):
    def test_each_reply_has_the_headers_of_its_case(self) -> None:
        for case in HEADERS:
            with self.subTest(case=case):
                given = reply(case["reply"]), [*map(limit, case.get("limits", ()))], case.get("names", ())
                self.assertEqual(headers(*given, pk=case.get("pk")), case["headers"])
                self.assertEqual(merged_headers([ReplyWithOptions(*given, pk=case.get("pk"))]), case["headers"])

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
        denied = Reply(1, 5, 0, 1500, 2000)
        self.assertEqual(headers(denied, standard=False, x_ratelimit=False), {"Retry-After": "2"})
        self.assertEqual(headers(denied, LIMITS), headers(denied, LIMITS[:1]))
        self.assertEqual(headers(denied, Rate(4, 1, timedelta(seconds=2)), "a")["RateLimit-Policy"], '"a";q=5;w=10')
        with self.assertRaisesRegex(ValueError, "printable ASCII"):
            headers(denied, names="ä")
        clause: Any = Clause.window("k", Window(5, 60))
        for wrong in clause, [clause]:
            with self.assertRaisesRegex(TypeError, "each of limits must be a Rate, a Window, the name"):
                headers(denied, wrong)

    def test_the_version_of_the_draft_can_be_chosen(self) -> None:
        stands = Reply(0, 5, 4, None, 1000)
        self.assertEqual(headers(stands, version=10), headers(stands))
        with self.assertRaisesRegex(ValueError, "version must be one of 10, not 7"):
            headers(stands, version=7)
        self.assertRaisesRegex(ValueError, "version must be one of 10, not 9", Options, version=9)

    def test_the_headers_have_the_unit_and_the_partition_key(self) -> None:
        stands, window = Reply(0, 500, 499, None, 60_000), Window.per("500/min", unit='a "b"')
        for pk, sent in (b"\x00\xff", b"\x00\xff"), ("käufer", "käufer".encode()):
            found = headers(stands, window, pk=pk)
            self.assertEqual(
                as_list(found["RateLimit-Policy"]), [("default", {"q": 500, "qu": 'a "b"', "w": 60, "pk": sent})]
            )
            self.assertEqual(as_list(found["RateLimit"]), [("default", {"r": 499, "t": 60, "pk": sent})])
        self.assertRaisesRegex(TypeError, "unit must be a text", Window, 5, 60, unit=5)
        self.assertRaisesRegex(ValueError, "unit must be printable ASCII", Window, 5, 60, unit="ü")
        self.assertRaisesRegex(ValueError, "unit must be printable ASCII", Window, 5, 60, unit="")
        # The unit is not sent to the server.
        self.assertEqual(Window(5, 60, unit="tokens").options(), ())

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

    def test_a_denial_has_problem_details(self) -> None:
        denied = Reply(1, 5, 0, 1500, 2000)
        self.assertEqual(
            problem(denied, "@free"),
            {
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 429,
                "violated-policies": ["free"],
            },
        )
        for nobody in problem(), problem(Reply(1, 0, 0, None, 0, reachable=False)):
            self.assertEqual(
                nobody["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            )
            self.assertEqual(nobody["status"], 503)


class SeveralLimits(unittest.TestCase):
    def test_they_end_in_one_set_of_headers(self) -> None:
        for case in HTTP:
            with self.subTest(case=case):
                made = Exchange()
                answers = []
                for asked in case["asked"]:
                    given = reply(asked["reply"]), [*map(limit, asked.get("limits", ()))], asked.get("names", ())
                    made.add(*given, pk=asked.get("pk"))
                    answers.append(ReplyWithOptions(*given, pk=asked.get("pk")))
                self.assertEqual(made.headers(), case["headers"])
                self.assertEqual(merged_headers(answers), case["headers"])
                self.assertEqual(made.status, case["status"])
                if case["status"] != 200:
                    self.assertEqual(made.problem()["violated-policies"], case["violated"])
                    self.assertEqual(json.loads(made.body())["status"], case["status"])

    def test_merged_headers_leave_out_what_each_reply_leaves_out(self) -> None:
        loose, tight = Reply(0, 10, 9, None, 1000), Reply(1, 5, 0, 1500, 2000)
        told = [
            ReplyWithOptions(loose, Window(10, 1), "a", standard=False),
            ReplyWithOptions(tight, Window(5, 2), "a", x_ratelimit=False),
        ]
        self.assertEqual(merged_headers([]), {})
        found = merged_headers(told)
        self.assertEqual(found["RateLimit-Policy"], '"a-2";q=5;w=2')
        self.assertEqual((found["X-RateLimit-Limit"], found["Retry-After"]), ("10", "2"))
        with self.assertRaisesRegex(ValueError, "version must be one of 10, not 9"):
            merged_headers([ReplyWithOptions(loose, version=9)])

    def test_a_limit_that_is_asked_twice_is_listed_once(self) -> None:
        made = Exchange()
        for remaining in 9, 8:
            made.add(Reply(0, 10, remaining, None, 1000), Window(10, 1), "a", identity=("k", "a"))
        self.assertEqual(made.headers()["RateLimit"], '"a";r=8;t=1')

    def test_a_busy_limiter_is_503_whatever_others_say(self) -> None:
        made = Exchange()
        made.add(Reply(1, 10, 0, 500, 1000), identity=1)
        made.is_busy = True
        self.assertEqual((made.status, made.problem()["status"]), (503, 503))

    def test_headers_set_by_a_handler_are_kept(self) -> None:
        made = Exchange()
        made.add(Reply(0, 100, 40, None, 60_000), Window(100, 60))
        theirs = headers(Reply(1, 10, 0, 1500, 9000), Window(10, 9))
        present = {name.lower(): value for name, value in theirs.items()}
        found = made.headers(present)
        self.assertEqual(found["RateLimit-Policy"], '"default";q=100;w=60, "default-2";q=10;w=9')
        self.assertEqual(found["RateLimit"], '"default";r=40;t=60, "default-2";r=0;t=2')
        self.assertEqual((found["X-RateLimit-Limit"], found["X-RateLimit-Remaining"]), ("10", "0"))
        self.assertNotIn("Retry-After", found)
        # A second middleware finds these headers, and adds nothing.
        self.assertEqual(made.headers({name.lower(): value for name, value in found.items()}), found)

    def test_names_with_commas_and_quotes_are_not_split(self) -> None:
        made = Exchange()
        made.add(Reply(0, 100, 40, None, 60_000), names='a, "b"')
        theirs = headers(Reply(0, 10, 3, None, 9000), names='a, "b"')
        found = made.headers({name.lower(): value for name, value in theirs.items()})
        self.assertEqual([name for name, _ in as_list(found["RateLimit"])], ['a, "b"', 'a, "b"-2'])


class Addresses(unittest.TestCase):
    def test_each_client_has_the_address_of_its_case(self) -> None:
        for case in ADDRESSES:
            with self.subTest(case=case):
                options = {"proxies": case.get("proxies", 0), "ipv6_prefix": case.get("prefix", 64)}
                found = client_address(case["peer"], case.get("forwarded_for"), **options)
                self.assertEqual(found, case["address"])

    def test_wrong_numbers_are_refused(self) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"proxies": -1}, "proxies must be at least 0"),
            ({"proxies": True}, "proxies must be an integer"),
            ({"ipv6_prefix": 0}, "ipv6_prefix must be from 1 to 128"),
            ({"ipv6_prefix": 129}, "ipv6_prefix must be from 1 to 128"),
            ({"ipv6_prefix": 64.0}, "ipv6_prefix must be an integer"),
        ]
        for options, says in cases:
            with self.assertRaisesRegex((TypeError, ValueError), says):
                client_address("::1", **options)
