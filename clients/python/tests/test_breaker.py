"""The breaker. Nothing is sent."""

from __future__ import annotations

import logging
import unittest

from redis_ratelimit._internal.breaker import Breaker


class BreakerTest(unittest.TestCase):
    ERROR = ConnectionError("gone")

    def opened(self) -> Breaker:
        breaker = Breaker("a server")
        opens = [breaker.record_failure(at, at + 0.5, self.ERROR) for at in (1.0, 2.0, 3.0)]
        self.assertEqual(opens, [False, False, True])
        return breaker

    def test_calls_that_fail_at_the_same_time_count_once(self) -> None:
        breaker = Breaker("a server")
        for _ in range(10):
            self.assertFalse(breaker.record_failure(1.0, 1.5, self.ERROR))

    def test_a_failure_does_not_count_if_another_call_was_answered_meanwhile(self) -> None:
        breaker = Breaker("a server")
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

    def test_it_is_logged_when_it_opens_and_when_it_closes(self) -> None:
        with self.assertLogs("redis_ratelimit", logging.WARNING) as logged:
            breaker = self.opened()
            breaker.record_failure(4.0, 4.5, self.ERROR)
            breaker.record_reply(5.0)
            breaker.record_reply(6.0)
        texts = [record.getMessage() for record in logged.records]
        self.assertEqual(
            [text.partition(",")[0] for text in texts], ["a server does not answer", "a server answers again"]
        )
