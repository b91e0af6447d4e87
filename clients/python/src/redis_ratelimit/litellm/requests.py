"""What a request asks for: its models, its owners, and the most tokens that it may use."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import litellm
from litellm.proxy.auth.auth_utils import get_model_from_request

from . import costs
from .gateway import written

#: The longest answer, in tokens, of a model whose maximum LiteLLM does not know.
UNKNOWN_MAX_TOKENS = 4096
#: Texts with more characters than this are tokenized in another thread.
LONG_TEXT = 20_000
#: The characters of a token, as an estimate where LiteLLM cannot count.
TOKEN_CHARACTERS = 3
#: Fields of a request that have no text to tokenize.
_NO_TEXT = frozenset(
    ["image_url", "url", "data", "file_data", "file_id", "input_audio", "source", "type", "id", "role"]
)
#: The fields of a request that have its input.
_INPUT = "prompt", "input", "instructions", "system", "contents", "query", "documents"
#: The fields of the body of any provider that do not have its input, or are counted in another way.
_NO_INPUT = {"messages", "tools", "tool_choice", "model", "metadata", "litellm_metadata", "litellm_call_id"}
#: The fields of a request that may have the maximum of its answer, in tokens.
_MAXIMA = (
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "maxOutputTokens",
    "maxTokens",
    "max_tokens_to_sample",
)
#: The attributes in which LiteLLM keeps the metadata of a key and of its owners.
_METADATA = {"key": "metadata"} | {owner: f"{owner}_metadata" for owner in ("user", "team", "organization", "end_user")}


def call_id(data: Mapping[str, Any]) -> str | None:
    """Returns the id of a request."""
    found = data.get("litellm_call_id") or getattr(data.get("litellm_logging_obj"), "litellm_call_id", None)
    return found if isinstance(found, str) else None


def models(data: Mapping[str, Any], auth: Any) -> list[str]:
    """Returns the models that a request may call at its own wish, the first of them first."""
    model = data.get("model")
    with suppress(Exception):
        # Some endpoints of providers have it in their path.
        model = model or get_model_from_request(dict(data), auth.request_route or "")
    asked = [each.strip() for name in costs.models_in(model) for each in name.split(",")]
    more = [*costs.models_in(data.get("fallbacks")), *costs.models_in(costs.values(data, "model"))]
    return list(dict.fromkeys([*asked, *more]))


def values(dimension: str, auth: Any, data: Mapping[str, Any], models: Sequence[str]) -> list[str]:
    """Returns the values of a dimension of a request."""
    if dimension == "model":
        team = getattr(auth, "team_id", None)
        return list(dict.fromkeys(name for model in models for name in costs.names(model, team)))
    owner, dot, field = dimension.partition(".")
    value: Any = None
    if owner == "metadata":
        for name in ("metadata", "litellm_metadata"):
            if isinstance(data.get(name), dict) and field in data[name]:
                value = data[name][field]
    elif dot:
        # Metadata that the operator has set takes precedence over LiteLLM's own fields.
        value = (getattr(auth, _METADATA[owner], None) or {}).get(field)
        if value is None:
            value = getattr(auth, field if owner == "key" else f"{owner}_{field}", None)
    elif owner == "key":
        # The hash of the key, as LiteLLM computes it. Custom authentication may have set the key itself.
        value = getattr(auth, "token", None) or getattr(auth, "api_key", None)
        if value and not re.fullmatch("[0-9a-f]{64}", value):
            value = hashlib.sha256(value.encode()).hexdigest()
    else:
        value = getattr(auth, "org_id" if owner == "organization" else f"{owner}_id", None)
    return [written(value)] if isinstance(value, (str, int, float)) and value != "" else []


def maximum(data: Mapping[str, Any]) -> int | None:
    """Returns the maximum of an answer, in tokens; None if the request sets none."""
    return max(costs.numbers(data, *_MAXIMA), default=None)


def most_tokens(models: Sequence[str], team: str | None) -> int:
    """Returns the most tokens that an answer of these models has."""
    found = []
    for deployment in (each for model in models for each in costs.deployments(model, team)):
        own = maximum(deployment["litellm_params"])
        found.append(own or int(costs.info_of(deployment).get("max_output_tokens") or 0))
    return max(found, default=0) or UNKNOWN_MAX_TOKENS


def _texts(value: Any) -> Iterator[str | int]:
    """Yields the texts in the body of a request, and for each input of token ids how many they are."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and value and all(type(each) is int for each in value):
        yield len(value)
    elif isinstance(value, (list, dict)):
        inner = [each for name, each in value.items() if name not in _NO_TEXT] if isinstance(value, dict) else value
        for each in inner:
            yield from _texts(each)


async def input_tokens(model: str, data: Mapping[str, Any], call_type: str) -> int:
    """Returns how many tokens the input has, by LiteLLM's tokenizers."""
    # The body of a pass-through endpoint has the form of any provider.
    names: Any = data.keys() - _NO_INPUT if "pass" in call_type else _INPUT
    parts = [*_texts([data.get(name) for name in names if data.get(name) is not None])]
    text = "\n".join(part for part in parts if isinstance(part, str))
    messages, tools = data.get("messages"), data.get("tools")

    def count() -> int:
        total = sum(part for part in parts if isinstance(part, int)) + count_tokens(model, text)
        if isinstance(messages, list) and messages:
            more = {"tools": tools, "tool_choice": data.get("tool_choice"), "use_default_image_token_count": True}
            with suppress(Exception):
                return total + int(litellm.token_counter(model=model, messages=messages, **more))
            total += _length([messages, tools]) // TOKEN_CHARACTERS
        return total

    # Only long texts take long to count.
    return count() if _length([messages, text, tools]) < LONG_TEXT else await asyncio.to_thread(count)


def _length(value: Any) -> int:
    return sum(len(part) for part in _texts(value) if isinstance(part, str))


def count_tokens(model: str, text: str) -> int:
    """Returns how many tokens a text has."""
    if not text:
        return 0
    with suppress(Exception):
        return int(litellm.token_counter(model=model, text=text))
    return -(-len(text) // TOKEN_CHARACTERS)
