"""Runs the examples of Python in docs/testing.md."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from redis_ratelimit import Limiter, Window

from .fixtures import LIBRARIES, make
from .servers import Server

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
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("no cc")
        with tempfile.TemporaryDirectory() as folder:
            library, clock = f"{folder}/clock.so", f"{folder}/clock"
            source = str(ROOT / "tests/support/src/clock.c")
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
            Path(clock).write_bytes(struct.pack("<qq", 0, 0))
            set_clock = names_of(BLOCKS[1])["set_clock"]
            with mock.patch.dict("os.environ", {"LD_PRELOAD": library, "RATELIMIT_TEST_CLOCK": clock}):
                server = Server()
            with server, Limiter(make(LIBRARIES[0], port=server.port)) as limiter:
                set_clock(1_700_000_000, clock)
                window = Window(1, "1h")
                self.assertTrue(limiter.window("k", window).allowed)
                self.assertEqual(limiter.window("k", window).retry_after_ms, 3_600_000)
                set_clock(1_700_003_600, clock)
                self.assertTrue(limiter.window("k", window).allowed)
