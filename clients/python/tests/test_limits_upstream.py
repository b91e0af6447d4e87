"""Runs the tests that `limits` has for its storages for Redis on ours. LIMITS_ARCHIVE is the source archive of `limits`.

limits_conftest.py stands in the place of their conftest.py; the tests are as they were released. It takes four minutes, as
most of them sleep, so only `make test-clients` runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
from contextlib import closing
from pathlib import Path

from .servers import Wire, restrict

#: The tests that are left out, and why. docs/python.md lists them too.
LEFT_OUT = {
    "test_custom_prefix": "reads the raw value of the key, which is a counter there and a sorted set here",
    "test_sliding_window_counter_previous_window": "looks at the estimate that two counters make",
}
MARKS = ("redis", "redis_cluster", "valkey", "valkey_cluster")
#: The server has no password, no TLS and no Unix socket. These tests only connect in other ways.
KINDS = "not auth and not ssl and not uds"
#: The number of tests, so that none goes missing unnoticed.
AT_LEAST = 200


def counts(shown: str) -> tuple[int, int]:
    """Returns how many tests passed and how many did not, from the last line of pytest."""
    total = {
        kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", shown.splitlines()[-1].partition(" in ")[0])
    }
    total.pop("deselected", 0)
    total.pop("warnings", 0)
    passed = total.pop("passed", 0)
    return passed, sum(total.values())


class Upstream(unittest.TestCase):
    def test_what_limits_tests_of_its_own_storage_holds_here(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with tarfile.open(os.environ["LIMITS_ARCHIVE"]) as archive:
                archive.extractall(folder, filter="data")
            (tests,) = folder.glob("limits-*/tests")
            # The benchmarks need more packages.
            subprocess.run(["rm", "-r", str(tests / "benchmarks")], check=True)
            (tests / "conftest.py").write_text((Path(__file__).parent / "limits_conftest.py").read_text("utf-8"))
            # In another folder, so that the installed package is used and not that of the archive.
            place = folder / "here"
            place.mkdir()
            tests.rename(place / "tests")
            source = Path(__file__).parents[1] / "src"
            command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--disable-warnings", "--asyncio-mode=auto"]
            command += ["-m", " or ".join(MARKS), "-k", KINDS]
            environment = {**os.environ, "PYTHONPATH": str(source)}

            ports = [int(os.environ[name]) for name in ("RATELIMIT_PORT", "RATELIMIT_CLUSTER_PORT")]
            with closing(Wire(ports[1])) as wire:
                nodes = [node[2][1] for node in wire.ask("CLUSTER", "SLOTS")]
            self.addCleanup(restrict("limits", [ports[0], *nodes], also=True))

            def run(*more: str) -> str:
                done = subprocess.run([*command, *more], cwd=place, env=environment, capture_output=True, text=True)
                self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)
                return done.stdout

            listed = [line.split("::")[-1] for line in run("--collect-only").splitlines() if "::" in line]
            for test, why in LEFT_OUT.items():
                self.assertIn(test, {each.partition("[")[0] for each in listed})
                print(f"limits: left out {test}: {why}", flush=True)
            shown = run("-k", f"{KINDS} and not {' and not '.join(LEFT_OUT)}")
            passed, failed = counts(shown)
            # They wait in real time, some with a second of slack, so they may fail on a machine that stands still. A test
            # that fails three times in a row fails for another reason.
            for _ in range(2):
                if failed:
                    print(f"limits: again: {' '.join(re.findall('^FAILED (.*)', shown, re.MULTILINE))}", flush=True)
                    shown = run("--last-failed")
                    again, failed = counts(shown)
                    passed += again
        print(f"limits: {passed} passed, {failed} failed", flush=True)
        self.assertEqual(failed, 0, shown)
        self.assertGreaterEqual(passed, AT_LEAST)
