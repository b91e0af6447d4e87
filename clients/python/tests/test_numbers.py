"""The numbers of clients/spec/numbers.json, which all clients share. No server is needed."""

from __future__ import annotations

import unittest

from redis_ratelimit._internal import leases, reservation
from redis_ratelimit._internal.breaker import Breaker

from .fixtures import NUMBERS, limit


class Numbers(unittest.TestCase):
    def test_this_client_has_them(self) -> None:
        breaker = {
            "failures": Breaker.FAILURES,
            "pause_ms": Breaker.PAUSE_SECONDS * 1000,
            "probe_ms": Breaker.PROBE_SECONDS * 1000,
        }
        lease = {
            "least_ms": leases.MIN_LEASE_MS,
            "margin": leases.MARGIN,
            "least_margin_ms": leases.MIN_MARGIN_SECONDS * 1000,
            "denial_ms": leases.DENIAL_SECONDS * 1000,
            "retry_ms": leases.RETRY_SECONDS * 1000,
            "lost_ms": leases.LOST_SECONDS * 1000,
            "most_late": leases.MAX_LATE,
        }
        ahead = {
            "round_trips": leases.AHEAD_ROUND_TRIPS,
            "least_ms": leases.AHEAD_SECONDS * 1000,
            "most_of_lease": leases.MAX_AHEAD,
        }
        renewal = {
            "per_lease": reservation.RENEWALS_PER_LEASE,
            "default_lease_ms": reservation.DEFAULT_LEASE_MS,
            "least_ms": reservation.MIN_RENEWAL_MS,
        }
        own = {"breaker": breaker, "lease": lease, "ahead": ahead, "renewal": renewal}
        self.assertEqual(own, {name: NUMBERS[name] for name in own})

    def test_a_reservation_is_held_for_this_long(self) -> None:
        for case in NUMBERS["held"]:
            with self.subTest(case):
                of = leases.Leases("k", limit(case["limit"]), f"{case['lease_ms']}ms", 0, clock=lambda: 0.0)
                self.assertAlmostEqual(of.held_seconds * 1000, case["held_ms"])

    def test_batches_have_the_same_size(self) -> None:
        for case in NUMBERS["batches"]:
            with self.subTest(case):
                batch = leases.batch_size(case["expected"], case["needed"], case["limit"], case["reservations"])
                self.assertEqual(batch, case["batch"])
