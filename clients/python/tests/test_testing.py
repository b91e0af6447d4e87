"""Runs the examples of Python in docs/testing.md."""

from __future__ import annotations

import re
import shutil
import unittest
from pathlib import Path
from typing import Any

from redis_ratelimit import Limiter, Window

from .fixtures import LIBRARIES, make
from .servers import Clock, Server

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/testing.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def names_of(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "testing"}
    exec(compile(block, "testing.md", "exec"), names)
    return names


class Testing(unittest.TestCase):
    def test_the_tests_of_an_application_pass(self) -> None:
        tests = {name: each for name, each in names_of(BLOCKS[0]).items() if name.startswith("test_")}
        self.assertEqual(len(tests), 2)
        for test in tests.values():
            test()

    def test_the_clock_of_a_server_is_held(self) -> None:
        self.assertEqual(len(BLOCKS), 2, "each block has a test here")
        if shutil.which("cc") is None:
            self.skipTest("no cc")
        set_clock = names_of(BLOCKS[1])["set_clock"]
        with Clock() as clock, Server() as server, Limiter(make(LIBRARIES[0], port=server.port)) as limiter:
            set_clock(1_700_000_000, clock.file)
            window = Window(1, "1h")
            self.assertTrue(limiter.window("k", window).allowed)
            self.assertEqual(limiter.window("k", window).retry_after_ms, 3_600_000)
            set_clock(1_700_003_600, clock.file)
            self.assertTrue(limiter.window("k", window).allowed)
