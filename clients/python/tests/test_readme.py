"""Runs the examples of the README and of docs/recipes.md, on the server of RATELIMIT_PORT instead of the usual port."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import redis

from redis_ratelimit import Busy, Denied, Limiter, Rate, Window, headers, semaphore

from .fixtures import NUMBERS, make

PORT = int(os.environ["RATELIMIT_PORT"])
CHECKOUT = Path(__file__).parents[3]
TEXT = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


class WithExamples(unittest.TestCase):
    def setUp(self) -> None:
        self.plain = make("redis", port=PORT)
        self.plain.flushall()

    def run_block(self, block: str, **given: Any) -> dict[str, Any]:
        """Runs an example and returns its names. A client without a port connects to the server of the tests. The deadlines
        are longer than on the page, because a busy machine is not a server that is away."""
        # Litestar looks up the types of handlers in their module.
        module = sys.modules["readme"] = ModuleType("readme")
        names = module.__dict__
        names.update(given)
        clients = {folder: make("redis", folder, port=PORT) for folder in ("", ".asyncio")}
        real = redis.Redis
        with (
            mock.patch("redis.Redis", lambda **user: real(port=PORT, **user) if user else clients[""]),
            mock.patch("redis.asyncio.Redis", lambda: clients[".asyncio"]),
        ):
            exec(compile(block.replace("deadline=0.25", "deadline=30"), "example", "exec"), names)
        return names


class Readme(WithExamples):
    def setUp(self) -> None:
        super().setUp()
        policies = re.search(r'`redis-cli CONFIG SET ratelimit.policies "([^"]+)"`', TEXT)
        assert policies is not None
        self.plain.config_set("ratelimit.policies", policies[1])

    def tearDown(self) -> None:
        self.plain.config_set("ratelimit.policies", "")

    def test_the_pause_between_two_probes_is_that_of_the_breaker(self) -> None:
        self.assertIn(f"Every {NUMBERS['breaker']['pause_ms']} ms one of them", " ".join(TEXT.split()))

    def test_the_first_example_runs(self) -> None:
        names = self.run_block(blocks("python")[0])
        self.assertEqual((names["reply"].allowed, names["reply"].remaining, names["reply"].reachable), (True, 9, True))
        names["limiter"].close()

    def test_the_examples_of_limits_and_reservations_run(self) -> None:
        names = self.run_block(blocks("python")[1])
        self.assertEqual(self.plain.exists("user:1"), 0)
        self.assertEqual(names["limiter"].info("tokens").events, 1234)
        self.assertGreater(names["limiter"].info("upstream").ban_ms, 20_000)
        names["limiter"].close()
        names = self.run_block(blocks("python")[2])
        self.assertEqual(names["limiter"].window_ro("user:1:rename", names["Window"](3, "1d")).remaining, 1)
        self.assertEqual(names["limiter"].held("workers"), [])
        names["limiter"].close()
        names = self.run_block(blocks("python")[3])
        self.assertTrue(names["reply"].allowed and names["reply"].reachable)
        tokens = names["limiter"].window_ro("{u1}:tpm", names["Window"](100_000, "1min"))
        self.assertEqual(100_000 - tokens.remaining, 812 + 96)
        self.assertEqual([names["limiter"].info(key).events for key in ("{llm}:rpm", "{llm}:tpm")], [1, 800])
        names["limiter"].close()

    def test_the_example_on_the_first_page_of_the_project_runs(self) -> None:
        page = (CHECKOUT / "README.md").read_text("utf-8")
        block = re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        assert block is not None
        names = self.run_block(block[1])
        self.assertEqual((names["reply"].limit, names["reply"].remaining), (16, 15))
        names["limiter"].close()

    def test_the_example_with_asyncio_runs(self) -> None:
        self.run_block(blocks("python")[4])
        self.assertEqual(self.plain.exists("user:2:reply", "user:2:rename"), 2)

    def test_the_example_of_a_local_limit_runs(self) -> None:
        block, lease = blocks("python")[5], 'lease="50ms"'
        self.assertIn(lease, block)
        before = self.calls()
        # On a busy machine a reply may come after 50 ms, and then the take requests another batch.
        names = self.run_block(block.replace(lease, 'lease="30s"'))
        self.assertEqual(names["limiter"].held("api"), [])
        # One batch, which is settled at the end.
        self.assertEqual([after - was for after, was in zip(self.calls(), before)], [1, 1])
        names["limiter"].close()

    def calls(self) -> list[int]:
        """Returns how many batches were requested from the server, and how many were settled."""
        told = self.plain.info("commandstats")
        return [told.get(f"cmdstat_rl.{name}", {"calls": 0})["calls"] for name in ("acquire", "apply")]

    def test_the_example_without_a_server_runs(self) -> None:
        if find_spec("redis_ratelimit._engine") is None:
            self.skipTest("the engine is not built")
        self.run_block(blocks("python")[6])

    def test_the_application_runs(self) -> None:
        names = self.run_block(blocks("python")[7])
        statuses = []

        async def send(message: Any) -> None:
            statuses.append(message.get("status", message.get("code")))

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def ask() -> None:
            for _ in range(11):
                await names["app"]({"type": "http", "client": ("192.0.2.7", 5)}, receive, send)
            await names["app"]({"type": "websocket", "client": ("192.0.2.7", 5)}, receive, send)
            await names["limiter"].aclose()

        asyncio.run(ask())
        self.assertEqual([status for status in statuses if status], [200] * 10 + [429, 1008])

    def check(self, answers: list[Any]) -> None:
        """Checks the answers to six requests. The limit of the view denies the last one."""
        self.assertEqual([answer.status_code for answer in answers], [200] * 5 + [429])
        for answer in answers:
            self.assertEqual(answer.headers["RateLimit-Policy"], '"site";q=1000;w=3600, "search";q=5;w=60')
            self.assertEqual(answer.headers["X-RateLimit-Limit"], "5")

    def test_the_application_of_fastapi_runs(self) -> None:
        from starlette.testclient import TestClient

        names = self.run_block(blocks("python")[8])
        with TestClient(names["app"]) as client:
            answers = [client.get("/search?q=x") for _ in range(6)]
            reports = [client.get("/report", headers=headers) for headers in ({"x-user": "a"}, {})]
            chats = [client.get("/chat?prompt=hi")]
            left = self.plain.execute_command("RL.WINDOW", "tokens:", 100_000, "1min", 97_000)[2]
            chats.append(client.get("/chat?prompt=hi"))
        self.assertEqual(answers[0].json(), "found x")
        self.check(answers)
        policies = '"day";q=100;w=86400, "running";q=3;qu="concurrent-requests"', '"address";q=5;w=60'
        for answer, policy in zip(reports, policies):
            self.assertEqual(answer.headers["RateLimit-Policy"], '"site";q=1000;w=3600, ' + policy)
        self.assertEqual([answer.status_code for answer in chats], [200, 429])
        self.assertIn('"default";q=100000;qu="tokens";w=60', chats[1].headers["RateLimit-Policy"])
        self.assertEqual(left, 3000 - len("hi" + "you said hi"))

    def test_the_application_of_flask_runs(self) -> None:
        names = self.run_block(blocks("python")[9])
        client = names["app"].test_client()
        answers = [client.get("/search?q=x") for _ in range(6)]
        self.assertEqual(answers[0].text, "found x")
        self.check(answers)
        names["limiter"].close()

    def test_the_views_of_django_run(self) -> None:
        import django.conf
        from django.test import RequestFactory

        if not django.conf.settings.configured:
            django.conf.settings.configure(ALLOWED_HOSTS=["*"])
        names = self.run_block(blocks("python")[10])
        view = names["site"](names["search"])
        answers = [view(RequestFactory().get("/search?q=x")) for _ in range(6)]
        self.assertEqual(answers[0].content, b"found x")
        self.check(answers)
        names["limiter"].close()

    def test_the_application_of_litestar_runs(self) -> None:
        from litestar.testing import TestClient

        names = self.run_block(blocks("python")[11])
        with TestClient(names["app"]) as client:
            answers = [client.get("/search") for _ in range(6)]
            with mock.patch.object(names["limiter"], "throttle", side_effect=Busy):
                busy = client.get("/search")
        self.assertEqual(answers[0].text, "found")
        self.assertEqual([answer.status_code for answer in answers], [200] * 5 + [429])
        for answer in answers:
            self.assertEqual(answer.headers["RateLimit-Policy"], '"search";q=5;w=60')
        self.assertEqual(answers[5].json()["violated-policies"], ["search"])
        self.assertEqual(answers[5].headers["Content-Type"], "application/problem+json")
        self.assertEqual((busy.status_code, busy.json()["status"]), (503, 503))
        self.assertEqual(busy.headers["Retry-After"], "1")
        self.assertEqual(len(blocks("python")), 12, "each block has a test here")

    def test_the_package_is_installed_from_the_checkout(self) -> None:
        if os.environ.get("CLIENTS") != "all":
            print("skipped readme: pip install ./clients/python needs a registry: make test-clients", flush=True)
            self.skipTest("needs a registry")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
            environment.pop("PYTHONPATH", None)
            for block in blocks("sh"):
                subprocess.run(["sh", "-ec", block], check=True, cwd=CHECKOUT, env=environment)
            program = (
                "import importlib.metadata, redis_ratelimit\n"
                "print(redis_ratelimit.__version__, importlib.metadata.version('redis-ratelimit-client'))"
            )
            command = [f"{folder}/bin/python", "-c", program]
            shown = subprocess.run(command, check=True, env=environment, cwd=folder, capture_output=True, text=True)
            versions = shown.stdout.split()
            self.assertEqual(versions[0], versions[1])


PAGE = (CHECKOUT / "docs" / "recipes.md").read_text("utf-8")
RECIPES = blocks("py", PAGE)


class Recipes(WithExamples):
    def setUp(self) -> None:
        super().setUp()
        self.worked: list[Any] = []
        self.given: dict[str, Any] = {
            "limiter": Limiter(self.plain, deadline=30),
            "send": lambda request: (200, request),
            "work": self.worked.append,
            "redis": redis,
        }
        self.given |= {each.__name__: each for each in (Limiter, Rate, Window, headers, semaphore)}
        self.addCleanup(self.given["limiter"].close)

    def recipe(self, number: int) -> dict[str, Any]:
        return self.run_block(RECIPES[number], **self.given)

    def test_the_sorted_set_in_a_pipeline(self) -> None:
        allowed = self.recipe(0)["is_action_allowed"]
        self.assertEqual([allowed("laoqian", "reply", 60, 5) for _ in range(6)], [True] * 5 + [False])

    def test_the_funnel(self) -> None:
        allowed = self.recipe(1)["is_action_allowed"]
        self.assertEqual([allowed("laoqian", "reply") for _ in range(16)], [True] * 15 + [False])
        self.assertTrue(allowed("laoqian", "view", 15))

    def test_the_interval_limiter(self) -> None:
        rename = self.recipe(2)["rename"]
        for number in range(3):
            rename("u", f"job-{number}")
        self.assertRaises(Denied, rename, "u", "job-4")
        self.assertEqual(self.worked, ["u"] * 3)

    def test_the_upstream_that_tenants_share(self) -> None:
        times: list[float] = []

        class Upstream(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                times.append(time.monotonic())
                self.send_response(429 if len(times) == 1 else 200)
                self.send_header("Retry-After", "1")
                self.end_headers()
                self.wfile.write(b"done")

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever).start()
        names = self.recipe(3)
        self.addCleanup(names["limiter"].close)
        url = f"http://127.0.0.1:{server.server_port}"
        self.assertEqual(names["ask"]("acme", url, 800), b"done")
        self.assertEqual(len(times), 2)
        self.assertTrue(1 <= times[1] - times[0] < 30, times)
        counted = [names["limiter"].info(key).events for key in ("{up}:rpm", "{up}:tpm")]
        self.assertEqual(counted, [2, 1600])
        names["limiter"].close("{up}:rpm", names["REQUESTS"], "1h")
        self.assertIsNone(names["ask"]("acme", url, 800))
        self.assertEqual(len(times), 2)

    def test_the_gateway(self) -> None:
        names = self.recipe(4)
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
        self.given["queue"] = [SimpleNamespace(parts=parts) for parts in (300, 299, 2)]
        self.given["time"] = SimpleNamespace(sleep=sleep)
        self.given["send"] = lambda message: sent.append(message.parts)
        # The last one asks for more than is available.
        with self.assertRaises(Slept) as raised:
            self.recipe(5)
        self.assertEqual((sent, 0 < raised.exception.args[0] <= 1), ([300, 299], True))

    def test_plans_and_the_numbers_of_customers(self) -> None:
        policies = re.search(r'^ratelimit.policies "(.*)"$', PAGE, re.MULTILINE)
        line = re.search(r"> (ACL SETUSER tenants .*)$", PAGE, re.MULTILINE)
        assert policies is not None
        assert line is not None
        self.plain.config_set("ratelimit.policies", policies[1])
        self.addCleanup(self.plain.acl_deluser, "app", "tenants")
        for user in (line[1], "ACL SETUSER app on >secret ~limit:* +rl.all +info +ping +client"):
            self.plain.execute_command(*user.split(" "))
        names = self.recipe(6)
        self.addCleanup(names["limiter"].close)

        def limits(customer: str) -> list[int]:
            return [answer.limit for answer in names["spend"](customer, 800).answers]

        self.assertEqual(limits("acme"), [60, 40_000])
        names["sign"]("acme", tpm="WINDOW 500000 1min")
        self.assertEqual((limits("acme"), limits("zebra")), ([60, 500_000], [60, 40_000]))
        with make("redis", port=PORT, username="app", password="secret") as app:
            for client, key in ((app, "limit:{acme}:limits"), (names["contracts"], "limit:{acme}:tpm")):
                self.assertRaises(redis.exceptions.NoPermissionError, client.hset, key, "tpm", "WINDOW 1 1d")
        self.assertEqual(len(RECIPES), 7, "each block has a test here")
