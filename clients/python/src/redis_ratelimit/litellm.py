"""Rate limits and budgets for the proxy of LiteLLM, counted by redis-ratelimit.

litellm_settings:
  callbacks: [redis_ratelimit.litellm.limiter]
callback_settings:
  redis_ratelimit:
    url: redis://localhost:6379
    limits:
      - {per: key, tokens: 100000/min}
      - {per: team, dollars: 50/1mo, fixed: true}

The limits and the other settings are described in docs/litellm.md.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import json
import re
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, Literal
from uuid import uuid4

import litellm
import yaml
from fastapi import HTTPException
from litellm._logging import verbose_proxy_logger as logger
from litellm.constants import NON_INFERENCE_CALL_TYPES
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy.auth.auth_utils import get_model_from_request
from litellm.proxy.common_utils.proxy_rate_limit_error import ProxyRateLimitError

from ._internal import costs, uris
from ._internal.clauses import Clause
from ._internal.core import Failure
from ._internal.gateway import (
    Asked,
    ConfigurationError,
    Path,
    Rounding,
    Settings,
    Usage,
    check_policies,
    denial,
    headers_of,
    microdollars,
    read_settings,
    reserve,
    written,
)
from ._internal.limiter import Limiter as BlockingLimiter
from ._internal.replies import AllReply, Busy, Denied, MissingModule
from ._internal.reservation import try_to_settle
from .asyncio import Limiter, MemoryLimiter, Reservation

__all__ = ["ConfigurationError", "RateLimiter"]

#: The section of the proxy's configuration that has the settings.
SECTION = "callback_settings", "redis_ratelimit"
#: A request whose usage is not reported is settled this long after its end: LiteLLM reports in the background, which may
#: take long under load.
GRACE_SECONDS = 20.0
#: An answer waits this long at its end until the place of its call is free, so that the client's next call finds it free.
PLACE_SECONDS = 0.25
#: Settling a request is retried for this long while the server is away, busy, or without the module.
SETTLE_SECONDS = 600.0
#: The first and the longest pause between two tries.
SETTLE_PAUSES = 0.1, 5.0
#: How often it is asked, when the proxy starts, whether LiteLLM has read its models.
START_SECONDS = 0.5
#: The longest answer, in tokens, of a model whose maximum LiteLLM does not know.
UNKNOWN_MAX_TOKENS = 4096
#: Texts with more characters than this are tokenized in another thread.
LONG_TEXT = 20_000
#: The characters of a token, as an estimate where LiteLLM cannot count.
TOKEN_CHARACTERS = 3
#: The advice if the server does not know the commands.
_MISSING_MODULE = (
    f"Load the module into that server, with loadmodule in its configuration, or set {'.'.join(SECTION)}.url to a server "
    "that has it."
)
#: Fields of a request that have no text to tokenize.
_NO_TEXT = frozenset(
    {"image_url", "url", "data", "file_data", "file_id", "input_audio", "source", "type", "id", "role"}
)
#: The fields of a request that may have the maximum of its answer, in tokens.
_MAXIMUMS = (
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "maxOutputTokens",
    "maxTokens",
    "max_tokens_to_sample",
)
#: Types of calls that are not sent to a model.
_IS_FREE = re.compile(r"a?(list|get|retrieve|delete|cancel|update|upload|file|vector_store)_|.*mcp")
#: Types of calls that a model answers with text.
_WRITES = re.compile(r".*(completion|responses|messages|generate_content|pass_?through|realtime|interaction|message)")

#: Types of calls whose success LiteLLM's proxy reports to no hook.
_WITHOUT_HOOK = frozenset({"aspeech", "atranscription", "arerank", "amoderation"})

#: The attributes in which LiteLLM keeps the metadata of a key and of its owners.
_METADATA = {"key": "metadata"} | {owner: f"{owner}_metadata" for owner in ("user", "team", "organization", "end_user")}

#: The request of the current context. LiteLLM runs its hooks and its background work for a request in the same context.
_current: ContextVar[_Request | None] = ContextVar("redis_ratelimit_request", default=None)


class _Request:
    """The state of a request, from its estimate until it is settled."""

    def __init__(self, call_id: str, call_type: str, data: Mapping[str, Any], models: Sequence[str]) -> None:
        self.call_id = call_id
        self.call_type = call_type
        self.data = data
        self.model = next(iter(models), "")
        #: The calls of models that it makes. LiteLLM reports each of several alone.
        self.times = 1
        #: The deployments whose prices count: none if no limit counts dollars.
        self.priced: list[Any] = []
        #: The price, in dollars, of any request to its endpoint.
        self.flat_price = 0.0
        self.asked: Sequence[Asked] = ()
        self.estimate = Usage()
        self.logging = data.get("litellm_logging_obj")
        #: The limiter's reply; None if it could not decide.
        self.reply: AllReply | None = None
        self.reservation: Reservation | None = None
        self.settled = asyncio.Event()
        self.is_streaming = False
        #: The texts that were streamed so far.
        self.streamed: list[str] = []

    @property
    def was_sent(self) -> bool:
        """True if the request was sent to a model."""
        details = getattr(self.logging, "model_call_details", None) or {}
        return bool(self.streamed) or details.get("first_api_call_start_time") is not None

    async def wait_for_place(self) -> None:
        """Waits briefly for LiteLLM to report the usage if the request occupies a place."""
        # With guardrails, LiteLLM reports only after the answer has ended.
        is_deferred = getattr(self.logging, "defer_async_logging", False) or getattr(
            self.logging, "_on_deferred_stream_complete", None
        )
        if not is_deferred and any(each.limit.unit == "calls" for each in self.asked):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.settled.wait(), PLACE_SECONDS)

    def usage(self, inputs: int, outputs: int) -> Usage:
        """Returns the usage of this many tokens, at the highest price that they can have."""
        prices = [costs.cost(each, self.call_type, self.data, inputs, outputs) for each in self.priced]
        return Usage(inputs, outputs, microdollars(max([self.flat_price, *prices])))

    def with_cost(self, usage: Usage, cost: Any) -> Usage:
        """Returns a usage with the cost that LiteLLM reports, or else the highest that it can have."""
        if cost is None:
            return replace(usage, dollars=self.usage(usage.input_tokens, usage.output_tokens).dollars)
        return _with_cost(usage, cost)

    def usage_so_far(self) -> Usage:
        """Returns the usage so far: the input and what was streamed."""
        if not self.was_sent:
            return Usage()
        return self.usage(self.estimate.input_tokens, _count(self.model, "".join(self.streamed)))


class RateLimiter(CustomLogger):  # type: ignore[misc]
    """The callback of LiteLLM's proxy that asks the limits.

    Before a request is sent to a model, one RL.ALL reserves what the request may use at most, on all limits or on none.
    While the request runs, the leases are renewed. When it ends, one transaction counts what it used, or gives everything
    back if it failed. If the proxy is killed, the leases end by themselves.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        unreachable: Any = settings.unreachable
        if not isinstance(unreachable, str):
            unreachable = MemoryLimiter(share=unreachable)
        client = uris.make_client(settings.url, {}, asynchronous=True)
        self.limiter = Limiter(client, unreachable=unreachable, deadline=settings.deadline)
        self._running: dict[str, _Request] = {}
        self._rounding = Rounding()
        #: The tasks in the background, as the event loop does not keep them alive.
        self._tasks: set[asyncio.Task[None]] = set()

    # The hooks, in the order in which LiteLLM calls them.

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Any, call_type: str) -> None:
        """Reserves what a request may use, or denies it."""
        if user_api_key_dict is None or call_type in NON_INFERENCE_CALL_TYPES or _IS_FREE.match(call_type):
            return
        models = _models(data, user_api_key_dict)
        limits = self.settings.asked(lambda dimension: _values(dimension, user_api_key_dict, data, models))
        if not limits:
            return
        earlier = _current.get()
        if earlier is not None and earlier.call_id == _call_id(data):
            # LiteLLM tries another model because one of LiteLLM's own limits denied the first.
            await self._settle(earlier, None)
        request = await self._estimated(limits, data, call_type, models, user_api_key_dict)
        _current.set(request)
        reservation = self.limiter.acquire([each.clause(self.settings) for each in request.asked])
        try:
            await reservation.__aenter__()
        except Denied as denied:
            request.reply = _all_reply(denied.reply)
            raise self._denied(request) from None
        except Busy:
            raise _unavailable() from None
        except MissingModule as error:
            logger.error("redis_ratelimit: %s", error)
            text = f"The rate limiter cannot decide, because its server has no redis-ratelimit. {_MISSING_MODULE}"
            raise HTTPException(500, text) from None
        request.reply = _all_reply(reservation.reply)
        request.reservation = reservation
        self._running.setdefault(request.call_id, request)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._settle_later(request))

    async def async_post_call_response_headers_hook(
        self, data: Any, user_api_key_dict: Any, response: Any, request_headers: Any = None, **_: Any
    ) -> dict[str, str] | None:
        """Returns the headers that report the limits of a request to its client."""
        request = self._request_of(data)
        if request is None or request.reply is None:
            return None
        if "pass" in request.call_type and not getattr(request.logging, "stream", False):
            # The answer has ended, and LiteLLM calls no other hook before its client gets it.
            await request.wait_for_place()
        return headers_of(request.asked, request.reply)

    async def async_post_call_success_deployment_hook(self, request_data: Any, response: Any, call_type: Any) -> None:
        """Settles a request of a type for which LiteLLM calls no other hook before its client gets the answer."""
        request = self._request_of(request_data)
        if request is not None and getattr(call_type, "value", None) in _WITHOUT_HOOK:
            usage = _tokens(_field(response, "usage")) or Usage(request.estimate.input_tokens)
            cost = request_data["litellm_logging_obj"].response_cost_calculator(response)
            await self._settle(request, request.with_cost(usage, cost))

    async def async_post_call_success_hook(self, data: Any, user_api_key_dict: Any, response: Any) -> None:
        """Settles a request whose answer is not a stream."""
        request = self._request_of(data)
        usage = _usage_of_response(response)
        if request is None:
            return
        if usage is None:
            await request.wait_for_place()
        else:
            await self._settle(request, usage)

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: Any
    ) -> AsyncGenerator[Any, None]:
        """Passes a stream on and records what is streamed."""
        request = self._request_of(request_data)
        if request is None:
            async for chunk in response:
                yield chunk
            return
        request.is_streaming = True
        is_empty = True
        try:
            async for chunk in response:
                is_empty = False
                request.streamed.extend(_streamed(chunk))
                yield chunk
        except (GeneratorExit, asyncio.CancelledError):
            if is_empty:
                # LiteLLM has nothing to report.
                request.is_streaming = False
                self._spawn(self._settle_unheard(request))
            raise
        finally:
            request.is_streaming = False
            self._settle_later(request)
        await request.wait_for_place()

    async def async_post_call_failure_hook(
        self, request_data: Any, original_exception: Exception, user_api_key_dict: Any, traceback_str: Any = None
    ) -> None:
        """Settles a request that failed: counts what the provider counted, or else gives everything back."""
        request = self._request_of(request_data)
        if request is None:
            return
        # LiteLLM only guesses the cost of a request that was not answered.
        usage = _tokens(request_data.get("combined_usage_object"))
        if usage is not None and usage.output_tokens:
            await self._settle(request, _with_cost(usage, request_data.get("response_cost")))
        else:
            await self._settle(request, request.usage_so_far() if request.streamed else None)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Settles a request by the usage that LiteLLM reports, such as that of a stream which ended or was cancelled."""
        request = self._request_of(kwargs)
        payload = kwargs.get("standard_logging_object")
        if request is None or payload is None or request.times > 1:
            return
        usage, cost = _tokens(payload) or Usage(), kwargs.get("response_cost")
        passed = kwargs.get("passthrough_logging_payload")
        if passed is not None:
            # LiteLLM reads the usage only in the answers of providers that it knows, and 0 is the default price.
            cost = cost or None
            if not usage.count("tokens"):
                usage = _passed_usage(passed.get("response_body") or response_obj, request)
        if request.streamed and not usage.count("tokens"):
            # For some streams LiteLLM reports no usage.
            await self._settle(request, request.usage_so_far())
            return
        # For some answers LiteLLM reports the tokens but no cost.
        await self._settle(request, request.with_cost(usage, cost))

    # The methods that the hooks share.

    def _request_of(self, data: Mapping[str, Any]) -> _Request | None:
        """Returns the request that a hook is called for. Calls that LiteLLM itself makes for a request have other ids."""
        call_id = _call_id(data)
        current = _current.get()
        if current is not None and call_id in (None, current.call_id):
            return current
        return None if call_id is None else self._running.get(call_id)

    async def _estimated(
        self, limits: Sequence[tuple[Any, str]], data: Any, call_type: str, models: Sequence[str], auth: Any
    ) -> _Request:
        """Returns a new request with an estimate of the most that it may use."""
        call_id = _call_id(data)
        if call_id is None:
            call_id = data["litellm_call_id"] = str(uuid4())
        request, least, team = _Request(call_id, call_type, data, models), None, getattr(auth, "team_id", None)
        # LiteLLM sends one request to several models, or several to one.
        messages = data.get("messages")
        lists = [each for each in messages if isinstance(each, list)] if isinstance(messages, list) else []
        times = request.times = (str(data.get("model")).count(",") + 1) * (len(lists) or 1)
        if any(limit.unit == "dollars" for limit, _ in limits):
            if "pass" in call_type:
                request.flat_price = costs.flat_price(getattr(auth, "request_route", None) or "")
            request.priced = costs.priced(models, team)
        if any(limit.unit not in ("requests", "calls") for limit, _ in limits):
            inputs, output = await _input_tokens(request) * times, 0
            if _WRITES.match(call_type):
                most = max(costs.numbers(data, *_MAXIMUMS), default=None)
                if most is None:
                    least = request.usage(inputs, 0)
                    most = self.settings.max_tokens or _most_tokens(models, team)
                output = most * costs.answers(data) * times
            request.estimate = request.usage(inputs, output)
        request.asked = reserve(limits, request.estimate, least)
        return request

    def _denied(self, request: _Request) -> HTTPException:
        reply = request.reply
        if reply is None or not reply.reachable or not reply.clause:
            return _unavailable()
        return ProxyRateLimitError(  # type: ignore[no-any-return]
            detail=denial(request.asked, reply), headers=headers_of(request.asked, reply), model=request.model
        )

    def _settle_later(self, request: _Request) -> None:
        """Settles a request after a while, unless LiteLLM reports its usage before."""
        if not request.settled.is_set():
            loop = asyncio.get_running_loop()
            loop.call_later(GRACE_SECONDS, lambda: self._spawn(self._settle_unheard(request)))

    async def _settle_unheard(self, request: _Request) -> None:
        if not request.is_streaming:
            await self._settle(request, request.usage_so_far() if request.was_sent else None)

    async def _settle(self, request: _Request, usage: Usage | None) -> None:
        """Counts what a request used, or gives everything back if `usage` is None. Only the first call for a request has an
        effect."""
        reservation, request.reservation = request.reservation, None
        if reservation is None:
            return
        if self._running.get(request.call_id) is request:
            del self._running[request.call_id]
        # In a task of its own, as the caller may be cancelled.
        self._spawn(self._settle_reserved(request, reservation, usage))
        await request.settled.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle_reserved(self, request: _Request, reservation: Reservation, usage: Usage | None) -> None:
        try:
            if usage is None:
                await self._try_until_settled(request, reservation, "release")
            else:
                await self._apply(request, reservation, usage)
        except Exception as error:
            # The leases end by themselves.
            logger.error("redis_ratelimit: a request was not settled: %s", error)
        finally:
            request.settled.set()

    async def _apply(self, request: _Request, reservation: Reservation, usage: Usage) -> None:
        costs = {
            each.limit.name: self._rounding.whole(each.key, usage.dollars)
            if each.limit.unit == "dollars"
            else usage.count(each.limit.unit)
            for each in request.asked
            if each.limit.unit != "calls"
        }
        reserved = reservation.ids
        reservation.set({name: cost for name, cost in costs.items() if name in reserved})
        missing = await self._try_until_settled(request, reservation, "apply")
        if not reserved and not reservation.reply.reachable:
            # The request was allowed while Redis was away, so nothing was reserved.
            missing = list(costs)
        charged = [
            Clause.window(each.key, each.limit.window, costs[each.limit.name], name=each.limit.name)
            for each in request.asked
            if each.limit.name in missing and costs.get(each.limit.name) and not each.limit.shadow
        ]
        if charged and not (await self.limiter.all(charged, force=True)).reachable:
            logger.error("redis_ratelimit: Redis could not be reached, so what a request used was not counted")

    async def _try_until_settled(
        self, request: _Request, reservation: Reservation, name: Literal["apply", "release"]
    ) -> list[str]:
        """Settles a request. While Redis is away or busy, or its module is being replaced, tries again in the background,
        which the answer to the client does not wait for. Returns the names of the limits that were no longer reserved, and
        so were not counted."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + SETTLE_SECONDS, SETTLE_PAUSES[0]
        was_sent = False
        while True:
            lapsed = await try_to_settle(reservation, name)
            if not isinstance(lapsed, Failure):
                # An earlier try may have counted what is no longer reserved. Two tries never count twice, as the first that
                # the server executes ends the reservation.
                return [] if was_sent else lapsed
            # A transaction with an unknown command counts nothing.
            is_missing = isinstance(lapsed.error, MissingModule)
            if not (lapsed.is_temporary or is_missing) or loop.time() > until:
                raise lapsed.error
            was_sent = was_sent or (lapsed.is_sent and not is_missing)
            request.settled.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, SETTLE_PAUSES[1])


def _all_reply(reply: Any) -> AllReply:
    assert isinstance(reply, AllReply)
    return reply


def _unavailable() -> HTTPException:
    return HTTPException(503, "The rate limiter cannot be reached. Try again later.", {"retry-after": "1"})


def _call_id(data: Mapping[str, Any]) -> str | None:
    call_id = data.get("litellm_call_id") or getattr(data.get("litellm_logging_obj"), "litellm_call_id", None)
    return call_id if isinstance(call_id, str) else None


def _models(data: Mapping[str, Any], auth: Any) -> list[str]:
    """Returns the models that a request may call at its own wish, the first of them first."""
    model = data.get("model")
    with suppress(Exception):
        # Some endpoints of providers have it in their path.
        model = model or get_model_from_request(dict(data), auth.request_route or "")
    asked = [each.strip() for name in costs.models_in(model) for each in name.split(",")]
    more = [*costs.models_in(data.get("fallbacks")), *costs.models_in(costs.values(data, "model"))]
    return list(dict.fromkeys([*asked, *more]))


def _values(dimension: str, auth: Any, data: Mapping[str, Any], models: Sequence[str]) -> list[str]:
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
        value = _key_of(auth)
    else:
        value = getattr(auth, "org_id" if owner == "organization" else f"{owner}_id", None)
    return [written(value)] if isinstance(value, (str, int, float)) and value != "" else []


def _key_of(auth: Any) -> str | None:
    """Returns the hash of a key, as LiteLLM computes it. Custom authentication may have set the key itself."""
    key = getattr(auth, "token", None) or getattr(auth, "api_key", None)
    if not key or re.fullmatch("[0-9a-f]{64}", key):
        return key or None
    return hashlib.sha256(key.encode()).hexdigest()


def _most_tokens(models: Sequence[str], team: str | None) -> int:
    """Returns the most tokens that an answer of these models has."""
    found = []
    for deployment in (each for model in models for each in costs.deployments(model, team)):
        own = costs.numbers(deployment["litellm_params"], *_MAXIMUMS)
        found.append(max(own) if own else int(costs.info_of(deployment).get("max_output_tokens") or 0))
    return max(found, default=0) or UNKNOWN_MAX_TOKENS


def _texts(value: Any) -> Iterator[str | int]:
    """Yields the texts in the body of a request, and for each input of token ids how many they are."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        if value and all(type(each) is int for each in value):
            yield len(value)
        else:
            for each in value:
                yield from _texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _NO_TEXT:
                yield from _texts(each)


async def _input_tokens(request: _Request) -> int:
    """Returns how many tokens the input has, by LiteLLM's tokenizers."""
    model, data = request.model, request.data
    names: Any = "prompt", "input", "instructions", "system", "contents", "query", "documents"
    if "pass" in request.call_type:
        # The body has the form of any provider.
        other = "messages", "tools", "tool_choice", "model", "metadata", "litellm_metadata", "litellm_call_id"
        names = data.keys() - set(other)
    parts = [*_texts([data.get(name) for name in names if data.get(name) is not None])]
    counted = sum(part for part in parts if isinstance(part, int))
    text = "\n".join(part for part in parts if isinstance(part, str))
    messages, tools = data.get("messages"), data.get("tools")

    def count() -> int:
        total = counted + _count(model, text)
        if isinstance(messages, list) and messages:
            with suppress(Exception):
                return total + int(
                    litellm.token_counter(
                        model=model,
                        messages=messages,
                        tools=tools,
                        tool_choice=data.get("tool_choice"),
                        use_default_image_token_count=True,
                    )
                )
            total += _length([messages, tools]) // TOKEN_CHARACTERS
        return total

    # Only long texts take long to count.
    if _length([messages, text, tools]) < LONG_TEXT:
        return count()
    return await asyncio.to_thread(count)


def _length(value: Any) -> int:
    return sum(len(part) for part in _texts(value) if isinstance(part, str))


def _count(model: str, text: str) -> int:
    if not text:
        return 0
    with suppress(Exception):
        return int(litellm.token_counter(model=model, text=text))
    return -(-len(text) // TOKEN_CHARACTERS)


def _field(value: Any, *names: str) -> Any:
    """Returns the first of these fields that a mapping or an object has."""
    for name in names:
        field = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if field is not None:
            return field
    return None


def _tokens(usage: Any) -> Usage | None:
    """Returns the tokens that a provider counted; None if it reports none."""
    prompt = _field(usage, "prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens")
    output = _field(usage, "completion_tokens", "output_tokens", "candidatesTokenCount", "outputTokens")
    total = _field(usage, "total_tokens", "totalTokenCount", "totalTokens")
    if not any(isinstance(each, int) for each in (prompt, output, total)):
        return None
    output = int(output or 0) + int(_field(usage, "thoughtsTokenCount") or 0)
    return Usage(int(prompt or 0), output, total_tokens=int(total or 0) or None)


def _with_cost(usage: Usage, cost: Any) -> Usage:
    return replace(usage, dollars=microdollars(float(cost or 0)))


def _usage_of_response(response: Any) -> Usage | None:
    """Returns the usage that an answer, or a list of answers, reports; None if only LiteLLM can report it."""
    if isinstance(response, list):
        found = [usage for each in response if (usage := _usage_of_response(each)) is not None]
        return Usage(
            sum(each.input_tokens for each in found),
            sum(each.output_tokens for each in found),
            sum((each.dollars for each in found), Decimal(0)),
            sum(each.count("tokens") for each in found),
        )
    usage = _tokens(_field(response, "usage"))
    cost = _field(_field(response, "_hidden_params"), "response_cost")
    return None if usage is None or cost is None else _with_cost(usage, cost)


def _passed_usage(answer: Any, request: _Request) -> Usage:
    """Returns the usage in the answer of a pass-through endpoint: what it reports, in the form of any provider, or else the
    input and what was streamed."""
    events = answer if isinstance(answer, list) else [answer]
    stream = str(_field(answer, "response"))
    if "Chunks=" in stream:
        # What LiteLLM makes of a stream in a form that it does not know.
        with suppress(ValueError, SyntaxError):
            lines = ast.literal_eval(stream.partition("Chunks=")[2])
            events = [event for line in lines for event in _events(line)]
    found = [
        usage
        for event in events
        for part in (event, _field(event, "message"), _field(event, "response"))
        if (usage := _tokens(_field(part, "usage", "usageMetadata"))) is not None
    ]
    if not found:
        request.streamed.extend(text for event in events for text in _streamed(event))
        return request.usage_so_far()
    # Some report the input at the start of a stream and the answer at its end, others both in each event.
    inputs, outputs = (max(each.count(unit) for each in found) for unit in ("input_tokens", "output_tokens"))
    return Usage(inputs, outputs, total_tokens=max(inputs + outputs, *(each.count("tokens") for each in found)))


def _events(text: str) -> Iterator[Any]:
    """Yields the server-sent events in a text."""
    for line in text.splitlines():
        with suppress(ValueError):
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


def _streamed(chunk: Any) -> Iterator[str]:
    """Yields the texts of a chunk: an object, a mapping, or server-sent events of the protocol of OpenAI or Anthropic."""
    if isinstance(chunk, (bytes, str)):
        for event in _events(chunk.decode("utf-8", "replace") if isinstance(chunk, bytes) else chunk):
            yield from _streamed(event)
        return
    for choice in _field(chunk, "choices") or ():
        delta = _field(choice, "delta")
        for text in (
            _field(delta, "content"),
            _field(delta, "reasoning_content"),
            _field(choice, "text"),
            *(_field(_field(call, "function"), "arguments") for call in _field(delta, "tool_calls") or ()),
        ):
            if isinstance(text, str) and text:
                yield text
    delta = _field(chunk, "delta")
    for text in (delta, *(_field(delta, name) for name in ("text", "thinking", "partial_json"))):
        if isinstance(text, str):
            yield text


@lru_cache(maxsize=1)
def _callback(settings: Settings) -> RateLimiter:
    """Returns the callback for the settings of the proxy, which is created only once."""
    if any(limit.unit == "dollars" for limit in settings.limits):
        _name_unpriced()
    return RateLimiter(settings)


def _name_unpriced(tries: int = 60) -> None:
    """Logs for what limits in dollars can reserve nothing, as soon as LiteLLM has read its models."""
    with suppress(RuntimeError):
        if costs.router() is None and tries:
            asyncio.get_running_loop().call_later(START_SECONDS, _name_unpriced, tries - 1)
            return
    names = ", ".join(costs.unpriced())
    if names:
        logger.warning(
            "redis_ratelimit: limits in dollars reserve nothing for %s: their price is not known before", names
        )


def _configured() -> RateLimiter:
    """Returns the callback that the configuration of the running proxy describes."""
    sections = getattr(litellm, SECTION[0], None)
    section = sections.get(SECTION[1]) if isinstance(sections, dict) else None
    file = getattr(sys.modules.get("litellm.proxy.proxy_server"), "user_config_file_path", None)
    if section is None:
        raise ConfigurationError(f"{file or 'the configuration'}: {'.'.join(SECTION)} is missing")

    def where(path: Path) -> str:
        return _place(file, path)

    settings = read_settings(section, where)
    _check_server(settings, where)
    return _callback(settings)


def _check_server(settings: Settings, where: Callable[[Path], str]) -> None:
    """Raises ConfigurationError if the server lacks the module or one of the policies."""
    try:
        client = uris.make_client(settings.url, {}, asynchronous=False)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{where(('url',))}: {error}") from None
    with BlockingLimiter(client, deadline=settings.deadline) as limiter:
        try:
            check_policies(settings, limiter.policies(), where)
        except MissingModule as error:
            raise ConfigurationError(f"{where(('url',))}: {error}. {_MISSING_MODULE}") from None
        except ConfigurationError:
            raise
        except Exception as error:
            # The server may be away when the proxy starts, and its user may not be allowed to list the policies.
            logger.warning("redis_ratelimit: the policies of the server were not checked: %s", error)


def _place(file: str | None, path: Path) -> str:
    """Returns the name of a place in the section, with the file and the line if the section is in the file."""
    whole: Path = (*SECTION, *path)
    name = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in whole).lstrip(".")
    with suppress(OSError, yaml.YAMLError):
        line = _line(yaml.compose(FilePath(file or "").read_text("utf-8"), yaml.SafeLoader), whole)
        if line is not None:
            return f"{file}, line {line}: {name}"
    return name


def _line(node: Any, path: Path) -> int | None:
    """Returns the line of the last key or item of a path; None if the path is not in the document."""
    line = None
    for at, step in enumerate(path):
        if isinstance(node, yaml.MappingNode):
            pair = next((each for each in node.value if each[0].value == str(step)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            pair = (node.value[step], node.value[step])
        else:
            pair = None
        if pair is None:
            return line if at >= len(SECTION) else None
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def __getattr__(name: str) -> Any:
    if name != "limiter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # LiteLLM looks the callback up by this name after it has read its configuration.
    return _configured()
