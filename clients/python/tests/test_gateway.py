"""The configuration of the limits of a gateway, and how they apply to a call. Needs neither a server nor a gateway."""

from __future__ import annotations

import unittest
from decimal import Decimal
from fractions import Fraction
from typing import Any

from redis_ratelimit import AllReply, Policy, Reply, Window, semaphore
from redis_ratelimit.litellm.gateway import (
    MAX_ROUNDED_KEYS,
    ConfigurationError,
    Path,
    Rounding,
    Settings,
    Usage,
    check_policies,
    denial,
    go_duration,
    headers_of,
    microdollars,
    read_settings,
    reserve,
)


def where(path: Path) -> str:
    return "/".join(map(str, path))


def settings(*limits: Any, **more: Any) -> Settings:
    return read_settings({"limits": list(limits), **more}, where)


def values(**given: str) -> Any:
    """The values of a call; a dot is written __. Several values of one dimension have | between them."""
    given = {name.replace("__", "."): value for name, value in given.items()}
    return lambda name: given[name].split("|") if name in given else []


class Configuration(unittest.TestCase):
    def test_a_limit_becomes_a_window(self) -> None:
        cases: list[tuple[dict[str, Any], Any]] = [
            ({"requests": "60/min"}, Window(60, "1min")),
            ({"tokens": "100000/min"}, Window(100_000, "1min", unit="tokens")),
            ({"input_tokens": "5/10s"}, Window(5, "10s", unit="input-tokens")),
            ({"output_tokens": "5 per h", "buckets": 9}, Window(5, "1h", 9, unit="output-tokens")),
            ({"dollars": "0.45/1d"}, Window(450_000, "1d", unit="microdollars")),
            ({"dollars": "$50/mo", "fixed": True}, Window(50_000_000, "1mo", fixed=True, unit="microdollars")),
            ({"requests": "9/mo", "fixed": True, "start": 15}, Window(9, "1mo", fixed=True, start="15")),
            (
                {"requests": "9/d", "fixed": True, "tz": "Europe/Berlin"},
                Window(9, "1d", fixed=True, tz="Europe/Berlin"),
            ),
            ({"calls": 5}, semaphore(5)),
            ({"calls": 0}, semaphore(0)),
            ({"tokens": "@free"}, "@free"),
            ({"calls": "@few"}, "@few"),
        ]
        for entry, window in cases:
            with self.subTest(**entry):
                self.assertEqual(settings(entry).limits[0].window, window)

    def test_a_date_of_yaml_is_a_start(self) -> None:
        import datetime

        entry = {"requests": "9/14d", "fixed": True, "start": datetime.date(2026, 11, 2)}
        self.assertEqual(settings(entry).limits[0].window, Window(9, "14d", fixed=True, start="2026-11-02"))
        entry["start"] = datetime.datetime(2026, 11, 2, 9)
        self.assertEqual(settings(entry).limits[0].window, Window(9, "14d", fixed=True, start="2026-11-02@09:00:00"))
        entry["start"] = datetime.datetime(2026, 11, 2, 9, tzinfo=datetime.timezone.utc)
        with self.assertRaisesRegex(ConfigurationError, "without a zone"):
            settings(entry)

    def test_a_name_says_what_is_counted_and_may_be_chosen(self) -> None:
        found = settings(
            {"per": ["team", "model"], "tokens": "9/h"},
            {"calls": 1, "per": "key.plan"},
            {"calls": "@few"},
            {"requests": "@free"},
            {"requests": "1/h", "name": "mine"},
        )
        names = [limit.name for limit in found.limits]
        self.assertEqual(names, ["team-model-tokens-1h", "key.plan-calls", "calls-@few", "requests-@free", "mine"])

    def test_the_other_settings_are_read(self) -> None:
        made = settings(
            {"calls": 1},
            url="redis://h:1",
            prefix="p",
            tag=["organization"],
            lease="10s",
            deadline=0.5,
            max_tokens=7,
            unreachable={"share": "1/4"},
            count_lapsed=True,
        )
        expected = Settings(made.limits, "redis://h:1", "p", ("organization",), "10s", 0.5, Fraction(1, 4), 7, True)
        self.assertEqual(made, expected)
        self.assertEqual(settings({"calls": 1}, unreachable="allow").unreachable, "allow")
        self.assertEqual(settings({"calls": 1}, deadline="250ms").deadline, "250ms")

    def test_a_mistake_says_where_it_is_and_what_is_allowed(self) -> None:
        good = {"calls": 1}
        mistakes: list[tuple[Any, str]] = [
            ([], "^: the section must be a mapping"),
            ({}, "^: limits must be a list of 1 to 64"),
            ({"limits": []}, "^limits: limits must be a list"),
            ({"limits": [good] * 65}, "^limits: limits must be a list of 1 to 64"),
            ({"limits": [good], "urk": 1}, "^urk: there is no 'urk'; the section has limits, url"),
            ({"limits": [good], "url": 5}, "^url: url must be a text"),
            ({"limits": [good], "lease": "soon"}, "^lease: lease must be a number with a unit"),
            ({"limits": [good], "lease": "0s"}, "^lease: lease must be at least 1 ms"),
            ({"limits": [good], "deadline": 0}, "^deadline: deadline must be above 0 seconds"),
            ({"limits": [good], "deadline": "soon"}, "^deadline: deadline must be a number with a unit"),
            ({"limits": [good], "max_tokens": 0}, "^max_tokens: max_tokens must be an integer from 1"),
            ({"limits": [good], "unreachable": "raise"}, "^unreachable: unreachable must be allow, deny or a share"),
            ({"limits": [good], "unreachable": {"share": 2}}, "^unreachable: "),
            ({"limits": [good], "count_lapsed": 1}, "^count_lapsed: count_lapsed must be true or false, not 1"),
            ({"limits": [good], "tag": "nation"}, "^tag: there is no 'nation' to count by, but key, user"),
            ({"limits": ["x"]}, "^limits/0: a limit must be a mapping"),
            ({"limits": [good, good]}, "^limits/1: there are two limits 'calls'"),
            ({"limits": [{}]}, "^limits/0: a limit must have one of requests, tokens.*, not none"),
            ({"limits": [{"calls": 1, "tokens": "1/h"}]}, "^limits/0: .* not tokens and calls"),
            ({"limits": [{"calls": 1, "pre": "key"}]}, "^limits/0/pre: there is no 'pre'"),
            ({"limits": [{"calls": 1, "per": []}]}, "^limits/0/per: per must be one or a list of key"),
            ({"limits": [{"calls": 1, "per": ["key", "key"]}]}, "^limits/0/per: per must not name anything twice"),
            ({"limits": [{"calls": 1, "per": "model.x"}]}, "^limits/0/per: there is no 'model.x'"),
            ({"limits": [{"calls": 1, "only": "key"}]}, "^limits/0/only: only must be a mapping"),
            (
                {"limits": [{"calls": 1, "only": {"key.plan": None}}]},
                "^limits/0/only/key.plan: key.plan must be one or",
            ),
            ({"limits": [{"calls": 1, "only": {"plan": "a"}}]}, "^limits/0/only/plan: there is no 'plan'"),
            ({"limits": [{"calls": "5"}]}, "^limits/0/calls: calls must be how many"),
            ({"limits": [{"calls": True}]}, "^limits/0/calls: calls must be how many"),
            ({"limits": [{"calls": 5, "fixed": True}]}, "^limits/0/fixed: fixed must be used with a limit that has"),
            ({"limits": [{"calls": 5, "shadow": "yes"}]}, "^limits/0/shadow: shadow must be true or false"),
            ({"limits": [{"calls": 5, "name": "a:b"}]}, "^limits/0/name: name must be printable ASCII"),
            ({"limits": [{"tokens": 5}]}, "^limits/0/tokens: a limit must be a text such as '30/min'"),
            ({"limits": [{"tokens": "5/m"}]}, "^limits/0/tokens: .*and not m, which may be min or mo"),
            ({"limits": [{"tokens": "@"}]}, "^limits/0/tokens: a policy must have a name"),
            ({"limits": [{"tokens": "metadata.x/min"}]}, "^limits/0/tokens: "),
            ({"limits": [{"dollars": "0.1234567/d"}]}, "^limits/0/dollars: .*six decimals at most"),
            ({"limits": [{"dollars": "much/d"}]}, "^limits/0/dollars: .*six decimals at most"),
            ({"limits": [{"tokens": "5/d", "fixed": 1}]}, "^limits/0/fixed: fixed must be true or false"),
            ({"limits": [{"tokens": "5/d", "start": "09:00"}]}, "^limits/0/start: start must be used with fixed=True"),
            # YAML reads 15:30 as minutes.
            ({"limits": [{"tokens": "5/d", "fixed": True, "start": 930}]}, "^limits/0/start: .*in quotes"),
            ({"limits": [{"tokens": "5/d", "fixed": True, "tz": 600}]}, "^limits/0/tz: .*in quotes"),
        ]
        for section, text in mistakes:
            with self.subTest(section=section), self.assertRaisesRegex(ConfigurationError, text):
                read_settings(section, where)

    def test_a_policy_that_the_server_has_not_is_a_mistake(self) -> None:
        made = settings({"calls": 1}, {"tokens": "@free"}, {"calls": "@few"})
        free, few = Policy("free", "WINDOW 5 60", 0, 0, 0), Policy("few", "WINDOW 5 0", 0, 0, 0)
        rate = Policy("free", "THROTTLE 1 1 1", 0, 0, 0)
        check_policies(made, [few, free], where)
        with self.assertRaisesRegex(ConfigurationError, "^limits/2/calls: the server has no policy '@few'"):
            check_policies(made, [free], where)
        with self.assertRaisesRegex(ConfigurationError, "^limits/1/tokens: .* must be a WINDOW, not a THROTTLE"):
            check_policies(made, [rate, few], where)


class Calls(unittest.TestCase):
    def test_a_limit_is_for_the_calls_that_match_it(self) -> None:
        made = settings(
            {"calls": 1, "name": "all"},
            {"calls": 1, "name": "team", "per": "team"},
            {"calls": 1, "name": "free", "per": ["key", "model"], "only": {"key.plan": ["free", 3], "model": "gpt-4*"}},
        )
        found = made.asked(values(key="k", model="gpt-4o", key__plan="free"))
        self.assertEqual([key for _, key in found], ["{llm}:all", "{llm}:free:k:gpt-4o"])
        found = made.asked(values(key="k", model="gpt-4o", key__plan="3", team="a:{b}"))
        self.assertEqual([key for _, key in found], ["{llm}:all", "{llm}:team:a%3A%7Bb%7D", "{llm}:free:k:gpt-4o"])
        for other in values(key="k", model="o3", key__plan="free"), values(key="k", model="gpt-4o"):
            self.assertEqual([key for _, key in made.asked(other)], ["{llm}:all"])

    def test_a_call_has_all_its_names_and_counts_by_the_first(self) -> None:
        made = settings(*({"calls": 1, "name": each, "per": "model", "only": {"model": each}} for each in "abc"))
        keys = [key for _, key in made.asked(values(model="a|b"))]
        self.assertEqual(keys, ["{llm}:a:a", "{llm}:b:a"])

    def test_a_tag_keeps_the_keys_of_a_call_in_one_slot(self) -> None:
        made = settings(
            {"calls": 1, "name": "a"}, {"calls": 1, "name": "b", "per": "key"}, tag="organization", prefix="p"
        )
        keys = [key for _, key in made.asked(values(organization="x}y", key="k"))]
        self.assertEqual(keys, ["{p:x%7Dy}:a", "{p:x%7Dy}:b:k"])
        self.assertEqual([key for _, key in made.asked(values(key="k"))], ["{p:}:a", "{p:}:b:k"])

    def test_a_value_of_any_length_and_of_any_characters_stands_in_a_key(self) -> None:
        made = settings({"calls": 1, "per": "metadata.x", "name": "a"})
        keys = [
            made.asked(values(metadata__x=value))[0][1] for value in ("\u00e4 {}:\n", "x" * 201, "\ud800", "x" * 200)
        ]
        self.assertEqual(keys[0], "{llm}:a:%C3%A4 %7B%7D%3A%0A")
        self.assertRegex(keys[1], "^{llm}:a:sha256-[0-9a-f]{64}$")
        self.assertEqual(keys[2:], ["{llm}:a:%ED%A0%80", "{llm}:a:" + "x" * 200])

    def test_a_limit_may_be_a_field_of_the_key(self) -> None:
        made = settings(
            {"per": "key", "tokens": "key.tpm_limit/min"},
            {"per": "team", "dollars": "team.budget/mo", "fixed": True},
            {"per": "key", "calls": "key.most"},
        )
        given = values(key="k", team="t", key__tpm_limit="500", team__budget="1.5", key__most="3")
        windows = [limit.window for limit, _ in made.asked(given)]
        budget = Window(1_500_000, "1mo", fixed=True, unit="microdollars")
        self.assertEqual(windows, [Window(500, "1min", unit="tokens"), budget, semaphore(3)])
        self.assertEqual(made.asked(values(key="k", team="t")), [])
        for wrong in "many", "-1", "NaN":
            with self.assertRaisesRegex(ValueError, "key.most must be"):
                made.asked(values(key="k", key__most=wrong))

    def test_a_call_reserves_what_it_may_use_at_most(self) -> None:
        entries = [{name: "1000/h"} for name in ("requests", "tokens", "input_tokens", "output_tokens", "dollars")]
        limits = settings(*entries, {"calls": 1}).asked(values())
        usage = Usage(30, 400, Decimal(12_345))
        self.assertEqual([each.quantity for each in reserve(limits, usage, None)], [1, 430, 30, 400, 12_345, 1])
        # A call of unknown cost takes something, so a limit that is used up denies it.
        self.assertEqual([each.quantity for each in reserve(limits, Usage(), None)], [1] * 6)
        self.assertEqual(reserve(limits, Usage(1, 10**30), None)[1].quantity, 2**62)

    def test_without_a_maximum_a_call_asks_for_no_more_than_there_is(self) -> None:
        entries = {"tokens": "1000/h"}, {"output_tokens": "100/h"}, {"dollars": "0.005/d"}, {"output_tokens": "@free"}
        limits = settings(*entries).asked(values())

        def quantities(estimate: Usage, least: Usage | None) -> list[int]:
            return [each.quantity for each in reserve(limits, estimate, least)]

        self.assertEqual(quantities(Usage(30, 4000, Decimal(9000)), Usage(30, 0, Decimal(90))), [1000, 100, 5000, 4000])
        # The input alone is more tokens, or dollars, than there are.
        self.assertEqual(
            quantities(Usage(1001, 4000, Decimal(9000)), Usage(1001, 0, Decimal(90))), [5001, 100, 5000, 4000]
        )
        self.assertEqual(
            quantities(Usage(30, 4000, Decimal(9000)), Usage(30, 0, Decimal(5001))), [1000, 100, 9000, 4000]
        )
        self.assertEqual(quantities(Usage(30, 4000, Decimal(9000)), None), [4030, 4000, 9000, 4000])

    def test_what_a_killed_gateway_reserved_counts_if_that_was_chosen(self) -> None:
        entries = {"tokens": "9/h"}, {"calls": 5}, {"requests": "@free"}
        for count_lapsed, counting in (False, []), (True, ["tokens-1h", "requests-@free"]):
            made = settings(*entries, count_lapsed=count_lapsed)
            clauses = [each.clause(made) for each in reserve(made.asked(values()), Usage(1, 1), None)]
            self.assertEqual([each.name for each in clauses if "COUNTLAPSED" in each.words], counting)

    def test_dollars_are_rounded_up(self) -> None:
        cases = {0.0: 0, 2e-07: 1, 0.00022500000000000002: 225, 0.0000011: 2, 12.5: 12_500_000, -1.0: 0}
        self.assertEqual({cost: Usage(dollars=microdollars(cost)).count("dollars") for cost in cases}, cases)

    def test_many_small_costs_count_no_more_than_their_sum(self) -> None:
        rounding, small = Rounding(), microdollars(1e-07)
        self.assertEqual([rounding.whole("a", small) for _ in range(11)], [1, *[0] * 9, 1])
        self.assertEqual(rounding.whole("b", small), 1)
        self.assertEqual([rounding.whole("b", Decimal(each)) for each in ("0", "0.95", "12.5", "2")], [0, 1, 12, 2])
        # What rounding added is forgotten for old keys.
        for at in range(MAX_ROUNDED_KEYS):
            rounding.whole(str(at), small)
        self.assertEqual(rounding.whole("a", small), 1)


def replied(*answers: Reply, clause: int = 1, **more: Any) -> AllReply:
    return AllReply(**{**vars(answers[clause - 1]), "clause": clause, "answers": answers, **more})


class Answers(unittest.TestCase):
    def setUp(self) -> None:
        made = settings(
            {"requests": "60/min", "name": "r"},
            {"requests": "9/d", "name": "day"},
            {"tokens": "1000/min", "per": ["key", "model"], "name": "t"},
            {"dollars": "0.50/1d", "name": "d"},
        )
        self.asked = reserve(made.asked(values(key="k", model="m")), Usage(10, 400, Decimal(20_000)), None)

    def test_headers_tell_of_all_limits_and_of_the_tightest_for_openai(self) -> None:
        reply = replied(
            Reply(0, 60, 59, None, 30_000),
            Reply(0, 9, 3, None, 361_000),
            Reply(0, 1000, 590, None, 30_000),
            Reply(0, 500_000, 480_000, None, 1_500),
            clause=3,
        )
        found = headers_of(self.asked, reply)
        self.assertEqual(
            found["ratelimit-policy"],
            '"r";q=60;w=60, "day";q=9;w=86400, "t";q=1000;qu="tokens";w=60, "d";q=500000;qu="microdollars";w=86400',
        )
        self.assertEqual(found["ratelimit"], '"r";r=59;t=30, "day";r=3;t=361, "t";r=590;t=30, "d";r=480000;t=2')
        self.assertEqual(
            {name: value for name, value in found.items() if name.startswith("x-ratelimit-") and name[-1] == "s"},
            {
                "x-ratelimit-limit-requests": "9",
                "x-ratelimit-remaining-requests": "3",
                "x-ratelimit-reset-requests": "6m1s",
                "x-ratelimit-limit-tokens": "1000",
                "x-ratelimit-remaining-tokens": "590",
                "x-ratelimit-reset-tokens": "30s",
            },
        )
        self.assertNotIn("retry-after", found)

    def test_a_denial_says_which_limit_and_when(self) -> None:
        fine = Reply(0, 60, 59, None, 30_000)
        reply = replied(fine, fine, Reply(1, 1000, 120, 4_200, 60_000), fine, clause=3)
        self.assertEqual(
            denial(self.asked, reply),
            "Rate limit 't' reached: 1000 tokens in 1min for each key and model, of which 120 are left. This request may "
            "take 410. Try again in 5 s.",
        )
        found = headers_of(self.asked, reply)
        self.assertEqual((found["retry-after"], found["retry-after-ms"]), ("5", "4200"))
        # What others reserved may be given back at any time.
        held = headers_of(self.asked, replied(fine, fine, Reply(2, 1000, 120, 20_000, 20_000), fine, clause=3))
        self.assertEqual((held["retry-after"], held["retry-after-ms"]), ("1", "1000"))
        reserved = replied(fine, fine, Reply(2, 1000, 120, 1_000, 60_000), fine, clause=3)
        self.assertIn("of which 120 are left, as running requests reserve the most that", denial(self.asked, reserved))
        never = replied(fine, fine, fine, Reply(1, 500_000, 500_000, None, 0), clause=4)
        self.assertEqual(
            denial(self.asked, never),
            "Rate limit 'd' can never allow this request: the request may take $0.02, and the limit is $0.50 in 1d.",
        )
        found = headers_of(self.asked, never)
        self.assertEqual((found.get("retry-after"), found["x-should-retry"]), (None, "false"))

    def test_a_request_that_nobody_decided_has_no_headers(self) -> None:
        for limited in 0, 1:
            self.assertEqual(headers_of(self.asked, AllReply(limited, 0, 0, None, 0, reachable=False)), {})

    def test_durations_are_written_as_openai_writes_them(self) -> None:
        cases = {
            0: "0ms",
            120: "120ms",
            1000: "1s",
            1500: "1.5s",
            60_000: "1m0s",
            360_000: "6m0s",
            3_661_010: "1h1m1.01s",
        }
        self.assertEqual({ms: go_duration(ms) for ms in cases}, cases)
