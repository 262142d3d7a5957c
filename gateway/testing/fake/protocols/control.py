"""Answers of the control plane: health, properties, slots, models and metrics. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotgate.gateway.testing.fake.model.sampling import default_settings
from slotgate.gateway.testing.fake.model.slots import LlamaSlots
from slotgate.gateway.testing.fake.net.wire import Json, LlamaRefusal, answer
from slotgate.gateway.testing.fake.protocols.answer import CREATED, FINGERPRINT
from slotgate.gateway.testing.fake.script.scene import Machine, Scene

__all__ = ["CONTROL_PATHS", "LlamaCounters", "control_answer", "control_body"]

CONTROL_PATHS = frozenset(
    {"/health", "/v1/health", "/props", "/slots", "/v1/models", "/models", "/metrics", "/lora-adapters"}
)
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_METRICS = (
    ("prompt_tokens_total", "counter", "Number of prompt tokens processed, excluding cached tokens"),
    ("prompt_tokens_cached_total", "counter", "Number of prompt tokens reused from the cache"),
    ("prompt_seconds_total", "counter", "Total time spent processing prompts"),
    ("tokens_predicted_total", "counter", "Number of generation tokens processed"),
    ("tokens_predicted_seconds_total", "counter", "Total time spent generating tokens"),
    (
        "n_decode_total",
        "counter",
        "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
    ),
    ("n_tokens_max", "counter", "Largest observed sequence length (prompt + generation)"),
    ("spec_decode_num_draft_tokens_total", "counter", "Speculative: Total draft tokens generated"),
    (
        "spec_decode_num_accepted_tokens_total",
        "counter",
        "Speculative: Total draft tokens accepted by the target model",
    ),
    (
        "spec_decode_num_drafts_total",
        "counter",
        "Speculative: Total speculative decoding verification steps",
    ),
    ("prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s"),
    ("predicted_tokens_seconds", "gauge", "Average generation throughput in tokens/s"),
    ("requests_processing", "gauge", "Number of requests processing"),
    ("requests_deferred", "gauge", "Number of requests deferred"),
    ("n_busy_slots_per_decode", "gauge", "Average number of busy slots per llama_decode() call"),
)


@dataclass(slots=True)
class LlamaCounters:
    """The counters behind `/metrics`, and the number of tasks."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted: int = 0
    longest: int = 0
    tasks: int = 0


def control_answer(
    path: str, query: str, scene: Scene, slots: LlamaSlots, counters: LlamaCounters, **options: bool
) -> bytes:
    """Return the response. Raises `LlamaRefusal` if the server was started without the endpoint."""
    machine = scene.machine
    only_head = options.get("only_head", False)
    after = (b"Accept-Ranges: bytes",) if only_head else ()
    if path == "/metrics":
        if not machine.metrics_endpoint:
            raise _off("metrics", "--metrics")
        start = (b"Process-Start-Time-Unix: %d" % CREATED,)
        text = b"text/plain; version=0.0.4"
        return answer(
            200, _metrics(slots, counters), content_type=text, more=start, after=after, only_head=only_head
        )
    return answer(200, control_body(path, query, scene, slots), after=after, only_head=only_head)


def control_body(path: str, query: str, scene: Scene, slots: LlamaSlots) -> Any:  # noqa: ANN401
    """Return the JSON of a path other than `/metrics`. Raises `LlamaRefusal`."""
    machine = scene.machine
    if path in ("/health", "/v1/health"):
        return {"status": "ok"}
    if path == "/props":
        return _props(machine)
    if path == "/lora-adapters":
        return []
    if path in ("/v1/models", "/models"):
        return _models(scene)
    if not machine.slots_endpoint:
        raise _off("slots", "--slots")
    if "fail_on_no_slot=1" in query and len(slots.busy) >= slots.total:
        raise LlamaRefusal(503, "no slot available", "unavailable_error")
    fixed = {"n_ctx": machine.n_ctx, "speculative": False}
    return [
        {"id": number, **fixed, "is_processing": number in slots.busy, **slots.work.get(number, {})}
        for number in range(slots.total)
    ]


def _off(name: str, flag: str) -> LlamaRefusal:
    message = f"This server does not support {name} endpoint. Start it with `{flag}`"
    return LlamaRefusal(501, message, "not_supported_error")


def _props(machine: Machine) -> Json:
    return {
        "default_generation_settings": {"params": default_settings(), "n_ctx": machine.n_ctx},
        "total_slots": machine.slots,
        "model_alias": machine.model,
        "model_ftype": "Q4_K - Medium",
        "model_path": f"/models/{machine.model}.gguf",
        "modalities": {"vision": False, "video": False, "audio": machine.audio},
        "media_marker": "<__media__>",
        "endpoint_slots": machine.slots_endpoint,
        "endpoint_props": False,
        "endpoint_metrics": machine.metrics_endpoint,
        "ui": False,
        "ui_settings": {},
        "chat_template": _TEMPLATE,
        "chat_template_caps": {
            "supports_object_arguments": False,
            "supports_parallel_tool_calls": True,
            "supports_preserve_reasoning": False,
            "supports_reasoning_effort": False,
            "supports_string_content": True,
            "supports_system_role": True,
            "supports_tool_calls": True,
            "supports_tools": True,
            "supports_typed_content": False,
        },
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "build_info": FINGERPRINT,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }


def _models(scene: Scene) -> Json:
    n_ctx = scene.machine.n_ctx
    meta = {
        "vocab_type": 2,
        "n_vocab": 49152,
        "n_ctx": n_ctx,
        "n_ctx_train": 32768,
        "n_embd": scene.machine.dimensions,
        "n_params": 134515008,
        "size": 90000000,
        "ftype": "Q4_K - Medium",
    }
    head = {"object": "model", "created": CREATED, "owned_by": "llamacpp", "meta": meta}
    details = {
        "parent_model": "",
        "format": "gguf",
        "family": "",
        "families": [""],
        "parameter_size": "",
        "quantization_level": "",
    }
    rest: Json = {
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
    }
    rest |= {"capabilities": ["completion"], "parameters": "", "details": details}
    return {
        "models": [{"name": name, "model": name, **rest} for name in scene.models],
        "object": "list",
        "data": [{"id": name, "aliases": [name], "tags": [], **head} for name in scene.models],
    }


def _metrics(slots: LlamaSlots, counters: LlamaCounters) -> bytes:
    values = {
        "prompt_tokens_total": counters.prompt_tokens,
        "prompt_tokens_cached_total": counters.cached_tokens,
        "tokens_predicted_total": counters.predicted,
        "n_decode_total": counters.predicted,
        "n_tokens_max": counters.longest,
        "requests_processing": len(slots.busy),
        "requests_deferred": slots.deferred,
    }
    lines = (
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {values.get(key, 0)}\n"
        for key, kind, text in _METRICS
        for name in (f"llamacpp:{key}",)
    )
    return "".join(lines).encode()
