"""The callback of LiteLLM's proxy, with the real proxy. RATELIMIT_PORT is the port of a server with the module, which is
flushed, RATELIMIT_CLUSTER_PORT that of a node of a cluster.

It runs in an environment of its own, which has LiteLLM, with LITELLM_LOCAL_MODEL_COST_MAP=True: without a network LiteLLM
does not look for newer prices.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import time
import unittest
import wave
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import uuid4

import yaml

from redis_ratelimit import Busy, Limiter, Window, litellm
from redis_ratelimit.asyncio import Reservation
from redis_ratelimit.litellm import callback, costs, proxy, requests
from redis_ratelimit.litellm.gateway import read_settings

from .fixtures import make
from .llm import MASTER_KEY, Gateway, Provider, chat, key
from .servers import ADMIN, MODULE, PATIENCE, Proxy, Server, restrict, until

PORT = int(os.environ["RATELIMIT_PORT"])
CLUSTER_PORT = int(os.environ["RATELIMIT_CLUSTER_PORT"])
#: The class of the errors of the hooks. FastAPI is not installed where types are checked.
Refused: type[Any] = vars(callback)["HTTPException"]
PAGE = Path(__file__).parents[3] / "docs" / "litellm.md"

#: Each test has keys of a plan, and the limits for that plan.
CONFIG = """
model_list:
  - model_name: fake
    litellm_params: {{model: openai/gpt-4o, api_base: "{url}", api_key: none}}
    model_info: {{id: id-1, input_cost_per_token: 0.00001, output_cost_per_token: 0.00002, max_output_tokens: 100}}
  - model_name: second
    litellm_params: {{model: openai/gpt-4o, api_base: "{url}", api_key: none}}
  - model_name: cheap
    litellm_params: {{model: openai/gpt-4o-mini, api_base: "{url}", api_key: none}}
  - model_name: embed
    litellm_params: {{model: openai/text-embedding-3-small, api_base: "{url}", api_key: none}}
  - model_name: own
    litellm_params: {{model: openai/own, api_base: "{url}", api_key: none}}
  - model_name: free
    litellm_params: {{model: openai/free, api_base: "{url}", api_key: none}}
    model_info: {{input_cost_per_token: 0, output_cost_per_token: 0}}
  - model_name: any-*
    litellm_params: {{model: openai/gpt-4o, api_base: "{url}", api_key: none}}
  - model_name: all/*
    litellm_params: {{model: openai/*, api_base: "{url}", api_key: none}}
  - model_name: prices
    litellm_params: {{model: openai/gpt-4o, api_base: "{url}", api_key: none}}
    model_info:
      input_cost_per_token: 0.000001
      output_cost_per_token: 0.000002
      input_cost_per_token_priority: 0.00001
      output_cost_per_token_priority: 0.00002
      input_cost_per_token_above_200k_tokens: 0.000002
      output_cost_per_token_above_200k_tokens: 0.000004
  - model_name: pictures
    litellm_params: {{model: openai/pictures, api_base: "{url}", api_key: none}}
    model_info: {{mode: image_generation, output_cost_per_image: 0.04}}
  - model_name: voice
    litellm_params: {{model: openai/tts-1, api_base: "{url}", api_key: none}}
  - model_name: ranks
    litellm_params: {{model: cohere/rerank-english-v3.0, api_base: "{url}/rerank", api_key: none}}
router_settings:
  num_retries: 2
  retry_after: 0
  model_group_alias: {{nick: fake}}
  fallbacks: [{{fake: [second]}}, {{cheap: [second]}}]
general_settings:
  custom_auth: own_auth.auth
  pass_through_endpoints:
    - {{path: /mine, target: "{url}", include_subpath: true, auth: true}}
    - {{path: /flat, target: "{url}/embeddings", auth: true, cost_per_request: 0.005}}
litellm_settings:
  callbacks: [redis_ratelimit.litellm.limiter]
callback_settings:
  redis_ratelimit:
    url: redis://127.0.0.1:{port}
    lease: 1s
    deadline: 30
    limits:
      - {{name: all, tokens: 1000000/1h}}
      - {{name: requests, per: key, requests: 3/1h, only: {{key.plan: requests}}}}
      - {{name: tokens, per: key, tokens: 200/1h, only: {{key.plan: tokens}}}}
      - {{name: input, per: key, input_tokens: 1000/1h, only: {{key.plan: usage}}}}
      - {{name: output, per: key, output_tokens: 1000/1h, only: {{key.plan: usage}}}}
      - {{name: total, per: key, tokens: 1000/1h, only: {{key.plan: usage}}}}
      - {{name: dollars, per: key, dollars: 0.50/1d, fixed: true, tz: Europe/Berlin, only: {{key.plan: usage}}}}
      - {{name: cost, per: key, dollars: 100/1h, only: {{key.plan: cost}}}}
      - {{name: places, per: key, calls: 1, only: {{key.plan: places}}}}
      - {{name: user, per: user, requests: 100/1h, only: {{key.plan: by}}}}
      - {{name: team, per: team, requests: 100/1h, only: {{key.plan: by}}}}
      - {{name: organization, per: organization, requests: 100/1h, only: {{key.plan: by}}}}
      - {{name: end_user, per: end_user, requests: 100/1h, only: {{key.plan: by}}}}
      - {{name: both, per: [team, model], requests: 100/1h, only: {{key.plan: by}}}}
      - {{name: fake, per: [key, model], requests: 100/1h, only: {{key.plan: names, model: fake}}}}
      - {{name: any, per: [key, model], requests: 100/1h, only: {{key.plan: names, model: ["any-*", gpt-4o-mini]}}}}
      - {{name: key_field, per: key.grade, requests: 100/1h, only: {{key.plan: by}}}}
      - {{name: team_field, per: team.unit, requests: 100/1h, only: {{key.plan: by}}}}
      - {{name: field, per: metadata.feature, requests: 100/1h, only: {{key.plan: by}}}}
      - {{name: never, per: key, requests: 100/1h, only: {{key.plan: by, model: "gpt-*"}}}}
      - {{name: model, per: key, requests: 1/1h, only: {{key.plan: fallback, model: fake}}}}
      - {{name: shadow, per: key, requests: 0/1h, shadow: true, only: {{key.plan: shadow}}}}
"""
#: The windows of the limits whose count is looked at.
ALL = Window(10**6, "1h")
HOUR = Window(1000, "1h")
DAY = Window(500_000, "1d", fixed=True, tz="Europe/Berlin")


def setUpModule() -> None:
    # The proxies have only the rights that docs/commands.md lists. The tests look with the callback's own limiter.
    unittest.addModuleCleanup(restrict("LiteLLM", [PORT], "+rl.held", "+rl.window_ro", also=True))


@cache
def shared() -> tuple[Provider, Gateway]:
    """Returns the proxy for all tests, because it takes long to start one."""
    provider = Provider()
    environment = {"OPENAI_API_BASE": provider.url.removesuffix("/v1"), "OPENAI_API_KEY": "none"}
    gateway = Gateway(CONFIG.format(url=provider.url, port=PORT), wait=True, **environment)
    unittest.addModuleCleanup(gateway.__exit__)
    unittest.addModuleCleanup(provider.__exit__)
    return provider, gateway


class WithGateway(unittest.TestCase):
    provider: Provider
    gateway: Gateway
    limiter: Limiter
    plain: Any

    @classmethod
    def setUpClass(cls) -> None:
        cls.plain = make("redis", port=PORT, **ADMIN)
        cls.limiter = Limiter(make("redis", port=PORT, **ADMIN))
        cls.addClassCleanup(cls.limiter.close)
        cls.provider, cls.gateway = shared()

    def keys(self, name: str) -> list[str]:
        """Returns the keys of a limit."""
        found = [each.decode() for each in self.plain.keys("{llm}:*")]
        return sorted(each for each in found if name in ("*", each.split(":")[1]))

    def key_of(self, name: str) -> str:
        (found,) = self.keys(name)
        return found

    def setUp(self) -> None:
        self.plain.flushall()

    def used(self, name: str, window: Window = HOUR) -> int:
        """Waits until nothing is reserved, and returns what is counted."""
        until(lambda: all(not self.limiter.held(each) for each in self.keys(name)), "settling")
        keys = self.keys(name)
        return window.limit - self.limiter.window_ro(keys[0], window).remaining if keys else 0


class Counting(WithGateway):
    def test_an_answer_that_is_longer_than_its_maximum_is_counted_in_full(self) -> None:
        answer = self.gateway.chat(key(metadata={"plan": "tokens"}), most=10, words=300)
        self.assertEqual(answer.status, 200, answer.text)
        self.assertEqual(self.used("tokens", Window(1000, "1h")), 310)
        self.assertEqual(self.gateway.chat(key(metadata={"plan": "tokens"}), most=1).status, 429)

    def test_all_endpoints_are_counted(self) -> None:
        order = json.dumps({"words": 20, "prompt": 30})
        owner = key(metadata={"plan": "usage"})
        for path, body in {
            "/v1/chat/completions": {"messages": [{"role": "user", "content": order}], "max_tokens": 50},
            "/v1/messages": {"messages": [{"role": "user", "content": order}], "max_tokens": 50},
            "/v1/completions": {"prompt": order, "max_tokens": 50},
            "/v1/responses": {"input": order, "max_output_tokens": 50},
        }.items():
            for stream in False, True:
                with self.subTest(path=path, stream=stream):
                    self.plain.flushall()
                    answer = self.gateway.ask("POST", path, {"model": "fake", **body, "stream": stream}, owner)
                    self.assertEqual(answer.status, 200, answer.text)
                    self.assertIn('"output";q=1000', answer.headers["ratelimit-policy"])
                    found = [self.used(name) for name in ("input", "output", "total")]
                    if path == "/v1/completions" and stream:
                        # LiteLLM reports no usage for it, so the client counts the tokens.
                        self.assertTrue(5 <= found[0] <= 40 and 15 <= found[1] <= 25, found)
                    else:
                        self.assertEqual(found, [30, 20, 50])
                        self.assertEqual(self.used("dollars", DAY), 700)

        body = {"model": "embed", "input": ["one two", "three"]}
        self.plain.flushall()
        self.assertEqual(self.gateway.ask("POST", "/v1/embeddings", body, owner).status, 200)
        self.assertEqual([self.used(name) for name in ("input", "output", "total")], [7, 0, 7])

    def test_a_request_reserves_the_most_that_it_can_cost(self) -> None:
        def chatting(model: str = "prices", words: int = 50, **more: Any) -> tuple[str, dict[str, Any]]:
            return "chat/completions", {**chat(model, wait=1, words=words, prompt=1000, id=str(uuid4())), **more}

        failing = chat("cheap", wait=1, words=50, prompt=1000, fail=500, times=3, id=str(uuid4()))
        long = chat("prices", wait=1, words=50, prompt=200_500)
        long["messages"].insert(0, {"role": "user", "content": "word " * 200_400})
        order = json.dumps({"wait": 1, "x": "x" * 983})
        cases: dict[str, tuple[tuple[str, dict[str, Any]], int]] = {
            "plain": (chatting(), 1100),
            "tier": (("chat/completions", long), 401_200),
            "priority": (chatting(service_tier="priority"), 11_000),
            "extra_body": (chatting(words=200, extra_body={"max_tokens": 200}), 1400),
            "n": (chatting(words=250, n="5"), 1500),
            "several models": (chatting("second,second"), 6000),
            "fallback": (("chat/completions", failing), 3000),
            "images": (("images/generations", {"model": "pictures", "prompt": order, "n": 3}), 120_000),
            "speech": (("audio/speech", {"model": "voice", "voice": "alloy", "input": order}), 15_000),
            "rerank": (("rerank", {"model": "ranks", "query": order, "documents": ["a"] * 101}), 4000),
        }
        window = Window(100_000_000, "1h")
        for name, ((path, body), cost) in cases.items():
            with self.subTest(name), ThreadPoolExecutor(1) as pool:
                self.plain.flushall()
                if path == "chat/completions" and name != "tier":
                    body["messages"].insert(0, {"role": "user", "content": "word " * 1000})
                answer = pool.submit(self.gateway.ask, "POST", f"/v1/{path}", body, key(metadata={"plan": "cost"}))
                until(lambda: self.keys("cost") and self.limiter.held(self.key_of("cost")), "the request")
                held = sum(each.quantity for each in self.limiter.held(self.key_of("cost")))
                self.assertEqual(answer.result().status, 200, answer.result().text)
                self.assertEqual(self.used("cost", window), cost)
                self.assertTrue(cost <= held <= 3 * cost, (cost, held))

    def test_pass_through_endpoints_are_counted(self) -> None:
        order = json.dumps({"words": 20, "prompt": 30})
        owner = key(metadata={"plan": "usage"})
        for path in "/mine/chat/completions", "/openai/v1/chat/completions", "/mine/responses":
            for stream in False, True:
                with self.subTest(path=path, stream=stream):
                    self.plain.flushall()
                    part = "input" if "responses" in path else "messages"
                    body: dict[str, Any] = {
                        "model": "gpt-4o",
                        part: [{"role": "user", "content": order}],
                        "stream": stream,
                    }
                    if stream and part == "messages":
                        body["stream_options"] = {"include_usage": True}
                    answer = self.gateway.ask("POST", path, body, owner)
                    self.assertEqual(answer.status, 200, answer.text)
                    self.assertEqual([self.used(name) for name in ("input", "output", "total")], [30, 20, 50])
                    self.assertEqual(self.used("dollars", DAY), 275)
        self.plain.flushall()
        body = {**chat("gpt-4o", words=20), "stream": True}
        self.assertEqual(self.gateway.ask("POST", "/mine/chat/completions", body, owner).status, 200)
        # This stream reports no usage, so its text is counted.
        self.assertTrue(15 <= self.used("output") <= 25)
        self.assertGreaterEqual(self.used("input"), 5)
        self.plain.flushall()
        self.assertEqual(self.gateway.ask("POST", "/flat", {"input": "one", "model": "x"}, owner).status, 200)
        self.assertEqual([self.used("input"), self.used("dollars", DAY)], [7, 5000])

    def test_what_has_no_price_is_named_at_start(self) -> None:
        until(lambda: "limits in dollars reserve nothing for /mine, own:" in self.gateway.log, "the warning")

    def test_each_dimension_has_its_own_count(self) -> None:
        owner = key(
            user_id="ada",
            team_id="red:1",
            org_id="acme",
            end_user_id="eve",
            metadata={"plan": "by", "grade": 3},
            team_metadata={"unit": "{x}"},
        )
        body = {**chat(), "metadata": {"feature": "search"}}
        self.assertEqual(self.gateway.ask("POST", "/v1/chat/completions", body, owner).status, 200)
        found = {each.split(":")[1]: each.split(":", 2)[2] for each in self.keys("*") if each != "{llm}:all"}
        expected = {
            "user": "ada",
            "team": "red%3A1",
            "organization": "acme",
            "end_user": "eve",
            "both": "red%3A1:fake",
            "key_field": "3",
            "team_field": "%7Bx%7D",
            "field": "search",
        }
        self.assertEqual(found, expected)

    def test_a_model_has_one_name_whatever_the_client_calls_it(self) -> None:
        owner = key(metadata={"plan": "names"})
        bodies = [chat(model) for model in ("fake", "nick", "id-1")]
        bodies += [{**chat("second"), "fallbacks": ["fake"]}, {**chat("second"), "extra_body": {"model": "fake"}}]
        for limit, name, asked in (
            ("fake", "fake", bodies[:3]),
            ("fake", "second", bodies[3:]),
            ("any", "any-%2A", [chat("any-1"), chat("any-2")]),
            ("any", "all%2F%2A", [chat("all/gpt-4o-mini")]),
        ):
            for body in asked:
                with self.subTest(limit=limit, model=body["model"]):
                    self.plain.flushall()
                    answer = self.gateway.ask("POST", "/v1/chat/completions", body, owner)
                    self.assertEqual(answer.status, 200, answer.text)
                    self.assertEqual([each.split(":")[3] for each in self.keys(limit)], [name])

    def test_a_limit_in_shadow_denies_nothing(self) -> None:
        answer = self.gateway.chat(key(metadata={"plan": "shadow"}))
        self.assertEqual(answer.status, 200)
        self.assertIn('"shadow";r=0', answer.headers["ratelimit"])


class Denials(WithGateway):
    def test_a_denial_tells_which_limit_and_when_to_come_back(self) -> None:
        owner = key(metadata={"plan": "requests"})
        answers = [self.gateway.chat(owner) for _ in range(4)]
        self.assertEqual([each.status for each in answers], [200, 200, 200, 429])
        denied = answers[3]
        error = denied.json()["error"]
        self.assertEqual(error["code"], "429")
        self.assertIn("'requests' reached: 3 requests in 1h for each key, of which 0 are left", error["message"])
        self.assertTrue(3500 < int(denied.headers["retry-after"]) <= 3600, denied.headers)
        self.assertTrue(3_500_000 < int(denied.headers["retry-after-ms"]) <= 3_600_000, denied.headers)
        self.assertIn('"requests";q=3;w=3600', denied.headers["ratelimit-policy"])
        for at, answer in enumerate(answers):
            self.assertEqual(answer.headers["x-ratelimit-limit-requests"], "3")
            self.assertEqual(answer.headers["x-ratelimit-remaining-requests"], str(max(0, 2 - at)))
        self.assertRegex(denied.headers["x-ratelimit-reset-requests"], r"^59m\d|^1h0m0s$")

    def test_a_denied_request_costs_nothing_and_reaches_no_model(self) -> None:
        owner = key(metadata={"plan": "tokens"})
        self.assertEqual(self.gateway.chat(owner, words=100, most=100).status, 200)
        before, asked = self.used("all", ALL), len(self.provider.asked)
        for _ in range(3):
            self.assertEqual(self.gateway.chat(owner, most=150).status, 429)
        self.assertEqual((self.used("all", ALL), len(self.provider.asked)), (before, asked))

    def test_a_fallback_of_the_router_takes_over_from_a_model_that_is_denied(self) -> None:
        owner = key(metadata={"plan": "fallback"})
        answers = [self.gateway.chat(owner, words=3) for _ in range(2)]
        self.assertEqual([each.status for each in answers], [200, 200], answers[1].text)
        self.assertEqual([each.headers["x-litellm-model-group"] for each in answers], ["fake", "second"])
        # Each is counted once, and the model that was denied costs nothing.
        self.assertEqual([self.used("model", Window(1, "1h")), self.used("all", ALL)], [1, 26])

    def test_a_request_without_a_maximum_asks_for_no_more_than_the_limit(self) -> None:
        owner = key(metadata={"plan": "tokens"})
        self.assertEqual(self.gateway.chat(owner, most=None, words=3).status, 200)
        self.assertEqual(self.used("tokens", Window(200, "1h")), 13)


class Endings(WithGateway):
    def test_a_request_that_fails_gives_everything_back(self) -> None:
        orders: list[dict[str, Any]] = [{"fail": 500}, {"fail": 400}, {"fail": 500, "stream": True}]
        for order in orders:
            with self.subTest(**order):
                answer = self.gateway.chat(key(metadata={"plan": "requests"}), **order)
                self.assertGreaterEqual(answer.status, 400)
                self.assertEqual([self.used("requests", Window(3, "1h")), self.used("all", ALL)], [0, 0])

    def test_a_request_is_counted_once_however_often_it_is_tried(self) -> None:
        asked = len(self.provider.asked)
        answer = self.gateway.chat(key(metadata={"plan": "requests"}), fail=500, times=2, words=3, id=str(uuid4()))
        self.assertEqual(answer.status, 200, answer.text)
        self.assertEqual(len(self.provider.asked) - asked, 3)
        self.assertEqual([self.used("requests", Window(3, "1h")), self.used("all", ALL)], [1, 13])

    def test_a_stream_that_is_cancelled_counts_what_was_streamed(self) -> None:
        owner = key(metadata={"plan": "usage"})
        order = json.dumps({"words": 500, "pause": 0.02})
        for path, body in {
            "/v1/chat/completions": chat(most=500, words=500, pause=0.02),
            "/v1/messages": {"messages": [{"role": "user", "content": order}], "max_tokens": 500},
            "/v1/responses": {"input": order, "max_output_tokens": 500},
        }.items():
            with self.subTest(path=path):
                self.plain.flushall()
                body = {**body, "model": "fake", "stream": True}
                with self.gateway.sent("POST", path, body, owner) as connection:
                    response = connection.getresponse()
                    while response.readline().count(b"word") == 0:
                        pass
                    for _ in range(20):
                        response.readline()
                output = self.used("output")
                self.assertTrue(3 <= output <= 200, output)
                self.assertGreaterEqual(self.used("input"), 5)

    def test_a_stream_that_breaks_off_counts_what_was_streamed(self) -> None:
        answer = self.gateway.chat(key(metadata={"plan": "usage"}), "second", stream=True, words=50, break_after=9)
        self.assertEqual(answer.text.count("word"), 9, answer.text)
        output = self.used("output")
        self.assertTrue(5 <= output <= 12, output)

    def test_a_stream_is_renewed_while_it_runs_and_its_place_is_free_at_its_end(self) -> None:
        owner = key(metadata={"plan": "places"})
        # Longer than two leases.
        body = chat(stream=True, words=30, pause=0.1)
        with self.gateway.sent("POST", "/v1/chat/completions", body, owner) as connection:
            response = connection.getresponse()
            began = time.monotonic()
            while time.monotonic() - began < 2.2:
                response.readline()
            self.assertEqual(self.gateway.chat(owner).status, 429)
            response.read()
        message = {"model": "fake", "messages": [{"role": "user", "content": "{}"}], "max_tokens": 50}
        for _ in range(3):
            self.assertEqual(self.gateway.chat(owner, stream=True).status, 200)
            self.assertEqual(self.gateway.chat(owner).status, 200)
            self.assertEqual(self.gateway.ask("POST", "/v1/messages", message, owner).status, 200)

    def test_the_place_of_a_request_is_free_when_it_is_answered(self) -> None:
        owner = key(metadata={"plan": "places"})
        asked: dict[str, dict[str, Any]] = {
            "/v1/audio/speech": {"model": "voice", "voice": "alloy", "input": "{}"},
            "/v1/rerank": {"model": "ranks", "query": "{}", "documents": ["a"]},
            "/v1/images/generations": {"model": "pictures", "prompt": "{}"},
            "/v1/embeddings": {"model": "embed", "input": "{}"},
            "/mine/chat/completions": chat("gpt-4o"),
        }
        for path, body in asked.items():
            with self.subTest(path=path):
                answers = [self.gateway.ask("POST", path, body, owner) for _ in range(9)]
                self.assertEqual([each.status for each in answers], [200] * 9)

    def test_a_proxy_that_is_killed_leaves_nothing_behind(self) -> None:
        with Gateway(CONFIG.format(url=self.provider.url, port=PORT)) as gateway:
            owner = key(metadata={"plan": "places"})
            # Its first answer may take longer than a lease.
            self.assertEqual(gateway.chat(owner).status, 200)
            body = chat(stream=True, words=500, pause=0.1)
            with gateway.sent("POST", "/v1/chat/completions", body, owner) as connection:
                connection.getresponse().readline()
                self.assertEqual(self.gateway.chat(owner).status, 429)
                gateway.kill()
        until(lambda: not self.limiter.held(self.key_of("places")), "the end of the lease")
        self.assertEqual(self.gateway.chat(owner).status, 200)


class Starting(unittest.TestCase):
    def test_the_lines_of_the_page_limit_the_calls_of_a_proxy(self) -> None:
        page = PAGE.read_text("utf-8")
        block = re.search(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        request = re.search(r"-d '(.*)'", page)
        headers = re.search(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        assert block is not None and request is not None and headers is not None
        self.assertLessEqual(len(block[1].splitlines()), 10)
        config = block[1].replace("localhost:6379", f"127.0.0.1:{PORT}")
        plain = make("redis", port=PORT, **ADMIN)
        plain.flushall()
        with Provider() as provider, Gateway(config, OPENAI_API_KEY="none", OPENAI_BASE_URL=provider.url) as gateway:
            answer = gateway.ask("POST", "/v1/chat/completions", json.loads(request[1]), MASTER_KEY)
            self.assertEqual(answer.status, 200, answer.text)
            for name, value in (line.split(": ") for line in headers[1].splitlines()):
                self.assertEqual(answer.headers[name], value)
            with ThreadPoolExecutor(8) as pool:
                chats = [pool.submit(gateway.chat, MASTER_KEY, "gpt-4o", None, wait=1) for _ in range(8)]
            self.assertEqual([each.result().status for each in chats], [200] * 8)
            self.assertEqual(gateway.chat(MASTER_KEY, model="gpt-4o", most=10**6).status, 429)

    def test_every_configuration_of_the_page_is_read(self) -> None:
        blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        self.assertEqual(len(blocks), 2)
        for block in blocks:
            read_settings(yaml.safe_load(block)["callback_settings"]["redis_ratelimit"], str)

    def test_a_mistake_in_the_configuration_stops_the_proxy_and_names_the_line(self) -> None:
        config = CONFIG.format(url="http://127.0.0.1:1", port=PORT).replace("tokens: 200/1h", "tokens: 200/m")
        line = next(at for at, text in enumerate(config.splitlines(), 1) if "200/m" in text)
        with Gateway(config, wait=False) as gateway:
            self.assertNotEqual(gateway.process.wait(3 * PATIENCE), 0)
            place = f"config.yaml, line {line}: callback_settings.redis_ratelimit.limits[2].tokens: '200/m' must be"
            self.assertIn(place, gateway.log)


def auth(**fields: Any) -> Any:
    """Returns what LiteLLM knows about a key."""
    return SimpleNamespace(**{"token": "a" * 64, "metadata": {}, "team_metadata": None, **fields})


def data(**fields: Any) -> dict[str, Any]:
    """Returns a request as the hooks of LiteLLM get it."""
    logging = SimpleNamespace(model_call_details={"first_api_call_start_time": 1})
    return {"litellm_call_id": str(uuid4()), "litellm_logging_obj": logging, **chat(), **fields}


def answered(**usage: int) -> Any:
    """Returns an answer of a model."""
    return SimpleNamespace(usage=usage, _hidden_params={"response_cost": 0.001})


class Hooks(unittest.IsolatedAsyncioTestCase):
    """The hooks of LiteLLM, called one by one."""

    def setUp(self) -> None:
        self.plain = make("redis", port=PORT, **ADMIN)
        self.plain.flushall()
        self.plain.config_resetstat()

    async def asyncSetUp(self) -> None:
        # In debug mode the loop reports slow steps, such as the import of a tokenizer.
        asyncio.get_running_loop().set_debug(False)

    def limiter(self, *limits: Any, port: int = PORT, **more: Any) -> litellm.RateLimiter:
        section = {"url": f"redis://127.0.0.1:{port}", "deadline": 30, "limits": list(limits), **more}
        made = litellm.RateLimiter(read_settings(section, str))
        self.addAsyncCleanup(made.limiter.aclose)
        return made

    async def begin(self, limiter: litellm.RateLimiter, request: dict[str, Any], **owner: Any) -> None:
        await limiter.async_pre_call_hook(auth(**owner), None, request, "acompletion")

    async def begun(self, *limits: Any, **more: Any) -> tuple[litellm.RateLimiter, dict[str, Any]]:
        """Returns a limiter with these limits, or one of tokens, and a request that it has let through."""
        limiter, request = self.limiter(*limits or [{"tokens": "1000/h"}], **more), data()
        await self.begin(limiter, request)
        return limiter, request

    async def end(self, limiter: Any, request: dict[str, Any], prompt: int = 3, answer: int = 4) -> None:
        usage = answered(prompt_tokens=prompt, completion_tokens=answer)
        await limiter.async_post_call_success_hook(request, auth(), usage)

    async def used(self, limiter: litellm.RateLimiter, key: str, window: Window) -> int:
        """Waits until nothing is reserved or being settled, and returns what is counted."""
        end = time.monotonic() + PATIENCE
        while limiter._tasks or await limiter.limiter.held(key):
            self.assertLess(time.monotonic(), end)
            await asyncio.sleep(0.01)
        return window.limit - (await limiter.limiter.window_ro(key, window)).remaining

    async def test_a_request_takes_one_round_trip_before_and_one_after_for_64_limits(self) -> None:
        limiter = self.limiter(*({"name": f"limit-{at}", "tokens": "1000/h"} for at in range(64)))
        await asyncio.create_task(self.one_request(limiter, data()))
        self.plain.config_resetstat()
        await asyncio.create_task(self.one_request(limiter, data()))
        reads = self.plain.info("stats")["total_reads_processed"]
        told = self.plain.info("commandstats")
        own = {name: told[f"cmdstat_{name}"]["calls"] for name in ("rl.all", "multi", "rl.apply", "exec")}
        self.assertEqual(own, {"rl.all": 1, "multi": 1, "rl.apply": 64, "exec": 1})
        # INFO is one more.
        self.assertEqual(reads, 2 + 1)
        self.assertEqual(await self.used(limiter, "{llm}:limit-63", Window(1000, "1h")), 6)

    async def one_request(self, limiter: litellm.RateLimiter, request: dict[str, Any]) -> None:
        await self.begin(limiter, request)
        await self.end(limiter, request, 1, 2)

    async def test_the_limits_of_a_request_lie_in_one_slot_of_a_cluster(self) -> None:
        limits = {"tokens": "1000/h", "per": "user"}, {"tokens": "1000/h"}, {"calls": 5, "per": "key"}
        url = f"redis+cluster://127.0.0.1:{CLUSTER_PORT}"
        tags_of: list[dict[str, Any]] = [{}, {"tag": "organization"}]
        for tag in tags_of:
            limiter = self.limiter(*limits, url=url, prefix=f"litellm-{uuid4()}", **tag)
            for organization in "acme", "umbrella":
                request = data()
                await self.begin(limiter, request, user_id="ada", org_id=organization)
                await limiter.async_post_call_success_hook(request, auth(), answered(total_tokens=7))
            tags = ["acme", "umbrella"] if tag else [None]
            for each in tags:
                name = f"{{{limiter.settings.prefix}{':' + each if each else ''}}}:user-tokens-1h:ada"
                found = await self.used(limiter, name, Window(1000, "1h"))
                self.assertEqual(found, 14 // len(tags), name)

    async def test_while_redis_is_away_requests_are_denied_or_allowed_as_the_configuration_says(self) -> None:
        with Server() as server:
            server.kill()
            deny = self.limiter({"tokens": "1000/h"}, port=server.port, deadline=0.5)
            with self.assertRaises(Refused) as raised:
                await self.begin(deny, data())
            self.assertEqual((raised.exception.status_code, raised.exception.headers), (503, {"retry-after": "1"}))
            allow = self.limiter({"tokens": "1000/h"}, port=server.port, deadline=0.5, unreachable="allow")
            request = data()
            await self.begin(allow, request)
            self.assertEqual(await allow.async_post_call_response_headers_hook(request, auth(), None), {})
            server.start()
            until(lambda: server.ask("PING") == "PONG", "the server")
            await asyncio.sleep(0.3)
            # What it used is counted, now that the server is back.
            await self.end(allow, request, 9, 1)
            self.assertEqual(await self.used(allow, "{llm}:tokens-1h", Window(1000, "1h")), 10)

    @unittest.skipUnless(find_spec("redis_ratelimit._engine"), "the engine is not built")
    async def test_while_redis_is_away_the_process_may_keep_a_share(self) -> None:
        with Server() as server:
            server.kill()
            share = self.limiter({"requests": "8/h"}, port=server.port, deadline=0.5, unreachable={"share": "1/4"})
            for _ in range(2):
                await self.one_request(share, data())
            with self.assertRaises(Refused) as raised:
                await self.begin(share, data())
            self.assertEqual(raised.exception.status_code, 429)
            self.assertTrue(3500 < int(raised.exception.headers["retry-after"]) <= 3600)

    async def test_a_request_that_ended_while_redis_was_away_is_settled_when_it_is_back(self) -> None:
        for has_failed, lease in (False, "1h"), (True, "1h"), (False, "1s"):
            with Server("--appendonly", "yes", "--appendfsync", "always") as server:
                limiter, request = await self.begun(port=server.port, lease=lease, count_lapsed=lease == "1h")
                server.kill()
                failure = RuntimeError("the provider failed")
                fail = limiter.async_post_call_failure_hook
                end = fail(request, failure, auth()) if has_failed else self.end(limiter, request)
                # The answer does not wait for it.
                await asyncio.wait_for(end, 20)
                # Nothing could be sent, so what is no longer reserved is counted all the same.
                await asyncio.sleep(1.1 if lease == "1s" else 0)
                server.start()
                found = await self.used(limiter, "{llm}:tokens-1h", Window(1000, "1h"))
                self.assertEqual(found, 0 if has_failed else 7)

    async def test_what_a_request_used_is_counted_when_redis_has_time(self) -> None:
        limiter, request = await self.begun()
        settle, busy = Reservation.apply, [Busy("a test")]

        async def busy_once(reservation: Any, *cost: Any) -> Any:
            if busy:
                raise busy.pop()
            return await settle(reservation, *cost)

        with mock.patch.object(Reservation, "apply", busy_once):
            await self.end(limiter, request)
            self.assertEqual(await self.used(limiter, "{llm}:tokens-1h", Window(1000, "1h")), 7)
        self.assertEqual(busy, [])

    async def test_a_request_that_ended_while_the_module_was_replaced_is_counted(self) -> None:
        with Server("--enable-module-command", "yes") as server:
            limiter, request = await self.begun(port=server.port)
            self.assertEqual(server.ask("MODULE", "UNLOAD", "ratelimit"), "OK")
            await asyncio.wait_for(self.end(limiter, request), 20)
            self.assertEqual(server.ask("MODULE", "LOAD", MODULE), "OK")
            self.assertEqual(await self.used(limiter, "{llm}:tokens-1h", Window(1000, "1h")), 7)

    async def test_a_settlement_whose_reply_was_lost_counts_once(self) -> None:
        with Proxy(PORT) as way:
            limiter, request = await self.begun(port=way.port, deadline=0.5)
            way.cut = 0
            await self.end(limiter, request)
            until(lambda: self.plain.info("commandstats").get("cmdstat_rl.apply"), "the first try")
            way.cut = None
            other = self.limiter({"tokens": "1000/h"})
            while limiter._tasks:
                await asyncio.sleep(0.01)
            self.assertEqual(await self.used(other, "{llm}:tokens-1h", Window(1000, "1h")), 7)
            self.assertGreaterEqual(self.plain.info("commandstats")["cmdstat_rl.apply"]["calls"], 2)
            self.assertNotIn("cmdstat_rl.window", self.plain.info("commandstats"))

    async def test_what_a_proxy_held_that_is_cut_off_is_free_or_counts_as_the_configuration_says(self) -> None:
        limits: list[dict[str, Any]] = [{"tokens": "1000/1h"}, {"calls": 5}]
        other = self.limiter(*limits)
        for count_lapsed in False, True:
            with self.subTest(count_lapsed=count_lapsed), Proxy(PORT) as way:
                self.plain.flushall()
                limiter = self.limiter(*limits, port=way.port, lease="1s", deadline=0.5, count_lapsed=count_lapsed)
                await self.begin(limiter, data(max_tokens=100))
                (held,) = await other.limiter.held("{llm}:tokens-1h")
                # For the server this is the same as if the proxy were killed.
                way.cut = 0
                until(lambda: not self.plain.execute_command("RL.HELD", "{llm}:calls"), "the end of the lease")
                reply = await other.limiter.window_ro("{llm}:tokens-1h", Window(1000, "1h"))
                self.assertEqual(reply.remaining, 1000 - held.quantity * count_lapsed)
                self.assertGreater(held.quantity, 100)

    async def test_a_server_that_lost_the_module_is_named_with_what_to_do(self) -> None:
        with Server(module=False) as server:
            limiter = self.limiter({"tokens": "1000/h"}, port=server.port)
            with self.assertLogs("LiteLLM Proxy", "ERROR") as logged, self.assertRaises(Refused) as raised:
                await self.begin(limiter, data())
        self.assertEqual(raised.exception.status_code, 500)
        self.assertRegex(
            raised.exception.detail, "no redis-ratelimit. Load the module .* loadmodule .*redis_ratelimit.url"
        )
        self.assertRegex(logged.output[0], f"localhost:{server.port}|127.0.0.1:{server.port}")

    async def test_what_is_not_reserved_any_longer_is_counted_all_the_same(self) -> None:
        limiter, request = await self.begun({"tokens": "1000/h"}, {"calls": 5})
        for name in "{llm}:tokens-1h", "{llm}:calls":
            (held,) = await limiter.limiter.held(name)
            await limiter.limiter.release(name, held.id)
        await self.end(limiter, request)
        self.assertEqual(await self.used(limiter, "{llm}:tokens-1h", Window(1000, "1h")), 7)
        self.assertEqual(self.plain.zcard("{llm}:calls"), 0)

    async def test_a_stream_of_which_nothing_is_heard_counts_its_input_and_what_was_streamed(self) -> None:
        limiter = self.limiter({"input_tokens": "1000/h"}, {"output_tokens": "1000/h"}, {"requests": "9/h"})
        for chunks, is_sent, counts in ((0, True, [1, 0, 1]), (3, True, [1, 3, 2]), (0, False, [0, 0, 2])):
            with self.subTest(chunks=chunks, is_sent=is_sent), mock.patch.object(callback, "GRACE_SECONDS", 0.05):
                request = data()
                if not is_sent:
                    request["litellm_logging_obj"].model_call_details.clear()
                await asyncio.create_task(self.cancelled(limiter, request, chunks))
                await asyncio.sleep(0.1)
                found = [
                    await self.used(limiter, f"{{llm}}:{name}-1h", window)
                    for name, window in (
                        ("input_tokens", Window(1000, "1h")),
                        ("output_tokens", Window(1000, "1h")),
                        ("requests", Window(9, "1h")),
                    )
                ]
                self.assertEqual([min(found[0], 1), *found[1:]], counts)
                self.plain.delete("{llm}:input_tokens-1h", "{llm}:output_tokens-1h")

    async def cancelled(self, limiter: litellm.RateLimiter, request: dict[str, Any], chunks: int) -> None:
        async def stream() -> Any:
            while True:
                yield {"choices": [{"delta": {"content": " word"}}]}

        await self.begin(limiter, request)
        iterator = limiter.async_post_call_streaming_iterator_hook(auth(), stream(), request)
        for _ in range(chunks):
            await iterator.__anext__()
        await iterator.aclose()

    async def test_a_request_that_is_asked_for_again_is_reserved_once(self) -> None:
        limiter, request = await self.begun({"requests": "9/h"})
        # LiteLLM tries a fallback, as a hook that comes later denied the model.
        await self.begin(limiter, {**request, "model": "second"})
        self.assertEqual(len(await limiter.limiter.held("{llm}:requests-1h")), 1)
        await limiter.async_post_call_failure_hook(request, OSError(), auth())
        self.assertEqual(await self.used(limiter, "{llm}:requests-1h", Window(9, "1h")), 0)

    async def test_two_requests_of_one_id_do_not_disturb_each_other(self) -> None:
        # Clients may choose the id.
        limiter = self.limiter({"tokens": "1000/h"})
        request = data(litellm_call_id="mine")
        await asyncio.gather(*(asyncio.create_task(self.one_request(limiter, dict(request))) for _ in range(5)))
        self.assertEqual(await self.used(limiter, "{llm}:tokens-1h", Window(1000, "1h")), 15)

    async def test_calls_of_other_models_for_a_request_settle_nothing(self) -> None:
        limiter = self.limiter({"tokens": "1000/h"})
        request, payload = data(), {"prompt_tokens": 500, "completion_tokens": 0, "total_tokens": 500}
        await self.begin(limiter, request)
        await limiter.async_log_success_event({**data(), "standard_logging_object": payload}, None, None, None)
        self.assertEqual(len(await limiter.limiter.held("{llm}:tokens-1h")), 1)
        await self.end(limiter, request)
        await limiter.async_log_success_event({**request, "standard_logging_object": payload}, None, None, None)
        self.assertEqual(await self.used(limiter, "{llm}:tokens-1h", Window(1000, "1h")), 7)

    async def test_what_asks_no_model_is_not_limited(self) -> None:
        limiter = self.limiter({"requests": "0/h"})
        for call_type in "aget_responses", "alist_batches", "afile_content", "call_mcp_tool", "avector_store_search":
            await limiter.async_pre_call_hook(auth(), None, data(), call_type)
        await limiter.async_pre_call_hook(None, None, data(), "acompletion")
        with self.assertRaises(Refused):
            await self.begin(limiter, data())

    async def test_the_estimate_has_the_whole_input_and_the_maximum_of_the_answer(self) -> None:
        limiter = self.limiter({"input_tokens": "100000/h"}, {"output_tokens": "100000/h"}, max_tokens=77)

        async def estimate(call_type: str, **body: Any) -> list[int]:
            request = {"litellm_call_id": str(uuid4()), "model": "gpt-4o", **body}
            return [
                each.quantity
                for each in (await limiter._estimated(limits, request, call_type, ["gpt-4o"], auth())).asked
            ]

        limits = limiter.settings.asked(lambda _: [])
        long = "word " * 10_000
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 99_999}}
        message = {"role": "user", "content": "hello there"}
        few = (await estimate("acompletion", messages=[message]))[0]
        self.assertTrue(5 <= few <= 20, few)
        cases: list[tuple[str, dict[str, Any], tuple[int, int], int]] = [
            ("acompletion", {"messages": [message]}, (few, few), 77),
            ("acompletion", {"messages": [message], "max_tokens": 5, "n": 3}, (few, few), 15),
            ("acompletion", {"messages": [message], "max_completion_tokens": 9}, (few, few), 9),
            ("acompletion", {"messages": [{"role": "user", "content": [picture]}]}, (1, 2000), 77),
            (
                "acompletion",
                {
                    "messages": [message],
                    "tools": [
                        {"type": "function", "function": {"name": "f", "description": long[:500], "parameters": {}}}
                    ],
                },
                (few + 90, few + 300),
                77,
            ),
            ("atext_completion", {"prompt": long}, (9_900, 10_100), 77),
            ("aembedding", {"input": [long, long]}, (19_800, 20_200), 1),
            ("aembedding", {"input": [[1, 2, 3], [4, 5]]}, (5, 5), 1),
            ("aresponses", {"input": long, "instructions": "be kind", "max_output_tokens": 3}, (9_900, 10_200), 3),
            ("anthropic_messages", {"system": long, "messages": [message], "max_tokens": 3}, (9_900, 10_200), 3),
            (
                "agenerate_content",
                {"contents": [{"parts": [{"text": long}]}], "generationConfig": {"maxOutputTokens": 4}},
                (9_900, 10_200),
                4,
            ),
            ("arerank", {"query": "which", "documents": [long]}, (9_900, 10_200), 1),
            (
                "agenerate_content",
                {"contents": [], "config": {"candidateCount": 3, "maxOutputTokens": "4"}},
                (1, 1),
                12,
            ),
            ("acompletion", {"messages": [message], "max_tokens": 5, "extra_body": {"max_tokens": 9.0}}, (few, few), 9),
            ("acompletion", {"messages": [message], "max_tokens": True, "n": "many"}, (few, few), 77),
        ]
        for call_type, body, (least, most), output in cases:
            with self.subTest(call_type=call_type, keys=[*body]):
                found = await estimate(call_type, **body)
                self.assertTrue(least <= found[0] <= most, found)
                self.assertEqual(found[1], output)

    async def test_the_answers_of_pass_through_endpoints_are_read_in_the_form_of_any_provider(self) -> None:
        stream = [
            "event: message_start",
            'data: {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}',
            'data: {"type": "message_delta", "usage": {"output_tokens": 4}}',
        ]
        google = {"promptTokenCount": 3, "candidatesTokenCount": 1, "thoughtsTokenCount": 3, "totalTokenCount": 7}
        answers: list[tuple[Any, tuple[int, int, int]]] = [
            ({"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 9}}, (3, 4, 9)),
            ({"response": f"cannot parse chunks to standard response object. Chunks={stream}"}, (3, 4, 7)),
            ([{"usageMetadata": {"promptTokenCount": 3}}, {"usageMetadata": google}], (3, 4, 7)),
            ({"usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}}, (3, 4, 7)),
            # Without a usage, the input and what was streamed count.
            ({"response": 'Chunks=[\'data: {"delta": "one two"}\']'}, (3, 2, 5)),
            ({"answer": "yes"}, (3, 0, 3)),
        ]
        body = {"inputs": ["one", "two"], "litellm_logging_obj": data()["litellm_logging_obj"]}
        limiter = self.limiter({"tokens": "1000/h"})
        for answer, expected in answers:
            request = await limiter._estimated(
                limiter.settings.asked(lambda _: []), dict(body), "pass_through_endpoint", [], auth()
            )
            used = request.passed_usage(answer)
            found = tuple(used.count(unit) for unit in ("input_tokens", "output_tokens", "tokens"))
            self.assertEqual(found, expected, answer)

    def test_the_price_of_a_request_is_the_highest_that_litellm_knows(self) -> None:
        minute = io.BytesIO()
        with wave.open(minute, "wb") as file:
            file.setparams((1, 1, 8000, 0, "NONE", ""))
            file.writeframes(bytes(60 * 8000))
        minute.seek(0)
        spoken = {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}]}]}
        cases: list[tuple[str, str, dict[str, Any], float]] = [
            ("openai/gpt-5", "acompletion", {}, 0.01125),
            ("openai/gpt-5", "acompletion", {"service_tier": "flex"}, 0.005625),
            (
                "openai/gpt-5",
                "aresponses",
                {"service_tier": "flex", "extra_body": {"service_tier": "priority"}},
                0.0225,
            ),
            ("openai/ft:gpt-4o-2024-08-06:org::id", "acompletion", {}, 0.01875),
            # What is written into the cache for an hour, tokens of reasoning, and those of audio.
            ("anthropic/claude-sonnet-4-5", "anthropic_messages", {}, 0.021),
            ("dashscope/qwen-plus-2025-04-28", "acompletion", {}, 0.0044),
            ("gemini/gemini-2.5-flash", "acompletion", {}, 0.0028),
            ("gemini/gemini-2.5-flash", "acompletion", spoken, 0.0035),
            ("azure/dall-e-3", "image_generation", {"n": "2", "quality": "hd", "size": "1024x1024"}, 0.1759999),
            # The provider chooses the size.
            ("openai/gpt-image-1", "image_generation", {"n": 2, "size": "auto"}, 0.505),
            ("openai/whisper-1", "transcription", {"file": minute}, 0.006),
            ("openai/sora-2", "avideo_generation", {"seconds": "8"}, 0.8),
            ("openai/unknown", "acompletion", {}, 0),
        ]
        for model, call_type, body, expected in cases:
            with self.subTest(model=model, **body):
                (deployment,) = costs.deployments(model, None)
                self.assertAlmostEqual(costs.cost(deployment, call_type, body, 1000, 1000), expected, 6)

    def test_the_server_is_checked_when_the_proxy_starts(self) -> None:
        def check(port: int, limit: str) -> None:
            section = {"url": f"redis://127.0.0.1:{port}", "limits": [{"tokens": limit}]}
            proxy._check_server(read_settings(section, str), lambda path: "/".join(map(str, path)))

        self.plain.config_set("ratelimit.policies", "free WINDOW 5 60")
        self.addCleanup(self.plain.config_set, "ratelimit.policies", "")
        check(PORT, "@free")
        with self.assertRaisesRegex(litellm.ConfigurationError, "limits/0/tokens: the server has no policy '@gold'"):
            check(PORT, "@gold")
        with Server(module=False) as server:
            with self.assertRaisesRegex(litellm.ConfigurationError, "url: .* has no redis-ratelimit.* Load the module"):
                check(server.port, "5/min")
            server.kill()
            with self.assertLogs("LiteLLM Proxy", "WARNING"):
                check(server.port, "5/min")

    def test_a_key_that_is_no_hash_is_hashed(self) -> None:
        for owner in auth(token="secret"), auth(token=None, api_key="secret"):
            self.assertRegex(requests.values("key", owner, {}, [])[0], "^[0-9a-f]{64}$")
        self.assertEqual(requests.values("key", auth(token=None, api_key=None), {}, []), [])

    def test_fields_are_those_of_the_operator_before_those_of_litellm(self) -> None:
        owner = auth(metadata={"plan": True, "list": []}, tpm_limit=5, team_metadata={"rpm_limit": 1}, team_rpm_limit=2)
        found = {
            name: requests.values(name, owner, {"litellm_metadata": {"job": "x"}}, [])
            for name in ("key.plan", "key.list", "key.tpm_limit", "team.rpm_limit", "user.rpm_limit", "metadata.job")
        }
        expected = {"key.plan": ["true"], "key.list": [], "key.tpm_limit": ["5"], "team.rpm_limit": ["1"]}
        self.assertEqual(found, {**expected, "user.rpm_limit": [], "metadata.job": ["x"]})
