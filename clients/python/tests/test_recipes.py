"""Runs the examples of the Python client in docs/recipes.md, on the server of RATELIMIT_PORT."""

from __future__ import annotations

import os
import re
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import redis

from redis_ratelimit import Denied, Limiter, Rate, Window, headers, semaphore

from .fixtures import make

PORT = int(os.environ["RATELIMIT_PORT"])
PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


class Recipes(unittest.TestCase):
    def setUp(self) -> None:
        self.client = make("redis", port=PORT)
        self.client.flushall()
        self.worked: list[Any] = []
        self.names: dict[str, Any] = {
            "limiter": Limiter(self.client, deadline=30),
            "send": lambda request: (200, request),
            "work": self.worked.append,
            "redis": redis,
        }
        self.names |= {each.__name__: each for each in (Limiter, Rate, Window, headers, semaphore)}

    def run_block(self, number: int) -> dict[str, Any]:
        # On a busy machine the server may decide later than the page allows.
        block = BLOCKS[number].replace("deadline=0.25", "deadline=30")
        # A client without a port connects to the server of the tests.
        with mock.patch("redis.Redis", lambda: self.client):
            exec(compile(block, PAGE.name, "exec"), self.names)
        return self.names

    def tearDown(self) -> None:
        self.names["limiter"].close()

    def test_the_sorted_set_in_a_pipeline(self) -> None:
        allowed = self.run_block(0)["is_action_allowed"]
        self.assertEqual([allowed("laoqian", "reply", 60, 5) for _ in range(6)], [True] * 5 + [False])

    def test_the_funnel(self) -> None:
        allowed = self.run_block(1)["is_action_allowed"]
        self.assertEqual([allowed("laoqian", "reply") for _ in range(16)], [True] * 15 + [False])
        self.assertTrue(allowed("laoqian", "view", 15))

    def test_the_interval_limiter(self) -> None:
        rename = self.run_block(2)["rename"]
        for number in range(3):
            rename("u", f"job-{number}")
        self.assertRaises(Denied, rename, "u", "job-4")
        self.assertEqual(self.worked, ["u"] * 3)

    def test_the_gateway(self) -> None:
        names = self.run_block(3)
        # A busy machine may sleep through leases of 50 ms, and then too little is held.
        end = time.monotonic() + 60
        while (answer := names["forward"]("request")) != (200, "request"):
            self.assertEqual(answer[0], 429)
            self.assertLess(time.monotonic(), end)
        names["provider"].close()

    def test_the_worker_pool(self) -> None:
        class Slept(Exception):
            pass

        def sleep(seconds: float) -> None:
            raise Slept(seconds)

        sent: list[int] = []
        self.names["queue"] = [SimpleNamespace(parts=parts) for parts in (300, 299, 2)]
        self.names["time"] = SimpleNamespace(sleep=sleep)
        self.names["send"] = lambda message: sent.append(message.parts)
        # The last one asks for more than is available.
        with self.assertRaises(Slept) as raised:
            self.run_block(4)
        self.assertEqual((sent, 0 < raised.exception.args[0] <= 1), ([300, 299], True))
        self.assertEqual(len(BLOCKS), 5, "each block has a test here")
