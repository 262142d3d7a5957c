"""The sampling settings that llama-server repeats in native answers, `/props` and `/slots`."""

from __future__ import annotations

from typing import Final

from slotgate.gateway.testing.fake.net.wire import Json

__all__ = ["default_settings", "request_settings", "slot_settings"]

_BY_REQUEST: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop",
    "n_probs",
    "n_keep",
    "grammar",
    "logit_bias",
)
_NOT_IN_PROPS: Final = frozenset(
    {
        "dry_sequence_breakers",
        "stop",
        "logit_bias",
        "grammar",
        "grammar_lazy",
        "grammar_triggers",
        "preserved_tokens",
    }
)

_SAMPLING: Final[Json] = {
    "seed": 4294967295,
    "temperature": 0.800000011920929,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 40,
    "top_p": 0.949999988079071,
    "min_p": 0.05000000074505806,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.10000000149011612,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.10000000149011612,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.8999999761581421,
    "stop": [],
    "max_tokens": 2,
    "n_predict": 2,
    "n_keep": 0,
    "n_discard": 0,
    "ignore_eos": False,
    "stream": False,
    "logit_bias": [],
    "n_probs": 0,
    "min_keep": 0,
    "grammar": "",
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "chat_format": "Content-only",
    "reasoning_format": "deepseek",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "speculative.types": "none",
    "timings_per_token": False,
    "post_sampling_probs": False,
    "backend_sampling": False,
    "lora": [],
}


def request_settings(body: Json, limit: int, *, stream: bool) -> Json:
    """Return the settings of one request, as native answers show them."""
    asked: Json = {name: body[name] for name in _BY_REQUEST if name in body}
    return {**_SAMPLING, **asked, "max_tokens": limit, "n_predict": limit, "stream": stream}


def default_settings() -> Json:
    """Return the settings of a request that sets none, as `/props` shows them."""
    return {**_shown(_SAMPLING), "max_tokens": -1, "n_predict": -1, "reasoning_format": "none"}


def slot_settings(body: Json, limit: int, *, stream: bool) -> Json:
    """Return the settings of the request in a slot, as `/slots` shows them."""
    return _shown(request_settings(body, limit, stream=stream))


def _shown(settings: Json) -> Json:
    return {name: value for name, value in settings.items() if name not in _NOT_IN_PROPS}
