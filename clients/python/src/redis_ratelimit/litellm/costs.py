"""Which deployments of LiteLLM a request may call, and the most that it can cost there, by LiteLLM's prices."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import litellm
from litellm.litellm_core_utils.audio_utils.utils import calculate_request_duration
from litellm.litellm_core_utils.litellm_logging import use_custom_pricing_for_model
from litellm.types.rerank import RerankResponse
from litellm.types.utils import ImageObject, ImageResponse, ModelResponse, TranscriptionResponse, Usage

#: The output tokens of an image: what gpt-image-1 uses at the highest quality.
IMAGE_TOKENS = 6240
#: The documents that providers rerank for the price of one search.
DOCUMENTS_PER_SEARCH = 100
#: The seconds of a video if a request does not set them.
VIDEO_SECONDS = 8
#: The parts of a request that may set the maximum of an answer, how many there are, and the like.
_PARTS = "extra_body", "generationConfig", "generation_config", "config", "inferenceConfig"
#: The prices that a request is estimated by, of models that do not answer with text.
_PRICES = {"audio_transcription": "second", "video_generation": "second", "rerank": "query|token"}
#: The settings of a deployment that its prices depend on.
_PRICED = re.compile("cost|pric|^model$|^base_model$|provider$|tier$")
#: The kinds of tokens that may have prices of their own.
_INPUTS = "audio", "image", "video"
_OUTPUTS = "reasoning", *_INPUTS
#: The fields of messages that are not text.
_MEDIA = {"image_url", "input_audio", "video_url", "file", "file_data", "inline_data", "inlineData", "source"}


def _of_proxy(name: str) -> Any:
    return getattr(sys.modules.get("litellm.proxy.proxy_server"), name, None)


def router() -> Any:
    """Returns the router of the running proxy; None if there is none."""
    return _of_proxy("llm_router")


def endpoints() -> list[Any]:
    """Returns the pass-through endpoints in the configuration of the proxy."""
    return (_of_proxy("general_settings") or {}).get("pass_through_endpoints") or []


def flat_price(route: str) -> float:
    """Returns the price of any request to a pass-through endpoint."""
    paths = {str(each.get("path")).rstrip("/"): each.get("cost_per_request") or 0 for each in endpoints()}
    return max((float(price) for path, price in paths.items() if f"{route}/".startswith(f"{path}/")), default=0.0)


def deployments(model: str, team: str | None) -> list[Any]:
    """Returns the deployments that a request for a model may call. Without a router, that is the model itself."""
    found: Any = None
    with suppress(Exception):
        found = router().get_routable_deployments(model) or router().get_model_list(model, team)
    return found or [{"model_name": model, "litellm_params": {"model": model}, "model_info": {}}]


def names(model: str, team: str | None) -> list[str]:
    """Returns the names of these deployments in the configuration, without aliases. A wildcard is followed by what the
    request calls by it."""
    result = []
    for each in deployments(model, team):
        name, info = each["model_name"], each["model_info"]
        with suppress(Exception):
            # Routing groups and aliases rename deployments.
            name = info.get("team_public_model_name") or router().get_deployment(info["id"]).model_name
        result.append(name)
        if "*" in name:
            called = each["litellm_params"]["model"]
            result += [model, called, called.rpartition("/")[2]]
    return list(dict.fromkeys(result))


def priced(models: Sequence[str], team: str | None) -> list[Any]:
    """Returns the deployments of models, and of those that the router tries after them: one for each price."""
    tried, found = list(models), dict[str, Any]()
    for model in tried:
        for kind in "fallbacks", "context_window_fallbacks", "content_policy_fallbacks":
            for rule in getattr(router(), kind, None) or ():
                tried += [each for each in models_in(rule.get(model) or rule.get("*")) if each not in tried]
        for each in deployments(model, team):
            fields = [*each["litellm_params"].items(), *each["model_info"].items()]
            found.setdefault(repr([field for field in fields if _PRICED.search(field[0])]), each)
    return list(found.values())


def models_in(value: Any) -> list[str]:
    """Returns the models in a field: names, or mappings that have the name."""
    items = value if isinstance(value, list) else [value]
    found = [each.get("model") if isinstance(each, dict) else each for each in items]
    return [each for each in found if isinstance(each, str)]


def info_of(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what LiteLLM knows about the model of a deployment."""
    model, id = deployment["litellm_params"]["model"], deployment["model_info"].get("id")
    with suppress(Exception):
        return (router().get_deployment_model_info(id, model) if id else litellm.get_model_info(model)) or {}
    return {}


def _parts(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield data
    for name in _PARTS:
        if isinstance(data.get(name), dict):
            yield from _parts(data[name])


def values(data: Mapping[str, Any], *names: str) -> list[Any]:
    """Returns what a request has in these fields, wherever LiteLLM or a provider may read them."""
    return [part[name] for part in _parts(data) for name in names if part.get(name) is not None]


def numbers(data: Mapping[str, Any], *names: str) -> list[int]:
    """Returns the numbers in these fields, which may be texts."""
    found = []
    for value in values(data, *names):
        with suppress(TypeError, ValueError, OverflowError):
            if not isinstance(value, bool):
                found.append(int(float(value)))
    return [each for each in found if each >= 0]


def answers(data: Mapping[str, Any]) -> int:
    """Returns how many answers a request asks for."""
    return max([1, *numbers(data, "n", "best_of", "candidateCount", "candidate_count")])


def unpriced() -> list[str]:
    """Returns the models and pass-through endpoints of the proxy for which cost() knows no price: LiteLLM has none, or it
    depends on something that a request does not tell."""
    found = [str(each.get("path")) for each in endpoints() if not each.get("cost_per_request")]
    for each in (router() and router().get_model_list()) or ():
        info = info_of(each)
        prices = [name for name in info if "cost_per" in name and (info[name] or name in each["model_info"])]
        known = _PRICES.get(str(info.get("mode")), r"token|character|image|pixel")
        if "*" not in each["model_name"] and not any(re.search(known, name) for name in prices):
            found.append(each["model_name"])
    return list(dict.fromkeys(found))


def cost(deployment: Mapping[str, Any], call_type: str, data: Mapping[str, Any], inputs: int, outputs: int) -> float:
    """Returns the most, in dollars, that a request with this many tokens can cost; 0 if LiteLLM has no price for it."""
    priced = _Priced(deployment, data)
    for kind in "image", "speech", "transcription", "rerank", "video":
        if kind in call_type:
            more: float = getattr(priced, kind)(inputs)
            return max(more, priced.tokens(inputs, outputs))
    return priced.tokens(inputs, outputs)


class _Priced:
    """The prices of a request at a deployment."""

    def __init__(self, deployment: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        params, info = deployment["litellm_params"], deployment["model_info"]
        self.data, self.info, self.model = data, info_of(deployment), params["model"]
        provider, _, model = self.model.partition("/")
        is_named = bool(model) and provider in litellm.provider_list
        self.known = {
            "model": model if is_named else self.model,
            "custom_llm_provider": params.get("custom_llm_provider") or (provider if is_named else None),
            "base_model": info.get("base_model") or params.get("base_model"),
            "router_model_id": info.get("id"),
            "custom_pricing": use_custom_pricing_for_model({**params, "metadata": {"model_info": info}}),
            # What is deeper in the request replaces the rest.
            "service_tier": [params.get("service_tier"), *values(data, "service_tier")][-1],
        }

    def _cost(self, call_type: str, response: Any = None, **more: Any) -> float:
        with suppress(Exception):
            return max(0.0, float(litellm.completion_cost(response, call_type=call_type, **self.known, **more) or 0))
        return 0.0

    def _of_tokens(self, inputs: int, outputs: int, given: Any = None, made: Any = None) -> float:
        usage = Usage(
            prompt_tokens=inputs,
            completion_tokens=outputs,
            total_tokens=inputs + outputs,
            prompt_tokens_details=given,
            completion_tokens_details=made,
            **{name: found[-1] for name in ("speed", "inference_geo") if (found := values(self.data, name))},
        )
        return self._cost("acompletion", ModelResponse(model=self.known["model"], usage=usage))

    def tokens(self, inputs: int, outputs: int) -> float:
        """Returns the most that tokens cost, whatever they stand for."""
        given: list[dict[str, Any]] = []
        if self.info.get("cache_creation_input_token_cost"):
            given.append({"cache_creation_tokens": inputs})
        if self.info.get("cache_creation_input_token_cost_above_1hr"):
            given.append({**given[0], "cache_creation_token_details": {"ephemeral_1h_input_tokens": inputs}})
        if not _MEDIA.isdisjoint(_fields([self.data.get(name) for name in ("messages", "input", "contents")])):
            given += [{f"{kind}_tokens": inputs} for kind in _INPUTS if self.info.get(f"input_cost_per_{kind}_token")]
        made = [{f"{kind}_tokens": outputs} for kind in _OUTPUTS if self.info.get(f"output_cost_per_{kind}_token")]
        plain = self._of_tokens(inputs, outputs)
        of_inputs = max([plain, *(self._of_tokens(inputs, outputs, each) for each in given)])
        of_outputs = max([plain, *(self._of_tokens(inputs, outputs, None, each) for each in made)])
        return of_inputs + of_outputs - plain

    def image(self, inputs: int) -> float:
        """Returns the most that images cost."""
        size, quality = (next(iter(values(self.data, name)), None) for name in ("size", "quality"))
        one = ImageResponse(data=[ImageObject()])
        each = self._cost("image_generation", one, n=1, size=size, quality=quality)
        if not each:
            # The provider chooses the size or the quality, or the price depends on tokens that nobody knows before.
            kinds = [info for name, info in litellm.model_cost.items() if name.endswith(f"/{self.known['model']}")]
            found = [info.get(f"{way}_cost_per_image") or 0.0 for info in kinds for way in ("input", "output")]
            tokens = self._of_tokens(0, IMAGE_TOKENS, None, {"image_tokens": IMAGE_TOKENS})
            each = max(self._cost("image_generation", one, n=1), tokens, *found, 0.0)
        return each * answers(self.data) + self._of_tokens(inputs, 0)

    def speech(self, inputs: int) -> float:
        """Returns what speech costs."""
        return self._cost("aspeech", prompt=str(self.data.get("input") or ""))

    def transcription(self, inputs: int) -> float:
        """Returns what the transcription of a file costs, if its length can be read."""
        response = TranscriptionResponse(text="")
        with suppress(Exception):
            response.duration = calculate_request_duration(self.data["file"])
        return self._cost("atranscription", response)

    def rerank(self, inputs: int) -> float:
        """Returns what the ranking of documents costs."""
        searches = -(-len(self.data.get("documents") or ()) // DOCUMENTS_PER_SEARCH)
        units = {"search_units": max(1, searches), "total_tokens": inputs}
        return self._cost("arerank", RerankResponse(id="", results=[], meta={"billed_units": units}))

    def video(self, inputs: int) -> float:
        """Returns the most that a video costs."""
        names = "output_cost_per_second", "output_cost_per_video_per_second"
        prices = [self.info[name] for name in self.info if name.startswith(names) and self.info[name]]
        each: float = max([0.0, *prices])
        return each * max(numbers(self.data, "seconds", "duration"), default=VIDEO_SECONDS)


def _fields(value: Any) -> Iterator[str]:
    """Yields the names of all fields in a value."""
    inner: Iterable[Any] = value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield from value
        inner = value.values()
    for each in inner:
        yield from _fields(each)
