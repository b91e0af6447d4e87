"""A provider of language models whose answers a test chooses, and the proxy of LiteLLM in front of it."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .servers import free_port

SOURCE = Path(__file__).parents[1] / "src"
#: The longest wait, in seconds, for something that takes some seconds on an idle machine.
PATIENCE = 180
#: LiteLLM does not start without one.
MASTER_KEY = "sk-" + "0123456789abcdef" * 3
#: Custom authentication: a key has the fields that LiteLLM knows about its owner.
AUTH = """
import base64, json
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    return UserAPIKeyAuth(api_key="sk-" + api_key, **json.loads(base64.urlsafe_b64decode(api_key)))
"""


def _text(body: dict[str, Any]) -> str:
    """Returns the last text of a request."""
    found: Any = body.get("messages") or body.get("input") or body.get("prompt") or body.get("query") or ""
    while not isinstance(found, str):
        found = found[-1] if isinstance(found, list) else found.get("content") or found.get("text")
    return found


class Chat:
    """An answer of /chat/completions."""

    def __init__(self, body: dict[str, Any], words: int, prompt: int) -> None:
        self.words = words
        self._usage = {"prompt_tokens": prompt, "completion_tokens": self.words, "total_tokens": prompt + self.words}
        self._head = {"id": "c", "created": int(time.time()), "model": body["model"]}
        if "service_tier" in body:
            self._head["service_tier"] = body["service_tier"]
        self._tells_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._number = 0

    def whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": "word " * self.words}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage}

    def _chunk(self, choices: list[Any], **more: Any) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}

    def begin(self) -> list[Any]:
        return []

    def word(self) -> dict[str, Any]:
        self._number += 1
        # LiteLLM ends a stream that repeats itself.
        delta = {"role": "assistant", "content": "word " if self._number % 2 else "words "}
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])

    def end(self) -> list[Any]:
        last = self._chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        return [last, self._chunk([], usage=self._usage)] if self._tells_usage else [last]


class Responses:
    """An answer of /responses."""

    def __init__(self, body: dict[str, Any], words: int, prompt: int) -> None:
        self.words = words
        self._usage = {
            "input_tokens": prompt,
            "output_tokens": self.words,
            "total_tokens": prompt + self.words,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        self._model = body["model"]
        self._number = -1

    def _response(self, status: str, text: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {"type": "message", "id": "m", "status": status, "role": "assistant", "content": [part]}
        return {
            "id": "r",
            "object": "response",
            "created_at": int(time.time()),
            "model": self._model,
            "status": status,
            "output": [message] if text else [],
            "usage": self._usage if text else None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": 1,
            "top_p": 1,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
        }

    def whole(self) -> dict[str, Any]:
        return self._response("completed", "word " * self.words)

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number, **more}

    def begin(self) -> list[Any]:
        item = {"type": "message", "id": "m", "status": "in_progress", "role": "assistant", "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        return [
            self._event("created", response=self._response("in_progress", "")),
            self._event("output_item.added", output_index=0, item=item),
            self._event("content_part.added", item_id="m", output_index=0, content_index=0, part=part),
        ]

    def word(self) -> dict[str, Any]:
        return self._event("output_text.delta", item_id="m", output_index=0, content_index=0, delta="word ")

    def end(self) -> list[Any]:
        whole = self.whole()
        text = "word " * self.words
        return [
            self._event("output_text.done", item_id="m", output_index=0, content_index=0, text=text),
            self._event("output_item.done", output_index=0, item=whole["output"][0]),
            self._event("completed", response=whole),
        ]


class Provider:
    """A server with the API of OpenAI. The text of a message is JSON and says what to answer: the number of words, the pause
    before each, a status to fail with, and how often to fail."""

    def __init__(self) -> None:
        provider = self
        #: The bodies of all requests.
        self.asked: list[Any] = []
        #: The tokens of the prompt and the words that were sent, by the id of a call.
        self.bills: dict[str, list[int]] = {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not self.path.endswith("/embeddings"):
                    provider.asked.append(body)
                try:
                    provider.answer(self, body)
                except OSError:
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def prompt(self, body: dict[str, Any], order: dict[str, Any]) -> int:
        """Returns how many tokens a prompt has."""
        return int(order.get("prompt", 10))

    def answer(self, handler: Any, body: dict[str, Any]) -> None:
        if handler.path.endswith("/embeddings"):
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            data = [{"object": "embedding", "index": at, "embedding": [0.1]} for at in range(len(texts))]
            usage = {"prompt_tokens": 7, "total_tokens": 7}
            self._send(handler, 200, {"object": "list", "model": body["model"], "data": data, "usage": usage})
            return
        text = _text(body)
        try:
            order = json.loads(text)
        except ValueError:
            order = {}
        tries = len([each for each in self.asked if _text(each) == text])
        if order.get("fail") and tries <= order.get("times", 99):
            self._send(handler, order["fail"], {"error": {"message": "as you wish", "type": "e", "code": "e"}})
            return
        prompt, words = self.prompt(body, order), order.get("words", 2)
        time.sleep(order.get("wait", 0))
        if handler.path.endswith("/images/generations"):
            data = [{"url": "http://localhost/image"}] * int(body.get("n") or 1)
            self._send(handler, 200, {"created": int(time.time()), "data": data})
            return
        if handler.path.endswith("/audio/speech"):
            self._send(handler, 200, "speech", "audio/mpeg")
            return
        if handler.path.endswith("/rerank"):
            results = [{"index": at, "relevance_score": 0.5} for at in range(len(body["documents"]))]
            searches = -(-len(results) // 100)
            self._send(
                handler, 200, {"id": "r", "results": results, "meta": {"billed_units": {"search_units": searches}}}
            )
            return
        made = (Responses if handler.path.endswith("/responses") else Chat)(body, words, prompt)
        bill = self.bills.setdefault(order.get("id", ""), [0, 0])
        bill[0] += prompt
        if not body.get("stream"):
            time.sleep(order.get("pause", 0) * words)
            self._send(handler, 200, made.whole())
            bill[1] += words
            return
        self._begin_stream(handler)

        def send(events: Any) -> None:
            handler.wfile.write(b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events))

        send(made.begin())
        for at in range(words):
            time.sleep(order.get("pause", 0))
            if order.get("break_after") == at:
                # The connection ends in the middle of the answer.
                return
            send([made.word()])
            bill[1] += 1
        send(made.end())
        handler.wfile.write(b"data: [DONE]\n\n")

    def _begin_stream(self, handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True

    def _send(self, handler: Any, status: int, body: Any, kind: str = "application/json") -> None:
        text = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.shutdown()


class Answer:
    """An answer of the proxy."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode()

    def json(self) -> Any:
        return json.loads(self.text)


def key(**fields: Any) -> str:
    """Returns a key with these fields."""
    return base64.urlsafe_b64encode(json.dumps(fields, sort_keys=True).encode()).decode()


class Gateway:
    """LiteLLM's proxy with a configuration, in a process of its own."""

    def __init__(self, config: str, *, wait: bool = True, **environment: str) -> None:
        self._environment = environment
        self.folder = Path(tempfile.mkdtemp(prefix="litellm-"))
        self.config = self.folder / "config.yaml"
        self.config.write_text(config)
        (self.folder / "own_auth.py").write_text(AUTH)
        self.start(wait=wait)

    def start(self, *, wait: bool = True) -> None:
        self.port = free_port()
        program = Path(sys.executable).parent / "litellm"
        environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "LITELLM_MASTER_KEY": MASTER_KEY,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "NO_PROXY": "*",
            **self._environment,
        }
        command = [str(program), "--config", str(self.config), "--port", str(self.port), "--host", "127.0.0.1"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            self._wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.ask("GET", "/health/liveliness").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"the proxy did not start:\n{self.log[-4000:]}")

    @contextmanager
    def sent(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """Sends a request. The connection is closed when the block ends."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            yield connection
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None, key: str = "") -> Answer:
        with self.sent(method, path, body, key) as connection:
            return Answer(connection.getresponse())

    def chat(
        self, owner: str, model: str = "fake", most: int | None = 50, stream: bool = False, **order: Any
    ) -> Answer:
        """Calls a model. `order` says what the provider answers."""
        return self.ask("POST", "/v1/chat/completions", chat(model, most, stream, **order), owner)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def chat(model: str = "fake", most: int | None = 50, stream: bool = False, **order: Any) -> dict[str, Any]:
    """Returns the body of a call of a model."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": json.dumps(order)}]}
    if most is not None:
        body["max_tokens"] = most
    if stream:
        body["stream"] = True
    return body
