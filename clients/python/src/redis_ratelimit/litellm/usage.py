"""What answers report of their usage, in the form of any provider, and the texts of streams."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

from .gateway import Usage, microdollars


def field(value: Any, *names: str) -> Any:
    """Returns the first of these fields that a mapping or an object has."""
    for name in names:
        found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if found is not None:
            return found
    return None


def tokens(usage: Any) -> Usage | None:
    """Returns the tokens that a provider counted; None if it reports none."""
    prompt = field(usage, "prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens")
    output = field(usage, "completion_tokens", "output_tokens", "candidatesTokenCount", "outputTokens")
    total = field(usage, "total_tokens", "totalTokenCount", "totalTokens")
    if not any(isinstance(each, int) for each in (prompt, output, total)):
        return None
    output = int(output or 0) + int(field(usage, "thoughtsTokenCount") or 0)
    return Usage(int(prompt or 0), output, total_tokens=int(total or 0) or None)


def with_cost(usage: Usage, cost: Any) -> Usage:
    """Returns a usage with the dollars that LiteLLM reports."""
    return replace(usage, dollars=microdollars(float(cost or 0)))


def of_response(response: Any) -> Usage | None:
    """Returns the usage that an answer, or a list of answers, reports; None if only LiteLLM can report it."""
    if isinstance(response, list):
        found = [usage for each in response if (usage := of_response(each)) is not None]
        return Usage(
            sum(each.input_tokens for each in found),
            sum(each.output_tokens for each in found),
            sum((each.dollars for each in found), Decimal(0)),
            sum(each.count("tokens") for each in found),
        )
    usage = tokens(field(response, "usage"))
    cost = field(field(response, "_hidden_params"), "response_cost")
    return None if usage is None or cost is None else with_cost(usage, cost)


def passed_events(answer: Any) -> list[Any]:
    """Returns the events in the answer of a pass-through endpoint: of an answer that is no stream, the answer."""
    stream = str(field(answer, "response"))
    if "Chunks=" in stream:
        # What LiteLLM makes of a stream in a form that it does not know.
        with suppress(ValueError, SyntaxError):
            return [event for line in ast.literal_eval(stream.partition("Chunks=")[2]) for event in _events(line)]
    return answer if isinstance(answer, list) else [answer]


def of_events(events: list[Any]) -> Usage | None:
    """Returns the usage that events report, in the form of any provider; None if they report none."""
    parts = [(event, field(event, "message"), field(event, "response")) for event in events]
    usages = [tokens(field(part, "usage", "usageMetadata")) for each in parts for part in each]
    if not (found := [usage for usage in usages if usage is not None]):
        return None
    # Some report the input at the start of a stream and the answer at its end, others both in each event.
    inputs, outputs = (max(each.count(unit) for each in found) for unit in ("input_tokens", "output_tokens"))
    return Usage(inputs, outputs, total_tokens=max(inputs + outputs, *(each.count("tokens") for each in found)))


def _events(text: str) -> Iterator[Any]:
    """Yields the server-sent events in a text."""
    for line in text.splitlines():
        with suppress(ValueError):
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


def streamed(chunk: Any) -> Iterator[str]:
    """Yields the texts of a chunk: an object, a mapping, or server-sent events of the protocol of OpenAI or Anthropic."""
    if isinstance(chunk, (bytes, str)):
        for event in _events(chunk.decode("utf-8", "replace") if isinstance(chunk, bytes) else chunk):
            yield from streamed(event)
        return
    found = []
    for choice in field(chunk, "choices") or ():
        delta = field(choice, "delta")
        found += [field(delta, "content"), field(delta, "reasoning_content"), field(choice, "text")]
        calls = field(delta, "tool_calls") or ()
        found += [field(field(call, "function"), "arguments") for call in calls]
    delta = field(chunk, "delta")
    found += [delta, *(field(delta, name) for name in ("text", "thinking", "partial_json"))]
    yield from (text for text in found if isinstance(text, str))
