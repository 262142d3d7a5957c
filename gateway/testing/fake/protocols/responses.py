"""How `/v1/responses` is told: named events without numbers, `completed` also when cut by the token limit.

The reasoning item is done only at the end, behind all text, and has no parts; a call has no event for the end
of its arguments: that is how llama-server tells it.
"""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, data, named
from slotgate.gateway.testing.fake.protocols.answer import Told
from slotgate.gateway.testing.fake.script.answer_content import Kind, Token

__all__ = ["ResponsesTeller"]


class ResponsesTeller:
    def __init__(self, told: Told) -> None:
        self.told = told
        voice = told.voice
        self._id = f"resp_{voice.id}"
        self._item = f"msg_{voice.new_id()}"
        self._reasoning_id = f"rs_{voice.new_id()}"
        self._call_ids: list[str] = []
        self._opened = False
        self._kind: Kind | None = None

    def say(self, token: Token) -> bytes:
        self.told.say(token)
        begun = self._opening() + (b"" if token.kind is self._kind else self._begun(token))
        self._kind = token.kind
        return begun + self._delta(token)

    def end(self) -> list[bytes]:
        told = self.told
        ending = [self._opening()]
        if told.reasoning:
            ending.append(named("response.output_item.done", item=self._thought()))
        if told.text:
            part = self._part(told.text)
            ending += [
                named("response.output_text.done", item_id=self._item, text=told.text),
                named("response.content_part.done", item_id=self._item, part=part),
                named("response.output_item.done", item=self._message_done()),
            ]
        ending += [named("response.output_item.done", item=call) for call in self._calls()]
        ending.append(named("response.completed", response=self._completed(), timings=told.timings()))
        return [b"".join(ending)]

    def whole(self) -> Json:
        told, voice = self.told, self.told.voice
        output: list[Json] = []
        if told.reasoning:
            output.append({**self._thought(), "status": "completed"})
        if told.text or not told.calls:
            message = {"content": [self._part(told.text)], "id": self._item, "role": "assistant"}
            output.append({**message, "status": "completed", "type": "message"})
        output += self._calls()
        return {
            "completed_at": voice.created,
            "created_at": voice.created,
            "id": self._id,
            "model": voice.model,
            "object": "response",
            "output": output,
            "status": "completed",
            "usage": self._usage(),
        }

    def failed(self, error: Json) -> bytes:
        return data(error)

    # -- the parts

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        begun = {"id": self._id, "object": "response", "status": "in_progress"}
        return named("response.created", response=begun) + named("response.in_progress", response=begun)

    def _begun(self, token: Token) -> bytes:
        if token.kind is Kind.TEXT:
            item = {
                "content": [],
                "id": self._item,
                "role": "assistant",
                "status": "in_progress",
                "type": "message",
            }
            part = {"type": "output_text", "text": ""}
            return named("response.output_item.added", item=item) + named(
                "response.content_part.added", item_id=self._item, part=part
            )
        if token.kind is Kind.REASONING:
            item = {**self._thinking([]), "status": "in_progress"}
            return named("response.output_item.added", item=item)
        return b""

    def _delta(self, token: Token) -> bytes:
        if token.kind is Kind.TEXT:
            return named("response.output_text.delta", item_id=self._item, delta=token.text)
        if token.kind is Kind.REASONING:
            return named("response.reasoning_text.delta", delta=token.text, item_id=self._reasoning_id)
        if token.kind is Kind.CALL:
            self._call_ids.append(self.told.voice.new_id())
            begun = {"type": "function_call", "status": "in_progress"}
            item = {**self._call(len(self._call_ids) - 1, token.text, ""), **begun}
            return named("response.output_item.added", item=item)
        item_id = f"fc_{self._call_ids[-1]}"
        return named("response.function_call_arguments.delta", delta=token.text, item_id=item_id)

    def _call(self, index: int, name: str, arguments: str) -> Json:
        call_id = self._call_ids[index]
        return {"id": f"fc_{call_id}", "arguments": arguments, "call_id": f"call_{call_id}", "name": name}

    def _thinking(self, content: list[Json]) -> Json:
        return {
            "id": self._reasoning_id,
            "summary": [],
            "type": "reasoning",
            "content": content,
            "encrypted_content": "",
        }

    def _thought(self) -> Json:
        return self._thinking([{"text": self.told.reasoning, "type": "reasoning_text"}])

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}

    def _message_done(self) -> Json:
        content = [self._part(self.told.text)]
        return {
            "type": "message",
            "status": "completed",
            "id": self._item,
            "content": content,
            "role": "assistant",
        }

    def _calls(self) -> list[Json]:
        while len(self._call_ids) < len(self.told.calls):
            self._call_ids.append(self.told.voice.new_id())
        done = {"type": "function_call", "status": "completed"}
        calls = (self._call(index, *call) for index, call in enumerate(self.told.calls))
        return [{"id": call.pop("id"), **done, **call} for call in calls]

    def _completed(self) -> Json:
        told, voice = self.told, self.told.voice
        output = [self._thought()] if told.reasoning else []
        if told.text:
            output.append(self._message_done())
        return {
            "id": self._id,
            "object": "response",
            "created_at": voice.created,
            "status": "completed",
            "model": voice.model,
            "output": [*output, *self._calls()],
            "usage": self._usage(),
        }

    def _usage(self) -> Json:
        told, voice = self.told, self.told.voice
        return {
            "input_tokens": voice.prompt_tokens,
            "output_tokens": told.predicted,
            "total_tokens": voice.prompt_tokens + told.predicted,
            "input_tokens_details": {"cached_tokens": voice.cached_tokens},
        }
