"""The numbers of clients/spec/numbers.json, which all clients share. No server is needed."""

from __future__ import annotations

import unittest

from redis_ratelimit._internal import local, reservation
from redis_ratelimit._internal.breaker import Breaker

from .fixtures import NUMBERS, limit


class Numbers(unittest.TestCase):
    def test_this_client_has_them(self) -> None:
        breaker = {
            "failures": Breaker.FAILURES,
            "pause_ms": Breaker.PAUSE_SECONDS * 1000,
            "probe_ms": Breaker.PROBE_SECONDS * 1000,
        }
        renewal = {
            "per_lease": reservation.RENEWALS_PER_LEASE,
            "default_lease_ms": reservation.DEFAULT_LEASE_MS,
            "least_ms": reservation.MIN_RENEWAL_MS,
        }
        self.assertEqual(local.MIN_LEASE_MS, NUMBERS["lease"]["least_ms"])
        settling = {"pauses_ms": [seconds * 1000 for seconds in reservation.RETRY_SECONDS]}
        own = {"breaker": breaker, "renewal": renewal, "settling": settling}
        self.assertEqual(own, {name: NUMBERS[name] for name in own})

    def test_a_reservation_is_held_for_this_long(self) -> None:
        for case in NUMBERS["held"]:
            with self.subTest(case):
                terms = local.read_terms(limit(case["limit"]), f"{case['lease_ms']}ms", 0)
                self.assertEqual(terms.lease_ms + terms.counted_ms, case["held_ms"])
