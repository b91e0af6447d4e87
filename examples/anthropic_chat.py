"""Asks a model through the SDK of Anthropic, within limits that all programs share, in dollars too. Each request reserves
what it may cost at most, once however often the SDK retries it, and is settled with the usage that the provider reports.

    pip install anthropic redis ./clients/python
    python3 examples/anthropic_chat.py "How long is it until noon?"

ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL, MODEL (claude-sonnet-4-6) and REDIS_URL (redis://127.0.0.1:6379) may be set.
"""

import os
import sys
import time

import anthropic
import redis
from redis_ratelimit import Clause, Denied, Limiter, Window, semaphore

MODEL, ANSWER_TOKENS = os.environ.get("MODEL", "claude-sonnet-4-6"), 1000
TOOLS = [{"name": "clock", "description": "The time of day", "input_schema": {"type": "object"}}]
client = anthropic.Anthropic()
server = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
limiter = Limiter(server, unreachable="raise", deadline=5)  # asks no model while Redis does not answer


def cost(input_tokens, output_tokens):  # 3 and 15 dollars for a million tokens, so in millionths for each
    return {"tokens": input_tokens + output_tokens, "dollars": 3 * input_tokens + 15 * output_tokens}


def ask(messages):
    most, used = cost(len(str([messages, TOOLS]).encode()) // 2, ANSWER_TOKENS), None
    limits = [
        Clause.acquire("{anthropic}:requests", Window.per("60/min")),
        Clause.acquire("{anthropic}:tokens", Window.per("10000/min"), most["tokens"], name="tokens"),
        Clause.acquire("{anthropic}:dollars", Window(5_000_000, "1d", fixed=True), most["dollars"], name="dollars"),
        Clause.acquire("{anthropic}:calls", semaphore(4)),
    ]
    with limiter.acquire(limits) as reservation:  # an exception gives everything back
        try:
            options = {"model": MODEL, "max_tokens": ANSWER_TOKENS, "messages": messages, "tools": TOOLS}
            with client.messages.stream(**options) as stream:
                for text in stream.text_stream:
                    print(text, end="", flush=True)
                    so_far = stream.current_message_snapshot
                    used = cost(so_far.usage.input_tokens, len(str(so_far.content)) // 2)
                answer = stream.get_final_message()
                used = cost(answer.usage.input_tokens, answer.usage.output_tokens)
        finally:
            # Also if the stream breaks off, because what was streamed costs.
            if used and not reservation.apply(used):
                print("not counted: the lease had ended", file=sys.stderr)
    messages.append({"role": "assistant", "content": answer.content})
    return [block.id for block in answer.content if block.type == "tool_use"]


messages = [{"role": "user", "content": sys.argv[1]}]
try:
    while calls := ask(messages):
        results = [{"type": "tool_result", "tool_use_id": id, "content": time.ctime()} for id in calls]
        messages.append({"role": "user", "content": results})
except Denied as denied:
    wait = denied.reply.retry_after  # None if the request can never be allowed
    sys.exit(f"the limits are used up, try again after {wait}" if wait else "the prompt is too long for the limit")
