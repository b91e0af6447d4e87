"""The callback of LiteLLM's proxy that asks the limits of requests, and settles what they reserved."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any
from uuid import uuid4

from fastapi import HTTPException
from litellm._logging import verbose_proxy_logger as logger
from litellm.constants import NON_INFERENCE_CALL_TYPES
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy.common_utils.proxy_rate_limit_error import ProxyRateLimitError

from .. import Busy, Clause, Denied, MissingModule, _uris
from ..asyncio import Limiter, MemoryLimiter, Reservation
from ..http.headers import is_decided
from . import costs, requests, usage
from .gateway import Asked, Limit, Rounding, Settings, Usage, denial, headers_of, microdollars, reserve

#: A request whose usage is not reported is settled this long after its end: LiteLLM reports in the background, which may
#: take long under load.
GRACE_SECONDS = 20.0
#: An answer waits this long at its end until the place of its call is free, so that the client's next call finds it free.
PLACE_SECONDS = 0.25
#: Settling a request is retried for this long while the server is away, busy, or without the module.
SETTLE_SECONDS = 600.0
#: The first and the longest pause between two tries.
SETTLE_PAUSES = 0.1, 5.0
#: The advice if the server does not know the commands.
MISSING_MODULE = (
    "Load the module into that server, with loadmodule in its configuration, or set callback_settings.redis_ratelimit.url "
    "to a server that has it."
)
#: Types of calls that are not sent to a model.
_IS_FREE = re.compile(r"a?(list|get|retrieve|delete|cancel|update|upload|file|vector_store)_|.*mcp")
#: Types of calls that a model answers with text.
_WRITES = re.compile(r".*(completion|responses|messages|generate_content|pass_?through|realtime|interaction|message)")
#: Types of calls whose success LiteLLM's proxy reports to no hook.
_WITHOUT_HOOK = frozenset({"aspeech", "atranscription", "arerank", "amoderation"})

#: The request of the current context. LiteLLM runs its hooks and its background work for a request in the same context.
_current: ContextVar[Request | None] = ContextVar("redis_ratelimit_request", default=None)


class Request:
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
        self.reply: Any = None
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
        deferrals = "defer_async_logging", "_on_deferred_stream_complete"
        is_deferred = any(getattr(self.logging, name, None) for name in deferrals)
        if not is_deferred and any(each.limit.unit == "calls" for each in self.asked):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.settled.wait(), PLACE_SECONDS)

    def usage(self, inputs: int, outputs: int) -> Usage:
        """Returns the usage of this many tokens, at the highest price that they can have."""
        prices = [costs.cost(each, self.call_type, self.data, inputs, outputs) for each in self.priced]
        return Usage(inputs, outputs, microdollars(max([self.flat_price, *prices])))

    def with_cost(self, used: Usage, cost: Any) -> Usage:
        """Returns a usage with the cost that LiteLLM reports, or else the highest that it can have."""
        if cost is None:
            return replace(used, dollars=self.usage(used.input_tokens, used.output_tokens).dollars)
        return usage.with_cost(used, cost)

    def usage_so_far(self) -> Usage:
        """Returns the usage so far: the input and what was streamed."""
        if not self.was_sent:
            return Usage()
        return self.usage(self.estimate.input_tokens, requests.count_tokens(self.model, "".join(self.streamed)))

    def passed_usage(self, answer: Any) -> Usage:
        """Returns the usage in the answer of a pass-through endpoint: what it reports, or else the input and what was
        streamed."""
        events = usage.passed_events(answer)
        used = usage.of_events(events)
        if used is None:
            self.streamed.extend(text for event in events for text in usage.streamed(event))
        return used or self.usage_so_far()


class RateLimiter(CustomLogger):  # type: ignore[misc]
    """The callback of LiteLLM's proxy that asks the limits.

    Before a request is sent to a model, one RL.ALL reserves what the request may use at most, on all limits or on none.
    While the request runs, the leases are renewed. When it ends, one transaction counts what it used, or gives everything
    back if it failed. If the proxy is killed, the leases end by themselves.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        choice = settings.unreachable
        unreachable = choice if isinstance(choice, str) else MemoryLimiter(share=choice)
        client = _uris.make_client(settings.url, {}, asynchronous=True)
        self.limiter = Limiter(client, unreachable=unreachable, deadline=settings.deadline)
        library = import_module(f"{_uris.parts(settings.url)[0]}.exceptions")
        errors = "ConnectionError", "TimeoutError", "ClusterError", "TryAgainError", "ReadOnlyError"
        #: The errors after which a later try may succeed.
        self._temporary: Any = (Busy, MissingModule, *(getattr(library, name) for name in errors))
        self._running: dict[str, Request] = {}
        self._rounding = Rounding()
        #: The tasks in the background, as the event loop does not keep them alive.
        self._tasks: set[asyncio.Task[None]] = set()

    # The hooks, in the order in which LiteLLM calls them.

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: Any, call_type: str) -> None:
        """Reserves what a request may use, or denies it."""
        if user_api_key_dict is None or call_type in NON_INFERENCE_CALL_TYPES or _IS_FREE.match(call_type):
            return
        models = requests.models(data, user_api_key_dict)
        limits = self.settings.asked(lambda dimension: requests.values(dimension, user_api_key_dict, data, models))
        if not limits:
            return
        earlier = _current.get()
        if earlier is not None and earlier.call_id == requests.call_id(data):
            # LiteLLM tries another model because one of LiteLLM's own limits denied the first.
            await self._settle(earlier, None)
        request = await self._estimated(limits, data, call_type, models, user_api_key_dict)
        _current.set(request)
        reservation = self.limiter.acquire([each.clause(self.settings) for each in request.asked])
        try:
            await reservation.__aenter__()
        except Denied as denied:
            request.reply = denied.reply
            raise self._denied(request) from None
        except Busy:
            raise _unavailable() from None
        except MissingModule as error:
            logger.error("redis_ratelimit: %s", error)
            text = f"The rate limiter cannot decide, because its server has no redis-ratelimit. {MISSING_MODULE}"
            raise HTTPException(500, text) from None
        request.reply, request.reservation = reservation.reply, reservation
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
            used = usage.tokens(usage.field(response, "usage")) or Usage(request.estimate.input_tokens)
            cost = request_data["litellm_logging_obj"].response_cost_calculator(response)
            await self._settle(request, request.with_cost(used, cost))

    async def async_post_call_success_hook(self, data: Any, user_api_key_dict: Any, response: Any) -> None:
        """Settles a request whose answer is not a stream."""
        request, used = self._request_of(data), usage.of_response(response)
        if request is not None:
            await (request.wait_for_place() if used is None else self._settle(request, used))

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: Any
    ) -> AsyncGenerator[Any, None]:
        """Passes a stream on and records what is streamed."""
        request = self._request_of(request_data)
        if request is None:
            async for chunk in response:
                yield chunk
            return
        request.is_streaming = is_empty = True
        try:
            async for chunk in response:
                is_empty = False
                request.streamed.extend(usage.streamed(chunk))
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
        used = usage.tokens(request_data.get("combined_usage_object"))
        if used is not None and used.output_tokens:
            await self._settle(request, usage.with_cost(used, request_data.get("response_cost")))
        else:
            await self._settle(request, request.usage_so_far() if request.streamed else None)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Settles a request by the usage that LiteLLM reports, such as that of a stream which ended or was cancelled."""
        request, payload = self._request_of(kwargs), kwargs.get("standard_logging_object")
        if request is None or payload is None or request.times > 1:
            return
        used, cost = usage.tokens(payload) or Usage(), kwargs.get("response_cost")
        passed = kwargs.get("passthrough_logging_payload")
        if passed is not None:
            # LiteLLM reads the usage only in the answers of providers that it knows, and 0 is the default price.
            cost = cost or None
            if not used.count("tokens"):
                used = request.passed_usage(passed.get("response_body") or response_obj)
        if request.streamed and not used.count("tokens"):
            # For some streams LiteLLM reports no usage.
            await self._settle(request, request.usage_so_far())
        else:
            # For some answers LiteLLM reports the tokens but no cost.
            await self._settle(request, request.with_cost(used, cost))

    # The methods that the hooks share.

    def _request_of(self, data: Mapping[str, Any]) -> Request | None:
        """Returns the request that a hook is called for. Calls that LiteLLM itself makes for a request have other ids."""
        call_id, current = requests.call_id(data), _current.get()
        if current is not None and call_id in (None, current.call_id):
            return current
        return None if call_id is None else self._running.get(call_id)

    async def _estimated(
        self, limits: Sequence[tuple[Limit, str]], data: Any, call_type: str, models: Sequence[str], auth: Any
    ) -> Request:
        """Returns a new request with an estimate of the most that it may use."""
        call_id = requests.call_id(data)
        if call_id is None:
            call_id = data["litellm_call_id"] = str(uuid4())
        request, least, team = Request(call_id, call_type, data, models), None, getattr(auth, "team_id", None)
        # LiteLLM sends one request to several models, or several to one.
        messages = data.get("messages")
        lists = [each for each in messages if isinstance(each, list)] if isinstance(messages, list) else []
        times = request.times = (str(data.get("model")).count(",") + 1) * (len(lists) or 1)
        units = {limit.unit for limit, _ in limits}
        if "dollars" in units:
            if "pass" in call_type:
                request.flat_price = costs.flat_price(getattr(auth, "request_route", None) or "")
            request.priced = costs.priced(models, team)
        if units - {"requests", "calls"}:
            inputs, output = await requests.input_tokens(request.model, data, call_type) * times, 0
            if _WRITES.match(call_type):
                most = requests.maximum(data)
                if most is None:
                    least = request.usage(inputs, 0)
                    most = self.settings.max_tokens or requests.most_tokens(models, team)
                output = most * costs.answers(data) * times
            request.estimate = request.usage(inputs, output)
        request.asked = reserve(limits, request.estimate, least)
        return request

    def _denied(self, request: Request) -> HTTPException:
        if not is_decided(request.reply):
            return _unavailable()
        return ProxyRateLimitError(  # type: ignore[no-any-return]
            detail=denial(request.asked, request.reply),
            headers=headers_of(request.asked, request.reply),
            model=request.model,
        )

    def _settle_later(self, request: Request) -> None:
        """Settles a request after a while, unless LiteLLM reports its usage before."""
        if not request.settled.is_set():
            loop = asyncio.get_running_loop()
            loop.call_later(GRACE_SECONDS, lambda: self._spawn(self._settle_unheard(request)))

    async def _settle_unheard(self, request: Request) -> None:
        if not request.is_streaming:
            await self._settle(request, request.usage_so_far() if request.was_sent else None)

    async def _settle(self, request: Request, used: Usage | None) -> None:
        """Counts what a request used, or gives everything back if `used` is None. Only the first call for a request has an
        effect."""
        reservation, request.reservation = request.reservation, None
        if reservation is None:
            return
        if self._running.get(request.call_id) is request:
            del self._running[request.call_id]
        # In a task of its own, as the caller may be cancelled.
        self._spawn(self._settle_reserved(request, reservation, used))
        await request.settled.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle_reserved(self, request: Request, reservation: Reservation, used: Usage | None) -> None:
        try:
            if used is None:
                await self._until_settled(request, reservation.release)
            else:
                await self._count(request, reservation, used)
        except Exception as error:
            # The leases end by themselves.
            logger.error("redis_ratelimit: a request was not settled: %s", error)
        finally:
            request.settled.set()

    async def _count(self, request: Request, reservation: Reservation, used: Usage) -> None:
        costs = {
            each.limit.name: self._rounding.whole(each.key, used.dollars)
            if each.limit.unit == "dollars"
            else used.count(each.limit.unit)
            for each in request.asked
            if each.limit.unit != "calls"
        }
        reserved = {name: cost for name, cost in costs.items() if name in reservation.ids}
        may_be_counted = await self._until_settled(request, partial(reservation.apply, reserved))
        # Two tries never count twice, as the first that the server executes ends the reservation.
        missing = () if may_be_counted else reservation.lapsed
        if not reservation.ids and not reservation.reply.reachable:
            # The request was allowed while Redis was away, so nothing was reserved.
            missing = tuple(costs)
        charged = [
            Clause.window(each.key, each.limit.window, costs[each.limit.name], name=each.limit.name)
            for each in request.asked
            if each.limit.name in missing and costs.get(each.limit.name) and not each.limit.shadow
        ]
        if charged and not (await self.limiter.all(charged, force=True)).reachable:
            logger.error("redis_ratelimit: Redis could not be reached, so what a request used was not counted")

    async def _until_settled(self, request: Request, settle: Callable[[], Awaitable[object]]) -> bool:
        """Settles a request. While Redis is away or busy, or its module is being replaced, tries again in the background,
        which the answer to the client does not wait for. Returns whether an earlier try may have been executed."""
        loop = asyncio.get_running_loop()
        until, pause, was_sent = loop.time() + SETTLE_SECONDS, SETTLE_PAUSES[0], False
        while True:
            try:
                await settle()
                return was_sent
            except self._temporary as error:
                if loop.time() > until:
                    raise
                # A transaction with an unknown command counts nothing.
                was_sent = was_sent or (getattr(error, "was_sent", True) and not isinstance(error, MissingModule))
            request.settled.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, SETTLE_PAUSES[1])


def _unavailable() -> HTTPException:
    return HTTPException(503, "The rate limiter cannot be reached. Try again later.", {"retry-after": "1"})
