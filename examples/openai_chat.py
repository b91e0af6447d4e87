"""Asks a model through the SDK of OpenAI, within limits that all programs share. Each request reserves what it may cost at
most, once however often the SDK retries it, and is settled with the usage that the provider reports.

    pip install openai redis ./clients/python
    python3 examples/openai_chat.py "How long is it until noon?"

OPENAI_API_KEY, OPENAI_BASE_URL, MODEL (gpt-5-mini) and REDIS_URL (redis://127.0.0.1:6379) may be set.
"""

import os
import sys
import time

import openai
import redis
from redis_ratelimit import Clause, Denied, Limiter, Window, semaphore

MODEL, ANSWER_TOKENS = os.environ.get("MODEL", "gpt-5-mini"), 1000
OPTIONS = {"max_completion_tokens": ANSWER_TOKENS, "stream_options": {"include_usage": True}}
NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "clock", "strict": True, "parameters": NOTHING}}]
client = openai.OpenAI()
server = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
limiter = Limiter(server, unreachable="raise", deadline=5)  # asks no model while Redis does not answer


def estimate(it):
    return len(str(it).encode()) // 2  # hardly any text has more tokens than this


def ask(messages):
    prompt, used = estimate([messages, TOOLS]), 0
    limits = [
        Clause.acquire("{openai}:requests", Window.per("60/min")),
        Clause.acquire("{openai}:tokens", Window.per("10000/min"), prompt + ANSWER_TOKENS, name="tokens"),
        Clause.acquire("{openai}:calls", semaphore(4)),
    ]
    with limiter.acquire(limits) as reservation:  # an exception gives everything back
        try:
            with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS, **OPTIONS) as stream:
                for event in stream:
                    if event.type == "content.delta":
                        used = prompt + estimate(event.snapshot)
                        print(event.delta, end="", flush=True)
                answer = stream.get_final_completion()
                used = answer.usage.total_tokens
        finally:
            # Also if the stream breaks off, because what was streamed costs.
            if used and not reservation.apply({"tokens": used}):
                print("not counted: the lease had ended", file=sys.stderr)
    return answer.choices[0].message


messages = [{"role": "user", "content": sys.argv[1]}]
try:
    while (message := ask(messages)).tool_calls:
        results = [{"role": "tool", "tool_call_id": call.id, "content": time.ctime()} for call in message.tool_calls]
        messages += [message, *results]
except Denied as denied:
    wait = denied.reply.retry_after  # None if the request can never be allowed
    sys.exit(f"the limits are used up, try again after {wait}" if wait else "the prompt is too long for the limit")
