"""What llama-server writes on `/v1/responses` and `/v1/messages`, byte shape for byte shape.

Rules of both: events are named, there is no `[DONE]`. Responses carry no sequence number and are
`completed` also when cut by the token limit; Anthropic ids begin with `chatcmpl-`, and `input_tokens`
leaves out the cached ones.
"""

from tests.support.llama_frames import CACHED_TOKENS, CREATED, PROMPT_TOKENS, Json, data, timings

_RESPONSE = "resp_Ot8WiTOdLh1JTRZfolqOURK0aaX2VjOr"
_ITEM = "msg_T3aEHCYy1vgpgYdqysnjG6l1NAW9WmPj"
_MESSAGE = "chatcmpl-Cf2NwH8rvfoGs05apxhrTaR9nB6aeZB0"


def named(kind: str, **fields: object) -> bytes:
    return b"event: %b\n%b" % (kind.encode(), data({"type": kind, **fields}))


def _response_usage(predicted: int) -> Json:
    return {
        "input_tokens": PROMPT_TOKENS,
        "output_tokens": predicted,
        "total_tokens": PROMPT_TOKENS + predicted,
        "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }


def response_events(words: list[str], model: str) -> list[bytes]:
    text = "".join(words)
    begun = {"id": _RESPONSE, "object": "response", "status": "in_progress"}
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    item = {"type": "message", "status": "completed", "id": _ITEM, "content": [part], "role": "assistant"}
    added = {"content": [], "id": _ITEM, "role": "assistant", "status": "in_progress", "type": "message"}
    whole = {
        "id": _RESPONSE,
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "model": model,
        "output": [item],
        "usage": _response_usage(len(words)),
    }
    return [
        named("response.created", response=begun),
        named("response.in_progress", response=begun),
        named("response.output_item.added", item=added),
        named("response.content_part.added", item_id=_ITEM, part={"type": "output_text", "text": ""}),
        *(named("response.output_text.delta", item_id=_ITEM, delta=word) for word in words),
        named("response.output_text.done", item_id=_ITEM, text=text),
        named("response.content_part.done", item_id=_ITEM, part=part),
        named("response.output_item.done", item=item),
        named("response.completed", response=whole, timings=timings(len(words))),
    ]


def response_body(words: list[str], model: str) -> Json:
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": "".join(words)}
    item = {"content": [part], "id": _ITEM, "role": "assistant", "status": "completed", "type": "message"}
    return {
        "completed_at": CREATED,
        "created_at": CREATED,
        "id": _RESPONSE,
        "model": model,
        "object": "response",
        "output": [item],
        "status": "completed",
        "usage": _response_usage(len(words)),
    }


def _message(content: list[Json], model: str, stop_reason: str | None, predicted: int) -> Json:
    return {
        "id": _MESSAGE,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": model,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {
            "cache_read_input_tokens": CACHED_TOKENS,
            "input_tokens": PROMPT_TOKENS - CACHED_TOKENS,
            "output_tokens": predicted,
        },
    }


def message_events(words: list[str], model: str, finish: str) -> list[bytes]:
    def delta(word: str) -> bytes:
        return named("content_block_delta", index=0, delta={"type": "text_delta", "text": word})

    end = {"stop_reason": _stop_reason(finish), "stop_sequence": None}
    return [
        named("message_start", message=_message([], model, None, 0)),
        named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *map(delta, words),
        named("content_block_stop", index=0),
        named("message_delta", delta=end, usage={"output_tokens": len(words)}),
        named("message_stop"),
    ]


def message_body(words: list[str], model: str, finish: str) -> Json:
    content = [{"type": "text", "text": "".join(words)}]
    return _message(content, model, _stop_reason(finish), len(words))


def _stop_reason(finish: str) -> str:
    return "max_tokens" if finish == "length" else "end_turn"
