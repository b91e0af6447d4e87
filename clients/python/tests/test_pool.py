"""The pool of connections, and the breaker. Nothing is sent."""

from __future__ import annotations

import unittest
from typing import Any

from redis_ratelimit._internal.breaker import Breaker
from redis_ratelimit._internal.pool import CONNECTING, Dismissed, Idle, Lender, MayConnect, Pool, Turn


class Signal:
    def __init__(self) -> None:
        self.times_woken = 0

    def wake(self) -> None:
        self.times_woken += 1


class PoolTest(unittest.TestCase):
    def connect(self, pool: Pool) -> None:
        """A call takes a place and makes a connection."""
        self.assertIsInstance(pool.take(Signal), MayConnect)
        pool.connected()

    def wait(self, pool: Pool) -> Turn[Signal]:
        turn = pool.take(Signal)
        assert isinstance(turn, Turn)
        self.assertIsNone(turn.lent)
        return turn

    def assert_lent(self, lent: Any, connection: str) -> None:
        self.assertIsInstance(lent, Idle)
        self.assertEqual(lent.connection, connection)

    def test_a_call_without_a_place_waits_until_one_is_given_back(self) -> None:
        pool = Pool(1)
        self.connect(pool)
        turn = self.wait(pool)
        pool.give("a")
        self.assert_lent(turn.lent, "a")
        self.assertEqual(turn.signal.times_woken, 1)

    def test_a_waiting_call_may_connect_if_a_place_is_given_back_without_a_connection(self) -> None:
        pool = Pool(1)
        self.connect(pool)
        turn = self.wait(pool)
        self.assertFalse(pool.give(None))
        self.assertIsInstance(turn.lent, MayConnect)

    def test_waiting_calls_are_served_in_order_and_before_later_ones(self) -> None:
        pool = Pool(1)
        self.connect(pool)
        first, second = self.wait(pool), self.wait(pool)
        pool.give("a")
        third = self.wait(pool)
        self.assert_lent(first.lent, "a")
        self.assertIsNone(second.lent)
        pool.give("a")
        self.assert_lent(second.lent, "a")
        self.assertIsNone(third.lent)

    def test_the_number_of_calls_that_connect_at_the_same_time_is_bounded(self) -> None:
        pool = Pool(2 * CONNECTING)
        for _ in range(CONNECTING):
            self.assertIsInstance(pool.take(Signal), MayConnect)
        turn = self.wait(pool)
        pool.connected()
        self.assertIsInstance(turn.lent, MayConnect)
        self.assertEqual(turn.signal.times_woken, 1)

    def test_a_call_that_left_the_line_is_passed_over(self) -> None:
        pool = Pool(1)
        self.connect(pool)
        gone, next_one = self.wait(pool), self.wait(pool)
        pool.leave(gone)
        pool.give("a")
        self.assertIsNone(gone.lent)
        self.assert_lent(next_one.lent, "a")

    def test_a_connection_that_came_too_late_goes_to_the_next_call(self) -> None:
        pool = Pool(1)
        self.connect(pool)
        late, next_one = self.wait(pool), self.wait(pool)
        pool.give("a")
        pool.leave(late)
        self.assert_lent(next_one.lent, "a")

    def test_a_permission_to_connect_that_came_too_late_goes_to_the_next_call(self) -> None:
        pool = Pool(1)
        self.connect(pool)
        late, next_one = self.wait(pool), self.wait(pool)
        pool.give(None)
        pool.leave(late)
        self.assertIsInstance(next_one.lent, MayConnect)
        pool.connected()
        pool.give("b")
        self.assert_lent(pool.take(Signal), "b")

    def test_dismissed_calls_hold_nothing(self) -> None:
        pool = Pool(1)
        self.connect(pool)
        turn = self.wait(pool)
        pool.dismiss()
        self.assertIsInstance(turn.lent, Dismissed)
        self.assertEqual(turn.signal.times_woken, 1)
        pool.leave(turn)
        pool.give("a")
        self.assert_lent(pool.take(Signal), "a")

    def test_idle_connections_are_taken_out_once(self) -> None:
        pool = Pool(2)
        self.connect(pool)
        pool.give("a")
        self.assertEqual(pool.clear(), ["a"])
        self.assertEqual(pool.clear(), [])

    def test_blocking_calls_take_no_place_and_leave_no_more_connections_than_places(self) -> None:
        pool = Pool(1)
        unlimited: Lender = pool.unlimited
        self.connect(pool)
        self.assertIsInstance(unlimited.take(Signal), MayConnect)
        unlimited.connected()
        self.assertFalse(unlimited.give("b"), "the one place has a connection")
        pool.give("a")
        self.assert_lent(unlimited.take(Signal), "a")
        self.assertTrue(unlimited.give("a"))
        self.assertFalse(unlimited.give(None))

    def test_a_surplus_connection_goes_to_a_call_that_waits_for_a_place(self) -> None:
        pool = Pool(2 * CONNECTING)
        for _ in range(CONNECTING):
            pool.take(Signal)
        turn = self.wait(pool)
        self.assertTrue(pool.give_surplus("a"))
        self.assert_lent(turn.lent, "a")


class BreakerTest(unittest.TestCase):
    ERROR = ConnectionError("gone")

    def opened(self) -> Breaker:
        breaker = Breaker()
        opens = [breaker.record_failure(at, at + 0.5, self.ERROR) for at in (1.0, 2.0, 3.0)]
        self.assertEqual(opens, [False, False, True])
        return breaker

    def test_calls_that_fail_at_the_same_time_count_once(self) -> None:
        breaker = Breaker()
        for _ in range(10):
            self.assertFalse(breaker.record_failure(1.0, 1.5, self.ERROR))

    def test_a_failure_does_not_count_if_another_call_was_answered_meanwhile(self) -> None:
        breaker = Breaker()
        breaker.record_failure(1.0, 1.5, self.ERROR)
        breaker.record_failure(2.0, 2.5, self.ERROR)
        breaker.answered_at = 3.2
        self.assertFalse(breaker.record_failure(3.0, 3.5, self.ERROR))

    def test_one_call_probes_after_each_pause(self) -> None:
        breaker = self.opened()
        soon = 3.5 + Breaker.PAUSE_SECONDS
        self.assertFalse(breaker.may_probe(soon - 0.01))
        self.assertTrue(breaker.may_probe(soon))
        self.assertFalse(breaker.may_probe(soon), "another call probes")
        breaker.end_probe(soon + 1)
        self.assertFalse(breaker.may_probe(soon + 1))
        self.assertTrue(breaker.may_probe(soon + 1 + Breaker.PAUSE_SECONDS))
